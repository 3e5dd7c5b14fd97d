"""Stable-Baselines3's PPO, A2C, DQN, SAC or TD3 on an environment of vectors until it is stopped.

    python bench/peers/sb3_small.py --algo ppo --env CartPole-v1 --n-envs 8 --n-steps 32 --epochs 20 --batch 256

MlpPolicy: 64-64 tanh for the policy and as many for the value; DQN's 128-128 ReLU. Policy, vector of environments,
buffers and loop are Stable-Baselines3's. With --normalize 1 its VecNormalize scales observations and rewards. DQN makes
an update for every --every agent steps, SAC and TD3 for every one (--hidden: units of their two layers); their steps
count from the first update on. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from logs import Log, small_command_line
from networks import count
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

VECTORS = {"subproc": SubprocVecEnv, "dummy": DummyVecEnv}


class Clock(BaseCallback):
    """Notes the steps learnt from, and DQN's updates, whenever it begins to act."""

    def __init__(self, log: Log, start: int):
        super().__init__()
        self.log, self.start = log, start

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.log.due():
            updates = {"updates": self.model._n_updates} if self.start else {}
            self.log.write(steps=max(0, self.num_timesteps - self.start), **updates)


def build(asked: argparse.Namespace) -> BaseAlgorithm:
    start = {"start_method": "fork"} if asked.vec == "subproc" else {}
    vector: Any = VECTORS[asked.vec]
    envs: Any = make_vec_env(asked.env, asked.n_envs, asked.seed, vec_env_cls=vector, vec_env_kwargs=start)
    if asked.normalize:
        envs = VecNormalize(envs, gamma=asked.gamma)
    fixed: dict[str, Any] = {"gamma": asked.gamma, "device": "cpu", "seed": asked.seed}
    if asked.algo == "dqn":
        return DQN(
            "MlpPolicy", envs, learning_rate=5e-4, batch_size=asked.batch, buffer_size=asked.capacity,
            learning_starts=asked.start, train_freq=max(1, asked.burst * asked.every // asked.n_envs),
            gradient_steps=max(asked.burst, asked.n_envs // asked.every), target_update_interval=1_000,
            exploration_initial_eps=0.05, exploration_final_eps=0.05, policy_kwargs={"net_arch": [128, 128]}, **fixed,
        )  # fmt: skip
    if asked.algo in ("sac", "td3"):
        size = envs.action_space.shape[0]
        own = {} if asked.algo == "sac" else {"action_noise": NormalActionNoise(np.zeros(size), np.full(size, 0.1))}
        return (SAC if asked.algo == "sac" else TD3)(
            "MlpPolicy", envs, batch_size=asked.batch, buffer_size=asked.capacity, learning_starts=asked.start,
            policy_kwargs={"net_arch": [asked.hidden, asked.hidden]}, **own, **fixed,
        )  # fmt: skip
    fixed |= {"n_steps": asked.n_steps, "ent_coef": 0.0, "gae_lambda": asked.lam}
    if asked.algo == "a2c":
        return A2C("MlpPolicy", envs, **fixed)
    return PPO("MlpPolicy", envs, learning_rate=3e-4, batch_size=asked.batch, n_epochs=asked.epochs, **fixed)


def main() -> None:
    parser = small_command_line(__doc__)
    parser.add_argument("--vec", choices=VECTORS, default="dummy")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    model = build(asked)
    print(f"{count(model.policy)} parameters", flush=True)
    clock = Clock(Log(asked.log), asked.start if asked.algo in ("dqn", "sac", "td3") else 0)
    model.learn(10**12, callback=clock, log_interval=10**9)


if __name__ == "__main__":
    main()

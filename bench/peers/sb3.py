"""Stable-Baselines3's A2C or PPO on Pong until it is stopped.

    python bench/peers/sb3.py --algo a2c --network nature --n-envs 16 --threads 2 --log log.jsonl

Knows nothing of Polyplay. Hyper-parameters are rl-zoo3's for Atari; environments, policy and loop Stable-Baselines3's.
nature is its own CnnPolicy, the other networks take the place of its feature extractor. It learns from every step that
it counts.
"""

from __future__ import annotations

import argparse
from typing import Any

import ale_py
import gymnasium
import torch
from logs import Log, command_line
from networks import NETWORKS, Torso, count
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

gymnasium.register_envs(ale_py)
VECTORS = {"subproc": SubprocVecEnv, "dummy": DummyVecEnv}


class Extractor(BaseFeaturesExtractor):
    def __init__(self, observation_space: gymnasium.Space, network: str):
        torso = Torso(network, observation_space.shape)
        super().__init__(observation_space, torso.features)
        self.torso = torso

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.torso(x)


class Clock(BaseCallback):
    """Notes the steps learnt from, whenever a rollout begins, and the games that its Monitor has seen whole."""

    def __init__(self, log: Log):
        super().__init__()
        self.log = log

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.log.game(info["episode"]["r"])
        return True

    def _on_rollout_start(self) -> None:
        if self.log.due():
            self.log.write(steps=self.num_timesteps)


def falling(value: float, steps: int) -> Any:
    """rl-zoo3's lin_…: to 0 with what remains of the training; without an end to that, always the same."""
    return (lambda remains: remains * value) if steps else value


def build(asked: argparse.Namespace) -> A2C | PPO:
    vector = VECTORS[asked.vec]
    start = {"start_method": asked.start} if asked.vec == "subproc" else {}
    envs = make_atari_env(asked.env, asked.n_envs, asked.seed, vec_env_cls=vector, vec_env_kwargs=start)
    env = VecFrameStack(envs, n_stack=4)
    policy: dict[str, Any] = {"net_arch": []}  # as its own for CnnPolicy
    if asked.network != "nature":
        policy |= {"features_extractor_class": Extractor, "features_extractor_kwargs": {"network": asked.network}}
    fixed: dict[str, Any] = {"n_steps": asked.n_steps, "ent_coef": 0.01, "device": "cpu", "seed": asked.seed}
    if asked.algo == "a2c":  # its learning rate is A2C's own
        policy |= {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"eps": 1e-5}}
        return A2C("CnnPolicy", env, vf_coef=0.25, policy_kwargs=policy, **fixed)
    part = asked.n_envs * asked.n_steps // asked.minibatches
    fixed |= {"batch_size": part, "n_epochs": asked.epochs}
    fixed |= {"learning_rate": falling(2.5e-4, asked.anneal), "clip_range": falling(0.1, asked.anneal)}
    return PPO("CnnPolicy", env, vf_coef=0.5, policy_kwargs=policy, **fixed)


def main() -> None:
    parser = command_line(__doc__, NETWORKS)
    parser.add_argument("--algo", choices=("a2c", "ppo"), default="a2c")
    parser.add_argument("--env", default="PongNoFrameskip-v4")
    parser.add_argument("--n-envs", type=int, default=16)
    parser.add_argument("--n-steps", type=int, help="default: 5 (A2C), 128 (PPO)")
    parser.add_argument("--epochs", type=int, default=4, help="of PPO")
    parser.add_argument("--minibatches", type=int, default=4, help="of PPO")
    parser.add_argument("--anneal", type=int, default=0, help="steps until PPO's learning rate and clip range are 0")
    parser.add_argument("--threads", type=int, default=2, help="torch.set_num_threads")
    parser.add_argument("--vec", choices=VECTORS, default="subproc")
    parser.add_argument("--start", choices=("fork", "forkserver"), default="fork", help="of SubprocVecEnv's processes")
    asked = parser.parse_args()
    asked.n_steps = asked.n_steps or {"a2c": 5, "ppo": 128}[asked.algo]
    torch.set_num_threads(asked.threads)
    model = build(asked)
    print(f"{count(model.policy)} parameters", flush=True)
    model.learn(asked.anneal or 10**12, callback=Clock(Log(asked.log)))


if __name__ == "__main__":
    main()

"""Stable-Baselines3's DQN on Pong until it is stopped, one update of 32 per 4 agent steps.

    python bench/peers/sb3_dqn.py --n-envs 8 --threads 2 --log log.jsonl

Hyper-parameters are rl-zoo3's for Atari but for what the task fixes; environments, CnnPolicy, replay and loop are
Stable-Baselines3's. With several environments it steps all of them, then makes as many updates as are due. Steps count
from the first update on. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse

import ale_py
import gymnasium
import torch
from logs import Log, dqn_command_line
from networks import count
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

gymnasium.register_envs(ale_py)
VECTORS = {"subproc": SubprocVecEnv, "dummy": DummyVecEnv}
EVERY = 4  # agent steps an update


class Clock(BaseCallback):
    """Notes steps and updates whenever it begins to act."""

    def __init__(self, log: Log, start: int):
        super().__init__()
        self.log, self.start = log, start

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.log.due():
            self.log.write(steps=max(0, self.num_timesteps - self.start), updates=self.model._n_updates)


def build(asked: argparse.Namespace) -> DQN:
    vector = VECTORS[asked.vec]
    start = {"start_method": "fork"} if asked.vec == "subproc" else {}
    envs = make_atari_env(asked.env, asked.n_envs, asked.seed, vec_env_cls=vector, vec_env_kwargs=start)
    passes = max(1, EVERY // asked.n_envs)  # over all environments between updates
    if asked.n_envs * passes % EVERY:
        raise SystemExit(f"--n-envs {asked.n_envs} does not give an update per {EVERY} steps; 1, 2 or a multiple of 4")
    shared = asked.memory == "shared"
    return DQN(
        "CnnPolicy", VecFrameStack(envs, n_stack=4), learning_rate=1e-4, batch_size=32, buffer_size=asked.capacity,
        learning_starts=asked.start, train_freq=passes, gradient_steps=asked.n_envs * passes // EVERY,
        target_update_interval=10_000, exploration_initial_eps=asked.epsilon, exploration_final_eps=asked.epsilon,
        optimize_memory_usage=shared, replay_buffer_kwargs={"handle_timeout_termination": not shared},
        device="cpu", seed=asked.seed,
    )  # fmt: skip


def main() -> None:
    parser = dqn_command_line(__doc__)
    parser.add_argument("--env", default="PongNoFrameskip-v4")
    parser.add_argument("--n-envs", type=int, default=8)
    parser.add_argument("--vec", choices=VECTORS, default="subproc")
    parser.add_argument(
        "--memory", choices=("shared", "both"), default="shared", help="one array of observations or two"
    )
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    model = build(asked)
    print(f"{count(model.q_net)} parameters", flush=True)
    model.learn(10**12, callback=Clock(Log(asked.log), asked.start), log_interval=10**9)


if __name__ == "__main__":
    main()

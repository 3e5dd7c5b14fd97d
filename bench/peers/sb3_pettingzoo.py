"""Stable-Baselines3's PPO with SuperSuit on a PettingZoo ParallelEnv, one policy in all seats.

    python bench/peers/sb3_pettingzoo.py --env pettingzoo.sisl.waterworld_v4:parallel_env --minutes 40 --log curve.jsonl

Knows nothing of Polyplay. Defaults are the numbers of PettingZoo's own tutorial for Waterworld (8 environments in 2
processes, batches of 256, learning rate 1e-3); all else is Stable-Baselines3's default: 2,048 steps, 10 epochs, two
layers of 64 tanh units. Rewards are the environment's own, unscaled. A line of the log is written when a rollout
begins, and one at the end: agent steps so far (an agent step is one agent's action), the returns of the agents whose
episodes ended since the line before, and the mean of the last 100 of them.

SuperSuit says nothing of time limits, so Stable-Baselines3 takes a truncation for a termination.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
from collections import deque
from statistics import fmean
from typing import Any

import supersuit
import torch
from logs import Log
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv, VecMonitor


class Clock(BaseCallback):
    """Writes the log, and ends the training when its time is over."""

    def __init__(self, log: Log, minutes: float | None):
        super().__init__()
        self.log, self.minutes = log, minutes
        self.recent = deque[float](maxlen=100)

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.log.game(info["episode"]["r"])
                self.recent.append(info["episode"]["r"])
        return self.minutes is None or self.log.elapsed() < 60 * self.minutes

    def _on_rollout_start(self) -> None:
        mean = {"return_mean": round(fmean(self.recent), 4)} if self.recent else {}
        self.log.write(steps=self.num_timesteps, **mean)

    def _on_training_end(self) -> None:
        self._on_rollout_start()


def environments(asked: argparse.Namespace) -> VecEnv:
    """A lane for each agent. Copies of one environment begin alike, so each is seeded; those of two processes overlap
    (SuperSuit adds a process's number and a copy's)."""
    module, _, name = asked.env.partition(":")
    lanes = supersuit.pettingzoo_env_to_vec_env_v1(getattr(importlib.import_module(module), name)())
    every = supersuit.concat_vec_envs_v1(lanes, asked.n_envs, num_cpus=asked.num_cpus, base_class="stable_baselines3")
    every.venv.reset(seed=1000 * asked.seed)
    return VecMonitor(every)


def build(asked: argparse.Namespace) -> PPO:
    set_random_seed(asked.seed)  # PPO's own seed asks SuperSuit for what it lacks
    given: dict[str, Any] = {"n_steps": asked.n_steps, "batch_size": asked.batch, "n_epochs": asked.epochs}
    return PPO("MlpPolicy", environments(asked), learning_rate=asked.learning_rate, device="cpu", **given)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--env", default="pettingzoo.sisl.waterworld_v4:parallel_env", help="MODULE:CALLABLE")
    parser.add_argument("--steps", type=int, default=10**12, help="agent steps, at least")
    parser.add_argument("--minutes", type=float, help="of training, at most")
    parser.add_argument("--n-envs", type=int, default=8, help="matches, each with all its agents")
    parser.add_argument("--num-cpus", type=int, default=2, help="processes of environments (1: none but the main one)")
    parser.add_argument("--n-steps", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=2, help="torch.set_num_threads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", help="file for a line of counters a rollout")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    model = build(asked)
    print(f"{sum(p.numel() for p in model.policy.parameters())} parameters", flush=True)
    try:
        model.learn(asked.steps, callback=Clock(Log(asked.log), asked.minutes))
    finally:
        for process in multiprocessing.active_children():  # SuperSuit's do not end when they are told to close
            process.terminate()


if __name__ == "__main__":
    main()

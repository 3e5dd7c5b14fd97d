"""Stable-Baselines3 with its defaults on a Gymnasium environment: a line of JSON with steps, seconds and score.

    python bench/peers/sb3_defaults.py --algo ppo --env CartPole-v1 --steps 100000 --seed 0 --target 450

MlpPolicy, one environment, no wrapper but its Monitor. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from statistics import fmean

import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor


class Watch(BaseCallback):
    """The time at which the mean return of the last 100 games, or of 20 at least, first reached the target."""

    def __init__(self, target: float):
        super().__init__()
        self.target, self.begun = target, time.monotonic()
        self.returns = deque[float](maxlen=100)
        self.reached: float | None = None
        self.steps: int | None = None

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" not in info:
                continue
            self.returns.append(info["episode"]["r"])
            if self.reached is None and len(self.returns) >= 20 and fmean(self.returns) >= self.target:
                self.reached, self.steps = time.monotonic() - self.begun, self.num_timesteps
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", choices=("a2c", "ppo", "dqn", "ddpg", "td3", "sac"), required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(2)
    import gymnasium

    model = getattr(stable_baselines3, asked.algo.upper())("MlpPolicy", asked.env, seed=asked.seed, device="cpu")
    watch = Watch(asked.target)
    model.learn(asked.steps, callback=watch)
    seconds = time.monotonic() - watch.begun
    sampled, envs = asked.algo in ("a2c", "ppo"), Monitor(gymnasium.make(asked.env))
    games, _ = evaluate_policy(model, envs, 100, deterministic=not sampled, return_episode_rewards=True)
    print(json.dumps({"steps": asked.steps, "seconds": seconds, "reached": watch.reached, "returns": games}))


if __name__ == "__main__":
    main()

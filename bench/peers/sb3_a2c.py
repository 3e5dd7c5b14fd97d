"""Stable-Baselines3's A2C on Pong (Nature CNN, SubprocVecEnv): agent steps per second after a warm-up.

Runs in an environment of its own (README.md here) and knows nothing of Polyplay. With --log it writes lines
of {"wall_seconds", "steps"} about once a second, which bench/compare.py reads. Hyper-parameters are
rl-zoo3's for Atari.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from importlib.metadata import version
from typing import IO, Any

import ale_py
import gymnasium
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

gymnasium.register_envs(ale_py)
VECTORS = {"subproc": SubprocVecEnv, "dummy": DummyVecEnv}


class Clock(BaseCallback):
    """Notes (seconds, steps) about once a second, and ends the training when the time is over."""

    def __init__(self, until: float, log: IO[str] | None):
        super().__init__()
        self.until, self.log = until, log
        self.begun = self.next = time.perf_counter()
        self.marks: list[tuple[float, int]] = []

    def _on_step(self) -> bool:
        return time.perf_counter() - self.begun < self.until

    def _on_rollout_start(self) -> None:
        now = time.perf_counter()
        if now < self.next:
            return
        self.next = now + 1.0
        self.marks.append((now - self.begun, self.num_timesteps))
        if self.log is not None:
            line = {"wall_seconds": round(now - self.begun, 3), "steps": self.num_timesteps}
            self.log.write(json.dumps(line) + "\n")
            self.log.flush()


def build(asked: argparse.Namespace) -> A2C:
    torch.set_num_threads(asked.threads)
    vector = VECTORS[asked.vec]
    env = VecFrameStack(make_atari_env(asked.env, asked.n_envs, asked.seed, vec_env_cls=vector), n_stack=4)
    optimizer: dict[str, Any] = {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"eps": 1e-5}}
    return A2C(
        "CnnPolicy", env, n_steps=asked.n_steps, ent_coef=0.01, vf_coef=0.25, policy_kwargs=optimizer,
        device="cpu", seed=asked.seed,
    )  # fmt: skip


def rate(marks: list[tuple[float, int]], warm: float) -> float:
    """Steps per second over the marks at or after `warm` seconds."""
    kept = [m for m in marks if m[0] >= warm]
    if len(kept) < 2:
        return float("nan")
    return (kept[-1][1] - kept[0][1]) / (kept[-1][0] - kept[0][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="PongNoFrameskip-v4")
    parser.add_argument("--n-envs", type=int, default=16)
    parser.add_argument("--n-steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="torch.set_num_threads")
    parser.add_argument("--vec", choices=VECTORS, default="subproc")
    parser.add_argument("--warm", type=float, default=8.0, help="seconds that do not count")
    parser.add_argument("--seconds", type=float, default=25.0, help="seconds that do")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", help="file for a line a second")
    asked = parser.parse_args()
    model = build(asked)
    log = open(asked.log, "a") if asked.log else None  # noqa: SIM115 - closed below
    clock = Clock(asked.warm + asked.seconds, log)
    try:
        model.learn(10**12, callback=clock)
    finally:
        model.get_env().close()
        if log is not None:
            log.close()
    names = ("stable-baselines3", "torch", "gymnasium", "ale-py", "opencv-python-headless", "numpy")
    settings = {k: getattr(asked, k) for k in ("env", "n_envs", "n_steps", "threads", "vec", "seed")}
    versions = {"python": platform.python_version(), **{n: version(n) for n in names}}
    print(json.dumps({"sps": rate(clock.marks, asked.warm), **settings, "versions": versions}))


if __name__ == "__main__":
    main()

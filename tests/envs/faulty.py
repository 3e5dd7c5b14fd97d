"""Environments that do what tests tell them to, by their action."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium import spaces

FINE, RAISE, HANG, HOLD, KILL, EXIT, CRASH, SPAWN = range(8)


class Obedient(gymnasium.Env):
    """obs: [steps of this episode, episodes of this object, process id, torch is loaded]; reward: steps."""

    def __init__(self, length: int = 5, truncate: bool = False, start: int = 0):
        self.length, self.truncate, self.start = length, truncate, start
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = spaces.Discrete(10, start=start)
        self.episodes = 0

    def _see(self) -> np.ndarray:
        return np.array([self.steps, self.episodes, os.getpid(), "torch" in sys.modules], np.float64)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.steps = 0
        self.episodes += 1
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        end = self.steps == self.length
        match action - self.start:
            case 1:
                raise ValueError("boom")
            case 2:
                time.sleep(1000)
            case 3:
                while True:
                    ctypes.PyDLL(None).pause()  # holds the GIL
            case 4:
                os.kill(os.getpid(), signal.SIGKILL)
            case 5:
                sys.exit(3)
            case 6:
                faulthandler._sigsegv()  # type: ignore[attr-defined]
            case 7:
                subprocess.Popen(["sleep", "1000"])
        return self._see(), self.steps, end and not self.truncate, end and self.truncate, {}


class Unbuildable(gymnasium.Env):
    def __init__(self) -> None:
        raise RuntimeError("no licence\nfound")


def _lives(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(numbers: list[int], within: float = 30.0) -> bool:
    """None of these processes lives any more, or not for long."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        if not any(_lives(n) for n in numbers):
            return True
        time.sleep(0.02)
    return False


def acts(lanes=4, **special) -> np.ndarray:
    """All fine but `lane3=RAISE`."""
    a = np.full(lanes, FINE, np.int64)
    for key, value in special.items():
        a[int(key.removeprefix("lane"))] = value
    return a


def pids(pool) -> list[int]:
    return [w.process.pid for w in pool._workers.values()]

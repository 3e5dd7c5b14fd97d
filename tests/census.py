"""An environment whose every observation is unlike any other: who, which episode, which step. So transitions can be
counted from end to end.
"""

from __future__ import annotations

import os

import gymnasium
import numpy as np


class Census(gymnasium.Env):
    """Observation float64 [4]: process, environment of that process, episode, step. Episodes of 1 … `longest` steps end
    by termination or truncation.
    """

    made = 0

    def __init__(self, longest: int = 12):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.longest = longest
        Census.made += 1
        self.who = (os.getpid(), Census.made)
        self.episode = self.age = 0

    def _obs(self) -> np.ndarray:
        return np.array([*self.who, self.episode, self.age], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.age = self.episode + 1, 0
        self.length = int(self.np_random.integers(1, self.longest + 1))
        return self._obs(), {}

    def step(self, action):
        self.age += 1
        over = self.age >= self.length
        cut = over and self.length % 3 == 0
        return self._obs(), 1.0, over and not cut, cut, {}


def census(longest: int = 12) -> Census:
    return Census(longest)

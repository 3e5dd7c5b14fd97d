"""Environments that are stepped in a process of others change nothing of it, and find what they changed."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from polyplay.envs import Envs
from polyplay.envs.spaces import action_sampler


def change():
    os.chdir("/")
    np.seterr(all="raise")
    torch.set_default_dtype(torch.float64)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def seen():
    return os.getcwd(), np.geterr()["over"], torch.get_default_dtype(), signal.getsignal(signal.SIGTERM)


CHANGED = ("/", "raise", torch.float64, signal.SIG_IGN)


class Changes(gymnasium.Env):
    observation_space, action_space = spaces.Box(0, 1, (2,)), spaces.Discrete(2)

    def __init__(self, late: bool = False):
        self.late = late
        if not late:
            change()

    def reset(self, *, seed=None, options=None):
        if self.late:
            change()
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert seen() == CHANGED
        return np.zeros(2, np.float32), 0.0, False, False, {}


class ManyChange(VectorEnv):
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    single_observation_space, single_action_space = Changes.observation_space, Changes.action_space

    def __init__(self, num_envs: int):
        change()
        self.num_envs = num_envs

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, action):
        assert seen() == CHANGED
        no = np.zeros(self.num_envs, bool)
        return np.zeros((self.num_envs, 2), np.float32), np.zeros(self.num_envs), no, no, {}


@pytest.mark.parametrize("make", [Changes, lambda: Changes(late=True), ManyChange])
def test_what_environments_change_of_their_process_is_put_back(make):
    before = seen()
    try:
        envs = Envs(make, 2, inline=True)
        draw = action_sampler(envs.spec.action, 0)
        assert seen() == before, "described"
        with closing(envs.open(0)) as pool:
            for _ in range(5):
                lanes, _ = pool.recv()
                pool.send(lanes, draw(2, None))
                assert seen() == before
            assert not pool.faults
        assert seen() == before, "closed"
    finally:
        os.chdir(before[0])
        np.seterr(all="warn", under="ignore")
        torch.set_default_dtype(before[2])
        signal.signal(signal.SIGTERM, before[3])

"""What is no environment, and what the message says to write."""

from __future__ import annotations

import types

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from polyplay.core.errors import UserError
from polyplay.envs.build import build_env, not_an_env
from tests.envs.faulty import Obedient


class Duck:
    """As an environment, but none."""

    observation_space, action_space = spaces.Box(0.0, 1.0, (3,)), spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 1.0, True, False, {}


class Old(Duck):
    def reset(self):
        return np.zeros(3, np.float32)


class OldButInherits(gymnasium.Env):
    observation_space, action_space = Duck.observation_space, Duck.action_space

    def reset(self):
        return np.zeros(3, np.float32)


class NoActions(gymnasium.Env):
    observation_space, action_space = Duck.observation_space, None


class NoObservations(gymnasium.Env):
    action_space = Duck.action_space


class Number(gymnasium.Env):
    observation_space, action_space = Duck.observation_space, 4


OfGym = type("OfGym", (Duck,), {"__module__": "gym.envs.classic"})
GymSpace = type("Discrete", (), {"__module__": "gym.spaces.discrete"})


class OldSpace(gymnasium.Env):
    observation_space, action_space = Duck.observation_space, GymSpace()


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (Duck(), "Duck is no gymnasium.Env: inherit from it, class Duck(gymnasium.Env)"),
        (Old(), "reset() and step() of Old are gym's before 0.26: shimmy.GymV21CompatibilityV0 wraps it, or inherit"),
        (OldButInherits(), "reset() of OldButInherits takes no seed, as gym's before 0.26: write def reset(self"),
        (gymnasium.wrappers.TimeLimit(OldButInherits(), 5), "reset() of OldButInherits takes no seed"),
        (NoActions(), "action_space of NoActions is None: set it in __init__"),
        (NoObservations(), "observation_space of NoObservations is None: set it in __init__"),
        (Number(), "action_space of Number is int 4, no space: set it in __init__"),
        (OldSpace(), "action_space of OldSpace is a space of gym, which gymnasium replaced: import gymnasium as gym"),
        (OfGym(), "gave OfGym, an environment of gym, which gymnasium replaced: import gymnasium as gym"),
        (Obedient, "gave the class Obedient, no environment: return Obedient()"),
        (None, "gave None, which is no gymnasium.Env, and no PettingZoo environment"),
        (types.SimpleNamespace(reset=1), "gave SimpleNamespace, which is no gymnasium.Env"),
    ],
)
def test_one_line_says_what_to_write(made, says):
    assert not_an_env(made).startswith(says)
    with pytest.raises(UserError, match="rule build; polyplay check ENV explains") as e:
        build_env(lambda: made, "env:make")
    assert str(e.value).startswith(f"env:make: {says}")
    assert "\n" not in str(e.value)


def test_environments_are_environments():
    assert not_an_env(Obedient()) == ""
    assert not_an_env(gymnasium.make("CartPole-v1")) == ""

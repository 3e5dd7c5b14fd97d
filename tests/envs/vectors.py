"""Vector environments, and factories of such, that tests open."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from tests.envs.faulty import Obedient

NEXT, SAME, OFF = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


class Counting(VectorEnv):
    """DISABLED. Lane i terminates after 2 + i % spread steps; obs: [steps, episodes] in one buffer, used for ever.
    It insists that lanes that ended are reset before the next step. Action 1: raise, 2: other shape, 3: one reward.
    """

    metadata = {"autoreset_mode": OFF}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, num_envs: int = 3, spread: int = 3):
        self.num_envs, self.spread = num_envs, spread
        self.single_observation_space = spaces.Box(-1, 99, (2,), np.float32)
        self.single_action_space = spaces.Discrete(4)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.see = np.zeros((num_envs, 2), np.float32)
        self.ended = np.ones(num_envs, bool)
        self.seeds: Any = None

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        mask = np.ones(self.num_envs, bool) if options is None else options.pop("reset_mask")
        if options is None:
            self.seeds = seed
        self.see[mask, 0] = 0
        self.see[mask, 1] += 1
        self.ended[mask] = False
        return self.see, {}

    def step(self, actions: Any) -> Any:
        assert not self.ended.any(), "a lane that ended was stepped"
        if (actions == 1).any():
            raise ValueError("boom")
        self.see[:, 0] += 1
        self.ended[:] = self.see[:, 0] == 2 + np.arange(self.num_envs) % self.spread
        obs = self.see[:, :1] if (actions == 2).any() else self.see
        reward = 1.0 if (actions == 3).any() else self.see[:, 0]
        return obs, reward, self.ended, np.zeros(self.num_envs, bool), {}


class OneSeed(Counting):
    """Takes a single seed only, as most vector environments do that are no loop over single ones."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if isinstance(seed, list):
            raise TypeError("one seed, please")
        return super().reset(seed=seed, options=options)


class Same(Counting):
    """SAME_STEP that loses last observations."""

    metadata = {"autoreset_mode": SAME}  # noqa: RUF012

    def step(self, actions: Any) -> Any:
        obs, reward, _, truncated, info = super().step(actions)
        over, last = self.ended.copy(), obs.copy()
        reward = np.array(reward)
        if over.any():
            self.reset(options={"reset_mask": over})
        return self.see, reward, over, truncated, {**info, **self.kept(last, over)}

    def kept(self, last: np.ndarray, over: np.ndarray) -> dict[str, Any]:
        return {}


class Batched(Same):
    """SAME_STEP whose info has a batch of last observations, as simulators have it."""

    def kept(self, last: np.ndarray, over: np.ndarray) -> dict[str, Any]:
        return {"final_obs": last} if over.any() else {}


class Listed(Same):
    """SAME_STEP whose info has a last observation for each lane that ended, as Gymnasium has it."""

    def kept(self, last: np.ndarray, over: np.ndarray) -> dict[str, Any]:
        found = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(over):
            found[i] = last[i].copy()
        return {"final_obs": found, "_final_obs": over} if over.any() else {}


class Silent(Counting):
    metadata = {}  # noqa: RUF012


class Pair(gymnasium.Env):
    """A dict of a Box and a Discrete that starts at 5; real actions; ends after 3 steps, by truncation."""

    observation_space = spaces.Dict({"at": spaces.Box(-9, 9, (2,), np.float32), "n": spaces.Discrete(9, start=5)})
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.n = self.np_random.random(2).astype(np.float32), 0
        return {"at": self.at, "n": 5}, {}

    def step(self, action: Any) -> Any:
        self.at, self.n = self.at + action, self.n + 1
        return {"at": self.at, "n": 5 + self.n}, float(action.sum()), False, self.n == 3, {}


def obedient(num_envs: int, autoreset_mode: AutoresetMode) -> VectorEnv:
    return SyncVectorEnv([partial(Obedient, length=2 + i) for i in range(num_envs)], autoreset_mode=autoreset_mode)


def poles(num_envs: int = 1, vector_kwargs: Any = None, vectorization_mode: str = "sync") -> VectorEnv:
    """CartPole that is truncated after 9 steps."""
    return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode, vector_kwargs, max_episode_steps=9)


def same(num_envs: int = 1) -> VectorEnv:
    """The same, of which there is only SAME_STEP."""
    return gymnasium.make_vec("CartPole-v1", num_envs, "sync", {"autoreset_mode": SAME}, max_episode_steps=9)


def three() -> VectorEnv:
    return Counting(3)


def misled(num_envs: int = 4) -> gymnasium.Env:
    """A single environment; its `num_envs` means something else."""
    return Obedient(length=num_envs)


class Mild:
    """Every action is as good."""

    def step(self, actions: Any) -> Any:
        return super().step(np.zeros_like(actions))  # type: ignore[misc]


class MildSame(Mild, Same): ...


class MildCounting(Mild, Counting): ...


def mild_three() -> VectorEnv:
    return MildCounting(3)

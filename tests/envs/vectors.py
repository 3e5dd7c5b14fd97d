"""Vector environments, and factories of such, that tests open."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import RecordEpisodeStatistics

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


class Older(Listed):
    """As Gymnasium before 1.0 has it: it does not say how it resets, and the key has another name."""

    metadata = {}  # noqa: RUF012

    def kept(self, last: np.ndarray, over: np.ndarray) -> dict[str, Any]:
        return {key.replace("obs", "observation"): value for key, value in super().kept(last, over).items()}


class Cut(Same):
    """SAME_STEP that truncates and loses last observations, as Brax does."""

    def step(self, actions: Any) -> Any:
        obs, reward, over, truncated, info = super().step(actions)
        return obs, reward, truncated, over, info


class Silent(Same):
    metadata = {}  # noqa: RUF012


class Unknown(Counting):
    metadata = {"autoreset_mode": "sometimes"}  # noqa: RUF012


def tensors(given: Any) -> Any:
    """The same, as simulators on a GPU have it."""
    if isinstance(given, dict):
        return {key: tensors(part) for key, part in given.items()}
    return torch.from_numpy(np.array(given)) if isinstance(given, np.ndarray) else given


class ManiSkill(Counting):
    """ManiSkillVectorEnv's layout: tensors everywhere, whole batches of what was last, one mask for all keys. It does
    not say how it resets, and takes a seed or a list of them.
    """

    metadata = VectorEnv.metadata
    KEYS = ("final_observation", "final_info")

    def step(self, actions: Any) -> Any:
        assert isinstance(actions, torch.Tensor)
        obs, reward, over, truncated, info = super().step(actions.numpy())
        info = {"elapsed_steps": obs[:, 0].copy()}
        obs, reward, done = obs.copy(), np.array(reward), over.copy()
        if done.any():
            final, last = obs, info
            obs, _ = self.reset(options={"reset_mask": done})
            info = {self.KEYS[0]: tensors(final), self.KEYS[1]: tensors(last), "elapsed_steps": tensors(obs[:, 0])}
            info |= {f"_{key}": tensors(done) for key in (*self.KEYS, "elapsed_steps")}
        return tensors(self.see.copy()), tensors(reward), tensors(done), tensors(truncated), info

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        obs, _ = super().reset(seed=seed, options=options)
        return (obs if options else tensors(obs)), {}


class IsaacLab(gymnasium.Env):
    """Isaac Lab's layout: no VectorEnv, groups of observations in a Dict, tensors in buffers that are used for ever,
    time limits as truncations, one `extras`; with compute_final_obs the whole batch before the reset in it. Lane i is
    truncated after 2 + i % 3 steps.
    """

    metadata = {"autoreset_mode": SAME}  # noqa: RUF012

    def __init__(self, num_envs: int = 3, compute_final_obs: bool = True):
        self.num_envs, self.kept = num_envs, compute_final_obs
        self.single_observation_space = spaces.Dict({"policy": spaces.Box(-np.inf, np.inf, (2,), np.float32)})
        self.single_action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.clock, self.episode = torch.zeros(num_envs), torch.zeros(num_envs)
        self.reward, self.ended = torch.zeros(num_envs), torch.zeros(num_envs, dtype=torch.bool)
        self.extras: dict[str, Any] = {}

    def shown(self) -> Any:
        return {"policy": torch.stack([self.clock, self.episode], 1)}

    def reset(self, seed: int | None = None, env_ids: Any = None, options: Any = None) -> Any:
        assert seed is None or isinstance(seed, int), "one seed, please"
        self.clock[:], self.episode[:] = 0, 1
        return self.shown(), self.extras

    def step(self, action: torch.Tensor) -> Any:
        action.to("cpu")
        self.clock += 1
        self.reward[:] = self.clock
        self.ended[:] = self.clock == 2 + torch.arange(self.num_envs) % 3
        self.extras.pop("final_obs", None)
        if self.ended.any():
            self.extras |= {"final_obs": self.shown()} if self.kept else {}
            self.clock[self.ended] = 0
            self.episode[self.ended] += 1
        return self.shown(), self.reward, torch.zeros_like(self.ended), self.ended, self.extras


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


class NeverResets(IsaacLab):
    """It would be reset by reset(env_ids=…)."""

    metadata = {"autoreset_mode": OFF}  # noqa: RUF012


def obedient(num_envs: int, autoreset_mode: AutoresetMode) -> VectorEnv:
    return SyncVectorEnv([partial(Obedient, length=2 + i) for i in range(num_envs)], autoreset_mode=autoreset_mode)


def poles(num_envs: int = 1, vector_kwargs: Any = None, vectorization_mode: str = "sync") -> VectorEnv:
    """CartPole that is truncated after 9 steps."""
    return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode, vector_kwargs, max_episode_steps=9)


def same(num_envs: int = 1) -> VectorEnv:
    """The same, of which there is only SAME_STEP."""
    return gymnasium.make_vec("CartPole-v1", num_envs, "sync", {"autoreset_mode": SAME}, max_episode_steps=9)


def recorded(num_envs: int = 1) -> VectorEnv:
    """The same in a wrapper, which keeps to the mode."""
    return RecordEpisodeStatistics(same(num_envs))


def three() -> VectorEnv:
    return Counting(3)


def misled(num_envs: int = 4) -> gymnasium.Env:
    """A single environment; its `num_envs` means something else."""
    return Obedient(length=num_envs)


class Mild:
    """Every action is as good."""

    def step(self, actions: Any) -> Any:
        return super().step(np.zeros_like(actions))  # type: ignore[misc]


class MildCut(Mild, Cut): ...


class MildCounting(Mild, Counting): ...


def mild_three() -> VectorEnv:
    return MildCounting(3)

"""A wrapper that gives all players of an environment the same spaces, so that one policy can have every seat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from polyplay.common.errors import UserError
from polyplay.common.tree import Batch
from polyplay.envs.masks import KEY
from polyplay.envs.pettingzoo import Agent, is_parallel, parallel_of
from polyplay.envs.pools import saved_state

TAKEN = "vectors (a Box with one dimension) and Discrete or vector actions"


def pad(env: Any) -> Any:
    """`--wrapper polyplay.envs.padding:pad`. Raises UserError: an environment of one player, or other spaces."""
    inner = parallel_of(env)
    if not is_parallel(inner):
        raise UserError(
            "--wrapper: polyplay.envs.padding:pad given, which pads seats; this has one player: leave it out"
        )
    return Padded(inner)


class Padded:
    """A ParallelEnv whose observations have zeros up to the longest, then which kind of seat it is, as one-hot; there
    are as many actions as anyone has: surplus discrete ones are masked, surplus numbers of vectors left out.

    A kind is what has the same spaces: `polyplay_kinds`. Where all have, nothing is added.
    """

    def __init__(self, env: Any):
        self.env, self.possible_agents = env, list(env.possible_agents)
        self.metadata = getattr(env, "metadata", {})
        seen = {agent: env.observation_space(agent) for agent in self.possible_agents}
        acted = {agent: env.action_space(agent) for agent in self.possible_agents}
        for agent in self.possible_agents:
            _check(seen[agent], acted[agent], f"{agent} sees {seen[agent]}, does {acted[agent]}")
        if len({type(space) for space in acted.values()}) > 1:
            raise _refused(f"some actions of {env} are Discrete, others vectors")
        both = [(seen[agent], acted[agent]) for agent in self.possible_agents]
        distinct = [pair for i, pair in enumerate(both) if pair not in both[:i]]
        self.kinds = len(distinct) if len(distinct) > 1 else 0
        self.polyplay_kinds = {a: distinct.index(pair) for a, pair in zip(self.possible_agents, both, strict=True)}
        self._acted = acted
        self._width = max(space.shape[0] for space in seen.values())
        self._seen = _joined([*seen.values()], self._width, self.kinds)
        self._actions = _most([*acted.values()])

    agents = property(lambda self: self.env.agents)
    unwrapped = property(lambda self: self.env.unwrapped)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def observation_space(self, agent: Agent) -> gym.Space:
        """The same for everyone."""
        return self._seen

    def action_space(self, agent: Agent) -> gym.Space:
        """The same for everyone."""
        return self._actions

    def reset(self, seed: int | None = None, options: Batch | None = None) -> tuple[Batch, Batch]:
        """As ParallelEnv."""
        obs, infos = self.env.reset(seed=seed, options=options)
        return self._padded(obs), self._masked(infos)

    def step(self, actions: Batch) -> tuple[Batch, Batch, Batch, Batch, Batch]:
        """As ParallelEnv."""
        obs, *rest, infos = self.env.step({agent: self._own(agent, action) for agent, action in actions.items()})
        return self._padded(obs), *rest, self._masked(infos)

    def _own(self, agent: Agent, action: Any) -> Any:
        space = self._acted[agent]
        if isinstance(space, gym.Discrete):
            return space.start + action
        return np.clip(np.asarray(action)[: space.shape[0]], space.low, space.high)

    def _padded(self, obs: Batch) -> Batch:
        return {agent: self._pad(agent, np.asarray(one)) for agent, one in obs.items() if agent in self._acted}

    def _pad(self, agent: Agent, one: np.ndarray) -> np.ndarray:
        whole = np.zeros(self._seen.shape, self._seen.dtype)
        whole[: len(one)] = one
        if self.kinds:
            whole[self._width + self.polyplay_kinds[agent]] = 1
        return whole

    def _masked(self, infos: Batch) -> Batch:
        if not isinstance(self._actions, gym.Discrete) or all(s.n == self._actions.n for s in self._acted.values()):
            return infos
        found = {}
        for agent, space in self._acted.items():
            info = infos.get(agent, {}) if isinstance(infos, Mapping) else {}
            legal = np.zeros(self._actions.n, bool)
            legal[: space.n] = info.get(KEY, True)
            found[agent] = {**info, KEY: legal}
        return found

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def get_state(self) -> Batch:
        """See envs/pools/saved_state. Raises Unsaveable."""
        return saved_state.save_env(self.env)

    def set_state(self, saved: Batch) -> None:
        saved_state.load_env(self.env, saved)


def _check(seen: gym.Space, acted: gym.Space, given: str) -> None:
    """Raises UserError: spaces that cannot be padded."""
    vector = isinstance(seen, gym.Box) and len(seen.shape) == 1
    if not vector or not (isinstance(acted, gym.Discrete) or (isinstance(acted, gym.Box) and len(acted.shape) == 1)):
        raise _refused(given)


def _refused(given: str) -> UserError:
    cure = "SuperSuit's pad_observations and pad_action_space take others"
    return UserError(f"--wrapper: polyplay.envs.padding:pad pads {TAKEN}; {given}; {cure}")


def _joined(spaces: list[gym.Box], width: int, kinds: int) -> gym.Box:
    """A Box that holds all of these, padded, and the one-hot."""
    low = np.stack([np.pad(space.low.astype(float), (0, width - space.shape[0])) for space in spaces]).min(0)
    high = np.stack([np.pad(space.high.astype(float), (0, width - space.shape[0])) for space in spaces]).max(0)
    dtype = np.result_type(*(space.dtype for space in spaces))
    return gym.Box(
        np.append(low, np.zeros(kinds)).astype(dtype), np.append(high, np.ones(kinds)).astype(dtype), dtype=dtype
    )


def _most(spaces: list[Any]) -> gym.Space:
    """Actions of the longest kind."""
    if isinstance(spaces[0], gym.Discrete):
        return gym.Discrete(max(int(space.n) for space in spaces))
    width = max(space.shape[0] for space in spaces)
    low = np.stack([np.pad(space.low, (0, width - space.shape[0])) for space in spaces]).min(0)
    high = np.stack([np.pad(space.high, (0, width - space.shape[0])) for space in spaces]).max(0)
    return gym.Box(low, high, dtype=spaces[0].dtype.type)

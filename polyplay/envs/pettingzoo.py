"""Use PettingZoo's environments of several players. `pad` gives all players of an environment equal spaces.

Any object with PettingZoo's methods is accepted. Only the conversion of turn-based environments imports the package.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym

from polyplay.core.errors import UserError
from polyplay.core.tree import Batch, Spec
from polyplay.envs import masks, pool, rules, saved_state, spaces
from polyplay.envs.masks import KEY
from polyplay.envs.pool import EnvSpec

Agent = Hashable  # an agent's name
METHODS = ("reset", "step", "observation_space", "action_space")
EVENTS, TEAM_REWARD = "events", "team_reward"  # keys of an agent's info
BOTS = "polyplay_bots"  # attribute of an environment with scripted players
DECLARED = ("polyplay_teams", "polyplay_kinds", "polyplay_events", BOTS)


def is_parallel(env: object) -> bool:
    """Tell whether `env` is a ParallelEnv with possible_agents."""
    return _has(env, *METHODS) and not is_turn_based(env)


def is_turn_based(env: object) -> bool:
    """Tell whether `env` is an AECEnv, PettingZoo's turn-based environment."""
    return _has(env, *METHODS, "agent_iter", "last")


def _has(env: object, *methods: str) -> bool:
    return hasattr(env, "possible_agents") and all(callable(getattr(env, name, None)) for name in methods)


def parallel_of(env: Any) -> Any:
    """Convert a turn-based AECEnv, or PettingZoo's wrapper around one, to a ParallelEnv. Return others unchanged."""
    conversions = sys.modules.get("pettingzoo.utils.conversions")
    if conversions is not None and type(env) is conversions.aec_to_parallel_wrapper:
        return AllAtOnce(env.aec_env)
    return AllAtOnce(env) if is_turn_based(env) else env


class AroundPlayers:
    """A ParallelEnv around an environment of several players. `bare`: `env` without wrappers that only check calls."""

    def __init__(self, env: Any, bare: Any):
        self.env, self._bare = env, bare
        self.possible_agents, self.metadata = list(env.possible_agents), getattr(env, "metadata", {})

    agents = property(lambda self: list(self._bare.agents))
    unwrapped = property(lambda self: self.env.unwrapped)

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def get_state(self) -> Batch:
        """Return the state of the inner environment, see envs/saved_state. Raises Unsaveable."""
        return saved_state.save_env(self._bare)

    def set_state(self, saved: Batch) -> None:
        saved_state.load_env(self._bare, saved)


class AllAtOnce(AroundPlayers):
    """A ParallelEnv around a turn-based environment, with the same results as PettingZoo's conversions.

    If agents act in a cycle (`is_parallelizable`), a step takes the actions of all agents. Otherwise, a step takes only
    the action of the agent whose turn it is, and masks allow the other agents only their first action.

    PettingZoo's conversions are not used, because they observe each agent twice per step (bench/third_party.py).
    """

    def __init__(self, env: Any):
        super().__init__(env, _unchecked(env))
        self._cycle = bool(env.metadata.get("is_parallelizable"))
        self.observation_space, self.action_space = env.observation_space, env.action_space
        for name in DECLARED:
            if hasattr(env, name):
                setattr(self, name, getattr(env, name))
        actions = {} if self._cycle else {a: spaces.action(env.action_space(a), str(env)) for a in self.possible_agents}
        self._waits = {agent: masks.whole_mask(action, only_first=True) for agent, action in actions.items()}
        self._moves = {agent: masks.whole_mask(action, only_first=False) for agent, action in actions.items()}

    def reset(self, seed: int | None = None, options: Batch | None = None) -> tuple[Batch, Batch]:
        """See ParallelEnv."""
        self.env.reset(seed=seed, options=options)
        env = self._bare
        here = [agent for agent in env.agents if not (env.terminations[agent] or env.truncations[agent])]
        return self._masked({agent: env.observe(agent) for agent in here}, env.infos)

    def step(self, actions: Batch) -> tuple[Batch, Batch, Batch, Batch, Batch]:
        """See ParallelEnv."""
        env, rewards = self._bare, dict.fromkeys(self._bare.agents, 0.0)
        for agent in list(env.agents) if self._cycle else [env.agent_selection]:
            if env.agent_selection != agent:
                raise RuntimeError(f"agent_selection is {env.agent_selection}, but in a cycle it is {agent}'s turn")
            env.step(actions[agent])
            for other in env.agents:
                rewards[other] += env.rewards[other]
        terminated, truncated = dict(env.terminations), dict(env.truncations)
        obs, infos = self._masked({agent: env.observe(agent) for agent in env.agents}, env.infos)
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        return obs, rewards, terminated, truncated, infos

    def _masked(self, obs: Batch, infos: Batch) -> tuple[Batch, Batch]:
        infos = dict(infos)
        if self._cycle:
            return obs, infos
        mover = self._bare.agent_selection if self._bare.agents else None
        for agent in obs:
            inside = isinstance(obs[agent], Mapping) and masks.KEY in obs[agent]
            place, has = (obs, True) if inside else (infos, masks.KEY in infos.get(agent, {}))
            if agent != mover or not has:
                mask = self._moves[agent] if agent == mover else self._waits[agent]
                place[agent] = {**place.get(agent, {}), **({} if mask is None else {masks.KEY: mask})}
        return obs, infos


def _unchecked(env: Any) -> Any:
    """Remove outer wrappers of PettingZoo that only check calls."""
    from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper

    while type(env) in (AssertOutOfBoundsWrapper, OrderEnforcingWrapper):
        env = env.env
    return env


# ------------------------------------------------------------------------------------- description


def inspect_players(env: Any, title: str) -> EnvSpec:
    """Describe a ParallelEnv. Each agent has a seat (place of a player). Raises UserError if the seats have different
    spaces, or a space is not supported.
    """
    agents = list(env.possible_agents)
    if not agents:
        raise UserError(f"{title}: possible_agents is empty; it must name every player {rules.rule_suffix('agents')}")
    seats = [_seat(env, agent, f"{title}: {agent}") for agent in agents]
    first = seats[0]
    for agent, seat in zip(agents, seats, strict=True):
        if (seat.obs, seat.action, seat.classes, seat.mask) != (first.obs, first.action, first.classes, first.mask):
            raise _unequal(title, (agents[0], first), (agent, seat))
    teams, kinds = _numbers(env, "polyplay_teams", agents, title), _numbers(env, "polyplay_kinds", agents, title)
    more = {"players": ", ".join(map(str, agents)), "time limit": pool.OWN_LIMIT}
    text = {"environment": title, **first.describe, **more}
    events = tuple(str(name) for name in getattr(env, "polyplay_events", None) or ())
    kinds = kinds or (0,) * len(agents)
    found = replace(first, describe=text, seats=len(agents), teams=teams, kinds=kinds, events=events)
    return replace(found, bots=_bots(env, title))


def _seat(env: Any, agent: Agent, title: str) -> EnvSpec:
    """Describe one agent's observations and actions. Raises UserError if a space is missing or not supported."""
    seen, acted = env.observation_space(agent), env.action_space(agent)
    for which, space in (("observation_space", seen), ("action_space", acted)):
        if not isinstance(space, gymnasium.Space):
            wrong = f"{title}: {which} is {rules.describe_value(space)}, not a gymnasium space"
            raise UserError(f"{wrong} {rules.rule_suffix('spaces')}")
    return pool.spec_of_spaces(seen, acted, title)


def _unequal(title: str, *seats: tuple[Agent, EnvSpec]) -> UserError:
    both = ", ".join(f"{a} has {s.describe['observation']} / {s.describe['actions']}" for a, s in seats)
    cure = "pad them with --wrapper polyplay.envs.pettingzoo:pad (or SuperSuit's pad_observations, pad_action_space)"
    return UserError(f"--env: {title}: seats of unequal spaces, {both}; {cure} {rules.rule_suffix('kinds')}")


def _numbers(env: Any, name: str, agents: list[Agent], title: str) -> tuple[int, ...]:
    given = getattr(env, name, None)
    if given is None:
        return ()
    try:
        return tuple(int(given[agent]) for agent in agents)
    except (KeyError, TypeError, ValueError):
        want = f"{name} must be a dict with a number for each of {', '.join(map(str, agents))}"
        raise UserError(f"{title}: {want}, given {rules.describe_value(given)} {rules.rule_suffix('agents')}") from None


def _bots(env: Any, title: str) -> Mapping[str, str]:
    given = getattr(env, BOTS, None) or {}
    if isinstance(given, Mapping) and all(isinstance(x, str) for pair in given.items() for x in pair):
        return dict(given)
    want = f'{BOTS} must be a dict of "module:callable" by name'
    raise UserError(f"{title}: {want}, given {rules.describe_value(given)} {rules.rule_suffix('agents')}")


def seen_in_info(env: Any, spec: EnvSpec, title: str) -> tuple[Spec | None, bool]:
    """Reset `env`, and read its infos. Return the fields (shape and dtype) of the mask, or None, and whether infos have
    a team reward. Return (None, False) if the reset fails.
    """
    try:
        _, infos = env.reset(seed=0)
        given = [infos[agent] for agent in env.agents if agent in infos]
        found = [info[masks.KEY] for info in given if masks.KEY in info]
    except Exception:
        return None, False
    mask = masks.mask_spec(spec.action, found[0], f"{title}: info's") if found and spec.mask is None else None
    return mask, any(TEAM_REWARD in info for info in given)


def read_events(info: Mapping[str, Any], n: int) -> np.ndarray | float:
    """Return an agent's event counts [n] since its last row, or 0 if info has no counts. Raises SpaceViolation."""
    given = info.get(EVENTS)
    if given is None:
        return 0.0
    array = np.asarray(given)
    if array.shape != (n,) or array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        want = f"info's {EVENTS} must be {n} finite numbers, one for each of polyplay_events"
        raise spaces.SpaceViolation(f"{want}, given {rules.describe_value(given)}", "players")
    return array


TAKEN = "vectors (a Box with one dimension) and Discrete or vector actions"


def pad(env: Any) -> Any:
    """Wrapper that gives all players equal spaces (see Padded). Raises UserError if the environment has one player."""
    inner = parallel_of(env)
    if not is_parallel(inner):
        raise UserError(f"--wrapper: {__name__}:pad given, which pads seats; this has one player: leave it out")
    return Padded(inner)


class Padded(AroundPlayers):
    """A ParallelEnv with equal spaces for all agents.

    Observations are padded with zeros. All agents have as many actions as the agent with the most. Masks forbid the
    actions that an agent lacks. In vector actions, the numbers that an agent lacks are ignored.

    Agents with identical spaces have the same kind (`polyplay_kinds`). If there are several kinds, observations end
    with the kind as one-hot.
    """

    def __init__(self, env: Any):
        super().__init__(env, env)
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

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def observation_space(self, agent: Agent) -> gym.Space:
        """Return the same space for every agent."""
        return self._seen

    def action_space(self, agent: Agent) -> gym.Space:
        """Return the same space for every agent."""
        return self._actions

    def reset(self, seed: int | None = None, options: Batch | None = None) -> tuple[Batch, Batch]:
        """See ParallelEnv."""
        obs, infos = self.env.reset(seed=seed, options=options)
        return self._padded(obs), self._masked(infos)

    def step(self, actions: Batch) -> tuple[Batch, Batch, Batch, Batch, Batch]:
        """See ParallelEnv."""
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


def _check(seen: gym.Space, acted: gym.Space, given: str) -> None:
    vector = isinstance(seen, gym.Box) and len(seen.shape) == 1
    if not vector or not (isinstance(acted, gym.Discrete) or (isinstance(acted, gym.Box) and len(acted.shape) == 1)):
        raise _refused(given)


def _refused(given: str) -> UserError:
    cure = "SuperSuit's pad_observations and pad_action_space take others"
    return UserError(f"--wrapper: polyplay.envs.pettingzoo:pad pads {TAKEN}; {given}; {cure}")


def _joined(spaces: list[gym.Box], width: int, kinds: int) -> gym.Box:
    low = np.stack([np.pad(space.low.astype(float), (0, width - space.shape[0])) for space in spaces]).min(0)
    high = np.stack([np.pad(space.high.astype(float), (0, width - space.shape[0])) for space in spaces]).max(0)
    dtype = np.result_type(*(space.dtype for space in spaces))
    low, high = (np.append(end, np.full(kinds, value)).astype(dtype) for end, value in ((low, 0), (high, 1)))
    return gym.Box(low, high, dtype=dtype)


def _most(spaces: list[Any]) -> gym.Space:
    if isinstance(spaces[0], gym.Discrete):
        return gym.Discrete(max(int(space.n) for space in spaces))
    return _joined(spaces, max(space.shape[0] for space in spaces), 0)

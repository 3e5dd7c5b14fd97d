"""Trained policies, as `polyplay.load` returns them.

To load an agent, only the run's directory is needed. Loading starts no workers and builds no environment, because the
file spaces.json has the observation and action spaces.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from gymnasium.vector.utils import concatenate, create_empty_array

from polyplay.core import checkpoint, tree
from polyplay.core.errors import UserError
from polyplay.core.files import Row
from polyplay.core.numbers import mean_interval
from polyplay.core.tree import Batch, Tree
from polyplay.envs import image_view, make, pool, spaces
from polyplay.envs.lane import action_reader, observation_writer
from polyplay.envs.pool import Envs, EnvSpec, Factory
from polyplay.runs import directory as run_files
from polyplay.runs import load
from polyplay.systems import System
from polyplay.workers import process


@dataclass(frozen=True, repr=False)
class State:
    """State of episodes between calls of `act`: the network's state, the number of calls, and the stacked images."""

    network: Batch
    acts: int
    lanes: int
    frames: tuple[Any, ...] = ()  # stacked images of each episode


class Agent:
    """Trained policy with methods `act`, `value`, `predict`, `evaluate`, and its run's `system`, `config`, `spec`."""

    def __init__(
        self,
        path: str | Path,
        checkpoint: str | int | None = None,
        seed: int = 0,
        epsilon: float | None = None,
        trust: bool = False,
        agent: str | int | None = None,
    ):
        """Load the policy of a run. Raises UserError.

        path: a run's directory, or the directory of one of its checkpoints.
        checkpoint: best, or a checkpoint's number (None: the newest checkpoint).
        seed: seed of random choices.
        epsilon: probability of a random action (None: the same as in `polyplay evaluate`).
        trust: allow a run from elsewhere whose files name a module, which is then executed.
        agent: agent of a league: best (by Elo rating), or a number (None: the first).
        """
        from polyplay.acting import play

        if epsilon is not None and not 0.0 <= epsilon <= 1.0:
            raise UserError(f"epsilon: {epsilon} given, allowed: from 0 to 1, or None (as `polyplay evaluate`)")
        run, which = (Path(path), checkpoint) if checkpoint is not None else load.split_checkpoint(Path(path))
        run_files.read_config(run)
        lost = not (run / pool.FILE).exists()
        with nullcontext() if lost else make.known_spec(load.read_spaces(run)):
            wired, self.config = _wire_run(run, trust)
            self.spec: EnvSpec = wired.envs.spec
        self.directory, self.system = run, str(self.config["system"])
        self.checkpoint = load.choose_checkpoint(run, None if which is None else str(which))
        whose = load.choose_agent(run, self.checkpoint, None if agent is None else str(agent), "agent")
        process.tune(1)
        self._space, self.action_space = pool.of_spec(self.spec)
        self.observation_space = self._space
        self._envs: Envs = wired.envs
        self._units, self._policy = wired.spec.loss.units, play.load_player(wired, self.checkpoint, agent=whose)
        self._how = play.PlayOptions(1, seed, epsilon=wired.test_epsilon if epsilon is None else epsilon)
        self._view = None if self.spec.view is None else image_view.view_from_json(dict(self.spec.view), str(run))
        if self._view is not None:  # act takes the environment's own observations
            self.observation_space = self._view.given
        self._read = action_reader(self.action_space)
        self._acts = 0  # number of calls: random numbers differ between calls, even if the caller passes no state

    def __repr__(self) -> str:
        return f"<polyplay.Agent {self.system}, {checkpoint.manifest(self.checkpoint)['counters']['steps']:,} steps>"

    def act(
        self, obs: Any, state: State | None = None, greedy: bool = False, mask: Any = None, reward: Any = None
    ) -> tuple[Any, State]:
        """Choose an action for one observation or a batch. Return (action, state). Raises UserError.

        state: state that the previous call returned (None: an episode starts).
        greedy: take the most probable action.
        mask: legal actions, if the environment has action masks.
        reward: reward of the step that returned the observation, for networks that use the reward as input.
        """
        return self._act(*self._step(obs, state, mask, reward), state, greedy)

    def value(
        self, obs: Any, state: State | None = None, mask: Any = None, reward: Any = None, task: str | None = None
    ) -> Any:
        """Return the expected discounted return of the rest of the episode: a number, or float32 [B] for a batch. It is
        in units of the environment's rewards, unless the learner clips them. `task`: name of a task, if the run has
        several. Raises UserError.
        """
        import torch

        step, batched, _ = self._step(obs, state, mask, reward)
        if self.spec.tasks or task is not None:
            step["task"] = np.full(len(step["first"]), self.spec.tasks.index(self._known(task)))
        value = self._choose(step, state, True)[1]
        if value is None:
            raise UserError(f"value: the network of this {self.system} run has no value")
        value = self._units.in_environment(torch.from_numpy(value), self._policy.reward_scale()).numpy()
        return value if batched else float(value[0])

    def predict(
        self, obs: Any, state: State | None = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, State]:
        """Call `act` with the signature of Stable-Baselines3. `episode_start`: whether an episode starts, bool [B]."""
        begins = False if episode_start is None else np.asarray(episode_start, bool)
        return self._act(*self._step(obs, state, None, None, begins), state, deterministic)

    def _known(self, task: str | None) -> str:
        if task not in self.spec.tasks:
            raise UserError(f"task: {task} given, allowed: {', '.join(self.spec.tasks) or 'none, the run has one'}")
        return task

    def evaluate(
        self,
        env: str | Factory | None = None,
        episodes: int = 10,
        seed: int = 0,
        greedy: bool = False,
        task: str | None = None,
    ) -> Row:
        """Play full games and return the scores. Nothing is written. Raises UserError if the spaces differ.

        env: environment with the same spaces (None: the run's own). task: the task to play, if the run has several.
        """
        from polyplay.acting import play

        plain: Batch = {"options": {}, "kwargs": {}, "wrappers": (), "reset_options": None}
        several = (self.spec.tasks and env is None) or task is not None
        only = self.spec.tasks.index(self._known(task)) if several else -1
        envs = replace(self._envs, only=only) if env is None else replace(self._envs, name=env, **plain)
        if pool.network_view(envs.spec) != pool.network_view(self.spec):
            shown, taken = pool.describe_views(envs.spec, self.spec)
            given, own = (f"{seen}; actions {acted}" for seen, acted in zip(shown, taken, strict=True))
            raise UserError(f"env: {envs.title} shows {given}, but the agent takes {own}")
        games = play.play_games(envs, self._policy, play.PlayOptions(episodes, seed, greedy, self._how.epsilon))
        found = play.summarize_games(games, envs.spec.frames_per_step)
        return {**found, "interval": mean_interval(found["returns"])}

    # ------------------------------------------------------------------------------------------- rows

    def _step(
        self, obs: Any, state: State | None, mask: Any, reward: Any, begins: Any = False
    ) -> tuple[Batch, bool, tuple[Any, ...]]:
        if isinstance(obs, tuple) and not isinstance(self.observation_space, gym.Tuple):
            returned = "reset() returns (observation, info): pass only the observation"
            raise UserError(f"obs: a tuple of {len(obs)} given; {returned}")
        lanes = _lanes(self.observation_space, obs)
        batched, n = lanes is not None, 1 if lanes is None else lanes
        if n == 0:
            raise UserError("obs: the batch is empty; pass at least one observation")
        if not isinstance(state, State | None):
            raise UserError(f"state: {state!r} is not a policy state; pass None or the previous call's state")
        if state is not None and state.lanes != n:
            raise UserError(f"state: of {state.lanes} episodes, but {n} observations given: start with state=None")
        rows, first = tree.zeros(self.spec.obs, (n,)), np.full(n, state is None) | begins
        frames = list[Any](state.frames if state is not None else ()) or [None] * n
        for i in range(n):
            seen = _lane(obs, i) if batched else obs
            if self._view is not None:
                seen, frames[i] = self._view.show(seen, None if first[i] else frames[i])
            write = observation_writer(self._space, rows, i, casting="same_kind")
            try:
                write(seen)
            except spaces.SpaceViolation as e:
                raise UserError(f"obs: {e}") from None
        step: Batch = {"obs": rows, "first": first, "reward": np.zeros(n, np.float32)}
        if reward is not None:
            step["reward"] = np.broadcast_to(np.asarray(reward, np.float32), (n,)).copy()
        if self.spec.mask is not None:
            step["mask"] = _mask(self.spec.mask, mask, n, batched)
        elif mask is not None:
            raise UserError("mask: given, but this environment has no masks: leave it out")
        return step, batched, tuple(frames)

    def _act(
        self, step: Batch, batched: bool, frames: tuple[Any, ...], state: State | None, greedy: bool
    ) -> tuple[Any, State]:
        action, _, after = self._choose(step, state, greedy)
        after = replace(after, frames=frames)
        self._acts = max(self._acts, after.acts)
        rows = [self._read(tree.at(action, i)) for i in range(len(step["first"]))]
        out: Any = create_empty_array(self.action_space, len(rows))
        return (concatenate(self.action_space, rows, out) if batched else rows[0]), after

    def _choose(self, step: Batch, state: State | None, greedy: bool) -> tuple[Tree, np.ndarray | None, State]:
        from polyplay.acting import play

        n = len(step["first"])
        before = State(self._policy.initial(n), self._acts, n) if state is None else state
        how = replace(self._how, greedy=greedy, epsilon=0.0 if greedy else self._how.epsilon)
        found = play.choose_with_value(self.spec, self._policy, how, np.arange(n), step, before.network, before.acts)
        return found[0], found[1], State(found[2], before.acts + 1, n)


def _lanes(space: Any, obs: Any) -> int | None:
    """Return the size of a batch, or None for a single observation."""
    parts = spaces.subspaces(space)
    if parts:
        key, inner = next(iter(parts.items()))
        try:
            return _lanes(inner, obs[key] if isinstance(obs, dict) else obs[int(key)])
        except (KeyError, IndexError, TypeError, ValueError):
            return None  # later, reading the observation raises the error
    shape = np.shape(obs)
    return shape[0] if len(shape) == len(space.shape or ()) + 1 else None


def _lane(obs: Any, i: int) -> Any:
    if isinstance(obs, dict):
        return {k: _lane(v, i) for k, v in obs.items()}
    return tuple(_lane(v, i) for v in obs) if isinstance(obs, tuple) else np.asarray(obs)[i]


def _mask(spec: Any, mask: Any, n: int, batched: bool) -> Tree:
    if mask is None:
        raise UserError("mask: missing; this environment has action masks: pass act(…, mask=…)")

    def read(field: Any, given: Any) -> np.ndarray:
        found = np.asarray(given, bool)
        found = found if batched else found[None]
        if found.shape != (n, *field.shape):
            raise UserError(f"mask: shape {list(found.shape)} given, allowed: {[n, *field.shape]}")
        return found

    return tree.map(read, spec, mask)


def open_run(directory: Path, checkpoint: str | None, trust: bool) -> tuple[System, Path, Row]:
    """Return a run's system on the CPU, `checkpoint` (None: the newest), and its configuration. Raises UserError."""
    wired, config = _wire_run(directory, trust)
    return wired, load.choose_checkpoint(directory, checkpoint), config


def _wire_run(directory: Path, trust: bool) -> tuple[System, Row]:
    page, settings, options, config = load.load_run(directory, trust)
    return load.wire_system(page, settings, load.crew_of(replace(options, device="cpu"))), config


# Agents by name: of a run, of a checkpoint, or from the file of a past agent.


OPPONENT = re.compile(r"random|perfect|(bot|mcts|gtp):.*")  # names of opponents that are not runs


@dataclass(frozen=True)
class RunAgent:
    """Agent of a run. `name`: see find_agents. `weights`: path of a checkpoint, or of a past agent's file."""

    name: str
    wired: System
    weights: Path
    agent: int = 0

    @property
    def about(self) -> Row:
        """Entries about the agent for the record of a match or tournament."""
        if self.weights.suffix == checkpoint.ARRAYS:
            digest = checkpoint.describe_file(self.weights)["sha256"]
        else:
            digest = load.weights_digest(self.weights, self.agent)
        return {"checkpoint": self.weights.name, "checkpoint_sha256": digest}


def is_run(name: str) -> bool:
    """Tell whether a name means a run or a past agent, not an opponent such as random or mcts:N."""
    path, _ = _split_agent(name)
    return not OPPONENT.fullmatch(name) and (path.is_dir() or path.suffix == checkpoint.ARRAYS)


def find_agents(name: str, trust: bool = False) -> list[RunAgent]:
    """Return the agents that a name means. Raises UserError.

    RUN means all agents of the newest checkpoint, and RUN/checkpoints/NAME all agents of this checkpoint.
    RUN:N and RUN:best (also with a checkpoint) mean one agent. RUN/past_agents/NAME.safetensors means a past agent.
    """
    path, agent = _split_agent(name)
    if path.suffix == checkpoint.ARRAYS:
        run = path.absolute().parents[1]
        if not path.is_file():
            raise UserError(f"{name}: no such file of a past agent")
        if path.absolute().parent.name != checkpoint.FOLDER:
            raise UserError(f"{name} given, allowed: the file of a past agent, in its run's folder RUN/past_agents")
        wired, _ = _wire_run(run, trust)
        load.check_spaces(run, wired.envs)
        return [RunAgent(name, wired, path)]
    run, which = load.split_checkpoint(path)
    wired, found, _ = open_run(run, which, trust)
    load.check_spaces(run, wired.envs)
    there = checkpoint.agents_of(found)
    if agent is None and len(there) > 1:
        return [RunAgent(f"{name}:{n}", wired, found, n) for n in there]
    return [RunAgent(name, wired, found, load.choose_agent(run, found, agent, name))]


def find_agent(name: str, trust: bool = False) -> RunAgent:
    """Return the one agent that a name means. Raises UserError if the name means several agents."""
    found = find_agents(name, trust)
    if len(found) > 1:
        raise UserError(f"{name} has {len(found)} agents: name one, {found[0].name}")
    return found[0]


def _split_agent(name: str) -> tuple[Path, str | None]:
    """Split RUN:N or RUN:best into (RUN, N or best). Return (name, None) for any other name."""
    path, _, agent = name.rpartition(":")
    if path and (agent.isdecimal() or agent == "best") and Path(path).is_dir() and not Path(name).exists():
        return Path(path), agent
    return Path(name), None

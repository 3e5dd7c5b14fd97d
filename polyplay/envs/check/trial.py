"""One environment, tried in a process of its own: random actions, every rule looked at, nothing repaired.

What it finds is said as it comes, on a pipe, so that one which hangs or dies has told what was before: pairs
("broke", (rule, what was seen)), ("odd", the same, for a warning), and ("facts", Facts) last.
"""

from __future__ import annotations

import contextlib
import random
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym

from polyplay.common import tree
from polyplay.common.shared_memory import SharedBlock
from polyplay.envs import rules, spaces
from polyplay.envs.pool import lane_seeds
from polyplay.envs.pools.board import SharedRows
from polyplay.envs.pools.build import one_line
from polyplay.envs.pools.lane import START, Lane, LaneJob
from polyplay.envs.pools.worker import settle, unpack

STAGES = ("building it", "reset", "step")
CLOCK = 4  # float64: when what is going on must be done, its stage, steps so far, and how long it may take
FEW = 3  # exceptions after which a trial ends
SLOW = 0.5  # of the step's time limit: too near to it


@dataclass(frozen=True)
class TrialOrder:
    """What to try, and for how long."""

    job: LaneJob
    steps: int
    seconds: float  # at most, whatever the steps


@dataclass
class TrialFacts:
    """What one trial saw."""

    steps: int = 0
    resets: int = 0
    ends: list[tuple[int, bool]] = field(default_factory=list)  # of each episode: its length, whether it terminated
    prints: list[int] = field(default_factory=list)  # of every row, to compare two trials
    generator: int = -1  # see rules.generator
    build: float = 0.0  # seconds
    reset_most: float = 0.0
    step_sum: float = 0.0
    step_most: float = 0.0


def run_trial(answer: Connection, clock: SharedBlock, trace: SharedBlock, order: TrialOrder) -> None:
    """The whole life of a trial's process."""
    settle(trace)
    seed = int(lane_seeds(order.job.seed, order.job.lane, 1)[0])
    random.seed(seed)
    np.random.seed(seed)
    with contextlib.suppress(BrokenPipeError):
        EnvTrial(answer, clock.array(CLOCK, np.float64), order).run()


class EnvTrial:
    """One environment and what it does."""

    def __init__(self, answer: Connection, clock: np.ndarray, order: TrialOrder):
        self.answer, self.clock, self.order, self.limit = answer, clock, order, order.job.step_timeout
        self.facts = TrialFacts()
        self.board = SharedRows(order.job.spec, 1, 1)
        self.told: set[tuple[str, str]] = set()
        self.raised = 0
        self.spies: list[RecordingEnv] = []

    def say(self, kind: str, rule: str, text: str) -> None:
        if (kind, rule) not in self.told:
            self.told.add((kind, rule))
            self.answer.send((kind, (rule, text)))

    def broke(self, rule: str, text: str) -> None:
        where = f"reset {self.facts.resets}" if self.clock[1] == 1 else f"step {self.facts.steps}"
        self.say("broke", rule, f"{where}: {text}" if self.clock[1] else text)

    def allow(self, stage: int, seconds: float) -> float:
        self.clock[1:] = stage, self.facts.steps, seconds
        self.clock[0] = time.monotonic() + seconds
        return time.perf_counter()

    def run(self) -> None:
        """Play episodes until the steps or the time are over."""
        going = self._build()
        until = time.monotonic() + self.order.seconds
        while going and self.raised < FEW and self.facts.steps < self.order.steps and time.monotonic() < until:
            begun = self._reset()
            going = begun is not None
            if begun is not None:
                self._episode(*begun, until)
        self.clock[0] = 0.0
        self.answer.send(("facts", self.facts))

    # ------------------------------------------------------------------------------------ its stages

    def _build(self) -> bool:
        from polyplay.envs.make import factory

        job = self.order.job
        start = self.allow(0, max(START, self.limit))
        try:
            name, options = unpack(job.maker, job.title)
            self.lane = Lane(job, factory(name, options), self.board, 0, lambda seconds: None)
            self.lane.prepare()
        except spaces.SpaceViolation as e:
            self.broke(e.rule, str(e))
            return False
        except BaseException as e:
            self.broke(rules.rule_of(str(e)) or "build", rules.without_rule(str(e)))
            return False
        self.facts.build = time.perf_counter() - start
        env: Any = self.lane.env
        self.env, self.space, self.draws = env, env.observation_space, env.action_space
        self.draws.seed(job.seed)
        self.spies = [RecordingEnv(layer) for layer in wrappers_of(env)]
        return True

    def _reset(self) -> tuple[Any, Any] | None:
        """The observation and info of a new episode; None: there is none."""
        seed = None if self.facts.resets else self.lane.seed()
        self.facts.resets += 1
        start = self.allow(1, self.limit)
        try:
            result = self.env.reset(seed=seed)
        except BaseException as e:
            self.broke("reset", one_line(e))
            return None
        self.facts.reset_most = max(self.facts.reset_most, time.perf_counter() - start)
        if seed is not None:
            self.facts.generator = rules.rng_of(self.env)
        try:
            obs, info = rules.read_reset(result)
        except spaces.SpaceViolation as e:
            self.broke(e.rule, str(e))
            return None
        self._look(obs, info, (0.0, False, False))
        return obs, info

    def _episode(self, obs: Any, info: Any, until: float) -> None:
        length, over = 0, False
        while not over and self.facts.steps < self.order.steps and time.monotonic() < until:
            self.facts.steps += 1
            length += 1
            for spy in self.spies:
                spy.seen = None
            action = random_action(self.draws, obs, info)
            start = self.allow(2, self.limit)
            try:
                result = self.env.step(action)
            except BaseException as e:
                self._raised("step", f"action {' '.join(str(action).split())[:80]}: {one_line(e)}")
                return
            took = time.perf_counter() - start
            self.facts.step_sum += took
            self.facts.step_most = max(self.facts.step_most, took)
            try:
                obs, reward, terminated, truncated, info = rules.step_parts(result)
            except spaces.SpaceViolation as e:
                self._raised(e.rule, str(e))
                return
            over, terminated = self._judge(obs, info, reward, terminated, truncated)
        if over:
            self.facts.ends.append((length, terminated))

    def _raised(self, rule: str, text: str) -> None:
        self.raised += 1
        self.broke(rule, text)

    def _judge(self, obs: Any, info: Any, reward: Any, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        """Whether the episode is over, and whether it terminated."""
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool | np.bool_):
                self.say("odd", "flags", f"{name} is {rules.describe_value(value)}, no boolean")
        end = (
            bool(self._try(rules.read_flag, "terminated", terminated)),
            bool(self._try(rules.read_flag, "truncated", truncated)),
        )
        self._look(obs, info, (self._try(rules.read_reward, reward), *end))
        for spy in self.spies:
            if spy.seen is not None:
                self._reset_itself(any(end), spy.seen[0], obs)
        return any(end), end[0]

    def _try(self, judge: Callable, *given: Any) -> Any:
        """What the judge makes of it; None where a rule is broken."""
        try:
            return judge(*given)
        except spaces.SpaceViolation as e:
            self.broke(e.rule, str(e))
            return None

    def _look(self, obs: Any, info: Any, said: tuple) -> None:
        """Judge the observation of a row with this (reward, terminated, truncated); keep a checksum of the row."""
        try:
            self.lane.show(obs, info, *said[1:])
            self._bounds(obs)
        except spaces.SpaceViolation as e:
            always = any(("broke", rule) in self.told for rule in rules.SHOWN)  # then it is no matter of the end
            if e.rule != "final-observation" or not always:
                self.broke(e.rule, str(e))
        leaves = [leaf.tobytes() for _, leaf in tree.leaves(self.board.rows["obs"])]
        self.facts.prints.append(zlib.crc32(b"".join(leaves), zlib.crc32(repr(said).encode())))

    def _bounds(self, obs: Any) -> None:
        try:
            rules.check_contains(self.space, obs)
        except spaces.SpaceViolation as e:
            if STAGES[int(self.clock[1])] == "reset":
                raise
            self.say("odd", e.rule, f"step {self.facts.steps}: {e}; training looks at bounds after a reset only")

    def _reset_itself(self, over: bool, seen: Any, obs: Any) -> None:
        if over and same_values(seen, obs):
            self.broke(
                "autoreset", "the step that ended an episode called reset() and returned the next one's beginning"
            )
        elif over:
            self.say("odd", "autoreset", "the step that ended an episode called reset() too")
        else:
            self.say("odd", "autoreset", f"step {self.facts.steps} called reset() without ending the episode")


class RecordingEnv:
    """Hears when `reset` of one layer of an environment is called, and with what answer."""

    def __init__(self, layer: Any):
        self.seen: tuple | None = None
        self.reset = layer.reset
        with contextlib.suppress(Exception):
            layer.reset = self

    def __call__(self, *args: Any, **kw: Any) -> Any:
        answer = self.reset(*args, **kw)
        if isinstance(answer, tuple) and answer:
            self.seen = (np.copy(answer[0]) if isinstance(answer[0], np.ndarray) else answer[0],)
        return answer


def wrappers_of(env: Any) -> list[Any]:
    """The environment and what it wraps, outermost first."""
    found = [env]
    while isinstance(inner := getattr(found[-1], "env", None), gymnasium.Env):
        found.append(inner)
    return found


def same_values(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_values(a[k], b[k]) for k in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same_values, a, b))
    return np.shape(a) == np.shape(b) and bool(np.all(np.asarray(a) == np.asarray(b)))


def random_action(space: Any, obs: Any, info: Any) -> Any:
    """A random action; one that is allowed, where the observation or the info has an `action_mask`."""
    mask = next((x["action_mask"] for x in (obs, info) if isinstance(x, Mapping) and "action_mask" in x), None)
    if mask is not None:
        with contextlib.suppress(Exception):
            if isinstance(space, gym.Discrete):
                return space.sample(np.asarray(mask, np.int8))
            if isinstance(space, gym.MultiDiscrete):
                parts = np.split(np.asarray(mask, np.int8).ravel(), np.cumsum(space.nvec.ravel())[:-1])
                return space.sample(tuple(parts))
            return space.sample(mask)
    return space.sample()

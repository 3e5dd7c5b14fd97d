"""One environment, tried in a process of its own: random actions, every rule looked at, nothing repaired.

Findings go through a pipe as they come, so that those before a hang or a crash arrive: pairs ("broke", (rule, text))
and ("odd", the same, for a warning).
"""

from __future__ import annotations

import contextlib
import functools
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import gymnasium
import numpy as np

from polyplay.common import tree
from polyplay.envs import rules, spaces
from polyplay.envs.pool import lane_seeds
from polyplay.envs.pools.board import SharedRows
from polyplay.envs.pools.build import factory, one_line
from polyplay.envs.pools.global_random import seed_process
from polyplay.envs.pools.lane import Lane
from polyplay.envs.pools.turn import START, LaneJob, unit_seed
from polyplay.envs.pools.worker import unpack
from polyplay.envs.random_actions import action_sampler

STAGES = ("building it", "reset", "step")
CLOCK = 4  # float64: when what is going on must be done, its stage, steps so far, and how long it may take
Result = TypeVar("Result")
FEW = 3  # exceptions after which a trial ends


@dataclass
class TrialFacts:
    """What one trial measured."""

    steps: int = 0
    resets: int = 0
    ends: list[tuple[int, bool]] = field(default_factory=list)  # of each episode: its length, whether it terminated
    prints: list[int] = field(default_factory=list)  # of every row, to compare two trials
    generator: int = -1  # see rules.rng_of
    build: float = 0.0  # seconds
    reset_most: float = 0.0
    step_sum: float = 0.0
    step_most: float = 0.0


def allow(clock: np.ndarray, stage: int, steps: int, seconds: float) -> float:
    """What begins now has so many seconds; when that is."""
    clock[1:] = stage, steps, seconds
    clock[0] = time.monotonic() + seconds
    return time.perf_counter()


def run_trial(answer: Connection, clock: np.ndarray, job: LaneJob, steps: int, seconds: float) -> TrialFacts:
    """A trial of one Gymnasium environment, in a process for it: so many steps, but not more than so many seconds."""
    seed_process(int(lane_seeds(job.seed, job.lane, 1)[0]))
    return EnvTrial(answer, clock, job, steps).run(seconds)


class EnvTrial:
    """One environment and what it does."""

    def __init__(
        self,
        answer: Connection,
        clock: np.ndarray,
        job: LaneJob,
        steps: int,
        beside: Callable[[], None] = lambda: None,
    ):
        self.answer, self.clock, self.job, self.steps, self.limit = answer, clock, job, steps, job.step_timeout
        self.beside = beside  # called before each step
        self.facts = TrialFacts()
        self.board = SharedRows(job.spec, 1, 1)
        self.reported: set[tuple[str, str]] = set()
        self.raised = 0
        self.begun: list[object] = []  # observations of the resets within a step

    def report(self, kind: str, rule: str, text: str) -> None:
        if (kind, rule) not in self.reported:
            self.reported.add((kind, rule))
            self.answer.send((kind, (rule, text)))

    def broke(self, rule: str, text: str) -> None:
        where = f"reset {self.facts.resets}" if self.clock[1] == 1 else f"step {self.facts.steps}"
        self.report("broke", rule, f"{where}: {text}" if self.clock[1] else text)

    def run(self, seconds: float) -> TrialFacts:
        """Play episodes until the steps or the time are over."""
        going = self._build()
        until = time.monotonic() + seconds
        while going and self.raised < FEW and self.facts.steps < self.steps and time.monotonic() < until:
            going = self._reset()
            if going:
                self._episode(until)
        return self.facts

    # ------------------------------------------------------------------------------------ its stages

    def _build(self) -> bool:
        job = self.job
        start = allow(self.clock, 0, 0, max(START, self.limit))
        try:
            name, options = unpack(job.maker, job.title)
            self.lane = Lane(job, factory(name, options), self.board, 0, lambda seconds: None)
            self.lane.prepare()
        except BaseException as e:
            rule = e.rule if isinstance(e, spaces.SpaceViolation) else rules.rule_of(str(e)) or "build"
            self.broke(rule, rules.without_rule(str(e)))
            return False
        self.facts.build = time.perf_counter() - start
        env = self.lane.env
        assert env is not None
        self.env, self.space = env, env.observation_space
        self.draw = action_sampler(job.spec.action, job.seed)
        record_resets(env, self.begun)
        return True

    def _try(self, rule: str, call: Callable[..., Result], *args: object, where: str = "") -> Result | None:
        """What `call` returns; None where it breaks a rule, that of its SpaceViolation or else `rule`."""
        try:
            return call(*args)
        except spaces.SpaceViolation as e:
            self.broke(e.rule, str(e))
        except BaseException as e:
            self.broke(rule, f"{where}{one_line(e)}")
        return None

    def _reset(self) -> bool:
        """Begin an episode; False: that failed."""
        seed = None if self.facts.resets else unit_seed(self.lane)
        self.facts.resets += 1
        start = allow(self.clock, 1, self.facts.steps, self.limit)
        found = self._try("reset", lambda: rules.read_reset(self.env.reset(seed=seed)))
        if found is None:
            return False
        self.facts.reset_most = max(self.facts.reset_most, time.perf_counter() - start)
        if seed is not None:
            self.facts.generator = rules.rng_of(self.env)
        self._check_row(*found, (0.0, False, False))
        return True

    def _episode(self, until: float) -> None:
        length, over = 0, False
        while not over and self.facts.steps < self.steps and time.monotonic() < until:
            self.facts.steps += 1
            length += 1
            self.begun.clear()
            self.beside()
            action = self.lane.act(tree.at(self.draw(1, self.board.rows.get("mask")), 0))
            start = allow(self.clock, 2, self.facts.steps, self.limit)
            where = f"action {' '.join(str(action).split())[:80]}: "
            parts = self._try("step", lambda a: rules.step_parts(self.env.step(a)), action, where=where)
            if parts is None:
                self.raised += 1
                return
            took = time.perf_counter() - start
            self.facts.step_sum += took
            self.facts.step_most = max(self.facts.step_most, took)
            over, terminated = self._check_step(parts)
        if over:
            self.facts.ends.append((length, terminated))

    def _check_step(self, parts: Sequence[Any]) -> tuple[bool, bool]:
        """Whether the episode is over, and whether it terminated."""
        obs, reward, *flags, info = parts
        dead, late = map(self._check_flag, ("terminated", "truncated"), flags)
        if odd := rules.old_limit(dead, late, info):
            self.report("odd", "flags", odd)
        self._check_row(obs, info, (self._try("reward", rules.read_reward, reward), dead, late))
        for begun in self.begun:
            self._reset_itself(dead or late, begun, obs)
        return dead or late, dead

    def _check_flag(self, name: str, value: object) -> bool:
        if not isinstance(value, bool | np.bool_):
            self.report("odd", "flags", f"{name} is {rules.describe_value(value)}, no boolean")
        return bool(self._try("flags", rules.read_flag, name, value))

    def _check_row(self, obs: object, info: object, flags: tuple[float | None, bool, bool]) -> None:
        """Check the observation of a row with this (reward, terminated, truncated); add a checksum of the row."""
        try:
            self.lane.show(obs, info, *flags[1:])
            self._bounds(obs)
            self._sizes()
        except spaces.SpaceViolation as e:
            always = any(("broke", rule) in self.reported for rule in rules.SHOWN)  # then it is no matter of the end
            if e.rule != "final-observation" or not always:
                self.broke(e.rule, str(e))
        except Exception as e:  # of its action_masks(), or of what it calls an array
            self.raised += 1
            self.broke(STAGES[int(self.clock[1])], one_line(e))
        leaves = [leaf.tobytes() for _, leaf in tree.leaves(self.board.rows["obs"])]
        self.facts.prints.append(zlib.crc32(b"".join(leaves), zlib.crc32(repr(flags).encode())))

    def _bounds(self, obs: object) -> None:
        try:
            if near := rules.check_contains(self.space, obs):
                self.report("odd", "bounds", near)
        except spaces.SpaceViolation as e:
            if STAGES[int(self.clock[1])] == "reset":
                raise
            self.report("odd", e.rule, f"step {self.facts.steps}: {e}; training looks at bounds after a reset only")

    def _sizes(self) -> None:
        """Whether networks can compute with the numbers as they are."""
        for _, leaf in tree.leaves(self.board.rows["obs"]):
            if leaf.dtype == np.float64 and (most := float(np.abs(leaf).max(initial=0.0))) > rules.MOST:
                text = f"an observation holds {most:g}, which float32, in which networks compute, can't hold"
                self.report("odd", "finite", f"{text}: train with --inputs normalize")

    def _reset_itself(self, over: bool, begun: object, obs: object) -> None:
        ended = "the step that ended an episode called reset()"
        if over and same_values(begun, obs):
            self.broke("autoreset", f"{ended} and returned the next one's beginning")
        elif over:
            self.report("odd", "autoreset", f"{ended} too")
        else:
            self.report("odd", "autoreset", f"step {self.facts.steps} called reset() without ending the episode")


def record_resets(env: Any, begun: list[object]) -> None:
    """From now on every reset of the environment, or of what it wraps, adds its observation to `begun`."""
    reset = env.reset

    @functools.wraps(reset)  # wrappers look at its keywords
    def recording(*args: Any, **kw: Any) -> Any:
        answer = reset(*args, **kw)
        if isinstance(answer, tuple) and answer:
            begun.append(np.copy(answer[0]) if isinstance(answer[0], np.ndarray) else answer[0])
        return answer

    with contextlib.suppress(Exception):
        env.reset = recording
    if isinstance(inner := getattr(env, "env", None), gymnasium.Env):
        record_resets(inner, begun)


def same_values(a: tree.Tree, b: tree.Tree) -> bool:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_values(a[k], b[k]) for k in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same_values, a, b))
    return np.shape(a) == np.shape(b) and bool(np.all(np.asarray(a) == np.asarray(b)))

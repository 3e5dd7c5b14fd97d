"""One environment tried in a process of its own.

One environment, tried in a process of its own: random actions, every rule looked at, nothing repaired.

Findings go through a pipe as they come, so that those before a hang or a crash arrive: pairs ("broke", (rule, text))
and ("odd", the same, for a warning).
"""

from __future__ import annotations

import contextlib
import functools
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import gymnasium
import numpy as np

from polyplay.core import tree
from polyplay.envs import rules, spaces
from polyplay.envs.board import Seating, SharedRows
from polyplay.envs.build import factory, one_line
from polyplay.envs.lane import START, Lane, LaneJob, Match, Unit, take_turn, unit_seed
from polyplay.envs.pool import lane_seeds
from polyplay.envs.process_pool import unpack
from polyplay.envs.process_state import GlobalGenerators, seed_process
from polyplay.envs.spaces import action_sampler

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


# One environment of several players, tried in a process of its own: random actions of all, nothing repaired.
#
# It is played as a pool plays it, by a `Match`; beside that every answer of its step() is looked at.


PARTS = ("observation", "reward", "termination", "truncation")


def run_match_trial(answer: Connection, clock: np.ndarray, job: LaneJob, steps: int, seconds: float) -> TrialFacts:
    """A trial of one match after the other: so many steps, but not more than so many seconds."""
    seed_process(int(lane_seeds(job.seed, job.lane, 1)[0]))
    return MatchTrial(answer, clock, job, steps).run(seconds)


class MatchTrial:
    """One environment and what it does; sends what an EnvTrial sends."""

    def __init__(
        self,
        answer: Connection,
        clock: np.ndarray,
        job: LaneJob,
        steps: int,
        beside: Callable[[], None] = lambda: None,
    ):
        self.beside = beside  # called before each turn
        self.answer, self.clock, self.job, self.steps = answer, clock, job, steps
        self.facts, self.reported = TrialFacts(), set[tuple[str, str]]()
        seats = job.spec.seats
        self.board = SharedRows(job.spec, seats, 1, Seating(seats, seats))
        self.draw, self.results = action_sampler(job.spec.action, job.seed), list[Any]()
        self.length, self.raised = 0, 0

    def report(self, kind: str, rule: str, text: str) -> None:
        if (kind, rule) not in self.reported:
            self.reported.add((kind, rule))
            where = ("", f"reset {self.facts.resets}: ", f"step {self.facts.steps}: ")[int(self.clock[1])]
            self.answer.send((kind, (rule, where + text)))

    def run(self, seconds: float) -> TrialFacts:
        """Play until the steps or the time are over."""
        until = time.monotonic() + seconds
        while self._build() and self.raised < FEW and self.facts.steps < self.steps and time.monotonic() < until:
            while self.raised < FEW and self.facts.steps < self.steps and time.monotonic() < until:
                if not self._turn():
                    self.match.close()
                    break
        return self.facts

    def _build(self) -> bool:
        start = allow(self.clock, 0, self.facts.steps, max(START, self.job.step_timeout))
        try:
            make = factory(*unpack(self.job.maker, self.job.title))
            self.match = Match(self.job, make, self.board, 0, lambda seconds: None)
            self.match.prepare()
        except BaseException as e:
            rule = e.rule if isinstance(e, spaces.SpaceViolation) else rules.rule_of(str(e)) or "build"
            self.report("broke", rule, rules.without_rule(str(e)))
            return False
        self.facts.build = time.perf_counter() - start
        _record(self.match.env, self.results)
        return True

    def _turn(self) -> bool:
        """One reset or step; False: it broke a rule, and the match ends with that."""
        match, facts, begins = self.match, self.facts, self.match.over
        facts.resets, facts.steps = facts.resets + begins, facts.steps + (not begins)
        tree.write(self.board.action, ..., self.draw(len(self.board.rows["first"]), self.board.rows.get("mask")))
        self.beside()
        start = allow(self.clock, 1 if begins else 2, facts.steps, self.job.step_timeout)
        try:
            match.advance()
        except BaseException as e:
            self.raised += 1
            rule, text = (e.rule, str(e)) if isinstance(e, spaces.SpaceViolation) else (match.stage, one_line(e))
            self.report("broke", rule, text)
            return False
        took = time.perf_counter() - start
        self._measured(begins, took)
        self._look(begins)
        return True

    def _measured(self, begins: bool, took: float) -> None:
        facts, rows = self.facts, self.board.rows
        facts.prints.append(zlib.crc32(b"".join(leaf.tobytes() for _, leaf in tree.leaves(rows))))
        self.length = 0 if begins else self.length + 1
        if begins:
            facts.reset_most = max(facts.reset_most, took)
            facts.generator = rules.rng_of(self.match.env) if facts.generator < 0 else facts.generator
            return
        facts.step_sum, facts.step_most = facts.step_sum + took, max(facts.step_most, took)
        if self.match.over:
            facts.ends.append((self.length, bool(rows["terminated"].any())))

    def _look(self, begins: bool) -> None:
        """At what step() returned, and who is left."""
        known, match = self.match.agents, self.match
        if match.remark:
            self.report("odd", "reward" if "env.rewards" in match.remark else "bounds", match.remark)
        if begins or not self.results:
            return
        answer = self.results.pop()
        self._bounds(answer[0])
        for name, part in zip(PARTS, answer, strict=False):
            strangers = [a for a in part if a not in known] if isinstance(part, Mapping) and name != PARTS[0] else []
            if strangers:
                self.report("broke", "players", f"step() gave a {name} of {strangers[0]}, not in possible_agents")
        if match.over and (left := list(match.env.agents)):
            self.report(
                "odd", "agents", f"everyone has ended, but agents is still {left}; only training lets that pass"
            )

    def _bounds(self, seen: object) -> None:
        """Of what every player saw after a step; a Match looks at resets only."""
        for agent, space in zip(self.match.agents, self.match.seen, strict=True):
            if isinstance(seen, Mapping) and agent in seen:
                try:
                    near = rules.check_contains(space, seen[agent])
                except spaces.SpaceViolation as e:
                    near = f"{e}; training looks at bounds after a reset only"
                if near:
                    self.report("odd", "bounds", f"{agent}: {near}")


def _record(env: Any, results: list[Any]) -> None:
    """From now on `results` holds what the environment's step() returned last."""
    step = env.step

    def recording(actions: Any) -> Any:
        answer = step(actions)
        results[:] = [answer] if isinstance(answer, Sequence) else []
        return answer

    env.step = recording


# One lane, tried while another one is stepped in the same process: it has to show what it shows alone.


STEPS, SECONDS = 200, 5.0  # at most


def run_beside(answer: Connection, clock: np.ndarray, job: LaneJob, steps: int, seconds: float) -> TrialFacts:
    """A trial of the job's lane, with a step of the next lane before each of its steps. Their global generators are
    apart.
    """
    mine = GlobalGenerators(int(lane_seeds(job.seed, job.lane, 1)[0]))
    mine.enter()
    kind: type[EnvTrial] | type[MatchTrial] = MatchTrial if job.spec.kinds else EnvTrial
    return kind(answer, clock, job, steps, Beside(answer, job, mine)).run(seconds)


class Beside:
    """The other lane; what it raises is its own affair, but for being the first one's environment."""

    def __init__(self, answer: Connection, job: LaneJob, back: GlobalGenerators):
        self.answer = answer
        self.job, self.back = replace(job, lane=job.lane + 1), back
        self.random = GlobalGenerators(int(lane_seeds(job.seed, job.lane + 1, 1)[0]))
        seats = job.spec.seats
        self.board = SharedRows(job.spec, seats, 1, Seating(seats, seats) if job.spec.kinds else None)
        self.draw = action_sampler(job.spec.action, job.seed + 1)
        self.unit: Unit | None = None

    def __call__(self) -> None:
        self.random.enter()
        try:
            if self.unit is None:
                make, kind = factory(*unpack(self.job.maker, self.job.title)), Match if self.job.spec.kinds else Lane
                self.unit = kind(self.job, make, self.board, 0, lambda seconds: None)
            rows = self.board.rows
            tree.write(self.board.action, ..., self.draw(len(rows["first"]), rows.get("mask")))
            if take_turn(self.unit) < 0 and rules.rule_of(text := self.board.read(0)[1]) == "copies":
                self.answer.send(("broke", ("copies", rules.without_rule(text))))
        finally:
            self.back.enter()

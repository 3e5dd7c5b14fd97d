"""One environment tried in a process of its own: random actions, every rule looked at, nothing repaired.

Findings go through a pipe as they come, so that those before a hang or a crash arrive: pairs ("broke", (rule, text))
and ("odd", the same, for a warning).
"""

from __future__ import annotations

import contextlib
import functools
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from polyplay.core import tree, user_modules
from polyplay.core.errors import EnvFailure, UserError
from polyplay.envs import rules, spaces
from polyplay.envs.board import Seating, SharedRows
from polyplay.envs.build import factory, one_line
from polyplay.envs.lane import START, Lane, LaneJob, Match, Unbuilt, Unit, make_unit, take_turn, unit_seed
from polyplay.envs.pool import Envs, lane_seeds
from polyplay.envs.process_pool import unpack
from polyplay.envs.process_state import GlobalGenerators, seed_process

STAGES = ("building it", "reset", "step")
CLOCK = 4  # float64: when what is going on must be done, its stage, steps so far, and how long it may take
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


def run_trial(
    answer: Connection, clock: np.ndarray, job: LaneJob, steps: int, seconds: float, envs: Envs | None = None
) -> TrialFacts:
    """So many steps of one environment, but not more than so many seconds, in a process for it. envs: it is a lane of
    one of Polyplay's own pools.
    """
    if envs is not None:
        user_modules.lift()  # some of these start processes
        return PoolTrial(answer, clock, job, steps, seconds, envs=envs).run()
    seed_process(int(lane_seeds(job.seed, job.lane, 1)[0]))
    kind = MatchTrial if job.spec.kinds else EnvTrial
    return kind(answer, clock, job, steps, seconds).run()


def run_beside(answer: Connection, clock: np.ndarray, job: LaneJob, steps: int, seconds: float) -> TrialFacts:
    """A trial of the job's lane, with a step of the next lane before each of its steps: it has to show what it shows
    alone. Their global generators are apart.
    """
    mine = GlobalGenerators(int(lane_seeds(job.seed, job.lane, 1)[0]))
    mine.enter()
    kind = MatchTrial if job.spec.kinds else EnvTrial
    return kind(answer, clock, job, steps, seconds, Beside(answer, job, mine)).run()


@dataclass
class Trial(ABC):
    """What all trials have: turns until the steps or the time are over, findings, and times."""

    answer: Connection
    clock: np.ndarray
    job: LaneJob
    steps: int
    seconds: float
    beside: Callable[[], None] = lambda: None  # called before each step
    over: bool = True  # the next turn begins an episode
    until: float = 0.0
    raised: int = 0
    length: int = 0  # of the episode so far
    facts: TrialFacts = field(default_factory=TrialFacts)
    reported: set[tuple[str, str]] = field(default_factory=set)

    @functools.cached_property
    def board(self) -> SharedRows:
        return one_board(self.job)

    @functools.cached_property
    def draw(self) -> Callable[..., tree.Tree]:
        return spaces.action_sampler(self.job.spec.action, self.job.seed)

    @abstractmethod
    def build(self) -> None: ...

    @abstractmethod
    def turn(self) -> bool:
        """One reset or step; False: what follows needs another environment."""

    @property
    def goes_on(self) -> bool:
        return self.raised < FEW and self.facts.steps < self.steps and time.monotonic() < self.until

    def run(self) -> TrialFacts:
        """Build and play."""
        while True:
            try:
                with self.timed(0):
                    self.build()
            except BaseException as e:
                self.broke(e, "build")
                return self.facts
            self.until = self.until or time.monotonic() + self.seconds
            while self.goes_on and self.turn():
                pass
            if not self.goes_on:
                return self.facts

    def report(self, kind: str, rule: str, text: str) -> None:
        """Send the first of its kind about a rule, and where it was seen."""
        if (kind, rule) not in self.reported:
            self.reported.add((kind, rule))
            where = ("", f"reset {self.facts.resets}: ", f"step {self.facts.steps}: ")[int(self.clock[1])]
            self.answer.send((kind, (rule, where + text)))

    def broke(self, e: BaseException, rule: str, where: str = "") -> None:
        """Report an exception: it breaks the rule that it names, or else `rule`."""
        if isinstance(e, spaces.SpaceViolation):
            self.report("broke", e.rule, str(e))
        elif isinstance(e, UserError | EnvFailure | Unbuilt):
            text = str(e).split("\n")[0]
            self.report("broke", rules.rule_of(text) or rule, rules.without_rule(text))
        else:
            self.report("broke", rule, where + one_line(e))

    @contextlib.contextmanager
    def timed(self, stage: int) -> Iterator[None]:
        """What is done in `with` has its time, and its seconds are noted unless it raises."""
        facts, limit = self.facts, self.job.step_timeout
        start = allow(self.clock, stage, facts.steps, limit if stage else max(START, limit))
        yield
        took = time.perf_counter() - start
        if stage == 0:
            facts.build = took
        elif stage == 1:
            facts.reset_most = max(facts.reset_most, took)
        else:
            facts.step_sum, facts.step_most = facts.step_sum + took, max(facts.step_most, took)

    def shown(self, rows: tree.Tree, more: str = "") -> None:
        """Note a checksum of rows."""
        found = zlib.crc32(b"".join(leaf.tobytes() for _, leaf in tree.leaves(rows)))
        self.facts.prints.append(zlib.crc32(more.encode(), found))


class EnvTrial(Trial):
    """One Gymnasium environment, whose answers are all looked at, also after what is wrong."""

    def build(self) -> None:
        make = factory(*unpack(self.job.maker, self.job.title))
        self.lane, self.begun = Lane(self.job, make, self.board, 0), list[object]()
        self.lane.prepare()
        self.env: Any = self.lane.env
        record_resets(self.env, self.begun)  # observations of the resets within a step

    def turn(self) -> bool:
        """See Trial. Without a reset there is nothing more to see."""
        if not self.over:
            self._step()
            return True
        seed = None if self.facts.resets else unit_seed(self.lane)
        self.facts.resets += 1
        try:
            with self.timed(1):
                found = rules.read_reset(self.env.reset(seed=seed))
        except BaseException as e:
            self.broke(e, "reset")
            self.raised = FEW
            return False
        self.over, self.length = False, 0
        if seed is not None:
            self.facts.generator = rules.rng_of(self.env)
        self._check_row(*found, (0.0, False, False))
        return True

    def _step(self) -> None:
        self.facts.steps, self.length = self.facts.steps + 1, self.length + 1
        self.begun.clear()
        self.beside()
        action = self.lane.act(tree.at(self.draw(1, self.board.rows.get("mask")), 0))
        try:
            with self.timed(2):
                parts = rules.step_parts(self.env.step(action))
        except BaseException as e:
            self.broke(e, "step", f"action {' '.join(str(action).split())[:80]}: ")
            self.raised, self.over = self.raised + 1, True
            return
        obs, reward, *flags, info = parts
        dead, late = map(self._read_flag, ("terminated", "truncated"), flags)
        self.over = dead or late
        if odd := rules.old_limit(dead, late, info):
            self.report("odd", "flags", odd)
        self._check_row(obs, info, (self._try("reward", rules.read_reward, reward), dead, late))
        for begun in self.begun:
            self._reset_itself(begun, obs)
        if self.over:
            self.facts.ends.append((self.length, dead))

    def _try(self, rule: str, read: Callable[..., Any], *given: object) -> Any:
        """What `read` returns; None where it raises, which is reported."""
        try:
            return read(*given)
        except Exception as e:
            self.broke(e, rule)

    def _read_flag(self, name: str, value: object) -> bool:
        if not isinstance(value, bool | np.bool_):
            self.report("odd", "flags", f"{name} is {rules.describe_value(value)}, no boolean")
        return bool(self._try("flags", rules.read_flag, name, value))

    def _check_row(self, obs: object, info: object, flags: tuple[float | None, bool, bool]) -> None:
        """Check the observation of a row with this (reward, terminated, truncated)."""
        try:
            self.lane.show(obs, info, *flags[1:])
            self._check_bounds(obs)
            self._check_sizes()
        except spaces.SpaceViolation as e:
            always = any(("broke", rule) in self.reported for rule in rules.SHOWN)  # then it is no matter of the end
            if e.rule != "final-observation" or not always:
                self.broke(e, e.rule)
        except Exception as e:  # of its action_masks(), or of what it calls an array
            self.raised += 1
            self.broke(e, STAGES[int(self.clock[1])])
        self.shown(self.board.rows["obs"], repr(flags))

    def _check_bounds(self, obs: object) -> None:
        try:
            near = rules.check_contains(self.env.observation_space, obs)
        except spaces.SpaceViolation as e:
            if STAGES[int(self.clock[1])] == "reset":
                raise
            self.report("odd", e.rule, f"{e}; {AFTER_RESETS}")
        else:
            if near:
                self.report("odd", "bounds", near)

    def _check_sizes(self) -> None:
        """Whether networks can compute with the numbers as they are."""
        for _, leaf in tree.leaves(self.board.rows["obs"]):
            if leaf.dtype == np.float64 and (most := float(np.abs(leaf).max(initial=0.0))) > rules.MOST:
                text = f"an observation holds {most:g}, which float32, in which networks compute, can't hold"
                self.report("odd", "finite", f"{text}: train with --inputs normalize")

    def _reset_itself(self, begun: object, obs: object) -> None:
        ended = "the step that ended an episode called reset()"
        if self.over and data_equivalence(begun, obs, exact=True):
            self.report("broke", "autoreset", f"{ended} and returned the next one's beginning")
        else:
            text = f"{ended} too" if self.over else "it called reset() without ending the episode"
            self.report("odd", "autoreset", text)


AFTER_RESETS = "training looks at bounds after a reset only"


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


PARTS = ("observation", "reward", "termination", "truncation")


class MatchTrial(Trial):
    """One environment of several players, played as a pool plays it, by a `Match`; beside that every answer of its
    step() is looked at.
    """

    def build(self) -> None:
        make = factory(*unpack(self.job.maker, self.job.title))
        self.match = Match(self.job, make, self.board, 0)
        self.match.prepare()
        self.results: list[Any] = []  # what step() returned last
        step = self.match.env.step

        def recording(actions: Any) -> Any:
            answer = step(actions)
            self.results[:] = [answer] if isinstance(answer, Sequence) else []
            return answer

        self.match.env.step = recording

    def turn(self) -> bool:
        """See Trial. What breaks a rule ends the match."""
        match, facts, begins, rows = self.match, self.facts, self.match.over, self.board.rows
        facts.resets, facts.steps = facts.resets + begins, facts.steps + (not begins)
        tree.write(self.board.action, ..., self.draw(len(rows["first"]), rows.get("mask")))
        self.beside()
        try:
            with self.timed(1 if begins else 2):
                match.advance()
        except BaseException as e:
            self.broke(e, match.stage)
            self.raised += 1
            match.close()
            return False
        self.shown(rows)
        self.length = 0 if begins else self.length + 1
        if begins and facts.generator < 0:
            facts.generator = rules.rng_of(match.env)
        if match.over:
            facts.ends.append((self.length, bool(rows["terminated"].any())))
        if match.remark:
            self.report("odd", "reward" if "env.rewards" in match.remark else "bounds", match.remark)
        if not begins and self.results:
            self._look(self.results.pop())
        return True

    def _look(self, answer: Sequence[Any]) -> None:
        """At what step() returned, and who is left."""
        match = self.match
        for agent, space in zip(match.agents, match.seen, strict=True):
            if isinstance(answer[0], Mapping) and agent in answer[0]:  # a Match looks at resets only
                try:
                    near = rules.check_contains(space, answer[0][agent])
                except spaces.SpaceViolation as e:
                    near = f"{e}; {AFTER_RESETS}"
                if near:
                    self.report("odd", "bounds", f"{agent}: {near}")
        for name, part in zip(PARTS[1:], answer[1:], strict=False):
            strangers = [a for a in part if a not in match.agents] if isinstance(part, Mapping) else []
            if strangers:
                self.report("broke", "players", f"step() gave a {name} of {strangers[0]}, not in possible_agents")
        if match.over and (left := list(match.env.agents)):
            text = f"everyone has ended, but agents is still {left}; only training lets that pass"
            self.report("odd", "agents", text)


@dataclass
class PoolTrial(Trial):
    """One lane of Polyplay's own pools, or a vector environment."""

    envs: Envs = field(kw_only=True)

    def build(self) -> None:
        self.pool = self.envs.open(self.job.seed, self.job.lane)
        self.lanes, self.row = self.pool.recv()
        self.clock[1] = 2
        self._look()

    def turn(self) -> bool:
        """See Trial."""
        try:
            with self.timed(2):
                self.pool.send(self.lanes, self.draw(len(self.row["first"]), self.row.get("mask")))
                self.lanes, self.row = self.pool.recv()
        except (EnvFailure, UserError) as e:  # of a vector environment, which ends its pool
            self.broke(e, "step")
            self.raised = FEW
            return False
        self.facts.steps += int(not self.row["first"][0])
        self._look()
        return True

    def _look(self) -> None:
        """At the row that came."""
        facts, row = self.facts, self.row
        for rule, text in row_flaws(self.envs, row, self.over):
            self.report("broke", rule, text)
        self.shown(row)
        first, self.over = int(row["first"][0]), bool(row["over"][0])
        facts.resets, self.length = facts.resets + first, 0 if first else self.length + 1
        if self.over:
            facts.ends.append((self.length, bool(row["terminated"][0])))

    def run(self) -> TrialFacts:
        """See Trial."""
        facts = super().run()
        if facts.prints:  # else it was not built
            self.pool.close()
        return facts


def row_flaws(envs: Envs, row: tree.Batch, over: bool) -> list[tuple[str, str]]:
    """(rule, text) of what is wrong with the row of a lane whose row before was `over`."""
    found = []
    for (path, want), (_, have) in zip(tree.leaves(envs.spec.obs), tree.leaves(row["obs"]), strict=True):
        pairs = (("shape", list(want.shape), list(have.shape[1:])), ("dtype", want.dtype, have.dtype))
        found += [(rule, f"{path} declared {a}, given {b}") for rule, a, b in pairs if a != b]
        if have.dtype.kind == "f" and not np.isfinite(have).all():
            found.append(("finite", f"{path} holds values that are not finite"))
    if not np.isfinite(row["reward"]).all():
        found.append(("reward", f"reward {row['reward'][0]}"))
    if over and not row["first"][0]:
        found.append(("autoreset", "an episode was over, and the next row is not the first of another"))
    return found


def one_board(job: LaneJob) -> SharedRows:
    """The rows of one environment."""
    seats = job.spec.seats
    return SharedRows(job.spec, seats, 1, Seating(seats, seats) if job.spec.kinds else None)


class Beside:
    """The other lane; what it raises is its own affair, but for being the first one's environment."""

    def __init__(self, answer: Connection, job: LaneJob, back: GlobalGenerators):
        self.answer = answer
        self.job, self.back = replace(job, lane=job.lane + 1), back
        self.random = GlobalGenerators(int(lane_seeds(job.seed, job.lane + 1, 1)[0]))
        self.board = one_board(job)
        self.draw = spaces.action_sampler(job.spec.action, job.seed + 1)
        self.unit: Unit | None = None

    def __call__(self) -> None:
        self.random.enter()
        try:
            if self.unit is None:
                make = factory(*unpack(self.job.maker, self.job.title))
                self.unit = make_unit(self.job, make, self.board, 0)
            rows = self.board.rows
            tree.write(self.board.action, ..., self.draw(len(rows["first"]), rows.get("mask")))
            if take_turn(self.unit) < 0 and rules.rule_of(text := self.board.read(0)[1]) == "copies":
                self.answer.send(("broke", ("copies", rules.without_rule(text))))
        finally:
            self.back.enter()

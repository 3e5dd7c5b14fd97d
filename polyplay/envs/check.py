"""`polyplay check ENV`: an environment against every rule of `envs/rules`, in processes of its own.

Trials of one lane each with the same random actions (a lane, the same once more with sets in another order, another
lane, the first one beside another), then a pool of as many processes as there are cores. In a trial every rule is
looked at and nothing repaired. Findings go through a pipe as they come, so that those before a hang or a crash arrive:
pairs ("broke", (rule, text)) and ("odd", the same, for a warning).
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import re
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from polyplay.core import tree, user_modules
from polyplay.core.errors import EnvFailure, Finding, Level, UserError, status
from polyplay.core.machine import cores
from polyplay.core.shared_memory import SharedBlock
from polyplay.envs import rules
from polyplay.envs.base_pool import Seating, SharedRows
from polyplay.envs.build import factory, one_line
from polyplay.envs.lane import START, Lane, LaneJob, Match, Unbuilt, Unit, make_unit, take_turn
from polyplay.envs.make import POOLS, whole_matches
from polyplay.envs.pool import Envs, EnvSpec, Factory, Pool, lane_seeds
from polyplay.envs.process_pool import REORDERED, TRACE, EnvProcess, exit_text, pickled_factory, settle, unpack
from polyplay.envs.process_state import GlobalGenerators, seed_process
from polyplay.envs.rules import RULES
from polyplay.envs.spaces import SpaceViolation, action_sampler, describe_scaling

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
    return _kind(job)(answer, clock, job, steps, seconds).run()


def _kind(job: LaneJob) -> type[Trial]:
    return MatchTrial if job.spec.kinds else EnvTrial


def run_beside(answer: Connection, clock: np.ndarray, job: LaneJob, steps: int, seconds: float) -> TrialFacts:
    """A trial of the job's lane, with a step of the next lane before each of its steps: it has to show what it shows
    alone. Their global generators are apart.
    """
    mine, theirs = (GlobalGenerators(int(seed)) for seed in lane_seeds(job.seed, job.lane, 2))
    board, draw, units = one_board(job), action_sampler(job.spec.action, job.seed + 1), list[Unit]()

    def step_other() -> None:
        """What it raises is its own affair, but for being the first one's environment."""
        theirs.enter()
        try:
            if not units:
                make = factory(*unpack(job.maker, job.title))
                units.append(make_unit(replace(job, lane=job.lane + 1), make, board, 0))
            tree.write(board.action, ..., draw(len(board.rows["first"]), board.rows.get("mask")))
            if take_turn(units[0]) < 0 and rules.rule_of(text := board.read(0)[1]) == "copies":
                answer.send(("broke", ("copies", rules.without_rule(text))))
        finally:
            mine.enter()

    mine.enter()
    return _kind(job)(answer, clock, job, steps, seconds, step_other).run()


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

    def __post_init__(self) -> None:
        self.board, self.draw = one_board(self.job), action_sampler(self.job.spec.action, self.job.seed)

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
        if isinstance(e, SpaceViolation):
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

    def check_bounds(self, space: gymnasium.Space, obs: object, who: str = "") -> None:
        """Report what lies beyond them. Raises SpaceViolation: at a reset."""
        try:
            near, rule = rules.check_contains(space, obs), "bounds"
        except SpaceViolation as e:
            if STAGES[int(self.clock[1])] == "reset":
                raise
            near, rule = f"{e}; training looks at bounds after a reset only", e.rule
        if near:
            self.report("odd", rule, f"{who}{near}")

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
        seed = None if self.facts.resets else self.lane.seed
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
            self.check_bounds(self.env.observation_space, obs)
            self._check_sizes()
        except SpaceViolation as e:
            always = any(("broke", rule) in self.reported for rule in rules.SHOWN)  # then it is no matter of the end
            if e.rule != "final-observation" or not always:
                self.broke(e, e.rule)
        except Exception as e:  # of its action_masks(), or of what it calls an array
            self.raised += 1
            self.broke(e, STAGES[int(self.clock[1])])
        self.shown(self.board.rows["obs"], repr(flags))

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
                self.check_bounds(space, answer[0][agent], f"{agent}: ")
        for name, part in zip(("reward", "termination", "truncation"), answer[1:], strict=False):
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


def steps_per_second(pool: Pool, seconds: float, seed: int = 0) -> float:
    """Steps per second of all its lanes, measured for about `seconds` after the first rows."""
    draw = action_sampler(pool.spec.action, seed)
    lanes, row = pool.recv()
    steps, start = 0, time.perf_counter()
    while (took := time.perf_counter() - start) < seconds or not steps:
        steps += len(row["first"])
        pool.send(lanes, draw(len(row["first"]), row.get("mask")))
        lanes, row = pool.recv()
    return steps / max(took, 1e-9)


def measure_pool(answer: Connection, clock: np.ndarray, envs: Envs, seconds: float) -> float:
    """The pace of a pool of Polyplay's own, in a process for it."""
    user_modules.lift()  # some of these start processes
    allow(clock, 2, 0, START + seconds)
    with closing(envs.open(0)) as pool:
        return steps_per_second(pool, seconds)


Play = Callable[..., object]


@dataclass
class TrialResult:
    """What is known of one trial."""

    card: dict[str, str] = field(default_factory=dict)
    broke: dict[str, str] = field(default_factory=dict)  # rule → text
    odd: dict[str, str] = field(default_factory=dict)
    facts: Any = None
    whole: bool = True  # it neither hung nor died


def run_watched(play: Play, *args: object, reordered: bool = False) -> TrialResult:
    """Run `play(answer, clock, *args)` in an environment process until it has returned its facts, hangs or dies.
    reordered: sets are in another order there.
    """
    clock, trace = SharedBlock(8 * CLOCK), SharedBlock(TRACE)
    times = clock.array(CLOCK, np.float64)
    allow(times, 0, 0, START)
    here, there = multiprocessing.Pipe(duplex=False)
    server = {"server": REORDERED} if reordered else {}
    process = EnvProcess(_run, (play, there, clock, trace, *args), "env check", **server)
    process.start()
    there.close()
    tried = TrialResult()
    try:
        while tried.facts is None:
            if here.poll(0.05):
                kind, value = here.recv()
                if kind == "facts":
                    tried.facts = value
                else:  # of several findings about a rule the first
                    getattr(tried, kind).setdefault(*value)
            elif 0.0 < times[0] < time.monotonic():
                process.dump()
                time.sleep(0.1)
                _lost(tried, "hang", f"took longer than {times[3]:g} s", times, trace)
    except EOFError:
        process.join(1.0)
        _lost(tried, "crash", f"ended its process: {exit_text(process)}", times, trace)
    finally:
        here.close()
        process.end()
    return tried


def _run(play: Play, answer: Connection, clock: SharedBlock, trace: SharedBlock, *args: object) -> None:
    """The whole life of a trial's process."""
    settle(trace)
    times = clock.array(CLOCK, np.float64)
    with contextlib.suppress(BrokenPipeError):
        facts = play(answer, times, *args)
        times[0] = 0.0  # done
        answer.send(("facts", facts))


def _lost(tried: TrialResult, rule: str, what: str, times: np.ndarray, trace: SharedBlock) -> None:
    """A trial that cannot send its facts any more; where its Python code was, innermost first."""
    dump = bytes(trace.memory).split(b"\0", 1)[0].decode(errors="replace")
    places = re.findall(r'File "(.+)", line (\d+) in (\S+)', dump)
    theirs = [p for p in places if not re.search("polyplay/envs/|/multiprocessing/|^<", p[0])]
    own = [f"{Path(file).name}:{line} in {name}" for file, line, name in theirs]
    stage = STAGES[int(times[1])]
    step = f" {times[2]:.0f}" if stage == "step" else ""
    tried.broke[rule] = f"{stage}{step} {what}" + (f" ({' ← '.join(own[:3])})" if own else "")
    tried.facts, tried.whole = TrialFacts(steps=int(times[2])), False


BEGIN = ("factory", "build", "spaces", "images", "copies")  # what is seen before it is reset, in that order
AT_ENDS = ("flags", "final-observation", "autoreset")
SLOW = 0.5  # of the step's time limit: too near to it
LONG = 50  # steps: episodes of one length that long look like a time limit


def card_of(first: TrialResult, own: bool) -> dict[str, str]:
    """What the environment is, and how its episodes end."""
    ends = first.facts.ends
    by = "Polyplay's own pool" if own else "the pool calls reset() after the last row"
    card = {**first.card, "autoreset": f"{by}; the new episode's first row is one of its own"}
    card["truncation"] = "kept apart from termination: the value of the last observation counts"
    if ends:
        lengths = [n for n, _ in ends]
        over = sum(t for _, t in ends)
        spread = f"{min(lengths):,} to {max(lengths):,} steps, {np.mean(lengths):,.1f} in the mean"
        card["episodes"] = f"{len(ends)} with random actions, {spread}; {over} terminated, {len(ends) - over} truncated"
    return card


def failed(rule: str, text: str) -> Finding:
    return Finding(rule, "failed", text, RULES[rule].fix)


def finding(rule: str, broke: Mapping[str, str], trials: Sequence[TrialResult], limit: float) -> Finding:
    """From trials of lane 0, of lane 0 again and of lane 1; those that were not made have no facts."""
    if rule in broke:
        return failed(rule, broke[rule])
    special = {"seed": _seed, "determinism": _determinism}.get(rule)
    level, text = special(*(t.facts for t in trials)) if special else _plain(rule, trials[0], limit)
    return Finding(rule, level, text, RULES[rule].fix if level in ("warning", "failed") else "")


def _plain(rule: str, first: TrialResult, limit: float) -> tuple[Level, str]:
    """A rule that one trial shows, and that was not broken."""
    facts, ends, steps = first.facts, len(first.facts.ends), first.facts.steps
    if rule in first.odd:
        return "warning", first.odd[rule]
    begun = rule in BEGIN and (first.card or set(BEGIN[BEGIN.index(rule) :]) & first.broke.keys())
    if not begun and not first.card:
        return "unseen", "not tested"
    if begun:
        known = f"{first.card.get('observation')}; {first.card.get('actions')}"
        spaces = known if first.card else "of supported kinds"
        built = f"in {_time(facts.build)}" if facts.build else "it was built"
        shape = "its observations are no image, or have its planes first"
        own = "each is an environment of its own"
        seen = {"factory": "it reached another process", "build": built, "copies": own, "spaces": spaces}
        return "ok", {**seen, "images": shape}[rule]
    if not steps and rule not in ("hang", "crash"):
        return "unseen", "no step was made"
    if rule == "flags" and (text := _limit(facts.ends)):
        return "warning", text
    if rule in AT_ENDS[1:] and not ends:
        hint = "" if first.broke else f"; --steps {10 * steps} looks longer"
        return "unseen", f"no episode ended in {steps:,} steps{hint}"
    if rule == "step-time":
        slow = max(facts.step_most, facts.reset_most)
        mean = f"a step {_time(facts.step_sum / steps)} in the mean"
        level: Level = "warning" if slow > SLOW * limit else "ok"
        return level, f"{mean}, {_time(facts.step_most)} at most; a reset {_time(facts.reset_most)} at most"
    return "ok", f"at {ends:,} ends" if rule in AT_ENDS else f"in {steps:,} steps and {facts.resets:,} resets"


def _limit(ends: Sequence[tuple[int, bool]]) -> str:
    """A warning about what looks like a time limit reported as a termination; "": nothing does."""
    lengths = {n for n, _ in ends}
    if len(ends) < 2 or len(lengths) > 1 or min(lengths) < LONG or not all(t for _, t in ends):
        return ""
    return f"all {len(ends)} episodes terminated after {min(lengths)} steps: a time limit must be truncated"


def _seed(a: TrialFacts, again: TrialFacts, b: TrialFacts) -> tuple[Level, str]:
    """Lanes 0 and 1."""
    if not b.prints:
        return "unseen", "not tested: no second lane was played"
    alike = differ(a.prints, b.prints) is None
    if a.generator == b.generator >= 0:
        which = f", of seed {a.generator}" if a.generator < 2**62 else ""
        return "failed", f"lanes 0 and 1 got different seeds but draw from the same generator{which}"
    if a.generator < 0 and alike:
        return "warning", "lanes 0 and 1 got different seeds but play the same: right if nothing in it is random"
    if a.generator < 0:
        return "ok", "two lanes play different episodes"
    return "ok", "two lanes, two generators" + ("; they play the same: nothing in it is random" if alike else "")


def _determinism(first: TrialFacts, again: TrialFacts, other: TrialFacts) -> tuple[Level, str]:
    """Two trials of lane 0."""
    if not again.prints:
        return "unseen", "not tested: there was no second trial"
    at = differ(first.prints, again.prints)
    if at is not None:
        text = f"two trials with the same seed and actions differ from row {at} on"
        return "warning", f"{text}; the second had sets in another order (PYTHONHASHSEED)"
    return "ok", f"the same {min(len(first.prints), len(again.prints)):,} rows twice"


def differ(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first row in which two trials differ, as far as both went."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def _time(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.1f} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


STEPS, SECONDS = 1000, 10.0  # of one trial, without --steps
BESIDE = 200, 5.0  # steps and seconds beside another lane, at most
LANES = 2  # of each process of the pool that is measured


@dataclass(frozen=True)
class CheckReport:
    environment: str
    findings: list[Finding]
    card: dict[str, str]

    @property
    def status(self) -> int:
        return status(self.findings)


def check_env(
    env: str | Factory,
    *,
    options: Mapping[str, object] | None = None,
    wrappers: tuple[str, ...] = (),
    steps: int | None = None,
    step_timeout: float = 60.0,
    seed: int = 0,
    measure: float = 1.0,
) -> CheckReport:
    """Check `env`, as `--env` takes it; `options` and `wrappers` as for `Envs`. `measure`: seconds that the pool's pace
    is measured.

    Raises UserError: no such environment.
    """
    envs = Envs(env, 1, step_timeout=step_timeout, options=options or {}, wrappers=wrappers)
    again = other = TrialResult(facts=TrialFacts())  # not made
    shared = ""
    try:
        described = whole_matches(envs)  # one is built, in a process of its own
        checker = EnvChecker(described, seed, steps or STEPS, float("inf") if steps else SECONDS)
        first, several = checker.trial(0), described.spec.seats > 1
    except UserError as e:
        if (rule := rules.rule_of(str(e))) is None:
            raise
        first = TrialResult(broke={rule: rules.without_rule(str(e))}, facts=TrialFacts(), whole=False)
        several = RULES[rule].players
    if first.whole and first.facts.steps:
        again, other = checker.trial(0, reordered=True), checker.trial(1)
        shared = "" if first.broke else checker.shared(first.facts, again.facts)
    trials = first, again, other
    broke = other.broke | again.broke | first.broke | ({"copies": shared} if shared else {})
    findings = [finding(name, broke, trials, step_timeout) for name in RULES if several or not RULES[name].players]
    card = card_of(first, checker.own) if first.card else {}
    if first.facts.steps and not status(findings):
        card["one lane"] = f"{first.facts.steps / max(first.facts.step_sum, 1e-9):,.0f} steps/s"
        tried = checker.pool(measure)
        card |= tried.card
        findings = [failed(f.name, tried.broke[f.name]) if f.name in tried.broke else f for f in findings]
    return CheckReport(envs.title, findings, card)


def learners_of(spec: EnvSpec) -> str:
    """Which kinds of systems take its actions, and which do not."""
    values, deterministic = rules.values_flaw(spec.action), rules.deterministic_flaw(spec.action)
    kinds = {"policies (a2c, ppo, impala, …)": "", "values (dqn, apex, …)": values, "apex_dpg": deterministic}
    right = [kind for kind, flaw in kinds.items() if not flaw]
    return "; not ".join([", ".join(right), *(f"{kind}: {flaw}" for kind, flaw in kinds.items() if flaw)])


class EnvChecker:
    """Starts the trials of one environment, and watches them."""

    def __init__(self, envs: Envs, seed: int, steps: int, seconds: float):
        self.envs, self.seed, self.steps, self.seconds = envs, seed, steps, seconds
        # whether its pool is one of ours, whose lanes are no environments by themselves
        self.own = envs.title.startswith(tuple(POOLS)) or envs.spec.vector

    def job(self, lane: int) -> LaneJob:
        """What a trial of one lane is told."""
        maker = b"" if self.own else pickled_factory(self.envs)
        return LaneJob(maker, self.envs.title, self.envs.spec, self.seed, lane, self.envs.step_timeout)

    def trial(self, lane: int, reordered: bool = False) -> TrialResult:
        """One lane by itself; reordered: with sets in another order."""
        spec, own = self.envs.spec, (self.envs,) if self.own else ()
        play = run_trial
        tried = run_watched(play, self.job(lane), self.steps, self.seconds, *own, reordered=reordered)
        tried.card = {**spec.describe, "learnt by": learners_of(spec)}
        tried.card |= {"real actions": text} if (text := describe_scaling(spec.action, True)) else {}
        if flaw := rules.image_flaw(spec.obs):
            tried.broke["images"] = flaw
        elif (read := rules.flat_images(spec.obs)) and not rules.is_image(spec.obs):
            tried.odd["images"] = f"--network auto is an MLP, which reads {' and '.join(read)}"
        return tried

    def shared(self, first: TrialFacts, again: TrialFacts) -> str:
        """What is wrong where the first lane is played beside another one, as it was played alone; "": nothing."""
        if self.own or differ(first.prints, again.prints) is not None:
            return ""
        steps, seconds = min(self.steps, BESIDE[0]), min(self.seconds, BESIDE[1])
        tried = run_watched(run_beside, self.job(0), steps, seconds)
        at = differ(first.prints, tried.facts.prints)
        if at is None or "copies" in tried.broke:
            return tried.broke.get("copies", "")
        return f"from row {at} on it shows something else where another one is stepped beside it: they share state"

    def pool(self, seconds: float) -> TrialResult:
        """The pace of a pool, for the card, or what it broke."""
        workers = cores()
        lanes = self.envs.spec.width or LANES * workers * self.envs.spec.seats
        envs = replace(self.envs, lanes=lanes, workers=workers, max_restarts=0)
        if self.own:
            tried = run_watched(measure_pool, envs, seconds)
            tried.card = {f"pool of {lanes} lanes": f"{tried.facts:,.0f} steps/s"} if tried.whole else {}
            return tried
        try:
            with closing(envs.open(self.seed)) as pool:
                rate = steps_per_second(pool, seconds)
        except (EnvFailure, UserError) as e:
            head = str(e).split("\n")[0]
            text = f"in a pool of {lanes} lanes: {rules.without_rule(head)}"
            return TrialResult(broke={rules.rule_of(head) or "step": text})
        return TrialResult({f"pool of {workers} processes": f"{rate:,.0f} steps/s in {lanes} lanes"})

"""`polyplay check ENV`: an environment against every rule of `envs/rules`, in processes of its own.

Trials of one lane each with the same random actions (a lane, the same once more with sets in another order, another
lane, the first one beside another), then a pool of as many processes as there are cores.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from polyplay.core import user_modules
from polyplay.core.errors import EnvFailure, Finding, Level, UserError, status
from polyplay.core.machine import cores
from polyplay.core.shared_memory import SharedBlock
from polyplay.envs import check_trial, rules
from polyplay.envs.check_trial import TrialFacts, allow
from polyplay.envs.lane import START, LaneJob
from polyplay.envs.make import POOLS, whole_matches
from polyplay.envs.pool import Envs, EnvSpec, Factory, Pool
from polyplay.envs.process_pool import REORDERED, TRACE, EnvProcess, exit_text, pickled_factory, settle
from polyplay.envs.rules import RULES
from polyplay.envs.spaces import action_sampler, describe_scaling


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
    clock, trace = SharedBlock(8 * check_trial.CLOCK), SharedBlock(TRACE)
    times = clock.array(check_trial.CLOCK, np.float64)
    check_trial.allow(times, 0, 0, START)
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
    times = clock.array(check_trial.CLOCK, np.float64)
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
    stage = check_trial.STAGES[int(times[1])]
    step = f" {times[2]:.0f}" if stage == "step" else ""
    tried.broke[rule] = f"{stage}{step} {what}" + (f" ({' ← '.join(own[:3])})" if own else "")
    tried.facts, tried.whole = check_trial.TrialFacts(steps=int(times[2])), False


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
        play = check_trial.run_trial
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
        tried = run_watched(check_trial.run_beside, self.job(0), steps, seconds)
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

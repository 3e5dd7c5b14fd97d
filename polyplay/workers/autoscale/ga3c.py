"""How many workers of which role: rules that look for the best numbers while a run goes on. Pure: no clock, no thread.

A rule is a generator: it yields a `Trial`, what to run now and for how long to look, and is sent the `Reading` of that
look. Its random choices are its seed's. `scheduling` puts trials into effect and takes the readings.

Here are the two rules of GA3C (Babaeizadeh et al. 2017), which maximise trainings per second, TPS; ours is `climbing`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

Config = dict[str, int]  # dial → number
Bounds = Mapping[str, tuple[int, int]]  # dial → the least and the greatest number


@dataclass(frozen=True)
class RateReading:
    """What was counted during one look."""

    seconds: float
    rows: float  # trained, per second
    updates: float  # trainings per second
    lag: float = 0.0  # mean policy lag of the rows trained, in updates
    predictions: float = 0.0  # per second
    queue: float = 0.0  # full slots that wait for a learner, mean


@dataclass(frozen=True)
class Decision:
    """What became of one trial. `before`, `after`: the rule's objective in the old configuration and in the new one."""

    old: Config
    new: Config
    before: float
    after: float
    kept: bool
    why: str


@dataclass(frozen=True)
class ConfigTrial:
    """Run `config`; once it stands let it settle for `settle` seconds, then count for `measure` seconds."""

    config: Config
    settle: float
    measure: float
    decided: Decision | None = None  # since the last trial


Steps = Generator[ConfigTrial, RateReading, None]
Rule = Callable[[Config, Bounds, int], Steps]


def within_bounds(config: Config, bounds: Bounds) -> Config:
    """`config` with every number within its bounds."""
    return {name: max(bounds[name][0], min(bounds[name][1], n)) for name, n in config.items()}


def annealing(
    start: Config,
    bounds: Bounds,
    seed: int = 0,
    *,
    interval: float = 60.0,
    temperature: float = 0.02,
    cooling: float = 0.95,
) -> Steps:
    """GA3C's paper, §4.3: every minute one number, at random, changes by one; kept if TPS rose.

    One that fell is kept with probability exp((TPS'/TPS − 1) / t), t = temperature · cooling^k at trial k: the paper
    calls it an annealing process and gives no temperature, so both are ours. TPS is the one measured when the present
    configuration was tried.
    """
    rng = random.Random(seed)
    here, decided = within_bounds(start, bounds), None
    before = (yield ConfigTrial(here, 0.0, interval)).updates
    while any(low < high for low, high in bounds.values()):
        name = rng.choice(sorted(n for n, (low, high) in bounds.items() if low < high))
        there = within_bounds({**here, name: here[name] + rng.choice((-1, 1))}, bounds)
        if there == here:
            continue
        after = (yield ConfigTrial(there, 0.0, interval, decided)).updates
        kept = after > before or rng.random() < _chance(after, before, temperature)
        why = "rose" if after > before else "annealing" if kept else "fell"
        decided = Decision(here, there, before, after, kept, why)
        temperature *= cooling
        if kept:
            here, before = there, after
    while True:
        yield ConfigTrial(here, 0.0, interval)


def _chance(after: float, before: float, temperature: float) -> float:
    return math.exp((after / before - 1.0) / temperature) if before > 0.0 and temperature > 0.0 else 0.0


def released_rule(
    start: Config, bounds: Bounds, seed: int = 0, *, first: float = 10.0, interval: float = 20.0
) -> Steps:
    """GA3C's ThreadDynamicAdjustment: every 20 s all numbers at once change by −1, 0 or +1, drawn again if none did.

    The new numbers are taken back if fewer trainings were counted than in the interval before. Reproduced are its
    defects: (a) the interval before counts even if its configuration was rejected; (b) the first comparison is 20 s
    with 10 s, so the first move nearly always stays; (c) after a rejection the old configuration is neither run nor
    measured before the next move. Refused are (d) to (f), which are no part of the rule: its thread stood still
    until a leaving agent's episode was over, waited for predictors and trainers that waited themselves, and hung
    when the run ended. The release knows no greatest number; here `bounds` has one.
    """
    rng = random.Random(seed)
    here, decided = within_bounds(start, bounds), None
    look = yield ConfigTrial(here, 0.0, first)
    before = look.updates * look.seconds
    while any(low < high for low, high in bounds.values()):
        there = within_bounds({name: n + rng.choice((-1, 0, 1)) for name, n in here.items()}, bounds)
        if there == here:
            continue
        look = yield ConfigTrial(there, 0.0, interval, decided)
        after = look.updates * look.seconds
        kept = after >= before
        decided = Decision(here, there, before, after, kept, "not fewer" if kept else "fewer")
        here, before = (there if kept else here), after
    while True:
        yield ConfigTrial(here, 0.0, interval)

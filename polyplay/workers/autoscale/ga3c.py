"""How many workers of which role: the rule of GA3C (Babaeizadeh et al. 2017, §4.3). Pure: no clock, no thread.

It is a generator. It yields a `ConfigTrial`, numbers to run and for how long to count, and is sent the trainings per
second of that time. Its random choices follow from its seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

Config = dict[str, int]  # dial → number
Bounds = Mapping[str, tuple[int, int]]  # dial → the least and the greatest number


@dataclass(frozen=True)
class Decision:
    """The result of one trial. `before`, `after`: trainings per second of the old configuration and of the new one."""

    old: Config
    new: Config
    before: float
    after: float
    kept: bool
    why: str


@dataclass(frozen=True)
class ConfigTrial:
    """Run `config`; once it stands count for `measure` seconds."""

    config: Config
    measure: float
    decided: Decision | None = None  # since the last trial


Steps = Generator[ConfigTrial, float, None]
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
    """Every minute one number, at random, changes by one; kept if the trainings per second rose.

    A rate that fell is kept with probability exp((TPS'/TPS − 1) / t), t = temperature · cooling^k at trial k: the paper
    calls it an annealing process and gives no temperature, so both are ours. TPS is the one measured when the present
    configuration was tried.
    """
    rng = random.Random(seed)
    here, decided = within_bounds(start, bounds), None
    before = yield ConfigTrial(here, interval)
    while any(low < high for low, high in bounds.values()):
        name = rng.choice(sorted(n for n, (low, high) in bounds.items() if low < high))
        there = within_bounds({**here, name: here[name] + rng.choice((-1, 1))}, bounds)
        if there == here:
            continue
        after = yield ConfigTrial(there, interval, decided)
        kept = after > before or rng.random() < _chance(after, before, temperature)
        why = "rose" if after > before else "annealing" if kept else "fell"
        decided = Decision(here, there, before, after, kept, why)
        temperature *= cooling
        if kept:
            here, before = there, after
    while True:
        yield ConfigTrial(here, interval)


def _chance(after: float, before: float, temperature: float) -> float:
    return math.exp((after / before - 1.0) / temperature) if before > 0.0 and temperature > 0.0 else 0.0

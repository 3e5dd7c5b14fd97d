"""GA3C's scheduler: a worker that tunes numbers of workers and lanes (parallel environments) by simulated annealing.

    dials ─► new numbers ─► set ─► arrived? ─► count ─► trainings/s ─► keep or revert       one decision per trial

A dial is a number that the scheduler adjusts. A new number takes effect late, because a dismissed worker first finishes
its work. Therefore, a trial begins when all dials have their new numbers, or after `arrive` seconds. The scheduler
sends each decision to the main process, as one line of JSON. This module imports no torch.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

from polyplay.core.worker import Adjustable, WorkerContext


def schedule(
    ctx: WorkerContext,
    *,
    dials: Sequence[Adjustable],
    interval: float = 60.0,
    temperature: float = 0.02,
    cooling: float = 0.95,
    arrive: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Search for the best numbers of the dials, once training has begun (Babaeizadeh et al. 2017, §4.3).

    Each trial changes the number of one random dial by 1, and measures the trainings (updates) per second. If this rate
    rises, the dial keeps the new number. If it falls, the dial keeps the new number with probability exp((new rate /
    old rate − 1) / t), where t = temperature · cooling^k in trial k. The paper gives no temperature and no cooling
    rate, so these defaults are Polyplay's.
    `interval`: seconds of a measurement.
    `arrive`: most seconds until all dials have their new numbers.
    """
    while not _trainings(ctx):
        yield from _wait(ctx, clock() + 0.1, clock)
    rng, by_name = random.Random(ctx.seed), {d.name: d for d in dials}
    free = sorted(d.name for d in dials if d.low < d.high)
    here = {d.name: d.get() for d in dials}
    before = yield from _measure(ctx, interval, clock)
    while free:
        dial = by_name[rng.choice(free)]
        there = {**here, dial.name: min(max(here[dial.name] + rng.choice((-1, 1)), dial.low), dial.high)}
        if there == here:
            continue
        late = yield from _turn(ctx, dials, there, clock() + arrive, clock)
        after = yield from _measure(ctx, interval, clock)
        kept = after > before or rng.random() < _chance(after, before, temperature)
        why = "rose" if after > before else "annealing" if kept else "fell"
        found = {"from": here, "to": there, "before": round(before, 3), "after": round(after, 3)}
        ctx.log("decision", json.dumps({**found, "kept": kept, "why": why, "late": late}))
        temperature *= cooling
        if kept:
            here, before = there, after


def _chance(after: float, before: float, temperature: float) -> float:
    return math.exp((after / before - 1.0) / temperature) if before > 0.0 and temperature > 0.0 else 0.0


def _trainings(ctx: WorkerContext) -> float:
    return float(ctx.all_counters.column("updates").max())  # each learner counts the updates of all learners


def _measure(ctx: WorkerContext, seconds: float, clock: Callable[[], float]) -> Generator[None, None, float]:
    """Return the trainings (updates) per second, measured for `seconds` seconds."""
    before, began = _trainings(ctx), clock()
    yield from _wait(ctx, began + seconds, clock)
    return (_trainings(ctx) - before) / max(clock() - began, 1e-9)


def _turn(
    ctx: WorkerContext, dials: Sequence[Adjustable], config: Mapping[str, int], until: float, clock: Callable[[], float]
) -> Generator[None, None, list[str]]:
    """Set the dials to the numbers in `config`, and wait until they have these numbers, or until time `until`. Return
    the names of dials that still have other numbers.
    """
    for dial in dials:
        dial.set(config[dial.name])
    while late := sorted(d.name for d in dials if d.get() != config[d.name]):
        if clock() >= until:
            return late
        yield from _wait(ctx, min(until, clock() + 0.02), clock)
    return []


def _wait(ctx: WorkerContext, until: float, clock: Callable[[], float]) -> Iterator[None]:
    """Yield until the clock reaches `until`, and at least once."""
    while True:
        left = until - clock()
        if left > 0.0 and ctx.patience > 0.0:
            time.sleep(min(ctx.patience, left))
        yield
        if clock() >= until:
            return

"""GA3C's scheduler: a worker that tunes numbers of workers and lanes (parallel environments) by simulated annealing.

    dials ─► other numbers ─► set ─► arrived? ─► count ─► trainings/s ─► keep or revert       one decision per trial

A dial is an adjustable number. To set a dial is only a request, because workers leave when they are ready. If a dial
does not reach its new number, the trial begins after `arrive` seconds. Every decision is sent to the main process, as
one line of JSON. This module imports no torch.
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
    """Search for the best numbers within the ranges of the dials, once training has begun (Babaeizadeh et al. 2017,
    §4.3).

    Each trial changes one number, drawn at random, by 1. If the trainings (updates) per second rise, the number stays.
    If they fall from TPS to TPS', the number stays with probability exp((TPS'/TPS − 1) / t), where t = temperature ·
    cooling^k in trial k. TPS was measured when the present numbers were tried. The paper names annealing, but neither a
    `temperature` nor a `cooling`: our defaults are not from the paper.
    interval: seconds of a measurement.
    arrive: most seconds until the dials reach their numbers.
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
    """Return the run's number of updates so far. Every learner counts all updates of the run."""
    return float(ctx.all_counters.column("updates").max())


def _measure(ctx: WorkerContext, seconds: float, clock: Callable[[], float]) -> Generator[None, None, float]:
    """Return the trainings (updates) per second, measured for `seconds` seconds."""
    before, began = _trainings(ctx), clock()
    yield from _wait(ctx, began + seconds, clock)
    return (_trainings(ctx) - before) / max(clock() - began, 1e-9)


def _turn(
    ctx: WorkerContext, dials: Sequence[Adjustable], config: Mapping[str, int], until: float, clock: Callable[[], float]
) -> Generator[None, None, list[str]]:
    """Set the dials to the numbers in `config`. Return the names of the dials that are late at time `until`."""
    for dial in dials:
        dial.set(config[dial.name])
    while late := sorted(d.name for d in dials if d.get() != config[d.name]):
        if clock() >= until:
            return late
        yield from _wait(ctx, min(until, clock() + 0.02), clock)
    return []


def _wait(ctx: WorkerContext, until: float, clock: Callable[[], float]) -> Iterator[None]:
    """End at least one turn by a `yield`, and further turns until the clock reaches `until`."""
    while True:
        left = until - clock()
        if left > 0.0 and ctx.patience > 0.0:
            time.sleep(min(ctx.patience, left))
        yield
        if clock() >= until:
            return

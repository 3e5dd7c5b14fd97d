"""GA3C's scheduler: a worker that changes and measures numbers of workers of any role, by a rule of annealing.

    dials ─► other numbers ─► set ─► arrived? ─► count ─► trainings/s ─► keep or revert       one decision per trial

Setting a dial is only a request: workers leave when they are ready. A dial that never reaches its number delays a trial
by `arrive` seconds. Every decision goes to the main process, as one line of JSON. Imports no torch.
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
    """Search for the best numbers within the dials' ranges, once training has started (Babaeizadeh et al. 2017, §4.3).
    Every `interval` seconds one number, drawn at random, changes by 1, and stays if the trainings per second rose.

    A change that lowers the rate is kept with probability exp((TPS'/TPS − 1) / t), t = temperature · cooling^k at trial
    k. The paper names an annealing process without these two numbers, so they are ours. TPS was measured when the
    present numbers were tried. arrive: most seconds for dials to reach their numbers.
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
    """Return the updates of the run so far, which every learner counts."""
    return float(ctx.all_counters.column("updates").max())


def _measure(ctx: WorkerContext, seconds: float, clock: Callable[[], float]) -> Generator[None, None, float]:
    """Measure trainings per second."""
    before, began = _trainings(ctx), clock()
    yield from _wait(ctx, began + seconds, clock)
    return (_trainings(ctx) - before) / max(clock() - began, 1e-9)


def _turn(
    ctx: WorkerContext, dials: Sequence[Adjustable], config: Mapping[str, int], until: float, clock: Callable[[], float]
) -> Generator[None, None, list[str]]:
    """Request these numbers; return the dials that had not reached theirs when time was up."""
    for dial in dials:
        dial.set(config[dial.name])
    while late := sorted(d.name for d in dials if d.get() != config[d.name]):
        if clock() >= until:
            return late
        yield from _wait(ctx, min(until, clock() + 0.02), clock)
    return []


def _wait(ctx: WorkerContext, until: float, clock: Callable[[], float]) -> Iterator[None]:
    """Take at least one turn, and more until the clock reaches `until`."""
    while True:
        left = until - clock()
        if left > 0.0 and ctx.patience > 0.0:
            time.sleep(min(ctx.patience, left))
        yield
        if clock() >= until:
            return

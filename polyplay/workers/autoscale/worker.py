"""The scheduler of a run: a worker that turns dials by a rule and reads the meter. For any role and any number.

    dials ─► rule: a Trial ─► set ─► arrived? ─► settle ─► count ─► Reading ─► rule        one decision per trial

Setting a dial only asks: a worker that has to leave does so in its own time, and a dial that never arrives holds the
rule up for `arrive` seconds, once. Every decision goes to the main process, as one line of JSON. Imports no torch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from polyplay.common.context import WorkerContext
from polyplay.common.control import Adjustable
from polyplay.common.counters import Counters
from polyplay.workers.autoscale.climb import climb
from polyplay.workers.autoscale.ga3c import ConfigTrial, Decision, RateReading, Rule, annealing, released_rule

RULES: dict[str, Rule] = {"climb": climb, "annealing": annealing, "released": released_rule}


def rule(name: str, lag: float) -> Rule:
    """The rule of that name; `climb` lets the mean lag grow to `lag` updates."""
    return partial(climb, lag=float(lag)) if name == "climb" else RULES[name]


class Totals(NamedTuple):
    """What the run has counted so far; only differences are used."""

    rows: float  # trained
    updates: float
    predictions: float
    lag_sum: float  # over the rows whose lag was counted,
    lag_count: float  # and how many these were
    depth_sum: float  # queue depths, and how many times they were looked at
    depth_count: float


def run_totals(counters: Counters) -> Totals:
    """All workers' counts: a learner counts the lag of every row that it learns from, an actor every agent step. Every
    learner knows of all updates.
    """
    columns = ("lag_count", "steps", "lag_sum", "lag_count", "depth_sum", "depth_count")
    rows, steps, *rest = (float(counters.column(name).sum()) for name in columns)
    return Totals(rows, float(counters.column("updates").max()), steps, *rest)


def reading_between(old: Totals, new: Totals, seconds: float) -> RateReading:
    """What was counted from `old` to `new`, `seconds` later."""
    more = Totals(*(b - a for a, b in zip(old, new, strict=True)))
    lag = more.lag_sum / more.lag_count if more.lag_count > 0 else 0.0
    queue = more.depth_sum / more.depth_count if more.depth_count > 0 else 0.0
    rows, updates, predictions = (n / seconds for n in (more.rows, more.updates, more.predictions))
    return RateReading(seconds, rows, updates, lag, predictions, queue)


def schedule(
    ctx: WorkerContext,
    *,
    dials: Sequence[Adjustable],
    rule: Rule = climb,
    arrive: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """A worker that seeks the best numbers with `rule`, from those the dials have, as soon as something is trained.

    `arrive`: seconds that dials get until their numbers are there.
    """
    while not run_totals(ctx.all_counters).updates:
        yield from _wait(ctx, clock() + 0.1, clock)
    bounds = {d.name: (d.low, d.high) for d in dials}
    steps = rule({d.name: d.get() for d in dials}, bounds, ctx.seed)
    trial, asked, late = next(steps), {d.name: d.get() for d in dials}, set[str]()
    while True:
        if trial.decided is not None:
            ctx.say("decision", json.dumps(decision_row(trial.decided, sorted(late))))
            late.clear()
        if trial.config != asked:
            asked = dict(trial.config)
            late |= yield from _turn(ctx, dials, trial, clock() + arrive, clock)
        yield from _wait(ctx, clock() + trial.settle, clock)
        old, began = run_totals(ctx.all_counters), clock()
        yield from _wait(ctx, began + trial.measure, clock)
        trial = steps.send(reading_between(old, run_totals(ctx.all_counters), max(clock() - began, 1e-9)))


def _turn(
    ctx: WorkerContext, dials: Sequence[Adjustable], trial: ConfigTrial, until: float, clock: Callable[[], float]
) -> Generator[None, None, set[str]]:
    """Ask for the trial's numbers; the dials that had not arrived when time was up."""
    for dial in dials:
        dial.set(trial.config[dial.name])
    while late := {d.name for d in dials if d.get() != trial.config[d.name]}:
        if clock() >= until:
            return late
        yield from _wait(ctx, min(until, clock() + 0.02), clock)
    return set()


def _wait(ctx: WorkerContext, until: float, clock: Callable[[], float]) -> Iterator[None]:
    """Turns of a worker until then, one at least."""
    while True:
        left = until - clock()
        if left > 0.0 and ctx.patience > 0.0:
            time.sleep(min(ctx.patience, left))
        yield
        if clock() >= until:
            return


def decision_row(decided: Decision, late: Sequence[str] = ()) -> dict:
    """A decision as a line of decisions.jsonl has it, less the time. `late`: dials whose number had not arrived."""
    return {
        "from": decided.old,
        "to": decided.new,
        "before": round(decided.before, 3),
        "after": round(decided.after, 3),
        "kept": decided.kept,
        "why": decided.why,
        "late": list(late),
    }


def describe_decision(decision: dict) -> str:
    """The same in a line for people."""
    old, new = decision["from"], decision["to"]
    moves = [f"{k} {old[k]} → {new[k]}" for k in new if new[k] != old[k]] or ["the same numbers"]
    late = f"; {', '.join(decision['late'])} had not arrived" if decision["late"] else ""
    what = "kept" if decision["kept"] else "taken back"
    before, after = decision["before"], decision["after"]
    return f"schedule: {', '.join(moves)}: {before:.4g} → {after:.4g}, {what} ({decision['why']}){late}"

"""The scheduler of a run: a worker that turns dials by a rule and counts. For any role and any number.

    dials ─► rule: a trial ─► set ─► arrived? ─► count ─► trainings/s ─► rule        one decision per trial

Setting a dial only asks: a worker that has to leave does so in its own time, and a dial that never arrives holds the
rule up for `arrive` seconds, once. Every decision goes to the main process, as one line of JSON. Imports no torch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence

from polyplay.common.context import WorkerContext
from polyplay.common.control import Adjustable
from polyplay.workers.autoscale.ga3c import ConfigTrial, Decision, Rule, annealing


def schedule(
    ctx: WorkerContext,
    *,
    dials: Sequence[Adjustable],
    rule: Rule = annealing,
    arrive: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """A worker that seeks the best numbers with `rule`, from those the dials have, as soon as something is trained.

    `arrive`: seconds that dials get until their numbers are there.
    """
    while not _trainings(ctx):
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
        before, began = _trainings(ctx), clock()
        yield from _wait(ctx, began + trial.measure, clock)
        trial = steps.send((_trainings(ctx) - before) / max(clock() - began, 1e-9))


def _trainings(ctx: WorkerContext) -> float:
    """Updates of the run so far: every learner knows of all."""
    return float(ctx.all_counters.column("updates").max())


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

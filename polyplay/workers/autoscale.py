"""GA3C's scheduler: a worker that turns dials by a rule and counts. For any role and any number.

    dials ─► rule: a trial ─► set ─► arrived? ─► count ─► trainings/s ─► rule        one decision per trial

Setting a dial only asks: a worker that has to leave does so in its own time, and a dial that never arrives holds the
rule up for `arrive` seconds, once. Every decision goes to the main process, as one line of JSON. Imports no torch.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from polyplay.core.worker import Adjustable, WorkerContext

# A rule (Babaeizadeh et al. 2017, §4.3) yields trials and is sent the trainings per second of each. It has no clock.


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
            ctx.log("decision", json.dumps(decision_row(trial.decided, sorted(late))))
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

"""Does an asynchronous run again in one thread: an actor makes its next rollout when the log says that it was learnt.

A rollout depends on nothing but its actor's past and the weights that it was made with. So the log of deliveries is
enough: actors are given the versions that they had, learners the batches that they had, and every loss comes out the
same to the bit. Environments are stepped in this thread too; under a debugger every line of a run can be stopped at.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyplay.acting.worker import act
from polyplay.buffers import delivery_log
from polyplay.buffers.delivery_log import DeliveredRollout, DeliveryLog
from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.common import checkpoint, files
from polyplay.common.context import WorkerContext
from polyplay.common.control import RunControl
from polyplay.common.counters import Counters
from polyplay.common.errors import Diverged, UserError
from polyplay.learning.worker import learn
from polyplay.runs import run
from polyplay.weights.flat import FlatParams
from polyplay.workers.crew import ROWS, Role
from polyplay.workers.process import tune


class WeightHistory:
    """In the place of Params: the weights of every version that is still to act."""

    def __init__(self, trails: list[DeliveryLog], each: int = 1):
        self.each = each  # updates from a batch
        oldest = [min(r.version for t in trails for r in t.batches[u]) for u in range(len(trails[0].batches))]
        self.oldest = np.minimum.accumulate(oldest[::-1])[::-1]  # [batches] that acts for this one or a later one
        self.kept: dict[int, np.ndarray] = {}
        self.version = -1

    def publish(self, vector: FlatParams, version: int, round: int) -> None:  # noqa: A002 - as Params has it
        self.kept[version], self.version = vector.read().copy(), version
        at = version // self.each
        for old in [v for v in self.kept if at < len(self.oldest) and v < self.oldest[at]]:
            del self.kept[old]


class PastParams:
    """The weights of one actor's next rollout, in the place of Params."""

    def __init__(self, history: WeightHistory):
        self.history, self.due = history, 0

    def wait(self, atleast: int, reader: int, timeout: float) -> bool:
        return True

    def pull(self, vector: FlatParams, have: int = -1) -> int:
        if have != self.due:
            vector.write(self.history.kept[self.due])
        return self.due


class ActorReplay:
    """One actor, done again a rollout at a time."""

    def __init__(self, role: Role, history: WeightHistory, ctx: WorkerContext):
        self.role, self.ctx, self.past = role, ctx, PastParams(history)
        self.queue: RolloutQueue = role.out
        self.turns: Iterator[None] | None = None

    def make(self, rollout: DeliveredRollout, meanwhile: Callable[[], None]) -> None:
        """The next rollout. `meanwhile`: lets learners give back the slots of their last batches."""
        if self.turns is None or self.ctx.incarnation != rollout.by:  # it was replaced there, or began anew
            self.close()
            self.ctx = replace(self.ctx, incarnation=rollout.by)
            self.turns = self.role.work(
                self.ctx, **{**self.role.arguments(self.ctx.index), "params": self.past, "lag": None}
            )
        self.past.due = rollout.version
        before = self.queue.made(rollout.actor)
        while self.queue.made(rollout.actor) == before:
            next(self.turns)
            meanwhile()

    def close(self) -> None:
        if self.turns is not None:
            self.turns.close()  # type: ignore[attr-defined]


def reproduce(directory: Path, updates: int | None = None) -> dict[str, Any]:
    """Do the first `updates` of a run again, in whole batches; none: all. Raises UserError, Diverged and its own."""
    directory = Path(directory)
    page, settings, options, kept = run.load_run(directory)
    crew = run.crew_of(replace(options, serial=True, on="process"))
    wired = page.build(settings, crew)
    roles = {role.work: role for role in crew.roles}
    if any(role.apart for role in crew.roles):
        raise UserError(
            f"RUN: {kept['system']}'s workers change the weights without a lock or in any order, and nothing tells "
            "what met: it cannot be done again; a run with --serial repeats itself exactly with the same seed"
        )
    if act not in roles or learn not in roles:
        raise UserError(f"RUN: {kept['system']} is synchronous: training with the same seed is its replay")
    learning = roles[learn]
    assert learning.spec is not None
    source, queue = learning.source, learning.source.edge
    passes = learning.spec.passes
    each = 1 if passes is None else passes.updates
    trails = [delivery_log.read_log(directory, c, queue.producers, source.n, each) for c in range(learning.n)]
    count = min([len(t.batches) for t in trails] + ([] if updates is None else [-(-updates // each)]))
    if not count:
        raise UserError(f"RUN: no update of {directory} was logged: there is nothing to do again")
    trails = [replace(t, batches=t.batches[:count]) for t in trails]
    queue.patience = 0.0
    source.order = lambda c, turn: [r.actor for r in _at(trails[c].batches, turn // source.n)]
    all_counters = Counters(ROWS, wired.metrics)
    with tempfile.TemporaryDirectory() as scratch, _threads(trails[0].threads):
        ctx = WorkerContext(
            "", 0, 1, 0, options.seed, all_counters, RunControl(), trace=True, precision=options.precision, patience=0.0
        )
        replica = replace(ctx, role="learn", n=learning.n, directory=Path(scratch))
        history = WeightHistory(trails, each)
        makers = [
            ActorReplay(roles[act], history, replace(ctx, role="act", index=p, row=p)) for p in range(queue.producers)
        ]
        kw = {**learning.arguments(0), "params": history}
        learners = [learn(replace(replica, index=c, row=queue.producers + c), **kw) for c in range(learning.n)]
        with contextlib.ExitStack() as stack:
            for thing in [*makers, *learners]:
                stack.callback(thing.close)  # type: ignore[attr-defined]
            return _go(makers, learners, history, trails, ReproductionCheck(directory, Path(scratch), wired))


@contextlib.contextmanager
def _threads(n: int) -> Iterator[None]:
    """As many compute threads as each worker had: with another number sums may have other last bits."""
    before = torch.get_num_threads()
    tune(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _at(batches: list[list[DeliveredRollout]], update: int) -> list[DeliveredRollout]:
    return batches[update] if update < len(batches) else []


def _go(
    makers: list[ActorReplay],
    learners: list,
    history: WeightHistory,
    trails: list[DeliveryLog],
    check: ReproductionCheck,
) -> dict[str, Any]:
    def turn() -> None:
        for learner in learners:
            if next(learner, learner) is learner:
                raise UserError(f"RUN: it went on after its end, at update {history.version}: not replayable")

    turn()
    check.weights(0, history)
    for batch in range(len(trails[0].batches)):
        for one in trails:
            for rollout in one.batches[batch]:
                makers[rollout.actor].make(rollout, turn)
        last = (batch + 1) * history.each
        while history.version < last:
            turn()
        for update in range(last - history.each, last):
            check.loss(update + 1)
        check.weights(last, history)
    return {
        "updates": len(trails[0].batches) * history.each,
        "losses_equal": check.losses,
        "checkpoints_equal": check.checkpoints,
    }


class ReproductionCheck:
    """Compares with what the run wrote: the losses of --trace, the weights of its checkpoints."""

    def __init__(self, directory: Path, scratch: Path, wired: Any):
        self.was = {row["update"]: row for row in files.read_lines(directory / "updates.jsonl")}
        self.scratch, self.wired = scratch, wired
        self.saved = {int(p.name): p for p in checkpoint.everything(directory) if checkpoint.flaw(p) is None}
        self.now: Any = None
        self.losses = self.checkpoints = 0

    def loss(self, update: int) -> None:
        self.now = self.now or open(self.scratch / "updates.jsonl")  # noqa: SIM115 - read on as it grows
        now, was = json.loads(self.now.readline()), self.was.get(update)
        if was is None:
            return
        for key in ("loss", "grad_norm", "lag_mean", "lag_max"):
            if now[key] != was[key]:
                raise Diverged(f"update {update}: {key} was {was[key]} in the run and is {now[key]} in its replay")
        self.losses += 1

    def weights(self, update: int, history: WeightHistory) -> None:
        if update not in self.saved:
            return
        net = self.wired.policy()
        checkpoint.load_into(net, checkpoint.open_checkpoint(self.saved[update]).arrays("agents/0/policy"))
        if not np.array_equal(FlatParams(net).read(), history.kept[update]):
            raise Diverged(f"update {update}: the weights are not those of the run's checkpoint")
        self.checkpoints += 1

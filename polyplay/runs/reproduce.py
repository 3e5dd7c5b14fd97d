"""Repeat an asynchronous run in one thread. A log lists the rollouts that each update used, in the order of updates.
Actors make their rollouts again in the order of this log.

Each loss of the repetition is bitwise the same as in the run. For each rollout, the actor gets the version of the
weights that it used in the run, and for each update, the learners get the same batch. The environments step in the same
thread, so a debugger can stop at any line of the run.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from polyplay.acting.worker import act
from polyplay.buffers import delivery_log
from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core import checkpoint
from polyplay.core.errors import Diverged, UserError
from polyplay.core.files import read_lines
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.learning.loop import Rollouts, learn
from polyplay.runs import load
from polyplay.systems import System
from polyplay.weights.params import FlatParams
from polyplay.workers.crew import Crew, compiles
from polyplay.workers.role import Role

Worker = Generator[None, None, None]
COMPARED = ("loss", "grad_norm", "lag_mean", "lag_max")


class WeightHistory:
    """Takes the place of Params. Keeps each version of the weights until no actor needs it."""

    def __init__(self, logs: list[delivery_log.DeliveryLog], updates_per_batch: int = 1):
        self.updates_per_batch = updates_per_batch
        oldest = [min(r.version for log in logs for r in log.batches[b]) for b in range(len(logs[0].batches))]
        self.oldest = np.minimum.accumulate(oldest[::-1])[
            ::-1
        ]  # [batches] oldest version that this batch and later ones need
        self.weights: dict[int, np.ndarray] = {}
        self.version = -1

    def publish(self, vector: FlatParams, version: int, round: int) -> None:  # noqa: A002 - name as in Params
        self.weights[version], self.version = vector.read().copy(), version
        batch = version // self.updates_per_batch
        for old in [v for v in self.weights if batch < len(self.oldest) and v < self.oldest[batch]]:
            del self.weights[old]


class ActorReplay:
    """Repeats an actor, rollout by rollout. `pull` gives the actor the weights that it used in the run."""

    def __init__(self, role: Role, history: WeightHistory, ctx: WorkerContext):
        self.role, self.ctx, self.history, self.due = role, ctx, history, 0
        self.queue: RolloutQueue = role.holds["out"]
        self.worker: Worker | None = None

    def wait(self, atleast: int, reader: int, timeout: float) -> bool:
        return True

    def pull(self, vector: FlatParams, have: int = -1) -> int:
        if have != self.due:
            vector.write(self.history.weights[self.due])
        return self.due

    def make(self, rollout: delivery_log.DeliveredRollout, meanwhile: Callable[[], None]) -> None:
        """Make the actor's next rollout. Call `meanwhile` after each step, so that learners can release memory."""
        if self.worker is None or self.ctx.incarnation != rollout.by:  # the run replaced or restarted the actor
            self.close()
            self.ctx = replace(self.ctx, incarnation=rollout.by)
            kw = {**self.role.holds, "params": self, "lag": -1}
            self.worker = cast(Worker, self.role.work(self.ctx, **kw))
        self.due = rollout.version
        before = self.queue.made(rollout.actor)
        while self.queue.made(rollout.actor) == before:
            next(self.worker)
            meanwhile()

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()


class ReproductionCheck:
    """Compares the repetition with the run: with its losses, which --trace wrote, and with its checkpoints."""

    def __init__(self, directory: Path, scratch: Path, wired: System, agent: int):
        self.losses = {row["update"]: row for row in read_lines(directory / "updates.jsonl", "update", *COMPARED)}
        whole = [path for path in checkpoint.everything(directory) if checkpoint.flaw(path) is None]
        self.saved = {checkpoint.update_of(path): path for path in whole}
        self.reproduced = read_lines(scratch / "updates.jsonl")  # gives more lines as the file grows
        self.wired, self.agent = wired, agent
        self.losses_equal = self.checkpoints_equal = 0

    def check_loss(self, update: int) -> None:
        now, was = next(self.reproduced), self.losses.get(update)
        if was is None:
            return
        for key in COMPARED:
            if now[key] != was[key]:
                text = f"{key} was {was[key]} in the run, but is {now[key]} in its reproduction"
                raise Diverged(f"update {update}: {text}")
        self.losses_equal += 1

    def check_weights(self, update: int, history: WeightHistory) -> None:
        if update not in self.saved:
            return
        net = self.wired.policy()
        saved = checkpoint.open_checkpoint(self.saved[update])
        checkpoint.load_into(net, saved.arrays(checkpoint.policy_name(self.agent)))
        if not np.array_equal(FlatParams(net).read(), history.weights[update]):
            raise Diverged(f"update {update}: the weights differ from the run's checkpoint")
        self.checkpoints_equal += 1


def reproduce(directory: Path, updates: int | None = None, trust: bool = False) -> dict[str, int]:
    """Repeat the first `updates` updates of a run, rounded up to whole batches. None means all updates. Return the
    numbers of updates, of losses equal to the run's losses, and of equal checkpoints. Raises Diverged if a loss or the
    weights differ. Raises UserError if the run cannot be repeated.
    """
    directory = Path(directory)
    page, settings, options, config = load.load_run(directory, trust, learns=True)
    crew = load.crew_of(replace(options, serial=True, on="process", hosts=None, place=None, ship=None))
    wired = page.build(settings, crew)
    acting, learning = _asynchronous_roles(crew, config["system"])
    assert learning.spec is not None
    assert isinstance(learning.source, Rollouts)
    agent, source, passes = learning.spec.agent, learning.source, learning.spec.passes
    queue, per_batch = source.queue, 1 if passes is None else passes.updates
    logs = _read_logs(directory, source, learning.n, per_batch, updates)
    queue.patience = 0.0
    source.order = lambda c, turn: [r.actor for batch in logs[c].batches[turn // source.n :][:1] for r in batch]
    history = WeightHistory(logs, per_batch)
    control = RunControl(trace=True, compile=compiles(options.compile, options.serial, options.trace))
    counters = Counters(queue.producers + learning.n, wired.metrics, len(wired.envs.spec.tasks))
    ctx = WorkerContext("", 0, 1, 0, options.seed, counters, control, precision=crew.precision, patience=0.0)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(load.compute_threads(logs[0].threads))  # the number of threads changes last bits
        actors = [
            ActorReplay(acting, history, replace(ctx, role="act", index=p, row=p)) for p in range(queue.producers)
        ]
        kw = {**learning.holds, "publish": history}
        places = [
            replace(ctx, role="learn", n=learning.n, directory=scratch, index=c, row=queue.producers + c)
            for c in range(learning.n)
        ]
        for place, log in zip(places, logs, strict=True):
            place.hooks.repeats = log.compiled
        learners = [cast(Worker, learn(place, **kw)) for place in places]
        for close in (*(a.close for a in actors), *(w.close for w in learners)):
            stack.callback(close)

        def turn() -> None:
            for learner in learners:
                if next(learner, learner) is learner:
                    raise UserError(f"RUN: it continued past its end, update {history.version}: not reproducible")

        turn()
        check = ReproductionCheck(directory, scratch, wired, agent)
        check.check_weights(0, history)
        for batch in range(len(logs[0].batches)):
            for rollout in [rollout for log in logs for rollout in log.batches[batch]]:
                actors[rollout.actor].make(rollout, turn)
            last = (batch + 1) * per_batch
            while history.version < last:
                turn()
            for update in range(last - per_batch, last):
                check.check_loss(update + 1)
            check.check_weights(last, history)
    return {"updates": last, "losses_equal": check.losses_equal, "checkpoints_equal": check.checkpoints_equal}


def _read_logs(
    directory: Path, source: Any, learners: int, per_batch: int, updates: int | None
) -> list[delivery_log.DeliveryLog]:
    """Return the learners' logs, cut after the last batch in all logs, or after the batch of update `updates`."""
    producers = source.queue.producers
    logs = [delivery_log.read_log(directory, c, producers, source.n, per_batch) for c in range(learners)]
    count = min([len(log.batches) for log in logs] + ([] if updates is None else [-(-updates // per_batch)]))
    if not count:
        raise UserError(f"RUN: no update of {directory} was logged: nothing to reproduce")
    return [replace(log, batches=log.batches[:count]) for log in logs]


def _asynchronous_roles(crew: Crew, system: str) -> tuple[Role, Role]:
    """Return the roles of actors and learners of a system that logs rollouts. Raises UserError for other systems."""
    acting, learning = ([role for role in crew.roles if role.work is work] for work in (act, learn))
    logged = len(acting) == len(learning) == 1 and isinstance(learning[0].source, Rollouts)
    if not logged or any(role.asynchronous for role in crew.roles):
        why = "keeps no log of rollouts from one role of actors to one of learners, as impala and appo do"
        raise UserError(f"RUN: {system} {why}; a run with --serial repeats exactly with the same seed")
    return acting[0], learning[0]

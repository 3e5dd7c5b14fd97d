"""Workers that all take turns in one thread."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyplay.common.control import RunControl
from polyplay.common.errors import Closed, EnvFailure, NotFinite, UserError, WorkerLost

if TYPE_CHECKING:
    from polyplay.workers.crew import WorkerHandle


def take_turns(workers: Sequence[WorkerHandle], control: RunControl) -> None:
    """A round: a turn of everyone, and a checkpoint if one is due. Raises what a worker raises that the crew knows,
    else WorkerLost.
    """
    for worker in workers:
        _turn(worker)
    _meet(workers)
    _save(workers, control)


def _turn(worker: WorkerHandle) -> None:
    if worker.done:
        return
    try:
        next(worker.runs)
        worker.ctx.turn()
    except StopIteration:
        worker.done = True
    except (UserError, EnvFailure, NotFinite, WorkerLost, Closed):
        raise
    except Exception:
        raise WorkerLost(error_text(worker, traceback.format_exc())) from None


def _meet(workers: Sequence[WorkerHandle]) -> None:
    """Learners that wait for each other go on while they can, which is until their queue is empty: an update of all
    ends in the round that it was begun in, and actors never see a half of it. Replicas act for themselves.
    """
    waiting, before = [w for w in workers if w.ctx.meeting and w.role.source], list[int]()
    while (now := [w.ctx.meeting for w in waiting]) != before:
        before = now
        for worker in waiting:
            if worker.ctx.meeting:
                _turn(worker)


def _save(workers: Sequence[WorkerHandle], control: RunControl) -> None:
    """Have all write their parts of a checkpoint, where workers do so between two rounds: nobody is in the middle of
    anything, and saving takes no turn. After the run's last one nobody has a turn.
    """
    learners = [w for w in workers if w.role.learner]
    numbers = [w.ctx.number() for w in learners if w.ctx.number is not None]
    ends = control.finishing or all(w.done for w in learners)
    if not numbers or any(w.ctx.meeting for w in workers) or not (ends or control.saves > control.made):
        return
    control.made = control.saves
    for worker in workers:
        if worker.ctx.write_part is not None:
            worker.ctx.write_part(max(numbers))
    for worker in learners:
        worker.done |= ends


def error_text(worker: WorkerHandle, text: str) -> str:
    """The first line says what it was, which a traceback's last one does."""
    return f"worker {worker.role.name} {worker.ctx.index} raised {text.rstrip().splitlines()[-1]}\n{text.rstrip()}"

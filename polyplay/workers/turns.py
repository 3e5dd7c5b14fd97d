"""Workers that all take turns in one thread."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyplay.common.errors import Closed, EnvFailure, NotFinite, UserError, WorkerLost

if TYPE_CHECKING:
    from polyplay.workers.crew import WorkerHandle


def take_turns(workers: Sequence[WorkerHandle]) -> None:
    """A round: a turn of everyone. Raises what a worker raises that the crew knows, else WorkerLost."""
    for worker in workers:
        _turn(worker)
    _meet(workers)


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


def error_text(worker: WorkerHandle, text: str) -> str:
    """The first line says what it was, which a traceback's last one does."""
    return f"worker {worker.role.name} {worker.ctx.index} raised {text.rstrip().splitlines()[-1]}\n{text.rstrip()}"

"""The marks by which a learner tells the main process which parts of checkpoints it has written: its counter `saved`.

A mark is 1 + the number of the checkpoint, plus a little for each time that it was saved before; 0.5 for the initial
weights; negative where the parts could not be written. The main process says which mark it took last.
"""

from __future__ import annotations

import math
import time

from polyplay.common.context import WorkerContext
from polyplay.common.control import RunControl

TAKE_TIMEOUT = 10.0  # seconds that the main process has to take the parts of a save


class SaveMarks:
    """The marks of one learner."""

    def __init__(self, ctx: WorkerContext):
        self.ctx = ctx

    def tell(self, number: int | None, failed: bool = False) -> None:
        """Say that the parts of checkpoint `number` are written; None: those of the initial weights."""
        last = abs(self.ctx.counters.get("saved"))
        mark = 0.5 if number is None else number + 1.0
        if number is not None and math.floor(last) == number + 1:
            mark = last + 1 / RunControl.REPEATS
        self.ctx.counters.set("saved", -mark if failed else mark)

    def wait(self, number: int) -> None:
        """Wait until the main process has taken the parts of an earlier save of `number`: both have one directory.
        Where all workers take turns, the main process takes none while this one writes, and the later save counts.
        """
        last, until = abs(self.ctx.counters.get("saved")), time.monotonic() + TAKE_TIMEOUT
        if self.ctx.serial or not last or max(math.floor(last) - 1, 0) != number:
            return
        while self.ctx.control.taken < last and time.monotonic() < until:
            self.ctx.turn()
            time.sleep(0.005)

"""A learner's part of checkpoints: when a checkpoint is due, what this part holds, and how a run resumes from it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from polyplay.core import checkpoint, tree
from polyplay.core.checkpoint import CheckpointPart
from polyplay.core.errors import NotFinite
from polyplay.core.files import Row, refusal_text
from polyplay.core.tree import Batch
from polyplay.core.worker import RunControl, WorkerContext
from polyplay.nets.device import to_host
from polyplay.weights import optimizers

if TYPE_CHECKING:
    from polyplay.learning.learner import Learner, LearnerSpec

# A mark in a learner's counter `saved` tells the main process which parts of a checkpoint the learner has written.
#
# A mark is the checkpoint's number + 1, plus 1/REPEATS for each earlier save of that number. A mark is 0.5 for the
# initial weights, and negative if the parts could not be written. `control.taken` is the last mark whose parts the main
# process took.


TAKE_TIMEOUT = 10.0  # most seconds to wait until the main process takes the parts of a save


WritePart = Callable[[CheckpointPart], None]  # writes more into a worker's part of a checkpoint


class LearnerCheckpoints:
    """Writes one learner's part of each checkpoint, and loads it when a run resumes."""

    def __init__(self, learner: Learner, ctx: WorkerContext, spec: LearnerSpec):
        self.learner, self.ctx = learner, ctx
        self.folder = f"agents/{spec.agent}"
        self.writes = ctx.index == 0 or not spec.update.asynchronous  # False: worker 0 writes for all
        self.last = -1  # number of the last saved update
        self.more: WritePart | None = lambda part: None  # writes more with every save; None: a failed run saves nothing
        # numbers of saves made and of saves requested, on which all replicas agree: a save is due if more were
        # requested than made. Replicas start at different times, but with the same numbers.
        self.made = self.agreed = ctx.control.saves if spec.update.asynchronous else 0

    def tell(self, number: int | None, failed: bool = False) -> None:
        """Tell the main process that the parts of checkpoint `number` were written, or with `failed`, that they could
        not be written. If `number` is None, the checkpoint holds the initial weights.
        """
        last = abs(self.ctx.counters.get("saved"))
        mark = 0.5 if number is None else number + 1.0
        if number is not None and math.floor(last) == number + 1:
            mark = last + 1 / RunControl.REPEATS
        self.ctx.counters.set("saved", -mark if failed else mark)

    def wait_taken(self, number: int) -> None:
        """Wait until the main process has taken the parts that an earlier save wrote for checkpoint `number`.
        Otherwise, the next save would overwrite them. Do not wait in a serial run, where the main process takes only
        the parts of the last save.
        """
        last, until = abs(self.ctx.counters.get("saved")), time.monotonic() + TAKE_TIMEOUT
        if self.ctx.serial or not last or max(math.floor(last) - 1, 0) != number:
            return
        while self.ctx.control.taken < last and time.monotonic() < until:
            self.ctx.turn()
            time.sleep(0.005)

    def writers_paused(self) -> AbstractContextManager[None]:
        """While this learner saves, pause the other workers that change the weights on a parameter server."""
        return self.learner.update.writers_paused() if self.writes else contextlib.nullcontext()

    def save(self, more: WritePart | None = None, at: int | None = None, number: int | None = None) -> None:
        """Write this learner's part of a checkpoint. The main process joins the parts of all workers.

        `more`: writes more data into this learner's part.
        `at`: number of the update after which the checkpoint is named, if other workers write parts too.
        `number`: the checkpoint's number, if several agents write parts, each at a different update.
        """
        learner = self.learner
        self.wait_taken(number if number is not None else at if at is not None else learner.update.refresh())
        with self.writers_paused():
            version = learner.update.refresh()
            learner.version, learner.learnt = version if at is None else at, learner.update.counts.learnt
            self.made, self.last = self.agreed, learner.version
            number = learner.version if number is None else number
            with self.ctx.counters.timed("wait"):
                self._attempt(number, number, more)

    def rescue(self) -> None:
        """Save the last update of a failed run, but no environments. Do nothing if an update is half made."""
        learner = self.learner
        version = learner.update.refresh()
        if self.more is None or not learner.update.whole or version in (self.last, learner.update.counts.begun):
            return
        with self.writers_paused():
            part = CheckpointPart(cast("Path", self.ctx.directory), version)
            learner.version, learner.learnt = version, learner.update.counts.learnt
            self._write(part)
            self.more(part)
            self.last = version
            self.tell(version)

    def _attempt(self, number: int, mark: int | None, more: WritePart | None = None) -> None:
        """Write the parts of checkpoint `number`, and report success or failure to the main process."""
        ctx = self.ctx
        if ctx.directory is None or not self.writes:
            return
        try:
            part = CheckpointPart(ctx.directory, number)
            if ctx.index == 0:
                self._write(part)
            for write in (self.more, more):
                if write is not None:
                    write(part)
            self.tell(mark)
        except OSError as e:
            self.tell(mark, failed=True)
            ctx.log("unsaved", f"checkpoint of update {number}: {refusal_text(e)}")

    def _write(self, part: CheckpointPart) -> None:
        learner = self.learner
        if not learner.update.vector.finite():
            raise NotFinite(
                f"update {learner.version}: weights are not finite, so they were not saved; lower --learning-rate"
            )
        optimizer = optimizers.optimizer_state(learner.update.optimizer)
        for name, state in {"policy": learner.policy.state_dict(), "optimizer": optimizer}.items():
            part.arrays(f"{self.folder}/{name}", {k: np.asarray(to_host(v)) for k, v in state.items()})
        counts: Row = {"version": learner.version, "learnt": learner.learnt, **learner.update.state()}
        for own in learner.parts:
            counts |= own.save(part)
        hyper = learner.spec.hyperparameters
        counts |= {"hyperparameters": hyper.all(), "configured": hyper.configured}
        part.json(f"{self.folder}/learner", {**counts, "scheduled": [schedule.name for schedule in hyper.schedules]})

    def load_or_begin(self) -> Row | None:
        """Load the checkpoint from which the run resumes, and return its counts. If the run does not resume, save the
        initial weights, so that it can be resumed from its start. Do nothing if the weights come from another worker.
        """
        if not self.learner.update.counts.fresh:
            return None
        if self.ctx.resume is not None:
            return self._load()
        if not self.ctx.incarnation % 1000:
            self._attempt(0, None)
        return None

    def _load(self) -> Row:
        learner, found = self.learner, checkpoint.open_checkpoint(self.ctx.resume)
        checkpoint.load_into(learner.policy, found.arrays(f"{self.folder}/policy"))
        statistics = found.arrays(f"{self.folder}/optimizer")  # empty before the first update
        if statistics:
            optimizers.load_state(learner.update.optimizer, {k: torch.as_tensor(v) for k, v in statistics.items()})
        saved = found.json(f"{self.folder}/learner")
        learner.version, learner.learnt = int(saved["version"]), float(saved["learnt"])
        values = {k: v for k, v in saved["hyperparameters"].items() if k not in saved.get("scheduled", ())}
        learner.spec.hyperparameters.restore(values, saved.get("configured"))
        return saved


def save_batch(learner: Learner, rows: Batch, loss: float, norm: float, metrics: Mapping[str, Tensor | float]) -> str:
    """Save the batch of an update whose loss or gradient is not finite. Return the text of the error."""
    where, ctx, agent = "nowhere (no run directory)", learner.ctx, learner.spec.agent
    if ctx.directory is not None:
        whose = f"agent-{agent}-" if agent else ""
        path = ctx.directory / f"not-finite-{whose}{learner.version}-{ctx.index}.safetensors"
        try:
            checkpoint.write_arrays(path, {k: to_host(v) for k, v in tree.leaves(rows)})
            where = str(path)
        except OSError as e:
            where = f"nowhere ({refusal_text(e)})"
    said = f"update {learner.version}: loss {loss}, gradient norm {norm}; the batch was saved to {where}. "
    alpha = float(metrics["alpha"]) if "alpha" in metrics else 0.0
    if not alpha < DIVERGED:
        return f"{said}The temperature α is {alpha:.3g}: lower --entropy, which the policy does not reach"
    clips = " or --max-grad-norm" if learner.spec.update.optim.clip else ""
    return f"{said}A NaN in it from the environment is the usual cause; else lower --learning-rate{clips}"


DIVERGED = 1e4  # least temperature α that shows that the policy never reaches its target entropy

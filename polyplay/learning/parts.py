"""Parts of a learner: target network, outlier gate, drops of the learning rate; schedules, trace.

A page lists the parts of its figure in LearnerSpec.parts. A learner itself adds parts that any run may ask for.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, cast

import numpy as np

from polyplay.core import checkpoint
from polyplay.core.checkpoint import CheckpointPart, OpenCheckpoint
from polyplay.core.errors import UserError
from polyplay.core.files import JsonLines, LogWrites, Row
from polyplay.core.tree import Batch
from polyplay.core.worker import SchedulePoint
from polyplay.learning.losses import LossOutput
from polyplay.nets.device import to_host
from polyplay.nets.factory import build_network
from polyplay.nets.policy import Policy
from polyplay.weights.params import FlatParams

if TYPE_CHECKING:
    from polyplay.learning.learner import Learner


class LearnerPart:
    """Something that a learner has besides its source, loss and update.

    A page's part is a description, which worker threads share; `open` makes a learner's own copy. A learner calls the
    hooks that its parts define, part by part, in order.
    """

    learner: Learner  # the learner that it belongs to, once open
    net: Policy | None = None  # a second network, once open: losses get it as the target network
    vector: FlatParams | None = None  # weights of that network
    vectors: ClassVar[int] = 0  # number of weight vectors that it holds, for estimates of memory and checkpoints
    agent: int = 0  # number of the learner's agent, if a run has several

    # Apply the changes of the run, before an update and all its passes.
    adjust: Callable[[], None] | None = None
    # (rows, batch, state) → more tensors for an update from a rollout. rows: [T+1, B], as it came; batch: the same on
    # the device; state: before row 0.
    inputs: Callable[[Batch, Batch, Batch], Batch] | None = None
    # (steps) → agent steps that count for the end of the run and for annealing. steps: from the previous part.
    progress: Callable[[float], float] | None = None
    # (scored) → whether to make an update of this loss. Its agent steps are counted in any case.
    admit: Callable[[LossOutput], bool] | None = None
    # (rate) → the learning rate. rate: from the previous part; for the first part, the annealed hyperparameter.
    rate: Callable[[float], float] | None = None
    # The running statistics of the network have changed without an update.
    observed: Callable[[], None] | None = None
    # (loss, norm, lags): update learner.version was made and counted. norm: of its gradient; lags: in updates.
    updated: Callable[[float, float, np.ndarray], None] | None = None
    # Number of next updates whose inputs this part does not change; 1 if this hook is not defined.
    unchanged: Callable[[], int] | None = None

    def describe(self) -> str:
        """Return its line in a learner's box of the diagram, or an empty string."""
        return ""

    def open(self, learner: Learner) -> Self:
        """Return a copy for this learner, before its weights are loaded."""
        own = copy.copy(self)
        own.learner = learner
        return own

    def begin(self, found: OpenCheckpoint | None) -> None:
        """Start, once the weights are loaded. found: the checkpoint that the run resumes; None in a new run, and for a
        worker that replaces a lost worker.
        """

    def save(self, part: CheckpointPart) -> Row:
        """Write the part's state into a checkpoint, and return its additions to the learner's counts. Raises OSError.
        Only learner 0 writes; all learners resume from this state.
        """
        return {}


@dataclass
class TargetNetwork(LearnerPart):
    """A second network. Every `every`-th update moves it toward the first network by the fraction `tau` of the way; 1
    copies the first. Updates of all workers count. Raises UserError: `every` or `tau` is out of range.
    """

    every: int = 1
    tau: float = 1.0
    vector: FlatParams = field(init=False, repr=False)
    copies: int = field(init=False, repr=False)  # so far

    vectors: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UserError(f"TargetNetwork: every={self.every} given, allowed: 1 or more updates")
        if not 0.0 < self.tau <= 1.0:
            raise UserError(f"TargetNetwork: tau={self.tau} given, allowed: above 0, at most 1")

    def describe(self) -> str:
        how = "copied" if self.tau == 1.0 else f"moved by {self.tau:g} of the way"
        return f"target  {how} every {self.every:,} update{'s' * (self.every > 1)}"

    def open(self, learner: Learner) -> Self:
        own, ctx = super().open(learner), learner.ctx
        own.net = build_network(learner.spec.policy, ctx.seed, ctx.precision, learner.device)
        own.vector = FlatParams(own.net)
        return own

    def begin(self, found: OpenCheckpoint | None) -> None:
        saved = None if found is None else found.arrays(f"{self.learner.checkpoints.folder}/target")
        self._become(1.0, saved)

    def _become(self, tau: float, saved: dict[str, np.ndarray] | None = None) -> None:
        """Load the saved weights, or move toward the present network by the fraction `tau` of the way."""
        if saved is not None:
            checkpoint.load_into(cast("Policy", self.net), saved)
        else:
            self.learner.update.refresh()
            at = self.vector.weights
            self.vector.flat[:at].lerp_(self.learner.update.vector.flat[:at], tau)
            self.observed()
        self.copies = self.learner.version // self.every
        cast("Policy", self.net).cache_weights()

    def observed(self) -> None:
        """Copy the network's running statistics."""
        at = self.vector.weights
        self.vector.flat[at:].copy_(self.learner.update.vector.flat[at:])

    def updated(self, loss: float, norm: float, lags: np.ndarray) -> None:
        if self.learner.version // self.every > self.copies:
            self._become(self.tau)

    def unchanged(self) -> int:
        """Number of updates up to the next copy."""
        return (self.copies + 1) * self.every - self.learner.version

    def save(self, part: CheckpointPart) -> Row:
        state = cast("Policy", self.net).state_dict()
        part.arrays(f"{self.learner.checkpoints.folder}/target", {k: np.asarray(to_host(v)) for k, v in state.items()})
        return {}


# Losses far above a learner's earlier losses make no update (Gorila, Nair et al. 2015).
#
# The paper discards a gradient whose loss is above mean + k·std of the learner's losses, for "several" k. The rest is
# ours: how far back the mean reaches, that all first losses are admitted, and the restart after refusals in a row.


SLACK = 1.0 + 1e-9  # equal losses are no outliers, however their mean was rounded


@dataclass
class OutlierGate(LearnerPart):
    """Refuses outliers: no update if |loss| > mean + k·std of the losses that this learner admitted before."""

    k: float

    WARM_UP = 100  # losses that are admitted at first
    HORIZON = 1000  # mean and variance weigh the first HORIZON losses evenly; afterwards older losses fade by 1/HORIZON
    CAP = 10  # most losses refused in a row: the next one is admitted, and the statistics restart with it

    def __post_init__(self) -> None:
        self.n, self.mean, self.variance = 0, 0.0, 0.0
        self.row = 0  # losses refused since the last one that was admitted

    def describe(self) -> str:
        return f"drops   losses beyond mean + {self.k:g} deviations"

    def admit(self, scored: LossOutput) -> bool:
        """See LearnerPart. A loss that is not finite is admitted, so that the learner reports it."""
        size = abs(float(scored.loss))
        if not math.isfinite(size):
            return True
        bound = (self.mean + self.k * math.sqrt(self.variance)) * SLACK
        if self.n >= self.WARM_UP and size > bound:
            if self.row < self.CAP:
                self.row += 1
                return False
            self.n, self.mean, self.variance = 0, 0.0, 0.0
        self.row, self.n = 0, self.n + 1
        weight, away = 1.0 / min(self.n, self.HORIZON), size - self.mean
        self.mean = (1.0 - weight) * self.mean + weight * size  # if the weight is 1, this is exactly `size`
        self.variance = (1.0 - weight) * (self.variance + weight * away * away)
        return True


@dataclass
class RateDrops(LearnerPart):
    """Divides the learning rate by 10 at each of these updates."""

    updates: tuple[int, ...]

    def rate(self, rate: float) -> float:
        return rate * 0.1 ** sum(self.learner.version >= drop for drop in self.updates)


# Parts that a learner adds itself.


@dataclass
class FrozenRate(LearnerPart):
    """Keeps the learning rate at 0 until this many agent steps are learned from (nets.surgery)."""

    until: float

    def rate(self, rate: float) -> float:
        return 0.0 if self.learner.progress < self.until else rate

    def save(self, part: CheckpointPart) -> Row:
        return {"freeze_until": self.until}


def frozen_until(learner: Learner) -> float:
    """Return `until` from the checkpoint that the run resumes; if that was removed, from the newest one."""
    path = learner.ctx.resume
    if path is None:
        return 0.0
    if not path.exists():
        path = checkpoint.everything(cast("Path", learner.ctx.directory))[-1]
    saved = checkpoint.OpenCheckpoint(path).json(f"{learner.checkpoints.folder}/learner")
    return float(saved.get("freeze_until", 0.0))


class Schedules(LearnerPart):
    """Sets hyperparameters that change with the agent steps of the run, and logs each point that they reach."""

    held: Mapping[str, SchedulePoint] = {}  # each hyperparameter's present point

    def adjust(self) -> None:
        learner, hyper, total = self.learner, self.learner.spec.hyperparameters, self.learner.spec.total
        if "remaining" in hyper.configured:
            hyper.set("remaining", learner.remaining)
        before, self.held = self.held, hyper.keep_to_schedules(learner.progress, total)
        for name, point in self.held.items():
            if before.get(name) != point and learner.ctx.index == 0:
                learner.ctx.log("note", f"from {point.steps(total):,.0f} agent steps on: {name} {point.value:g}")


class AnswerEvaluator(LearnerPart):
    """Gives the weights to an evaluator beside training, when the evaluator asks for them."""

    def updated(self, loss: float, norm: float, lags: np.ndarray) -> None:
        show = self.learner.ctx.control.show
        if show.asked:
            show.answer(self.learner.update.vector, self.learner.version)


class Trace(LearnerPart):
    """Writes a line of updates.jsonl for every update."""

    file: JsonLines
    writes: LogWrites

    def open(self, learner: Learner) -> Self:
        own, ctx, agent = super().open(learner), learner.ctx, learner.spec.agent
        name = f"updates-{agent}.jsonl" if agent else "updates.jsonl"
        own.file = JsonLines(cast("Path", ctx.directory) / name)
        own.writes = LogWrites(lambda text: ctx.log("warning", text))
        return own

    def updated(self, loss: float, norm: float, lags: np.ndarray) -> None:
        worst, mean = (int(lags.max()), float(lags.mean())) if lags.size else (0, 0.0)
        row = {"update": self.learner.version, "loss": loss, "grad_norm": norm, "lag_mean": mean, "lag_max": worst}
        self.writes.attempt("updates.jsonl", lambda: self.file.write(row))


def open_parts(learner: Learner) -> list[LearnerPart]:
    """Return all parts of a learner, opened: first those that the run asks for, then its page's."""
    ctx, parts = learner.ctx, list[LearnerPart]()
    if until := frozen_until(learner):
        parts.append(FrozenRate(until))
    hyper = learner.spec.hyperparameters
    if hyper.schedules or "remaining" in hyper.configured:
        parts.append(Schedules())
    if ctx.control.show is not None and ctx.index == learner.spec.agent == 0:
        parts.append(AnswerEvaluator())
    if ctx.control.trace and ctx.index == 0 and ctx.directory is not None:
        parts.append(Trace())
    return [part.open(learner) for part in (*parts, *learner.spec.parts)]

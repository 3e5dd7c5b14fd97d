"""Optional parts of a learner: target network, outlier filter, learning-rate drops, schedules, log of updates.

LearnerSpec.parts lists a system's parts. The learner adds further parts that the run's options require.
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
    """Optional part of a learner, such as a target network.

    To write a part, inherit this class and define some of the hooks below. A hook is a method that the learner calls at
    a certain point, for example after each update. If several parts define a hook, the learner calls them in order.
    Parts in a LearnerSpec are templates: each learner uses copies of them, which `open` makes.
    """

    learner: Learner  # owner of this part, once open
    net: Policy | None = None  # second network, once open; losses take it as target network
    vector: FlatParams | None = None  # weights of `net`
    vectors: ClassVar[int] = 0  # number of weight vectors in this part, for estimates of memory and checkpoints
    agent: int = 0  # number of the learner's agent, if a run has several

    # (): set values that change during the run, before an update and all its passes.
    adjust: Callable[[], None] | None = None
    # (rows, batch, state) → tensors to add to the batch of an update from a rollout. rows: [T+1, B], as received;
    # batch: the same rows on the device; state: recurrent state before row 0.
    inputs: Callable[[Batch, Batch, Batch], Batch] | None = None
    # (steps) → agent steps by which the run ends and anneals. steps: the previous part's result; for the first part,
    # the agent steps learned from.
    progress: Callable[[float], float] | None = None
    # (scored) → whether to make an update from this loss. The batch's agent steps count in any case.
    admit: Callable[[LossOutput], bool] | None = None
    # (rate) → the learning rate. rate: the previous part's result; for the first part, the annealed hyperparameter.
    rate: Callable[[float], float] | None = None
    # (): called when the network's running statistics have changed without an update.
    observed: Callable[[], None] | None = None
    # (loss, norm, lags): called after each update. norm: of the gradient; lags: age, in updates, of the weights that
    # acted in each row.
    updated: Callable[[float, float, np.ndarray], None] | None = None
    # () → number of next updates whose inputs this part leaves unchanged; without this hook: 1.
    unchanged: Callable[[], int] | None = None

    def describe(self) -> str:
        """Return a line about this part for the system's diagram, or "" for no line."""
        return ""

    def open(self, learner: Learner) -> Self:
        """Return a copy of this part for `learner`. The learner has not loaded its weights yet."""
        own = copy.copy(self)
        own.learner = learner
        return own

    def begin(self, found: OpenCheckpoint | None) -> None:
        """Start this part, after the learner has loaded its weights. `found` is the checkpoint that the run resumes
        from. It is None in a new run, and in a worker that replaces a failed worker.
        """

    def save(self, part: CheckpointPart) -> Row:
        """Save the state of this part in the checkpoint. The returned entries are saved with the learner's counts. Only
        learner 0 saves its parts, and all learners resume from this state. Raises OSError if writing fails.
        """
        return {}


@dataclass
class TargetNetwork(LearnerPart):
    """Keeps a target network, a second network whose weights follow the trained weights.

    `every`: number of updates between two moves of the target weights. Updates of all workers count.
    `tau`: each move sets target += tau·(trained − target).
    """

    every: int = 1
    tau: float = 1.0
    vector: FlatParams = field(init=False, repr=False)
    copies: int = field(init=False, repr=False)  # number of moves so far

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
        """Load `saved`. If it is None, move the target weights by the fraction `tau` to the trained weights."""
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
        """Copy the running statistics of the trained network into the target network."""
        at = self.vector.weights
        self.vector.flat[at:].copy_(self.learner.update.vector.flat[at:])

    def updated(self, loss: float, norm: float, lags: np.ndarray) -> None:
        if self.learner.version // self.every > self.copies:
            self._become(self.tau)

    def unchanged(self) -> int:
        """Return the number of updates until the target network moves next."""
        return (self.copies + 1) * self.every - self.learner.version

    def save(self, part: CheckpointPart) -> Row:
        state = cast("Policy", self.net).state_dict()
        part.arrays(f"{self.learner.checkpoints.folder}/target", {k: np.asarray(to_host(v)) for k, v in state.items()})
        return {}


# Outliers: a loss far above a learner's earlier losses leads to no update (Gorila, Nair et al. 2015).
#
# The paper discards a gradient whose loss is above mean + k·std of the learner's losses, where k is "several". The
# paper does not give WARM_UP, HORIZON and CAP, nor the restart after CAP refusals.


SLACK = 1.0 + 1e-9  # so that equal losses are not outliers because of rounding


@dataclass
class OutlierGate(LearnerPart):
    """Rejects an update if its loss is an outlier: |loss| > mean + k·std. The mean and the standard deviation of |loss|
    are computed over the earlier updates that this learner has admitted.
    """

    k: float

    WARM_UP = 100  # number of first losses, which are all admitted
    HORIZON = 1000  # mean and variance weigh the first HORIZON losses evenly; afterwards older losses fade by 1/HORIZON
    CAP = 10  # most losses refused in a row; the next loss is admitted, and restarts the statistics

    def __post_init__(self) -> None:
        self.n, self.mean, self.variance = 0, 0.0, 0.0
        self.row = 0  # losses refused since the last admitted loss

    def describe(self) -> str:
        return f"drops   losses beyond mean + {self.k:g} deviations"

    def admit(self, scored: LossOutput) -> bool:
        """See LearnerPart.admit. Losses that are not finite are admitted, so that the learner reports them."""
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
    """Divides the learning rate by 10 after each number of updates that `updates` lists."""

    updates: tuple[int, ...]

    def rate(self, rate: float) -> float:
        return rate * 0.1 ** sum(self.learner.version >= drop for drop in self.updates)


# Parts that a learner adds itself, if the run's options ask for them.


@dataclass
class FrozenRate(LearnerPart):
    """Keeps the learning rate at 0 until the run reaches `until` agent steps (see nets.surgery)."""

    until: float

    def rate(self, rate: float) -> float:
        return 0.0 if self.learner.progress < self.until else rate

    def save(self, part: CheckpointPart) -> Row:
        return {"freeze_until": self.until}


def frozen_until(learner: Learner) -> float:
    """Return FrozenRate.until from the checkpoint that the run resumes from, or 0 if the run has no FrozenRate."""
    path = learner.ctx.resume
    if path is None:
        return 0.0
    if not path.exists():  # it was removed; read the newest
        path = checkpoint.everything(cast("Path", learner.ctx.directory))[-1]
    saved = checkpoint.OpenCheckpoint(path).json(f"{learner.checkpoints.folder}/learner")
    return float(saved.get("freeze_until", 0.0))


class Schedules(LearnerPart):
    """Sets hyperparameters to the values of their schedules at the run's agent steps, and logs each change."""

    held: Mapping[str, SchedulePoint] = {}  # current point of each schedule, by hyperparameter

    def adjust(self) -> None:
        learner, hyper, total = self.learner, self.learner.spec.hyperparameters, self.learner.spec.total
        if "remaining" in hyper.configured:
            hyper.set("remaining", learner.remaining)
        before, self.held = self.held, hyper.keep_to_schedules(learner.progress, total)
        for name, point in self.held.items():
            if before.get(name) != point and learner.ctx.index == 0:
                learner.ctx.log("note", f"from {point.steps(total):,.0f} agent steps on: {name} {point.value:g}")


class AnswerEvaluator(LearnerPart):
    """Publishes the weights when the evaluator, a worker that tests the policy during training, asks for them."""

    def updated(self, loss: float, norm: float, lags: np.ndarray) -> None:
        show = self.learner.ctx.control.show
        if show.asked:
            show.answer(self.learner.update.vector, self.learner.version)


class Trace(LearnerPart):
    """Writes one line to updates.jsonl for every update. For agent N > 0, the file is updates-N.jsonl."""

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
    """Open a learner's parts: first the parts that the run's options require, then the parts in its LearnerSpec."""
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

"""How a gradient reaches the weights: what every update has, and the one of a learner alone."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import nn

from polyplay.common.context import WorkerContext
from polyplay.weights import optimizers
from polyplay.weights.flat import FlatParams

Sums = np.ndarray  # float64, at most 8: agent steps learnt, save number, finish, …; summed over replicas


Apply = Generator[None, None, "tuple[float, Sums]"]


Agree = Generator[None, None, "Sums"]


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimiser by name (optim.make); `clip` bounds the global norm of the (averaged) gradient, 0 is off."""

    name: str = "adam"
    eps: float = 1e-8
    alpha: float = 0.99
    momentum: float = 0.0
    clip: float = 0.0

    def __post_init__(self) -> None:
        optimizers.check_optimizer(self.name)

    @property
    def statistics(self) -> tuple[str, ...]:
        return optimizers.statistics(self.name, self.momentum)

    def make(self, parameter: nn.Parameter) -> torch.optim.Optimizer:
        return optimizers.make_optimizer(
            self.name, [parameter], lr=0.0, eps=self.eps, alpha=self.alpha, momentum=self.momentum
        )


class UpdateCounts:
    """A learner's own count of updates and agent steps. Workers on shared weights have `SharedCounts` in its place."""

    fresh = True  # this learner begins with initial weights, or those of a checkpoint
    ready = True  # the first weights are there

    def __init__(self) -> None:
        self.version, self.learnt, self.begun = 0, 0.0, 0

    def begin(self, version: int, learnt: float) -> None:
        """After what was saved was loaded, if anything was."""
        self.version, self.learnt, self.begun = version, learnt, version

    def newest(self) -> int:
        """The version of the weights to act with next; they are in the vector then."""
        return self.version

    def add(self, rows: float) -> int:
        """One more update, of `rows` agent steps; the version that it was applied to."""
        self.version += 1
        self.learnt += rows
        return self.version - 1

    def rest(self, rows: float) -> None:
        """Agent steps without an update."""
        self.learnt += rows

    def kept(self) -> dict[str, Any]:
        """What a checkpoint has of them beyond `version` and `learnt`; `know` is given what one had."""
        return {}

    def know(self, kept: dict[str, Any]) -> None:
        pass


class BoundUpdate(Protocol):
    optimizer: torch.optim.Optimizer
    waited: float  # seconds spent waiting for others, so far
    counts: Any  # Counts, or what stands in its place

    def __call__(self, learning_rate: float, sums: Sums) -> Apply: ...

    def agree(self, sums: Sums) -> Agree:
        """The sums over all replicas, without an update."""
        ...


class Update(Protocol):
    """`apart`: workers don't wait for each other; each counts for itself, and worker 0 saves for all. `vector`: the
    module's weights where this update wants them.
    """

    @property
    def apart(self) -> bool: ...
    @property
    def optim(self) -> OptimizerSpec: ...
    def vector(self, ctx: WorkerContext, module: nn.Module) -> FlatParams: ...
    def bind(self, ctx: WorkerContext, vector: FlatParams) -> BoundUpdate: ...


def clip_gradient(vector: FlatParams, clip: float) -> float:
    """Shrink the gradient to a global norm of at most `clip` (0: leave it); its norm before."""
    norm = float(torch.linalg.vector_norm(vector.grad))
    if clip and norm > clip and math.isfinite(norm):
        vector.grad.mul_(clip / (norm + 1e-6))
    return norm


def clipped_step(vector: FlatParams, optimizer: torch.optim.Optimizer, clip: float, learning_rate: float) -> float:
    """Clip by global norm and step; the norm before clipping. A gradient that isn't finite changes nothing."""
    norm = clip_gradient(vector, clip)
    if math.isfinite(norm):
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()
    return norm


@dataclass(frozen=True)
class Local:
    """This worker's gradient, applied by this worker."""

    optim: OptimizerSpec
    apart: ClassVar[bool] = False

    def vector(self, ctx: WorkerContext, module: nn.Module) -> FlatParams:
        return FlatParams(module)

    def bind(self, ctx: WorkerContext, vector: FlatParams) -> BoundUpdate:
        return _Local(self, vector)


class _Local:
    def __init__(self, what: Local, vector: FlatParams):
        self.clip, self.vector, self.optimizer = what.optim.clip, vector, what.optim.make(vector.parameter)
        self.waited, self.counts = 0.0, UpdateCounts()

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        return clipped_step(self.vector, self.optimizer, self.clip, learning_rate), sums
        yield  # a generator, like its siblings

    def agree(self, sums: Sums) -> Agree:
        return sums
        yield

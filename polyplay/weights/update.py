"""How a gradient reaches the weights: what every update has, and the one of a learner alone."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from polyplay.common.context import WorkerContext
from polyplay.common.errors import Leaving
from polyplay.nets.policy import Network
from polyplay.weights import optimizers
from polyplay.weights.flat import FlatParams, module_nbytes

Sums = np.ndarray  # float64, at most 8: agent steps learnt, save number, finish, …; summed over replicas
LEAVING = 5  # of sums: replicas that have no gradient, because the run ends in the middle of their rollouts
Apply = Generator[None, None, tuple[float, Sums]]
Agree = Generator[None, None, Sums]


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimiser by name (optimizers.NAMES); `clip` bounds the global norm of the (averaged) gradient, 0 is off."""

    name: str = "adam"
    eps: float = 1e-8
    alpha: float = 0.99
    clip: float = 0.0
    momentum: float = 0.9  # SGD's
    decay: float = 0.0  # SGD's: L2 regularisation c‖θ‖² is a decay of 2c

    def __post_init__(self) -> None:
        optimizers.check_optimizer(self.name)

    @property
    def statistics(self) -> tuple[str, ...]:
        return optimizers.statistics(self.name)

    def make(self, parameter: nn.Parameter) -> torch.optim.Optimizer:
        more = {"momentum": self.momentum, "decay": self.decay}
        return optimizers.make_optimizer(self.name, [parameter], lr=0.0, eps=self.eps, alpha=self.alpha, **more)


def check_leaving(sums: Sums) -> None:
    """Raises Leaving: some replica has no gradient any more, so nobody's is applied."""
    if len(sums) > LEAVING and sums[LEAVING]:
        raise Leaving


class Counts:
    """Updates that the weights have had, and agent steps learnt: a learner's own. Workers on shared weights have
    `SharedCounts` in its place.
    """

    fresh = True  # this learner begins with initial weights, or those of a checkpoint
    ready = property(lambda self: True)  # the first weights are there
    version = property(lambda self: self._version)
    learnt = property(lambda self: self._learnt)
    begun = property(lambda self: self._begun)  # the version that this run began with

    def __init__(self) -> None:
        self._version, self._learnt, self._begun = 0, 0.0, 0

    def begin(self, version: int, learnt: float) -> None:
        """Once a checkpoint was loaded, if there is one."""
        self._version, self._learnt, self._begun = version, learnt, version

    def newest(self) -> int:
        """Version of the weights to act with next, which are in the vector then."""
        return self._version

    def add(self, rows: float) -> int:
        """One more update, of `rows` agent steps; the version it was applied to."""
        self._version += 1
        self._learnt += rows
        return self._version - 1

    def rest(self, rows: float) -> None:
        """Agent steps without an update."""
        self._learnt += rows

    def state(self) -> dict[str, list[int]]:
        """For a checkpoint, beyond `version` and `learnt`. Most have nothing."""
        return {}

    def load_state(self, saved: Mapping[str, list[int]]) -> None:
        """What `state` gave."""


class BoundUpdate(ABC):
    """An update at work on one worker's vector. This base is of a worker that waits for no other."""

    optimizer: torch.optim.Optimizer
    gate: Callable[[float], bool] | None = None  # whether a gradient is to be made of this loss; None: of all

    def __init__(self, update: Update, ctx: WorkerContext, vector: FlatParams):
        self.ctx, self.vector, self.clip = ctx, vector, update.optim.clip
        self.counts: Counts = Counts()
        self.waited = 0.0  # seconds spent waiting for others, so far
        self.whole = True  # whether all weights have had the same updates

    @abstractmethod
    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        """Apply the vector's gradient: its norm, and the sums over all replicas. Others take their turns meanwhile."""

    def agree(self, sums: Sums) -> Agree:
        """The sums over all replicas, without an update."""
        yield from ()
        return sums

    def still(self) -> AbstractContextManager[None]:
        """While in it, nobody changes the weights that this worker saves."""
        return contextlib.nullcontext()


class Update(ABC):
    """A description made while wiring; `bind` makes it act on one worker's vector.

    `apart`: workers don't wait for each other; each counts for itself, and worker 0 saves for all.
    """

    optim: OptimizerSpec
    apart: ClassVar[bool] = False

    @abstractmethod
    def title(self) -> str:
        """The line of a learner's box in a diagram."""

    @abstractmethod
    def worker_nbytes(self, module: Network) -> float:
        """A worker's own weights, gradient and statistics."""

    def vector(self, ctx: WorkerContext, module: Network) -> FlatParams:
        """The module where this update wants it."""
        return FlatParams(module)

    @abstractmethod
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
class Local(Update):
    """This worker's gradient, applied by this worker."""

    optim: OptimizerSpec

    def title(self) -> str:
        return f"Local({self.optim.name})"

    def worker_nbytes(self, module: Network) -> float:
        return (2.0 + len(self.optim.statistics)) * module_nbytes(module)

    def bind(self, ctx: WorkerContext, vector: FlatParams) -> BoundUpdate:
        return _Local(self, ctx, vector)


class _Local(BoundUpdate):
    def __init__(self, local: Local, ctx: WorkerContext, vector: FlatParams):
        super().__init__(local, ctx, vector)
        self.optimizer = local.optim.make(vector.parameter)

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        yield from ()
        return clipped_step(self.vector, self.optimizer, self.clip, learning_rate), sums

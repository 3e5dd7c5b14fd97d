"""How a gradient reaches the weights: what every update has, and the one of a learner alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import nn

from polyplay.common.context import WorkerContext
from polyplay.nets.policy import Network
from polyplay.weights import optimizers
from polyplay.weights.flat import FlatParams, module_nbytes

Sums = np.ndarray  # float64, at most 8: agent steps learnt, save number, finish, …; summed over replicas
Apply = Generator[None, None, tuple[float, Sums]]
Agree = Generator[None, None, Sums]


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimiser by name (optimizers.NAMES); `clip` bounds the global norm of the (averaged) gradient, 0 is off."""

    name: str = "adam"
    eps: float = 1e-8
    alpha: float = 0.99
    clip: float = 0.0

    def __post_init__(self) -> None:
        optimizers.check_optimizer(self.name)

    @property
    def statistics(self) -> tuple[str, ...]:
        return optimizers.statistics(self.name)

    def make(self, parameter: nn.Parameter) -> torch.optim.Optimizer:
        return optimizers.make_optimizer(self.name, [parameter], lr=0.0, eps=self.eps, alpha=self.alpha)


class Counts(Protocol):
    """Updates that the weights have had, and agent steps learnt: a learner's own, or those of all that share them."""

    @property
    def fresh(self) -> bool: ...  # this learner begins with initial weights, or those of a checkpoint
    @property
    def ready(self) -> bool: ...  # the first weights are there
    @property
    def version(self) -> int: ...
    @property
    def learnt(self) -> float: ...
    @property
    def begun(self) -> int: ...  # the version that this run began with
    def begin(self, version: int, learnt: float) -> None: ...  # once a checkpoint was loaded, if there is one
    def newest(self) -> int: ...  # version of the weights to act with next, which are in the vector then
    def add(self, rows: float) -> int: ...  # one more update, of `rows` agent steps; the version it was applied to
    def rest(self, rows: float) -> None: ...  # agent steps without an update
    def state(self) -> dict[str, list[int]]: ...  # for a checkpoint, beyond `version` and `learnt`
    def load_state(self, saved: Mapping[str, list[int]]) -> None: ...


class UpdateCounts:
    """A learner's own counts. Workers on shared weights have `SharedCounts` in its place."""

    fresh = True
    ready = True

    def __init__(self) -> None:
        self.version, self.learnt, self.begun = 0, 0.0, 0

    def begin(self, version: int, learnt: float) -> None:
        self.version, self.learnt, self.begun = version, learnt, version

    def newest(self) -> int:
        return self.version

    def add(self, rows: float) -> int:
        self.version += 1
        self.learnt += rows
        return self.version - 1

    def rest(self, rows: float) -> None:
        self.learnt += rows

    def state(self) -> dict[str, list[int]]:
        return {}

    def load_state(self, saved: Mapping[str, list[int]]) -> None:
        """There is nothing more to load."""


class BoundUpdate:
    """An update at work on one worker's vector. This base is of a worker that waits for no other."""

    optimizer: torch.optim.Optimizer
    counts: Counts
    gate: Callable[[float], bool] | None = None  # whether a gradient is to be made of this loss; None: of all

    def __init__(self, ctx: WorkerContext, vector: FlatParams, clip: float):
        self.ctx, self.vector, self.clip = ctx, vector, clip
        self.waited = 0.0  # seconds spent waiting for others, so far

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        """Apply the vector's gradient: its norm, and the sums over all replicas. Others take their turns meanwhile."""
        raise NotImplementedError

    def agree(self, sums: Sums) -> Agree:
        """The sums over all replicas, without an update."""
        yield from ()
        return sums

    def still(self) -> AbstractContextManager[None]:
        """While in it, nobody changes the weights that this worker saves."""
        return contextlib.nullcontext()


class Update(Protocol):
    """A description made while wiring; `bind` makes it act on one worker's vector.

    `apart`: workers don't wait for each other; each counts for itself, and worker 0 saves for all.
    """

    @property
    def apart(self) -> bool: ...
    @property
    def optim(self) -> OptimizerSpec: ...
    def title(self) -> str: ...  # the line of a learner's box in a diagram
    def worker_nbytes(self, module: Network) -> float: ...  # a worker's own weights, gradient and statistics
    def vector(self, ctx: WorkerContext, module: Network) -> FlatParams: ...  # the module where this update wants it
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

    def title(self) -> str:
        return f"Local({self.optim.name})"

    def worker_nbytes(self, module: Network) -> float:
        return (2.0 + len(self.optim.statistics)) * module_nbytes(module)

    def vector(self, ctx: WorkerContext, module: Network) -> FlatParams:
        return FlatParams(module)

    def bind(self, ctx: WorkerContext, vector: FlatParams) -> BoundUpdate:
        return _Local(ctx, vector, self.optim)


class _Local(BoundUpdate):
    def __init__(self, ctx: WorkerContext, vector: FlatParams, optim: OptimizerSpec):
        super().__init__(ctx, vector, optim.clip)
        self.optimizer, self.counts = optim.make(vector.parameter), UpdateCounts()

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        yield from ()
        return clipped_step(self.vector, self.optimizer, self.clip, learning_rate), sums

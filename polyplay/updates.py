"""How a gradient reaches the weights: Local, AllReduce of equal replicas; more in hogwild, chunked and server.

An `Update` is a description made while wiring; in its worker `bind` makes it act on that worker's vector. Applying it
is a generator, so that a graph that runs in one thread can let others take their turn while a replica waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import nn

from polyplay import grouped, optim
from polyplay.device import Mirror
from polyplay.errors import Closed
from polyplay.params import Vector
from polyplay.shared import Block, Layout, Semaphores
from polyplay.worker import Me

Sums = np.ndarray  # float64, at most 8: agent steps learnt, save number, finish, …; summed over replicas
Apply = Generator[None, None, "tuple[float, Sums]"]
Agree = Generator[None, None, "Sums"]


@dataclass(frozen=True)
class Optim:
    """An optimiser by name (optim.make); `clip` bounds the global norm of the (averaged) gradient, 0 is off."""

    name: str = "adam"
    eps: float = 1e-8
    alpha: float = 0.99
    momentum: float = 0.0
    clip: float = 0.0

    def __post_init__(self) -> None:
        optim.check(self.name)

    @property
    def statistics(self) -> tuple[str, ...]:
        return optim.statistics(self.name, self.momentum)

    def make(self, parameter: nn.Parameter) -> torch.optim.Optimizer:
        return optim.make(self.name, [parameter], lr=0.0, eps=self.eps, alpha=self.alpha, momentum=self.momentum)


class Counts:
    """A learner's own count of updates and agent steps. Workers on shared weights have `Central` in its place."""

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


class Bound(Protocol):
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
    def optim(self) -> Optim: ...
    def vector(self, me: Me, module: nn.Module) -> Vector: ...
    def bind(self, me: Me, vector: Vector) -> Bound: ...


def clip_(vector: Vector, clip: float) -> float:
    """Shrink the gradient to a global norm of at most `clip` (0: leave it); its norm before."""
    norm = float(torch.linalg.vector_norm(vector.grad))
    if clip and norm > clip and math.isfinite(norm):
        vector.grad.mul_(clip / (norm + 1e-6))
    return norm


def step_(vector: Vector, optimizer: torch.optim.Optimizer, clip: float, learning_rate: float) -> float:
    """Clip by global norm and step; the norm before clipping. A gradient that isn't finite changes nothing."""
    norm = clip_(vector, clip)
    if math.isfinite(norm):
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()
    return norm


@dataclass(frozen=True)
class Local:
    """This worker's gradient, applied by this worker."""

    optim: Optim
    apart: ClassVar[bool] = False

    def vector(self, me: Me, module: nn.Module) -> Vector:
        return Vector(module)

    def bind(self, me: Me, vector: Vector) -> Bound:
        return _Local(self, vector)


class _Local:
    def __init__(self, what: Local, vector: Vector):
        self.clip, self.vector, self.optimizer = what.optim.clip, vector, what.optim.make(vector.parameter)
        self.waited, self.counts = 0.0, Counts()

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        return step_(self.vector, self.optimizer, self.clip, learning_rate), sums
        yield  # a generator, like its siblings

    def agree(self, sums: Sums) -> Agree:
        return sums
        yield


class AllReduce:
    """Replicas of one machine stay equal: gradients and floating buffers are averaged in shared memory, in fixed order;
    by NCCL, in its own, where each replica is a process with a GPU of its own (grouped).

    `size`: of the whole vector (params.sizes).
    """

    apart = False

    def __init__(self, optim: Optim, replicas: int, size: int):
        self.optim, self.replicas = optim, replicas
        layout = Layout()
        self._fields = (
            layout.add((2, replicas, size), np.float32),
            layout.add((2, replicas, 8), np.float64),
            layout.add((replicas + 1, 8), np.int64),
        )
        self._block: Block = layout.block()
        self._bells = Semaphores(replicas)
        self._place = grouped.meeting_place()

    def vector(self, me: Me, module: nn.Module) -> Vector:
        return Vector(module)

    def bind(self, me: Me, vector: Vector) -> Bound:
        return _AllReduce(self, me.index, vector)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        gradients, sums, arrived = (self._block.array(*f) for f in self._fields)
        return gradients, sums, arrived[:, 0]

    def close(self) -> None:
        self.arrays()[2][self.replicas] = 1
        for i in range(self.replicas):
            self._bells[i].post()


class _AllReduce:
    def __init__(self, what: AllReduce, rank: int, vector: Vector):
        self.vector, self.optimizer, self.clip = vector, what.optim.make(vector.parameter), what.optim.clip
        self.rank, self.n, self.bells = rank, what.replicas, what._bells
        self.gradients, self.sums, self.arrived = what.arrays()
        self.gradient, self.buffers = Mirror(vector.grad), Mirror(vector.flat[vector.weights :])
        self.turn, self.waited, self.counts = 0, 0.0, Counts()
        alone = grouped.fits(vector.flat.device, self.n)  # on its GPU
        self.together = grouped.Together(what._place, rank, self.n, vector) if alone else None

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        if self.together is not None:
            total, waited = self.together.average(sums)
            self.waited += waited
            return step_(self.vector, self.optimizer, self.clip, learning_rate), total
        mine, weights = (self.turn + 1) % 2, self.vector.weights
        self.gradients[mine, self.rank, :weights] = self.gradient.fetch()
        self.gradients[mine, self.rank, weights:] = self.buffers.fetch()
        total = yield from self.agree(sums)
        parts = self.gradients[mine]
        for to, part in ((self.gradient, parts[:, :weights]), (self.buffers, parts[:, weights:])):
            _mean(part, to.array)
            to.put()
        return step_(self.vector, self.optimizer, self.clip, learning_rate), total

    def agree(self, sums: Sums) -> Agree:
        # Two buffers in turn: whoever writes turn k + 2 has seen everyone arrive at k + 1, so all have read turn k.
        self.turn += 1
        mine = self.turn % 2
        self.sums[mine, self.rank, : len(sums)] = sums
        self.arrived[self.rank] = self.turn
        for other in range(self.n):
            if other != self.rank:
                self.bells[other].post()
        before = time.perf_counter()
        while self.arrived[: self.n].min() < self.turn:
            if self.arrived[self.n]:
                raise Closed
            if not self.bells[self.rank].wait(0.0):
                yield
                self.bells[self.rank].wait(0.02)
        self.waited += time.perf_counter() - before
        return self.sums[mine, :, : len(sums)].sum(0)


def _mean(parts: np.ndarray, out: np.ndarray) -> None:
    """Mean of [replicas, size] over the replicas, added in their order."""
    np.add(parts[0], parts[min(1, len(parts) - 1)], out=out)
    for part in parts[2:]:
        out += part
    out *= 1.0 / len(parts) if len(parts) > 1 else 0.5  # one alone was added to itself

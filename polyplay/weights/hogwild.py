"""Weights changed without waiting: Hogwild, Chunked.

Hogwild: one vector of weights that several workers change without a lock.
"""

from __future__ import annotations

import math
import threading
import time
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from polyplay.core.shared_memory import RobustLocks, SharedBlock, shared_array
from polyplay.core.worker import Arrow, WorkerContext
from polyplay.nets.device import HostCopy, to_device
from polyplay.nets.policy import Network
from polyplay.weights import optimizers
from polyplay.weights.params import FlatParams, SharedArrays, buffers_in, module_nbytes
from polyplay.weights.update import (
    READY,
    Apply,
    BoundUpdate,
    Counts,
    OptimizerSpec,
    Sums,
    Update,
    clip_gradient,
    clipped_step,
)

# Weights that workers change without waiting for each other: one vector in shared memory, and the counts of all.


class SharedWeights(SharedArrays, Counts, Update):
    """One set of weights and of optimiser statistics, changed by up to `workers` workers. `weights`, `size`: of the
    parameters, and of the whole vector (flat.param_sizes). `copy`: every worker has a copy of its own.
    """

    asynchronous, copy = True, True
    head = shared_array(np.int64, lambda _: (8,))  # written by worker 0
    counters = shared_array(np.int64, lambda w: (w.workers, 8))  # by that worker
    statistics = shared_array(np.float32, lambda w: (len(w.optim.statistics), w.weights))

    def __init__(self, optim: OptimizerSpec, weights: int, size: int, workers: int, bells: int = 0):
        self.optim, self.weights, self.size, self.workers = optim, weights, size, workers
        super().__init__(bells)

    def label(self) -> str:
        return f"shared: {self.weights:,} weights and {self.optim.name}'s {', '.join(self.optim.statistics)}"

    def arrows(self) -> list[Arrow]:
        return [Arrow(self.label(), ("update",), ("update", "params"))]

    def worker_nbytes(self, module: Network) -> float:
        return (1.0 + self.copy) * module_nbytes(module)


class CopiedUpdate(BoundUpdate):
    """Of a worker on shared weights. `shared`: their vector, where the worker's own is a copy of it."""

    def __init__(self, weights: SharedWeights, ctx: WorkerContext, vector: FlatParams, shared: Tensor | None):
        super().__init__(weights, ctx, vector, weights)
        self.shared = shared
        self.copied = -1  # version of its copy, at least
        self.buffers = [part.clone() for part in vector.buffers()]  # as they were when the weights were copied

    def begin(self, version: int, learnt: float) -> None:
        """Worker 0 gives its weights to all."""
        if self.fresh:
            if self.shared is not None:
                self.shared.copy_(self.vector.flat)
            super().begin(version, learnt)
            self.head[READY] = 1

    def newest(self) -> int:
        """Copies the shared weights, which others may be changing meanwhile; their version."""
        version = self.copied = self.version
        if self.shared is not None:
            self.vector.flat.copy_(self.shared)
            self._copied()
        return version

    def observed(self) -> None:
        """What the worker's rows moved in its own floating buffers moves the shared ones as much. Where nothing is
        known yet, worker 0 alone begins: first means of several are no mean when they are added.
        """
        vector, at = self.vector, self.vector.weights
        if self.shared is None or vector.size == at:
            return
        parts = zip(buffers_in(self.shared, at, vector.doubles), vector.buffers(), self.buffers, strict=True)
        if self.ctx.index == 0 or any(bool(before.any()) for before in self.buffers):
            for shared, own, before in parts:
                shared += (own - before).to(shared.device)
        self._copied()

    def _copied(self) -> None:
        for before, own in zip(self.buffers, self.vector.buffers(), strict=True):
            before.copy_(own)


_making = threading.Lock()  # of a Hogwild's memory on a device


class Hogwild(SharedWeights):
    """One vector of weights and one set of optimiser statistics in shared memory, changed by up to `workers` workers
    without any lock (Recht et al. 2011; Mnih et al. 2016): of two that write at once, parts of both remain.

    `weights`, `size`: of the parameters, and of the whole vector (flat.param_sizes). `copy`: every worker has a copy of
    its own, renewed before each rollout (A3C); without it, modules lie in the shared memory itself (threads of one
    process, each with its own module and gradient). Worker 0 brings the first weights; the others wait for them.

    Floating buffers are shared too: a worker's `observe` moves the shared ones by as much as it moved its own, so all
    workers' rows count in them, and what two write at once may lose one of them.
    """

    LOCAL, detail = ("_on_device",), ", no lock"
    shared = shared_array(np.float32, lambda h: (h.size,))

    def __init__(self, optim: OptimizerSpec, weights: int, size: int, workers: int, copy: bool = True):
        self.copy = copy
        super().__init__(optim, weights, size, workers)

    def _attach(self) -> None:
        super()._attach()
        self._on_device: tuple[torch.Tensor, torch.Tensor] | None = None  # see `tensors`

    def vector(self, ctx: WorkerContext, module: Network) -> FlatParams:
        if self.copy:
            return FlatParams(module)
        memory, _ = self.tensors(next(module.parameters()).device)
        return FlatParams(module, memory, write=ctx.index == 0 and not self.ready)

    def tensors(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The vector and the statistics where they are used, by base tensors of their own each time: on a CPU the
        shared block; on a device, whose users are threads of one process, memory there.
        """
        if device.type == "cpu":
            return torch.from_numpy(self.shared), torch.from_numpy(self.statistics)
        with _making:
            if self._on_device is None:
                self._on_device = to_device(self.shared, device), to_device(self.statistics, device)
        return self._on_device[0].data, self._on_device[1].data

    def bind(self, ctx: WorkerContext, vector: FlatParams) -> BoundUpdate:
        return _Hogwild(self, ctx, vector)

    def reader(self, module: Network) -> FlatParams:
        """Binds a module that only reads to the shared weights, once they are `ready`."""
        return FlatParams(module, self.tensors(next(module.parameters()).device)[0], write=False)


class _Hogwild(CopiedUpdate):
    def __init__(self, hogwild: Hogwild, ctx: WorkerContext, vector: FlatParams):
        shared, statistics = hogwild.tensors(vector.flat.device)
        super().__init__(hogwild, ctx, vector, shared if hogwild.copy else None)
        self.parameter = nn.Parameter(shared[: hogwild.weights]) if hogwild.copy else vector.parameter
        self.parameter.grad = vector.grad
        self.optimizer = hogwild.optim.make(self.parameter)
        optimizers.share_statistics(self.optimizer, statistics, fill=self.fresh)

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        self.observed()
        optimizers.set_step(self.optimizer, self.version)  # Adam's, of all workers' updates
        yield from ()
        return clipped_step(self.vector, self.optimizer, self.clip, learning_rate), sums


# Accel RL's asynchronous update (Stooke & Abbeel 2018): a central vector in chunks, each updated by who claims it.
#
# Workers don't wait for each other's rollouts, only, and briefly, for a chunk that another is in. Unlike Hogwild's,
# every chunk's update is whole: it meets no other half way, and the worker leaves with the weights that it made there.


POLL = 0.001  # seconds between two tries where all chunks left are taken, as in accel_rl


class Chunked(SharedWeights):
    """One vector of weights and one set of optimiser statistics in shared memory, in `chunks` parts.

    `weights`, `size`: of the parameters, and of the whole vector (flat.param_sizes); chunks: accel_rl's are 3. The
    gradient is clipped by its own global norm. For each chunk, in the order in which they come free: lock it, apply
    this worker's gradient to the central weights and statistics, copy the result into this worker's weights, unlock it.
    A chunk whose worker dies in it is free again, half updated.
    """

    shared = shared_array(np.float32, lambda c: (c.size,))
    done = shared_array(np.int64, lambda c: (c.chunks,))  # updates of each

    def __init__(self, optim: OptimizerSpec, weights: int, size: int, workers: int, chunks: int = 3):
        self.chunks, self.locks, self.detail = chunks, SharedBlock(chunks), f", {chunks} parts"
        super().__init__(optim, weights, size, workers)

    def bind(self, ctx: WorkerContext, vector: FlatParams) -> BoundUpdate:
        return _Chunked(self, ctx, vector)

    def parts(self) -> list[slice]:
        edges = np.linspace(0, self.weights, self.chunks + 1).astype(int).tolist()
        return [slice(a, b) for a, b in pairwise(edges)]


class _Chunked(CopiedUpdate):
    """Its own updates renew the worker's copy, part by part."""

    shared: Tensor

    def __init__(self, chunked: Chunked, ctx: WorkerContext, vector: FlatParams):
        super().__init__(chunked, ctx, vector, torch.from_numpy(chunked.shared))
        self.done, self.gradient, self.met = chunked.done, HostCopy(vector.grad), -1  # version met, at most
        self.optimizer = self._make(chunked, slice(0, chunked.weights), self.fresh)
        self.parts = chunked.parts()
        self.optimizers = [self._make(chunked, part, fill=False) for part in self.parts]
        self.lock, self.before = RobustLocks(chunked.locks), np.zeros(chunked.chunks, np.int64)

    def _make(self, chunked: Chunked, part: slice, fill: bool) -> torch.optim.Optimizer:
        """An optimiser of a part of the central weights."""
        parameter = nn.Parameter(self.shared[part])
        parameter.grad = torch.from_numpy(self.gradient.array)[part]
        made = chunked.optim.make(parameter)
        optimizers.share_statistics(made, torch.from_numpy(chunked.statistics)[:, part], fill=fill)
        return made

    def newest(self) -> int:
        """Copies the weights once, at the beginning."""
        return self.copied if self.copied >= 0 else super().newest()

    def observed(self) -> None:
        super().observed()
        self.vector.flat[self.vector.weights :] = self.shared[self.vector.weights :]
        self._copied()

    def add(self, rows: float, updates: int = 1) -> int:
        super().add(rows, updates)
        return self.met

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        self.observed()
        norm = clip_gradient(self.vector, self.clip)
        self.gradient.fetch()
        n = len(self.parts)
        left = [(self.ctx.index + i) % n for i in range(n)] if math.isfinite(norm) else []
        while left:
            taken = [chunk for chunk in left if self._visit(chunk, learning_rate)]
            left = [chunk for chunk in left if chunk not in taken]
            if left and not taken:
                yield
                time.sleep(POLL)
                self.waited += POLL
        optimizers.set_step(self.optimizer, int(self.done.max()) + self.begun)
        if math.isfinite(norm):
            # others may be in mid-update, so what this one met is the most that a part had had, and what the copy has
            # now the least: no row's lag is reported too small
            self.met, self.copied = self.begun + int(self.before.max()), self.begun + int(self.before.min()) + 1
        return norm, sums

    def _visit(self, chunk: int, learning_rate: float) -> bool:
        """Update a chunk and take its weights home, if nobody is in it."""
        if not self.lock.acquire(chunk):
            return False
        optimizer = self.optimizers[chunk]
        self.before[chunk] = self.done[chunk]
        optimizers.set_step(optimizer, int(self.done[chunk]) + self.begun)
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()
        self.done[chunk] += 1
        part = self.parts[chunk]
        self.vector.flat[part] = self.shared[part]
        self.lock.release(chunk)
        return True

"""Accel RL's asynchronous update (Stooke & Abbeel 2018): a central vector in chunks, each updated by who claims it.

Workers don't wait for each other's rollouts, only, and briefly, for a chunk that another is in. Unlike Hogwild's, every
chunk's update is whole: it meets no other half way, and the worker leaves with the weights that it made there.
"""

from __future__ import annotations

import math
import time
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from polyplay.common.context import WorkerContext
from polyplay.common.locks import RobustLocks
from polyplay.nets.device import Mirror
from polyplay.weights import optimizers
from polyplay.weights.flat import FlatParams
from polyplay.weights.shared_arrays import shared_array
from polyplay.weights.shared_weights import CopiedCounts, SharedWeights
from polyplay.weights.update import Apply, BoundUpdate, OptimizerSpec, Sums, clip_gradient

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
        if not 1 <= chunks <= weights:
            raise ValueError(f"{chunks} chunks of {weights} weights; there must be at least 1, and none may be empty")
        self.chunks, self.locks = chunks, RobustLocks(chunks)
        super().__init__(optim, weights, size, workers)

    def title(self) -> str:
        return f"Chunked({self.optim.name}), {self.chunks} parts"

    def bind(self, ctx: WorkerContext, vector: FlatParams) -> BoundUpdate:
        return _Chunked(self, ctx, vector)

    def parts(self) -> list[slice]:
        edges = np.linspace(0, self.weights, self.chunks + 1).astype(int).tolist()
        return [slice(a, b) for a, b in pairwise(edges)]


class _Chunked(BoundUpdate):
    counts: CopiedCounts

    def __init__(self, chunked: Chunked, ctx: WorkerContext, vector: FlatParams):
        super().__init__(chunked, ctx, vector)
        self.done, self.shared, self.gradient = chunked.done, torch.from_numpy(chunked.shared), Mirror(vector.grad)
        self.counts = CopiedCounts(chunked, ctx, vector, self.shared, pushed=True)
        self.optimizer = self._make(chunked, slice(0, chunked.weights), self.counts.fresh)
        self.parts = chunked.parts()
        self.optimizers = [self._make(chunked, part, fill=False) for part in self.parts]
        self.lock, self.before = chunked.locks.join(ctx.index), np.zeros(chunked.chunks, np.int64)

    def _make(self, chunked: Chunked, part: slice, fill: bool) -> torch.optim.Optimizer:
        """An optimiser of a part of the central weights."""
        parameter = nn.Parameter(self.shared[part])
        parameter.grad = torch.from_numpy(self.gradient.array)[part]
        made = chunked.optim.make(parameter)
        optimizers.share_statistics(made, torch.from_numpy(chunked.statistics)[:, part], fill=fill)
        return made

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        self.counts.observed()
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
        optimizers.set_step(self.optimizer, int(self.done.max()) + self.counts.begun)
        if math.isfinite(norm):
            self.counts.renewed(self.before)
        return norm, sums

    def _visit(self, chunk: int, learning_rate: float) -> bool:
        """Update a chunk and take its weights home, if nobody is in it."""
        if not self.lock.acquire(chunk):
            return False
        optimizer = self.optimizers[chunk]
        self.before[chunk] = self.done[chunk]
        optimizers.set_step(optimizer, int(self.done[chunk]) + self.counts.begun)
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()
        self.done[chunk] += 1
        part = self.parts[chunk]
        self.vector.flat[part] = self.shared[part]
        self.lock.release(chunk)
        return True

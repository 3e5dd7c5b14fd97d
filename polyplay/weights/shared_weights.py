"""Weights that workers change without waiting for each other: one vector in shared memory, and the counts of all."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from polyplay.common.context import WorkerContext
from polyplay.common.edges import Arrow
from polyplay.nets.policy import Network
from polyplay.weights.flat import FlatParams, buffers_in, module_nbytes
from polyplay.weights.shared_arrays import SharedArrays, shared_array
from polyplay.weights.update import Counts, OptimizerSpec, Update

READY, BEGUN, LEARNT = 0, 1, 2  # cells of the header; the last two are of earlier runs
UPDATES, STEPS = 0, 1  # of a worker: its updates, and the agent steps it learnt from


class SharedWeights(SharedArrays, Update):
    """One set of weights and of optimiser statistics, changed by up to `workers` workers. `weights`, `size`: of the
    parameters, and of the whole vector (flat.param_sizes). `copy`: every worker has a copy of its own.
    """

    apart, copy = True, True
    head = shared_array(np.int64, lambda _: (8,))  # written by worker 0
    counters = shared_array(np.int64, lambda w: (w.workers, 8))  # by that worker
    statistics = shared_array(np.float32, lambda w: (len(w.optim.statistics), w.weights))

    def __init__(self, optim: OptimizerSpec, weights: int, size: int, workers: int, bells: int = 0):
        self.optim, self.weights, self.size, self.workers = optim, weights, size, workers
        super().__init__(bells)

    ready = property(lambda self: bool(self.head[READY]))
    begun = property(lambda self: int(self.head[BEGUN]))
    version = property(lambda self: int(self.head[BEGUN] + self.counters[:, UPDATES].sum()))
    learnt = property(lambda self: float(self.head[LEARNT] + self.counters[:, STEPS].sum()))

    def label(self) -> str:
        return f"shared: {self.weights:,} weights and {self.optim.name}'s {', '.join(self.optim.statistics)}"

    def arrows(self) -> list[Arrow]:
        return [Arrow(self.label(), ("update",), ("update", "params"))]

    def worker_nbytes(self, module: Network) -> float:
        return (1.0 + self.copy) * module_nbytes(module)


class SharedCounts(Counts):
    """Counts of all workers on shared weights, from cells that one worker each writes."""

    def __init__(self, weights: SharedWeights, ctx: WorkerContext, vector: FlatParams):
        self.weights, self.vector = weights, vector
        self.fresh = ctx.index == 0 and not weights.ready
        self.counters = weights.counters[ctx.index]

    ready = property(lambda self: self.weights.ready)
    version = property(lambda self: self.weights.version)
    learnt = property(lambda self: self.weights.learnt)
    begun = property(lambda self: self.weights.begun)

    def add(self, rows: float) -> int:
        at = self.version
        self.counters[: STEPS + 1] += (1, int(rows))
        return at

    def rest(self, rows: float) -> None:
        self.counters[STEPS] += int(rows)


class CopiedCounts(SharedCounts):
    """And the way of the weights. `shared`: the vector, where the worker's own is a copy of it. `pushed`: a copy that
    its own updates renew, part by part, which then call `renewed`.
    """

    def __init__(
        self, of: SharedWeights, ctx: WorkerContext, vector: FlatParams, shared: Tensor | None, pushed: bool = False
    ):
        super().__init__(of, ctx, vector)
        self.shared, self.pushed, self.follows = shared, pushed, ctx.index > 0
        self.copied, self.met = -1, -1  # versions: of its copy at least, met by its update at most
        self.before = [part.clone() for part in vector.buffers()]  # buffers, as they were when the weights were copied

    def begin(self, version: int, learnt: float) -> None:
        """Worker 0 gives its weights to all."""
        if self.fresh:
            if self.shared is not None:
                self.shared.copy_(self.vector.flat)
            head = self.weights.head
            head[BEGUN], head[LEARNT] = version, learnt
            head[READY] = 1

    def renewed(self, before: np.ndarray) -> None:
        """An update has renewed the copy. before: how many each part had had then; others may be in mid-update, so what
        it met is the most, and what the copy has now the least of them: no row's lag is reported too small.
        """
        self.met, self.copied = self.begun + int(before.max()), self.begun + int(before.min()) + 1

    def newest(self) -> int:
        """Copies the shared weights, which others may be changing meanwhile; their version. Where updates renew the
        copy, that is done once, at the beginning.
        """
        if self.pushed and self.copied >= 0:
            return self.copied
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
        parts = zip(buffers_in(self.shared, at, vector.doubles), vector.buffers(), self.before, strict=True)
        if not self.follows or any(bool(before.any()) for before in self.before):
            for shared, own, before in parts:
                shared += (own - before).to(shared.device)
        if self.pushed:
            vector.flat[at:] = self.shared[at:]
        self._copied()

    def _copied(self) -> None:
        for before, own in zip(self.before, self.vector.buffers(), strict=True):
            before.copy_(own)

    def add(self, rows: float) -> int:
        at = super().add(rows)
        return self.met if self.pushed else at

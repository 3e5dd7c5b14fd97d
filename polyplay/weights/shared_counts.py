"""Version, agent steps learnt and who is ready, in shared memory: of learners that do not wait for each other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from polyplay.common.context import WorkerContext
from polyplay.weights.flat import FlatParams

# cells of the header, int64; of a worker: its updates, and the agent steps it learnt from
_READY, _VERSION, _LEARNT = 0, 1, 2


class SharedCounts:
    """Counts of all workers on shared weights, from cells that one worker each writes; and the way of the weights.

    `shared`: the vector, where the worker's own is a copy of it. `pushed`: a copy that its own updates renew, part by
    part, which then calls `renewed`.
    """

    def __init__(
        self,
        ctx: WorkerContext,
        vector: FlatParams,
        shared: torch.Tensor | None,
        head: np.ndarray,
        counters: np.ndarray,
        pushed: bool = False,
    ):
        self.ctx, self.vector, self.shared, self.head, self.counters = ctx, vector, shared, head, counters
        self.pushed, self.copied, self.met = pushed, -1, -1  # versions: of its copy at least, met by its update at most
        self.fresh = ctx.index == 0 and not head[_READY]
        self.buffers = vector.flat[vector.weights :].clone()  # as they were when the weights were copied

    begun = property(lambda self: int(self.head[_VERSION]))
    version = property(lambda self: int(self.head[_VERSION] + self.counters[:, 0].sum()))
    learnt = property(lambda self: float(self.head[_LEARNT] + self.counters[:, 1].sum()))

    def begin(self, version: int, learnt: float) -> None:
        """Worker 0 gives its weights to all."""
        if self.fresh:
            if self.shared is not None:
                self.shared.copy_(self.vector.flat)
            self.head[_VERSION], self.head[_LEARNT] = version, learnt
            self.head[_READY] = 1

    @property
    def ready(self) -> bool:
        return bool(self.head[_READY])

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
            self.buffers.copy_(self.vector.flat[self.vector.weights :])
        return version

    def observed(self) -> None:
        """What the worker's rows moved in its own floating buffers moves the shared ones as much."""
        at = self.vector.weights
        if self.shared is not None and self.vector.size > at:
            self.shared[at:] += (self.vector.flat[at:] - self.buffers).to(self.shared.device)
            if self.pushed:
                self.vector.flat[at:] = self.shared[at:]
            self.buffers.copy_(self.vector.flat[at:])

    def add(self, rows: float) -> int:
        at = self.met if self.pushed else self.version
        self.counters[self.ctx.index] += (1, int(rows))
        return at

    def rest(self, rows: float) -> None:
        self.counters[self.ctx.index, 1] += int(rows)

    def state(self) -> dict[str, list[int]]:
        return {}

    def load_state(self, saved: Mapping[str, list[int]]) -> None:
        """There is nothing more to load."""

"""Items by rank of priority, as Schaul et al. 2016 (appendix B.2.1): a heap in an array stands for the sorted array.

An item's rank is its place in the heap, from 1; the heap is sorted again once as many priorities changed as it has
items. Nothing of priority 0 is in it. Compiled loops over arrays: heap int32 [slots], where int32 [slots] (-1: not in
it), priority float64 [slots], counts int64 [2]: items, and changes since it was sorted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polyplay.buffers.replay.rng import compiled, fractions


class RankHeap:
    """P ∝ (1/rank)^alpha over as many as `n` slots."""

    def __init__(self, n: int, alpha: float):
        self.heap, self.where, self.priority = np.zeros(n, np.int32), np.full(n, -1, np.int32), np.zeros(n)
        self.counts = np.zeros(2, np.int64)
        self.mass = np.cumsum(np.arange(1, n + 1, dtype=np.float64) ** -alpha)  # of ranks 1 … i + 1

    @property
    def nbytes(self) -> int:
        return self.heap.nbytes + self.where.nbytes + self.priority.nbytes + self.mass.nbytes

    @property
    def size(self) -> int:
        return int(self.counts[0])

    def put(self, slots: np.ndarray, priority: np.ndarray) -> None:
        """New priorities ≥ 0 (float64 [n]); 0 takes an item out."""
        _put(self.heap, self.where, self.priority, self.counts, slots, priority)
        if self.counts[1] > max(self.size, 64):
            self.sort()

    def sort(self) -> None:
        """Make every item's rank exact; those that are equal stay in their order."""
        n = self.size
        order = np.argsort(-self.priority[self.heap[:n]], kind="stable")
        self.heap[:n] = self.heap[:n][order]
        self.where[self.heap[:n]] = np.arange(n, dtype=np.int32)
        self.counts[1] = 0

    def draw(self, key: np.uint64, begin: np.uint64, n: int, stratified: bool) -> tuple[np.ndarray, np.ndarray]:
        """Slots int64 [n] and their P float64 [n]; there must be an item. stratified: see SumTree.draw."""
        x = fractions(key, begin, n)
        x = (np.arange(n) + x) / n if stratified else x
        total = self.mass[self.size - 1]
        rank = np.minimum(np.searchsorted(self.mass[: self.size], x * total, side="right"), self.size - 1)
        below = np.where(rank > 0, self.mass[rank - 1], 0.0)
        return self.heap[rank].astype(np.int64), (self.mass[rank] - below) / total


@compiled
def _put(heap: Any, where: Any, priority: Any, counts: Any, slots: Any, values: Any) -> None:
    for i in range(slots.size):
        slot, n = slots[i], counts[0]
        at = where[slot]
        priority[slot] = values[i]
        if values[i] > 0:
            if at < 0:
                at = n
                heap[at] = slot
                counts[0] += 1
            _settle(heap, where, priority, counts[0], at)
        elif at >= 0:
            counts[0] -= 1
            where[slot] = -1
            if at < n - 1:
                heap[at] = heap[n - 1]
                _settle(heap, where, priority, n - 1, at)
        counts[1] += 1


@compiled
def _settle(heap: Any, where: Any, priority: Any, n: Any, at: Any) -> None:
    """Move what is at `at` up or down to where it belongs."""
    slot = heap[at]
    p = priority[slot]
    while at > 0 and priority[heap[(at - 1) >> 1]] < p:
        heap[at] = heap[(at - 1) >> 1]
        where[heap[at]] = at
        at = (at - 1) >> 1
    while 2 * at + 1 < n:
        child = 2 * at + 1
        if child + 1 < n and priority[heap[child + 1]] > priority[heap[child]]:
            child += 1
        if priority[heap[child]] <= p:
            break
        heap[at] = heap[child]
        where[heap[at]] = at
        at = child
    heap[at] = slot
    where[slot] = at

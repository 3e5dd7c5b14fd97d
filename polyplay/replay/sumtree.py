"""A sum tree: numbers ≥ 0 by index, drawn in proportion. float64, eight children to a node, a node to a cache line.

Parents are summed anew, never corrected by differences, always in the same order: so they are the same bits whatever
was written before, and a tree is saved by its leaves. All draws go down a level at a time, without branches, so that
their waits for memory overlap. At each of the three halvings of a node the right half is taken only if its sum is
not 0: rounding never leads to a leaf of 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polyplay.replay.draws import compiled, fraction

WIDTH = 8
LEAST, MOST = 1e-290, 1e290  # of a leaf that is not 0: sums neither vanish nor overflow


class SumTree:
    """`n` leaves, at first 0."""

    def __init__(self, n: int):
        sizes = [-(-n // WIDTH) * WIDTH]
        while sizes[-1] > WIDTH:
            sizes.append(-(-sizes[-1] // WIDTH**2) * WIDTH)
        self.offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)  # leaves first, the root last
        memory = np.zeros(self.offsets[-1] + 2 * WIDTH)
        skip = -memory.ctypes.data % 64 // 8
        self.nodes = memory[skip : skip + self.offsets[-1] + 1]
        self.leaves = self.nodes[:n]
        self._work = np.zeros(64, np.int64)

    @property
    def total(self) -> float:
        return float(self.nodes[-1])

    @property
    def nbytes(self) -> int:
        return int(self.nodes.nbytes)

    def put(self, at: np.ndarray, values: np.ndarray) -> None:
        """leaves[at] = values, the last one where an index comes twice. at int64 [n], values float64 [n], ≥ 0, finite.

        Neighbours share their ancestors' sums: n leaves in a row cost little more than n/8 sums.
        """
        if len(at) > len(self._work):
            self._work = np.zeros(2 * len(at), np.int64)
        _put(self.nodes, self.offsets, at, values, self._work)

    def draw(self, key: np.uint64, begin: np.uint64, n: int, stratified: bool) -> np.ndarray:
        """int64 [n] leaves, none of them 0, by numbers begin … begin + n - 1 of `key`; total must not be 0.

        stratified: number i from the i-th of n segments of equal mass; else each from the whole.
        """
        at, mass = np.empty(n, np.int64), np.empty(n)
        _masses(key, begin, self.nodes[-1], stratified, mass)
        _find(self.nodes, self.offsets, mass, at)
        return at

    def find(self, mass: np.ndarray) -> np.ndarray:
        """The leaf in which each of `mass` (float64 [n], 0 ≤ mass < total) lies."""
        at = np.empty(len(mass), np.int64)
        _find(self.nodes, self.offsets, mass.copy(), at)
        return at

    def load(self, leaves: np.ndarray) -> None:
        """All leaves at once."""
        self.put(np.arange(len(leaves), dtype=np.int64), leaves)


@compiled
def _put(nodes: Any, offsets: Any, at: Any, values: Any, work: Any) -> None:
    n, last = 0, -1
    for i in range(at.size):
        nodes[at[i]] = values[i]
        parent = at[i] >> 3
        if parent != last:
            work[n] = last = parent
            n += 1
    for level in range(offsets.size - 1):
        below, here, m, last = offsets[level], offsets[level + 1], 0, -1
        for i in range(n):
            at_ = work[i]
            b = below + at_ * 8
            left = (nodes[b] + nodes[b + 1]) + (nodes[b + 2] + nodes[b + 3])
            nodes[here + at_] = left + ((nodes[b + 4] + nodes[b + 5]) + (nodes[b + 6] + nodes[b + 7]))
            parent = at_ >> 3
            if parent != last:
                work[m] = last = parent
                m += 1
        n = m


@compiled
def _masses(key: Any, begin: Any, total: Any, stratified: Any, mass: Any) -> None:
    n = mass.size
    for i in range(n):
        x = fraction(key, begin + np.uint64(i))
        mass[i] = (i + x) / n * total if stratified else x * total


@compiled
def _find(nodes: Any, offsets: Any, mass: Any, at: Any) -> None:
    """Spends `mass` on the way down."""
    at[:] = 0
    for level in range(offsets.size - 2, -1, -1):
        offset = offsets[level]
        for i in range(mass.size):
            b, x = offset + at[i] * 8, mass[i]
            left = (nodes[b] + nodes[b + 1]) + (nodes[b + 2] + nodes[b + 3])
            right = (nodes[b + 4] + nodes[b + 5]) + (nodes[b + 6] + nodes[b + 7])
            go = (x >= left) & (right > 0.0)
            x -= left if go else 0.0
            b += 4 if go else 0
            left, right = nodes[b] + nodes[b + 1], nodes[b + 2] + nodes[b + 3]
            go = (x >= left) & (right > 0.0)
            x -= left if go else 0.0
            b += 2 if go else 0
            left, right = nodes[b], nodes[b + 1]
            go = (x >= left) & (right > 0.0)
            mass[i] = x - (left if go else 0.0)
            at[i] = b + (1 if go else 0) - offset

"""Sum tree for prioritized replay. It draws indices with probabilities in proportion to the leaves, which are ≥ 0.

Each node is the sum of its eight children. If a child changes, its parent is summed again in the same order. Rounding
errors therefore do not add up, and equal leaves always make equal trees.
"""

from __future__ import annotations

import numpy as np

from polyplay.core.compiled import bits, compiled, inlined

WIDTH = 8
MOST = 1e290  # largest allowed leaf, so that sums do not overflow
_0, _1, _2, _3, _4, _8 = (np.uint64(i) for i in (0, 1, 2, 3, 4, 8))  # unsigned, so that no index is negative
_11, _32, _LOW = np.uint64(11), np.uint64(32), np.uint64(0xFFFFFFFF)


# A random generator is a counter: uint64 [2], a key and the number of draws so far.


def counter_rng(seed: int) -> np.ndarray:
    """Return a new random generator with this seed."""
    return np.array([np.random.SeedSequence(seed % 2**64).generate_state(1, np.uint64)[0], 0], np.uint64)


@inlined
def below(rng: np.ndarray, limit: np.uint64) -> np.uint64:
    """Draw an integer from 0 to `limit` - 1, exactly uniform (Lemire 2019). `limit` must be from 1 to 2^32 - 1."""
    least = ((_LOW - limit) + _1) % limit
    while True:
        product = (bits(rng[0], rng[1]) >> _32) * limit
        rng[1] += _1
        if (product & _LOW) >= least:
            return product >> _32


@compiled
def uniforms(rng: np.ndarray, n: int) -> np.ndarray:
    """Draw `n` random numbers from [0, 1), each with 53 random bits. Return them as float64 [n]."""
    out = np.empty(n)
    for i in range(n):
        out[i] = np.float64(bits(rng[0], rng[1] + np.uint64(i)) >> _11) * 2.0**-53
    rng[1] += np.uint64(n)
    return out


class SumTree:
    """Sum tree with `n` leaves, which are all 0 at first."""

    def __init__(self, n: int):
        sizes = [-(-n // WIDTH) * WIDTH]
        while sizes[-1] > WIDTH:
            sizes.append(-(-sizes[-1] // WIDTH**2) * WIDTH)
        self.offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)  # leaves first, the root last
        array = np.zeros(self.offsets[-1] + 2 * WIDTH)
        skip = -array.ctypes.data % 64 // 8
        self.nodes = array[skip : skip + self.offsets[-1] + 1]
        self.leaves = self.nodes[:n]
        self._work = np.zeros(64, np.uint64)

    @property
    def total(self) -> float:
        return float(self.nodes[-1])

    def put(self, at: np.ndarray, values: np.ndarray) -> None:
        """Set the leaves `at`, int64 [n], to `values`, float64 [n], which are finite and ≥ 0. For a repeated index, the
        last value counts.
        """
        if len(at) > len(self._work):
            self._work = np.zeros(2 * len(at), np.uint64)
        _put(self.nodes, self.offsets, at.view(np.uint64), values, self._work)

    def draw(self, rng: np.ndarray, n: int, stratified: bool) -> np.ndarray:
        """Draw the indices of `n` nonzero leaves, int64 [n], with the next n random numbers. `total` must not be 0.
        `stratified`: whether to divide the total into n equal segments, and to draw one index from each.
        """
        share = uniforms(rng, n)
        if stratified:
            share = (np.arange(n) + share) / n
        return self.find(share * self.nodes[-1])

    def find(self, mass: np.ndarray) -> np.ndarray:
        """Return the index of the leaf at each cumulative sum in `mass` (float64 [n], ≥ 0). For a sum ≥ `total`, it is
        the last leaf.
        """
        at = np.empty(len(mass), np.uint64)
        _find(self.nodes, self.offsets, mass, at, np.uint64(len(self.leaves)))
        return at.view(np.int64)

    def load(self, leaves: np.ndarray) -> None:
        """Set all leaves at once."""
        self.put(np.arange(len(leaves), dtype=np.int64), leaves)


@inlined
def _sum4(nodes: np.ndarray, b: np.uint64) -> float:
    return (nodes[b] + nodes[b + _1]) + (nodes[b + _2] + nodes[b + _3])


@compiled
def _put(nodes: np.ndarray, offsets: np.ndarray, at: np.ndarray, values: np.ndarray, work: np.ndarray) -> None:
    """Write leaves, and update the sums above them. `work`: scratch array for numbers of nodes."""
    n, last = 0, ~_0
    for i in range(at.size):
        nodes[at[i]] = values[i]
        parent = at[i] >> _3
        n += int(parent != last)
        last = parent
        work[n - 1] = parent
    for level in range(offsets.size - 1):
        below, here, m, last = np.uint64(offsets[level]), np.uint64(offsets[level + 1]), 0, ~_0
        for i in range(n):
            node = work[i]
            b = below + node * _8
            nodes[here + node] = _sum4(nodes, b) + _sum4(nodes, b + _4)
            parent = node >> _3
            m += int(parent != last)
            last = parent
            work[m - 1] = parent
        n = m


# Floats ≥ 0 are in the order of their bits. Compilers turn other comparisons into jumps, which would be mispredicted
# for half of the draws. All draws descend together, one level at a time, so that their waits for memory overlap.


@inlined
def _reaches(x: float, total: float) -> np.int64:
    """Return a mask: all bits set if x ≥ total, else 0. Both must be ≥ 0."""
    return (np.float64(total).view(np.int64) - np.float64(x).view(np.int64) - np.int64(1)) >> np.int64(63)


@inlined
def _less(x: float, total: float, mask: np.int64) -> float:
    """Return x - total if the mask is set, else x."""
    return x - np.int64(np.float64(total).view(np.int64) & mask).view(np.float64)


@compiled
def _find(nodes: np.ndarray, offsets: np.ndarray, mass: np.ndarray, at: np.ndarray, leaves: np.uint64) -> None:
    left = mass.copy()
    at[:] = _0
    for level in range(offsets.size - 2, -1, -1):
        offset = np.uint64(offsets[level])
        size = leaves if level == 0 else np.uint64(offsets[level] - offsets[level - 1]) >> _3
        for i in range(left.size):
            b, x = offset + at[i] * _8, left[i]
            half = _sum4(nodes, b)
            mask = _reaches(x, half)
            x = _less(x, half, mask)
            b += np.uint64(mask) & _4
            half = nodes[b] + nodes[b + _1]
            mask = _reaches(x, half)
            x = _less(x, half, mask)
            b += np.uint64(mask) & _2
            half = nodes[b]
            mask = _reaches(x, half)
            left[i] = _less(x, half, mask)
            at[i] = min(b + (np.uint64(mask) & _1) - offset, size - _1)
    for i in range(left.size):
        if nodes[at[i]] == 0.0:
            at[i] = _find_nonzero(nodes, offsets, mass[i])


@compiled
def _find_nonzero(nodes: np.ndarray, offsets: np.ndarray, x: float) -> np.uint64:
    """Do the same as `_find` for one sum `x`, but never return a leaf of 0, to which rounding may lead."""
    at = _0
    for level in range(offsets.size - 2, -1, -1):
        b = np.uint64(offsets[level]) + at * _8
        first, second = _sum4(nodes, b), _sum4(nodes, b + _4)
        if x >= first and second > 0.0:
            x -= first
            b += _4
        first, second = nodes[b] + nodes[b + _1], nodes[b + _2] + nodes[b + _3]
        if x >= first and second > 0.0:
            x -= first
            b += _2
        if x >= nodes[b] and nodes[b + _1] > 0.0:
            x -= nodes[b]
            b += _1
        at = b - np.uint64(offsets[level])
    return at

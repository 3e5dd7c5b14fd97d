"""Compiled loops of networks (loaded when first used).

Compiled loops that turn bytes of images into the numbers of a first layer, in one pass over memory.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from polyplay.core.compiled import cached_njit

_compiled = cached_njit()  # division by 0 as in NumPy: checks cost the SIMD


@njit(inline="always")
def _bfloat16(number: np.float32) -> np.uint32:
    """The bits of a float32 rounded to bfloat16, to the nearest even as torch does; no NaN."""
    bits = np.float32(number).view(np.uint32)
    return (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)


@_compiled
def images(x: np.ndarray, mean: np.ndarray, scale: np.float32, out: np.ndarray) -> None:
    """(x − mean)·scale of four planes, interleaved. x uint8 [N, 4, P], mean float32 [4, P], out uint64 [N, P]: four
    bfloat16 a pixel. Packed by hand: stores of neighbours are what keeps compilers from using wide registers.
    """
    a, b, c, d = mean[0], mean[1], mean[2], mean[3]
    for n in range(x.shape[0]):
        p, q, r, s, row = x[n, 0], x[n, 1], x[n, 2], x[n, 3], out[n]
        for i in range(row.size):
            low = _bfloat16((np.float32(p[i]) - a[i]) * scale) | (
                _bfloat16((np.float32(q[i]) - b[i]) * scale) << np.uint32(16)
            )
            high = _bfloat16((np.float32(r[i]) - c[i]) * scale) | (
                _bfloat16((np.float32(s[i]) - d[i]) * scale) << np.uint32(16)
            )
            row[i] = np.uint64(low) | (np.uint64(high) << np.uint64(32))


@_compiled
def floats(x: np.ndarray, mean: np.ndarray, scale: np.float32, out: np.ndarray) -> None:
    """The same as float32 numbers, out [N, 4 · P]: a pixel's four planes side by side."""
    a, b, c, d = mean[0], mean[1], mean[2], mean[3]
    for n in range(x.shape[0]):
        p, q, r, s, row = x[n, 0], x[n, 1], x[n, 2], x[n, 3], out[n]
        for i in range(p.size):
            row[4 * i] = (np.float32(p[i]) - a[i]) * scale
            row[4 * i + 1] = (np.float32(q[i]) - b[i]) * scale
            row[4 * i + 2] = (np.float32(r[i]) - c[i]) * scale
            row[4 * i + 3] = (np.float32(s[i]) - d[i]) * scale


# The compiled loop of nets.epsilon_greedy.


@njit(inline="always")
def _nth_of(among: np.ndarray, u: np.float32) -> int:
    """The index of one of those marked in bool [A], by a uniform; 0 where none is."""
    count = 0
    for marked in among:
        count += marked
    nth = min(np.int64(np.float32(u) * np.float32(count)), count - 1)
    for i in range(among.size):
        nth -= among[i]
        if among[i] and nth < 0:
            return i
    return 0


@cached_njit(error_model="python")
def epsilon_greedy_loop(
    q: np.ndarray,
    legal: np.ndarray,
    noise: np.ndarray,
    epsilon: np.ndarray,
    action: np.ndarray,
    value: np.ndarray,
    chosen: np.ndarray,
) -> None:
    """As epsilon_greedy. q float32, legal bool [B, A]; noise [B, 3 or more], epsilon [B] float32; the others are
    filled. A value that is not a number is the greatest, as torch has it.
    """
    rows, actions = q.shape
    best = np.empty(actions, np.bool_)
    for b in range(rows):
        top = np.float32(-np.inf)
        for a in range(actions):
            if legal[b, a] and not q[b, a] <= top:  # greater, or not a number
                top = q[b, a]
                if top != top:
                    break
        for a in range(actions):
            best[a] = (q[b, a] if legal[b, a] else np.float32(-np.inf)) == top
        u = noise[b]
        at = _nth_of(legal[b], u[1]) if u[0] < epsilon[b] else _nth_of(best, u[2])
        action[b], value[b], chosen[b] = at, top, q[b, at]

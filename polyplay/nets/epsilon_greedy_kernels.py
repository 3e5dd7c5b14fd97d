"""The compiled loop of nets.epsilon_greedy."""

from __future__ import annotations

import numpy as np
from numba import njit

from polyplay.common.compiled import cached_njit


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

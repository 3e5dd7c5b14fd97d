"""Sequences: which rows belong to an item, and what fills an item where its episode has no rows.

The rows that are trained on begin where one of these is true (row_kernels.append):

- `burn_in` rows before, in the same episode, acting gave its state (`every` rows or more after the last time);
- the episode began at most `burn_in` rows before, and a multiple of `every`: then its first row resets the state.

So every transition of every episode is in some item. Rows before the episode, and behind its end, are copies of its
nearest row, `first`, with no reward: part of no transition, and a recurrent state starts from 0 after them.
"""

from __future__ import annotations

import numpy as np

from polyplay.buffers.replay.rng import compiled
from polyplay.buffers.replay.row_kernels import EXTRA, FIRST, TERMINATED, TRUNCATED


@compiled
def spans(
    slots: np.ndarray, T: int, R: int, burn_in: int, flags: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of items whose first trained row is in slots [B]: int64 [T, B] the slot of each row, bool [T, B] whether it is
    the item's own, and bool [T, B] whether the transition to the next row of the item exists.
    """
    B = slots.size
    at, real, valid = np.empty((T, B), np.int64), np.empty((T, B), np.bool_), np.empty((T, B), np.bool_)
    for b in range(B):
        base = slots[b] - slots[b] % R
        back = 0
        while back < burn_in and not flags[base + (slots[b] - base - back) % R] & FIRST:
            back += 1
        slot, inside = base + (slots[b] - base - back) % R, True
        for t in range(T):
            at[t, b], real[t, b], valid[t, b] = slot, t >= burn_in - back and inside, False
            if t >= burn_in - back and inside:
                follows = base + (slot + 1 - base) % R
                inside = not (flags[slot] & (TERMINATED | TRUNCATED) or flags[follows] & (FIRST | EXTRA))
                if inside and t + 1 < T:
                    valid[t, b] = True
                    slot = follows
    return at, real, valid

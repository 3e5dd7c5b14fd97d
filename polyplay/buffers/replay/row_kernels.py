"""What rows are: flags, episodes, which of them may be drawn. Compiled loops over per-lane rings of rows.

A lane's rows are numbered from 0; row u lies in slot lane·R + u mod R. A row may be drawn ("live") once its window is
complete: `window` more rows of its episode are there, or the episode's end. Its window never leaves its episode:

- an ordinary row u completes row u - window;
- a terminated or truncated row completes all that wait, with shorter windows;
- a first row completes what an interrupted episode left: their windows end with the last row that was seen.

A row's byte of flags is all that is kept of that. Rows that only hold planes of a stack are EXTRA: they start nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from polyplay.buffers.replay.rng import below, compiled

_inline: Any = njit(inline="always", error_model="numpy")

FIRST, TERMINATED, TRUNCATED, EXTRA, LIVE, DRAWN, ANCHOR, ITEM = (1 << i for i in range(8))
_END, _BREAK = TERMINATED | TRUNCATED, FIRST | EXTRA
CONTINUES, ZEROS, REPEAT, STRANGE = range(4)  # what precedes the newest plane of a stack
PADDED = 128  # in a row's `age`: older planes than there are repeat the oldest one, instead of being 0
SHIFT, MASK = 32, 2**32 - 1  # an id: the slot, and above it which of its owners
# counters
SIZE, STEPS, INSERTED, EVICTED, UNSEEN, STAMPS, SAMPLED, LATE = range(8)


@_inline
def _slot(base: Any, R: Any, p: Any, back: Any) -> Any:
    """The slot `back` rows before position p of a ring, 0 ≤ back ≤ R."""
    return base + (p - back if p >= back else p - back + R)


@compiled
def flags_of(first: Any, terminated: Any, truncated: Any) -> Any:
    """uint8 [T, B] from bools [T, B]."""
    out = np.empty(first.shape, np.uint8)
    for t in range(first.shape[0]):
        for b in range(first.shape[1]):
            out[t, b] = first[t, b] | terminated[t, b] << 1 | truncated[t, b] << 2
    return out


@compiled
def append(
    given: Any,
    kinds: Any,
    lanes: Any,
    anchored: Any,
    shape: Any,
    lane: Any,
    flags: Any,
    age: Any,
    owner: Any,
    stamp: Any,
    counts: Any,
    slots: Any,
    extra: Any,
    come: Any,
    gone: Any,
) -> Any:
    """Add rows; where they went.

    given uint8 [T, B]: FIRST, TERMINATED, TRUNCATED of the rows; kinds uint8 [T, B]; lanes int64 [B].
    shape int64 [5]: R, planes in a stack, window, burn-in, period (0: every row may be drawn, else items).
    lane int64 [5, L]: head, tail, begin of the episode, first row that waits, last anchor. By slot: flags uint8, age
    uint8, owner uint32 (which row this is, of all that had the slot), stamp int64.
    Written: slots [T, B]; extra [n, 3], (slot, row of [T·B], plane); slots of rows that may be drawn now, `come`, and
    no more, `gone`: one that is in both has a new row, or one that came and went again: flags tell (LIVE).
    Returns (extra rows, come, gone, row of [T·B] whose stack does not follow the one before or -1).
    """
    R, k, window, burn_in, period = shape[0], shape[1], shape[2], shape[3], shape[4]
    keep = burn_in + max(k, 1) - 1 - R  # a row that comes retires the one so many rows from it, and all before
    extras = n_come = n_gone = stamps = unseen = 0
    T, B = given.shape
    steps, strange = counts[STEPS], -1
    for b in range(B):
        at = lanes[b]
        base, u, p = at * R, lane[0, at], lane[0, at] % R
        tail, begin, wait, last = lane[1, at], lane[2, at], lane[3, at], lane[4, at]
        for t in range(T):
            flag, kind = given[t, b], kinds[t, b]
            new = flag & FIRST or u == 0
            if new:
                n_come, stamps = _complete(
                    base, R, u, p, max(wait, tail), u - 1, period, flags, stamp, come, n_come, stamps
                )
                if kind == STRANGE:
                    for j in range(k - 1):
                        while tail <= u + keep:
                            slot = _slot(base, R, p, u - tail)
                            n_gone, stamps, unseen = drop(slot, flags, stamp, gone, n_gone, stamps, unseen)
                            tail += 1
                        slot = base + p
                        flags[slot], age[slot] = _BREAK, 0
                        owner[slot] += 1
                        extra[extras, 0], extra[extras, 1], extra[extras, 2] = slot, t * B + b, j
                        extras += 1
                        u, p = u + 1, _slot(0, R, p, R - 1)
                begin = wait = u
            elif kind == STRANGE:
                strange = t * B + b
                break
            while tail <= u + keep:
                slot = _slot(base, R, p, u - tail)
                n_gone, stamps, unseen = drop(slot, flags, stamp, gone, n_gone, stamps, unseen)
                tail += 1
            slot = slots[t, b] = base + p
            owner[slot] += 1
            before = age[_slot(base, R, p, 1)]
            if kind == CONTINUES and k > 1:
                age[slot] = min((before & 127) + 1, k - 1) | (before & PADDED)
            else:
                age[slot] = k - 1 if kind == STRANGE else PADDED if kind == REPEAT else 0
            steps += 0 if new else 1
            stamp[slot] = steps
            if period:
                told, fresh = False, False
                if u - begin <= burn_in and (u - begin) % period == 0:
                    fresh = (flag if u == begin else flags[_slot(base, R, p, u - begin)]) & FIRST != 0
                if burn_in and u - burn_in >= begin:
                    told = flags[_slot(base, R, p, burn_in)] & ANCHOR != 0
                flag |= ITEM if told or fresh else 0
                if t == 0 and anchored and not flag & FIRST and (last < 0 or u - last >= period):
                    last = u
                    flag |= ANCHOR if burn_in else ANCHOR | ITEM
            flags[slot] = flag
            until = u if flag & _END else u - window + 1
            if until > wait:
                n_come, stamps = _complete(
                    base, R, u, p, max(wait, tail), until, period, flags, stamp, come, n_come, stamps
                )
                wait = until
            if flag & _END:
                wait = u + 1
            u, p = u + 1, _slot(0, R, p, R - 1)
        lane[0, at], lane[1, at], lane[2, at], lane[3, at], lane[4, at] = u, tail, begin, wait, last
        if strange >= 0:
            break
    counts[SIZE] += n_come - n_gone
    counts[STEPS] = steps
    counts[INSERTED] += n_come
    counts[EVICTED] += n_gone
    counts[UNSEEN] += unseen
    counts[STAMPS] += stamps
    return extras, n_come, n_gone, strange


@_inline
def _complete(
    base: Any, R: Any, u: Any, p: Any, begin: Any, end: Any, period: Any, flags: Any, stamp: Any, come: Any, n: Any,
    stamps: Any,
) -> Any:  # fmt: skip
    """Rows begin … end - 1, which waited, may be drawn from now on; row u is at position p."""
    for row in range(begin, end):
        slot = _slot(base, R, p, u - row)
        if not period or flags[slot] & ITEM:
            flags[slot] |= LIVE
            stamps += stamp[slot]
            come[n] = slot
            n += 1
    return n, stamps


@_inline
def drop(slot: Any, flags: Any, stamp: Any, gone: Any, n: Any, stamps: Any, unseen: Any) -> Any:
    """This row is drawn no more."""
    if flags[slot] & LIVE:
        unseen += 0 if flags[slot] & DRAWN else 1
        stamps -= stamp[slot]
        flags[slot] &= 255 - LIVE
        gone[n] = slot
        n += 1
    return n, stamps, unseen


@compiled
def trim(excess: Any, R: Any, lane: Any, flags: Any, stamp: Any, counts: Any, gone: Any) -> Any:
    """Drop the `excess` rows that may be drawn and came first; how many there were."""
    tail, wait, n = lane[1], lane[3], 0
    stamps = unseen = 0
    for at in range(tail.size):
        _skip(at, R, tail, wait, flags)
    while n < excess:
        oldest = -1
        for at in range(tail.size):
            if tail[at] < wait[at] and (
                oldest < 0 or stamp[at * R + tail[at] % R] < stamp[oldest * R + tail[oldest] % R]
            ):
                oldest = at
        if oldest < 0:
            break
        n, stamps, unseen = drop(oldest * R + tail[oldest] % R, flags, stamp, gone, n, stamps, unseen)
        tail[oldest] += 1
        _skip(oldest, R, tail, wait, flags)
    counts[SIZE] -= n
    counts[EVICTED] += n
    counts[UNSEEN] += unseen
    counts[STAMPS] += stamps
    return n


@compiled
def _skip(at: Any, R: Any, tail: Any, wait: Any, flags: Any) -> None:
    """A lane's tail at a row that may be drawn, or at the first one that waits."""
    while tail[at] < wait[at] and not flags[at * R + tail[at] % R] & LIVE:
        tail[at] += 1


@compiled
def pick(key: Any, used: Any, R: Any, lane: Any, flags: Any, out: Any) -> Any:
    """Slots of rows that may be drawn, each with the same chance; the next number of `key`. There must be one."""
    head, tail = lane[0], lane[1]
    ends = np.cumsum(head - tail)
    rows = np.uint64(ends[-1])
    for i in range(out.size):
        while True:
            x, used = below(key, used, rows)
            r = np.int64(x)
            at = np.searchsorted(ends, r, side="right")
            slot = at * R + (head[at] - (ends[at] - r)) % R
            if flags[slot] & LIVE:
                break
        out[i] = slot
    return used


@compiled
def windows(
    slots: Any, R: Any, n: Any, gamma: Any, how: Any, flags: Any, reward: Any, end: Any, total: Any, discount: Any
) -> None:
    """n-step windows of the rows in `slots` [B]: the slot of the last row, G = Σ γʲ·r, D = γᵐ or 0 where terminated.
    how: r is as it is (0), limited to ±1 (1), its sign (2).
    """
    for i in range(slots.size):
        base = slots[i] - slots[i] % R
        at, g, d = slots[i], 0.0, 1.0
        for _ in range(n):
            next_ = at + 1 if at + 1 < base + R else base
            flag = flags[next_]
            if flag & _BREAK:
                break
            at = next_
            r = np.float64(reward[at])
            g += d * (r if how == 0 else min(max(r, -1.0), 1.0) if how == 1 else np.sign(r))
            d *= gamma
            if flag & _END:
                d = 0.0 if flag & TERMINATED else d
                break
        end[i], total[i], discount[i] = at, g, d


@compiled
def planes(slots: Any, R: Any, k: Any, age: Any, zero: Any, out: Any) -> None:
    """Where the planes of stacks are, oldest first: slots [n], out [n, k]; `zero`: where there is an empty one."""
    for i in range(slots.size):
        slot = slots[i]
        base, old = slot - slot % R, age[slot]
        for j in range(k):
            if j > (old & 127):
                out[i, k - 1 - j] = out[i, k - j] if old & PADDED else zero
            else:
                out[i, k - 1 - j] = slot - j if slot - j >= base else slot - j + R


@compiled
def numbers(slots: Any, R: Any, head: Any, out: Any) -> None:
    """The row number of what is in each slot now."""
    for i in range(slots.size):
        at, newest = slots[i] % R, head[slots[i] // R] - 1
        out[i] = newest - (newest - at) % R


@compiled
def judge(ids: Any, priority: Any, most: Any, flags: Any, owner: Any, slots: Any, told: Any) -> Any:
    """What may be changed by new priorities [B] of ids [B]: slots and told [B], as many as are returned first; then the
    greatest of those, and the number of a priority that is not in 0 … most, or -1.
    """
    n, greatest = 0, 0.0
    for i in range(ids.size):
        p = priority[i]
        if not (p >= 0.0 and p <= most):
            return 0, 0.0, i
        slot = ids[i] & MASK
        if 0 <= slot < flags.size and owner[slot] == ids[i] >> SHIFT and flags[slot] & LIVE:
            slots[n], told[n] = slot, p
            greatest = max(greatest, p)
            n += 1
    return n, greatest, -1

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

from polyplay.replay.draws import below, compiled

FIRST, TERMINATED, TRUNCATED, EXTRA, LIVE, DRAWN, ANCHOR, ITEM = (1 << i for i in range(8))
_END, _BREAK = TERMINATED | TRUNCATED, FIRST | EXTRA
CONTINUES, ZEROS, REPEAT, STRANGE = range(4)  # what precedes the newest plane of a stack
PADDED = 128  # in a row's `age`: older planes than there are repeat the oldest one, instead of being 0
# counters
SIZE, STEPS, INSERTED, EVICTED, UNSEEN, STAMPS, SAMPLED, LATE = range(8)


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
    stamp: Any,
    counts: Any,
    slots: Any,
    extra: Any,
    events: Any,
) -> Any:
    """Add rows; where they went.

    given uint8 [T, B]: FIRST, TERMINATED, TRUNCATED of the rows; kinds uint8 [T, B]; lanes int64 [B].
    shape int64 [5]: R, planes in a stack, window, burn-in, period (0: every row may be drawn, else items).
    lane int64 [5, L]: head, tail, begin of the episode, first row that waits, last anchor. flags, age, stamp: [slots].
    Written: slots [T, B], extra [n, 3] (slot, row of [T·B], plane), events [m, 2] (slot, live or not) in order.
    Returns (extra rows, events, row of [T·B] whose stack does not follow the one before or -1).
    """
    R, k, window, burn_in, period = shape[0], shape[1], shape[2], shape[3], shape[4]
    head, tail, begin, wait, last = lane[0], lane[1], lane[2], lane[3], lane[4]
    keep = burn_in + max(k, 1) - 1
    n_extra, n_events = 0, 0
    T, B = given.shape
    for b in range(B):
        at = lanes[b]
        base = at * R
        for t in range(T):
            flag, kind = given[t, b], kinds[t, b]
            u = head[at]
            if flag & FIRST or u == 0:
                n_events = _complete(base, R, wait[at], u - 1, tail[at], period, flags, stamp, counts, events, n_events)
                if kind == STRANGE:
                    for j in range(k - 1):
                        n_events = _retire(at, R, keep, head, tail, flags, stamp, counts, events, n_events)
                        slot = base + u % R
                        flags[slot], age[slot] = _BREAK, 0
                        extra[n_extra, 0], extra[n_extra, 1], extra[n_extra, 2] = slot, t * B + b, j
                        n_extra += 1
                        u += 1
                begin[at] = wait[at] = u
            elif kind == STRANGE:
                return n_extra, n_events, t * B + b
            n_events = _retire(at, R, keep, head, tail, flags, stamp, counts, events, n_events)
            slot = slots[t, b] = base + u % R
            before = age[base + (u - 1) % R]
            if kind == CONTINUES and k > 1:
                age[slot] = min((before & 127) + 1, k - 1) | (before & PADDED)
            else:
                age[slot] = k - 1 if kind == STRANGE else PADDED if kind == REPEAT else 0
            counts[STEPS] += 0 if flag & FIRST or u == 0 else 1
            stamp[slot] = counts[STEPS]
            if period:
                e = begin[at]
                fresh = flag & FIRST if u == e else flags[base + e % R] & FIRST
                told = burn_in and u - burn_in >= e and flags[base + (u - burn_in) % R] & ANCHOR
                if told or (fresh and (u - e) % period == 0 and u - e <= burn_in):
                    flag |= ITEM
                if t == 0 and anchored and not flag & FIRST and (last[at] < 0 or u - last[at] >= period):
                    last[at] = u
                    flag |= ANCHOR
                    flag |= 0 if burn_in else ITEM
            flags[slot] = flag
            until = u if flag & _END else u - window + 1
            if until > wait[at]:
                n_events = _complete(base, R, wait[at], until, tail[at], period, flags, stamp, counts, events, n_events)
                wait[at] = until
            if flag & _END:
                wait[at] = u + 1
    return n_extra, n_events, -1


@compiled
def _complete(
    base: Any,
    R: Any,
    begin: Any,
    end: Any,
    tail: Any,
    period: Any,
    flags: Any,
    stamp: Any,
    counts: Any,
    events: Any,
    n: Any,
) -> Any:
    """Rows begin … end - 1 may be drawn from now on."""
    for row in range(max(begin, tail), end):
        slot = base + row % R
        if not period or flags[slot] & ITEM:
            flags[slot] |= LIVE
            counts[SIZE] += 1
            counts[INSERTED] += 1
            counts[STAMPS] += stamp[slot]
            events[n, 0], events[n, 1] = slot, 1
            n += 1
    return n


@compiled
def _retire(
    at: Any, R: Any, keep: Any, head: Any, tail: Any, flags: Any, stamp: Any, counts: Any, events: Any, n: Any
) -> Any:
    """A new row comes: what needs the row that it replaces is drawn no more."""
    head[at] += 1
    for row in range(tail[at], head[at] - R + keep):
        n = drop(at * R + row % R, flags, stamp, counts, events, n)
        tail[at] = row + 1
    return n


@compiled
def drop(slot: Any, flags: Any, stamp: Any, counts: Any, events: Any, n: Any) -> Any:
    """This row is drawn no more."""
    if flags[slot] & LIVE:
        counts[SIZE] -= 1
        counts[EVICTED] += 1
        counts[UNSEEN] += 0 if flags[slot] & DRAWN else 1
        counts[STAMPS] -= stamp[slot]
        flags[slot] &= 255 - LIVE
        events[n, 0], events[n, 1] = slot, 0
        n += 1
    return n


@compiled
def trim(excess: Any, R: Any, lane: Any, flags: Any, stamp: Any, counts: Any, events: Any) -> Any:
    """Drop the `excess` rows that may be drawn and came first; the number of events."""
    tail, wait, n = lane[1], lane[3], 0
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
        n = drop(oldest * R + tail[oldest] % R, flags, stamp, counts, events, n)
        tail[oldest] += 1
        _skip(oldest, R, tail, wait, flags)
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
    slots: Any, R: Any, n: Any, gamma: Any, sign: Any, flags: Any, reward: Any, end: Any, total: Any, discount: Any
) -> None:
    """n-step windows of the rows in `slots` [B]: the slot of the last row, G = Σ γʲ·r, D = γᵐ or 0 where terminated."""
    for i in range(slots.size):
        base = slots[i] - slots[i] % R
        at, g, d = slots[i], 0.0, 1.0
        for _ in range(n):
            next_ = base + (at + 1 - base) % R
            flag = flags[next_]
            if flag & _BREAK:
                break
            at = next_
            r = np.float64(reward[at])
            g += d * (np.sign(r) if sign else r)
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
                out[i, k - 1 - j] = base + (slot - base - j) % R


@compiled
def numbers(slots: Any, R: Any, head: Any, out: Any) -> None:
    """The row number of what is in each slot now."""
    for i in range(slots.size):
        at, newest = slots[i] % R, head[slots[i] // R] - 1
        out[i] = newest - (newest - at) % R

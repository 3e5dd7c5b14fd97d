"""Compiled loops of a replay.

The flags of rows, and which rows may be drawn. Compiled loops over per-lane rings of rows.

A lane's rows are numbered from 0; row u lies in slot lane·R + u mod R. A row may be drawn ("live") once its window is
complete: `window` more rows of its episode are there, or the episode's end. Its window never leaves its episode:

- an ordinary row u completes row u - window;
- a terminated or truncated row completes all that are pending, with shorter windows;
- a first row completes what an interrupted episode left: their windows end with the last row that was observed.

A row's byte of flags is all that is stored of that. Rows that only hold planes of a stack are EXTRA: no item starts
there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from polyplay.buffers.sum_tree import below
from polyplay.core.compiled import compiled, inlined

FIRST, TERMINATED, TRUNCATED, EXTRA, LIVE, DRAWN, ANCHOR, ITEM = (1 << i for i in range(8))
_END, _BREAK = TERMINATED | TRUNCATED, FIRST | EXTRA
# where the planes before a stack's newest are: in the rows before; nowhere, as they are zeros, or repeat the newest;
# in EXTRA rows
CONTINUES, ZEROS, REPEAT, STORED = range(4)
PADDED = 128  # in a row's `older`: planes before the oldest stored one repeat that one, instead of being 0
SHIFT, MASK = 32, 2**32 - 1  # an id: the slot, and above it the slot's generation
# counters; ARRIVALS is the sum over live rows
SIZE, STEPS, INSERTED, EVICTED, NEVER_SAMPLED, ARRIVALS, SAMPLED, LATE = range(8)


class Rows(NamedTuple):
    """What is known of the rows of every lane."""

    lane: np.ndarray  # int64 [5, L]: head, tail, begin of the episode, first pending row, last anchor
    counts: np.ndarray  # int64 [8], see above
    # by slot:
    flags: np.ndarray  # uint8
    older: np.ndarray  # uint8: planes of the row's stack in the slots before
    generation: np.ndarray  # uint32: how many rows had the slot
    arrival: np.ndarray  # int64: transitions that had arrived when the row did


@inlined
def _slot(base: int, R: int, p: int, back: int) -> int:
    """The slot `back` rows before position p of a ring, 0 ≤ back ≤ R."""
    return base + (p - back if p >= back else p - back + R)


@compiled
def append(
    rows: Rows, given: tuple[np.ndarray, ...], kinds: np.ndarray, lanes: np.ndarray, anchored: bool, shape: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Add rows; their slots, and what changed by it.

    given: first, terminated and truncated of the rows, bool [T, B]; kinds uint8 [T, B]; lanes int64 [B].
    shape int64 [5]: R, planes in a stack, window, burn-in, period (0: every row may be drawn, else items).
    Returns slots [T, B]; extra [n, 3], (slot, row of [T·B], plane); slots of rows that may be drawn now, and of rows
    that may not any longer: one in both has a new row; and the row of [T·B] whose stack does not follow the one before,
    or -1.
    """
    lane, counts, flags, older, generation, arrival = rows  # once: every look into a tuple counts references
    R, k, window, burn_in, period = shape[0], shape[1], shape[2], shape[3], shape[4]
    reach = burn_in + max(k, 1) - 1 - R  # row u retires row u + reach, and all before
    extras = n_added = n_removed = 0
    first, terminated, truncated = given
    T, B = first.shape
    more = np.count_nonzero(kinds == STORED) * (k - 1) if k else 0
    slots, extra = np.empty((T, B), np.int64), np.empty((more, 3), np.int64)
    added = np.empty((T + window) * B, np.int64)  # and what was pending
    removed = np.empty(T * B + more, np.int64)
    steps, arrivals, never, broken = counts[STEPS], counts[ARRIVALS], counts[NEVER_SAMPLED], -1
    for b in range(B):
        at = lanes[b]
        base, u, p = at * R, lane[0, at], lane[0, at] % R
        tail, begin, pending, last = lane[1, at], lane[2, at], lane[3, at], lane[4, at]
        for t in range(T):
            flag, kind = first[t, b] | terminated[t, b] << 1 | truncated[t, b] << 2, kinds[t, b]
            new = flag & FIRST or u == 0
            if new:
                n_added, arrivals = _complete(
                    flags, arrival, base, R, u, p, max(pending, tail), u - 1, period, added, n_added, arrivals
                )
                for j in range(k - 1 if kind == STORED else 0):
                    tail, n_removed, arrivals, never = _retire(
                        flags, arrival, base, R, u, p, tail, u + reach, removed, n_removed, arrivals, never
                    )
                    slot = base + p
                    flags[slot], older[slot] = _BREAK, 0
                    generation[slot] += 1
                    extra[extras, 0], extra[extras, 1], extra[extras, 2] = slot, t * B + b, j
                    extras += 1
                    u, p = u + 1, _slot(0, R, p, R - 1)
                begin = pending = u
            elif kind == STORED:
                broken = t * B + b
                break
            tail, n_removed, arrivals, never = _retire(
                flags, arrival, base, R, u, p, tail, u + reach, removed, n_removed, arrivals, never
            )
            slot = slots[t, b] = base + p
            generation[slot] += 1
            before = older[_slot(base, R, p, 1)]
            if kind == CONTINUES and k > 1:
                older[slot] = min((before & 127) + 1, k - 1) | (before & PADDED)
            else:
                older[slot] = k - 1 if kind == STORED else PADDED if kind == REPEAT else 0
            steps += 0 if new else 1
            arrival[slot] = steps
            if period:
                flag |= _item(flags, base, R, p, flag, u - begin, burn_in, period)
                if t == 0 and anchored and not flag & FIRST and (last < 0 or u - last >= period):
                    last = u
                    flag |= ANCHOR if burn_in else ANCHOR | ITEM
            flags[slot] = flag
            until = u if flag & _END else u - window + 1
            if until > pending:
                n_added, arrivals = _complete(
                    flags, arrival, base, R, u, p, max(pending, tail), until, period, added, n_added, arrivals
                )
                pending = until
            if flag & _END:
                pending = u + 1
            u, p = u + 1, _slot(0, R, p, R - 1)
        lane[0, at], lane[1, at], lane[2, at], lane[3, at], lane[4, at] = u, tail, begin, pending, last
        if broken >= 0:
            break
    counts[STEPS], counts[ARRIVALS], counts[NEVER_SAMPLED] = steps, arrivals, never
    counts[SIZE] += n_added - n_removed
    counts[INSERTED] += n_added
    counts[EVICTED] += n_removed
    live = 0
    for i in range(n_added):  # some may have been removed since
        if flags[added[i]] & LIVE:
            added[live] = added[i]
            live += 1
    return slots, extra[:extras], added[:live], removed[:n_removed], broken


@inlined
def _item(flags: np.ndarray, base: int, R: int, p: int, flag: int, since: int, burn_in: int, period: int) -> int:
    """ITEM where a sequence begins with the row at position p by the rows before it, else 0; `since` is its number in
    its episode.
    """
    after_anchor = near_start = False
    if since <= burn_in and since % period == 0:
        near_start = (flags[_slot(base, R, p, since)] if since else flag) & FIRST != 0
    if burn_in and since >= burn_in:
        after_anchor = flags[_slot(base, R, p, burn_in)] & ANCHOR != 0
    return ITEM if after_anchor or near_start else 0


@inlined
def _complete(
    flags: np.ndarray, arrival: np.ndarray, base: int, R: int, u: int, p: int, begin: int, end: int, period: int,
    added: np.ndarray, n: int, arrivals: int,
) -> tuple[int, int]:  # fmt: skip
    """Rows begin … end - 1, which were pending, may be drawn from now on; row u is at position p. → n, arrivals."""
    for row in range(begin, end):
        slot = _slot(base, R, p, u - row)
        if not period or flags[slot] & ITEM:
            flags[slot] |= LIVE
            arrivals += arrival[slot]
            added[n] = slot
            n += 1
    return n, arrivals


@inlined
def _retire(
    flags: np.ndarray, arrival: np.ndarray, base: int, R: int, u: int, p: int, tail: int, last: int,
    removed: np.ndarray, n: int, arrivals: int, never: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Drop rows tail … last. → the new tail, n, arrivals, never."""
    while tail <= last:
        slot = _slot(base, R, p, u - tail)
        n, arrivals, never = _drop(flags, arrival, slot, removed, n, arrivals, never)
        tail += 1
    return tail, n, arrivals, never


@inlined
def _drop(
    flags: np.ndarray, arrival: np.ndarray, slot: int, removed: np.ndarray, n: int, arrivals: int, never: int
) -> tuple[int, int, int]:
    """This row may not be drawn any longer. → n, the sum of arrivals, rows never sampled."""
    if flags[slot] & LIVE:
        never += 0 if flags[slot] & DRAWN else 1
        arrivals -= arrival[slot]
        flags[slot] &= 255 - LIVE
        removed[n] = slot
        n += 1
    return n, arrivals, never


@compiled
def trim(rows: Rows, excess: int, R: int) -> np.ndarray:
    """Remove the oldest `excess` rows that may be drawn; their slots."""
    removed = np.empty(max(excess, 0), np.int64)
    tail, pending, counts, flags, arrival, n = rows.lane[1], rows.lane[3], rows.counts, rows.flags, rows.arrival, 0
    arrivals, never = counts[ARRIVALS], counts[NEVER_SAMPLED]
    for at in range(tail.size):
        _skip(at, R, tail, pending, flags)
    while n < excess:
        oldest, least = -1, 0
        for at in range(tail.size):
            came = arrival[at * R + tail[at] % R]
            if tail[at] < pending[at] and (oldest < 0 or came < least):
                oldest, least = at, came
        if oldest < 0:
            break
        n, arrivals, never = _drop(flags, arrival, oldest * R + tail[oldest] % R, removed, n, arrivals, never)
        tail[oldest] += 1
        _skip(oldest, R, tail, pending, flags)
    counts[ARRIVALS], counts[NEVER_SAMPLED] = arrivals, never
    counts[SIZE] -= n
    counts[EVICTED] += n
    return removed[:n]


@compiled
def _skip(at: int, R: int, tail: np.ndarray, pending: np.ndarray, flags: np.ndarray) -> None:
    """A lane's tail at a row that may be drawn, or at the first pending one."""
    while tail[at] < pending[at] and not flags[at * R + tail[at] % R] & LIVE:
        tail[at] += 1


@compiled
def pick(key: np.uint64, used: np.uint64, n: int, R: int, rows: Rows) -> tuple[np.ndarray, np.uint64]:
    """Slots of `n` rows that may be drawn, each with the same chance; the next number of `key`. There must be one."""
    out, head, tail, flags = np.empty(n, np.int64), rows.lane[0], rows.lane[1], rows.flags
    ends = np.cumsum(head - tail)
    there = np.uint64(ends[-1])
    for i in range(out.size):
        while True:
            x, used = below(key, used, there)
            r = np.int64(x)
            at = np.searchsorted(ends, r, side="right")
            slot = at * R + (head[at] - (ends[at] - r)) % R
            if flags[slot] & LIVE:
                break
        out[i] = slot
    return out, used


@compiled
def windows(
    slots: np.ndarray, R: int, n: int, gamma: float, form: int, flags: np.ndarray, reward: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """n-step windows of the rows in `slots` [B]: the slot of the last row, G = Σ γʲ·r, D = γᵐ or 0 where terminated.
    form: r is as it is (0), limited to ±1 (1), its sign (2).
    """
    end = np.empty(slots.size, np.int64)
    total, discount = np.empty(slots.size, np.float32), np.empty(slots.size, np.float32)
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
            g += d * (r if form == 0 else min(max(r, -1.0), 1.0) if form == 1 else np.sign(r))
            d *= gamma
            if flag & _END:
                d = 0.0 if flag & TERMINATED else d
                break
        end[i], total[i], discount[i] = at, g, d
    return end, total, discount


@compiled
def planes(slots: np.ndarray, R: int, k: int, older: np.ndarray, empty: int) -> np.ndarray:
    """Where the planes of stacks are, oldest first: slots [n], int64 [n, k]; `empty`: where there is one of zeros."""
    out = np.empty((slots.size, k), np.int64)
    for i in range(slots.size):
        slot = slots[i]
        base, stored = slot - slot % R, older[slot]
        for j in range(k):
            if j > (stored & 127):
                out[i, k - 1 - j] = out[i, k - j] if stored & PADDED else empty
            else:
                out[i, k - 1 - j] = slot - j if slot - j >= base else slot - j + R
    return out


# Which planes of a stack are new.


def _as_words(array: np.ndarray, lead: int) -> np.ndarray:
    """An array with everything behind its first `lead` dimensions as one, of words if its bytes make some."""
    whole = np.ascontiguousarray(array).reshape(*array.shape[:lead], -1)
    return whole.view(np.uint64 if whole.shape[-1] * whole.itemsize % 8 == 0 else np.uint8)


@compiled
def _goes_on(rows: np.ndarray, last: np.ndarray, begun: np.ndarray) -> np.ndarray:
    """bool [T, B]: a row's older planes are the newer ones of the row before; rows [T, B, k, n], last [B, k, n]."""
    T, B, k, n = rows.shape
    found = np.empty((T, B), np.bool_)
    for t in range(T):
        for b in range(B):
            new, old = rows[t, b].reshape(-1), (rows[t - 1, b] if t else last[b]).reshape(-1)
            differs = new[0] ^ new[0]
            for i in range((k - 1) * n):  # no branch within: wide loads and ORs
                differs |= new[i] ^ old[i + n]
            found[t, b] = (t > 0 or begun[b]) and differs == 0
    return found


def stack_kinds(stacks: list[tuple[np.ndarray, np.ndarray]], begun: np.ndarray, T: int) -> np.ndarray:
    """uint8 [T, B]: how the older planes of each row can be rebuilt: CONTINUES, ZEROS, REPEAT or STORED.

    stacks: pairs of a leaf's rows [T, B, k, …] and the lanes' last rows so far [B, k, …]; all leaves agree on a kind.
    begun bool [B]: there is a last row.
    """
    possible = np.full((T, len(begun)), 15)
    for rows, ends in stacks:
        new = _as_words(rows, 3)
        continues = _goes_on(new, _as_words(ends, 2), begun)
        possible[continues] &= 1 << CONTINUES | 1 << STORED
        if len(begins := new[~continues]):
            zeros, repeat = ~begins[:, :-1].any((1, 2)), (begins[:, :-1] == begins[:, -1:]).all((1, 2))
            possible[~continues] &= zeros << ZEROS | repeat << REPEAT | 1 << STORED
    return _LOWEST[possible]


_LOWEST = np.array([0] + [(i & -i).bit_length() - 1 for i in range(1, 16)], np.uint8)

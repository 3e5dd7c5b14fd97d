"""Replay buffer: past experience of many lanes (parallel environments), from which batches of items are drawn.

An item is a transition or a sequence of rows. A row is the data of one step of a lane (docs/concepts/rows.md). Each
item has a unique id, although later items reuse its slot. Only one thread may use a buffer. See
docs/concepts/replay.md.

Each lane has a ring buffer of R slots. Its rows are numbered from 0, and row u of lane l is in slot l·R + u mod R.

The window of a row is the `window` rows after it, or fewer if the episode ends or is interrupted before. While its
window is incomplete, a row is pending. After that, it is live: an item that starts with it may be drawn.

A byte per row has flags, such as LIVE. An EXTRA row only holds one plane of an image stack, and no item starts with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from polyplay.buffers import replay
from polyplay.buffers.replay import BOTH, FLAGS, REWARDS, Proportional, Replay
from polyplay.buffers.sum_tree import MOST, SumTree, below, counter_rng, uniforms
from polyplay.core import tree
from polyplay.core.compiled import compiled, inlined
from polyplay.core.errors import NotFinite
from polyplay.core.numbers import rescale, unscale
from polyplay.core.tree import Batch

# Compiled loops over each lane's ring buffer of rows. They update the rows' flags, and find the rows that may be drawn.


FIRST, TERMINATED, TRUNCATED, EXTRA, LIVE, DRAWN, ANCHOR, ITEM = (1 << i for i in range(8))
_END, _BREAK = TERMINATED | TRUNCATED, FIRST | EXTRA
# where the older planes of a row's stack are. CONTINUES: in the rows before; ZEROS: not stored, all are 0; REPEAT: not
# stored, all repeat the newest plane; STORED: in EXTRA rows
CONTINUES, ZEROS, REPEAT, STORED = range(4)
PADDED = 128  # bit of a row's `older`: missing planes repeat the oldest stored plane; without the bit, they are 0
GENERATION = 2**32  # an item's id is its slot, plus GENERATION times the number of rows that the slot has held
# indices of ItemIndex.counts; ARRIVALS: sum of `arrival` over the live rows
SIZE, STEPS, INSERTED, EVICTED, NEVER_SAMPLED, ARRIVALS, SAMPLED, LATE = range(8)


class ItemIndex(NamedTuple):
    """Numbers, flags and item ids of the rows in a replay buffer."""

    lane: np.ndarray  # int64 [5, lanes], row numbers: head, tail, episode's start, first pending row, last ANCHOR row
    counts: np.ndarray  # int64 [8]: numbers of items and rows, from SIZE to LATE
    # the other arrays have one element per slot:
    flags: np.ndarray  # uint8: sum of FIRST, …, ITEM
    older: np.ndarray  # uint8: number of planes of the row's stack that are in the slots before, plus PADDED
    id: np.ndarray  # int64: id of the item that starts in the slot
    arrival: np.ndarray  # int64: number of transitions added up to this row


@inlined
def _slot(base: int, R: int, p: int, back: int) -> int:
    """Return the slot `back` rows before position `p` in the ring buffer of R slots from slot `base`."""
    return base + (p - back if p >= back else p - back + R)


@compiled
def append_rows(
    index: ItemIndex, given: tuple[np.ndarray, ...], kinds: np.ndarray, lanes: np.ndarray, anchored: bool,
    shape: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:  # fmt: skip
    """Add rows to the index, and update which rows are live (may be drawn).

    `given`: flags `first`, `terminated` and `truncated` of the rows, each bool [T, B].
    `kinds`: result of `stack_kinds` for the rows, uint8 [T, B].
    `lanes`: lane of each column of rows, int64 [B].
    `anchored`: whether the recurrent states before row 0 are given.
    `shape`: slots per lane, planes in a stack, window, burn-in and period, int64 [5]. With period 0, every row may be
        drawn, otherwise only rows with the flag ITEM.

    Return:

    - the slots of the rows, [T, B];
    - the planes to store in EXTRA rows, [n, 3]: slot, number of the row among the T·B rows, and number of the plane;
    - the slots of rows that became live;
    - the slots of rows that are no longer live (a slot in both lists has a new live row);
    - the number of a row whose stack does not continue the stack of the row before, or -1.
    """
    lane, counts, flags, older, ids, arrival = index  # unpacked once: every access to a tuple's field counts references
    R, k, window, burn_in, period = shape[0], shape[1], shape[2], shape[3], shape[4]
    reach = burn_in + max(k, 1) - 1 - R  # row u drops row u + reach, and all earlier rows
    extras = n_added = n_removed = 0
    first, terminated, truncated = given
    T, B = first.shape
    more = np.count_nonzero(kinds == STORED) * (k - 1) if k else 0
    slots, extra = np.empty((T, B), np.int64), np.empty((more, 3), np.int64)
    added = np.empty((T + window) * B, np.int64)  # pending rows may be added too
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
                    ids[slot] += GENERATION
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
            ids[slot] += GENERATION
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
    for i in range(n_added):  # some of these rows may have been removed again
        if flags[added[i]] & LIVE:
            added[live] = added[i]
            live += 1
    return slots, extra[:extras], added[:live], removed[:n_removed], broken


@inlined
def _item(flags: np.ndarray, base: int, R: int, p: int, flag: int, since: int, burn_in: int, period: int) -> int:
    """Return ITEM if a sequence's trained rows may start with the row at position p, else 0.
    `since`: number of earlier rows of the episode.
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
    """Make the pending rows `begin` to `end` - 1 live."""
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
    """Clear the LIVE flags of the rows `tail` to `last` of a lane."""
    while tail <= last:
        slot = _slot(base, R, p, u - tail)
        n, arrivals, never = _drop(flags, arrival, slot, removed, n, arrivals, never)
        tail += 1
    return tail, n, arrivals, never


@inlined
def _drop(
    flags: np.ndarray, arrival: np.ndarray, slot: int, removed: np.ndarray, n: int, arrivals: int, never: int
) -> tuple[int, int, int]:
    """Clear the LIVE flag of a row. `never` counts removed rows that were never sampled."""
    if flags[slot] & LIVE:
        never += 0 if flags[slot] & DRAWN else 1
        arrivals -= arrival[slot]
        flags[slot] &= 255 - LIVE
        removed[n] = slot
        n += 1
    return n, arrivals, never


@compiled
def remove_oldest(index: ItemIndex, excess: int, R: int) -> np.ndarray:
    """Remove the `excess` oldest live rows (rows that may be drawn). Return their slots."""
    removed = np.empty(max(excess, 0), np.int64)
    tail, pending, counts, flags, arrival, n = index.lane[1], index.lane[3], index.counts, index.flags, index.arrival, 0
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
    """Move the tail of a lane to its oldest live row. If no row is live, move it to the first pending row."""
    while tail[at] < pending[at] and not flags[at * R + tail[at] % R] & LIVE:
        tail[at] += 1


@compiled
def draw_evenly(rng: np.ndarray, n: int, R: int, index: ItemIndex) -> np.ndarray:
    """Draw the slots of `n` live rows, each with equal probability. At least one row must be live."""
    out, head, tail, flags = np.empty(n, np.int64), index.lane[0], index.lane[1], index.flags
    ends = np.cumsum(head - tail)
    there = np.uint64(ends[-1])
    for i in range(out.size):
        while True:
            r = np.int64(below(rng, there))
            at = np.searchsorted(ends, r, side="right")
            slot = at * R + (head[at] - (ends[at] - r)) % R
            if flags[slot] & LIVE:
                break
        out[i] = slot
    return out


@compiled
def n_step_windows(
    slots: np.ndarray, R: int, n: int, gamma: float, form: int, scale: float, flags: np.ndarray, reward: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the n-step windows that start in `slots` [B], as three arrays [B]: the slot of the window's last row, the
    return G = scale·Σ γʲ·r, and the discount D. After m ≤ n steps, D is γᵐ, or 0 if the episode terminated.
    `form`: whether r is the reward (0), the reward limited to ±1 (1), or the reward's sign (2).
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
        end[i], total[i], discount[i] = at, np.float32(g) * np.float32(scale), d
    return end, total, discount


@compiled
def plane_slots(slots: np.ndarray, R: int, k: int, older: np.ndarray, empty: int) -> np.ndarray:
    """Return the slots of the k planes of each row's stack, oldest first, int64 [n, k]. `empty`: slot with zeros."""
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


# Find which planes of a row's stack must be stored.


def _as_words(array: np.ndarray, lead: int) -> np.ndarray:
    """Flatten all dimensions after the first `lead`, and view them as 8-byte words if possible, else as bytes."""
    whole = np.ascontiguousarray(array).reshape(*array.shape[:lead], -1)
    return whole.view(np.uint64 if whole.shape[-1] * whole.itemsize % 8 == 0 else np.uint8)


@compiled
def _goes_on(rows: np.ndarray, last: np.ndarray, begun: np.ndarray) -> np.ndarray:
    """Return whether each row's image stack continues the stack of the row before, bool [T, B].
    `rows`: [T, B, k, n]. `last`: the rows before `rows`, [B, k, n]. `begun`: see stack_kinds.
    """
    T, B, k, n = rows.shape
    found = np.empty((T, B), np.bool_)
    for t in range(T):
        for b in range(B):
            new, old = rows[t, b].reshape(-1), (rows[t - 1, b] if t else last[b]).reshape(-1)
            differs = new[0] ^ new[0]
            for i in range((k - 1) * n):  # no branch inside, so the loop compiles to wide loads and ORs
                differs |= new[i] ^ old[i + n]
            found[t, b] = (t > 0 or begun[b]) and differs == 0
    return found


def stack_kinds(stacks: list[tuple[np.ndarray, np.ndarray]], begun: np.ndarray, T: int) -> np.ndarray:
    """Return how the older planes of each row's image stacks can be rebuilt, uint8 [T, B]: CONTINUES, ZEROS, REPEAT or
    STORED.

    `stacks`: for each field with stacks, the new rows [T, B, k, …] and the last earlier row of each lane [B, k, …].
    `begun`: whether a lane has earlier rows, bool [B].
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


# The fields of rows, by slot. Each plane of stacked observations is stored once; other fields are stored unchanged.


Leaves = dict[str, np.ndarray]  # arrays by path in a tree


class Columns:
    """Arrays of the rows' fields, by path. Each slot has the data of one row. For an image stack, it has only the
    newest plane. `last` has the complete stacks of each lane's newest row.
    """

    def __init__(self, replay: Replay):
        self.k, self.R = replay.stack, replay.rows
        n = self.empty = replay.lanes * replay.rows  # last slot of stacks: a plane of zeros
        fields = {p: f for p, f in tree.leaves(replay.spec) if p not in FLAGS}
        stacks = {p: f for p, f in fields.items() if replay.stacked(p, f)}
        shapes = {p: (n, *f.shape) for p, f in fields.items()} | {p: (n + 1, *f.shape[1:]) for p, f in stacks.items()}
        self.arrays: Leaves = {p: np.zeros(shapes[p], f.dtype) for p, f in fields.items()}
        self.last: Leaves = {p: np.zeros((replay.lanes, *f.shape), f.dtype) for p, f in stacks.items()}

    def put(self, rows: Leaves, lanes: np.ndarray, slots: np.ndarray, extra: np.ndarray) -> None:
        """Write rows [T, B, …] into slots [T, B]. `extra`: planes to write into EXTRA rows, see `append_rows`."""
        for path, array in self.arrays.items():
            array[slots] = rows[path][:, :, -1] if path in self.last else rows[path]
        for path, last in self.last.items():
            last[lanes] = rows[path][-1]
            if len(extra):
                t, b = np.divmod(extra[:, 1], len(lanes))
                self.arrays[path][extra[:, 0]] = rows[path][t, b, extra[:, 2]]

    def take(self, slots: np.ndarray, older: np.ndarray, parts: dict[str, int | slice], batch: Batch) -> None:
        """Read the rows in `slots` [T, B] into a batch. `parts`: for each path, which of the T rows to read. Fields
        with image stacks are always read from all T rows.
        """
        planes = slots
        if self.last:
            planes = plane_slots(slots.reshape(-1), self.R, self.k, older, self.empty)
            planes = planes.reshape(*slots.shape, self.k)
        leaves = dict(tree.leaves(batch))
        for path, part in parts.items():
            at = planes if path in self.last else slots[part]
            np.take(self.arrays[path], at, axis=0, out=leaves[path], mode="clip")  # "clip" avoids a copy


# Sequences: the rows of an item, and filler rows where the item extends beyond its episode.
#
# The trained rows of an item start where one of these is true (append_rows):
#
# - a state was stored `burn_in` rows earlier in the episode (at least `every` rows after the last stored state);
# - the episode started a multiple of `every` rows earlier, at most `burn_in`: the state is 0 at its first row.
#
# So every transition of every episode is in some item. Filler rows copy the episode's nearest row, with `first` set and
# reward 0. They belong to no transition, and the recurrent state after them starts from 0.


@compiled
def sequence_rows(slots: np.ndarray, T: int, R: int, burn_in: int, flags: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the rows of sequences whose first trained rows are in slots [B], as three arrays [T, B]: the slot of each
    row, int64; whether the row belongs to the episode (otherwise it is filler), bool; and whether a transition leads
    from the row to the next row, bool.
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


# Recurrent states of the rows with which sequences start: one state per `every` rows, not one per row.


class RecurrentStates:
    """Stored recurrent states by path, [lanes · anchors + 1, …]. The last one is the zero state of a new episode."""

    def __init__(self, replay: Replay, index: ItemIndex):
        self.index, self.R, self.anchors, self.every = index, replay.rows, replay.anchors, replay.every
        self.zero = replay.lanes * replay.anchors
        leaves = dict(tree.leaves(replay.state)) if replay.sequence and replay.state else {}
        self.arrays = {p: np.zeros((self.zero + 1, *f.shape), f.dtype) for p, f in leaves.items()}

    def _at(self, slots: np.ndarray) -> np.ndarray:
        """Return the index of the recurrent state that is stored for the row in each slot, int64 [n]."""
        lanes = slots // self.R
        newest = self.index.lane[0, lanes] - 1
        number = newest - (newest - slots) % self.R  # number of the row in its lane
        return lanes * self.anchors + number // self.every % self.anchors

    def put(self, state: Batch, slots: np.ndarray) -> None:
        """Store the recurrent states [B, …] before those rows in `slots` [B] that have the flag ANCHOR."""
        anchors = self.index.flags[slots] & ANCHOR > 0
        if self.arrays and anchors.any():
            at = self._at(slots[anchors])
            for path, leaf in tree.leaves(state):
                self.arrays[path][at] = np.asarray(leaf)[anchors]

    def take(self, slots: np.ndarray, begins: np.ndarray) -> Batch:
        """Return the recurrent states [B, …] before the rows in `slots` [B]. They are 0 where `begins`, bool [B], is
        true.
        """
        if not self.arrays:
            return {}
        at = np.where(begins, self.zero, self._at(slots))
        return tree.nest({p: a[at] for p, a in self.arrays.items()})


QUANTILES_OF = 4096  # most items from which metrics() estimates quantiles of priorities
BITS = dict(zip(FLAGS, (FIRST, TERMINATED, TRUNCATED), strict=True))  # field → bit of a row's flags


class BadPriority(ValueError):
    """Raised if a new priority is NaN, negative or too large. No priorities have changed then."""


def wrong_priority(ids: np.ndarray, priority: np.ndarray) -> str:
    """Describe the first priority that is NaN, negative or too large. Return "" if all are valid."""
    wrong = np.flatnonzero(~((priority >= 0.0) & (priority <= MOST)))
    if not len(wrong):
        return ""
    i = int(wrong[0])
    return f"priority {priority[i]} of id {ids[i]}, number {i} of {len(ids)}; must be 0 to {MOST:g}"


class ReplayBuffer:
    """Replay buffer, from which batches of past experience are drawn. `replay`: its options."""

    def __init__(self, replay: Replay, seed: int, batches: bool = True):
        r, slots = replay, replay.lanes * replay.rows
        self.replay, self.R, self.rng, self.columns = r, r.rows, counter_rng(seed), Columns(r)
        self.most = max(1, self.R // (2 * max(r.stack, 1)))  # most rows of a lane to add at once
        zeros = (np.zeros(slots, dtype) for dtype in (np.uint8, np.uint8, np.int64, np.int64))
        self.index = ItemIndex(np.zeros((5, r.lanes), np.int64), np.zeros(8, np.int64), *zeros)
        self.index.lane[4], self.index.id[:] = -1, np.arange(slots)
        self.shape = np.array([self.R, r.stack, r.window, r.burn_in, r.every], np.int64)  # see append_rows
        read = self.index.flags, self.columns.arrays["reward"]
        self.windows = self.R, r.n_step, r.gamma, REWARDS.index(r.reward), r.scale, *read  # see n_step_windows
        self.states = RecurrentStates(r, self.index)
        self.each = max(r.sequence, 1)  # trained rows per item
        self.steps = 0.0  # agent steps so far; in replicas that average gradients, the replicas' mean
        # the tree holds p^α by slot
        self.sampler, self.tree = r.sampler, SumTree(slots if r.sampler is not None else 0)
        self.max_priority = 1.0  # largest priority so far
        self.first_priority = 1.0  # mean initial priority of the items added last
        self.beta = 0.0 if r.sampler is None else r.sampler.beta  # β of the last sample
        own = [tree.map(np.copy, tree.zeros(r.drawn())) for _ in range(r.buffers * batches)]  # copies fill memory pages
        self._own_nbytes, self._turn = sum(a.nbytes for b in own for _, a in tree.leaves(b)), cycle(own)
        drawn = dict(tree.leaves(r.drawn()))
        whole = {p for p in self.columns.arrays if r.sequence or p.split("/")[0] in BOTH}
        self._rows = {p: slice(None) if p in whole else 0 for p in self.columns.arrays if p in drawn}  # rows to read

    @property
    def size(self) -> int:
        """Number of items that may be drawn now."""
        return int(self.index.counts[SIZE])

    @property
    def inserted(self) -> int:
        """Number of items added so far."""
        return int(self.index.counts[INSERTED])

    @property
    def sampled(self) -> int:
        """Number of items drawn so far."""
        return int(self.index.counts[SAMPLED])

    # ------------------------------------------------------------------------------------------ adding

    def add(
        self, batch: Batch, lanes: Sequence[int] | np.ndarray | slice, state: Batch | None = None, overlap: bool = False
    ) -> float:
        """Add rows [T, B, …] of B lanes, and return the number of their agent steps. The rows of each lane must come in
        order.

        `lanes`: numbers of the lanes, int array or slice.
        `state`: recurrent state before row 0, [B, …].
        `overlap`: whether the next call begins with this call's last row. Only the next call then stores this row.

        Raises ValueError if a lane is repeated, or if a stack does not continue the stack of the row before. Raises
        NotFinite if initial priorities are not finite.
        """
        T = len(batch["first"]) - overlap
        if self.most < T:
            parts = (slice(begin, begin + self.most + overlap) for begin in range(0, T, self.most))
            return sum(self.add(tree.at(batch, x), lanes, None if x.start else state, overlap) for x in parts)
        at = np.arange(self.replay.lanes)[lanes]
        rows = {path: np.asarray(leaf)[:T] for path, leaf in tree.leaves(batch)}
        flags = tuple(np.ascontiguousarray(rows[name], bool) for name in FLAGS)
        if flags[0].shape[1:] != at.shape or len(set(at.tolist())) < len(at):
            raise ValueError(f"rows {flags[0].shape} for lanes {at.tolist()}: must be [T, lanes], each lane once")
        stacks = [(rows[path], last[at]) for path, last in self.columns.last.items()]
        begun = self.index.lane[0, at] > 0
        kinds = stack_kinds(stacks, begun, T) if stacks else np.zeros(flags[0].shape, np.uint8)
        slots, extra, added, removed, broken = append_rows(self.index, flags, kinds, at, state is not None, self.shape)
        if broken >= 0:
            which = f"row {broken // len(at)} of lane {at[broken % len(at)]}"
            flaw = "its older planes are not those of the row before, and it is not first; try stack=0"
            raise ValueError(f"{which}: {flaw}")
        self.columns.put(rows, at, slots, extra)
        if state:
            self.states.put(state, slots[0])
        if self.sampler is not None:
            self._prioritize(added, removed)
        if self.replay.grows_from:
            self.trim()
        came = batch["first"][overlap:]
        steps = float(np.size(came) - np.count_nonzero(came))
        self.steps += steps
        return steps

    def _prioritize(self, added: np.ndarray, removed: np.ndarray) -> None:
        """Set the initial priorities of added items, and clear the priorities of removed items."""
        self._put(removed, 0.0)  # first the removed items: an added item may have the slot of a removed one
        if len(added):
            first = self.first_priorities(added)
            self.first_priority = float(np.mean(first))
            self._put(added, first)

    def first_priorities(self, slots: np.ndarray) -> np.ndarray | float:
        """Return the initial priorities of the items in `slots`: the largest priority so far, or the items' TD errors,
        float64 [n]. Raises NotFinite if a TD error is not finite.
        """
        r, sampler = self.replay, self.sampler
        assert sampler is not None
        if sampler.first == "max":
            return self.max_priority
        if r.sequence:
            learnt = slice(r.burn_in, r.burn_in + r.sequence)
            at, _, valid = (x[learnt] for x in sequence_rows(slots, r.length, self.R, r.burn_in, self.index.flags))
            size = np.where(valid, self._row_errors(at.ravel(), sampler.rescale).reshape(at.shape), 0.0)
            mean = size.sum(0) / np.maximum(valid.sum(0), 1)
            error = sampler.eta * size.max(0) + (1.0 - sampler.eta) * mean
        else:
            error = self._row_errors(slots, sampler.rescale)
        if wrong := wrong_priority(self.index.id[slots], error):
            raise NotFinite(f"a reward, or a value that an actor computed, is not finite: {wrong}")
        return error

    def _row_errors(self, slots: np.ndarray, eps: float) -> np.ndarray:
        """Return TD errors |h(G + D·h⁻¹(value)) - chosen| [n] of windows from `slots`. `eps`: ε of h, or 0 for no h."""
        end, total, discount = n_step_windows(slots, *self.windows)
        ahead = self.columns.arrays["value"][end]
        ahead = unscale(ahead, eps) if eps else ahead
        goal = total + np.where(discount == 0.0, 0.0, discount * ahead)  # after an episode's end, no value counts
        goal = rescale(goal, eps) if eps else goal
        return np.abs(goal - self.columns.arrays["chosen"][slots]).astype(np.float64)

    def _put(self, slots: np.ndarray, priority: np.ndarray | float) -> None:
        """Set the priorities of `slots`: float64 [n], or one number for all. A slot with priority 0 is never drawn."""
        if self.sampler is not None and len(slots):
            alpha = self.sampler.alpha
            mass = np.asarray(priority**alpha if alpha else priority > 0, np.float64)
            self.tree.put(slots, mass if mass.ndim else np.full(len(slots), mass))

    def trim(self) -> int:
        """Remove the oldest items beyond `Replay.limit`. Return the number of removed items."""
        removed = remove_oldest(self.index, self.size - self.replay.limit(self.inserted), self.R)
        self._put(removed, 0.0)
        return len(removed)

    # ---------------------------------------------------------------------------------------- sampling

    # The ratio of learning to acting is bounded on both sides. Learning may draw a batch while drawn + batch ≤ ratio ·
    # steps since the start. Acting may continue while drawing is less than `slack` batches behind. At any time, one of
    # the two may continue, however many rows are added at once. `drawn` and `batch` are counted in trained rows.

    def due(self, batches: int = 1, coming: float = 0.0) -> bool:
        """Tell whether learning may draw `batches` more batches without exceeding `Replay.ratio`, once `coming` more
        agent steps are added. Before the first `Replay.start` agent steps, it may not.
        """
        r, counts = self.replay, self.index.counts
        if self.steps < r.start or not counts[SIZE]:
            return False
        if r.ratio is None:
            return True
        owed = r.ratio * (self.steps - r.start) - int(counts[SAMPLED]) * self.each + r.ratio * coming
        return owed >= batches * r.batch * self.each

    @property
    def room(self) -> bool:
        """Whether acting may add more rollouts. It must wait if learning is `slack` or more batches behind `ratio`."""
        return self.replay.ratio is None or not self.due(self.replay.slack)

    def sample(self, left: float = 1.0, into: Batch | None = None) -> Batch:
        """Draw a batch of items, see docs/concepts/replay.md. Its arrays are valid until `Replay.buffers` further
        calls. Raises ValueError if the buffer has no items.

        `left`: remaining fraction of the run, which determines β.
        `into`: arrays for the batch, with the shapes of `Replay.drawn`. None: use arrays of the buffer.
        """
        r, index, n = self.replay, self.index, self.replay.batch
        if not index.counts[SIZE]:
            raise ValueError("nothing to sample: no item is complete yet; see `due`")
        if self.sampler is not None and self.tree.total > 0:
            slots, weight = self._draw(self.sampler, left)
        else:
            slots, weight = draw_evenly(self.rng, n, self.R, index), np.ones(n, np.float32)
        index.flags[slots] |= DRAWN
        index.counts[SAMPLED] += n
        batch = into or next(self._turn)
        if r.sequence:
            extras = self._read_sequences(slots, batch)
        else:  # s_t, a_t, G, D, s_{t+m}: m = n_step, or less at the episode's end
            end, total, discount = n_step_windows(slots, *self.windows)
            at = np.stack([slots, end])
            self.columns.take(at, index.older, self._rows, batch)
            extras = {"return": total, "discount": discount, "first": index.flags[at] & FIRST > 0}
        extras |= {"weight": weight, "id": index.id[slots]}
        if into is None:
            return batch | extras
        tree.write(into, ..., extras)
        return into

    def _draw(self, sampler: Proportional, left: float) -> tuple[np.ndarray, np.ndarray]:
        """Draw slots by their priorities. Return the slots, int64 [n], and importance weights, float32 [n]."""
        n, u = self.replay.batch, sampler.mixture
        slots = self.tree.draw(self.rng, n, sampler.stratified)
        if u:
            evenly = np.flatnonzero(uniforms(self.rng, n) < u)
            slots[evenly] = draw_evenly(self.rng, len(evenly), self.R, self.index)
        if sampler.beta_end is not None:
            self.beta = sampler.beta_end + (sampler.beta - sampler.beta_end) * left
        share = (1 - u) * self.tree.leaves[slots] / self.tree.total + u / self.size
        weight = (self.size * share) ** -self.beta  # (N·P)^-β, then divided by the maximum
        return slots, (weight / weight.max()).astype(np.float32)

    def _read_sequences(self, slots: np.ndarray, batch: Batch) -> Batch:
        """Read sequences into the arrays of `batch`. Return the fields that are not read from arrays of rows: flags,
        `valid` and the recurrent states before the sequences.
        """
        r, index = self.replay, self.index
        at, real, valid = sequence_rows(slots, r.length, self.R, r.burn_in, index.flags)
        self.columns.take(at, index.older, self._rows, batch)
        batch["reward"][~real] = 0
        flags = index.flags[at]
        extras: Batch = {name: (flags & bit > 0) & real for name, bit in BITS.items()}
        extras["first"] |= ~real
        return extras | {"valid": valid, "state": self.states.take(at[0], extras["first"][0])}

    def update_priorities(self, ids: ArrayLike, priority: ArrayLike) -> int:
        """Set the priorities [B] of the items with these `ids` [B]. For a repeated id, the last priority counts. Return
        the number of ids whose items were already removed. Raises BadPriority if a priority is not allowed.
        """
        ids, given = np.asarray(ids, np.int64), np.asarray(priority, np.float64)
        if ids.ndim != 1 or given.shape != ids.shape:
            raise ValueError(f"ids {ids.shape} and priorities {given.shape}: both must be [B]")
        if wrong := wrong_priority(ids, given):
            raise BadPriority(wrong)
        slots = ids & (GENERATION - 1)
        live = (self.index.id[slots] == ids) & (self.index.flags[slots] & LIVE > 0)
        slots, given = slots[live], given[live]
        late = len(ids) - len(slots)
        self.index.counts[LATE] += late
        if len(slots):
            self.max_priority = max(self.max_priority, float(given.max()))
            self._put(slots, given)
        return late

    def priorities(self, slots: np.ndarray) -> np.ndarray:
        """Return the priorities of the items in `slots`, float64 [n]. Without a sampler, all priorities are 1."""
        if self.sampler is None:
            return np.ones(len(slots))
        mass = self.tree.leaves[slots]
        return mass ** (1 / self.sampler.alpha) if self.sampler.alpha else mass

    # --------------------------------------------------------------------------------------- reporting

    @property
    def nbytes(self) -> int:
        """Memory of the buffer in bytes, including the arrays for drawn batches."""
        parts = (self.index._asdict(), self.columns.arrays, self.columns.last, self.states.arrays)
        priorities = self.tree.nodes.nbytes if self.sampler is not None else 0
        return sum(a.nbytes for part in parts for a in part.values()) + priorities + self._own_nbytes

    def metrics(self) -> dict[str, float]:
        """Return the buffer's metrics, such as its size and the mean age of its items in agent steps."""
        counts, size, since = self.index.counts, self.size, self.steps - self.replay.start
        evicted = int(counts[EVICTED])
        metrics = {
            "size": size,
            "steps": int(counts[STEPS]),
            "inserted": self.inserted,
            "sampled": self.sampled,
            "evicted": evicted,
            "never_sampled": float(counts[NEVER_SAMPLED]) / max(1, evicted),
            "late": int(counts[LATE]),
            "age": float(counts[STEPS]) - float(counts[ARRIVALS]) / size if size else 0.0,
            "bytes": self.nbytes,
            "ratio": self.sampled * self.each / max(1, since) if since >= 0 else 0.0,
            "ratio_target": self.replay.ratio or 0.0,
        }
        if self.sampler is None or not size:
            return metrics
        rng = counter_rng(int(self.rng[1]))  # a separate generator, so that metrics do not change later draws
        slots = draw_evenly(rng, min(QUANTILES_OF, 4 * size), self.R, self.index)
        quantiles = np.quantile(self.priorities(slots), (0.1, 0.5, 0.9, 1.0)).tolist()
        names = ("priority_p10", "priority_p50", "priority_p90", "priority_max")
        added = {"priority_new": self.first_priority, "beta": self.beta}
        return metrics | dict(zip(names, quantiles, strict=True)) | added

    save, load = replay.save_buffer, replay.load_buffer

"""Rows of experience, drawn again and again.

ReplayBuffer: rows of experience of many lanes, from which batches are drawn again and again.

For one thread. Rows are added as the acting loop wrote them (docs/concepts/rows.md). Batches are of items; an item's id
differs from that of every later item in its slot. See docs/concepts/replay.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import cycle

import numpy as np
from numpy.typing import ArrayLike

from polyplay.buffers import replay, replay_kernels
from polyplay.buffers.replay import BOTH, FLAGS, REWARDS, Proportional, Replay, Sampler, Uniform
from polyplay.buffers.replay_kernels import EXTRA, FIRST, TERMINATED, TRUNCATED
from polyplay.buffers.sum_tree import MOST, CounterRng, SumTree, uniforms
from polyplay.core import tree
from polyplay.core.compiled import compiled
from polyplay.core.errors import NotFinite
from polyplay.core.numbers import rescale, unscale
from polyplay.core.tree import Batch


class BadPriority(ValueError):
    """A priority for a replay was NaN, negative or infinite; nothing was changed."""


FREE = sys.maxsize  # batches, or agent steps, where nothing is bounded
BITS = dict(zip(FLAGS, (FIRST, TERMINATED, TRUNCATED), strict=True))  # of a row's byte

# The index of a buffer: which row is in which slot, which items may be drawn, and their ids. See row_kernels.


class ItemIndex:
    """What is known of all rows, see row_kernels.Rows and append."""

    def __init__(self, replay: Replay):
        r, L = replay, replay.lanes
        self.R, self.slots, self.most = r.rows, L * r.rows, max(1, r.rows // (2 * max(r.stack, 1)))
        self.shape = np.array([r.rows, r.stack, r.window, r.burn_in, r.every], np.int64)
        zeros = [np.zeros(self.slots, dtype) for dtype in (np.uint8, np.uint8, np.uint32, np.int64)]
        self.rows = replay_kernels.Rows(np.zeros((5, L), np.int64), np.zeros(8, np.int64), *zeros)
        self.lane, self.counts, self.flags, self.older, self.generation, self.arrival = self.rows
        self.lane[4] = -1

    @property
    def size(self) -> int:
        """Items that may be drawn."""
        return int(self.counts[replay_kernels.SIZE])

    def pick(self, rng: CounterRng, n: int) -> np.ndarray:
        """int64 [n] slots of items, each with the same chance. There must be one."""
        out, used = replay_kernels.pick(rng.key, rng.used, n, self.R, self.rows)
        rng.used = np.uint64(used)
        return out

    def ids(self, slots: np.ndarray) -> np.ndarray:
        """int64 ids of what these slots hold: the slot, and its generation."""
        return (self.generation[slots].astype(np.int64) << replay_kernels.SHIFT) | slots

    def live_items(self, ids: np.ndarray, priority: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slots and priorities of the ids whose items may still be drawn.

        Raises BadPriority, naming the first that is NaN, negative or infinite.
        """
        wrong = np.flatnonzero(~((priority >= 0.0) & (priority <= MOST)))
        if len(wrong):
            i = int(wrong[0])
            what = f"priority {priority[i]} of id {ids[i]}, number {i} of {len(ids)}"
            raise BadPriority(f"{what}; allowed: 0 to {MOST:g}")
        slots = ids & replay_kernels.MASK
        same = self.generation[slots] == ids >> replay_kernels.SHIFT
        live = same & (self.flags[slots] & replay_kernels.LIVE > 0)
        return slots[live], priority[live]


# How items are chosen: uniformly, or by priority. Priorities are raw ones; exponents are the samplers' own.


class ItemSampler:
    """Uniform: every item with the same chance, no priorities. Proportional: p^α in a sum tree by slot."""

    def __init__(self, sampler: Sampler, index: ItemIndex, rng: CounterRng):
        self.index, self.rng, self.sampler = index, rng, sampler
        self.tree = SumTree(index.slots if isinstance(sampler, Proportional) else 0)
        self.arrays = {"leaves": self.tree.leaves} if len(self.tree.leaves) else {}  # what is saved, filled in place

    def put(self, slots: np.ndarray, priority: np.ndarray | float) -> None:
        """Priorities (float64 [n], or one of all; 0: none) of slots; of a slot given twice the last one counts."""
        if len(slots) and isinstance(self.sampler, Proportional):
            alpha = self.sampler.alpha
            mass = np.asarray(priority**alpha if alpha else priority > 0, np.float64)
            self.tree.put(slots, mass if mass.ndim else np.full(len(slots), mass))

    def pick(self, n: int, beta: float | None) -> tuple[np.ndarray, np.ndarray]:
        """Slots int64 [n], and their weights float32 [n]. In proportion; where all priorities are 0, uniformly."""
        if isinstance(self.sampler, Uniform) or not (total := self.tree.total) > 0:
            return self.index.pick(self.rng, n), np.ones(n, np.float32)
        slots, u = self.tree.draw(self.rng.key, self.rng.take(n), n, self.sampler.stratified), self.sampler.mixture
        if u:
            evenly = np.flatnonzero(uniforms(self.rng.key, self.rng.take(n), n) < u)
            slots[evenly] = self.index.pick(self.rng, len(evenly))
        size = self.index.size
        share = (1 - u) * self.tree.leaves[slots] / total + u / size
        weight = (size * share) ** -(self.sampler.beta if beta is None else beta)  # (N·P)^-β, over the greatest
        return slots, (weight / weight.max()).astype(np.float32)

    def priorities(self, slots: np.ndarray) -> np.ndarray:
        if isinstance(self.sampler, Uniform):
            return np.ones(len(slots))
        mass = self.tree.leaves[slots]
        return mass ** (1 / self.sampler.alpha) if self.sampler.alpha else mass

    def restored(self) -> None:
        """The arrays were filled: rebuild what depends on them."""
        self.tree.load(self.tree.leaves.copy())


# The leaves of rows by slot: of stacked observations each plane once, everything else as it came.


Leaves = dict[str, np.ndarray]  # by path


class Columns:
    """Arrays by path; of stacks the newest plane by slot, one empty plane behind all, and each lane's last row."""

    def __init__(self, replay: Replay):
        leaves = dict(tree.leaves(replay.spec))
        n = self.empty = replay.lanes * replay.rows
        self.k, self.R = replay.stack, replay.rows
        self.stacks = {p: f for p, f in leaves.items() if replay.stacked(p, f)}
        self.whole = {p: f for p, f in leaves.items() if p not in self.stacks and p not in FLAGS}
        self.arrays: Leaves = {p: np.zeros((n + 1, *f.shape[1:]), f.dtype) for p, f in self.stacks.items()}
        self.arrays |= {p: np.zeros((n, *f.shape), f.dtype) for p, f in self.whole.items()}
        self.last: Leaves = {p: np.zeros((replay.lanes, *f.shape), f.dtype) for p, f in self.stacks.items()}

    def put(self, rows: Leaves, lanes: np.ndarray, slots: np.ndarray, extra: np.ndarray) -> None:
        """Rows [T, B, …] into slots [T, B], and the planes that need rows of their own: extra [n, 3], see append."""
        for path, array in self.arrays.items():
            array[slots] = rows[path][:, :, -1] if path in self.stacks else rows[path]
        for path, last in self.last.items():
            last[lanes] = rows[path][-1]
            if len(extra):
                t, b = np.divmod(extra[:, 1], len(lanes))
                self.arrays[path][extra[:, 0]] = rows[path][t, b, extra[:, 2]]

    def take(self, slots: np.ndarray, older: np.ndarray, parts: dict[str, int | slice], batch: Batch) -> None:
        """Rows in `slots` [T, B] into a batch: by path all of them, or only the first."""
        planes = slots
        if self.stacks:
            planes = replay_kernels.planes(slots.reshape(-1), self.R, self.k, older, self.empty)
            planes = planes.reshape(*slots.shape, self.k)
        leaves = dict(tree.leaves(batch))
        for path, part in parts.items():
            at = planes if path in self.stacks else slots[part]
            np.take(self.arrays[path], at, axis=0, out=leaves[path], mode="clip")  # clip: without a copy of its own


# Sequences: which rows belong to an item, and what fills an item where its episode has no rows.
#
# The rows that are trained on begin where one of these is true (row_kernels.append):
#
# - `burn_in` rows before, in the same episode, acting gave its state (`every` rows or more after the last time);
# - the episode began at most `burn_in` rows before, and a multiple of `every`: then its first row resets the state.
#
# So every transition of every episode is in some item. Rows before the episode, and behind its end, are copies of its
# nearest row, `first`, with no reward: part of no transition, and a recurrent state starts from 0 after them.


@compiled
def spans(slots: np.ndarray, T: int, R: int, burn_in: int, flags: np.ndarray) -> tuple[np.ndarray, ...]:
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


# Recurrent states of the rows that sequences begin with: one in `every` rows, not one a row.


class RecurrentStates:
    """Arrays [lanes · anchors + 1, …] by path; the last is 0, for sequences that begin with an episode."""

    def __init__(self, replay: Replay, index: ItemIndex):
        self.index, self.anchors, self.every = index, replay.anchors, replay.every
        self.zero = replay.lanes * replay.anchors
        leaves = dict(tree.leaves(replay.state)) if replay.sequence and replay.state else {}
        self.arrays = {p: np.zeros((self.zero + 1, *f.shape), f.dtype) for p, f in leaves.items()}

    def _at(self, slots: np.ndarray) -> np.ndarray:
        """int64 [n]: where the state is that belongs to the row in each slot."""
        lanes = slots // self.index.R
        newest = self.index.lane[0, lanes] - 1
        number = newest - (newest - slots) % self.index.R  # of the row, in its lane
        return lanes * self.anchors + number // self.every % self.anchors

    def put(self, state: Batch, slots: np.ndarray) -> None:
        """state [B, …] before the rows in slots [B]: stored for those that are anchors."""
        anchors = self.index.flags[slots] & replay_kernels.ANCHOR > 0
        if self.arrays and anchors.any():
            at = self._at(slots[anchors])
            for path, leaf in tree.leaves(state):
                self.arrays[path][at] = np.asarray(leaf)[anchors]

    def take(self, slots: np.ndarray, begins: np.ndarray) -> Batch:
        """state [B, …] before the rows in slots [B]; 0 where an episode begins (bool [B])."""
        if not self.arrays:
            return {}
        at = np.where(begins, self.zero, self._at(slots))
        return tree.nest({p: a[at] for p, a in self.arrays.items()})


QUANTILES_OF = 4096  # items whose priorities metrics() reports quantiles of


class ReplayBuffer:
    """What a Replay describes, open."""

    def __init__(self, replay: Replay, seed: int, batches: bool = True):
        self.replay, self.rng = replay, CounterRng(seed)
        self.index, self.columns = ItemIndex(replay), Columns(replay)
        self.each = max(replay.sequence, 1)  # rows of an item that are learnt from
        self.steps = 0.0  # agent steps so far; of replicas whose gradients are averaged their mean: all owe the same
        self.states = RecurrentStates(replay, self.index)
        self.sampler = ItemSampler(replay.sampler, self.index, self.rng)
        self.max_priority = 1.0  # the greatest ever given
        self.first_priority = 1.0  # of those added last, their mean
        self.beta: float | None = None  # of the last sample, where it was not the sampler's own
        own = [tree.map(np.copy, tree.zeros(replay.drawn())) for _ in range(replay.buffers * batches)]  # pages touched
        self._own_nbytes, self._turn = sum(a.nbytes for b in own for _, a in tree.leaves(b)), cycle(own)
        drawn = dict(tree.leaves(replay.drawn()))
        whole = {p for p in self.columns.arrays if replay.sequence or p.split("/")[0] in BOTH}
        self._rows = {p: slice(None) if p in whole else 0 for p in self.columns.arrays if p in drawn}  # of an item

    # ------------------------------------------------------------------------------------------ adding

    def add(self, batch: Batch, lanes: Sequence[int] | np.ndarray | slice, state: Batch | None = None) -> None:
        """Rows [T, B, …] of B `lanes` (int array or slice), each lane's in order; the next call continues them.

        state [B, …]: recurrent state before row 0. Raises ValueError: a lane given twice, stacks that do not continue;
        NotFinite: first priorities that are made of the rows.
        """
        self._add(batch, lanes, state)
        self.steps += np.size(batch["first"]) - np.count_nonzero(batch["first"])

    def add_rollout(self, rows: Batch, state: Batch, lane: int = 0) -> float:
        """Add a rollout [T+1, B] of lanes from `lane` on, without its last row, which is the next one's first. Returns
        its agent steps.
        """
        first = rows["first"]
        self._add(tree.at(rows, slice(-1)), slice(lane, lane + first.shape[1]), state)
        steps = float(first[1:].size - np.count_nonzero(first[1:]))
        self.steps += steps
        return steps

    def _add(self, batch: Batch, lanes: Sequence[int] | np.ndarray | slice, state: Batch | None) -> None:
        T, index = len(batch["reward"]), self.index
        if not 0 < T <= index.most:
            for begin in range(0, T, index.most):
                self._add(tree.at(batch, slice(begin, begin + index.most)), lanes, None if begin else state)
            return
        at = np.arange(self.replay.lanes)[lanes]
        rows = {path: np.asarray(leaf) for path, leaf in tree.leaves(batch)}
        flags = tuple(np.ascontiguousarray(rows[name], bool) for name in FLAGS)
        if flags[0].shape[1:] != at.shape or len(set(at.tolist())) < len(at):
            raise ValueError(f"rows {flags[0].shape} for lanes {at.tolist()}: allowed is [T, lanes], each lane once")
        stacks = [(rows[path], last[at]) for path, last in self.columns.last.items()]
        begun = index.lane[0, at] > 0
        kinds = replay_kernels.stack_kinds(stacks, begun, T) if stacks else np.zeros(flags[0].shape, np.uint8)
        found = replay_kernels.append(index.rows, flags, kinds, at, state is not None, index.shape)
        slots, extra, added, removed, broken = found
        if broken >= 0:
            which = f"row {broken // len(at)} of lane {at[broken % len(at)]}"
            flaw = "its older planes are not those of the row before, and it is not first; stack=0?"
            raise ValueError(f"{which}: {flaw}")
        self.columns.put(rows, at, slots, extra)
        if state:
            self.states.put(state, slots[0])
        if isinstance(self.replay.sampler, Proportional):
            self.sampler.put(removed, 0.0)  # first: what was added may have the place of what was removed
            self._prioritize(added)
        if self.replay.grows_from:
            self.trim()

    def _prioritize(self, added: np.ndarray) -> None:
        """Rows that became items get their first priority."""
        if not len(added):
            return
        priority: np.ndarray | float = self.max_priority
        if self.replay.sampler.first == "td":
            try:
                priority = self.td_errors(added)
            except BadPriority as e:
                raise NotFinite(f"a reward, or a value that an actor computed, is not finite: {e}") from None
        self.first_priority = float(np.mean(priority))
        self.sampler.put(added, priority)

    def trim(self) -> int:
        """Remove the oldest items beyond a soft capacity, or a window that grows; returns how many."""
        excess = self.index.size - self.replay.limit(self.inserted)
        removed = replay_kernels.trim(self.index.rows, excess, self.index.R)
        self.sampler.put(removed, 0.0)
        return len(removed)

    # ---------------------------------------------------------------------------------------- sampling

    @property
    def inserted(self) -> int:
        """Items so far."""
        return int(self.index.counts[replay_kernels.INSERTED])

    # The rate of learning to acting is bounded on both sides. Learning may draw a batch while drawn + batch ≤ ratio ·
    # steps since the start; acting may go on while drawing is less than `slack` batches behind. One of both holds at
    # any time, whatever the size of what is added at once. An item counts as the rows that are learnt from.

    @property
    def sampled(self) -> int:
        """Items so far."""
        return int(self.index.counts[replay_kernels.SAMPLED])

    @property
    def ready(self) -> bool:
        """Whether there are enough agent steps to sample from."""
        return self.steps >= self.replay.start and self.index.size > 0

    def owed(self, ahead: int = 0) -> float:
        """Rows that may be drawn for the steps so far, less those drawn. ahead: batches drawn that do not count yet."""
        r, drawn = self.replay, int(self.index.counts[replay_kernels.SAMPLED])
        return (r.ratio or 0.0) * (self.steps - r.start) - (drawn - ahead * r.batch) * self.each

    def due(self, ahead: int = 0) -> int:
        """Batches that may be sampled now; see `owed`."""
        r = self.replay
        if self.steps < r.start or not self.index.counts[replay_kernels.SIZE]:
            return 0
        return FREE if r.ratio is None else max(0, int(self.owed(ahead) // (r.batch * self.each)))

    @property
    def room(self) -> int:
        """Agent steps that may be added before learning is behind; while it is above 0, whole rollouts may be added."""
        r, least = self.replay, int(not self.index.size)
        if r.ratio is None:
            return FREE
        behind = r.slack * r.batch * self.each
        if self.steps < r.start:
            return max(math.ceil(r.start - self.steps) + int(behind / r.ratio), least)
        return max(-int(-(behind - self.owed()) // r.ratio), least)

    def importance_exponent(self, left: float) -> float | None:
        """The β of `sample` where it moves to the sampler's `beta_end` over the run, which has `left` to go."""
        s = self.replay.sampler
        return None if isinstance(s, Uniform) or s.beta_end is None else s.beta_end + (s.beta - s.beta_end) * left

    def sample(self, beta: float | None = None, into: Batch | None = None) -> Batch:
        """A batch of items, see docs/concepts/replay.md. Its arrays are good until the sample after the next one.

        beta: instead of the sampler's. into: the caller's own arrays for all of it, as `Replay.drawn` describes them.
        Raises ValueError: there is nothing to draw from.
        """
        if not self.index.counts[replay_kernels.SIZE]:
            raise ValueError("nothing to sample: no item is complete yet; see `ready`")
        self.beta = beta
        slots, weight = self.sampler.pick(self.replay.batch, beta)
        self.index.flags[slots] |= replay_kernels.DRAWN
        self.index.counts[replay_kernels.SAMPLED] += len(slots)
        return self.fill(slots, weight, into)

    def update_priorities(self, ids: ArrayLike, priority: ArrayLike) -> int:
        """Set the priorities [B] of items by id [B]; of an id given twice the last counts. Returns how many were late:
        their items were removed before, and are ignored. Raises BadPriority, and changes nothing.
        """
        ids, given = np.asarray(ids, np.int64), np.asarray(priority, np.float64)
        if ids.ndim != 1 or given.shape != ids.shape:
            raise ValueError(f"ids {ids.shape} and priorities {given.shape}: allowed is one of each, [B]")
        slots, valid = self.index.live_items(ids, given)
        late = len(ids) - len(slots)
        self.index.counts[replay_kernels.LATE] += late
        if len(slots):
            self.max_priority = max(self.max_priority, float(valid.max()))
            self.sampler.put(slots, valid)
        return late

    # -------------------------------------- from the slots of items to the arrays that are learnt from

    def fill(self, slots: np.ndarray, weight: np.ndarray, into: Batch | None = None) -> Batch:
        """The batch of the items in `slots`, see docs/concepts/replay.md: in the caller's arrays, or in some of its own
        in turn.
        """
        r, index = self.replay, self.index
        extras: Batch = {"weight": weight, "id": index.ids(slots)}
        if r.sequence:  # burn_in + sequence + n_step rows of one episode each, and the recurrent state before them
            at, real, extras["valid"] = spans(slots, r.length, index.R, r.burn_in, index.flags)
            flags = index.flags[at]
            extras |= {name: (flags & bit > 0) & real for name, bit in BITS.items()}
            extras["first"] |= ~real
            extras["state"] = self.states.take(at[0], extras["first"][0])
        else:  # s_t, a_t, G, D, s_{t+m}: m steps, n_step or what the episode has
            end, extras["return"], extras["discount"] = self.windows(slots)
            at = np.stack([slots, end])
            extras["first"] = index.flags[at] & FIRST > 0
        batch = into or next(self._turn)
        self.columns.take(at, index.older, self._rows, batch)
        if r.sequence:
            batch["reward"][~real] = 0
        if into is None:
            return batch | extras
        tree.write(into, ..., extras)
        return into

    def td_errors(self, slots: np.ndarray) -> np.ndarray:
        """First priorities [n] of items that may be drawn, from the outputs of the policy that acted (Ape-X, R2D2).
        Raises BadPriority: a value is not finite.
        """
        r, index = self.replay, self.index
        assert isinstance(r.sampler, Proportional)
        if r.sequence:
            learnt = slice(r.burn_in, r.burn_in + r.sequence)
            at, _, valid = (x[learnt] for x in spans(slots, r.length, index.R, r.burn_in, index.flags))
            size = np.where(valid, self._row_errors(at.ravel(), r.sampler.rescale).reshape(at.shape), 0.0)
            mean = size.sum(0) / np.maximum(valid.sum(0), 1)
            error = r.sampler.eta * size.max(0) + (1.0 - r.sampler.eta) * mean
        else:
            error = self._row_errors(slots, r.sampler.rescale)
        return index.live_items(index.ids(slots), error)[1]

    def windows(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Slots of the last rows, G and D, each [n]."""
        r, index, reward = self.replay, self.index, self.columns.arrays["reward"]
        form = REWARDS.index(r.reward)
        end, total, discount = replay_kernels.windows(slots, index.R, r.n_step, r.gamma, form, index.flags, reward)
        return end, np.multiply(total, r.scale, out=total), discount

    def _row_errors(self, slots: np.ndarray, eps: float) -> np.ndarray:
        """|h(G + D·h⁻¹(value)) - chosen| [n] of the windows that begin in `slots`; without rescaling, h is left out."""
        end, total, discount = self.windows(slots)
        ahead = self.columns.arrays["value"][end]
        ahead = unscale(ahead, eps) if eps else ahead
        goal = total + np.where(discount == 0.0, 0.0, discount * ahead)  # no value counts behind the end of an episode
        goal = rescale(goal, eps) if eps else goal
        return np.abs(goal - self.columns.arrays["chosen"][slots]).astype(np.float64)

    # --------------------------------------------------------------------------------------- reporting

    @property
    def nbytes(self) -> int:
        """Bytes it takes now, its batches' arrays included."""
        parts = (self.index.rows._asdict(), self.columns.arrays, self.columns.last, self.states.arrays)
        priorities = self.sampler.tree.nodes.nbytes if isinstance(self.replay.sampler, Proportional) else 0
        return sum(a.nbytes for part in parts for a in part.values()) + priorities + self._own_nbytes

    def metrics(self) -> dict[str, float]:
        """Counts since the beginning, and the present state; ages in agent steps; quantiles of some priorities."""
        counts, size, since = self.index.counts, self.index.size, self.steps - self.replay.start
        evicted = int(counts[replay_kernels.EVICTED])
        metrics = {
            "size": size,
            "steps": int(counts[replay_kernels.STEPS]),
            "inserted": self.inserted,
            "sampled": self.sampled,
            "evicted": evicted,
            "never_sampled": float(counts[replay_kernels.NEVER_SAMPLED]) / max(1, evicted),
            "late": int(counts[replay_kernels.LATE]),
            "age": float(counts[replay_kernels.STEPS]) - float(counts[replay_kernels.ARRIVALS]) / size if size else 0.0,
            "bytes": self.nbytes,
            "ratio": self.sampled * self.each / max(1, since) if since >= 0 else 0.0,
            "ratio_target": self.replay.ratio or 0.0,
        }
        if isinstance(self.replay.sampler, Uniform) or not size:
            return metrics
        beta = self.replay.sampler.beta if self.beta is None else self.beta
        rng = CounterRng(int(self.rng.used))  # of its own, so that the metrics change nothing
        slots = self.index.pick(rng, min(QUANTILES_OF, 4 * size))
        quantiles = np.quantile(self.sampler.priorities(slots), (0.1, 0.5, 0.9, 1.0)).tolist()
        names = ("priority_p10", "priority_p50", "priority_p90", "priority_max")
        return metrics | dict(zip(names, quantiles, strict=True)) | {"priority_new": self.first_priority, "beta": beta}

    save, load = replay.save_buffer, replay.load_buffer

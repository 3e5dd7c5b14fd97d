"""ReplayBuffer: rows of experience of many lanes, from which batches are drawn again and again.

For one thread. Rows are added as the acting loop wrote them (docs/concepts/rows.md). Batches are of items; an item's id
differs from that of every later item in its slot. See docs/concepts/replay.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from polyplay.buffers.replay import files, row_kernels
from polyplay.buffers.replay.batches import SequenceBatches, TransitionBatches
from polyplay.buffers.replay.columns import Columns
from polyplay.buffers.replay.copy_kernels import stack_kinds
from polyplay.buffers.replay.index import ItemIndex
from polyplay.buffers.replay.rate_limiter import RateLimiter
from polyplay.buffers.replay.recurrent_states import RecurrentStates
from polyplay.buffers.replay.rng import CounterRng
from polyplay.buffers.replay.samplers import ProportionalSampler, UniformSampler
from polyplay.buffers.replay.spec import FLAGS, Proportional, Replay, Uniform
from polyplay.common import tree
from polyplay.common.errors import BadPriority, NotFinite
from polyplay.common.tree import Batch

QUANTILES_OF = 4096  # items whose priorities metrics() reports quantiles of


class ReplayBuffer:
    """What a Replay describes, open."""

    def __init__(self, replay: Replay, seed: int, batches: bool = True):
        self.replay, self.rng = replay, CounterRng(seed)
        self.index, self.columns, self.limiter = ItemIndex(replay), Columns(replay), RateLimiter(replay)
        self.states = RecurrentStates(replay, self.index)
        self.sampler = UniformSampler(self.index, self.rng)
        if isinstance(replay.sampler, Proportional):
            self.sampler = ProportionalSampler(replay.sampler, self.index, self.rng)
        self.max_priority = 1.0  # the greatest ever given
        self.first_priority = 1.0  # of those added last, their mean
        self.beta: float | None = None  # of the last sample, where it was not the sampler's own
        kind = SequenceBatches if replay.sequence else TransitionBatches
        self.batches = kind(replay, self.index, self.columns, self.states, replay.buffers if batches else 0)

    # ------------------------------------------------------------------------------------------ adding

    def add(self, batch: Batch, lanes: Sequence[int] | np.ndarray | slice, state: Batch | None = None) -> None:
        """Rows [T, B, …] of B `lanes` (int array or slice), each lane's in order; the next call continues them.

        state [B, …]: recurrent state before row 0. Raises ValueError: a lane given twice, stacks that do not continue;
        NotFinite: first priorities that are made of the rows.
        """
        self._add(batch, lanes, state)
        self.limiter.steps += _arrived(batch["first"])

    def add_rollout(self, rows: Batch, state: Batch, lane: int = 0) -> float:
        """Add a rollout [T+1, B] of lanes from `lane` on, without its last row, which is the next one's first. Returns
        its agent steps.
        """
        first = rows["first"]
        self._add(tree.at(rows, slice(-1)), slice(lane, lane + first.shape[1]), state)
        steps = _arrived(first[1:])
        self.limiter.steps += steps
        return float(steps)

    def _add(self, batch: Batch, lanes: Sequence[int] | np.ndarray | slice, state: Batch | None) -> None:
        T, index = len(batch["reward"]), self.index
        if not 0 < T <= index.most:
            for begin in range(0, T, index.most):
                self._add(tree.at(batch, slice(begin, begin + index.most)), lanes, None if begin else state)
            return
        at = np.arange(self.replay.lanes)[lanes] if isinstance(lanes, slice) else self._lanes(lanes)
        rows = {path: np.asarray(leaf) for path, leaf in tree.leaves(batch)}
        flags = tuple(np.ascontiguousarray(rows[name], bool) for name in FLAGS)
        if flags[0].shape[1:] != at.shape:
            raise ValueError(f"rows {flags[0].shape} for {len(at)} lanes: allowed is [T, {len(at)}]")
        stacks = [(rows[path], self.columns.last[path]) for path in self.columns.stacks]
        kinds = stack_kinds(stacks, at, index.lane[0, at] > 0, T)
        slots, extra, added, removed = index.append(flags, kinds, at, state is not None)
        self.columns.put(rows, at, slots, extra)
        if state:
            self.states.put(state, slots[0])
        self.sampler.put(removed, 0.0)  # first: what was added may have the place of what was removed
        self._prioritize(added)
        if self.replay.grows_from:
            self.trim()

    def _lanes(self, lanes: Sequence[int] | np.ndarray) -> np.ndarray:
        at = np.asarray(lanes, np.int64)
        if len(at) and (at.min() < 0 or at.max() >= self.replay.lanes or len(set(at.tolist())) < len(at)):
            raise ValueError(f"lanes {at.tolist()}: allowed is each of 0 … {self.replay.lanes - 1} once")
        return at

    def _prioritize(self, added: np.ndarray) -> None:
        """Rows that became items get their first priority."""
        if isinstance(self.replay.sampler, Uniform) or not len(added):
            return
        priority: np.ndarray | float = self.max_priority
        if self.replay.sampler.first == "td":
            try:
                priority = self.batches.td_errors(added)
            except BadPriority as e:
                raise NotFinite(f"a reward, or a value that an actor computed, is not finite: {e}") from None
        self.first_priority = float(np.mean(priority))
        self.sampler.put(added, priority)

    def trim(self) -> int:
        """Remove the oldest items beyond a soft capacity, or a window that grows; returns how many."""
        excess = self.index.size - self.replay.limit(self.inserted)
        removed = row_kernels.trim(self.index.rows, excess, self.index.R)
        self.sampler.put(removed, 0.0)
        return len(removed)

    # ---------------------------------------------------------------------------------------- sampling

    @property
    def inserted(self) -> int:
        """Items so far."""
        return int(self.index.counts[row_kernels.INSERTED])

    @property
    def sampled(self) -> int:
        return int(self.index.counts[row_kernels.SAMPLED])

    @property
    def ready(self) -> bool:
        """Whether there are enough agent steps to sample from."""
        return self.limiter.begun and self.index.size > 0

    @property
    def due(self) -> int:
        """Batches that may be sampled now."""
        return self.limiter.due(self.sampled) if self.ready else 0

    @property
    def room(self) -> int:
        """Agent steps that may be added before learning is behind; while it is above 0, whole rollouts may be added."""
        return max(self.limiter.room(self.sampled), int(not self.index.size))

    def sample(self, beta: float | None = None, into: Batch | None = None) -> Batch:
        """A batch of items, see docs/concepts/replay.md. Its arrays are good until the sample after the next one.

        beta: instead of the sampler's. into: the caller's own arrays for all of it, as `Replay.drawn` describes them.
        Raises ValueError: there is nothing to draw from.
        """
        if not self.index.size:
            raise ValueError("nothing to sample: no item is complete yet; see `ready`")
        self.beta = beta
        slots, weight = self.sampler.pick(self.replay.batch, beta)
        self.index.flags[slots] |= row_kernels.DRAWN
        self.index.counts[row_kernels.SAMPLED] += len(slots)
        return self.batches.fill(slots, weight, into)

    def update_priorities(self, ids: ArrayLike, priority: ArrayLike) -> int:
        """Set the priorities [B] of items by id [B]; of an id given twice the last counts. Returns how many were late:
        their items were removed before, and are ignored. Raises BadPriority, and changes nothing.
        """
        ids, given = np.asarray(ids, np.int64), np.asarray(priority, np.float64)
        if ids.ndim != 1 or given.shape != ids.shape:
            raise ValueError(f"ids {ids.shape} and priorities {given.shape}: allowed is one of each, [B]")
        slots, valid, greatest = self.index.live_items(ids, given)
        late = len(ids) - len(slots)
        self.index.counts[row_kernels.LATE] += late
        if len(slots):
            self.max_priority = max(self.max_priority, greatest)
            self.sampler.put(slots, valid)
        return late

    # --------------------------------------------------------------------------------------- reporting

    @property
    def nbytes(self) -> int:
        """Bytes it takes now, its batches' arrays included."""
        parts = (self.index.rows._asdict(), self.columns.arrays, self.columns.last, self.states.arrays)
        return sum(a.nbytes for part in parts for a in part.values()) + self.sampler.nbytes + self.batches.nbytes

    def metrics(self) -> dict[str, float]:
        """Counts since the beginning, and the present state; ages in agent steps; quantiles of some priorities."""
        counts, size, evicted = self.index.counts, self.index.size, int(self.index.counts[row_kernels.EVICTED])
        metrics = {
            "size": size,
            "steps": int(counts[row_kernels.STEPS]),
            "inserted": self.inserted,
            "sampled": self.sampled,
            "evicted": evicted,
            "never_sampled": float(counts[row_kernels.NEVER_SAMPLED]) / max(1, evicted),
            "late": int(counts[row_kernels.LATE]),
            "age": float(counts[row_kernels.STEPS]) - float(counts[row_kernels.ARRIVALS]) / size if size else 0.0,
            "bytes": self.nbytes,
            "ratio": self.limiter.measured(self.sampled),
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

    save, load = files.save_buffer, files.load_buffer


def _arrived(first: np.ndarray) -> int:
    """Agent steps that led to these rows: to all but those that begin an episode."""
    return int(np.size(first) - np.count_nonzero(first))

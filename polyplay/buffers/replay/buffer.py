"""Memory: rows of experience of many lanes, from which batches are drawn again and again.

For one thread. Rows come as the acting loop wrote them (docs/concepts/rows.md); what is drawn are items, each with an
id that tells one from whoever has its place later. See docs/concepts/replay.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from polyplay.buffers.replay import files, row_kernels
from polyplay.buffers.replay.batches import SequenceBatch, TransitionBatch
from polyplay.buffers.replay.columns import Columns, flags_of
from polyplay.buffers.replay.index import ItemIndex
from polyplay.buffers.replay.rate_limiter import RateLimiter
from polyplay.buffers.replay.recurrent_states import RecurrentStates
from polyplay.buffers.replay.rng import CounterRng
from polyplay.buffers.replay.samplers import check_priorities, sampler_of
from polyplay.buffers.replay.spec import Replay, Uniform
from polyplay.common import tree
from polyplay.common.errors import BadPriority, NotFinite
from polyplay.common.tree import Batch

LOOKED_AT = 4096  # items whose priorities metrics() tells quantiles of


class ReplayBuffer:
    """What a Replay describes, open."""

    def __init__(self, replay: Replay, seed: int, batches: bool = True):
        self.replay, self.draws = replay, CounterRng(seed)
        self.ledger, self.fields, self.states = ItemIndex(replay), Columns(replay), RecurrentStates(replay)
        self.picker = sampler_of(replay, self.ledger, self.draws)
        self.pace = RateLimiter(replay)
        self.paths = {path: path.split("/") for path, _ in tree.leaves(replay.spec)}
        self.first: str = getattr(replay.sampler, "first", "max")
        self.given = np.zeros(self.ledger.slots if self.first == "given" else 0, np.float32)
        self.greatest = 1.0  # priority of what nobody has judged yet: the greatest ever told
        self.beta: float | None = None  # of the last sample, where it was not the sampler's own
        kind = SequenceBatch if replay.sequence else TransitionBatch
        self.batches: SequenceBatch | TransitionBatch = kind(
            replay, self.ledger, self.fields, self.states, replay.buffers if batches else 0
        )

    # ------------------------------------------------------------------------------------------ adding

    def add(self, batch: Batch, lanes: Any, state: Batch | None = None, priority: Any = None) -> None:
        """Rows [T, B, …] of B `lanes` (int array or slice), each lane's in order; the next call goes on behind them.

        state [B, …]: recurrent state before row 0. priority [T, B]: where the sampler's `first` is "given".
        Raises ValueError: lanes that come twice, stacks that do not go on; BadPriority; NotFinite: first priorities
        that are made of the rows.
        """
        at = self._lanes(lanes)
        flat = {path: np.asarray(_leaf(batch, keys)) for path, keys in self.paths.items()}
        told = check_priorities(priority) if self.first == "given" else None
        T = len(flat["reward"])
        for begin in range(0, T, self.ledger.most):
            part = slice(begin, begin + self.ledger.most)
            some = {p: leaf[part] for p, leaf in flat.items()}
            self._add(some, at, state if begin == 0 else None, None if told is None else told[part])
        self.pace.heard(T * len(at))

    def _lanes(self, lanes: Any) -> np.ndarray:
        if isinstance(lanes, slice):
            return np.arange(self.replay.lanes)[lanes]
        at = np.asarray(lanes, np.int64)
        if len(at) and (at.min() < 0 or at.max() >= self.replay.lanes or len(set(at.tolist())) < len(at)):
            raise ValueError(f"lanes {at.tolist()}: allowed is each of 0 … {self.replay.lanes - 1} once")
        return at

    def _add(self, flat: dict[str, np.ndarray], at: np.ndarray, state: Batch | None, told: np.ndarray | None) -> None:
        ledger, given = self.ledger, flags_of(flat)
        if given.shape[1:] != at.shape:
            raise ValueError(f"rows {given.shape} for {len(at)} lanes: allowed is [T, {len(at)}]")
        before = ledger.lane[0, at]
        kinds = self.fields.kinds(flat, at, before > 0, len(given))
        slots, extra, come, gone = ledger.append(given, kinds, at, state is not None)
        self.fields.put(flat, at, slots, extra)
        if state is not None:
            self.states.put(state, slots[0], ledger)
        if told is not None:
            self.given[slots] = told
        self._forget(gone)  # first: what came may have the place of one that went
        self._judge(come[ledger.flags[come] & row_kernels.LIVE > 0])  # some may be gone again

    def _judge(self, come: np.ndarray) -> None:
        """Rows that came to be items get their first priority."""
        if isinstance(self.replay.sampler, Uniform) or not len(come):
            return
        priority: np.ndarray | float
        if self.first == "max":
            priority = self.greatest
        elif self.first == "given":
            priority = self.given[come].astype(np.float64)
        else:
            try:
                priority = self.batches.errors(come)  # type: ignore[union-attr]
            except BadPriority as e:
                raise NotFinite(f"a reward, or a value that an actor said, is not finite: {e}") from None
        self.picker.put(come, priority)

    def _forget(self, gone: np.ndarray) -> None:
        if len(gone):
            self.picker.put(gone, 0.0)

    def trim(self) -> int:
        """Drop the oldest items beyond the capacity, for a soft one; how many."""
        gone = self.ledger.trim(self.ledger.size - self.replay.capacity)
        self._forget(gone)
        return len(gone)

    # ---------------------------------------------------------------------------------------- sampling

    @property
    def inserted(self) -> int:
        """Items so far."""
        return int(self.ledger.counts[row_kernels.INSERTED])

    @property
    def sampled(self) -> int:
        return int(self.ledger.counts[row_kernels.SAMPLED])

    @property
    def ready(self) -> bool:
        """There is enough to begin."""
        return self.pace.begun and self.ledger.size > 0

    @property
    def due(self) -> int:
        """Batches that may be sampled now."""
        return self.pace.due(self.sampled) if self.ready else 0

    @property
    def room(self) -> int:
        """Rows that may be added before learning is behind; while it is above 0, add as many as come at once."""
        return max(self.pace.room(self.sampled), int(not self.ledger.size))

    def sample(self, beta: float | None = None, into: Batch | None = None) -> Batch:
        """A batch of items, see docs/concepts/replay.md. Its arrays are good until the sample after the next one.

        beta: instead of the sampler's. into: the caller's own arrays for all of it, as `Replay.drawn` describes them.
        Raises ValueError: there is nothing to draw from.
        """
        if not self.ledger.size:
            raise ValueError("nothing to sample: no item is complete yet; see `ready`")
        self.beta = beta
        slots, weight = self.picker.pick(self.replay.batch, beta)
        self.ledger.drawn(slots)
        return self.batches.fill(slots, weight, into)

    def feedback(self, ids: Any, priority: Any) -> int:
        """New priorities [B] of items by id [B]; the last counts where an id comes twice. How many came too late: their
        items are gone, and nothing is changed for them. Raises BadPriority, nothing changed.
        """
        ids, given = np.asarray(ids, np.int64), np.asarray(priority, np.float64)
        if ids.ndim != 1 or given.shape != ids.shape:
            raise ValueError(f"ids {ids.shape} and priorities {given.shape}: allowed is one of each, [B]")
        slots, told, greatest = self.ledger.judge(ids, given)
        late = len(ids) - len(slots)
        self.ledger.counts[row_kernels.LATE] += late
        if len(slots):
            self.greatest = max(self.greatest, greatest)
            self.picker.put(slots, told)
        return late

    # ----------------------------------------------------------------------------------------- telling

    @property
    def nbytes(self) -> int:
        """What it takes now, its batches' arrays included."""
        parts = (self.ledger, self.fields, self.states, self.picker, self.batches, self.given)
        return sum(int(p.nbytes) for p in parts)

    def metrics(self) -> dict[str, float]:
        """Counts since the beginning, and how it stands; ages in agent steps."""
        counts, size = self.ledger.counts, self.ledger.size
        told = {
            "size": size,
            "steps": int(counts[row_kernels.STEPS]),
            "inserted": self.inserted,
            "sampled": self.sampled,
            "evicted": int(counts[row_kernels.EVICTED]),
            "never_sampled": float(counts[row_kernels.UNSEEN]) / max(1, int(counts[row_kernels.EVICTED])),
            "late": int(counts[row_kernels.LATE]),
            "age": self.ledger.mean_age(),
            "bytes": self.nbytes,
            "ratio": self.pace.measured(self.sampled),
            "ratio_target": self.replay.ratio or 0.0,
        }
        return told | ({} if isinstance(self.replay.sampler, Uniform) or not size else self._priorities())

    def _priorities(self) -> dict[str, float]:
        """Quantiles of some items' priorities: chosen by a generator of its own, so that asking changes nothing."""
        slots = self.ledger.pick(CounterRng(int(self.draws.used)), min(LOOKED_AT, 4 * self.ledger.size))
        found = np.quantile(self.picker.priorities(slots), (0.1, 0.5, 0.9, 1.0)).tolist()
        beta = self.replay.sampler.beta if self.beta is None else self.beta  # type: ignore[union-attr]
        names = ("priority_p10", "priority_p50", "priority_p90", "priority_max")
        return dict(zip(names, found, strict=True)) | {"priority_new": self.greatest, "beta": beta}

    def save(self, directory: Path) -> None:
        """Everything that decides what is drawn from now on, as files of `directory`. Raises OSError."""
        files.save_buffer(self, directory)

    def load(self, directory: Path) -> None:
        """Go on from there, to the bit. Raises UserError: damaged, or saved of another description."""
        files.load_buffer(self, directory)


def _leaf(batch: Batch, keys: list[str]) -> Any:
    """The leaf under these keys, one below the other."""
    found: Any = batch
    for key in keys:
        found = found[key]
    return found

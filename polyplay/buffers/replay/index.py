"""The index of a buffer: which row is in which slot, which items may be drawn, and their ids. See row_kernels."""

from __future__ import annotations

import numpy as np

from polyplay.buffers.replay import row_kernels
from polyplay.buffers.replay.rng import CounterRng
from polyplay.buffers.replay.spec import Replay
from polyplay.buffers.replay.sum_tree import MOST
from polyplay.common.errors import BadPriority


class ItemIndex:
    """What is known of all rows, see row_kernels.Rows and append."""

    def __init__(self, replay: Replay):
        r, L = replay, replay.lanes
        self.R, self.slots, self.most = r.rows, L * r.rows, max(1, r.rows // (2 * max(r.stack, 1)))
        self.shape = np.array([r.rows, r.stack, r.window, r.burn_in, r.every], np.int64)
        zeros = [np.zeros(self.slots, dtype) for dtype in (np.uint8, np.uint8, np.uint32, np.int64)]
        self.rows = row_kernels.Rows(np.zeros((5, L), np.int64), np.zeros(8, np.int64), *zeros)
        self.lane, self.counts, self.flags, self.older, self.generation, self.arrival = self.rows
        self.lane[4] = -1

    @property
    def size(self) -> int:
        """Items that may be drawn."""
        return int(self.counts[row_kernels.SIZE])

    def append(
        self, given: tuple[np.ndarray, ...], kinds: np.ndarray, lanes: np.ndarray, anchored: bool
    ) -> tuple[np.ndarray, ...]:
        """Add at most `most` rows [T, B]: (slots [T, B], extra [n, 3], added, removed), as
        row_kernels.append does.

        Raises ValueError: a stack of planes that does not go on from the row before, within an episode.
        """
        *found, broken = row_kernels.append(self.rows, given, kinds, lanes, anchored, self.shape)
        if broken >= 0:
            at = f"row {broken // len(lanes)} of lane {lanes[broken % len(lanes)]}"
            raise ValueError(f"{at}: its older planes are not those of the row before, and it is not first; stack=0?")
        return tuple(found)

    def pick(self, rng: CounterRng, n: int) -> np.ndarray:
        """int64 [n] slots of items, each with the same chance. There must be one."""
        out, used = row_kernels.pick(rng.key, rng.used, n, self.R, self.lane, self.flags)
        rng.used = np.uint64(used)
        return out

    def ids(self, slots: np.ndarray) -> np.ndarray:
        """int64 ids of what these slots hold: the slot, and its generation."""
        return (self.generation[slots].astype(np.int64) << row_kernels.SHIFT) | slots

    def live_items(self, ids: np.ndarray, priority: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Slots and priorities of those ids whose items may still be drawn, and the greatest of these priorities.

        Raises BadPriority, naming the first that is NaN, negative or infinite.
        """
        slots, valid, greatest, wrong = row_kernels.live_items(ids, priority, MOST, self.flags, self.generation)
        if wrong >= 0:
            bad = priority[wrong]
            kind = "NaN" if np.isnan(bad) else "negative" if bad < 0 else "infinite" if np.isinf(bad) else "too large"
            said = f"priority {bad} of id {ids[wrong]}, number {wrong} of {len(ids)}, is {kind}"
            raise BadPriority(f"{said}; allowed: 0 to {MOST:g}")
        return slots, valid, greatest

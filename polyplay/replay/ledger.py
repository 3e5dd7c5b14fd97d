"""The book of a memory's rows: which slot holds what, what may be drawn, the ids of items. See rows."""

from __future__ import annotations

import numpy as np

from polyplay.replay import rows
from polyplay.replay.description import Replay
from polyplay.replay.draws import Draws

NAMES = ("head", "tail", "begin", "wait", "last")


class Ledger:
    """Rows of every lane: `lane` int64 [5, L] (NAMES); by slot `flags`, `age` uint8, `stamp` int64; `counts`."""

    def __init__(self, replay: Replay):
        r, L = replay, replay.lanes
        self.R, self.slots, self.most = r.rows, L * r.rows, max(1, r.rows // (2 * max(r.stack, 1)))
        self.shape = np.array([r.rows, r.stack, r.window, r.burn_in, r.every], np.int64)
        self.lane = np.zeros((5, L), np.int64)
        self.lane[4] = -1
        self.flags, self.age = np.zeros(self.slots, np.uint8), np.zeros(self.slots, np.uint8)
        self.stamp = np.zeros(self.slots, np.int64)  # transitions that had arrived when the row did
        self.counts = np.zeros(8, np.int64)

    @property
    def nbytes(self) -> int:
        return int(sum(a.nbytes for a in (self.lane, self.flags, self.age, self.stamp)))

    @property
    def size(self) -> int:
        """Items that may be drawn."""
        return int(self.counts[rows.SIZE])

    @property
    def used(self) -> np.ndarray:
        """int64 [L]: slots of each lane that hold a row, from the lane's first."""
        return np.minimum(self.lane[0], self.R)

    def append(self, given: np.ndarray, kinds: np.ndarray, lanes: np.ndarray, anchored: bool) -> tuple[np.ndarray, ...]:
        """Add at most `most` rows [T, B] of flags: (slots [T, B], extra [n, 3], events [m, 2]), see rows.append.

        Raises ValueError: a stack of planes that does not go on from the row before, within an episode.
        """
        T, B = given.shape
        slots = np.empty((T, B), np.int64)
        n = int((kinds == rows.STRANGE).sum()) * max(0, int(self.shape[1]) - 1)
        extra = np.empty((n, 3), np.int64)
        most = 2 * (T * B + n) + 2 * B * int(self.shape[1:4].sum())  # every row once in, once out; and what waited
        events = np.empty((most, 2), np.int64)
        n_extra, n_events, strange = rows.append(
            given, kinds, lanes, anchored, self.shape, self.lane, self.flags, self.age, self.stamp, self.counts,
            slots, extra, events,
        )  # fmt: skip
        if strange >= 0:
            at = f"row {strange // B} of lane {lanes[strange % B]}"
            raise ValueError(f"{at}: its older planes are not those of the row before, and it is not first; stack=0?")
        return slots, extra[:n_extra], events[:n_events]

    def pick(self, draws: Draws, n: int) -> np.ndarray:
        """int64 [n] slots of items, each with the same chance. There must be one."""
        out = np.empty(n, np.int64)
        draws.used = np.uint64(rows.pick(draws.key, draws.used, self.R, self.lane, self.flags, out))
        return out

    def trim(self, excess: int) -> np.ndarray:
        """Drop the oldest items; events [m, 2]."""
        events = np.empty((max(excess, 0), 2), np.int64)
        n = rows.trim(excess, self.R, self.lane, self.flags, self.stamp, self.counts, events)
        return events[:n]

    def drawn(self, slots: np.ndarray) -> None:
        self.flags[slots] |= rows.DRAWN
        self.counts[rows.SAMPLED] += len(slots)

    def ids(self, slots: np.ndarray) -> np.ndarray:
        """int64 ids of what these slots hold: the slot, and which of its owners that is."""
        out = np.empty(len(slots), np.int64)
        rows.numbers(slots, self.R, self.lane[0], out)
        return out // self.R * self.slots + slots

    def owned(self, ids: np.ndarray) -> np.ndarray:
        """bool: the item of each id may still be drawn. ValueError: an id that never was one."""
        if len(ids) and ids.min() < 0:
            raise ValueError(f"id {ids.min()} is none of this memory")
        slots = ids % self.slots
        return (self.ids(slots) == ids) & (self.flags[slots] & rows.LIVE > 0)

    def mean_age(self) -> float:
        """Transitions that arrived since an item's row did, on average."""
        size = max(self.size, 1)
        return float(self.counts[rows.STEPS]) - float(self.counts[rows.STAMPS]) / size if self.size else 0.0

    def arrays(self) -> dict[str, np.ndarray]:
        """What is saved."""
        return {"lane": self.lane, "flags": self.flags, "age": self.age, "stamp": self.stamp, "counts": self.counts}

"""The book of a memory's rows: which slot holds what, what may be drawn, the ids of items. See rows."""

from __future__ import annotations

import numpy as np

from polyplay.buffers.replay import row_kernels
from polyplay.buffers.replay.rng import CounterRng
from polyplay.buffers.replay.spec import Replay
from polyplay.buffers.replay.sum_tree import MOST
from polyplay.common.errors import BadPriority

NAMES = ("head", "tail", "begin", "wait", "last")
BY_SLOT = ("flags", "age", "owner", "stamp")


def id_error(priority: np.ndarray, i: int, whose: str = "") -> str:
    """What is wrong with number i."""
    value = priority.reshape(-1)[i]
    kind = "NaN" if np.isnan(value) else "negative" if value < 0 else "infinite" if np.isinf(value) else "too large"
    return f"priority {value}{whose}, number {i} of {priority.size}, is {kind}; allowed: 0 to {MOST:g}"


class ItemIndex:
    """Rows of every lane: `lane` int64 [5, L] (NAMES); by slot `flags`, `age` uint8, `stamp` int64; `counts`."""

    def __init__(self, replay: Replay):
        r, L = replay, replay.lanes
        self.R, self.slots, self.most = r.rows, L * r.rows, max(1, r.rows // (2 * max(r.stack, 1)))
        self.shape = np.array([r.rows, r.stack, r.window, r.burn_in, r.every], np.int64)
        self.lane = np.zeros((5, L), np.int64)
        self.lane[4] = -1
        self.flags, self.age = np.zeros(self.slots, np.uint8), np.zeros(self.slots, np.uint8)
        self.owner = np.zeros(self.slots, np.uint32)  # which row this is, of all that had the slot
        self.stamp = np.zeros(self.slots, np.int64)  # transitions that had arrived when the row did
        self.counts = np.zeros(8, np.int64)

    @property
    def nbytes(self) -> int:
        return int(sum(a.nbytes for a in (self.lane, self.flags, self.age, self.owner, self.stamp)))

    @property
    def size(self) -> int:
        """Items that may be drawn."""
        return int(self.counts[row_kernels.SIZE])

    @property
    def used(self) -> np.ndarray:
        """int64 [L]: slots of each lane that hold a row, from the lane's first."""
        return np.minimum(self.lane[0], self.R)

    def append(self, given: np.ndarray, kinds: np.ndarray, lanes: np.ndarray, anchored: bool) -> tuple[np.ndarray, ...]:
        """Add at most `most` rows [T, B] of flags: (slots [T, B], extra [n, 3], come, gone), see rows.append.

        Raises ValueError: a stack of planes that does not go on from the row before, within an episode.
        """
        T, B = given.shape
        slots, n = np.empty((T, B), np.int64), 0
        if self.shape[1]:
            n = int((kinds == row_kernels.STRANGE).sum()) * int(self.shape[1] - 1)
        extra, gone = np.empty((n, 3), np.int64), np.empty(T * B + n, np.int64)
        come = np.empty(T * B + B * int(self.shape[2]), np.int64)  # and what waited
        extras, n_come, n_gone, strange = row_kernels.append(
            given, kinds, lanes, anchored, self.shape, self.lane, self.flags, self.age, self.owner, self.stamp,
            self.counts, slots, extra, come, gone,
        )  # fmt: skip
        if strange >= 0:
            at = f"row {strange // B} of lane {lanes[strange % B]}"
            raise ValueError(f"{at}: its older planes are not those of the row before, and it is not first; stack=0?")
        return slots, extra[:extras], come[:n_come], gone[:n_gone]

    def pick(self, draws: CounterRng, n: int) -> np.ndarray:
        """int64 [n] slots of items, each with the same chance. There must be one."""
        out = np.empty(n, np.int64)
        draws.used = np.uint64(row_kernels.pick(draws.key, draws.used, self.R, self.lane, self.flags, out))
        return out

    def trim(self, excess: int) -> np.ndarray:
        """Drop the oldest items; their slots."""
        gone = np.empty(max(excess, 0), np.int64)
        n = row_kernels.trim(excess, self.R, self.lane, self.flags, self.stamp, self.counts, gone)
        return gone[:n]

    def drawn(self, slots: np.ndarray) -> None:
        self.flags[slots] |= row_kernels.DRAWN
        self.counts[row_kernels.SAMPLED] += len(slots)

    def ids(self, slots: np.ndarray) -> np.ndarray:
        """int64 ids of what these slots hold: the slot, and which of its owners that is."""
        return (self.owner[slots].astype(np.int64) << row_kernels.SHIFT) | slots

    def judge(self, ids: np.ndarray, priority: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Slots and priorities of those ids whose items may still be drawn, and the greatest of these priorities.

        Raises BadPriority, naming the first that is NaN, negative or infinite.
        """
        slots, told = np.empty(len(ids), np.int64), np.empty(len(ids))
        n, greatest, wrong = row_kernels.judge(ids, priority, MOST, self.flags, self.owner, slots, told)
        if wrong >= 0:
            raise BadPriority(id_error(priority, wrong, f" of id {ids[wrong]}"))
        return slots[:n], told[:n], greatest

    def mean_age(self) -> float:
        """Transitions that arrived since an item's row did, on average."""
        size = max(self.size, 1)
        return (
            float(self.counts[row_kernels.STEPS]) - float(self.counts[row_kernels.STAMPS]) / size if self.size else 0.0
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """What is saved."""
        return {"lane": self.lane, "counts": self.counts, **{n: getattr(self, n) for n in BY_SLOT}}

"""The leaves of rows: stacked planes, each kept once, and everything else as it came."""

from __future__ import annotations

import numpy as np

from polyplay.buffers.replay import row_kernels
from polyplay.buffers.replay.copy_kernels import kinds
from polyplay.buffers.replay.spec import FLAGS, Replay
from polyplay.buffers.replay.storage import Shelf, storage_of
from polyplay.common import tree
from polyplay.common.tree import Batch


class Columns:
    """Shelves by path; of stacks the newest plane by slot, one empty plane behind all, and each lane's last row."""

    def __init__(self, replay: Replay):
        leaves = dict(tree.leaves(replay.spec))
        n, self.k, self.R, self.lanes = replay.lanes * replay.rows, replay.stack, replay.rows, replay.lanes
        self.stacks = {p: f for p, f in leaves.items() if replay.stacked(p, f)}
        self.whole = {p: f for p, f in leaves.items() if p not in self.stacks and p not in FLAGS}
        self.shelves: dict[str, Shelf] = {}
        for path, f in self.stacks.items():
            self.shelves[path] = storage_of(n + 1, f.shape[1:], f.dtype, replay.compress)
        for path, f in self.whole.items():
            packed = replay.compress if path.split("/")[0] == "obs" else "none"
            self.shelves[path] = storage_of(n, f.shape, f.dtype, packed)
        self.last = {p: np.zeros((replay.lanes, *f.shape), f.dtype) for p, f in self.stacks.items()}
        self.reward: np.ndarray = self.shelves["reward"].array  # type: ignore[union-attr]

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for s in self.shelves.values()) + sum(a.nbytes for a in self.last.values())

    def kinds(self, flat: dict[str, np.ndarray], lanes: np.ndarray, begun: np.ndarray, T: int) -> np.ndarray:
        """See copying.kinds; of rows without stacks all are alike."""
        if not self.stacks:
            return np.zeros((T, len(lanes)), np.uint8)  # rows.CONTINUES
        return kinds([(flat[p], self.last[p]) for p in self.stacks], lanes, begun, T)

    def put(self, flat: dict[str, np.ndarray], lanes: np.ndarray, slots: np.ndarray, extra: np.ndarray) -> None:
        """Rows [T, B, …] into slots [T, B], and the planes of strange stacks: extra [n, 3], see rows.append."""
        for path in self.whole:
            self.shelves[path].put(slots, flat[path])
        for path in self.stacks:
            stack = flat[path]
            self.shelves[path].put(slots, stack)
            if len(extra):
                t, b = np.divmod(extra[:, 1], len(lanes))
                self.shelves[path].put(extra[:, 0].copy(), stack[t, b, extra[:, 2]])
            self.last[path][lanes] = stack[-1]

    def planes(self, slots: np.ndarray, age: np.ndarray) -> np.ndarray:
        """int64 [n, k] where the planes of these rows' stacks are, oldest first."""
        out = np.empty((slots.size, max(self.k, 1)), np.int64)
        if self.stacks:
            row_kernels.planes(slots.reshape(-1), self.R, self.k, age, self.lanes * self.R, out)
        return out

    def take(self, path: str, slots: np.ndarray, where: np.ndarray, out: np.ndarray) -> None:
        """Rows in `slots` (any shape) into out [slots.shape, …]; `where` as planes() says."""
        self.shelves[path].take(where if path in self.stacks else slots, out)


def flags_of(batch: Batch) -> np.ndarray:
    """uint8 [T, B] from a batch's bools."""
    first, terminated, truncated = (np.asarray(batch[name], bool) for name in FLAGS)
    return row_kernels.flags_of(first, terminated, truncated)

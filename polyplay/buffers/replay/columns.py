"""The leaves of rows by slot: of stacked observations each plane once, everything else as it came."""

from __future__ import annotations

import numpy as np

from polyplay.buffers.replay import row_kernels
from polyplay.buffers.replay.copy_kernels import as_cells, gather, scatter, stack_kinds
from polyplay.buffers.replay.spec import FLAGS, Replay
from polyplay.common import tree

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
        self.cells: Leaves = {p: as_cells(a, len(a)) for p, a in self.arrays.items()}
        self.last: Leaves = {p: np.zeros((replay.lanes, *f.shape), f.dtype) for p, f in self.stacks.items()}

    def kinds(self, rows: Leaves, lanes: np.ndarray, begun: np.ndarray, T: int) -> np.ndarray:
        """See stack_kinds; rows without stacks are all alike."""
        if not self.stacks:
            return np.zeros((T, len(lanes)), np.uint8)  # CONTINUES
        return stack_kinds([(rows[p], self.last[p]) for p in self.stacks], lanes, begun, T)

    def put(self, rows: Leaves, lanes: np.ndarray, slots: np.ndarray, extra: np.ndarray) -> None:
        """Rows [T, B, …] into slots [T, B], and the planes that need rows of their own: extra [n, 3], see append."""
        slots = slots.reshape(-1)
        for path in self.arrays:
            self._put(path, slots, rows[path])
        for path in self.stacks:
            stack = rows[path]
            if len(extra):
                t, b = np.divmod(extra[:, 1], len(lanes))
                self._put(path, extra[:, 0].copy(), stack[t, b, extra[:, 2]])
            self.last[path][lanes] = stack[-1]

    def _put(self, path: str, slots: np.ndarray, values: np.ndarray) -> None:
        scatter(self.cells[path], slots, np.ascontiguousarray(values, self.arrays[path].dtype))

    def planes(self, slots: np.ndarray, older: np.ndarray) -> np.ndarray:
        """int64 [n, k] where the planes of these rows' stacks are, oldest first."""
        out = np.empty((slots.size, max(self.k, 1)), np.int64)
        if self.stacks:
            row_kernels.planes(slots.reshape(-1), self.R, self.k, older, self.empty, out)
        return out

    def take(self, path: str, slots: np.ndarray, planes: np.ndarray, out: np.ndarray) -> None:
        """Rows in `slots` (any shape) into out [slots.shape, …]; `planes` as planes() says."""
        gather(self.cells[path], (planes if path in self.stacks else slots).reshape(-1), out)


def flags_of(rows: Leaves) -> np.ndarray:
    """uint8 [T, B] of bits FIRST, TERMINATED and TRUNCATED."""
    first, terminated, truncated = (np.asarray(rows[name], bool) for name in FLAGS)
    return row_kernels.flags_of(first, terminated, truncated)

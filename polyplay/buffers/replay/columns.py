"""The leaves of rows by slot: of stacked observations each plane once, everything else as it came."""

from __future__ import annotations

import numpy as np

from polyplay.buffers.replay import row_kernels
from polyplay.buffers.replay.copy_kernels import as_cells, gather, scatter
from polyplay.buffers.replay.spec import FLAGS, Replay
from polyplay.common import tree
from polyplay.common.tree import Batch

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

    def put(self, rows: Leaves, lanes: np.ndarray, slots: np.ndarray, extra: np.ndarray) -> None:
        """Rows [T, B, …] into slots [T, B], and the planes that need rows of their own: extra [n, 3], see append."""
        slots = slots.reshape(-1)
        for path, array in self.arrays.items():
            values = np.ascontiguousarray(rows[path], array.dtype)
            scatter(self.cells[path], slots, values)
            if path in self.stacks:
                if len(extra):
                    t, b = np.divmod(extra[:, 1], len(lanes))
                    scatter(self.cells[path], extra[:, 0].copy(), np.ascontiguousarray(values[t, b, extra[:, 2]]))
                self.last[path][lanes] = values[-1]

    def take(self, slots: np.ndarray, older: np.ndarray, parts: dict[str, int | slice], batch: Batch) -> None:
        """Rows in `slots` [T, B] into a batch: by path all of them, or only the first."""
        planes = slots
        if self.stacks:
            planes = row_kernels.planes(slots.reshape(-1), self.R, self.k, older, self.empty)
        leaves = dict(tree.leaves(batch))
        for path, part in parts.items():
            at = planes if path in self.stacks else slots[part]
            gather(self.cells[path], at.reshape(-1), leaves[path])

"""Recurrent states of the rows that sequences begin with: one in `every` rows, not one a row."""

from __future__ import annotations

import numpy as np

from polyplay.buffers.replay import row_kernels
from polyplay.buffers.replay.index import ItemIndex
from polyplay.buffers.replay.spec import Replay
from polyplay.common import tree
from polyplay.common.tree import Batch


class RecurrentStates:
    """Arrays [lanes · anchors + 1, …] by path; the last is 0, for sequences that begin with an episode."""

    def __init__(self, replay: Replay):
        self.anchors, self.every, self.zero = replay.anchors, replay.every, replay.lanes * replay.anchors
        leaves = dict(tree.leaves(replay.state)) if replay.sequence and replay.state else {}
        self.arrays = {p: np.zeros((self.zero + 1, *f.shape), f.dtype) for p, f in leaves.items()}

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays.values())

    def where(self, slots: np.ndarray, ledger: ItemIndex) -> np.ndarray:
        """int64 [n]: the place of the state that belongs to the row in each slot."""
        row = np.empty(len(slots), np.int64)
        row_kernels.numbers(slots, ledger.R, ledger.lane[0], row)
        return slots // ledger.R * self.anchors + row // self.every % self.anchors

    def put(self, state: Batch, slots: np.ndarray, ledger: ItemIndex) -> None:
        """state [B, …] before the rows in slots [B]: kept of those that are anchors."""
        keep = ledger.flags[slots] & row_kernels.ANCHOR > 0
        if self.arrays and keep.any():
            at = self.where(slots[keep], ledger)
            for path, leaf in tree.leaves(state):
                self.arrays[path][at] = np.asarray(leaf)[keep]

    def take(self, slots: np.ndarray, begins: np.ndarray, ledger: ItemIndex) -> Batch:
        """state [B, …] before the rows in slots [B]; 0 where an episode begins (bool [B])."""
        if not self.arrays:
            return {}
        at = np.where(begins, self.zero, self.where(slots, ledger))
        return tree.nest({p: a[at] for p, a in self.arrays.items()})

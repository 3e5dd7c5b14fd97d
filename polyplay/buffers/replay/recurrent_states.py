"""Recurrent states of the rows that sequences begin with: one in `every` rows, not one a row."""

from __future__ import annotations

import numpy as np

from polyplay.buffers.replay.index import ItemIndex
from polyplay.buffers.replay.row_kernels import ANCHOR
from polyplay.buffers.replay.spec import Replay
from polyplay.common import tree
from polyplay.common.tree import Batch


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
        anchors = self.index.flags[slots] & ANCHOR > 0
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

"""Slots of rollouts within one worker, and slots side by side as a batch. Imports no torch."""

from __future__ import annotations

import numpy as np

from polyplay.common import tree
from polyplay.common.tree import Batch, Spec


class RolloutSlots:
    """The slots of a worker that acts and learns in turn: it fills them, learns from them, and fills them again."""

    committed = 0  # rollouts given away before

    def __init__(self, rows: Spec, state: Spec, T: int, lanes: int, slots: int, patience: float = 0.1):
        self.T, self.lanes, self.slots, self.patience = T, lanes, slots, patience
        self.rows: Batch = tree.zeros(rows, (slots, T + 1, lanes))
        self.state: Batch = tree.zeros(state, (slots, lanes))
        self._turn = 0

    def slot(self) -> int:
        self._turn += 1
        return (self._turn - 1) % self.slots

    def views(self, slot: int) -> tuple[Batch, Batch]:
        """As Producer.views."""
        return tree.map(lambda x: x[slot], self.rows), tree.map(lambda x: x[slot], self.state)


class Collator:
    """Puts `n` slots of `lanes` lanes side by side: a view when one is the batch, else one copy into kept memory."""

    def __init__(self, rows: Batch, state: Batch, lanes: int, n: int):
        self.rows, self.state, self.lanes, self.n = rows, state, lanes, n
        self._memory: tuple[Batch, Batch] | None = None

    def __call__(self, slots: list[int]) -> tuple[Batch, Batch]:
        rows, state = self.rows, self.state
        if self.n == 1:
            return tree.map(lambda x: x[slots[0]], rows), tree.map(lambda x: x[slots[0]], state)
        if self._memory is None:
            wide = self.n * self.lanes
            self._memory = (
                tree.map(lambda x: np.empty((x.shape[1], wide, *x.shape[3:]), x.dtype), rows),
                tree.map(lambda x: np.empty((wide, *x.shape[2:]), x.dtype), state),
            )
        for i, slot in enumerate(slots):
            part = slice(i * self.lanes, (i + 1) * self.lanes)
            tree.map(
                lambda into, x, at=part, s=slot: into.__setitem__((slice(None), at), x[s]),
                self._memory[0],
                rows,
            )
            tree.map(lambda into, x, at=part, s=slot: into.__setitem__(at, x[s]), self._memory[1], state)
        return self._memory

    def done(self) -> None:
        """The slots are no longer read: they may go back to their producers."""

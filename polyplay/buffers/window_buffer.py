"""An optimizer's experience: windows of rollouts, the newest so many, drawn at random. Imports no torch.

Berner et al. 2019 (Rapid): what arrives overwrites what is oldest. *Reuse* is windows drawn ÷ windows arrived: at 1
each is drawn once on average. OpenAI Five was trained at about 1; at 2 or 3 it took twice as long.
"""

from __future__ import annotations

import numpy as np

from polyplay.core import tree
from polyplay.core.files import Row
from polyplay.core.tree import Batch, Spec


class WindowBuffer:
    """Windows [window, capacity, …] and the state before each. Learning begins when it is full."""

    def __init__(self, rows: Spec, state: Spec, window: int, capacity: int, reuse: float, seed: int):
        self.window, self.capacity, self.reuse = window, capacity, reuse
        self.rows: Batch = tree.zeros(rows, (window, capacity))
        self.state: Batch = tree.zeros(state, (capacity,))
        self.arrived, self.drawn = 0, 0  # windows; drawn counts from when the buffer was full
        self.random = np.random.default_rng(seed)

    def add(self, rows: Batch, state: Batch) -> None:
        """A rollout's rows [T, lanes, …], and the states [windows, lanes, …] before its windows."""
        lanes = next(x for _, x in tree.leaves(rows)).shape[1]
        for first in range(0, len(next(x for _, x in tree.leaves(rows))), self.window):
            at = (self.arrived + np.arange(lanes)) % self.capacity
            part = tree.at(rows, slice(first, first + self.window))
            tree.write(self.rows, (slice(None), at), part)
            tree.write(self.state, at, tree.at(state, first // self.window))
            self.arrived += lanes

    def due(self, batch: int) -> bool:
        """Whether so many windows may be drawn now."""
        if self.arrived < self.capacity:
            return False
        fresh = self.arrived - self.capacity + batch  # the first batch is due as soon as it is full
        return not self.reuse or self.drawn + batch <= self.reuse * fresh

    def draw(self, batch: int) -> tuple[Batch, Batch]:
        """Copies of so many different windows [window, batch, …], and the states before them."""
        at = self.random.choice(self.capacity, batch, replace=False)
        self.drawn += batch
        rows = tree.map(lambda x: np.take(x, at, axis=1), self.rows)
        return rows, tree.map(lambda x: x[at], self.state)

    def save(self) -> tuple[Batch, Row]:
        """What a checkpoint has of it: arrays, and plain data."""
        counts = {"arrived": self.arrived, "drawn": self.drawn, "random": self.random.bit_generator.state}
        return {"rows": self.rows, "state": self.state}, counts

    def load(self, arrays: Batch, counts: Row) -> None:
        """The inverse. Raises ValueError: it is that of another buffer."""
        mine = {path: x.shape for path, x in tree.leaves({"rows": self.rows, "state": self.state})}
        saved = {path: x.shape for path, x in tree.leaves(arrays)}
        if mine != saved:
            raise ValueError(f"windows {saved}, not {mine}")
        tree.map(np.copyto, {"rows": self.rows, "state": self.state}, arrays)
        self.arrived, self.drawn = counts["arrived"], counts["drawn"]
        self.random.bit_generator.state = counts["random"]

"""How much totals grew between one reading and the next. Imports no torch."""

from __future__ import annotations

import numpy as np


class Growth:
    """Remembers totals by name. One that fell has begun anew: its growth is 0."""

    def __init__(self) -> None:
        self.numbers: dict[str, float] = {}
        self.arrays: dict[str, np.ndarray] = {}

    def number(self, name: str, total: float) -> float:
        """Since the last time; the first time all of it."""
        before, self.numbers[name] = self.numbers.get(name, 0.0), total
        return max(total - before, 0.0)

    def array(self, name: str, total: np.ndarray) -> np.ndarray:
        """The same for every element."""
        before, self.arrays[name] = self.arrays.get(name, np.zeros_like(total)), total
        return np.maximum(total - before, 0)

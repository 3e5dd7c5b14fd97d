"""Weights that a learner copies out on request."""

from __future__ import annotations

import numpy as np

from polyplay.weights.flat import FlatParams
from polyplay.weights.params import Params
from polyplay.weights.shared_arrays import SharedArrays, shared_array


class WeightsOnRequest(SharedArrays):
    """The weights that a learner gives on request: one copy at its next update, whatever the system."""

    _cells = shared_array(np.int64, lambda _: (2,))  # how many requests were made, how many answered

    def __init__(self, size: int):
        self.params = Params(size)
        super().__init__()

    @property
    def asked(self) -> bool:
        return bool(self._cells[0] > self._cells[1])

    def ask(self) -> None:
        self._cells[0] = self._cells[1] + 1

    def answer(self, vector: FlatParams, version: int) -> None:
        self.params.publish(vector, version, 0)
        self._cells[1] = self._cells[0]

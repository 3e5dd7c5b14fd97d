"""Weights that a learner copies out when somebody asks for them."""

from __future__ import annotations

import numpy as np

from polyplay.common.shared_memory import SharedBlock
from polyplay.weights.flat import FlatParams
from polyplay.weights.params import Params


class WeightsOnRequest:
    """The weights that a learner shows to whoever asks for them: one copy at its next update, whatever the system."""

    def __init__(self, size: int):
        self.params = Params(size)
        self._block = SharedBlock(64)
        self._attach()

    def _attach(self) -> None:
        self._cells = self._block.array(2, np.int64)  # how often was asked, how often answered

    asked = property(lambda self: bool(self._cells[0] > self._cells[1]))

    def ask(self) -> None:
        self._cells[0] = self._cells[1] + 1

    def answer(self, vector: FlatParams, version: int) -> None:
        self.params.publish(vector, version, 0)
        self._cells[1] = self._cells[0]

    def __getstate__(self) -> dict:
        return {"params": self.params, "_block": self._block}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._attach()

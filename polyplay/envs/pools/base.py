"""What pools share: the batching rule and checked actions; recv() and send() of those in the caller's process."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from polyplay.common import tree
from polyplay.common.errors import Closed
from polyplay.common.tree import Batch, Tree
from polyplay.envs.pool import Envs, Lanes
from polyplay.envs.pools.batching import ReadyLanes
from polyplay.envs.pools.board import row_fields
from polyplay.envs.pools.seating import Seating
from polyplay.envs.spaces import check_action


class BasePool(ABC):
    """A Pool, but for `_step`: which steps lanes, and writes their rows or leaves them to `_rows_of`."""

    restarts = 0
    unsaved = ""
    seating: Seating | None = None
    resting = False

    def __init__(self, envs: Envs, rows: Batch | None = None):
        self.lanes, self.groups, self.fixed = envs.lanes, envs.groups, envs.fixed
        self.spec, self.title = envs.spec, envs.title
        self.faults: list[str] = []
        self.remarks: list[str] = []
        self._rows: Batch = tree.zeros(row_fields(self.spec), (envs.lanes,)) if rows is None else rows
        self._turns = ReadyLanes(envs.lanes, envs.groups, envs.batching, envs.active)
        self._open, self._asynchronous = True, False  # asynchronous: recv() says which lanes are ready

    @property
    def ready(self) -> int:
        """Lanes whose row nobody took yet, of a pool that gives whoever is ready; by the answers read so far."""
        return self._turns.ready

    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """See Pool. Always waits: a step ends. Raises RuntimeError: nothing was sent."""
        self._check_open()
        lanes = self._turns.take()
        if lanes is None:  # lanes step within send(): waiting would never end
            raise RuntimeError("recv() before the rows that recv() gave were answered with send()")
        return lanes, self._rows_of(lanes)

    def send(self, lanes: Lanes, action: Tree) -> None:
        """See Pool."""
        self._check_open()
        action = check_action(self.spec.action, action, self._turns.count(lanes))
        numbers = self._turns.sent(lanes)
        try:
            self._step(numbers, action)
        except BaseException:
            self.close()
            raise
        if not self._asynchronous:
            self._turns.back(numbers.tolist())

    def close(self) -> None:
        """See Pool."""
        self._open = False

    def hold(self, on: bool) -> None:
        """See Pool."""
        raise ValueError(f"{self.title}: has no matches to hold")

    def state(self) -> Batch | None:
        """None: it cannot be saved; `unsaved` says why."""
        return None

    def load(self, state: Batch) -> None:
        raise ValueError(f"{self.title}: has no state to load: {self.unsaved}")

    def _check_open(self) -> None:
        if not self._open:
            raise Closed

    def _rows_of(self, lanes: Lanes) -> Batch:
        return tree.at(self._rows, lanes)

    @abstractmethod
    def _step(self, numbers: np.ndarray, action: Tree) -> None: ...

"""Gymnasium environments stepped in the caller's own thread: for debuggers and runs in one process."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Batch, Tree
from polyplay.envs.pool import Envs
from polyplay.envs.pools import saved_state
from polyplay.envs.pools.base import BasePool
from polyplay.envs.pools.board import SharedRows
from polyplay.envs.pools.build import factory
from polyplay.envs.pools.faults import Faults
from polyplay.envs.pools.lane import Lane, LaneJob


class InlinePool(BasePool):
    """A Pool whose lanes step in send(). An environment that raises is restarted as in a process; one
    that hangs hangs.
    """

    def __init__(self, envs: Envs, seed: int, lane: int):
        self._board = SharedRows(envs.spec, envs.lanes, workers=1)
        super().__init__(envs, self._board.rows)
        self._faults = Faults(self._board, envs.max_restarts)
        self.faults, self.remarks = self._faults.reports, self._faults.remarks
        job = LaneJob(b"", envs.title, self.spec, seed, lane, envs.step_timeout)
        make = factory(envs.name, envs.options)
        self._lanes = [Lane(job, make, self._board, i, lambda seconds: None) for i in range(envs.lanes)]
        try:
            self._turn(range(envs.lanes))
        except BaseException:
            self.close()
            raise
        self._turns.back(range(envs.lanes))

    restarts = property(lambda self: self._faults.restarts)

    def _turn(self, numbers: Iterable[int]) -> None:
        for i in numbers:
            while self._lanes[i].turn() < 0 and self._faults.of_lane(i):
                pass
            self._faults.steps += 1

    def _step(self, numbers: np.ndarray, action: Tree) -> None:
        tree.write(self._board.action, numbers, action)
        self._turn(numbers.tolist())

    def picture(self, lane: int) -> tuple[np.ndarray, float]:
        """The image that a lane's environment renders, and its frames per second."""
        env = self._lanes[lane].env
        if env is None:
            raise RuntimeError(f"lane {lane} has no environment now")
        return env.render(), float(env.metadata.get("render_fps") or 30)  # type: ignore[return-value]

    def close(self) -> None:
        """Close every environment."""
        super().close()
        for lane in self._lanes:
            lane.close()

    def state(self) -> Batch | None:
        """See Pool."""
        self._check_open()
        try:
            lanes = {str(i): lane.save() for i, lane in enumerate(self._lanes)}
        except Exception as e:
            self.unsaved = saved_state.reason_of(e)
            return None
        return saved_state.pool_state(self._board, self._turns, lanes)

    def load(self, state: Batch) -> None:
        """See Pool. Raises UserError: an environment that does not take its state back."""
        for i, lane in enumerate(self._lanes):
            try:
                lane.load(state["lanes"][str(i)])
            except Exception as e:
                raise UserError(f"{lane.who}: cannot go on from what was saved: {saved_state.reason_of(e)}") from e
        saved_state.load_pool_state(self._board, self._turns, state)

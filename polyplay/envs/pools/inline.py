"""Gymnasium environments stepped in the caller's own thread: for debuggers and runs in one process."""

from __future__ import annotations

from typing import Any

from polyplay.common import tree
from polyplay.common.errors import Closed, UserError
from polyplay.common.tree import Batch
from polyplay.envs.make import factory
from polyplay.envs.pool import Envs, Lanes
from polyplay.envs.pools import saved_state
from polyplay.envs.pools.batching import ReadyLanes
from polyplay.envs.pools.board import SharedRows
from polyplay.envs.pools.faults import Faults
from polyplay.envs.pools.lane import Lane, LaneJob
from polyplay.envs.spaces import check_action


class InlinePool:
    """A Pool whose lanes step in send(). An environment that raises is restarted as in a process; one
    that hangs hangs.
    """

    def __init__(self, envs: Envs, seed: int, lane: int):
        self.lanes, self.groups, self.fixed = envs.lanes, envs.groups, envs.fixed
        self.spec = envs.spec
        self._board = SharedRows(self.spec, envs.lanes, workers=1)
        self._turns = ReadyLanes(envs.lanes, envs.groups, envs.batching)
        self._faults = Faults(self._board, envs.max_restarts)
        self.faults = self._faults.told
        job = LaneJob(b"", envs.title, self.spec, seed, lane, envs.step_timeout, envs.max_restarts)
        make = factory(envs.name, envs.options)
        self._lanes = [Lane(job, make, self._board, i, lambda seconds: None) for i in range(envs.lanes)]
        self._open, self.unsaved = True, ""
        self._step(range(envs.lanes))

    restarts = property(lambda self: self._faults.restarts)

    @property
    def ready(self) -> int:
        """Lanes whose row nobody took yet, of a pool that gives whoever is ready."""
        return self._turns.ready

    def _step(self, numbers: Any) -> None:
        try:
            for i in numbers:
                if self._lanes[i].turn() < 0:
                    self._faults.of_lane(i)
        except BaseException:
            self.close()
            raise
        self._turns.back(list(numbers))

    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """See Pool. Raises RuntimeError: nothing was sent."""
        if not self._open:
            raise Closed
        lanes = self._turns.take_now()
        return lanes, tree.map(lambda a: a[lanes], self._board.rows)

    def send(self, lanes: Lanes, action: Any) -> None:
        """See Pool."""
        if not self._open:
            raise Closed
        action = check_action(self.spec.action, action, self._turns.count(lanes))
        numbers = self._turns.sent(lanes)
        tree.write(self._board.action, numbers, action)
        self._step(numbers.tolist())

    def picture(self, lane: int) -> tuple[Any, float]:
        """What a lane's environment renders, and how many of these it means to show in a second."""
        env = self._lanes[lane].env
        if env is None:
            raise RuntimeError(f"lane {lane} has no environment now")
        return env.render(), float(env.metadata.get("render_fps") or 30)

    def close(self) -> None:
        """Close every environment."""
        self._open = False
        for lane in self._lanes:
            lane.close()

    def state(self) -> Batch | None:
        """See Pool."""
        if not self._open:
            raise Closed
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
                who = f"{lane.job.title}, lane {lane.job.lane + i}"
                raise UserError(f"{who}: cannot go on from what was saved: {saved_state.reason_of(e)}") from e
        saved_state.load_pool_state(self._board, self._turns, self._faults, state)

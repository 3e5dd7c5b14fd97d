"""Environments stepped in the caller's own thread: for debuggers and runs in one process."""

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
from polyplay.envs.pools.global_random import GlobalGenerators
from polyplay.envs.pools.lane import Lane
from polyplay.envs.pools.match import Match
from polyplay.envs.pools.orders import Orders, seating_of
from polyplay.envs.pools.surroundings import Surroundings
from polyplay.envs.pools.turn import LaneJob, Unit, lane_seed, take_turn


class InlinePool(BasePool):
    """A Pool whose lanes step in send(). An environment that raises is restarted as in a process; one
    that hangs hangs.
    """

    def __init__(self, envs: Envs, seed: int, lane: int):
        self.seating = seating_of(envs, seed, lane)
        self._board = SharedRows(envs.spec, envs.lanes, 1, self.seating)
        super().__init__(envs, self._board.rows)
        self._faults = Faults(self._board, envs.max_restarts)
        self.faults, self.remarks = self._faults.reports, self._faults.remarks
        self._orders, self._asynchronous = Orders(self.seating, self._turns), self.seating is not None
        job = LaneJob(b"", envs.title, self.spec, seed, lane, envs.step_timeout)
        self._random, self._units = GlobalGenerators(lane_seed(self._board, job, 0)), dict[int, Unit]()
        self._around = Surroundings()
        kind: type[Lane] | type[Match] = Lane if self.seating is None else Match
        numbers = self._orders.numbers.tolist()
        try:
            self._random.enter()
            with self._around:
                make = factory(envs.name, envs.options)  # it may import a module, which may draw
                self._units |= {i: kind(job, make, self._board, i, lambda seconds: None) for i in numbers}
                self._turn(numbers)
        except BaseException:
            self.close()
            raise
        self._turns.back(range(envs.lanes))

    restarts = property(lambda self: self._faults.restarts)

    resting = property(lambda self: self.seating is not None and bool(self._board.resting.all()))

    def hold(self, on: bool) -> None:
        """See Pool."""
        if self.seating is None:
            super().hold(on)
        self._board.held[:] = on

    def _turn(self, numbers: Iterable[int]) -> None:
        self._random.enter()
        for i in numbers:
            lanes = self._orders.lanes([i])
            while take_turn(self._units[i]) < 0 and self._faults.of_lane(i, lanes):
                pass
            self._faults.steps += len(lanes)

    def _step(self, numbers: np.ndarray, action: Tree) -> None:
        tree.write(self._board.action, numbers, action)
        ordered = self._orders.complete(numbers).tolist()
        with self._around:
            self._turn(ordered)
        if self._asynchronous:
            self._turns.back(self._orders.lanes(ordered))

    def picture(self, lane: int) -> tuple[np.ndarray, float]:
        """The image that a lane's environment renders, and its frames per second."""
        first = lane if self.seating is None else self.seating.own[self.seating.match[lane], 0]
        env = self._units[int(first)].env
        if env is None:
            raise RuntimeError(f"lane {lane} has no environment now")
        return env.render(), float(env.metadata.get("render_fps") or 30)

    def close(self) -> None:
        """Close every environment."""
        super().close()
        with self._around:
            for unit in self._units.values():
                unit.close()
        self._random.leave()

    def state(self) -> Batch | None:
        """See Pool."""
        self._check_open()
        self._random.enter()
        try:
            lanes = {str(i): unit.save() for i, unit in self._units.items()}
            random = self._random.save()
        except Exception as e:
            self.unsaved = saved_state.reason_of(e)
            return None
        return {**saved_state.pool_state(self._board, self._turns, lanes), "random": random}

    def load(self, state: Batch) -> None:
        """See Pool. Raises UserError: an environment that does not take its state back."""
        if self.seating is not None:
            self.seating.load(state["seating"])
        self._random.enter()
        for i, unit in self._units.items():
            try:
                unit.load(state["lanes"][str(i)])
            except Exception as e:
                raise UserError(f"{unit.who}: cannot go on from what was saved: {saved_state.reason_of(e)}") from e
        saved_state.load_pool_state(self._board, self._turns, state)
        if "random" in state:  # not of earlier versions
            self._random.load(state["random"])

"""Faults of a pool's environments: counted and reported; too many end the pool."""

from __future__ import annotations

from polyplay.common.errors import EnvFailure, UserError
from polyplay.envs.pools.board import BROKEN, RESTARTED, UNBUILT, SharedRows


class Faults:
    """The faults of one pool. A fault is an exception, a hang or a lost process; it may restart
    several lanes.
    """

    def __init__(self, board: SharedRows, limit: int):
        self.board, self.limit = board, limit
        self.count = 0
        self.restarts = 0  # lanes
        self.reports: list[str] = []
        self._counted = board.faults.copy()

    def forget(self) -> None:
        """The faults that the board counts now were reported already."""
        self._counted = self.board.faults.copy()

    def of_lane(self, lane: int) -> None:
        """Read a lane's note. Raises UserError (can't be built), EnvFailure (broke its space, or
        too many faults).
        """
        kind, text = self.board.read(lane)
        if kind == UNBUILT:
            raise UserError(text)
        if kind == BROKEN:
            raise EnvFailure(text)
        new = int(self.board.faults[lane] - self._counted[lane])
        self._counted[lane] += new
        self._add(text, new, new if kind == RESTARTED else new - 1)

    def of_process(self, text: str, lanes: list[int]) -> None:
        """All lanes of a process are to be restarted. Raises EnvFailure: too many faults."""
        self.board.faults[lanes] += 1
        self._counted[lanes] = self.board.faults[lanes]
        self._add(text, 1, len(lanes))

    def _add(self, text: str, faults: int, lanes: int) -> None:
        self.count += faults
        if self.count > self.limit:
            times = f"environments failed {self.count} times, more than max_restarts={self.limit}; the last: "
            raise EnvFailure(f"{times}{text}".rstrip())
        self.restarts += lanes
        self.reports.append(text)

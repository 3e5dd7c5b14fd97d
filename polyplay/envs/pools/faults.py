"""Faults of a pool's environments: counted here alone, reported; too many within a short time end the pool."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from polyplay.common.errors import EnvFailure, UserError
from polyplay.envs.pools.board import BROKEN, ROUNDED, UNBUILT, SharedRows

HOUR, STEPS = 3600.0, 10_000  # a fault is forgotten after so many seconds, or so many steps of its pool


class Faults:
    """The faults of one pool. A fault is an exception, a hang or a lost process; it may restart several lanes.

    `limit`: how many may be remembered at once. A pool whose environments fail rarely goes on for ever.
    """

    def __init__(self, board: SharedRows, limit: int, clock: Callable[[], float] = time.monotonic):
        self.board, self.limit, self.clock = board, limit, clock
        self.steps = 0  # of the pool so far
        self.restarts = 0  # lanes
        self.reports: list[str] = []
        self.remarks: list[str] = []
        self._told = set[str]()  # how remarks begin
        self._recent: deque[tuple[float, int]] = deque()  # (time, step) of those not yet forgotten

    def of_lane(self, lane: int, match: list[int] | None = None) -> bool:
        """Read the note of a lane, or of its `match`; whether it has no row, and is to be begun anew. Raises UserError
        (can't be built), EnvFailure (broke its space, or too many faults).
        """
        kind, text = self.board.read(lane)
        if kind == UNBUILT:
            raise UserError(text)
        if kind == BROKEN:
            raise EnvFailure(text)
        if kind == ROUNDED:
            begin = text.partition(",")[0]
            self.remarks += [] if begin in self._told else [text]
            self._told.add(begin)
            return False
        self._add(text, match or [lane])
        return True

    def of_process(self, text: str, lanes: list[int]) -> None:
        """All lanes of a process are to be restarted. Raises EnvFailure: too many faults."""
        self._add(text, lanes)

    def _add(self, text: str, lanes: list[int]) -> None:
        now, recent = self.clock(), self._recent
        recent.append((now, self.steps))
        while recent[0][0] < now - HOUR or recent[0][1] < self.steps - STEPS:
            recent.popleft()
        if not self.limit:
            raise EnvFailure(f"an environment failed: {text}")
        if len(recent) > self.limit:
            passed = self.steps - recent[0][1]
            times = f"{len(recent)} times {f'within {passed:,} steps' if passed > 1 else 'in a row'}"
            raise EnvFailure(f"environments failed {times}, more than --max-restarts {self.limit}; the last: {text}")
        self.board.faults[lanes] += 1
        self.restarts += len(lanes)
        self.reports.append(text)

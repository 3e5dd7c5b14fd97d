"""Which lanes are being stepped, are ready, are taken by the caller, or are absent; and which recv gives next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from polyplay.envs.pool import Batching, Greedy, Lanes

STEPPING, READY, TAKEN, ABSENT = 0, 1, 2, 3


class ReadyLanes:
    """The batching rules over `lanes` lanes. At first all are being stepped, or only the first `active` (0: all)."""

    def __init__(self, lanes: int, groups: int, batching: Batching, active: int = 0):
        self.lanes, self.groups, self.width = lanes, groups, lanes // groups
        self.fixed = not isinstance(batching, Greedy)
        self.most = batching.n if isinstance(batching, Greedy) else lanes
        self.where = np.full(lanes, STEPPING, np.int8)
        self.where[active or lanes :] = ABSENT
        self._next = 0  # the group that comes next
        self._queue: deque[int] = deque()  # lanes that are ready, oldest first

    def back(self, numbers: Sequence[int]) -> None:
        """These lanes have a row."""
        self.where[numbers] = READY
        if not self.fixed:
            self._queue.extend(numbers)

    def take(self) -> Lanes | None:
        """The lanes to give now, or None: wait."""
        if not self.fixed:
            return self._take_ready() if self._queue else None
        for turn in range(self.groups):
            g = (self._next + turn) % self.groups
            lanes = slice(g * self.width, (g + 1) * self.width)
            if self.where[lanes.start] != TAKEN:
                if np.count_nonzero(self.where[lanes]) < self.width:  # STEPPING is 0
                    return None
                self.where[lanes] = TAKEN
                self._next = (g + 1) % self.groups
                return lanes
        return None

    def count(self, lanes: Lanes) -> int:
        return len(range(self.lanes)[lanes]) if isinstance(lanes, slice) else len(lanes)

    def _take_ready(self) -> np.ndarray:
        numbers = np.array([self._queue.popleft() for _ in range(min(self.ready, self.most))], np.int64)
        self.where[numbers] = TAKEN
        return numbers

    @property
    def ready(self) -> int:
        """Lanes that are ready, of a pool that gives whoever is ready."""
        return len(self._queue)

    def part(self, lane: int) -> None:
        """A lane that the caller took is absent from now on."""
        if self.where[lane] != TAKEN:
            raise ValueError(f"only a lane that recv() gave and that was not answered yet can go, got {lane}")
        self.where[lane] = ABSENT

    def join(self, lane: int) -> None:
        """A lane that was absent is being stepped: its row will come."""
        if self.where[lane] != ABSENT:
            raise ValueError(f"lane {lane} is there already")
        self.where[lane] = STEPPING

    @property
    def idle(self) -> bool:
        """The caller has every lane: recv would wait for ever (unless another thread sends)."""
        return bool((self.where == TAKEN).all())

    def sent(self, lanes: Lanes) -> np.ndarray:
        """The caller answers `lanes`: they are being stepped. Their numbers, int64. Raises ValueError: not taken."""
        numbers = np.arange(self.lanes)[lanes] if isinstance(lanes, slice) else np.asarray(lanes, np.int64)
        if not numbers.size or not (self.where[numbers] == TAKEN).all():
            raise ValueError(f"send() answers lanes that recv() gave and that were not answered yet, got {lanes}")
        if self.fixed:
            group = int(numbers[0]) // self.width
            if numbers.size != self.width or numbers[0] != group * self.width or (np.diff(numbers) != 1).any():
                raise ValueError(f"send() answers a whole group of {self.width} lanes, got {lanes}")
        self.where[numbers] = STEPPING
        return numbers

    def state(self) -> dict[str, np.ndarray]:
        queue = np.full(self.lanes, -1, np.int64)
        queue[: len(self._queue)] = list(self._queue)
        return {"where": self.where.copy(), "queue": queue, "next": np.array(self._next)}

    def load(self, state: dict[str, np.ndarray]) -> None:
        self.where[:] = state["where"]
        self._queue = deque(int(i) for i in state["queue"] if i >= 0)
        self._next = int(state["next"])

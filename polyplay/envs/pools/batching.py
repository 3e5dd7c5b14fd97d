"""Whose turn it is: which lanes are out (being stepped), back, held by the caller, or gone, and what recv may
give away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from polyplay.envs.pool import AtLeast, Batching, Greedy, Lanes

OUT, BACK, HELD, GONE = 0, 1, 2, 3


class ReadyLanes:
    """The batching rules over `lanes` lanes. At first every lane is out, or only the first `active` (0: all)."""

    def __init__(self, lanes: int, groups: int, batching: Batching, active: int = 0):
        self.lanes, self.groups, self.width = lanes, groups, lanes // groups
        self.fixed = not isinstance(batching, AtLeast | Greedy)
        self.least = batching.n if isinstance(batching, AtLeast) else 1
        self.most = batching.n if isinstance(batching, Greedy) else lanes
        self.where = np.full(lanes, OUT, np.int8)
        self.where[active or lanes :] = GONE
        self._slices = [slice(g * self.width, (g + 1) * self.width) for g in range(groups)]
        self._next = 0  # the group that is due
        self._missing = [self.width] * groups  # lanes of each group that are out
        self._queue: deque[int] = deque()  # lanes that are back, oldest first

    def back(self, numbers: Sequence[int]) -> None:
        """These lanes have a row."""
        self.where[numbers] = BACK
        if self.fixed:
            for i in numbers:
                self._missing[i // self.width] -= 1
        else:
            self._queue.extend(numbers)

    def take(self) -> Lanes | None:
        """The lanes to give away now, or None: wait."""
        return self._take_group() if self.fixed else self._take_ready()

    def take_now(self) -> Lanes:
        """The same where lanes come back within send(), so that waiting would never end. Raises RuntimeError."""
        lanes = self.take()
        if lanes is None:
            raise RuntimeError("recv() before the rows that recv() gave were answered with send()")
        return lanes

    def count(self, lanes: Lanes) -> int:
        return len(range(self.lanes)[lanes]) if isinstance(lanes, slice) else len(lanes)

    def _take_group(self) -> slice | None:
        for turn in range(self.groups):
            g = (self._next + turn) % self.groups
            if self.where[g * self.width] != HELD:
                if self._missing[g]:
                    return None
                self.where[self._slices[g]] = HELD
                self._next = (g + 1) % self.groups
                return self._slices[g]
        return None

    def _take_ready(self) -> np.ndarray | None:
        ready = len(self._queue)
        if not ready or ready < min(self.least, ready + int((self.where == OUT).sum())):
            return None
        numbers = np.array([self._queue.popleft() for _ in range(min(ready, self.most))], np.int64)
        self.where[numbers] = HELD
        return numbers

    @property
    def ready(self) -> int:
        """Lanes that are back and that nobody took yet."""
        return len(self._queue)

    def part(self, lane: int) -> None:
        """A lane that the caller holds goes."""
        if self.where[lane] != HELD:
            raise ValueError(f"only a lane that recv() gave and that was not answered yet can go, got {lane}")
        self.where[lane] = GONE

    def join(self, lane: int) -> None:
        """A lane that was gone is out: its row will come."""
        if self.where[lane] != GONE:
            raise ValueError(f"lane {lane} is there already")
        self.where[lane] = OUT

    @property
    def idle(self) -> bool:
        """Every lane is held: recv would wait for ever (unless another thread sends)."""
        return bool((self.where == HELD).all())

    def sent(self, lanes: Lanes) -> np.ndarray:
        """The caller answers `lanes`: they are out. Their numbers, int64. Raises ValueError: not
        the caller's to answer.
        """
        numbers = np.arange(self.lanes)[lanes] if isinstance(lanes, slice) else np.asarray(lanes, np.int64)
        if not numbers.size or not (self.where[numbers] == HELD).all():
            raise ValueError(f"send() answers lanes that recv() gave and that were not answered yet, got {lanes}")
        if self.fixed:
            group = int(numbers[0]) // self.width
            if numbers.size != self.width or numbers[0] != group * self.width or (np.diff(numbers) != 1).any():
                raise ValueError(f"send() answers a whole group of {self.width} lanes, got {lanes}")
            self._missing[group] = self.width
        self.where[numbers] = OUT
        return numbers

    def state(self) -> dict[str, np.ndarray]:
        queue = np.full(self.lanes, -1, np.int64)
        queue[: len(self._queue)] = list(self._queue)
        return {"where": self.where.copy(), "queue": queue, "next": np.array(self._next)}

    def load(self, state: dict[str, np.ndarray]) -> None:
        self.where[:] = state["where"]
        self._queue = deque(int(i) for i in state["queue"] if i >= 0)
        self._next = int(state["next"])
        out = (self.where == OUT).reshape(self.groups, self.width)
        self._missing = [int(n) for n in out.sum(1)]

"""Numbers from one producer to one consumer, in shared memory and in order."""

from __future__ import annotations

import numpy as np

from polyplay.common.semaphores import Semaphore


class Ring:
    """Numbers from one producer to one consumer, in order. `get` answers None when empty; waiting is a Semaphore's.

    cells: int64 [capacity + 2 · 8]; head and tail lie a cache line apart. bell: gets a token with every number.
    """

    def __init__(self, cells: np.ndarray, bell: Semaphore | None = None):
        self._head, self._tail, self._ring, self._bell = cells[0:1], cells[8:9], cells[16:], bell

    @staticmethod
    def cells(capacity: int) -> int:
        return 16 + capacity

    def put(self, number: int) -> None:
        tail = int(self._tail[0])
        if tail - int(self._head[0]) >= len(self._ring):
            raise RuntimeError("ring overflow: more numbers in flight than the ring was made for")
        self._ring[tail % len(self._ring)] = number
        self._tail[0] = tail + 1
        if self._bell is not None:
            self._bell.post()

    def take(self, use: np.ndarray, holder: int) -> int | None:
        """The next number, None: there is none. Who holds it is written to `use` before it leaves the ring."""
        head = int(self._head[0])
        if head == int(self._tail[0]):
            return None
        number = int(self._ring[head % len(self._ring)])
        use[number] = holder
        self._head[0] += 1
        return number

    def peek(self) -> list[int]:
        """What is in it now; for the producer after a crash, and for reports."""
        head, tail = int(self._head[0]), int(self._tail[0])
        return [int(self._ring[i % len(self._ring)]) for i in range(head, tail)]

    def __len__(self) -> int:
        return int(self._tail[0]) - int(self._head[0])

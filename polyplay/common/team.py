"""A few threads that divide a piece of work and meet once, when all of it is done."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")


class Team:
    """`n` threads, the caller's among them. begin: what each of the others does first."""

    def __init__(self, n: int, begin: Callable[[], None]):
        self.n = n
        self._others = ThreadPoolExecutor(n - 1, "team", begin)

    def each(self, work: Callable[[int], R]) -> list[R]:
        """What work(i) gives for i = 0 … n-1, each in a thread of its own, 0 in the caller's."""
        begun = [self._others.submit(work, i) for i in range(1, self.n)]
        return [work(0), *(w.result() for w in begun)]

    def part(self, i: int, size: int) -> slice:
        """Of 0 … size, what belongs to thread i."""
        return slice(size * i // self.n, size * (i + 1) // self.n)

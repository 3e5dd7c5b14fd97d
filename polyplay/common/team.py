"""A few threads that divide a piece of work and meet once, when all of it is done."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")
# rows of a thread, with fewer of which most of its work is what their number does not change; weights of a network,
# with fewer of which waking threads costs more than they save
LEAST, LARGE = 8, 100_000


def members(rows: int, threads: int, weights: int) -> int:
    """How many of so many threads divide a batch of `rows` among them, evenly."""
    if weights < LARGE:
        return 1
    return next((n for n in range(min(threads, rows // LEAST), 1, -1) if rows % n == 0), 1)


class Team:
    """`n` threads, the caller's among them. begin: what each of the others does first."""

    def __init__(self, n: int, begin: Callable[[], None]):
        self.n = n
        self._others = ThreadPoolExecutor(n - 1, "team", begin)

    def each(self, work: Callable[[int], R]) -> list[R]:
        """What work(i) gives for i = 0 … n-1, each in a thread of its own, 0 in the caller's."""
        begun = [self._others.submit(work, i) for i in range(1, self.n)]
        return [work(0), *(w.result() for w in begun)]

    def begin(self, work: Callable[[], R]) -> Future[R]:
        """Have one of the other threads do it, in order, while the caller goes on."""
        return self._others.submit(work)

    def part(self, i: int, size: int) -> slice:
        """Of 0 … size, what belongs to thread i."""
        return slice(size * i // self.n, size * (i + 1) // self.n)

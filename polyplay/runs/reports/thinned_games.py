"""Which games of a run `episodes.jsonl` has: each one up to a bound, then fewer and fewer. Imports no torch."""

from __future__ import annotations

import random
from collections.abc import Iterator

from polyplay.common.files import Row
from polyplay.runs.directory import STANDS_FOR

COUNTERS = ("wall_seconds", "frames", "steps")


class ThinnedGames:
    """Chooses the games that are written, of each worker by itself: then a checkpoint, which has the games of every
    worker, says where its lines end. The gaps are random, because lanes that end together take turns.

    bound: the games that are written one by one; 0: none is written. Lines of n games: at most bound · (1 + ½ log2 (n /
    bound)) on average, and two for each worker of a session.
    """

    def __init__(self, bound: int) -> None:
        self.bound, self.random = bound, random.Random(bound)
        self.gaps: dict[int, int] = {}  # by worker: from its last line to its next one
        self.unwritten: dict[int, tuple[int, Row]] = {}  # by worker: games since its last line, and the last of them
        self.newest: Row = {}

    def take(self, row: Row, worker: int, number: int) -> Row | None:
        """The line of the run's game `number`, from 1, which says how many it stands for; None: it has none."""
        if not self.bound:
            return None
        self.newest = row
        games = self.unwritten.pop(worker, (0, row))[0] + 1
        if games < self.gaps.get(worker, 1):
            self.unwritten[worker] = games, row
            return None
        every = stride(number, self.bound)
        self.gaps[worker] = every // 2 + self.random.randrange(every + 1) if every > 1 else 1
        return _standing_for(row, games)

    def rest(self) -> Iterator[Row]:
        """Give a line for each worker whose last games have none yet, with the counters of now: a file's rise."""
        counters = {k: self.newest[k] for k in COUNTERS if k in self.newest}
        while self.unwritten:
            games, row = self.unwritten.pop(min(self.unwritten))
            yield _standing_for({**row, **counters}, games)


def stride(number: int, bound: int) -> int:
    """How many games a line stands for on average: 1 up to the bound, 2 up to twice the bound, then 4, 8, …"""
    return 1 << (-(-number // bound) - 1).bit_length()


def _standing_for(row: Row, games: int) -> Row:
    return {**row, STANDS_FOR: games} if games > 1 else row

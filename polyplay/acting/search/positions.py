"""Searches from given positions, each until it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from polyplay.acting.search.search import Evaluator, Finished, Search
from polyplay.acting.search.tree import SearchOptions
from polyplay.envs.boards.game import Game


class PositionSearch:
    """At most `most` searches at once."""

    def __init__(self, board: Game, options: SearchOptions, evaluator: Evaluator, most: int, seed: int = 0):
        self.search, self.most = Search(board, most, options, evaluator, seed=seed), most

    def grow(self, records: np.ndarray) -> Iterator[Search]:
        """The search from positions int8 [n, record] that go on, after each of its steps, until it is done."""
        self.search.restart(np.arange(len(records)), records)
        while len(self._done(self.search.step(), len(records)).games) < len(records):
            yield self.search
        yield self.search

    def run(self, records: np.ndarray, turn: Callable[[], None] = lambda: None) -> Finished:
        """The same to its end, in the order of the positions. turn: called after every step."""
        for _ in self.grow(records):
            turn()
        return self._done(self.search.finished(), len(records))

    def choose(self, records: np.ndarray, turn: Callable[[], None] = lambda: None) -> np.ndarray:
        """Moves int64 of any number of positions."""
        parts = [records[i : i + self.most] for i in range(0, len(records), self.most)]
        return np.concatenate([self.search.choose(self.run(part, turn)) for part in parts])

    def _done(self, found: Finished, n: int) -> Finished:
        """Without games of a call before, which had more positions."""
        return found.at(slice(int(np.searchsorted(found.games, n))))

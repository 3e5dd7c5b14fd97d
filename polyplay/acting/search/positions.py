"""Searches from given positions, each until it is done."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polyplay.acting.search.search import Evaluator, Finished, Search
from polyplay.acting.search.tree import SearchOptions
from polyplay.envs.boards.game import Game


class PositionSearch:
    """At most `most` searches at once. `turn` is called after every evaluation."""

    def __init__(
        self,
        board: Game,
        options: SearchOptions,
        evaluator: Evaluator,
        most: int,
        seed: int = 0,
        turn: Callable[[], None] = lambda: None,
    ):
        self.search, self.most, self.turn = Search(board, most, options, evaluator, seed=seed), most, turn

    def choose(self, records: np.ndarray) -> np.ndarray:
        """Moves int64 [n] for positions int8 [n, record] that go on."""
        parts = [records[i : i + self.most] for i in range(0, len(records), self.most)]
        return np.concatenate([self.search.choose(self._searched(part)) for part in parts])

    def _searched(self, records: np.ndarray) -> Finished:
        """In the order of the positions."""
        n = len(records)
        self.search.restart(np.arange(n), records)
        while True:
            done = self.search.step()
            self.turn()
            if (done.games < n).sum() == n:
                return done.first(n)

"""What a player counts of its searches and games: how much the search spared the network, how games end, and how well
the network foresaw that. Sums over whole games are made when a game ends, so a move costs next to nothing.

Imports no torch.
"""

from __future__ import annotations

import numpy as np

from polyplay.acting.search import Search
from polyplay.acting.search.search import Finished
from polyplay.common import tree
from polyplay.common.counters import WorkerCounters
from polyplay.common.tree import Batch, Field

SEARCHES = ("batch_fill", "saved_by_terminal", "saved_by_reuse")
GAMES = ("first_player_wins", "draws", "visits_entropy", "visits_kl", "fresh_value_loss")
ACCURACY = ("value_accuracy_early", "value_accuracy_middle", "value_accuracy_late")  # by thirds of a game
NAMES = (*SEARCHES, *GAMES, *ACCURACY)


class SearchMetrics:
    """Of one player. The search is asked before and after each of its parts how many simulations are done."""

    def __init__(self, search: Search, counters: WorkerCounters):
        self.search, self.counters = search, counters
        board, games = search.game, len(search.lanes)
        fields = {"priors": Field((board.actions,), "float32"), "raw": Field((), "float32")}
        self.seen: Batch = tree.zeros(tree.widen(fields, (games, board.longest)))  # of games that go on
        self.done = self.terminal = 0

    def begin(self) -> None:
        """A round begins."""
        self.done = self._done()

    def gathered(self, leaves: int) -> None:
        """Leaves for the network are in the batch. What was done meanwhile ended the game."""
        self.terminal = self._done() - self.done
        if leaves:
            self.counters.tally("batch_fill", leaves, len(self.search.planes))

    def answered(self) -> None:
        """The network's answers are backed up: the round is over."""
        made = self._done() - self.done
        self.counters.add("simulations", made)
        self.counters.tally("saved_by_terminal", self.terminal, made)
        self.counters.tally("saved_by_reuse", 0, made)

    def moved(self, done: Finished) -> None:
        """Searches ended with a move: `done` of them, and their games go on with the subtrees that were kept."""
        at = (done.games, done.plies)
        self.seen["priors"][at], self.seen["raw"][at] = done.priors, done.raw
        inherited = int(self.search.tree.plays["done"][done.games].sum())
        self.counters.tally("saved_by_terminal", 0, inherited)
        self.counters.tally("saved_by_reuse", inherited, inherited)

    def ended(self, game: int, rows: Batch) -> None:
        """A game is over: its rows, that of the end included."""
        z, visits = rows["reward"][1:], rows["visits"][:-1].astype(np.float64)
        moves = len(z)
        priors, raw = self.seen["priors"][game, :moves], self.seen["raw"][game, :moves]
        played = np.where(visits > 0, visits, 1.0)  # 0 log 0 = 0
        ratio = played / np.where(visits > 0, np.maximum(priors, 1e-12), 1.0)
        tally = self.counters.tally
        tally("first_player_wins", float(z[0] > 0), 1)
        tally("draws", float(z[0] == 0), 1)
        full = int(visits.any(1).sum())  # not all, where playouts are capped
        tally("visits_entropy", -float((visits * np.log(played)).sum()), full)
        tally("visits_kl", float((visits * np.log(ratio)).sum()), full)
        tally("fresh_value_loss", float(np.square(z - raw).sum()), moves)
        if z[0] != 0:
            right, stage = np.sign(raw) == z, 3 * np.arange(moves) // moves
            for i, name in enumerate(ACCURACY):
                tally(name, int(right[stage == i].sum()), int((stage == i).sum()))

    def _done(self) -> int:
        return int(self.search.tree.plays["done"].sum())

"""Games as a run writes them down in games.jsonl: their moves, and what the search said of each. Imports no torch."""

from __future__ import annotations

import json

import numpy as np

from polyplay.acting.search.search import Finished
from polyplay.common import tree
from polyplay.common.context import WorkerContext
from polyplay.common.files import Row, to_plain
from polyplay.common.tree import Batch
from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import Game
from polyplay.envs.boards.kernels import GOES_ON

MANY = 64  # games of self-play that are written down each time their number doubles


def is_sampled(number: int) -> bool:
    """Whether game `number` of a player, from 0, is written down: of the first 2 · MANY games every one, of as many
    more every second, of twice as many every fourth, and so on.
    """
    return number % (1 << max(0, number.bit_length() - (2 * MANY - 1).bit_length())) == 0


class GameNotes:
    """Moves of games that go on, `games` of them, and what the searches found. Of a move without a search, value and
    visits are not known.
    """

    def __init__(self, board: Game, games: int):
        self.board, shape = board, (games, board.longest + 1)
        self.length, self.action = np.zeros(games, np.int64), np.zeros(shape, np.int64)
        self.value = np.full(shape, np.nan, np.float32)  # of the root, for the mover
        self.visits, self.searched = np.zeros(shape, np.int32), np.zeros(shape, np.int32)  # of the move, of all moves
        self.arrays = {name: x for name, x in vars(self).items() if isinstance(x, np.ndarray)}

    def begin(self, game: int, actions: np.ndarray) -> None:
        """A game begins anew, with these moves, int64 [n], made."""
        self.length[game] = n = len(actions)
        self.action[game, :n], self.value[game, :n] = actions, np.nan
        self.visits[game, :n] = self.searched[game, :n] = 0

    def add(self, games: np.ndarray, actions: np.ndarray, done: Finished) -> None:
        """A move in each of these games, int64 [n], and the searches that chose them."""
        at = (games, self.length[games])
        self.action[at], self.value[at] = actions, done.value
        self.visits[at], self.searched[at] = done.visits[np.arange(len(games)), actions], done.visits.sum(1)
        self.length[games] += 1

    def row(self, game: int, outcome: float) -> Row:
        """A game that is over, resigned where the rules do not end it. outcome: 1, 0 or -1, for the first player."""
        n, record, result = int(self.length[game]), self.board.new(), GOES_ON
        for action in self.action[game, :n]:
            result = kernels.play(self.board.numbers, record, action)
        return {
            "game": self.board.name,
            "outcome": int(outcome),
            "margin": None if result == GOES_ON else self.board.margin(record),
            "resigned": bool(result == GOES_ON),
            "moves": [self.board.move_name(action) for action in self.action[game, :n].tolist()],
            "values": [to_plain(round(value, 4)) for value in self.value[game, :n].tolist()],
            "visits": self.visits[game, :n].tolist(),
            "searched": self.searched[game, :n].tolist(),
        }

    def ended(self, ctx: WorkerContext, game: int, outcome: float, number: int, version: int) -> None:
        """Game `number` of a player is over, and the next one begins: the main process is told of a sample of the
        first player's. version: of the weights.
        """
        if ctx.index == 0 and is_sampled(number):
            about = {"name": f"self_play-{ctx.incarnation}-{number}", "kind": "self_play"}
            ctx.say("game", json.dumps(about | {"black": version, "white": version} | self.row(game, outcome)))
        self.begin(game, self.action[game, :0])

    def save(self) -> Batch:
        return tree.map(np.copy, self.arrays)

    def load(self, saved: Batch) -> None:
        tree.write(self.arrays, ..., saved)

"""Perfect play of Othello on small boards: exact outcomes of positions and of their moves, by search."""

from __future__ import annotations

import numpy as np

from polyplay.common.errors import UserError
from polyplay.envs.boards import kernels, othello_solver_kernels
from polyplay.envs.boards.game import Othello


class OthelloSolver:
    """Of one game. An outcome is 1 where the mover gets more discs than the other, 0 for a draw, otherwise -1.

    Records are of positions that go on. Threads may share a solver.
    """

    def __init__(self, game: Othello):
        if reason := unsolved_othello(game):
            raise UserError(f"game:{game.name}: no solver for it, {reason}")
        self.game, self.board = game, othello_solver_kernels.othello_board(game.numbers)

    def outcome(self, record: np.ndarray) -> int:
        return int(othello_solver_kernels.othello_outcome(self.board, *othello_solver_kernels.discs_of(record)))

    def outcomes(self, record: np.ndarray) -> dict[int, int]:
        """The outcome of every legal move, for who makes it."""
        legal, found = np.empty(self.game.actions, np.int16), {}
        for action in legal[: kernels.legal(self.game.numbers, record, legal)].tolist():
            after = record.copy()
            result = kernels.play(self.game.numbers, after, action)
            found[action] = -self.outcome(after) if result == kernels.GOES_ON else int(kernels.WORTH[result])
        return found

    def best(self, record: np.ndarray) -> list[int]:
        """The moves that keep the game's value."""
        found = self.outcomes(record)
        return [action for action, outcome in found.items() if outcome == max(found.values())]


def unsolved_othello(game: Othello) -> str:
    """Why a board has no solver; empty: it has one."""
    longest = othello_solver_kernels.LONGEST_SIDE
    return f"a side of {game.rows} cells is more than {longest}" if game.rows > longest else ""

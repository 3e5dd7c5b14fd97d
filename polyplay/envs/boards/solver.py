"""Perfect play of games that have a solver, and of k in a row with gravity: exact scores of moves, by search."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from polyplay.common.errors import UserError
from polyplay.envs.boards import kernels, solver_kernels
from polyplay.envs.boards.game import GAMES, Game, KInARow, Othello
from polyplay.envs.boards.othello_solver import OthelloSolver, unsolved_othello

OPENINGS = Path(__file__).with_name("openings.npz")  # of connect four; bench/openings.py wrote it
ENTRIES = 1 << 22  # of the hash table: 32 MiB
LONGEST_LINE = 4
FAST = 34  # empty cells of a position whose moves take seconds; more take minutes to hours, unless openings are known
FAST_OTHELLO = 18  # the same of Othello, in less than a second; with 22 they take up to half a minute
EXACT = 12  # from this ply on, perfect play wins as soon as it can and loses as late as it can


class Solver(Protocol):
    """Of one game. An outcome is 1 where the mover wins, 0 for a draw, -1 where the other wins."""

    @property
    def game(self) -> Game: ...

    def outcome(self, record: np.ndarray) -> int: ...

    def outcomes(self, record: np.ndarray) -> dict[int, int]: ...

    def best(self, record: np.ndarray) -> list[int]: ...


class RowSolver:
    """Of k in a row with gravity. A score is positive if the mover wins: 1 if only the last cell of the board does it,
    one more for every stone less. It is negative, as many, if the other wins, and 0 for a draw. So the game ends after
    `left + 1 - abs(score)` stones more, where `left` cells are empty. An outcome is its sign, which takes less time.

    Records are of positions that go on. Threads may share a solver. entries, a power of two: of its hash table.
    """

    def __init__(self, game: Game, entries: int = ENTRIES):
        if reason := _unsolved_row(game):
            raise UserError(f"game:{game.name}: no solver for it, {reason}")
        if entries & (entries - 1) or entries < 1:
            raise ValueError(f"entries={entries}: not a power of two")
        self.game, self.board = game, solver_kernels.board_of(game.numbers)
        self.table = np.zeros(entries, np.int64)

    def score(self, record: np.ndarray) -> int:
        return self._value(solver_kernels.bitboards(self.game.numbers, record), exact=True)

    def outcome(self, record: np.ndarray) -> int:
        return self._value(solver_kernels.bitboards(self.game.numbers, record), exact=False)

    def scores(self, record: np.ndarray) -> dict[int, int]:
        """The score of every legal move, for who makes it."""
        return self._moves(record, exact=True)

    def outcomes(self, record: np.ndarray) -> dict[int, int]:
        """The outcome of every legal move, for who makes it."""
        return self._moves(record, exact=False)

    def best(self, record: np.ndarray) -> list[int]:
        """The moves that keep the game's value; from ply 12 on, those of the greatest score alone."""
        found = self._moves(record, exact=kernels.ply(record) >= EXACT)
        return [action for action, value in found.items() if value == max(found.values())]

    @cached_property
    def openings(self) -> dict[int, int]:
        """Outcomes of early positions, which would take long, by key."""
        return read_openings() if _openings_known(self.game) else {}

    def _moves(self, record: np.ndarray, exact: bool) -> dict[int, int]:
        own, mask, left = solver_kernels.bitboards(self.game.numbers, record)
        winning, found = solver_kernels.winning_cells(self.board, own), {}
        for action, move in self.playable(mask):
            if winning & move:
                found[action] = left if exact else 1
            else:
                found[action] = -self._value((own ^ mask, mask | move, left - 1), exact)
        return found

    def playable(self, mask: int) -> Iterator[tuple[int, int]]:
        """Every legal move, as a column and as a bit."""
        high, cells = self.game.rows + 1, solver_kernels.playable(self.board, mask)
        for column in range(self.game.columns):
            if move := cells & (((1 << high) - 1) << (column * high)):
                yield column, move

    def _value(self, position: tuple[int, int, int], exact: bool) -> int:
        own, mask, left = position
        if exact:
            value = solver_kernels.value_of(self.board, own, mask, left, self.game.longest, self.table)
            return _in_plies(value, left)
        known = self.openings.get(solver_kernels.key_of(self.board, own, mask))
        return solver_kernels.value_of(self.board, own, mask, left, 1, self.table) if known is None else known


def _in_plies(value: int, left: int) -> int:
    """A score of a value of the kernels, which are half as fine, for a player's stones are of one parity."""
    plies = 2 * abs(value) - (left + (value < 0)) % 2
    return plies if value > 0 else -plies if value < 0 else 0


def unsolved(game: Game) -> str:
    """Why a game has no solver; empty: it has one."""
    return unsolved_othello(game) if isinstance(game, Othello) else _unsolved_row(game)


def _unsolved_row(game: Game) -> str:
    if not isinstance(game, KInARow):
        return "it is neither k in a row nor Othello"
    if not game.gravity:
        return "its stones do not fall"
    if game.k > LONGEST_LINE:
        return f"{game.k} in a row are more than {LONGEST_LINE}"
    bits = (game.rows + 1) * game.columns
    return f"(rows + 1) x columns is {bits}, more than {solver_kernels.BITS}" if bits > solver_kernels.BITS else ""


def slow_before(game: Game) -> int:
    """The ply before which a solver may take minutes to hours for a move; 0: there is none. Of Othello: without passes,
    each of which leaves one more empty cell.
    """
    if isinstance(game, Othello):
        return max(0, game.longest // 2 - FAST_OTHELLO)
    return 0 if _openings_known(game) else max(0, game.longest - FAST)


def _openings_known(game: Game) -> bool:
    return np.array_equal(game.numbers, GAMES["connect_four"].numbers) and OPENINGS.exists()


def read_openings() -> dict[int, int]:
    """Outcomes for the mover of connect four's positions of few stones, by key; see `bench/openings.py`."""
    with np.load(OPENINGS) as file:
        return dict(zip(file["keys"].tolist(), file["outcomes"].tolist(), strict=True))


@cache
def solver_of(game: Game) -> Solver:
    """The process's solver of a game, whose table all that ask it share. Raises UserError: there is none."""
    return OthelloSolver(game) if isinstance(game, Othello) else RowSolver(game)

"""The moves of a game so far, with the position before each. Imports no torch."""

from __future__ import annotations

import numpy as np

from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import Game, Go, KInARow
from polyplay.envs.boards.go_kernels import owners
from polyplay.envs.boards.kernels import CELLS, GOES_ON, LOST, WON


def legal_moves(board: Game, record: np.ndarray) -> list[int]:
    room = np.zeros(board.actions, np.int16)
    return [int(action) for action in room[: kernels.legal(board.numbers, record, room)]]


class MoveList:
    """A game from its start."""

    def __init__(self, board: Game):
        self.board = board
        self.moves, self.records, self.result = list[int](), [board.new()], GOES_ON

    @property
    def record(self) -> np.ndarray:
        """int8 [record]: the position now."""
        return self.records[-1]

    @property
    def mover(self) -> int:
        """Whose turn it is: 0 the first player's, 1 the second's."""
        return kernels.mover(self.record)

    @property
    def legal(self) -> list[int]:
        return legal_moves(self.board, self.record) if self.result == GOES_ON else []

    @property
    def winner(self) -> int | None:
        return {WON: 1 - self.mover, LOST: self.mover}.get(self.result)

    @property
    def margin(self) -> float | None:
        """By how much, where a game that is over is won by points."""
        return None if self.result == GOES_ON else self.board.margin(self.record)

    def owners(self) -> list[int]:
        """Of a game of Go that is over whose each cell is: 1 the first player's, 2 the second's, 0 nobody's."""
        if self.result == GOES_ON or not isinstance(self.board, Go):
            return []
        out = np.empty(self.board.cells, np.int8)
        owners(self.board.numbers, self.record, out)
        return [int(owner) for owner in out]

    def play(self, action: int) -> None:
        """Raises ValueError: the move is not legal."""
        if action not in self.legal:
            raise ValueError("this move is not legal")
        record = self.record.copy()
        self.result = kernels.play(self.board.numbers, record, action)
        self.moves.append(action)
        self.records.append(record)

    def undo(self, n: int) -> None:
        """Take back the last n moves."""
        if n:
            del self.moves[-n:], self.records[-n:]
            self.result = GOES_ON

    def line(self) -> list[int]:
        """The cells of the lines that won, in no order; none: nobody has won."""
        if self.result != WON or not isinstance(self.board, KInARow):
            return []
        before, cells = self.records[-2][CELLS:], self.record[CELLS:]
        row, column = divmod(int(np.flatnonzero(before != cells)[0]), self.board.columns)
        found = {row * self.board.columns + column}
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            run = self._run(row, column, down, right) + self._run(row, column, -down, -right)
            if len(run) + 1 >= self.board.k:
                found.update(run)
        return sorted(found)

    def _run(self, row: int, column: int, down: int, right: int) -> list[int]:
        """Cells of the same stones one behind another from that cell on, without it."""
        cells, found = self.record[CELLS:].reshape(self.board.rows, self.board.columns), list[int]()
        stone = cells[row, column]
        row, column = row + down, column + right
        while 0 <= row < self.board.rows and 0 <= column < self.board.columns and cells[row, column] == stone:
            found.append(row * self.board.columns + column)
            row, column = row + down, column + right
        return found

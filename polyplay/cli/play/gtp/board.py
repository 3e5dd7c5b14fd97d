"""A game of Go as GTP has it: stones of any colour in any order, taken back at will, any komi. Imports no torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polyplay.cli.play.moves import legal_moves
from polyplay.envs.boards import go_kernels, kernels
from polyplay.envs.boards.game import GO_LETTERS, Go
from polyplay.envs.boards.records import OWN, PLIES

BLACK, WHITE = 1, 2
PLACES = ((0, 0), (2, 2), (0, 2), (2, 0), (0, 1), (2, 1), (1, 0), (1, 2))  # of a handicap: column, row; 0 the low one


class GtpError(Exception):
    """What is wrong with a command, in the protocol's words."""


class GtpBoard:
    """Positions so far, the present one last. A second pass does not end it: the position is as after the first. Nor
    does its length: a record that has used three quarters of its plies forgets the oldest ones, and then superko too.
    """

    def __init__(self, board: Go):
        self.board, self.records, self.moves = board, [board.new()], list[tuple[int, int]]()  # (colour, action)
        self.told: int | None = None  # the colour to move, where a file names it

    @property
    def record(self) -> np.ndarray:
        return self.records[-1]

    @property
    def size(self) -> int:
        return self.board.rows

    @property
    def to_move(self) -> int:
        """The colour to move: the one that a file names, or else the one that did not move last."""
        alternate = 3 - self.moves[-1][0] if self.moves else kernels.mover(self.record) + 1
        return self.told or alternate

    @property
    def first_to_move(self) -> int:
        """The colour to move before the first move, as the stones were set up."""
        return kernels.mover(self.records[0]) + 1 if self.moves else self.to_move

    def passed(self, colour: int) -> bool:
        """Whether the last move was a pass of that colour."""
        return self.moves[-1:] == [(colour, self.board.cells)]

    @property
    def komi(self) -> float:
        return self.board.halves / 2

    def clear(self) -> None:
        self.records, self.moves, self.told = [self.board.new()], [], None

    def set_komi(self, komi: float) -> None:
        """Raises GtpError: neither whole nor half."""
        if abs(komi) > self.board.cells or komi * 2 != int(komi * 2):
            raise GtpError("komi must be whole or half")
        self.board = replace(self.board, halves=int(komi * 2))

    def position(self, colour: int) -> np.ndarray:
        """The record with that colour to move."""
        record = self.record.copy()
        if kernels.mover(record) != colour - 1:
            self._pass(record)
            record[OWN] = 0
        if 4 * kernels.ply(record) >= 3 * self.board.longest:
            self._forget(record)
        return record

    def _forget(self, record: np.ndarray) -> None:
        """The oldest EIGHT plies. As many as that, because the last positions lie in a record by ply % EIGHT."""
        hashes = record[self.board.numbers[go_kernels.HASHES] :].view(np.uint64)
        hashes[: -go_kernels.EIGHT] = hashes[go_kernels.EIGHT :]
        record[2], record[1] = divmod(kernels.ply(record) - go_kernels.EIGHT, PLIES)

    def _pass(self, record: np.ndarray) -> None:
        record[OWN] = 0  # so that it does not end
        kernels.play(self.board.numbers, record, self.board.cells)

    def play(self, colour: int, action: int) -> None:
        """Raises GtpError: an illegal move."""
        record = self.position(colour)
        if action not in legal_moves(self.board, record):
            raise GtpError("illegal move")
        if action == self.board.cells:
            self._pass(record)
        else:
            kernels.play(self.board.numbers, record, action)
        self.records.append(record)
        self.moves.append((colour, action))
        self.told = None

    def undo(self) -> None:
        """Raises GtpError: there is no move."""
        if not self.moves:
            raise GtpError("cannot undo")
        self.records.pop()
        self.moves.pop()
        self.told = None

    def lead(self, colour: int = BLACK) -> float:
        """The points by which that colour leads, komi included, on the board as it stands."""
        lead = go_kernels.area(self.board.numbers, self.record) - self.komi
        return lead if colour == BLACK else -lead

    def owners(self) -> np.ndarray:
        """int8 [n²]: the colour whose area each cell is; 0: it is empty and reaches stones of both, or none."""
        out = np.empty(self.board.cells, np.int8)
        go_kernels.owners(self.board.numbers, self.record, out)
        return out

    def stones(self) -> np.ndarray:
        """int8 [n²]"""
        return self.board.stones(self.record)

    def stones_set_up(self) -> np.ndarray:
        """int8 [n²]: the stones that were on the board before the first move."""
        return self.board.stones(self.records[0])

    def set_up(self, stones: list[tuple[int, int]], to_move: int) -> None:
        """Put (colour, cell) on an empty board. They are no moves: `undo` takes none of them back. Raises GtpError."""
        for colour, cell in stones:
            try:
                self.play(colour, cell)
            except GtpError as e:
                raise GtpError(f"the stone {'-BW'[colour]} {self.name(cell)}: {e}") from None
        self.records, self.moves, self.told = [self.position(to_move)], [], None

    # ------------------------------------------------------------------------------------------------- handicap

    def handicap(self, stones: int) -> list[int]:
        """The cells of a fixed handicap (the protocol's section 4.1.1). Raises GtpError: not that many."""
        most = 0 if self.size < 7 else 4 if self.size % 2 == 0 or self.size == 7 else 9
        if not 2 <= stones <= most:
            raise GtpError("invalid number of stones")
        edge = 3 if self.size >= 13 else 2
        lines = (edge, self.size // 2, self.size - 1 - edge)
        middle = stones in (5, 7, 9)
        places = [*PLACES[: stones - middle], *([(1, 1)] if middle else [])]
        return [lines[2 - row] * self.size + lines[column] for column, row in places]

    def set_handicap(self, cells: list[int]) -> None:
        """Black's stones on an empty board; White is to move. Raises GtpError."""
        if self.moves or self.stones().any():
            raise GtpError("board not empty")
        if len(cells) < 2 or len(set(cells)) < len(cells) or len(cells) >= self.board.cells:
            raise GtpError("bad vertex list")
        self.set_up([(BLACK, cell) for cell in cells], WHITE)

    # ------------------------------------------------------------------------------------------------ its words

    def vertex(self, word: str) -> int:
        """Raises GtpError."""
        found = self.board.action_of(word)
        if found is None:
            raise GtpError("invalid coordinate")
        return found

    def name(self, action: int) -> str:
        return self.board.move_name(action)

    def drawing(self) -> str:
        """The board with coordinates on all sides."""
        letters = "   " + " ".join(GO_LETTERS[: self.size])
        cells = self.stones().reshape(self.size, self.size)
        rows = [f"{self.size - i:2} {' '.join('.XO'[c] for c in row)} {self.size - i}" for i, row in enumerate(cells)]
        return "\n".join([letters, *rows, letters])

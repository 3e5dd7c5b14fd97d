"""What a board game is beyond its rules: sizes, symmetries, how moves are written and a board is drawn."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyplay.common.errors import UserError
from polyplay.envs.boards import kernels
from polyplay.envs.boards.kernels import CELLS, K_IN_A_ROW

LARGEST = 26  # rows, and columns: letters name them
STONES = ".xo"

Symmetry = tuple[np.ndarray, np.ndarray]  # cell i goes to cells[i], action i to actions[i]


@dataclass(frozen=True)
class Game:
    """k stones of one player in a line win. gravity: a move is a column, whose lowest empty cell it fills; without it,
    a move is a cell.
    """

    name: str
    rows: int
    columns: int
    k: int
    gravity: bool

    def __post_init__(self) -> None:
        if not (1 <= self.rows <= LARGEST and 1 <= self.columns <= LARGEST):
            raise UserError(f"game:{self.name}: {self.rows}x{self.columns} given; a side has 1 to {LARGEST} cells")
        if not 2 <= self.k <= max(self.rows, self.columns):
            most = max(self.rows, self.columns)
            raise UserError(
                f"game:{self.name}: {self.k} in a row given; a {self.rows}x{self.columns} board has 2 to {most}"
            )

    @property
    def numbers(self) -> np.ndarray:
        """What compiled code knows of it, int64 [8]."""
        return np.array([K_IN_A_ROW, self.rows, self.columns, self.k, self.gravity, 0, 0, 0], np.int64)

    @property
    def actions(self) -> int:
        return self.columns if self.gravity else self.rows * self.columns

    @property
    def longest(self) -> int:
        """Moves of the longest game."""
        return self.rows * self.columns

    @property
    def record(self) -> int:
        """Bytes of a position."""
        return CELLS + self.rows * self.columns

    @property
    def planes(self) -> tuple[int, int, int]:
        """What a network sees: see kernels.write_planes."""
        return 3, self.rows, self.columns

    @cached_property
    def symmetries(self) -> tuple[Symmetry, ...]:
        """Of cells and actions together, the identity first: with gravity the mirror image; without, the rotations and
        mirror images of the board.
        """
        board = np.arange(self.rows * self.columns).reshape(self.rows, self.columns)
        turned = [np.rot90(side, n) for side in (board, board[:, ::-1]) for n in range(4)]
        seen = [board, board[:, ::-1]] if self.gravity else [b for b in turned if b.shape == board.shape]
        found: dict[bytes, Symmetry] = {}
        for image in seen:
            cells = np.argsort(image.ravel())  # cell image[i] is shown at i
            found.setdefault(cells.tobytes(), (cells, cells[: self.columns] if self.gravity else cells))
        return tuple(found.values())

    def new(self) -> np.ndarray:
        """The record of the initial position."""
        record = np.zeros(self.record, np.int8)
        kernels.start(self.numbers, record)
        return record

    def move_name(self, action: int) -> str:
        """A column by its letter; a cell by its column's letter and its row, counted from the bottom."""
        row, column = divmod(int(action), self.columns)
        return chr(ord("a") + column) + ("" if self.gravity else str(self.rows - row))

    def draw(self, record: np.ndarray) -> str:
        """The board as text, with the columns' letters below."""
        cells = record[CELLS:].reshape(self.rows, self.columns)
        lines = [" ".join(STONES[cell] for cell in row) for row in cells]
        return "\n".join([*lines, " ".join(chr(ord("a") + i) for i in range(self.columns))])

    def line(self, record: np.ndarray) -> str:
        """The board in one line, row by row from the top, and who is to move."""
        rows = record[CELLS:].reshape(self.rows, self.columns)
        board = "/".join("".join(STONES[cell] for cell in row) for row in rows)
        return f"{board}, {STONES[1 + kernels.mover(record)]} to move"


GAMES = {
    game.name: game
    for game in (
        Game("tic_tac_toe", 3, 3, 3, gravity=False),
        Game("three_in_a_row", 4, 5, 3, gravity=True),
        Game("connect_four", 6, 7, 4, gravity=True),
    )
}


def game(name: str) -> Game:
    """The game of that name, or of connect:ROWSxCOLUMNSxK, with gravity. Raises UserError."""
    if name in GAMES:
        return GAMES[name]
    if found := re.fullmatch(r"connect:(\d{1,3})x(\d{1,3})x(\d{1,3})", name):
        rows, columns, k = map(int, found.groups())
        return Game(name, rows, columns, k, gravity=True)
    near = difflib.get_close_matches(name, GAMES, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UserError(f"game:{name} given, allowed: {', '.join(GAMES)}, connect:ROWSxCOLUMNSxK (connect:6x7x4){hint}")

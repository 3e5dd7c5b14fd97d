"""Descriptions of board games: sizes, symmetries, names of moves, drawings. Module board_rules has the rules."""

from __future__ import annotations

import difflib
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase
from typing import Any, ClassVar

import numpy as np

from polyplay.core.errors import UserError
from polyplay.envs.pool import check_options, need
from polyplay.games import board_rules, go, records
from polyplay.games.records import CELLS, GO, K_IN_A_ROW, OTHELLO, PLIES
from polyplay.games.toys import switch

LARGEST = 26  # most rows or columns, because a letter names each column
STONES = ".xo"
NAMED = re.compile(r"(?!connect:)[^:]+:[^\W\d][\w.]*")  # matches module:Class, a user's game
KO = ("positional", "situational", "simple")  # names of ko rules, in the order of the constants in go.py
GO_LETTERS = "ABCDEFGHJKLMNOPQRST"  # names of Go's columns, without I

Symmetry = tuple[np.ndarray, np.ndarray]  # (cells, actions): cell i moves to cells[i], action i to actions[i]


def board_symmetries(rows: int, columns: int, actions: int) -> tuple[Symmetry, ...]:
    """Return a board's rotations and reflections, beginning with the identity. Action i is a move at cell i. Actions
    that are no cell, such as a pass, stay the same.
    """
    board, found = np.arange(rows * columns).reshape(rows, columns), dict[bytes, Symmetry]()
    for image in (np.rot90(side, n) for side in (board, board[:, ::-1]) for n in range(4)):
        cells = np.argsort(image.ravel())  # cell image[i] moves to place i; `cells` is the inverse
        if image.shape == board.shape:
            found.setdefault(cells.tobytes(), (cells, np.append(cells, np.arange(cells.size, actions))))
    return tuple(found.values())


@dataclass(frozen=True)
class Game(ABC):
    """Board game of two players. By default, action i is a move at cell i. If a game has passes, the last action is the
    pass.
    """

    name: str
    rows: int
    columns: int

    letters = ascii_lowercase  # names of the columns
    passes = False  # whether the last action is a pass
    gravity = False  # whether an action is a column, in which the stone falls
    placed = True  # whether each action but the pass is a cell, or with gravity a column
    counted = False  # whether the player with more stones wins
    slanted = False  # whether each row lies half a cell further right than the one above
    binary = True  # whether the network's input contains only 0 and 1
    goal: ClassVar[str]  # text for people: how to win

    @property
    @abstractmethod
    def numbers(self) -> np.ndarray:
        """Parameters for compiled code, int64 [8]: kind of game, rows, columns, and parameters of this kind."""

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    @property
    def actions(self) -> int:
        return self.cells + self.passes

    @property
    def longest(self) -> int:
        """Upper bound on the number of moves in a game."""
        return self.cells

    @property
    def record(self) -> int:
        """Number of bytes in the record of a position."""
        return CELLS + self.cells

    @property
    def planes(self) -> tuple[int, int, int]:
        """Shape (planes, rows, columns) of the network's input, which board_rules.write_planes writes."""
        return 3, self.rows, self.columns

    @cached_property
    def symmetries(self) -> tuple[Symmetry, ...]:
        """Rotations and reflections of the board, as permutations of cells and of actions. The identity is first."""
        return board_symmetries(self.rows, self.columns, self.actions)

    @property
    def how(self) -> str:
        """Reason why the game's rules run slowly, or "" if the rules are compiled."""
        return ""

    def verify(self) -> None:  # noqa: B027 - built-in games have tests
        """Check the rules of a user's game. Built-in games need no check. Raises UserError if a rule is broken."""

    @property
    def title(self) -> str:
        """Name of the game, as people read it."""
        return f"{self.name.partition('+')[0].replace('_', ' ')}, {self.rows}×{self.columns}"

    def new(self) -> np.ndarray:
        """Return the record of the initial position."""
        record = np.zeros(self.record, np.int8)
        board_rules.start(self.numbers, record)
        return record

    def legal(self, record: np.ndarray) -> list[int]:
        """Return the legal actions of a position in ascending order."""
        room = np.empty(self.actions, np.int16)
        return room[: board_rules.legal(self.numbers, record, room)].tolist()

    def play(self, record: np.ndarray, action: int) -> int:
        """Make a legal move in a record, in place. Return GOES_ON, or WON, DRAWN or LOST for the player who moved."""
        return board_rules.play(self.numbers, record, action)

    def play_all(self, records: np.ndarray, at: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Make the legal move actions[i] in records[at[i]], in place, for each i. Return the results, int8 [n]."""
        return board_rules.play_all(self.numbers, records, at, actions)

    def shown(self, records: np.ndarray) -> np.ndarray:
        """Return the planes (network input) of positions int8 [n, record], float32 [n, C, rows, columns]. They show
        each position as the player to move sees it.
        """
        planes = np.zeros((len(records), *self.planes), np.float32)
        board_rules.show(self.numbers, records, planes)
        return planes

    def records(self, planes: np.ndarray) -> np.ndarray:
        """Return the positions, int8 [n, record], that planes [n, C, rows, columns] show."""
        records, shown = np.zeros((len(planes), self.record), np.int8), planes.reshape(len(planes), self.planes[0], -1)
        own, other, second = shown[:, 0] > 0.5, shown[:, 1] > 0.5, shown[:, -1, :1] < 0.5
        records[:, CELLS : CELLS + self.cells] = np.where(second, 2 * own + 1 * other, 1 * own + 2 * other)
        plies = (own | other).sum(1)
        records[:, 0], records[:, 1], records[:, 2] = second[:, 0], plies % PLIES, plies // PLIES
        return records

    def remember(  # noqa: B027 - in most games, planes show the whole position
        self, records: np.ndarray, planes: np.ndarray, at: np.ndarray, over: np.ndarray
    ) -> None:
        """Store the positions whose planes (network input) lanes `at` show. The method `records` finds them later. For
        a lane whose game is over, store the initial position.
        """

    def margin(self, record: np.ndarray) -> float | None:
        """Return the number of points by which a finished game was won, or None if points do not decide the game."""
        return None

    def move_name(self, action: int) -> str:
        """Return the name of an action, such as b3 for column b and row 3 from the bottom, or "pass"."""
        if action == self.cells:
            return "pass"
        row, column = divmod(int(action), self.columns)
        return f"{self.letters[column]}{self.rows - row}"

    def draw(self, record: np.ndarray) -> str:
        """Return a drawing of the board as text, with a letter below each column."""
        lines = [" ".join(STONES[cell] for cell in row) for row in self._board(record)]
        return "\n".join([*lines, " ".join(self.letters[: self.columns])])

    def line(self, record: np.ndarray) -> str:
        """Return one line of text: the board, row by row from the top, and the player to move."""
        board = "/".join("".join(STONES[cell] for cell in row) for row in self._board(record))
        return f"{board}, {STONES[1 + records.mover(record)]} to move"

    def stones(self, record: np.ndarray) -> np.ndarray:
        """Return the content of each cell, int8 [cells]: 0 if empty, 1 for a stone of the first player, else 2."""
        return record[CELLS : CELLS + self.cells]

    def _board(self, record: np.ndarray) -> np.ndarray:
        return self.stones(record).reshape(self.rows, self.columns)


@dataclass(frozen=True)
class KInARow(Game):
    """Game in which k stones of one player in a line win.

    Without gravity, an action is a cell. With gravity, an action is a column, and the stone falls into the lowest empty
    cell of the column.
    """

    k: int
    gravity: bool

    numbers = property(lambda g: np.array([K_IN_A_ROW, g.rows, g.columns, g.k, g.gravity, 0, 0, 0], np.int64))
    actions = property(lambda self: self.columns if self.gravity else self.cells)
    goal = property(lambda self: f"{self.k} in a row win.")

    def __post_init__(self) -> None:
        fits, sides = all(1 <= side <= LARGEST for side in (self.rows, self.columns)), f"{self.rows}x{self.columns}"
        need(fits, f"game:{self.name}: {sides} does not fit; a side must have 1 to {LARGEST} cells")
        most = max(self.rows, self.columns)
        need(2 <= self.k <= most, f"game:{self.name}: {self.k} in a row; a {sides} board allows 2 to {most}")

    @cached_property
    def symmetries(self) -> tuple[Symmetry, ...]:
        """Rotations and reflections of the board, or with gravity only the identity and the mirror image."""
        if not self.gravity:
            return super().symmetries
        board = np.arange(self.cells).reshape(self.rows, self.columns)
        return tuple((side.ravel(), side[0]) for side in (board, board[:, ::-1]))

    @property
    def title(self) -> str:
        sizes = f"{self.k} in a row, {self.rows}×{self.columns}"
        return self.name.replace("_", " ") if self.name in GAMES else sizes

    def move_name(self, action: int) -> str:
        """Return the name of the cell, or with gravity the letter of the column."""
        return self.letters[int(action)] if self.gravity else super().move_name(action)


@dataclass(frozen=True)
class Go(Game):
    """Game of Go with area scoring (Tromp and Taylor). The second player gets extra points, called komi."""

    halves: int  # komi (points for the second player) in half points
    ko: int = go.POSITIONAL
    suicide: bool = False

    letters = GO_LETTERS
    passes = True
    goal = "Two passes end the game: the larger area wins, stones and what they surround."
    longest = property(lambda self: 2 * self.cells)
    record = property(lambda self: self._hashes + 8 * self.longest)
    planes = property(lambda self: (2 * go.EIGHT + 1, self.rows, self.columns))
    _hashes = property(lambda self: -(-(CELLS + self.cells * (1 + go.EIGHT)) // 8) * 8)  # where hashes begin

    @property
    def numbers(self) -> np.ndarray:
        boards = CELLS + self.cells
        return np.array([GO, self.rows, self.columns, self.halves, self.ko, self.suicide, boards, self._hashes])

    @property
    def title(self) -> str:
        return f"{super().title}, komi {self.halves / 2:g}"

    def records(self, planes: np.ndarray) -> np.ndarray:
        """Return positions with their last eight boards. The ko rule then ignores older boards."""
        records, shown = np.zeros((len(planes), self.record), np.int8), planes.reshape(len(planes), self.planes[0], -1)
        go.read_planes(self.numbers, shown > 0.5, records)
        return records

    def action_of(self, vertex: str) -> int | None:
        """Return the action called `vertex`, such as D4 or pass, in any letter case. Return None for other names."""
        if vertex.lower() == "pass":
            return self.cells
        column, row = self.letters.find(vertex[:1].upper()), vertex[1:]
        if not (vertex and row.isdecimal() and row.isascii() and len(row) <= 9 and 0 <= column < self.columns):
            return None
        return (self.rows - int(row)) * self.columns + column if 1 <= int(row) <= self.rows else None

    def margin(self, record: np.ndarray) -> float | None:
        return abs(self.area(record) - self.halves / 2)

    def area(self, record: np.ndarray) -> int:
        """Return the area of the first player minus the area of the second player."""
        return go.area(self.numbers, record)

    def owners(self, record: np.ndarray) -> np.ndarray:
        """Return the owner of each cell, int8 [cells]: 1, 2, or 0 for an empty region next to both colors or none."""
        out = np.empty(self.cells, np.int8)
        go.owners(self.numbers, record, out)
        return out

    def hashes(self, record: np.ndarray) -> np.ndarray:
        """Return a view of the hashes in a record, uint64 [longest]. Hash i belongs to the board after i moves."""
        return record[self._hashes :].view(np.uint64)


@dataclass(frozen=True)
class Othello(Game):
    """Game of Othello. A player who can flip no disc must pass. The game ends when neither player can flip a disc."""

    passes = True
    counted = True
    goal = "The most discs win."
    numbers = property(lambda self: np.array([OTHELLO, self.rows, self.columns, 0, 0, 0, 0, 0], np.int64))
    longest = property(lambda self: 2 * (self.cells - 4))

    def records(self, planes: np.ndarray) -> np.ndarray:
        records = super().records(planes)
        board_rules.note_passes(self.numbers, records)
        return records

    def margin(self, record: np.ndarray) -> float | None:
        return float(abs(np.count_nonzero(record[CELLS:] == 1) - np.count_nonzero(record[CELLS:] == 2)))


def go_board(name: str, size: int, komi: float, ko: str, suicide: bool) -> Go:
    """Return a game of Go. Raises UserError if an option has a wrong value."""
    need(3 <= size <= go.LARGEST, f"game:{name}: size must be from 3 to {go.LARGEST}, got {size}")
    points = abs(komi) <= size**2 and komi * 2 == int(komi * 2)
    need(points, f"game:{name}: komi must be in whole or half points up to {size**2}, got {komi:g}")
    need(ko in KO, f"game:{name}: ko must be one of {', '.join(KO)}; got {ko}")
    return Go(name, size, size, int(komi * 2), KO.index(ko), suicide)


def othello_board(name: str, size: int) -> Othello:
    """Return a game of Othello on a board of size × size cells. Raises UserError if the size is wrong."""
    even = size % 2 == 0 and 4 <= size <= LARGEST
    need(even, f"game:{name}: size must be an even number from 4 to {LARGEST}, got {size}")
    return Othello(name, size, size)


GAMES = {
    "tic_tac_toe": KInARow("tic_tac_toe", 3, 3, 3, gravity=False),
    "three_in_a_row": KInARow("three_in_a_row", 4, 5, 3, gravity=True),
    "connect_four": KInARow("connect_four", 6, 7, 4, gravity=True),
}
# Options of each game, with defaults. size: cells per side; komi: points for the second player, whole or half; ko: a
# move may not recreate any earlier board (positional), any with the same player to move (situational), or the one
# before the opponent's move (simple); suicide: whether a move may kill two or more stones of its player.
OPTIONS: dict[str, dict[str, Any]] = {
    "go": {"size": 19, "komi": 7.5, "ko": "positional", "suicide": False},
    "othello": {"size": 8},
}


def game(name: str) -> Game:
    """Return the game called `name`. Raises UserError if no game has this name, or an option is wrong.

    A name is one of GAMES, one of OPTIONS (go+size=9), connect:ROWSxCOLUMNSxK, spiel:NAME or module:Class.
    """
    if name.startswith("spiel:") or NAMED.fullmatch(name):
        from polyplay.games.own_game import OwnGame

        return OwnGame.of(name)
    known, *words = name.split("+")
    if known in OPTIONS:
        given = dict(map(switch, words))
        check_options(given, OPTIONS[known], f"game:{known}")
        return (go_board if known == "go" else othello_board)(name, **OPTIONS[known] | given)
    if name in GAMES:
        return GAMES[name]
    if found := re.fullmatch(r"connect:(\d{1,3})x(\d{1,3})x(\d{1,3})", name):
        rows, columns, k = map(int, found.groups())
        return KInARow(name, rows, columns, k, gravity=True)
    near = difflib.get_close_matches(name, (*GAMES, *OPTIONS), 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    every = ", ".join(
        (*GAMES, "connect:ROWSxCOLUMNSxK (connect:6x7x4)", *OPTIONS, "spiel:NAME (spiel:hex)", "module:Class")
    )
    raise UserError(f"game:{name} is not a board game; allowed: {every}{hint}")

"""Records of board-game positions: their common header, results of moves, and options for resigning.

A record is an int8 array. It begins with a header of four numbers: the player to move (0 first, 1 second), n % 128 and
n // 128 for n moves so far, and a number that depends on the game. The cells of the board follow, row by row from the
top. A cell is 0 if empty, 1 with a stone of the first player, 2 with a stone of the second. More data of a game may
follow. In a user's own game, the position follows the header, in the format that the user chose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from polyplay.core.compiled import cached_njit
from polyplay.core.errors import UserError

K_IN_A_ROW, GO, OTHELLO, OWN_GAME = range(4)  # kinds of games
KIND, ROWS, COLUMNS = range(3)  # indices into `Game.numbers`; later ones depend on the kind of game
GOES_ON, WON, DRAWN, LOST = range(4)  # results of a move, for the player who moved
OWN, CELLS = 3, 4  # indices into a record: number that the game defines, first cell
PLIES = 128
WORTH = np.array([0.0, 1.0, 0.0, -1.0], np.float32)  # points for the player who moved, by result of the move

compiled = cached_njit(_nrt=True)  # these functions allocate arrays; without _nrt=True, a caller's setting would apply


@compiled
def mover(record: np.ndarray) -> int:
    """Return 0 if the first player is to move, or 1 for the second player."""
    return int(record[0])


@compiled
def ply(record: np.ndarray) -> int:
    """Return the number of moves made so far."""
    return int(record[1]) + PLIES * int(record[2])


@compiled
def pass_turn(record: np.ndarray) -> None:
    """Give the turn to the other player, and count a move."""
    record[0] = 1 - record[0]
    record[1] += 1
    if record[1] < 0:  # int8: 127 + 1 gives -128
        record[1] = 0
        record[2] += 1


NEVER = -1.0  # threshold v below which no value lies, so no player resigns


@dataclass(frozen=True)
class ResignOptions:
    v: float | None = None  # players resign below this value; None: a learned threshold
    played_on: float = 0.1  # share of games in which players do not resign; 1: no player resigns
    wrong: float = 0.05  # limit for the share of resignations in games that would not have been lost

    @classmethod
    def parse(cls, given: str) -> ResignOptions:
        """Parse the option --resign: auto, off, or a threshold v from -1 to 0. Raises UserError for any other text."""
        if given in ("auto", "off"):
            return cls(played_on=0.1 if given == "auto" else 1.0)
        try:
            v = float(given)
        except ValueError:
            v = math.nan
        if not -1 <= v <= 0:
            raise UserError(f"--resign {given}: must be auto, off, or a value from -1 to 0")
        return cls(v)

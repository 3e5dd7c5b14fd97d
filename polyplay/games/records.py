"""Records of board-game positions: their common header, results of moves, options for resigning.

Header, int8: the mover (0 the first player, 1 the second), ply % 128, ply // 128, a number that the game defines, and
the cells row by row from the top: 0 empty, 1 the first player's, 2 the second's. The rest belongs to the game.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from polyplay.core.compiled import cached_njit
from polyplay.core.errors import UserError

K_IN_A_ROW, GO, OTHELLO, OWN_GAME = range(4)  # kinds of games
KIND, ROWS, COLUMNS = range(3)  # indices in a game's numbers; the rest depend on its kind
GOES_ON, WON, DRAWN, LOST = range(4)  # results of a move; WON, LOST: by the player who moved
OWN, CELLS = 3, 4  # indices in a record of the game's number and of the first cell
PLIES = 128
WORTH = np.array([0.0, 1.0, 0.0, -1.0], np.float32)  # points by result, for the player who moved

compiled = cached_njit(_nrt=True)  # these functions make arrays; without _nrt=True the caller's setting would apply


@compiled
def mover(record: np.ndarray) -> int:
    """Return the player to move: 0 the first, 1 the second."""
    return int(record[0])


@compiled
def ply(record: np.ndarray) -> int:
    """Return the number of moves made so far."""
    return int(record[1]) + PLIES * int(record[2])


@compiled
def pass_turn(record: np.ndarray) -> None:
    """Give the turn to the other player, one ply later."""
    record[0] = 1 - record[0]
    record[1] += 1
    if record[1] < 0:  # 127 + 1
        record[1] = 0
        record[2] += 1


NEVER = -1.0  # no value is below this v, so no player resigns


@dataclass(frozen=True)
class ResignOptions:
    v: float | None = None  # fixed threshold; None: learned
    played_on: float = 0.1  # share of games played to the end; 1: no player resigns
    wrong: float = 0.05  # limit for the share of resignations in games that would not be lost

    @classmethod
    def parse(cls, given: str) -> ResignOptions:
        """Parse --resign: auto, off, or v. Raises UserError: another word."""
        if given in ("auto", "off"):
            return cls(played_on=0.1 if given == "auto" else 1.0)
        try:
            v = float(given)
        except ValueError:
            v = math.nan
        if not -1 <= v <= 0:
            raise UserError(f"--resign {given}: must be auto, off, or a value from -1 to 0")
        return cls(v)

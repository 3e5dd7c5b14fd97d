"""What board games on records share: what a record begins with, when players give up.

What all records of positions begin with, and what a move leads to.

int8: the mover (0 the first player, 1 the second), ply % 128, ply // 128, a number of the game's own, and the cells row
by row from the top: 0 empty, 1 the first player's, 2 the second's. What follows belongs to the game.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from polyplay.core.compiled import cached_njit
from polyplay.core.errors import UserError

K_IN_A_ROW, GO, OTHELLO, OWN_GAME = range(4)  # kinds of games
KIND, ROWS, COLUMNS = range(3)  # of a game's numbers; the others belong to its kind
GOES_ON, WON, DRAWN, LOST = range(4)  # what a move leads to; WON, LOST: by who made it
OWN, CELLS = 3, 4  # where a record's own number is, and where its cells begin
PLIES = 128
WORTH = np.array([0.0, 1.0, 0.0, -1.0], np.float32)  # of a result, for who made the move

compiled = cached_njit(_nrt=True)  # arrays are made here, whoever calls: without it a caller that makes none decides


@compiled
def mover(record: np.ndarray) -> int:
    """Whose turn it is: 0 the first player's, 1 the second's."""
    return int(record[0])


@compiled
def ply(record: np.ndarray) -> int:
    """Moves made so far."""
    return int(record[1]) + PLIES * int(record[2])


@compiled
def pass_turn(record: np.ndarray) -> None:
    """The other player's turn, one ply later."""
    record[0] = 1 - record[0]
    record[1] += 1
    if record[1] < 0:  # 127 + 1
        record[1] = 0
        record[2] += 1


NEVER = -1.0  # no value is below it


@dataclass(frozen=True)
class ResignOptions:
    v: float | None = None  # fixed; None: learnt
    played_on: float = 0.1  # share of games; 1: nobody resigns
    wrong: float = 0.05  # of the games that would be resigned fewer than this may be other than lost

    @classmethod
    def parse(cls, given: str) -> ResignOptions:
        """auto, off, or v. Raises UserError."""
        if given in ("auto", "off"):
            return cls(played_on=0.1 if given == "auto" else 1.0)
        try:
            v = float(given)
        except ValueError:
            v = math.nan
        if not -1 <= v <= 0:
            raise UserError(f"--resign: {given} given; allowed: auto, off, or a value from -1 to 0")
        return cls(v)

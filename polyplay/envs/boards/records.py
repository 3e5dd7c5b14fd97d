"""What all records of positions begin with, and what a move leads to. Imports no torch.

int8: the mover (0 the first player, 1 the second), ply % 128, ply // 128, a number of the game's own, and the cells row
by row from the top: 0 empty, 1 the first player's, 2 the second's. What follows belongs to the game.
"""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import cached_njit

K_IN_A_ROW, GO, OTHELLO, SPIEL = range(4)  # kinds of games
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

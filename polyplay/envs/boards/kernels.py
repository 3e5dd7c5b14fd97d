"""The rules of all board games as compiled functions on records (boards.records). Imports no torch.

`game` is a game's numbers (boards.game.Game.numbers): int64 [8], of which the first is its kind and decides which rules
hold. So whatever is compiled with these functions serves every game.
"""

from __future__ import annotations

import numpy as np

from polyplay.envs.boards import go_kernels, othello_kernels, row_kernels, spiel_kernels
from polyplay.envs.boards.records import (
    CELLS,
    DRAWN,
    GO,
    GOES_ON,
    KIND,
    LOST,
    OTHELLO,
    PLIES,
    SPIEL,
    WON,
    WORTH,
    compiled,
    mover,
    ply,
)

__all__ = [
    "CELLS",
    "DRAWN",
    "GOES_ON",
    "LOST",
    "PLIES",
    "WON",
    "WORTH",
    "compiled",
    "legal",
    "mover",
    "play",
    "ply",
    "start",
    "write_planes",
]


@compiled
def start(game: np.ndarray, record: np.ndarray) -> None:
    """Write the initial position."""
    record[:] = 0
    if game[KIND] == OTHELLO:
        othello_kernels.start(game, record)


@compiled
def legal(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> int:
    """Write the legal actions, ascending, into out int16 [actions]; their number."""
    if game[KIND] == GO:
        return go_kernels.legal(game, record, out)
    if game[KIND] == OTHELLO:
        return othello_kernels.legal(game, record, out)
    if game[KIND] == SPIEL:
        return spiel_kernels.legal(game, record, out)
    return row_kernels.legal(game, record, out)


@compiled
def play(game: np.ndarray, record: np.ndarray, action: int) -> int:
    """Make a legal move in the record; GOES_ON, or WON, DRAWN or LOST for who made it."""
    if game[KIND] == GO:
        return go_kernels.play(game, record, np.int64(action))
    if game[KIND] == OTHELLO:
        return othello_kernels.play(game, record, np.int64(action))
    if game[KIND] == SPIEL:
        return spiel_kernels.play(game, record, np.int64(action))
    return row_kernels.play(game, record, np.int64(action))


@compiled
def write_planes(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> None:
    """Write what a network sees into out [planes, rows, columns]: of Go go_kernels' planes, of OpenSpiel's games
    their own; of other games the mover's stones, the other's, and 1 where the first player moves.
    """
    if game[KIND] == GO:
        go_kernels.write_planes(game, record, out)
    elif game[KIND] == SPIEL:
        spiel_kernels.write_planes(game, record, out)
    else:
        row_kernels.write_planes(game, record, out)

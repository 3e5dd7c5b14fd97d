"""The rules of k in a row as compiled functions on a record that holds a whole position (boards.records). Imports no
torch.
"""

from __future__ import annotations

import numpy as np

from polyplay.envs.boards.records import (
    CELLS,
    COLUMNS,
    DRAWN,
    GOES_ON,
    ROWS,
    WON,
    compiled,
    pass_turn,
    ply,
)

K, GRAVITY = range(3, 5)  # of a game's numbers


@compiled
def legal(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> int:
    """Write the legal actions, ascending, into out int16 [actions]; their number."""
    cells = game[COLUMNS] if game[GRAVITY] else game[ROWS] * game[COLUMNS]  # with gravity: those of the top row
    n = 0
    for action in range(cells):
        if record[CELLS + action] == 0:
            out[n] = action
            n += 1
    return n


@compiled
def play(game: np.ndarray, record: np.ndarray, action: int) -> int:
    """Make a legal move in the record; GOES_ON, WON or DRAWN."""
    columns = game[COLUMNS]
    row, column = (game[ROWS] - 1, action) if game[GRAVITY] else (action // columns, action % columns)
    while record[CELLS + row * columns + column] != 0:  # gravity: from the bottom up
        row -= 1
    own = record[0] + 1
    record[CELLS + row * columns + column] = own
    pass_turn(record)
    if _in_line(game, record, row, column, own):
        return WON
    return GOES_ON if ply(record) < game[ROWS] * columns else DRAWN


@compiled
def _in_line(game: np.ndarray, record: np.ndarray, row: int, column: int, own: int) -> bool:
    """Whether k stones of `own` lie in a line through that cell."""
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        n = 1 + _run(game, record, row, column, down, right, own) + _run(game, record, row, column, -down, -right, own)
        if n >= game[K]:
            return True
    return False


@compiled
def _run(game: np.ndarray, record: np.ndarray, row: int, column: int, down: int, right: int, own: int) -> int:
    """Stones of `own` one behind another from that cell on, without it."""
    rows, columns = game[ROWS], game[COLUMNS]
    n, r, c = 0, row + down, column + right
    while 0 <= r < rows and 0 <= c < columns and record[CELLS + r * columns + c] == own:
        n, r, c = n + 1, r + down, c + right
    return n


@compiled
def write_planes(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> None:
    """Write what a network sees into out [3, rows, columns]: the mover's stones, the other's, and 1 where the first
    player moves.
    """
    own, columns = record[0] + 1, game[COLUMNS]
    first = 1 if record[0] == 0 else 0
    for row in range(game[ROWS]):
        for column in range(columns):
            cell = record[CELLS + row * columns + column]
            out[0, row, column] = cell == own
            out[1, row, column] = cell == 3 - own
            out[2, row, column] = first

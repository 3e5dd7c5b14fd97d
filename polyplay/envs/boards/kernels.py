"""The rules of board games as compiled functions on a record that holds a whole position. Imports no torch.

`game` is a game's numbers (boards.game.Game.numbers): int64 [8], of which the first is its kind and decides which rules
hold. So whatever is compiled with these functions serves every game.

Record of k in a row, int8 [4 + rows · columns]: mover (0 the first player, 1 the second), ply % 128, ply // 128, 0, and
the cells row by row from the top: 0 empty, 1 the first player's, 2 the second's.
"""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import cached_njit

K_IN_A_ROW = 0
KIND, ROWS, COLUMNS, K, GRAVITY = range(5)  # of a game's numbers
GOES_ON, WON, DRAWN = range(3)  # what a move leads to; WON: by who made it
CELLS = 4  # where a record's cells begin
PLIES = 128

compiled = cached_njit()


@compiled
def start(game: np.ndarray, record: np.ndarray) -> None:
    """Write the initial position."""
    record[:] = 0


@compiled
def mover(record: np.ndarray) -> int:
    """Whose turn it is: 0 the first player's, 1 the second's."""
    return int(record[0])


@compiled
def ply(record: np.ndarray) -> int:
    """Moves made so far."""
    return int(record[1]) + PLIES * int(record[2])


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
    record[0] = 2 - own
    record[1] += 1
    if record[1] < 0:  # 127 + 1
        record[1] = 0
        record[2] += 1
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


@compiled
def key(game: np.ndarray, record: np.ndarray) -> np.uint64:
    """A number that equal positions share and others, but for one in 2⁶⁴, do not (SplitMix64 over the cells)."""
    found = np.uint64(0x9E3779B97F4A7C15) * np.uint64(record[0] + 1)
    for cell in range(game[ROWS] * game[COLUMNS]):
        found += np.uint64(record[CELLS + cell]) + np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    return found

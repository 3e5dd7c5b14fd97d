"""The rules of Othello as compiled functions on a record that holds a whole position (boards.records).

Who has no move that turns a disc passes, which is a move; where nobody has one the game ends. The record's own number
is 1 where the mover has to pass. Imports no torch.
"""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import inlined
from polyplay.envs.boards.records import CELLS, COLUMNS, DRAWN, GOES_ON, LOST, OWN, ROWS, WON, compiled, pass_turn


@compiled
def start(game: np.ndarray, record: np.ndarray) -> None:
    """Two discs of each player in the middle, crosswise; the rest of the record is 0."""
    rows, columns = game[ROWS], game[COLUMNS]
    first = CELLS + (rows // 2 - 1) * columns + columns // 2 - 1
    record[first], record[first + 1] = 2, 1
    record[first + columns], record[first + columns + 1] = 1, 2


@inlined
def _turns(rows: int, columns: int, record: np.ndarray, cell: int, down: int, right: int, own: int) -> int:
    """Discs of the other that a disc of `own` on a cell would turn in that direction."""
    row, column, n = cell // columns + down, cell % columns + right, 0
    while 0 <= row < rows and 0 <= column < columns and record[CELLS + row * columns + column] == 3 - own:
        row, column, n = row + down, column + right, n + 1
    inside = 0 <= row < rows and 0 <= column < columns
    return n if inside and record[CELLS + row * columns + column] == own else 0


@compiled
def _fits(rows: int, columns: int, record: np.ndarray, cell: int, own: int) -> bool:
    """Whether a disc of `own` on an empty cell turns any."""
    if record[CELLS + cell] == 0:
        for down in range(-1, 2):
            for right in range(-1, 2):
                if (down != 0 or right != 0) and _turns(rows, columns, record, cell, down, right, own) > 0:
                    return True
    return False


@compiled
def _can_move(game: np.ndarray, record: np.ndarray, own: int) -> bool:
    rows, columns = game[ROWS], game[COLUMNS]
    cell = 0
    while cell < rows * columns and not _fits(rows, columns, record, cell, own):
        cell += 1
    return cell < rows * columns


@compiled
def legal(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> int:
    """Write the legal actions, ascending, into out int16 [actions]; their number. A pass is legal alone."""
    rows, columns, count = game[ROWS], game[COLUMNS], 0
    if record[OWN]:
        out[0] = rows * columns
        return 1
    for cell in range(rows * columns):
        if _fits(rows, columns, record, cell, record[0] + 1):
            out[count] = cell
            count += 1
    return count


@compiled
def play(game: np.ndarray, record: np.ndarray, action: int) -> int:
    """Make a legal move in the record; GOES_ON, WON, DRAWN or LOST."""
    rows, columns, own = game[ROWS], game[COLUMNS], record[0] + 1
    if action < rows * columns:
        for down in range(-1, 2):
            for right in range(-1, 2):
                if down != 0 or right != 0:
                    for k in range(1, 1 + _turns(rows, columns, record, action, down, right, own)):
                        record[CELLS + action + k * (down * columns + right)] = own
        record[CELLS + action] = own
    pass_turn(record)
    record[OWN] = 0
    if _can_move(game, record, 3 - own):
        return GOES_ON
    if _can_move(game, record, own):
        record[OWN] = 1
        return GOES_ON
    lead = 0
    for cell in range(rows * columns):
        disc = record[CELLS + cell]
        lead += 1 if disc == own else -1 if disc == 3 - own else 0
    return DRAWN if lead == 0 else WON if lead > 0 else LOST


@compiled
def note_passes(game: np.ndarray, records: np.ndarray) -> None:
    """Set records' own numbers by their cells and movers."""
    for record in records:
        record[OWN] = not _can_move(game, record, record[0] + 1)

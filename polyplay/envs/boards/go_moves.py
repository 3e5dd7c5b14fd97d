"""The moves of a game of Go, found again: its record keeps a hash of every position. Imports no torch."""

from __future__ import annotations

import numpy as np

from polyplay.envs.boards.game import Go
from polyplay.envs.boards.go_kernels import HASHES, longest, play
from polyplay.envs.boards.records import CELLS, GOES_ON, ROWS, compiled, ply


@compiled
def _agree(game: np.ndarray, record: np.ndarray, later: np.ndarray) -> bool:
    """Whether a game in `record` can have gone on to `later`."""
    now, last = ply(record), ply(later)
    if now == last:
        return np.array_equal(record[: CELLS + game[ROWS] ** 2], later[: CELLS + game[ROWS] ** 2])
    hashes, known = record[game[HASHES] :].view(np.uint64), later[game[HASHES] :].view(np.uint64)
    return now < last and np.array_equal(hashes[: now + 1], known[: now + 1])


@compiled
def _find_moves(game: np.ndarray, record: np.ndarray, later: np.ndarray, out: np.ndarray) -> int:
    """Write the moves between, and make them in the record; their number, −1: there are none that lead there."""
    count, cells = 0, game[ROWS] ** 2
    if not _agree(game, record, later):
        return -1
    while ply(record) < ply(later):
        for action in range(cells, -1, -1):  # the pass first: no legal stone leaves the position as it is
            if action < cells and record[CELLS + action] != 0:
                continue
            tried = record.copy()
            over = play(game, tried, action) != GOES_ON
            if (not over or ply(tried) == ply(later)) and _agree(game, tried, later):
                record[:] = tried
                out[count] = action
                count += 1
                break
        else:
            return -1
    return count


def moves_between(board: Go, record: np.ndarray, later: np.ndarray) -> list[int] | None:
    """The moves that lead from a position to a later one of the same game; None: it is not of the same game. Two moves
    never lead to the same stones: a stone that stays shows its cell, and groups that a suicide takes had one liberty.
    """
    out = np.empty(longest(board.numbers), np.int16)
    found = _find_moves(board.numbers, record.copy(), later, out)
    return None if found < 0 else [int(action) for action in out[:found]]

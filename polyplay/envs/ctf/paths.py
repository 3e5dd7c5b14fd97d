"""Shortest paths on a map of capture the flag, and straight walks along them, compiled. Imports no torch.

Cell [r, c] is number r · N + c. A move leads to a free cell at one of the four sides.
"""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import cached_njit
from polyplay.envs.ctf.rules import clear
from polyplay.envs.ctf.world import RADIUS, WALL

AHEAD = 6  # moves of a path that are looked at for a straight walk

compiled = cached_njit()


@compiled
def flood(grid: np.ndarray, target: int, moves: np.ndarray, order: np.ndarray) -> int:
    """Write into moves, int64 [N · N], how many moves each cell is from the free cell `target`, -1 where no path leads
    there, and into order, int64 [N · N], the cells that one leads from, the nearest first; how many they are.
    """
    N, wall = len(grid), grid.reshape(-1)
    moves[:] = -1
    moves[target], order[0], n, k = 0, target, 1, 0
    while k < n:
        cell = order[k]
        for side in (cell - N, cell - 1, cell + 1, cell + N):
            if wall[side] != WALL and moves[side] < 0:
                moves[side] = moves[cell] + 1
                order[n] = side
                n += 1
        k += 1
    return n


@compiled
def next_cell(N: int, moves: np.ndarray, cell: int) -> int:
    """The cell after this one on a shortest path to where the flood began; there, or where no path leads, itself."""
    if moves[cell] > 0:
        for side in (cell - N, cell - 1, cell + 1, cell + N):
            if moves[side] == moves[cell] - 1:
                return side
    return cell


@compiled
def walks_straight(grid: np.ndarray, x: float, y: float, to_x: float, to_y: float) -> bool:
    """Whether a body gets from one point to another in a straight line: no wall is smaller than a body, so it does
    where its four corners do.
    """
    for dx in (-RADIUS, RADIUS):
        for dy in (-RADIUS, RADIUS):
            if not clear(grid, x + dx, y + dy, to_x + dx, to_y + dy):
                return False
    return True


@compiled
def waypoint(grid: np.ndarray, moves: np.ndarray, x: float, y: float, to_x: float, to_y: float) -> tuple[float, float]:
    """Where a body at a point has to walk now on a shortest path to another, from whose cell the flood began: the
    farthest that it gets to in a straight line.
    """
    N = len(grid)
    cell = int(y) * N + int(x)
    found = to_x, to_y
    for ahead in range(min(moves[cell], AHEAD)):
        cell = next_cell(N, moves, cell)
        at_x, at_y = (cell % N + 0.5, cell // N + 0.5) if moves[cell] else (to_x, to_y)
        if ahead and not walks_straight(grid, x, y, at_x, at_y):
            break
        found = at_x, at_y
    return found

"""What a player sees in the window: 11 × 11 cells around it, turned so that it looks up, dark where it cannot see.

Cell [i, j] of the window is 5 - i cells ahead of the player and j - 5 to its right. It is dark where the way to it,
in steps of half a cell, passes a wall: nine in ten of the free cells are so where the straight line says so.
"""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import cached_njit
from polyplay.envs.ctf.world import COS, RELOAD, SEEN, SIN, STEEPEST, WALL

HALF = SEEN // 2
SHOWN = 255  # of a byte: networks scale it to 1

compiled = cached_njit()


def _ways() -> np.ndarray:
    """int64 [121 - 1, 2]: each cell but the middle by its distance, and the one before it on the way from there."""
    cells = [(i, j) for i in range(SEEN) for j in range(SEEN) if (i, j) != (HALF, HALF)]
    cells.sort(key=lambda cell: max(abs(cell[0] - HALF), abs(cell[1] - HALF)))
    ways = []
    for i, j in cells:
        far = max(abs(i - HALF), abs(j - HALF))
        before = [HALF + round((k - HALF) * (far - 1) / far) for k in (i, j)]
        ways.append((i * SEEN + j, before[0] * SEEN + before[1]))
    return np.array(ways)


def _steps(ways: np.ndarray) -> np.ndarray:
    """float64 [120, 2 points, 2]: how far ahead and to the right such a cell is, and the place half way from before."""
    i, j = np.divmod(ways, SEEN)
    ends = np.stack([HALF - i, j - HALF], -1).astype(np.float64)
    return np.stack([ends[:, 0], ends.mean(1)], 1)


_WAYS = _ways()
_STEPS = _steps(_WAYS)


@compiled
def _is_wall(grid: np.ndarray, x: float, y: float) -> bool:
    """Also of what is not on the map."""
    size = len(grid)
    return not (0.0 <= x < size and 0.0 <= y < size) or grid[int(y), int(x)] == WALL


@compiled
def _look(grid: np.ndarray, x: float, y: float, yaw: int, out: np.ndarray) -> None:
    """The planes dark and wall, of out uint8 [planes, 121]."""
    c, s = COS[yaw], SIN[yaw]
    for k in range(len(_WAYS)):
        cell, before = _WAYS[k, 0], _WAYS[k, 1]
        ahead, right = _STEPS[k, 1, 0], _STEPS[k, 1, 1]
        if out[0, before] or out[1, before]:
            out[0, cell] = SHOWN
            continue
        hidden = _is_wall(grid, x + ahead * c - right * s, y + ahead * s + right * c)
        ahead, right = _STEPS[k, 0, 0], _STEPS[k, 0, 1]
        wall = _is_wall(grid, x + ahead * c - right * s, y + ahead * s + right * c)
        out[1, cell] = SHOWN if wall else 0
        out[0, cell] = SHOWN if hidden and not wall else 0


@compiled
def _show(plane: np.ndarray, dark: np.ndarray, dx: float, dy: float, yaw: int) -> None:
    """Mark what is so far from the player, if it can see it."""
    i = int(np.floor(HALF - (dx * COS[yaw] + dy * SIN[yaw]) + 0.5))
    j = int(np.floor(HALF + (dy * COS[yaw] - dx * SIN[yaw]) + 0.5))
    if 0 <= i < SEEN and 0 <= j < SEEN and not dark[i * SEEN + j]:
        plane[i * SEEN + j] = SHOWN


@compiled
def draw_windows(
    grid: np.ndarray,
    base: np.ndarray,
    at: np.ndarray,
    yaw: np.ndarray,
    flag_at: np.ndarray,
    carrier: np.ndarray,
    out: np.ndarray,
) -> None:
    """What every seat of every match sees: world.PLANES, 0 or SHOWN; out uint8 [n, P, planes, 11, 11], 0 at first."""
    n, P = at.shape[:2]
    for m in range(n):
        for p in range(P):
            view, x, y, turned = out[m, p].reshape(out.shape[2], SEEN * SEEN), at[m, p, 0], at[m, p, 1], yaw[m, p]
            _look(grid[m], x, y, turned, view)
            own = 0 if p < P // 2 else 1
            for q in range(P):
                if q != p:
                    plane = 2 if (q < P // 2) == (p < P // 2) else 3
                    if carrier[m, 0] == q or carrier[m, 1] == q:
                        plane += 2
                    _show(view[plane], view[0], at[m, q, 0] - x, at[m, q, 1] - y, turned)
            for team in range(2):
                away = 0 if team == own else 1
                if carrier[m, team] < 0:
                    _show(view[6 + away], view[0], flag_at[m, team, 0] - x, flag_at[m, team, 1] - y, turned)
                _show(view[8 + away], view[0], base[m, team, 0] - x, base[m, team, 1] - y, turned)


@compiled
def know(
    z: np.ndarray,
    pitch: np.ndarray,
    loads: np.ndarray,
    flag: np.ndarray,
    carrier: np.ndarray,
    score: np.ndarray,
    age: np.ndarray,
    length: int,
    out: np.ndarray,
) -> None:
    """What a player knows besides what it sees, out float32 [n, P, 12]: the difference of scores / 5, the part of the
    match that is left; its own flag is at home, carried, dropped; theirs likewise; whether it carries that; the part of
    a reload that is left, its pitch / the steepest, the height of its feet.
    """
    n, P = z.shape
    out[:] = 0.0
    for m in range(n):
        for p in range(P):
            own, facts = (0 if p < P // 2 else 1), out[m, p]
            facts[0] = (score[m, own] - score[m, 1 - own]) / 5.0
            facts[1] = 1.0 - age[m] / length
            facts[2 + flag[m, own]] = 1.0
            facts[5 + flag[m, 1 - own]] = 1.0
            facts[8] = 1.0 if carrier[m, 1 - own] == p else 0.0
            facts[9] = loads[m, p] / RELOAD
            facts[10] = pitch[m, p] / STEEPEST
            facts[11] = z[m, p]

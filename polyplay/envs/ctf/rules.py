"""The rules of capture the flag, compiled, for many matches at once: one step of everybody. Imports no torch.

A step, in this order: all turn and move; all who tag shoot, by where everybody is then; who was hit drops the flag it
carried and comes back where it began; flags are returned, picked up and captured by touch.
"""

from __future__ import annotations

import math

import numpy as np

from polyplay.common.compiled import cached_njit
from polyplay.envs.ctf.world import (
    BODY,
    CARRIED,
    COS,
    DROPPED,
    EYE,
    GRAVITY,
    HOME,
    JUMP,
    PITCH,
    RADIUS,
    RANGE,
    REACH,
    RELOAD,
    SIN,
    SPEED,
    STEEPEST,
    TURN,
    WALL,
    WIDTH,
    YAW,
)

_YAW, _PITCH, _SLANTED = np.array(YAW), np.array(PITCH), math.sqrt(0.5)
_CORNER = 1e-9  # parts of a line

compiled = cached_njit()


@compiled
def hits_wall(grid: np.ndarray, x: float, y: float) -> bool:
    """Whether a body there would be in a wall."""
    left, right, top, bottom = int(x - RADIUS), int(x + RADIUS), int(y - RADIUS), int(y + RADIUS)
    upper = grid[top, left] == WALL or grid[top, right] == WALL
    return bool(upper or grid[bottom, left] == WALL or grid[bottom, right] == WALL)


@compiled
def clear(grid: np.ndarray, x: float, y: float, to_x: float, to_y: float) -> bool:
    """Whether no wall is on the straight line from one point in a free cell to another. Corners are not in the way."""
    c, r, dx, dy = int(x), int(y), to_x - x, to_y - y
    step_c, step_r = (1 if dx > 0 else -1), (1 if dy > 0 else -1)
    far = 2.0  # beyond the end
    across_c, across_r = (abs(1.0 / dx) if dx else far), (abs(1.0 / dy) if dy else far)  # parts of the line for a cell
    next_c = ((c + 1 - x) if dx > 0 else (x - c)) * across_c if dx else far
    next_r = ((r + 1 - y) if dy > 0 else (y - r)) * across_r if dy else far
    while min(next_c, next_r) < 1.0:
        by_c, by_r = next_c < next_r + _CORNER, next_r < next_c + _CORNER  # both: through a corner
        if by_c:
            c, next_c = c + step_c, next_c + across_c
        if by_r:
            r, next_r = r + step_r, next_r + across_r
        if grid[r, c] == WALL:
            return False
    return True


@compiled
def _move(
    grid: np.ndarray,
    at: np.ndarray,
    z: np.ndarray,
    rises: np.ndarray,
    yaw: np.ndarray,
    pitch: np.ndarray,
    a: np.ndarray,
) -> None:
    """Everybody of a match; a int64 [P, 6]."""
    for p in range(len(at)):
        yaw[p] = (yaw[p] + _YAW[a[p, 0]]) % TURN
        pitch[p] = min(max(pitch[p] + _PITCH[a[p, 1]], -STEEPEST), STEEPEST)
        right, ahead = a[p, 2] - 1.0, a[p, 3] - 1.0
        speed = SPEED * (_SLANTED if right and ahead else 1.0)
        x = at[p, 0] + speed * (ahead * COS[yaw[p]] - right * SIN[yaw[p]])
        if not hits_wall(grid, x, at[p, 1]):
            at[p, 0] = x
        y = at[p, 1] + speed * (ahead * SIN[yaw[p]] + right * COS[yaw[p]])
        if not hits_wall(grid, at[p, 0], y):
            at[p, 1] = y
        if a[p, 5] and z[p] == 0.0:
            rises[p] = JUMP
        z[p] += rises[p]
        rises[p] -= GRAVITY
        if z[p] <= 0.0:
            z[p] = rises[p] = 0.0


@compiled
def aimed_at(grid: np.ndarray, at: np.ndarray, z: np.ndarray, yaw: np.ndarray, pitch: np.ndarray, p: int) -> int:
    """Whom a tag by seat p hits: the nearest opponent in its way; -1: nobody."""
    P, best, nearest = len(at), -1, RANGE
    for q in range(P):
        if (q < P // 2) == (p < P // 2):
            continue
        dx, dy = at[q, 0] - at[p, 0], at[q, 1] - at[p, 1]
        ahead, aside = dx * COS[yaw[p]] + dy * SIN[yaw[p]], dy * COS[yaw[p]] - dx * SIN[yaw[p]]
        height = z[p] + EYE + ahead * SIN[pitch[p]] / COS[pitch[p]] - z[q]  # a pitch below 0 counts from the end
        on_it = 0.0 < ahead <= nearest and abs(aside) <= WIDTH and 0.0 <= height <= BODY
        if on_it and clear(grid, at[p, 0], at[p, 1], at[q, 0], at[q, 1]):
            best, nearest = q, ahead
    return best


@compiled
def _note(events: np.ndarray, p: int, what: int) -> None:
    """Seat p picked up (0), captured (1) or returned (2) a flag."""
    half = len(events) // 2
    for q in range(len(events)):
        same = (q < half) == (p < half)
        events[q, what + (0 if q == p else 3 if same else 6)] += 1.0


@compiled
def _tags(
    grid: np.ndarray,
    at: np.ndarray,
    z: np.ndarray,
    yaw: np.ndarray,
    pitch: np.ndarray,
    loads: np.ndarray,
    carrier: np.ndarray,
    a: np.ndarray,
    events: np.ndarray,
    hit: np.ndarray,
) -> None:
    """Who is hit in this step, bool [P]; and its events."""
    hit[:] = False
    for p in range(len(at)):
        loads[p] = max(loads[p] - 1, 0)
        if not a[p, 4] or loads[p]:
            continue
        loads[p] = RELOAD
        q = aimed_at(grid, at, z, yaw, pitch, p)
        if q >= 0:
            hit[q] = True
            events[p, 9 if carrier[0] == q or carrier[1] == q else 10] += 1.0
    for q in range(len(at)):
        if hit[q]:
            events[q, 11 if carrier[0] == q or carrier[1] == q else 12] += 1.0


@compiled
def _near(a: np.ndarray, b: np.ndarray) -> bool:
    dx, dy = a[0] - b[0], a[1] - b[1]
    return bool(dx * dx + dy * dy <= REACH * REACH)


@compiled
def _touch(
    at: np.ndarray,
    base: np.ndarray,
    flag: np.ndarray,
    flag_at: np.ndarray,
    carrier: np.ndarray,
    score: np.ndarray,
    events: np.ndarray,
) -> int:
    """Returns, then pick-ups, then captures; team 0's captures less team 1's."""
    P, gained = len(at), 0
    for p in range(P):
        own = 0 if p < P // 2 else 1
        if flag[own] == DROPPED and _near(at[p], flag_at[own]):
            flag[own], flag_at[own] = HOME, base[own]
            _note(events, p, 2)
    for p in range(P):
        theirs = 1 if p < P // 2 else 0
        if flag[theirs] != CARRIED and _near(at[p], flag_at[theirs]):
            flag[theirs], carrier[theirs] = CARRIED, p
            _note(events, p, 0)
    for theirs in range(2):
        p, own = carrier[theirs], 1 - theirs
        if p < 0:
            continue
        flag_at[theirs] = at[p]
        if flag[own] == HOME and _near(at[p], base[own]):
            flag[theirs], carrier[theirs], flag_at[theirs] = HOME, -1, base[theirs]
            score[own] += 1
            gained += 1 - 2 * own
            _note(events, p, 1)
    return gained


@compiled
def face(at: np.ndarray, size: int) -> int:
    """The heading from there to the middle of the map."""
    angle = math.atan2(size / 2 - at[1], size / 2 - at[0])
    return math.floor(angle / (2 * math.pi) * TURN + 0.5) % TURN


@compiled
def _come_back(
    p: int,
    size: int,
    spawn: np.ndarray,
    at: np.ndarray,
    z: np.ndarray,
    rises: np.ndarray,
    yaw: np.ndarray,
    pitch: np.ndarray,
) -> None:
    at[p] = spawn[p]
    z[p] = rises[p] = 0.0
    yaw[p], pitch[p] = face(at[p], size), 0


@compiled
def step_matches(
    grid: np.ndarray,
    base: np.ndarray,
    spawn: np.ndarray,
    at: np.ndarray,
    z: np.ndarray,
    rises: np.ndarray,
    yaw: np.ndarray,
    pitch: np.ndarray,
    loads: np.ndarray,
    flag: np.ndarray,
    flag_at: np.ndarray,
    carrier: np.ndarray,
    score: np.ndarray,
    age: np.ndarray,
    action: np.ndarray,
    reward: np.ndarray,
    events: np.ndarray,
) -> None:
    """A step of each match, in place: World.arrays; by action int64 [n, P, 6], into reward [n, P], events [n, P, E]."""
    P = at.shape[1]
    hit = np.zeros(P, np.bool_)
    events[:] = 0.0
    for m in range(len(at)):
        age[m] += 1
        _move(grid[m], at[m], z[m], rises[m], yaw[m], pitch[m], action[m])
        _tags(grid[m], at[m], z[m], yaw[m], pitch[m], loads[m], carrier[m], action[m], events[m], hit)
        for p in range(P):
            if hit[p]:
                for team in range(2):
                    if carrier[m, team] == p:
                        flag[m, team], carrier[m, team], flag_at[m, team] = DROPPED, -1, at[m, p]
                _come_back(p, grid.shape[1], spawn[m], at[m], z[m], rises[m], yaw[m], pitch[m])
        gained = _touch(at[m], base[m], flag[m], flag_at[m], carrier[m], score[m], events[m])
        for p in range(P):
            reward[m, p] = gained if p < P // 2 else -gained


@compiled
def begin_matches(
    grid: np.ndarray,
    base: np.ndarray,
    spawn: np.ndarray,
    at: np.ndarray,
    yaw: np.ndarray,
    flag_at: np.ndarray,
) -> None:
    """All where a match begins, once its map is drawn; the other arrays are new."""
    for m in range(len(at)):
        at[m], flag_at[m] = spawn[m], base[m]
        for p in range(at.shape[1]):
            yaw[m, p] = face(at[m, p], grid.shape[1])

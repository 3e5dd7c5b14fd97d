"""What creeps and towers of the lane game do, compiled. Imports no torch."""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import cached_njit
from polyplay.envs.lanes.units import (
    apart,
    count_lanes,
    forward,
    go,
    hurt,
    is_open,
    middle,
)
from polyplay.envs.lanes.world import (
    CORE_X,
    CREEP_HIT,
    CREEP_NOTICES,
    CREEP_RANGE,
    CREEP_RELOAD,
    CREEP_SPEED,
    FIRST_LANE,
    HEALTH,
    LANE_APART,
    MOST,
    READY,
    SLOTS,
    SPREAD,
    TARGET,
    TOWER_HIT,
    TOWER_RANGE,
    TOWER_RELOAD,
    TURN_X,
    WAVE,
    WIDTH,
    X,
    Y,
)

compiled = cached_njit()


@compiled
def send_wave(units: np.ndarray, team: int, wave: np.ndarray) -> None:
    """New creeps in slots that are free, at each core for each lane; wave int32 [2, lanes]."""
    half, lanes = len(units) // 2, wave.shape[1]
    for side in range(2):
        for lane in range(lanes):
            new, first = 0, side * half + team + SLOTS * lane
            for u in range(first, first + SLOTS):
                if units[u, HEALTH] <= 0 and new < WAVE:
                    units[u, X] = forward(side, CORE_X - new * SPREAD)
                    units[u, Y], units[u, READY], units[u, TARGET] = middle(lanes), 0, -1
                    units[u, HEALTH] = units[u, MOST] = wave[side, lane]
                    new += 1


@compiled
def _nearest(units: np.ndarray, u: int, targets: np.ndarray, first: int, last: int, reach: int) -> int:
    """Of targets first … last-1 the nearest to u within reach; -1: none."""
    best, least, x, y = -1, reach * reach + 1, np.int64(units[u, X]), np.int64(units[u, Y])
    for k in range(first, last):
        dx, dy = targets[k, 0] - x, targets[k, 1] - y
        far = dx * dx + dy * dy
        if far < least:
            best, least = targets[k, 2], far
    return best


@compiled
def choose_targets(units: np.ndarray, team: int) -> None:
    """Creeps: the nearest. Towers: the nearest creep, else the nearest hero."""
    half, targets = len(units) // 2, np.empty((len(units), 3), np.int64)
    creeps = team + SLOTS * count_lanes(units, team)
    for own in (0, half):
        n = heroes = all_creeps = np.int64(0)
        for v in range(half - own, 2 * half - own):
            if units[v, HEALTH] > 0 and is_open(units, team, v):
                targets[n, 0], targets[n, 1], targets[n, 2] = units[v, X], units[v, Y], v
                n += 1
            heroes = n if v < half - own + team else heroes
            all_creeps = n if v < half - own + creeps else all_creeps
        for u in range(own + team, own + half - 1):
            if units[u, HEALTH] > 0:
                creep = u < own + creeps
                first, last, reach = (0, n, CREEP_NOTICES) if creep else (heroes, all_creeps, TOWER_RANGE)
                v = _nearest(units, u, targets, first, last, reach)
                if v < 0 and not creep:
                    v = _nearest(units, u, targets, first - heroes, heroes, reach)
                units[u, TARGET] = v


@compiled
def _march(was: np.ndarray, units: np.ndarray, u: int, side: int, lane: int, lanes: int) -> None:
    """A creep without a target, along its lane."""
    x = forward(side, was[u, X])
    to_x, to_y = WIDTH - CORE_X, middle(lanes)
    if x < WIDTH - TURN_X:
        to_x, to_y = (TURN_X if x < TURN_X else WIDTH - TURN_X), FIRST_LANE + LANE_APART * lane
    go(units, u, forward(side, to_x) - was[u, X], to_y - was[u, Y], CREEP_SPEED)


@compiled
def act_creeps(was: np.ndarray, units: np.ndarray, team: int, killer: np.ndarray, age: int) -> None:
    half, lanes = len(units) // 2, count_lanes(units, team)
    creeps = SLOTS * lanes
    for u in range(team, 2 * half - 1):
        side = 1 if u >= half else 0
        kind = u - side * half - team
        if kind < 0 or u == half - 1 or was[u, HEALTH] <= 0:
            continue
        v: int = np.int64(was[u, TARGET])  # type: ignore[assignment]
        v = v if v >= 0 and was[v, HEALTH] > 0 else -1
        reach = CREEP_RANGE if kind < creeps else TOWER_RANGE
        if v >= 0 and apart(was, u, v) <= reach * reach:
            if was[u, READY] <= age:
                units[u, READY] = age + (CREEP_RELOAD if kind < creeps else TOWER_RELOAD)
                hurt(units, killer, v, CREEP_HIT if kind < creeps else TOWER_HIT, np.int64(-1))
        elif kind < creeps and v >= 0:
            go(units, u, was[v, X] - was[u, X], was[v, Y] - was[u, Y], CREEP_SPEED)
        elif kind < creeps:
            _march(was, units, u, side, kind // SLOTS, lanes)

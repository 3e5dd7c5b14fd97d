"""What creeps and towers of the lane game do, compiled. Imports no torch."""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import cached_njit
from polyplay.envs.lanes.units import (
    apart,
    forward,
    go,
    hurt,
    is_open,
    lanes_of,
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
def _nearest(units: np.ndarray, team: int, u: int, first: int, last: int, reach: int) -> tuple[int, int]:
    """Of units first … last-1 that can be hurt the nearest to u within reach, and its distance squared; -1: none."""
    best, least = -1, reach * reach + 1
    for v in range(first, last):
        if units[v, HEALTH] > 0:
            far = apart(units, u, v)
            if far < least and is_open(units, team, v):
                best, least = v, far
    return best, least


@compiled
def choose_targets(units: np.ndarray, team: int) -> None:
    """Creeps: the nearest. Towers: the nearest creep, else the nearest hero."""
    half = len(units) // 2
    buildings = team + SLOTS * lanes_of(units, team)
    for u in range(len(units)):
        kind, theirs = u % half, (half if u < half else 0)
        if kind < team or kind == half - 1 or units[u, HEALTH] <= 0:
            continue
        if kind < buildings:
            units[u, TARGET] = _nearest(units, team, u, theirs, theirs + half, CREEP_NOTICES)[0]
            continue
        units[u, TARGET] = _nearest(units, team, u, theirs + team, theirs + buildings, TOWER_RANGE)[0]
        if units[u, TARGET] < 0:
            units[u, TARGET] = _nearest(units, team, u, theirs, theirs + team, TOWER_RANGE)[0]


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
    half, lanes = len(units) // 2, lanes_of(units, team)
    creeps = SLOTS * lanes
    for u in range(len(units)):
        kind, side = u % half - team, u // half
        if kind < 0 or kind == half - team - 1 or was[u, HEALTH] <= 0:
            continue
        v = np.int64(was[u, TARGET])
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

"""What heroes of the lane game may do, compiled. Imports no torch."""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import cached_njit
from polyplay.envs.lanes.units import (
    apart,
    can_use,
    count_lanes,
    is_open,
    lacks,
    unit_of,
)
from polyplay.envs.lanes.world import (
    ATTACK,
    CAST_BLAST,
    CAST_BOLT,
    CAST_HEAL,
    CAST_RANGE,
    FOLLOW,
    GO_HOME,
    HEALTH,
    SLOTS,
)

BOLT_BIT, BLAST_BIT = 1 << CAST_BOLT, 1 << CAST_BLAST

compiled = cached_njit()


@compiled
def _hurt_by(units: np.ndarray, team: int, out: np.ndarray) -> None:
    """By which primaries an enemy may name each unit, seen and near, into out uint8 [U]: bit k is for primary k."""
    half = len(units) // 2
    bodies = team + SLOTS * count_lanes(units, team)
    for first in (0, half):
        for u in range(first, first + half):
            hit = (1 << ATTACK) if is_open(units, team, u) else 0
            out[u] = hit | (1 << FOLLOW) | ((BOLT_BIT | BLAST_BIT) if u < first + bodies else 0)


@compiled
def _legal_units(
    units: np.ndarray, heroes: np.ndarray, shown: np.ndarray, age: int, p: int, hurt_by: np.ndarray, out: np.ndarray
) -> int:
    """By which primaries seat p may name the unit in each row, into out uint8 [rows], as hurt_by uint8 [U] has them;
    none where its hero is dead. shown int16 [rows]. Gives all bits that some row has.
    """
    team, half, some = len(heroes) // 2, len(units) // 2, 0
    u, unable = unit_of(units, team, p), 0
    unable |= 0 if can_use(heroes, p, np.int64(CAST_BOLT), age + 1) else BOLT_BIT
    unable |= 0 if can_use(heroes, p, np.int64(CAST_BLAST), age + 1) else BLAST_BIT
    alive = units[u, HEALTH] > 0
    for i in range(len(out)):
        v, named = np.int64(shown[i]), 0
        if alive and v >= 0:
            named = int(hurt_by[v]) if (v >= half) != (p >= team) else 1 << FOLLOW
            if named & BOLT_BIT:
                named &= ~(unable if apart(units, u, v) <= CAST_RANGE * CAST_RANGE else BOLT_BIT | BLAST_BIT)
        out[i] = named
        some |= named
    return some


@compiled
def _allow(named: np.ndarray, primary: int, out: np.ndarray) -> None:
    """Into out bool [rows] which of them a primary may name, by named uint8 [rows]."""
    bit = np.uint8(1 << primary)
    for i in range(len(out)):
        out[i] = (named[i] & bit) != 0


@compiled
def legal_actions(
    units: np.ndarray, heroes: np.ndarray, shown: np.ndarray, age: np.ndarray, primary: np.ndarray, unit: np.ndarray
) -> None:
    """What each seat may choose, into primary bool [n, P, 8] and unit bool [n, P, 8, rows], which each primary may
    name: all, where it names none. Who lacks nothing does not go home.
    """
    n, P, rows = len(unit), unit.shape[1], unit.shape[3]
    hurt_by, named = np.empty(units.shape[1], np.uint8), np.empty(rows, np.uint8)
    for m in range(n):
        _hurt_by(units[m], P // 2, hurt_by)
        for p in range(P):
            some = _legal_units(units[m], heroes[m], shown[m, p], age[m], p, hurt_by, named)
            alive = units[m, unit_of(units[m], P // 2, p), HEALTH] > 0
            unit[m, p] = True
            for k in range(8):
                able = k != CAST_HEAL or can_use(heroes[m], p, k, age[m] + 1)
                if k == ATTACK or k == CAST_BOLT or k == CAST_BLAST or k == FOLLOW:  # noqa: SIM109
                    able = (some >> k) & 1 == 1
                    if able:
                        _allow(named, k, unit[m, p, k])
                elif k == GO_HOME:
                    able = lacks(units[m], heroes[m], p)
                primary[m, p, k] = k == 0 or (alive and able)

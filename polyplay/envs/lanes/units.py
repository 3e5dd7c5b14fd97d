"""Questions about units, compiled: `units` int32 [U, 6] and `heroes` int32 [P, 13] of one match, see LaneWorld.arrays.
Imports no torch.
"""

from __future__ import annotations

import math

import numpy as np

from polyplay.common.compiled import cached_njit
from polyplay.envs.lanes.world import (
    BLAST_MANA,
    BOLT,
    BOLT_MANA,
    CAST_BLAST,
    CAST_BOLT,
    CAST_RANGE,
    CORE_X,
    FIRST_LANE,
    GOLD,
    GOLD_A_HIT,
    HEAL_MANA,
    HEALTH,
    HIT_A_LEVEL,
    HIT_AT_FIRST,
    HOME,
    LANE_APART,
    LEVEL,
    MANA,
    MANA_A_LEVEL,
    MANA_AT_FIRST,
    MOST,
    SLOTS,
    WIDTH,
    X,
    Y,
)

compiled = cached_njit()


@compiled
def count_lanes(units: np.ndarray, team: int) -> int:
    return (len(units) // 2 - team - 1) // (SLOTS + 2)


@compiled
def middle(lanes: int) -> int:
    """y of the cores."""
    return FIRST_LANE + LANE_APART * (lanes - 1) // 2


@compiled
def unit_of(units: np.ndarray, team: int, p: int) -> int:
    """The unit of seat p."""
    return p if p < team else len(units) // 2 + p - team


@compiled
def forward(side: int, x: int) -> int:
    """x as seen from a side's own edge; and back again."""
    return x if side == 0 else WIDTH - x


@compiled
def apart(units: np.ndarray, u: int, v: int) -> int:
    """The squared distance of two units."""
    dx, dy = units[v, X] - units[u, X], units[v, Y] - units[u, Y]  # Numba makes them int64
    return int(dx * dx + dy * dy)


@compiled
def is_open(units: np.ndarray, team: int, u: int) -> bool:
    """Whether a unit can be hurt: an inner tower after the outer one of its lane has fallen, a core after any inner."""
    half = len(units) // 2
    first = half if u >= half else 0
    lanes = count_lanes(units, team)
    building = u - first - team - SLOTS * lanes
    if building < 0 or (building % 2 == 0 and building < 2 * lanes):
        return True
    if building < 2 * lanes:
        return bool(units[u - 1, HEALTH] <= 0)
    opened = False
    for lane in range(lanes):
        opened = opened or units[u - 1 - 2 * lane, HEALTH] <= 0
    return bool(opened)


@compiled
def can_attack(units: np.ndarray, team: int, p: int, v: int) -> bool:
    """Whether seat p can hit v, were it near enough; -1: no unit."""
    theirs = (v >= len(units) // 2) == (p < team)
    return bool(v >= 0 and theirs and units[v, HEALTH] > 0 and is_open(units, team, v))


@compiled
def can_cast_at(units: np.ndarray, team: int, p: int, v: int) -> bool:
    """Whether seat p can use bolt or blast at v: an enemy that is near, but no building."""
    half = len(units) // 2
    theirs = v >= 0 and (v >= half) == (p < team)
    building = (v - half if v >= half else v) >= half - 1 - 2 * count_lanes(units, team)
    near = apart(units, unit_of(units, team, p), v) <= CAST_RANGE * CAST_RANGE
    return bool(theirs and not building and units[v, HEALTH] > 0 and near)


@compiled
def can_use(heroes: np.ndarray, p: int, primary: int, age: int) -> bool:
    """Whether seat p can use the ability of a primary action at that age."""
    mana = BOLT_MANA if primary == CAST_BOLT else BLAST_MANA if primary == CAST_BLAST else HEAL_MANA
    return bool(heroes[p, primary - CAST_BOLT + BOLT] <= age and heroes[p, MANA] >= mana)


@compiled
def at_home(units: np.ndarray, team: int, u: int) -> bool:
    side = 1 if u >= len(units) // 2 else 0
    x, y = forward(side, units[u, X]), units[u, Y] - middle(count_lanes(units, team))
    return bool(abs(x - CORE_X) <= HOME and abs(y) <= HOME)


@compiled
def most_mana(heroes: np.ndarray, p: int) -> int:
    return MANA_AT_FIRST + MANA_A_LEVEL * heroes[p, LEVEL]


@compiled
def lacks(units: np.ndarray, heroes: np.ndarray, p: int) -> bool:
    """Whether seat p has less than all of its health and mana."""
    u = unit_of(units, len(heroes) // 2, p)
    return bool(units[u, HEALTH] < units[u, MOST] or heroes[p, MANA] < most_mana(heroes, p))


@compiled
def strength(heroes: np.ndarray, p: int) -> int:
    """What a hit takes."""
    return HIT_AT_FIRST + HIT_A_LEVEL * heroes[p, LEVEL] + heroes[p, GOLD] // GOLD_A_HIT


@compiled
def hurt(units: np.ndarray, killer: np.ndarray, u: int, damage: int, by: int) -> None:
    """by: the seat that it counts for; -1: nobody's."""
    if 0 < units[u, HEALTH] <= damage:
        killer[u] = by
    units[u, HEALTH] -= damage


@compiled
def go(units: np.ndarray, u: int, dx: int, dy: int, speed: int) -> None:
    """So far towards a point that is dx and dy away."""
    far = math.sqrt(dx * dx + dy * dy)
    if far > speed:
        dx, dy = int(dx * speed / far), int(dy * speed / far)  # towards 0, so that both sides go alike
    units[u, X] += dx
    units[u, Y] += dy

"""What heroes of the lane game see, and what they may do, compiled. Imports no torch.

A side sees all that is within sight of one of its units that are alive. Nothing about other units is in an observation:
their rows are 0. Each side sees the map from its own base, so both see the same where they stand alike.
"""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import cached_njit
from polyplay.envs.lanes.units import (
    apart,
    can_attack,
    can_bolt,
    forward,
    is_open,
    is_ready,
    lacks,
    lanes_of,
    listed,
    middle,
    most_mana,
    strength,
    unit_of,
)
from polyplay.envs.lanes.world import (
    ATTACK,
    BLAST,
    BLAST_WAIT,
    BOLT,
    BOLT_WAIT,
    CAST_BLAST,
    CAST_BOLT,
    CAST_HEAL,
    CREEP_HEALTH,
    CREEP_SIGHT,
    DELAY,
    DELAYS,
    EXPERIENCE,
    FOLLOW,
    GO_HOME,
    GOLD,
    HEAL,
    HEAL_WAIT,
    HEALTH,
    LEVEL,
    MANA,
    MOST,
    NEAR,
    OFFSET,
    OFFSETS,
    PRIMARY,
    READY,
    RELOAD,
    RETURN_A_LEVEL,
    RETURN_TIME,
    RETURNS,
    SIGHT,
    SLOTS,
    TO_LEVEL,
    TOP_LEVEL,
    WIDTH,
    X,
    Y,
)

compiled = cached_njit()


@compiled
def _see(units: np.ndarray, team: int, seen: np.ndarray) -> None:
    """Which units the other side sees, into seen bool [U]."""
    half = len(units) // 2
    creeps = SLOTS * lanes_of(units, team)
    for u in range(len(units)):
        seen[u] = False
        if units[u, HEALTH] <= 0:
            continue
        first = half if u < half else 0
        for v in range(first, first + half):
            reach = CREEP_SIGHT if team <= v - first < team + creeps else SIGHT
            if apart(units, u, v) <= reach * reach and units[v, HEALTH] > 0:
                seen[u] = True
                break


@compiled
def _list_creeps(units: np.ndarray, team: int, seen: np.ndarray, p: int, keys: np.ndarray, shown: np.ndarray) -> None:
    """The nearest creeps that seat p's side sees, into shown int16 [C]; of two as near the own one, the lower slot."""
    half, own, u = len(units) // 2, p // team, unit_of(units, team, p)
    creeps, n = SLOTS * lanes_of(units, team), 0
    for k in range(2 * creeps):
        side = own if k < creeps else 1 - own
        v = side * half + team + k % creeps
        if units[v, HEALTH] <= 0 or (side != own and not seen[v]):
            continue
        key, i = apart(units, u, v) * 64 + k, n
        while i > 0 and keys[i - 1] > key:
            keys[i] = keys[i - 1]
            i -= 1
        keys[i] = key
        n += 1
    for i in range(len(shown)):
        k = keys[i] % 64 if i < n else 0
        side = own if k < creeps else 1 - own
        shown[i] = side * half + team + k % creeps if i < n else -1


@compiled
def look(units: np.ndarray, heroes: np.ndarray, seen: np.ndarray, shown: np.ndarray) -> None:
    """LaneWorld.arrays `seen` and `shown` of each match, by the others."""
    team, keys = heroes.shape[1] // 2, np.empty(units.shape[1], np.int64)
    for m in range(len(units)):
        _see(units[m], team, seen[m])
        for p in range(2 * team):
            _list_creeps(units[m], team, seen[m], p, keys, shown[m, p])


# --------------------------------------------------------------------------------------------- observations


@compiled
def _left(until: int, age: int) -> int:
    """Steps until something is possible, for an action that begins now."""
    return max(until - age - 1, 0)


@compiled
def _show_own(units: np.ndarray, heroes: np.ndarray, p: int, age: int, length: int, out: np.ndarray) -> None:
    """world.OWN."""
    team, h = len(heroes) // 2, heroes[p]
    u, level, y = unit_of(units, team, p), h[LEVEL], middle(lanes_of(units, team))
    out[0] = 1.0 if units[u, HEALTH] > 0 else 0.0
    out[1] = 2.0 * forward(p // team, units[u, X]) / WIDTH - 1.0
    out[2] = units[u, Y] / y - 1.0
    out[3], out[4] = units[u, HEALTH] / units[u, MOST], units[u, MOST] / 1000.0
    out[5], out[6] = h[MANA] / most_mana(heroes, p), level / TOP_LEVEL
    out[7] = (h[EXPERIENCE] - TO_LEVEL * level * (level - 1)) / (2.0 * TO_LEVEL * level) if level < TOP_LEVEL else 1.0
    out[8], out[9] = h[GOLD] / 2000.0, strength(heroes, p) / 100.0
    out[10], out[11] = _left(units[u, READY], age) / RELOAD, _left(h[BOLT], age) / BOLT_WAIT
    out[12], out[13] = _left(h[BLAST], age) / BLAST_WAIT, _left(h[HEAL], age) / HEAL_WAIT
    out[14] = _left(h[RETURNS], age) / (RETURN_TIME + RETURN_A_LEVEL * TOP_LEVEL)
    out[15], out[16] = age / length, (p % team) / 4.0


@compiled
def _show_action(hero: np.ndarray, out: np.ndarray) -> None:
    """The last action: primary as one-hot, offset, delay."""
    out[hero[PRIMARY]] = 1.0
    out[8] = (hero[OFFSET] % OFFSETS - OFFSETS // 2) / (OFFSETS // 2)
    out[9] = (hero[OFFSET] // OFFSETS - OFFSETS // 2) / (OFFSETS // 2)
    out[10] = hero[DELAY] / (DELAYS - 1)


@compiled
def _show_at(units: np.ndarray, u: int, v: int, side: int, out: np.ndarray) -> None:
    """That it is there, and how far ahead of u and aside."""
    out[0] = 1.0
    out[1] = (units[v, X] - units[u, X]) * (1 - 2 * side) / NEAR
    out[2] = (units[v, Y] - units[u, Y]) / NEAR


@compiled
def _show_hero(units: np.ndarray, heroes: np.ndarray, u: int, v: int, side: int, age: int, out: np.ndarray) -> None:
    """world.HERO of unit v."""
    half, team = len(units) // 2, len(heroes) // 2
    q = v // half * team + v % half
    _show_at(units, u, v, side, out)
    out[3] = 2.0 * forward(side, units[v, X]) / WIDTH - 1.0
    out[4] = units[v, Y] / middle(lanes_of(units, team)) - 1.0
    out[5], out[6] = units[v, HEALTH] / units[v, MOST], units[v, MOST] / 1000.0
    out[7], out[8] = heroes[q, MANA] / most_mana(heroes, q), heroes[q, LEVEL] / TOP_LEVEL
    out[9], out[10] = strength(heroes, q) / 100.0, _left(units[v, READY], age) / RELOAD


@compiled
def _show_creep(units: np.ndarray, u: int, v: int, side: int, hit: int, out: np.ndarray) -> None:
    """world.CREEP; hit: what a hit of the hero takes."""
    own = v // (len(units) // 2) == side
    _show_at(units, u, v, side, out)
    out[3], out[4] = units[v, HEALTH] / CREEP_HEALTH, 1.0 if own else -1.0
    out[5] = 1.0 if not own and units[v, HEALTH] <= hit else 0.0


@compiled
def _show_tower(units: np.ndarray, team: int, u: int, v: int, side: int, out: np.ndarray) -> None:
    """world.TOWER: kind 0 is an outer one, 0.5 an inner one, 1 a core."""
    half = len(units) // 2
    towers = 2 * lanes_of(units, team)
    i = v % half - (half - 1 - towers)
    _show_at(units, u, v, side, out)
    out[3], out[4] = units[v, HEALTH] / units[v, MOST], 1.0 if v // half == side else -1.0
    out[5], out[6] = 1.0 if i == towers else 0.5 * (i % 2), 1.0 if is_open(units, team, v) else 0.0


@compiled
def observe(
    units: np.ndarray,
    heroes: np.ndarray,
    seen: np.ndarray,
    shown: np.ndarray,
    age: np.ndarray,
    length: int,
    own: np.ndarray,
    allies: np.ndarray,
    enemies: np.ndarray,
    creeps: np.ndarray,
    towers: np.ndarray,
    last_action: np.ndarray,
) -> None:
    """Observations of all seats, LaneWorld.obs float32 [n, P, …], which are 0 at first."""
    team, half = heroes.shape[1] // 2, units.shape[1] // 2
    A, C, T = allies.shape[2], creeps.shape[2], towers.shape[2]
    for m in range(len(units)):
        for p in range(2 * team):
            u, side, hit = unit_of(units[m], team, p), p // team, strength(heroes[m], p)
            _show_own(units[m], heroes[m], p, age[m], length, own[m, p])
            _show_action(heroes[m, p], last_action[m, p])
            for i in range(A + team + C + T):
                v = listed(units[m], team, shown[m, p], p, i)
                if v < 0 or units[m, v, HEALTH] <= 0 or (v // half != side and not seen[m, v]):
                    continue
                if i < A:
                    _show_hero(units[m], heroes[m], u, v, side, age[m], allies[m, p, i])
                elif i < A + team:
                    _show_hero(units[m], heroes[m], u, v, side, age[m], enemies[m, p, i - A])
                elif i < A + team + C:
                    _show_creep(units[m], u, v, side, hit, creeps[m, p, i - A - team])
                else:
                    _show_tower(units[m], team, u, v, side, towers[m, p, i - A - team - C])


# ------------------------------------------------------------------------------------------------- what is legal


@compiled
def legal_units(
    units: np.ndarray, heroes: np.ndarray, seen: np.ndarray, shown: np.ndarray, age: int, p: int, out: np.ndarray
) -> None:
    """For each primary of seat p the rows of units that it may name, into out bool [8, rows]; shown int16 [C]. None for
    a primary that names no unit, or is illegal; those whose hero is dead are all illegal.
    """
    team, half, bolt = len(heroes) // 2, len(units) // 2, np.int64(CAST_BOLT)
    alive, bolts = units[unit_of(units, team, p), HEALTH] > 0, is_ready(heroes, p, bolt, age + 1)
    for i in range(out.shape[1]):
        v = listed(units, team, shown, p, i)
        known = alive and v >= 0 and units[v, HEALTH] > 0 and (v // half == p // team or seen[v])
        for primary in range(8):
            out[primary, i] = False
        out[FOLLOW, i] = known
        out[ATTACK, i] = known and can_attack(units, team, p, v)
        out[CAST_BOLT, i] = known and bolts and can_bolt(units, team, p, v)


@compiled
def legal_actions(
    units: np.ndarray,
    heroes: np.ndarray,
    seen: np.ndarray,
    shown: np.ndarray,
    age: np.ndarray,
    primary: np.ndarray,
    unit: np.ndarray,
) -> None:
    """What each seat may choose, into primary bool [n, P, 8] and unit bool [n, P, rows]: any that a legal primary may
    name; all, where none names one. Who lacks neither health nor mana does not go home.
    """
    n, P, rows = unit.shape
    named = np.empty((8, rows), np.bool_)
    for m in range(n):
        for p in range(P):
            legal_units(units[m], heroes[m], seen[m], shown[m, p], age[m], p, named)
            alive = units[m, unit_of(units[m], P // 2, p), HEALTH] > 0
            for k in range(8):
                able = k < CAST_BLAST or k > CAST_HEAL or is_ready(heroes[m], p, k, age[m] + 1)
                able = able and (k != GO_HOME or lacks(units[m], heroes[m], p))
                primary[m, p, k] = k == 0 or (alive and able)
                if k == ATTACK or k == CAST_BOLT or k == FOLLOW:  # noqa: SIM109
                    primary[m, p, k] = False
                    for i in range(rows):
                        primary[m, p, k] |= named[k, i]
            for i in range(rows):
                unit[m, p, i] = named[FOLLOW, i] or not primary[m, p, FOLLOW]

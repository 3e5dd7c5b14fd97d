"""The rules of the lane game, compiled, for many matches at once. Imports no torch.

A step, in this order: a wave comes; heroes return and recover; creeps and towers choose targets; all heal, then all
hit, then all move, each by what was so before; last, who has no health left dies.
"""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import cached_njit
from polyplay.envs.lanes.creeps import act_creeps, choose_targets, send_wave
from polyplay.envs.lanes.heroes import act_heroes, place, recover
from polyplay.envs.lanes.units import (
    apart,
    count_lanes,
    forward,
    middle,
    most_mana,
    unit_of,
)
from polyplay.envs.lanes.world import (
    AIM,
    CORE_HEALTH,
    CORE_X,
    CREEP_EXPERIENCE,
    CREEP_GOLD,
    EXPERIENCE,
    FIRST_LANE,
    GOLD,
    HEALTH,
    HEALTH_A_LEVEL,
    HERO_EXPERIENCE,
    HERO_EXPERIENCE_A_LEVEL,
    HERO_GOLD,
    INNER_X,
    LANE_APART,
    LEARNS,
    LEVEL,
    LOOKS,
    MANA,
    MANA_A_LEVEL,
    MOST,
    OUTER_X,
    PRIMARY,
    RETURN_A_LEVEL,
    RETURN_TIME,
    RETURNS,
    SLOTS,
    TARGET,
    TO_LEVEL,
    TOP_LEVEL,
    TOWER_GOLD,
    TOWER_HEALTH,
    UNIT,
    WAVE_TIME,
    X,
    Y,
)

# columns of events, see rewards.EVENTS
WIN, DEATH, LEARNT, EARNED, HEALED, CHARGED, KILLED_HERO, LAST_HIT, OUTER_TOWER, INNER_TOWER, CORE = range(11)

compiled = cached_njit()


@compiled
def _learn(units: np.ndarray, heroes: np.ndarray, u: int, side: int, amount: int) -> None:
    """The heroes of a side that are alive and near unit u share experience."""
    team = len(heroes) // 2
    near = 0
    for p in range(side * team, side * team + team):
        v = unit_of(units, team, p)
        near += 1 if units[v, HEALTH] > 0 and apart(units, u, v) <= LEARNS * LEARNS else 0
    for p in range(side * team, side * team + team):
        v = unit_of(units, team, p)
        if units[v, HEALTH] <= 0 or apart(units, u, v) > LEARNS * LEARNS:
            continue
        heroes[p, EXPERIENCE] += amount // near
        while heroes[p, LEVEL] < TOP_LEVEL:
            if heroes[p, EXPERIENCE] < TO_LEVEL * heroes[p, LEVEL] * (heroes[p, LEVEL] + 1):
                break
            heroes[p, LEVEL] += 1
            heroes[p, MANA] += MANA_A_LEVEL
            units[v, MOST] += HEALTH_A_LEVEL
            units[v, HEALTH] += HEALTH_A_LEVEL


@compiled
def _die(units: np.ndarray, heroes: np.ndarray, events: np.ndarray, u: int, by: int, age: int) -> bool:
    """What follows from the death of u; whether it was a core. by: the seat that killed it, or -1."""
    team, half = len(heroes) // 2, len(units) // 2
    side, gold, learnt = (1 if u >= half else 0), 0, 0
    kind = u - side * half
    if kind < team:
        level = heroes[side * team + kind, LEVEL]
        events[side * team + kind, DEATH] += 1.0
        heroes[side * team + kind, RETURNS] = age + RETURN_TIME + RETURN_A_LEVEL * level
        gold, learnt = HERO_GOLD, HERO_EXPERIENCE + HERO_EXPERIENCE_A_LEVEL * level
    elif kind < team + SLOTS * count_lanes(units, team):
        gold, learnt = CREEP_GOLD, CREEP_EXPERIENCE
    for p in range((1 - side) * team, (2 - side) * team):
        events[p, WIN] += 1.0 if kind == half - 1 else 0.0
        heroes[p, GOLD] += TOWER_GOLD if gold == 0 and kind < half - 1 else 0
    if by >= 0 and gold > 0:
        events[by, KILLED_HERO if kind < team else LAST_HIT] += 1.0
        heroes[by, GOLD] += gold
    if learnt:
        _learn(units, heroes, u, 1 - side, learnt)
    return kind == half - 1


@compiled
def _fall(
    was: np.ndarray, units: np.ndarray, heroes: np.ndarray, killer: np.ndarray, events: np.ndarray, age: int
) -> bool:
    """All who have died in this step; whether a core has."""
    over = False
    for u in range(len(units)):
        if was[u, HEALTH] > 0 and units[u, HEALTH] <= 0:
            over = _die(units, heroes, events, u, killer[u], age) or over
    for u in range(len(units)):
        units[u, HEALTH] = max(units[u, HEALTH], 0)
    return over


@compiled
def worth_of_health(part: float) -> float:
    """(x + 1 - (1 - x)⁴) / 2: the first tenth of a hero's health is worth more than the last (Berner et al. 2019)."""
    lost = (1.0 - part) * (1.0 - part)
    return (part + 1.0 - lost * lost) / 2.0


@compiled
def _count(units: np.ndarray, heroes: np.ndarray, events: np.ndarray, sign: float) -> None:
    """What each seat has: taken off before steps and added after them, it is what they have brought."""
    team, half = len(heroes) // 2, len(units) // 2
    lanes = count_lanes(units, team)
    for side in range(2):
        outer, inner, first = 0.0, 0.0, (1 - side) * half + team + SLOTS * lanes
        for tower in range(2 * lanes):
            health = units[first + tower, HEALTH]
            fallen = 1.0 if health <= 0 else (1.0 - health / TOWER_HEALTH) * 2.0 / 3.0
            outer, inner = outer + (fallen if tower % 2 == 0 else 0.0), inner + (fallen if tower % 2 else 0.0)
        core = 1.0 - units[first + 2 * lanes, HEALTH] / CORE_HEALTH
        for p in range(side * team, side * team + team):
            u = unit_of(units, team, p)
            events[p, LEARNT] += sign * heroes[p, EXPERIENCE]
            events[p, EARNED] += sign * heroes[p, GOLD]
            events[p, HEALED] += sign * worth_of_health(units[u, HEALTH] / units[u, MOST])
            events[p, CHARGED] += sign * heroes[p, MANA] / most_mana(heroes, p)
            events[p, OUTER_TOWER] += sign * outer
            events[p, INNER_TOWER] += sign * inner
            events[p, CORE] += sign * core


@compiled
def _order(heroes: np.ndarray, shown: np.ndarray, action: np.ndarray) -> None:
    """Write down the actions int64 [P, 4], and which units they name; shown int16 [P, rows]."""
    for p in range(len(heroes)):
        for part in range(4):
            heroes[p, PRIMARY + part] = action[p, part]
        heroes[p, AIM] = shown[p, action[p, UNIT - PRIMARY]]


@compiled
def step_lanes(
    units: np.ndarray,
    heroes: np.ndarray,
    wave: np.ndarray,
    shown: np.ndarray,
    age: np.ndarray,
    action: np.ndarray,
    repeat: int,
    events: np.ndarray,
) -> None:
    """So many steps of each match, in place: LaneWorld.arrays; by action int64 [n, P, 4], into events float64
    [n, P, 11], 0 at first. A match stops when a core has fallen.
    """
    team, killer = heroes.shape[1] // 2, np.empty(units.shape[1], np.int64)
    for m in range(len(units)):
        _order(heroes[m], shown[m], action[m])
        _count(units[m], heroes[m], events[m], -1.0)
        for t in range(repeat):
            age[m] += 1
            if age[m] % WAVE_TIME == 1:
                send_wave(units[m], team, wave[m])
            recover(units[m], heroes[m], age[m])
            if age[m] % LOOKS == 1:
                choose_targets(units[m], team)
            was = units[m].copy()
            act_heroes(was, units[m], heroes[m], killer, t, repeat, age[m])
            act_creeps(was, units[m], team, killer, age[m])
            if _fall(was, units[m], heroes[m], killer, events[m], age[m]):
                break
        _count(units[m], heroes[m], events[m], 1.0)


@compiled
def begin_lanes(units: np.ndarray, heroes: np.ndarray) -> None:
    """All where a match begins; MOST of heroes and their gold are drawn, the rest is new."""
    team, half = heroes.shape[1] // 2, units.shape[1] // 2
    for m in range(len(units)):
        lanes = count_lanes(units[m], team)
        for u in range(2 * half):
            units[m, u, TARGET] = -1
        for p in range(2 * team):
            heroes[m, p, AIM], heroes[m, p, LEVEL] = -1, 1
            place(units[m], heroes[m], p)
        for side in range(2):
            first = side * half + team + SLOTS * lanes
            for u in range(first, first + 2 * lanes + 1):
                lane, inner, core = (u - first) // 2, (u - first) % 2 == 1, u == first + 2 * lanes
                units[m, u, X] = forward(side, CORE_X if core else INNER_X if inner else OUTER_X)
                units[m, u, Y] = middle(lanes) if core else FIRST_LANE + LANE_APART * lane
                units[m, u, HEALTH] = units[m, u, MOST] = CORE_HEALTH if core else TOWER_HEALTH

"""What heroes of the lane game do, compiled. Imports no torch."""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import cached_njit
from polyplay.envs.lanes.units import (
    apart,
    at_home,
    can_attack,
    can_cast_at,
    can_use,
    count_lanes,
    forward,
    go,
    hurt,
    lacks,
    middle,
    most_mana,
    strength,
    unit_of,
)
from polyplay.envs.lanes.world import (
    AIM,
    ATTACK,
    BLAST_DAMAGE,
    BLAST_MANA,
    BLAST_RADIUS,
    BLAST_WAIT,
    BOLT,
    BOLT_DAMAGE,
    BOLT_MANA,
    BOLT_WAIT,
    CAST_BLAST,
    CAST_BOLT,
    CAST_HEAL,
    CELL,
    DELAY,
    FOLLOW,
    GO_HOME,
    HEAL_HEALTH,
    HEAL_MANA,
    HEAL_RADIUS,
    HEAL_WAIT,
    HEALTH,
    HEALTH_BACK,
    HOME_BACK,
    MANA,
    MANA_BACK,
    MOST,
    MOVE,
    NOTHING,
    OFFSET,
    OFFSETS,
    PRIMARY,
    RANGE,
    READY,
    RECOVERY,
    RELOAD,
    RETURNS,
    SLOTS,
    SPAWN_X,
    SPEED,
    SPREAD,
    WIDTH,
    X,
    Y,
)

compiled = cached_njit()


@compiled
def spawn_of(units: np.ndarray, team: int, p: int) -> tuple[int, int]:
    """Where seat p begins."""
    side, y = (1 if p >= team else 0), middle(count_lanes(units, team))
    return forward(side, np.int64(SPAWN_X)), y + (2 * (p - side * team) - team + 1) * SPREAD


@compiled
def place(units: np.ndarray, heroes: np.ndarray, p: int) -> None:
    """Seat p where it begins, as good as new."""
    team = len(heroes) // 2
    u = unit_of(units, team, p)
    units[u, X], units[u, Y] = spawn_of(units, team, p)
    units[u, HEALTH], heroes[p, MANA], heroes[p, RETURNS] = units[u, MOST], most_mana(heroes, p), 0


@compiled
def recover(units: np.ndarray, heroes: np.ndarray, age: int) -> None:
    team = len(heroes) // 2
    for p in range(len(heroes)):
        u = unit_of(units, team, p)
        if units[u, HEALTH] <= 0:
            if age >= heroes[p, RETURNS]:
                place(units, heroes, p)
        elif age % RECOVERY == 0:
            times = HOME_BACK if at_home(units, team, u) else 1
            units[u, HEALTH] = min(units[u, HEALTH] + times * HEALTH_BACK, units[u, MOST])
            heroes[p, MANA] = min(heroes[p, MANA] + times * MANA_BACK, most_mana(heroes, p))


@compiled
def _pay(heroes: np.ndarray, p: int, primary: int, age: int) -> None:
    """For the ability of a primary action."""
    bolt, blast = primary == CAST_BOLT, primary == CAST_BLAST
    heroes[p, MANA] -= BOLT_MANA if bolt else BLAST_MANA if blast else HEAL_MANA
    heroes[p, primary - CAST_BOLT + BOLT] = age + (BOLT_WAIT if bolt else BLAST_WAIT if blast else HEAL_WAIT)


@compiled
def _heal(was: np.ndarray, units: np.ndarray, team: int, p: int) -> None:
    u = unit_of(units, team, p)
    first = 0 if p < team else len(units) // 2
    for v in range(first, first + team):
        if was[v, HEALTH] > 0 and apart(was, u, v) <= HEAL_RADIUS * HEAL_RADIUS:
            units[v, HEALTH] = min(units[v, HEALTH] + HEAL_HEALTH, units[v, MOST])


@compiled
def _blast(was: np.ndarray, units: np.ndarray, team: int, killer: np.ndarray, p: int, v: int) -> None:
    first = len(units) // 2 if p < team else 0
    for w in range(first, first + team + SLOTS * count_lanes(units, team)):
        if was[w, HEALTH] > 0 and apart(was, v, w) <= BLAST_RADIUS * BLAST_RADIUS:
            hurt(units, killer, w, np.int64(BLAST_DAMAGE), p)


@compiled
def _hit(
    was: np.ndarray, units: np.ndarray, heroes: np.ndarray, killer: np.ndarray, p: int, able: bool, age: int
) -> None:
    """Whom seat p hits; able: its action has just begun, and is an ability that is ready."""
    team, primary = len(heroes) // 2, np.int64(heroes[p, PRIMARY])
    u, v = unit_of(units, team, p), np.int64(heroes[p, AIM])
    if primary == ATTACK:
        if was[u, READY] <= age and can_attack(was, team, p, v) and apart(was, u, v) <= RANGE * RANGE:
            units[u, READY] = age + RELOAD
            hurt(units, killer, v, strength(heroes, p), p)
    elif able and can_cast_at(was, team, p, v):
        _pay(heroes, p, primary, age)
        if primary == CAST_BLAST:
            _blast(was, units, team, killer, p, v)
        else:
            hurt(units, killer, v, np.int64(BOLT_DAMAGE), p)


@compiled
def _walk(was: np.ndarray, units: np.ndarray, heroes: np.ndarray, p: int) -> None:
    """Where seat p goes."""
    team = len(heroes) // 2
    u, v, primary = unit_of(units, team, p), np.int64(heroes[p, AIM]), heroes[p, PRIMARY]
    if primary == MOVE:
        ahead, aside = heroes[p, OFFSET] % OFFSETS - OFFSETS // 2, heroes[p, OFFSET] // OFFSETS - OFFSETS // 2
        go(units, u, (ahead if p < team else -ahead) * CELL, aside * CELL, SPEED)
    elif primary == GO_HOME and lacks(was, heroes, p):
        x, y = spawn_of(units, team, p)
        go(units, u, x - was[u, X], y - was[u, Y], SPEED)
    elif v >= 0 and was[v, HEALTH] > 0:
        chases = primary == ATTACK and can_attack(was, team, p, v) and apart(was, u, v) > RANGE * RANGE
        if chases or primary == FOLLOW:
            go(units, u, was[v, X] - was[u, X], was[v, Y] - was[u, Y], SPEED)
    units[u, X] = min(max(units[u, X], 0), WIDTH)
    units[u, Y] = min(max(units[u, Y], 0), 2 * middle(count_lanes(units, team)))


@compiled
def act_heroes(
    was: np.ndarray, units: np.ndarray, heroes: np.ndarray, killer: np.ndarray, t: int, repeat: int, age: int
) -> None:
    """All, in step t of `repeat` for which actions are held: first they heal, then they hit, then they move."""
    team = len(heroes) // 2
    for stage in range(3):
        for p in range(len(heroes)):
            delay, primary = min(heroes[p, DELAY], repeat - 1), np.int64(heroes[p, PRIMARY])
            if primary == NOTHING or t < delay or was[unit_of(units, team, p), HEALTH] <= 0:
                continue
            casts = CAST_BOLT <= primary <= CAST_HEAL
            if stage == 2:
                if not casts:
                    _walk(was, units, heroes, p)
                continue
            able = casts and t == delay and can_use(heroes, p, primary, age)
            if stage == 1 and (primary == ATTACK or able) and primary != CAST_HEAL:
                _hit(was, units, heroes, killer, p, able, age)
            elif stage == 0 and primary == CAST_HEAL and able:
                _pay(heroes, p, primary, age)
                _heal(was, units, team, p)

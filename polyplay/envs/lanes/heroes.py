"""What heroes of the lane game do, compiled. Imports no torch."""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import cached_njit
from polyplay.envs.lanes.units import (
    at_home,
    can_attack,
    can_bolt,
    forward,
    go,
    hurt,
    is_ready,
    lacks,
    lanes_of,
    middle,
    most_mana,
    strength,
    unit_of,
    within,
)
from polyplay.envs.lanes.world import (
    AIM,
    ATTACK,
    BLAST,
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
    HEAL,
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
def place(units: np.ndarray, heroes: np.ndarray, p: int) -> None:
    """Seat p where it begins, as good as new."""
    team = len(heroes) // 2
    u = unit_of(units, team, p)
    units[u, X] = forward(p // team, SPAWN_X)
    units[u, Y] = middle(lanes_of(units, team)) + (2 * (p % team) - team + 1) * SPREAD
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
def offset_of(heroes: np.ndarray, p: int) -> tuple[int, int]:
    """Where the offset of seat p's action leads from it, in x and y."""
    ahead, aside = heroes[p, OFFSET] % OFFSETS - OFFSETS // 2, heroes[p, OFFSET] // OFFSETS - OFFSETS // 2
    return (ahead if p < len(heroes) // 2 else -ahead) * CELL, aside * CELL


@compiled
def _pay(heroes: np.ndarray, p: int, ability: int, mana: int, wait: int, age: int) -> None:
    heroes[p, MANA] -= mana
    heroes[p, ability] = age + wait


@compiled
def _heal(was: np.ndarray, units: np.ndarray, heroes: np.ndarray, p: int, age: int) -> None:
    team = len(heroes) // 2
    u = unit_of(units, team, p)
    if is_ready(heroes, p, HEAL, HEAL_MANA, age):
        _pay(heroes, p, HEAL, HEAL_MANA, HEAL_WAIT, age)
        for v in range(u - p % team, u - p % team + team):
            if was[v, HEALTH] > 0 and within(was, u, v, HEAL_RADIUS):
                units[v, HEALTH] = min(units[v, HEALTH] + HEAL_HEALTH, units[v, MOST])


@compiled
def _strike(
    was: np.ndarray, units: np.ndarray, heroes: np.ndarray, killer: np.ndarray, p: int, first: bool, age: int
) -> None:
    """What seat p hits; first: its action begins with this step."""
    team, half = len(heroes) // 2, len(units) // 2
    u, v, primary, theirs = unit_of(units, team, p), heroes[p, AIM], heroes[p, PRIMARY], (half if p < team else 0)
    if primary == CAST_BLAST and first and is_ready(heroes, p, BLAST, BLAST_MANA, age):
        _pay(heroes, p, BLAST, BLAST_MANA, BLAST_WAIT, age)
        ahead, aside = offset_of(heroes, p)
        x, y = was[u, X] + ahead, was[u, Y] + aside
        for w in range(theirs, theirs + team + SLOTS * lanes_of(units, team)):
            dx, dy = was[w, X] - x, was[w, Y] - y
            if was[w, HEALTH] > 0 and dx * dx + dy * dy <= BLAST_RADIUS * BLAST_RADIUS:
                hurt(units, killer, w, BLAST_DAMAGE, p)
    elif primary == ATTACK and can_attack(was, team, p, v) and was[u, READY] <= age and within(was, u, v, RANGE):
        units[u, READY] = age + RELOAD
        hurt(units, killer, v, strength(heroes, p), p)
    elif primary == CAST_BOLT and first and is_ready(heroes, p, BOLT, BOLT_MANA, age) and can_bolt(was, team, p, v):
        _pay(heroes, p, BOLT, BOLT_MANA, BOLT_WAIT, age)
        hurt(units, killer, v, BOLT_DAMAGE, p)


@compiled
def _walk(was: np.ndarray, units: np.ndarray, heroes: np.ndarray, p: int) -> None:
    """Where seat p goes."""
    team = len(heroes) // 2
    u, v, primary, side = unit_of(units, team, p), heroes[p, AIM], heroes[p, PRIMARY], p // team
    if primary == MOVE:
        dx, dy = offset_of(heroes, p)
        go(units, u, dx, dy, SPEED)
    elif primary == GO_HOME and lacks(was, heroes, p):
        lanes = lanes_of(units, team)
        y = middle(lanes) + (2 * (p % team) - team + 1) * SPREAD
        go(units, u, forward(side, SPAWN_X) - was[u, X], y - was[u, Y], SPEED)
    elif v >= 0 and was[v, HEALTH] > 0:
        chases = primary == ATTACK and can_attack(was, team, p, v) and not within(was, u, v, RANGE)
        if chases or primary == FOLLOW:
            go(units, u, was[v, X] - was[u, X], was[v, Y] - was[u, Y], SPEED)
    units[u, X] = min(max(units[u, X], 0), WIDTH)
    units[u, Y] = min(max(units[u, Y], 0), 2 * middle(lanes_of(units, team)))


@compiled
def act_heroes(
    was: np.ndarray, units: np.ndarray, heroes: np.ndarray, killer: np.ndarray, t: int, repeat: int, age: int
) -> None:
    """All, in step t of `repeat` for which actions are held: first they heal, then they hit, then they move."""
    team = len(heroes) // 2
    for stage in range(3):
        for p in range(len(heroes)):
            delay = min(heroes[p, DELAY], repeat - 1)
            if was[unit_of(units, team, p), HEALTH] <= 0 or t < delay:
                continue
            if stage == 1:
                _strike(was, units, heroes, killer, p, t == delay, age)
            elif stage == 2:
                _walk(was, units, heroes, p)
            elif heroes[p, PRIMARY] == CAST_HEAL and t == delay:
                _heal(was, units, heroes, p, age)

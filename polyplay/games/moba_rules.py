"""The lane game: heroes, creeps, rules, where it begins.

The rules of the lane game, compiled, for many matches at once. Imports no torch.

A step, in this order: a wave comes; heroes return and recover; creeps and towers choose targets; all heal, then all
hit, then all move, each by what was so before; last, who has no health left dies.
"""

from __future__ import annotations

import numpy as np

from polyplay.core.compiled import cached_njit
from polyplay.games.moba_world import (
    AIM,
    ATTACK,
    AWAY,
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
    CORE_HEALTH,
    CORE_X,
    CREEP_EXPERIENCE,
    CREEP_GOLD,
    CREEP_HIT,
    CREEP_NOTICES,
    CREEP_RANGE,
    CREEP_RELOAD,
    CREEP_SPEED,
    DEAD,
    DELAY,
    EXPERIENCE,
    EXPERIENCE_LOT,
    FIRST_LANE,
    FOLLOW,
    GO_HOME,
    GOLD,
    GOLD_LOT,
    HEAL_HEALTH,
    HEAL_MANA,
    HEAL_RADIUS,
    HEAL_WAIT,
    HEALTH,
    HEALTH_A_LEVEL,
    HEALTH_AT_FIRST,
    HEALTH_BACK,
    HERO_EXPERIENCE,
    HERO_EXPERIENCE_A_LEVEL,
    HERO_GOLD,
    HOME_BACK,
    INNER_X,
    LANE_APART,
    LATE,
    LEARNS,
    LEVEL,
    LOOKS,
    LOT,
    MANA,
    MANA_A_LEVEL,
    MANA_AT_FIRST,
    MANA_BACK,
    MOST,
    MOVE,
    NOTHING,
    OFFSET,
    OFFSETS,
    OUTER_X,
    PRIMARY,
    RANGE,
    READY,
    RECOVERY,
    RELOAD,
    RETURN_A_LEVEL,
    RETURN_TIME,
    RETURNS,
    SLOTS,
    SPAWN_X,
    SPEED,
    SPREAD,
    TARGET,
    TO_LEVEL,
    TOP_LEVEL,
    TOWER_GOLD,
    TOWER_HEALTH,
    TOWER_HIT,
    TOWER_RANGE,
    TOWER_RELOAD,
    TURN_X,
    UNEVEN,
    UNIT,
    WAVE,
    WAVE_TIME,
    WIDTH,
    WORN,
    LaneWorld,
    X,
    Y,
    apart,
    at_home,
    can_attack,
    can_cast_at,
    can_use,
    count_lanes,
    forward,
    go,
    hurt,
    is_open,
    lacks,
    middle,
    most_mana,
    strength,
    unit_of,
)
from polyplay.games.toys import Arrays, Draw

# What creeps and towers of the lane game do, compiled. Imports no torch.


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


# What heroes of the lane game do, compiled. Imports no torch.


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


# columns of events, see rewards.EVENTS
WIN, DEATH, LEARNT, EARNED, HEALED, CHARGED, KILLED_HERO, LAST_HIT, OUTER_TOWER, INNER_TOWER, CORE = range(11)


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


# Where matches of the lane game begin, and with `randomise` how unlike each other: as if in the middle of a match, so
# that all of it is learnt from the start on (Berner et al. 2019 vary heroes, lanes and health). Imports no torch.


def start_matches(world: LaneWorld, s: Arrays, draw: Draw) -> None:
    """New matches, in LaneWorld.arrays."""
    units, n = s["units"], len(s["units"])
    for u in heroes_of(world, units):
        units[:, u, MOST] = HEALTH_AT_FIRST * _unlike(world, draw, n)
    for side, lane in np.ndindex(2, world.lanes):
        s["wave"][:, side, lane] = s["wave"][:, side, lane] * _unlike(world, draw, n)
    begin_lanes(units, s["heroes"])
    if world.randomise:
        late = world.randomise * LATE * draw() * (world.length // world.repeat)
        s["age"][:] = late.astype(np.int64) * world.repeat  # matches that begin together do not stay in step
        _grow(world, s, draw)
        _spread(world, s, draw)
        _wear(world, units, draw)
        _meet(world, units, s["wave"], draw)


def heroes_of(world: LaneWorld, units: np.ndarray) -> list[int]:
    """The units of seats, in order."""
    half = units.shape[1] // 2
    return [*range(world.team), *range(half, half + world.team)]


def _unlike(world: LaneWorld, draw: Draw, n: int) -> np.ndarray:
    """By what something is more or less in n matches."""
    return 1.0 + LOT * world.randomise * (2.0 * draw() - 1.0) if world.randomise else np.ones(n)


def _grow(world: LaneWorld, s: Arrays, draw: Draw) -> None:
    """Experience and gold: one side may have much more of it than the other."""
    units, heroes, ahead = s["units"], s["heroes"], [world.randomise * draw() for _ in range(2)]
    for p, u in enumerate(heroes_of(world, units)):
        side = p // world.team
        experience = (EXPERIENCE_LOT * ahead[side] * draw()).astype(np.int64)
        level = ((1.0 + np.sqrt(1.0 + 4.0 * experience / TO_LEVEL)) / 2.0).astype(np.int64)
        heroes[:, p, EXPERIENCE], heroes[:, p, LEVEL] = experience, level
        heroes[:, p, GOLD] = GOLD_LOT * ahead[side] * draw()
        heroes[:, p, MANA] = MANA_AT_FIRST + MANA_A_LEVEL * level
        units[:, u, MOST] += HEALTH_A_LEVEL * (level - 1).astype(np.int32)
        units[:, u, HEALTH] = units[:, u, MOST]


def _spread(world: LaneWorld, s: Arrays, draw: Draw) -> None:
    """Heroes begin anywhere on their way to the other core; some are dead and return later."""
    units, chance = s["units"], world.randomise
    for p, u in enumerate(heroes_of(world, units)):
        x = SPAWN_X + (chance * draw() * (WIDTH - CORE_X - SPAWN_X)).astype(np.int64)
        lane = (draw() * world.lanes).astype(np.int64)
        y = np.where(x > TURN_X, FIRST_LANE + LANE_APART * lane, units[:, u, Y])
        units[:, u, X] = x if p < world.team else WIDTH - x
        units[:, u, Y] = np.where(x > WIDTH - TURN_X, middle(world.lanes), y)
        dead, away = draw() < DEAD * chance, (AWAY * draw()).astype(np.int64)
        units[:, u, HEALTH] = np.where(dead, 0, units[:, u, HEALTH])
        s["heroes"][:, p, RETURNS] = np.where(dead, s["age"] + 1 + away, 0)


def _wear(world: LaneWorld, units: np.ndarray, draw: Draw) -> None:
    """Some of the buildings' health is gone, in each lane from the outer one on; one side has a little to catch up."""
    half, both = units.shape[1] // 2, [WORN * draw() for _ in range(world.lanes)]
    for side in range(2):
        first, gone = side * half + world.team + SLOTS * world.lanes, np.zeros(len(units))
        for lane in range(world.lanes):
            lost = world.randomise * (both[lane] + UNEVEN * draw())
            gone = np.maximum(gone, lost)
            for tower in range(2):
                left = np.ceil(TOWER_HEALTH * np.clip(1.0 + tower - lost, 0.0, 1.0))
                units[:, first + 2 * lane + tower, HEALTH] = left
        units[:, first + 2 * world.lanes, HEALTH] = np.ceil(CORE_HEALTH * np.clip(3.0 - gone, 0.0, 1.0))


def _meet(world: LaneWorld, units: np.ndarray, wave: np.ndarray, draw: Draw) -> None:
    """In each lane a wave of each side, face to face somewhere between the outer towers."""
    half = units.shape[1] // 2
    for lane in range(world.lanes):
        front = WIDTH // 2 + (world.randomise * (draw() - 0.5) * (WIDTH - 2 * OUTER_X)).astype(np.int64)
        for side, k in np.ndindex(2, WAVE):
            u, behind = side * half + world.team + SLOTS * lane + k, CREEP_RANGE // 2 + k * SPREAD
            units[:, u, X] = front + (behind if side else -behind)
            units[:, u, Y] = FIRST_LANE + LANE_APART * lane
            units[:, u, HEALTH] = units[:, u, MOST] = wave[:, side, lane]

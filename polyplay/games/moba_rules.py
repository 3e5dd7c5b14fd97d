"""The lane game: rules, compiled for many matches at once, and the starts of matches.

A step has four stages. First, new creeps come, heroes return and recover, and creeps and towers choose targets. Then
heroes heal, hit, and move, in this order. Then creeps and towers act. Then units without health die. All units see the
state after the first stage, not the effects of other units' actions in the same step.
"""

from __future__ import annotations

import numpy as np

from polyplay.core.compiled import compiled
from polyplay.games import moba_world as w
from polyplay.games.moba_world import LaneWorld
from polyplay.games.toys import Arrays, Draw


@compiled
def send_wave(units: np.ndarray, team: int, wave: np.ndarray) -> None:
    """Add new creeps at each core, for each lane. `wave`: full health of the creeps, int32 [2, lanes]."""
    half, lanes = len(units) // 2, wave.shape[1]
    for side in range(2):
        for lane in range(lanes):
            new, first = 0, side * half + team + w.SLOTS * lane
            for u in range(first, first + w.SLOTS):
                if units[u, w.HEALTH] <= 0 and new < w.WAVE:
                    units[u, w.X] = w.forward(side, w.CORE_X - new * w.SPREAD)
                    units[u, w.Y], units[u, w.READY], units[u, w.TARGET] = w.middle(lanes), 0, -1
                    units[u, w.HEALTH] = units[u, w.MOST] = wave[side, lane]
                    new += 1


@compiled
def _nearest(units: np.ndarray, u: int, targets: np.ndarray, first: int, last: int, reach: int) -> int:
    """Return the unit nearest to unit `u`, or -1 if none is within `reach`. The candidates are targets[first:last],
    with rows (x, y, unit).
    """
    best, least, x, y = -1, reach * reach + 1, np.int64(units[u, w.X]), np.int64(units[u, w.Y])
    for k in range(first, last):
        dx, dy = targets[k, 0] - x, targets[k, 1] - y
        far = dx * dx + dy * dy
        if far < least:
            best, least = targets[k, 2], far
    return best


@compiled
def choose_targets(units: np.ndarray, team: int) -> None:
    """Let creeps target the nearest enemy, and towers the nearest creep. If no creep is near, towers target heroes."""
    half, targets = len(units) // 2, np.empty((len(units), 3), np.int64)
    creeps = team + w.SLOTS * w.count_lanes(units, team)
    for own in (0, half):
        n = heroes = all_creeps = np.int64(0)
        for v in range(half - own, 2 * half - own):
            if units[v, w.HEALTH] > 0 and w.is_open(units, team, v):
                targets[n, 0], targets[n, 1], targets[n, 2] = units[v, w.X], units[v, w.Y], v
                n += 1
            heroes = n if v < half - own + team else heroes
            all_creeps = n if v < half - own + creeps else all_creeps
        for u in range(own + team, own + half - 1):
            if units[u, w.HEALTH] > 0:
                creep = u < own + creeps
                first, last, reach = (0, n, w.CREEP_NOTICES) if creep else (heroes, all_creeps, w.TOWER_RANGE)
                v = _nearest(units, u, targets, first, last, reach)
                if v < 0 and not creep:
                    v = _nearest(units, u, targets, first - heroes, heroes, reach)
                units[u, w.TARGET] = v


@compiled
def _march(was: np.ndarray, units: np.ndarray, u: int, side: int, lane: int, lanes: int) -> None:
    """Move a creep without a target along its lane."""
    x = w.forward(side, was[u, w.X])
    to_x, to_y = w.WIDTH - w.CORE_X, w.middle(lanes)
    if x < w.WIDTH - w.TURN_X:
        to_x, to_y = (w.TURN_X if x < w.TURN_X else w.WIDTH - w.TURN_X), w.FIRST_LANE + w.LANE_APART * lane
    w.go(units, u, w.forward(side, to_x) - was[u, w.X], to_y - was[u, w.Y], w.CREEP_SPEED)


@compiled
def act_creeps(was: np.ndarray, units: np.ndarray, team: int, killer: np.ndarray, age: int) -> None:
    half, lanes = len(units) // 2, w.count_lanes(units, team)
    creeps = w.SLOTS * lanes
    for u in range(team, 2 * half - 1):
        side = 1 if u >= half else 0
        kind = u - side * half - team
        if kind < 0 or u == half - 1 or was[u, w.HEALTH] <= 0:
            continue
        v: int = np.int64(was[u, w.TARGET])  # type: ignore[assignment]
        v = v if v >= 0 and was[v, w.HEALTH] > 0 else -1
        reach = w.CREEP_RANGE if kind < creeps else w.TOWER_RANGE
        if v >= 0 and w.gap2(was, u, v) <= reach * reach:
            if was[u, w.READY] <= age:
                units[u, w.READY] = age + (w.CREEP_RELOAD if kind < creeps else w.TOWER_RELOAD)
                w.hurt(units, killer, v, w.CREEP_HIT if kind < creeps else w.TOWER_HIT, np.int64(-1))
        elif kind < creeps and v >= 0:
            w.go(units, u, was[v, w.X] - was[u, w.X], was[v, w.Y] - was[u, w.Y], w.CREEP_SPEED)
        elif kind < creeps:
            _march(was, units, u, side, kind // w.SLOTS, lanes)


@compiled
def spawn_of(units: np.ndarray, team: int, p: int) -> tuple[int, int]:
    """Return the point (x, y) at which the hero of seat `p` starts, and to which it returns after its death."""
    side, y = (1 if p >= team else 0), w.middle(w.count_lanes(units, team))
    return w.forward(side, np.int64(w.SPAWN_X)), y + (2 * (p - side * team) - team + 1) * w.SPREAD


@compiled
def place(units: np.ndarray, heroes: np.ndarray, p: int) -> None:
    """Put seat p's hero at its starting point, with full health and mana."""
    team = len(heroes) // 2
    u = w.unit_of(units, team, p)
    units[u, w.X], units[u, w.Y] = spawn_of(units, team, p)
    units[u, w.HEALTH], heroes[p, w.MANA], heroes[p, w.RETURNS] = units[u, w.MOST], w.most_mana(heroes, p), 0


@compiled
def recover(units: np.ndarray, heroes: np.ndarray, age: int) -> None:
    team = len(heroes) // 2
    for p in range(len(heroes)):
        u = w.unit_of(units, team, p)
        if units[u, w.HEALTH] <= 0:
            if age >= heroes[p, w.RETURNS]:
                place(units, heroes, p)
        elif age % w.RECOVERY == 0:
            times = w.HOME_BACK if w.at_home(units, team, u) else 1
            units[u, w.HEALTH] = min(units[u, w.HEALTH] + times * w.HEALTH_BACK, units[u, w.MOST])
            heroes[p, w.MANA] = min(heroes[p, w.MANA] + times * w.MANA_BACK, w.most_mana(heroes, p))


@compiled
def _pay(heroes: np.ndarray, p: int, primary: int, age: int) -> None:
    bolt, blast = primary == w.CAST_BOLT, primary == w.CAST_BLAST
    heroes[p, w.MANA] -= w.BOLT_MANA if bolt else w.BLAST_MANA if blast else w.HEAL_MANA
    heroes[p, primary - w.CAST_BOLT + w.BOLT] = age + (w.BOLT_WAIT if bolt else w.BLAST_WAIT if blast else w.HEAL_WAIT)


@compiled
def _heal(was: np.ndarray, units: np.ndarray, team: int, p: int) -> None:
    u = w.unit_of(units, team, p)
    first = 0 if p < team else len(units) // 2
    for v in range(first, first + team):
        if was[v, w.HEALTH] > 0 and w.gap2(was, u, v) <= w.HEAL_RADIUS * w.HEAL_RADIUS:
            units[v, w.HEALTH] = min(units[v, w.HEALTH] + w.HEAL_HEALTH, units[v, w.MOST])


@compiled
def _blast(was: np.ndarray, units: np.ndarray, team: int, killer: np.ndarray, p: int, v: int) -> None:
    first = len(units) // 2 if p < team else 0
    for c in range(first, first + team + w.SLOTS * w.count_lanes(units, team)):
        if was[c, w.HEALTH] > 0 and w.gap2(was, v, c) <= w.BLAST_RADIUS * w.BLAST_RADIUS:
            w.hurt(units, killer, c, np.int64(w.BLAST_DAMAGE), p)


@compiled
def _hit(was: np.ndarray, units: np.ndarray, heroes: np.ndarray, killer: np.ndarray, p: int, age: int) -> None:
    """Carry out the attack, bolt or blast of the hero of seat `p`, if the target can be hit."""
    team, primary = len(heroes) // 2, np.int64(heroes[p, w.PRIMARY])
    u, v = w.unit_of(units, team, p), np.int64(heroes[p, w.AIM])
    if primary == w.ATTACK:
        if was[u, w.READY] <= age and w.can_attack(was, team, p, v) and w.gap2(was, u, v) <= w.RANGE * w.RANGE:
            units[u, w.READY] = age + w.RELOAD
            w.hurt(units, killer, v, w.strength(heroes, p), p)
    elif w.can_cast_at(was, team, p, v):
        _pay(heroes, p, primary, age)
        if primary == w.CAST_BLAST:
            _blast(was, units, team, killer, p, v)
        else:
            w.hurt(units, killer, v, np.int64(w.BOLT_DAMAGE), p)


@compiled
def _walk(was: np.ndarray, units: np.ndarray, heroes: np.ndarray, p: int) -> None:
    team = len(heroes) // 2
    u, v, primary = w.unit_of(units, team, p), np.int64(heroes[p, w.AIM]), heroes[p, w.PRIMARY]
    if primary == w.MOVE:
        ahead = heroes[p, w.OFFSET] % w.OFFSETS - w.OFFSETS // 2
        aside = heroes[p, w.OFFSET] // w.OFFSETS - w.OFFSETS // 2
        w.go(units, u, (ahead if p < team else -ahead) * w.CELL, aside * w.CELL, w.SPEED)
    elif primary == w.GO_HOME and w.lacks(was, heroes, p):
        x, y = spawn_of(units, team, p)
        w.go(units, u, x - was[u, w.X], y - was[u, w.Y], w.SPEED)
    elif v >= 0 and was[v, w.HEALTH] > 0:
        chases = primary == w.ATTACK and w.can_attack(was, team, p, v) and w.gap2(was, u, v) > w.RANGE * w.RANGE
        if chases or primary == w.FOLLOW:
            w.go(units, u, was[v, w.X] - was[u, w.X], was[v, w.Y] - was[u, w.Y], w.SPEED)
    units[u, w.X] = min(max(units[u, w.X], 0), w.WIDTH)
    units[u, w.Y] = min(max(units[u, w.Y], 0), 2 * w.middle(w.count_lanes(units, team)))


@compiled
def act_heroes(
    was: np.ndarray, units: np.ndarray, heroes: np.ndarray, killer: np.ndarray, t: int, repeat: int, age: int
) -> None:
    """Let all heroes heal, then all hit, then all move. `t`: number of the step since the action was chosen."""
    team = len(heroes) // 2
    for stage in range(3):
        for p in range(len(heroes)):
            delay, primary = min(heroes[p, w.DELAY], repeat - 1), np.int64(heroes[p, w.PRIMARY])
            if primary == w.NOTHING or t < delay or was[w.unit_of(units, team, p), w.HEALTH] <= 0:
                continue
            casts = w.CAST_BOLT <= primary <= w.CAST_HEAL
            if stage == 2:
                if not casts:
                    _walk(was, units, heroes, p)
                continue
            able = casts and t == delay and w.can_use(heroes, p, primary, age)
            if stage == 1 and (primary == w.ATTACK or able) and primary != w.CAST_HEAL:
                _hit(was, units, heroes, killer, p, age)
            elif stage == 0 and primary == w.CAST_HEAL and able:
                _pay(heroes, p, primary, age)
                _heal(was, units, team, p)


# columns of the array `events`, see moba_views.EVENTS
WIN, DEATH, LEARNT, EARNED, HEALED, CHARGED, KILLED_HERO, LAST_HIT, OUTER_TOWER, INNER_TOWER, CORE = range(11)


@compiled
def _learn(units: np.ndarray, heroes: np.ndarray, u: int, side: int, amount: int) -> None:
    """Divide `amount` of experience among a side's living heroes near unit `u`, and update their levels."""
    team = len(heroes) // 2
    near = 0
    for p in range(side * team, side * team + team):
        v = w.unit_of(units, team, p)
        near += 1 if units[v, w.HEALTH] > 0 and w.gap2(units, u, v) <= w.LEARNS * w.LEARNS else 0
    for p in range(side * team, side * team + team):
        v = w.unit_of(units, team, p)
        if units[v, w.HEALTH] <= 0 or w.gap2(units, u, v) > w.LEARNS * w.LEARNS:
            continue
        heroes[p, w.EXPERIENCE] += amount // near
        while heroes[p, w.LEVEL] < w.TOP_LEVEL:
            if heroes[p, w.EXPERIENCE] < w.TO_LEVEL * heroes[p, w.LEVEL] * (heroes[p, w.LEVEL] + 1):
                break
            heroes[p, w.LEVEL] += 1
            heroes[p, w.MANA] += w.MANA_A_LEVEL
            units[v, w.MOST] += w.HEALTH_A_LEVEL
            units[v, w.HEALTH] += w.HEALTH_A_LEVEL


@compiled
def _die(units: np.ndarray, heroes: np.ndarray, events: np.ndarray, u: int, by: int, age: int) -> bool:
    """Apply the death of unit `u`, and return whether it was a core. `by`: seat that killed the unit, or -1."""
    team, half = len(heroes) // 2, len(units) // 2
    side, gold, learnt = (1 if u >= half else 0), 0, 0
    kind = u - side * half
    if kind < team:
        level = heroes[side * team + kind, w.LEVEL]
        events[side * team + kind, DEATH] += 1.0
        heroes[side * team + kind, w.RETURNS] = age + w.RETURN_TIME + w.RETURN_A_LEVEL * level
        gold, learnt = w.HERO_GOLD, w.HERO_EXPERIENCE + w.HERO_EXPERIENCE_A_LEVEL * level
    elif kind < team + w.SLOTS * w.count_lanes(units, team):
        gold, learnt = w.CREEP_GOLD, w.CREEP_EXPERIENCE
    for p in range((1 - side) * team, (2 - side) * team):
        events[p, WIN] += 1.0 if kind == half - 1 else 0.0
        heroes[p, w.GOLD] += w.TOWER_GOLD if gold == 0 and kind < half - 1 else 0
    if by >= 0 and gold > 0:
        events[by, KILLED_HERO if kind < team else LAST_HIT] += 1.0
        heroes[by, w.GOLD] += gold
    if learnt:
        _learn(units, heroes, u, 1 - side, learnt)
    return kind == half - 1


@compiled
def worth_of_health(part: float) -> float:
    """Return (x + 1 - (1 - x)⁴) / 2 for a fraction x of full health (Berner et al. 2019)."""
    lost = (1.0 - part) * (1.0 - part)
    return (part + 1.0 - lost * lost) / 2.0


@compiled
def _count(units: np.ndarray, heroes: np.ndarray, events: np.ndarray, sign: float) -> None:
    """Add each seat's totals, multiplied by `sign`, to `events`."""
    team, half = len(heroes) // 2, len(units) // 2
    lanes = w.count_lanes(units, team)
    for side in range(2):
        outer, inner, first = 0.0, 0.0, (1 - side) * half + team + w.SLOTS * lanes
        for tower in range(2 * lanes):
            health = units[first + tower, w.HEALTH]
            fallen = 1.0 if health <= 0 else (1.0 - health / w.TOWER_HEALTH) * 2.0 / 3.0
            outer, inner = outer + (fallen if tower % 2 == 0 else 0.0), inner + (fallen if tower % 2 else 0.0)
        core = 1.0 - units[first + 2 * lanes, w.HEALTH] / w.CORE_HEALTH
        for p in range(side * team, side * team + team):
            u = w.unit_of(units, team, p)
            events[p, LEARNT] += sign * heroes[p, w.EXPERIENCE]
            events[p, EARNED] += sign * heroes[p, w.GOLD]
            events[p, HEALED] += sign * worth_of_health(units[u, w.HEALTH] / units[u, w.MOST])
            events[p, CHARGED] += sign * heroes[p, w.MANA] / w.most_mana(heroes, p)
            events[p, OUTER_TOWER] += sign * outer
            events[p, INNER_TOWER] += sign * inner
            events[p, CORE] += sign * core


@compiled
def _order(heroes: np.ndarray, shown: np.ndarray, action: np.ndarray) -> None:
    """Store the heroes' actions, int64 [P, 4], and the units at which they aim."""
    for p in range(len(heroes)):
        for part in range(4):
            heroes[p, w.PRIMARY + part] = action[p, part]
        heroes[p, w.AIM] = shown[p, action[p, w.UNIT - w.PRIMARY]]


@compiled
def step_lanes(s: w.LaneMatches, action: np.ndarray, repeat: int, events: np.ndarray) -> None:
    """Make `repeat` steps of each match, in place, by actions int64 [n, P, 4]. Add the counts of events to `events`,
    float64 [n, P, 11], which must be zeros. A match stops when a core has fallen.
    """
    team, killer, age = s.heroes.shape[1] // 2, np.empty(s.units.shape[1], np.int64), s.age
    for m in range(len(age)):
        units, heroes = s.units[m], s.heroes[m]
        _order(heroes, s.shown[m], action[m])
        _count(units, heroes, events[m], -1.0)  # the call after the steps adds the new totals
        for t in range(repeat):
            age[m] += 1
            if age[m] % w.WAVE_TIME == 1:
                send_wave(units, team, s.wave[m])
            recover(units, heroes, age[m])
            if age[m] % w.LOOKS == 1:
                choose_targets(units, team)
            was = units.copy()
            act_heroes(was, units, heroes, killer, t, repeat, age[m])
            act_creeps(was, units, team, killer, age[m])
            over = False
            for u in range(len(units)):
                if was[u, w.HEALTH] > 0 and units[u, w.HEALTH] <= 0:
                    over = _die(units, heroes, events[m], u, killer[u], age[m]) or over
            units[:, w.HEALTH] = np.maximum(units[:, w.HEALTH], 0)
            if over:
                break
        _count(units, heroes, events[m], 1.0)


@compiled
def begin_lanes(units: np.ndarray, heroes: np.ndarray) -> None:
    """Put all units at their starting points. The heroes' full health (column MOST) must be set before."""
    team, half = heroes.shape[1] // 2, units.shape[1] // 2
    units[:, :, w.TARGET], heroes[:, :, w.AIM], heroes[:, :, w.LEVEL] = -1, -1, 1
    for m in range(len(units)):
        lanes = w.count_lanes(units[m], team)
        for p in range(2 * team):
            place(units[m], heroes[m], p)
        for side in range(2):
            first = side * half + team + w.SLOTS * lanes
            for u in range(first, first + 2 * lanes + 1):
                lane, inner, core = (u - first) // 2, (u - first) % 2 == 1, u == first + 2 * lanes
                units[m, u, w.X] = w.forward(side, w.CORE_X if core else w.INNER_X if inner else w.OUTER_X)
                units[m, u, w.Y] = w.middle(lanes) if core else w.FIRST_LANE + w.LANE_APART * lane
                units[m, u, w.HEALTH] = units[m, u, w.MOST] = w.CORE_HEALTH if core else w.TOWER_HEALTH


# Starts of matches. With `randomize` matches differ and begin mid-game, so agents train on every phase from the first
# update (Berner et al. 2019 vary heroes, lanes and health).


def start_matches(world: LaneWorld, s: Arrays, draw: Draw) -> None:
    """Write the initial states of new matches into `s`, arrays made by LaneWorld.arrays."""
    units, n = s["units"], len(s["units"])
    for u in heroes_of(world, units):
        units[:, u, w.MOST] = w.HEALTH_AT_FIRST * _unlike(world, draw, n)
    for side, lane in np.ndindex(2, world.lanes):
        s["wave"][:, side, lane] = s["wave"][:, side, lane] * _unlike(world, draw, n)
    begin_lanes(units, s["heroes"])
    if world.randomize:
        late = world.randomize * w.LATE * draw() * (world.length // world.repeat)
        s["age"][:] = late.astype(np.int64) * world.repeat  # ages differ, so matches that begin together end apart
        _grow(world, s, draw)
        _spread(world, s, draw)
        _wear(world, units, draw)
        _meet(world, units, s["wave"], draw)


def heroes_of(world: LaneWorld, units: np.ndarray) -> list[int]:
    """Return the unit numbers of all heroes, in the order of seats."""
    half = units.shape[1] // 2
    return [*range(world.team), *range(half, half + world.team)]


def _unlike(world: LaneWorld, draw: Draw, n: int) -> np.ndarray:
    """Return a random factor of health for each of `n` matches. If `randomize` is 0, all factors are 1."""
    return 1.0 + w.LOT * world.randomize * (2.0 * draw() - 1.0) if world.randomize else np.ones(n)


def _grow(world: LaneWorld, s: Arrays, draw: Draw) -> None:
    """Draw the experience and gold of heroes. One side may have much more than the other."""
    units, heroes, ahead = s["units"], s["heroes"], [world.randomize * draw() for _ in range(2)]
    for p, u in enumerate(heroes_of(world, units)):
        side = p // world.team
        experience = (w.EXPERIENCE_LOT * ahead[side] * draw()).astype(np.int64)
        level = ((1.0 + np.sqrt(1.0 + 4.0 * experience / w.TO_LEVEL)) / 2.0).astype(np.int64)
        heroes[:, p, w.EXPERIENCE], heroes[:, p, w.LEVEL] = experience, level
        heroes[:, p, w.GOLD] = w.GOLD_LOT * ahead[side] * draw()
        heroes[:, p, w.MANA] = w.MANA_AT_FIRST + w.MANA_A_LEVEL * level
        units[:, u, w.MOST] += w.HEALTH_A_LEVEL * (level - 1).astype(np.int32)
        units[:, u, w.HEALTH] = units[:, u, w.MOST]


def _spread(world: LaneWorld, s: Arrays, draw: Draw) -> None:
    """Place heroes at random points on their way to the enemy core. Some heroes start dead, and return later."""
    units, chance = s["units"], world.randomize
    for p, u in enumerate(heroes_of(world, units)):
        x = w.SPAWN_X + (chance * draw() * (w.WIDTH - w.CORE_X - w.SPAWN_X)).astype(np.int64)
        lane = (draw() * world.lanes).astype(np.int64)
        y = np.where(x > w.TURN_X, w.FIRST_LANE + w.LANE_APART * lane, units[:, u, w.Y])
        units[:, u, w.X] = x if p < world.team else w.WIDTH - x
        units[:, u, w.Y] = np.where(x > w.WIDTH - w.TURN_X, w.middle(world.lanes), y)
        dead, away = draw() < w.DEAD * chance, (w.AWAY * draw()).astype(np.int64)
        units[:, u, w.HEALTH] = np.where(dead, 0, units[:, u, w.HEALTH])
        s["heroes"][:, p, w.RETURNS] = np.where(dead, s["age"] + 1 + away, 0)


def _wear(world: LaneWorld, units: np.ndarray, draw: Draw) -> None:
    """Damage buildings at random. In each lane, the outer tower loses health first, then the inner tower."""
    half, both = units.shape[1] // 2, [w.WORN * draw() for _ in range(world.lanes)]
    for side in range(2):
        first, gone = side * half + world.team + w.SLOTS * world.lanes, np.zeros(len(units))
        for lane in range(world.lanes):
            lost = world.randomize * (both[lane] + w.UNEVEN * draw())
            gone = np.maximum(gone, lost)
            for tower in range(2):
                left = np.ceil(w.TOWER_HEALTH * np.clip(1.0 + tower - lost, 0.0, 1.0))
                units[:, first + 2 * lane + tower, w.HEALTH] = left
        units[:, first + 2 * world.lanes, w.HEALTH] = np.ceil(w.CORE_HEALTH * np.clip(3.0 - gone, 0.0, 1.0))


def _meet(world: LaneWorld, units: np.ndarray, wave: np.ndarray, draw: Draw) -> None:
    """Place a wave of creeps per side and lane. Waves face each other at a random point between the outer towers."""
    half = units.shape[1] // 2
    for lane in range(world.lanes):
        front = w.WIDTH // 2 + (world.randomize * (draw() - 0.5) * (w.WIDTH - 2 * w.OUTER_X)).astype(np.int64)
        for side, k in np.ndindex(2, w.WAVE):
            u, behind = side * half + world.team + w.SLOTS * lane + k, w.CREEP_RANGE // 2 + k * w.SPREAD
            units[:, u, w.X] = front + (behind if side else -behind)
            units[:, u, w.Y] = w.FIRST_LANE + w.LANE_APART * lane
            units[:, u, w.HEALTH] = units[:, u, w.MOST] = wave[:, side, lane]

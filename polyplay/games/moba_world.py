"""The lane game, a small MOBA (multiplayer online battle arena): options, state arrays, units, legal actions.

Arrays hold the states of many matches. Rules are in moba_rules. Observations and rewards are in moba_views.

All values in the arrays are integers. Lengths are in thousandths of a cell, and times in steps. For a waiting time, the
arrays hold the age of the match at which the wait ends. The x axis leads from the base of side 0 to the base of side 1,
and the y axis from one edge of the map to the other. The map is symmetric in x. Each side sees it from its own base.

The units of a side are, in order: heroes; SLOTS creeps per lane; the outer and the inner tower of each lane; the core.
Side 1's units follow side 0's. Seats (players) 0 … n-1 are the heroes of side 0, and seats n … 2n-1 those of side 1.
"""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyplay.core.compiled import compiled
from polyplay.core.tree import Batch, Field, Spec
from polyplay.envs.pool import need
from polyplay.envs.spaces import ActionSpec, Discrete

STEPS_A_SECOND = 30
CELL = 1000
WIDTH = 36 * CELL  # extent of the map in x, from edge to edge
FIRST_LANE, LANE_APART = 6 * CELL, 8 * CELL  # y of the first lane; distance between neighboring lanes in y
SPAWN_X, CORE_X, TURN_X, INNER_X, OUTER_X = 1500, 3000, 6000, 7000, 12000  # x from a side's edge; lanes begin at TURN_X
HOME = 4000  # largest distance from the core, in x and in y, at which a hero is at home

X, Y, HEALTH, MOST, READY, TARGET = range(6)  # columns of `units`; MOST: full health; READY: age when it can hit again
# columns of `heroes`. BOLT, BLAST, HEAL: ages when ready; RETURNS: age of return; AIM: last action's unit (-1: none)
MANA, EXPERIENCE, LEVEL, GOLD, BOLT, BLAST, HEAL, RETURNS, AIM, PRIMARY, UNIT, OFFSET, DELAY = range(13)

NOTHING, MOVE, ATTACK, CAST_BOLT, CAST_BLAST, CAST_HEAL, FOLLOW, GO_HOME = range(8)
PARTS = ("primary", "unit", "offset", "delay")
USES = {"unit": (2, 3, 4, 6), "offset": (1,), "delay": (1, 2, 3, 4, 5, 6, 7)}
OFFSETS = 9  # cells per side of the square, around a hero, of points to move to
DELAYS = 4

SPEED, RANGE, RELOAD = 120, 3500, 24  # heroes: distance per step; range of hits; steps between hits
HEALTH_AT_FIRST, HEALTH_A_LEVEL = 300, 30
MANA_AT_FIRST, MANA_A_LEVEL = 100, 10  # full mana at level 0; increase per level
HIT_AT_FIRST, HIT_A_LEVEL, GOLD_A_HIT = 18, 2, 50  # GOLD_A_HIT gold adds 1 to the damage of hits
TOP_LEVEL, TO_LEVEL = 10, 60  # level n requires TO_LEVEL · n · (n - 1) experience
RETURN_TIME, RETURN_A_LEVEL = 120, 30
RECOVERY = 30  # steps between recoveries of health and mana
HEALTH_BACK, MANA_BACK, HOME_BACK = 2, 2, 12  # health and mana per recovery; at home, HOME_BACK times as much
CAST_RANGE = 5000  # range of the abilities bolt and blast
BOLT_DAMAGE, BOLT_MANA, BOLT_WAIT = 60, 30, 120
BLAST_RADIUS, BLAST_DAMAGE, BLAST_MANA, BLAST_WAIT = 1500, 40, 40, 180  # radius around the target
HEAL_RADIUS, HEAL_HEALTH, HEAL_MANA, HEAL_WAIT = 3500, 70, 50, 300
SLOTS, WAVE, WAVE_TIME, SPREAD = 6, 3, 300, 400  # most creeps per side and lane, per wave; steps between waves; spacing
CREEP_HEALTH, CREEP_HIT, CREEP_SPEED, CREEP_RANGE, CREEP_RELOAD = 80, 6, 80, 1200, 30
TOWER_HEALTH, TOWER_HIT, TOWER_RANGE, TOWER_RELOAD, CORE_HEALTH = 700, 25, 4500, 30, 1000
LOOKS = 8  # steps between choices of targets by creeps and towers
CREEP_NOTICES = 4000  # distance within which creeps find targets
SIGHT, CREEP_SIGHT = 8000, 5000  # how far heroes and buildings see; how far creeps see
LEARNS = 8000  # distance from a death within which heroes gain experience
CREEP_EXPERIENCE, HERO_EXPERIENCE, HERO_EXPERIENCE_A_LEVEL = 60, 120, 40  # for a death; a creep in Dota gives 57
CREEP_GOLD, HERO_GOLD, TOWER_GOLD = 40, 160, 80  # TOWER_GOLD: for each enemy hero; a creep in Dota gives about 40
LOT = 0.25  # at randomize=1, as the next four lines: largest relative change of heroes' and creeps' full health
GOLD_LOT, EXPERIENCE_LOT = 800, 1800  # most gold and experience of a hero at the start (level 6)
DEAD, AWAY = 0.2, 300  # share of heroes that start dead; most steps until these heroes return
LATE = 0.5  # largest fraction of a match that has passed at its start
WORN, UNEVEN = 2.4, 0.2  # most buildings lost per lane (two towers, then the core); largest extra loss of a side

NEAR = 16 * CELL  # divisor of distances in observations
OWN = (
    *("alive", "x", "y", "health", "most_health", "mana", "level", "experience", "gold", "hit", "reload"),
    *("bolt", "blast", "heal", "returns", "age", "place", "lead"),
)
HERO = ("there", "dx", "dy", "x", "y", "health", "most_health", "mana", "level", "hit", "reload")
CREEP = ("there", "dx", "dy", "health", "own", "falls")
TOWER = ("there", "dx", "dy", "health", "own", "kind", "open")
LAST_ACTION = 8 + 2 + 1  # numbers for the last action: one-hot primary; offset ahead and aside; delay
SHOWN = 8  # rows for creeps in an observation, per lane
KINDS = ("shaped", "win")  # kinds of rewards


@dataclass(frozen=True)
class LaneWorld:
    """Options of the environment arena:moba.

    `reward`: "shaped" (the weighted events of moba_views.REWARDS), or "win" (1 for a won match, -1 for a lost match).
    `randomize`: how much the starts of matches differ, from 0 (not at all) to 1.
    """

    team: int = 5  # number of heroes per side
    lanes: int = 3
    length: int = 6000  # steps of a match, 30 per second
    repeat: int = 4  # steps for which an action is held; these are one agent step
    reward: str = "shaped"
    randomize: float = 0.0

    def __post_init__(self) -> None:
        need(self.reward in KINDS, f"arena:moba: reward must be one of {', '.join(KINDS)}; got {self.reward}")
        small, got = 1 <= self.team <= 5 and 1 <= self.lanes <= 3, f"team={self.team}, lanes={self.lanes}"
        need(small, f"arena:moba: needs 1 to 5 heroes per team and 1 to 3 lanes, got {got}")
        whole = self.length >= 1 and self.repeat >= 1 and self.length % self.repeat == 0
        got = f"length={self.length}, repeat={self.repeat}"
        need(whole, f"arena:moba: needs repeat ≥ 1 and a length that is a multiple of it, got {got}")
        need(0.0 <= self.randomize <= 1.0, f"arena:moba: randomize must be from 0 to 1, got {self.randomize}")

    seats = property(lambda self: 2 * self.team)
    teams = property(lambda self: (0,) * self.team + (1,) * self.team)
    # offset and delay have no mask: all their values are legal
    legality = property(lambda self: {"primary": Field((8,), "bool"), "unit": Field((8, sum(self.sets)), "bool")})

    @property
    def sets(self) -> tuple[int, int, int, int]:
        """Numbers of rows in an observation for allies, enemies, creeps and buildings, in this order."""
        return max(self.team - 1, 1), self.team, SHOWN * self.lanes, 2 * (2 * self.lanes + 1)

    @property
    def action(self) -> ActionSpec:
        sizes = (8, sum(self.sets), OFFSETS**2, DELAYS)
        return {name: Discrete(n) for name, n in zip(PARTS, sizes, strict=True)}

    @cached_property
    def obs(self) -> Spec:
        allies, enemies, creeps, towers = self.sets
        shapes = {"own": (len(OWN),), "allies": (allies, len(HERO)), "enemies": (enemies, len(HERO))}
        shapes |= {"creeps": (creeps, len(CREEP)), "towers": (towers, len(TOWER)), "last_action": (LAST_ACTION,)}
        return {name: Field(shape, "float32") for name, shape in shapes.items()}

    def arrays(self, n: int) -> Batch:
        """Return new arrays for the states of `n` matches, with P seats (players) and U units."""
        P, U = self.seats, 2 * (self.team + (SLOTS + 2) * self.lanes + 1)
        return {
            "units": np.zeros((n, U, 6), np.int32),
            "heroes": np.zeros((n, P, 13), np.int32),
            "wave": np.full((n, 2, self.lanes), CREEP_HEALTH, np.int32),  # full health of new creeps, by side and lane
            "seen": np.zeros((n, U), bool),  # whether the enemy side sees a unit
            "shown": np.full((n, P, sum(self.sets)), -1, np.int16),  # unit in each row of an observation; -1: empty
            "age": np.zeros(n, np.int64),
            "key": np.zeros(n, np.uint64),  # random key of the match, for bots
        }


class LaneMatches(namedtuple("LaneMatches", "units heroes wave seen shown age key")):
    """The arrays of LaneWorld.arrays, as a named tuple for compiled code."""

    @classmethod
    def of(cls, arrays: Batch) -> LaneMatches:
        return cls(*(arrays[name] for name in cls._fields))


# Queries about units, compiled: `units` int32 [U, 6] and `heroes` int32 [P, 13] of one match, see LaneWorld.arrays.


@compiled
def count_lanes(units: np.ndarray, team: int) -> int:
    return (len(units) // 2 - team - 1) // (SLOTS + 2)


@compiled
def middle(lanes: int) -> int:
    """Return the y of the cores (main buildings) on a map with this number of lanes."""
    return FIRST_LANE + LANE_APART * (lanes - 1) // 2


@compiled
def unit_of(units: np.ndarray, team: int, p: int) -> int:
    """Return the unit number of seat p's hero."""
    return p if p < team else len(units) // 2 + p - team


@compiled
def forward(side: int, x: int) -> int:
    """Convert x to the distance from the edge of the map behind a side's base, or this distance back to x."""
    return x if side == 0 else WIDTH - x


@compiled
def gap2(units: np.ndarray, u: int, v: int) -> int:
    """Return the squared distance between two units."""
    dx, dy = units[v, X] - units[u, X], units[v, Y] - units[u, Y]  # Numba makes differences int64
    return int(dx * dx + dy * dy)


@compiled
def is_open(units: np.ndarray, team: int, u: int) -> bool:
    """Tell whether a unit can be hurt. An inner tower can be hurt if the lane's outer tower has fallen. A core can be
    hurt if any inner tower of its side has fallen. All other units can be hurt.
    """
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
    """Tell whether unit `v` is a living enemy that can be hurt, at any distance. Return False if `v` is -1."""
    theirs = (v >= len(units) // 2) == (p < team)
    return bool(v >= 0 and theirs and units[v, HEALTH] > 0 and is_open(units, team, v))


@compiled
def can_cast_at(units: np.ndarray, team: int, p: int, v: int) -> bool:
    """Tell whether seat `p` can cast bolt or blast at unit `v`, a living enemy in range, but no building."""
    half = len(units) // 2
    theirs = v >= 0 and (v >= half) == (p < team)
    building = (v - half if v >= half else v) >= half - 1 - 2 * count_lanes(units, team)
    near = gap2(units, unit_of(units, team, p), v) <= CAST_RANGE * CAST_RANGE
    return bool(theirs and not building and units[v, HEALTH] > 0 and near)


@compiled
def can_use(heroes: np.ndarray, p: int, primary: int, age: int) -> bool:
    """Tell whether the ability `primary` of seat `p` is ready at age `age`, and the hero has enough mana."""
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
    """Tell whether seat p's hero has less than full health or mana."""
    u = unit_of(units, len(heroes) // 2, p)
    return bool(units[u, HEALTH] < units[u, MOST] or heroes[p, MANA] < most_mana(heroes, p))


@compiled
def strength(heroes: np.ndarray, p: int) -> int:
    """Return the damage of one hit by seat p's hero."""
    return HIT_AT_FIRST + HIT_A_LEVEL * heroes[p, LEVEL] + heroes[p, GOLD] // GOLD_A_HIT


@compiled
def hurt(units: np.ndarray, killer: np.ndarray, u: int, damage: int, by: int) -> None:
    """Reduce the health of unit `u`. If the damage kills the unit, store the seat `by` (-1: no seat) in `killer`."""
    if 0 < units[u, HEALTH] <= damage:
        killer[u] = by
    units[u, HEALTH] -= damage


@compiled
def go(units: np.ndarray, u: int, dx: int, dy: int, speed: int) -> None:
    """Move a unit by (dx, dy), but at most by the distance `speed`."""
    far = math.sqrt(dx * dx + dy * dy)
    if far > speed:
        dx, dy = int(dx * speed / far), int(dy * speed / far)  # rounded toward 0, so that both sides move alike
    units[u, X] += dx
    units[u, Y] += dy


@compiled
def legal_actions(s: LaneMatches, primary: np.ndarray, unit: np.ndarray) -> None:
    """Write masks of legal actions into `primary`, bool [n, P, 8], and `unit`, bool [n, P, 8, rows].

    unit[…, k, :] marks the rows of units at which primary action k may aim. If the action needs no unit, all rows are
    marked. A hero with full health and mana can't go home.
    """
    n, P, half, reach = len(unit), unit.shape[1], s.units.shape[1] // 2, CAST_RANGE * CAST_RANGE
    team, bodies = P // 2, half - 1 - 2 * s.wave.shape[2]
    for m in range(n):
        units, heroes, age = s.units[m], s.heroes[m], s.age[m] + 1
        for p in range(P):
            able, named, u = primary[m, p], unit[m, p], unit_of(units, team, p)
            able[:], named[:] = False, True
            able[NOTHING] = True
            if units[u, HEALTH] <= 0:
                continue
            bolt, blast = can_use(heroes, p, np.int64(CAST_BOLT), age), can_use(heroes, p, np.int64(CAST_BLAST), age)
            able[MOVE], able[GO_HOME] = True, lacks(units, heroes, p)
            able[CAST_HEAL] = can_use(heroes, p, np.int64(CAST_HEAL), age)
            for i in range(named.shape[1]):
                v = np.int64(s.shown[m, p, i])
                enemy = v >= 0 and (v >= half) == (p < team)
                body = (v - half if v >= half else v) < bodies
                near = enemy and body and (bolt or blast) and gap2(units, u, v) <= reach
                named[ATTACK, i] = enemy and (body or is_open(units, team, v))
                named[CAST_BOLT, i], named[CAST_BLAST, i], named[FOLLOW, i] = near and bolt, near and blast, v >= 0
                for k in (ATTACK, CAST_BOLT, CAST_BLAST, FOLLOW):
                    able[k] |= named[k, i]
            for k in (ATTACK, CAST_BOLT, CAST_BLAST, FOLLOW):
                if not able[k]:
                    named[k] = True

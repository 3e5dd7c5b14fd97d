"""The lane game as an environment; scripted players.

Scripted players of the lane game at four levels. Imports no torch.

What one does depends on the state of its match, its seat and numbers hashed from them alone, so it needs no memory. All
go along a lane and attack what they see; how quickly they think and what they heed is a matter of level, see LaneSkill.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from polyplay.core import tree
from polyplay.core.compiled import cached_njit
from polyplay.core.numbers import SPLITMIX, mix
from polyplay.core.tree import Batch, Tree
from polyplay.envs.lane import Seats
from polyplay.games import moba_rules, moba_views, moba_world
from polyplay.games.moba_rules import start_matches
from polyplay.games.moba_views import EVENTS, SHARES
from polyplay.games.moba_world import (
    AIM,
    ATTACK,
    BLAST_RADIUS,
    CAST_BLAST,
    CAST_BOLT,
    CAST_HEAL,
    CAST_RANGE,
    CELL,
    CORE_X,
    FIRST_LANE,
    GO_HOME,
    HEAL_RADIUS,
    HEALTH,
    LANE_APART,
    MOST,
    MOVE,
    OFFSET,
    OFFSETS,
    OUTER_X,
    PARTS,
    PRIMARY,
    RANGE,
    SLOTS,
    STEPS_A_SECOND,
    TOWER_RANGE,
    USES,
    WIDTH,
    LaneWorld,
    X,
    Y,
    apart,
    at_home,
    can_attack,
    can_use,
    count_lanes,
    forward,
    lacks,
    strength,
    unit_of,
)
from polyplay.games.toys import Arrays, Draw

# arena:lanes as a game of several players (see toys.seated.SeatedToy): LaneWorld's arrays, by compiled rules.


BOTS = ("level1", "level2", "level3", "level4")
LOOKED_AT = ("units", "heroes", "shown", "age")


class LaneGame:
    """A match is terminated when a core has fallen, or after LaneWorld.length steps."""

    events = (*EVENTS, *SHARES)
    team_reward = True
    uses = USES  # of the action's parts: by which values of `primary` they are used
    bots = {name: f"polyplay.games.moba:{name}" for name in BOTS}  # noqa: RUF012

    def __init__(self, world: LaneWorld):
        self.world = world
        self.obs, self.action, self.seats, self.teams = world.obs, world.action, world.seats, world.teams
        self.legality = world.legality
        self._weights = moba_views.time_weights(world.length)

    def reset(self, draw: Draw, n: int) -> Arrays:
        s, world = self.world.arrays(n), self.world
        s["key"][:] = (draw() * 2.0**53).astype(np.uint64)
        start_matches(world, s, draw)
        moba_views.look(*(s[k] for k in ("units", "heroes", "seen", "shown")))
        return {**s, "here": np.ones((n, self.seats), bool)}

    def step(self, s: Arrays, action: Tree, draw: Draw) -> tuple[Arrays, Batch]:
        """In place."""
        n, P = s["here"].shape
        events, chosen = np.zeros((n, P, len(EVENTS))), np.stack([action[k] for k in PARTS], -1)
        kept = (s[k] for k in ("units", "heroes", "wave", "shown", "age"))
        moba_rules.step_lanes(*kept, chosen, self.world.repeat, events)
        moba_views.look(*(s[k] for k in ("units", "heroes", "seen", "shown")))
        lead, ends = self._lead(s)
        ended = np.repeat(ends[:, None], P, 1)
        won = np.repeat((lead * ends)[:, None] * (1.0, -1.0), self.world.team, 1)
        events[:, :, EVENTS.index("win")] = won > 0
        own = self._own_reward(s, events, won)
        shared = moba_views.share_in_team(own, 1.0)
        reward = (1.0 - self.world.spirit) * own + self.world.spirit * shared
        row = {
            "reward": reward,
            "team_reward": won,
            "events": np.concatenate([events, np.stack([own, shared], -1)], -1),
        }
        return {**s, "here": ~ended}, {**row, "terminated": ended, "truncated": np.zeros_like(ended)}

    def _lead(self, s: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """1 where side 0 is ahead, -1 where side 1 is, by a fallen core, else by the health of cores and towers, [n];
        and which matches end.
        """
        half, team = s["units"].shape[1] // 2, self.world.team
        health = s["units"][:, :, HEALTH].reshape(-1, 2, half)
        fallen = health[:, :, -1] == 0
        standing = np.where(fallen, -1, health[:, :, team + SLOTS * self.world.lanes :].sum(2))
        return np.sign(standing[:, 0] - standing[:, 1]), fallen.any(1) | (s["age"] >= self.world.length)

    def _own_reward(self, s: Arrays, events: np.ndarray, won: np.ndarray) -> np.ndarray:
        """Of each hero, before it is shared in the team."""
        if self.world.reward == "win":
            return won
        return moba_views.make_zero_sum(moba_views.weigh_events(events, self._weights[s["age"]]))

    def legal(self, s: Arrays) -> Tree:
        """Masks: of primary bool [n, P, 8], of unit for each primary bool [n, P, 8, rows]."""
        masks = {k: np.empty((*s["here"].shape, *field.shape), bool) for k, field in self.legality.items()}
        moba_world.legal_actions(*(s[k] for k in LOOKED_AT), masks["primary"], masks["unit"])
        return masks

    def picture(self, s: Arrays, m: int) -> tuple[np.ndarray, float]:
        """What people see of match m: RGB uint8 [H, W, 3], and pictures per second."""
        from polyplay.games.moba_views import draw_lanes

        return draw_lanes(s, m), STEPS_A_SECOND / self.world.repeat

    def see(self, s: Arrays) -> Tree:
        out = tree.zeros(self.obs, s["here"].shape)
        moba_views.observe(*(s[k] for k in LOOKED_AT), self.world.length, *out.values())
        return out


NOTICES = 6000  # how near an enemy is that is attacked
BEHIND = 1500  # how far behind the foremost creep it stays
SAFE = 500  # how far from a tower's range
MIDDLE = OFFSETS // 2

compiled = cached_njit()
_mix = compiled(mix)


class LaneSkill(NamedTuple):
    """How good a bot is."""

    holds: int  # agent steps that it stays with what it does
    casts: float  # chance to use an ability that is of use, each time it thinks
    flees: float  # part of its health below which it goes home
    farms: bool  # it strikes last where it can, and chooses the weakest hero
    careful: bool  # it goes to towers behind creeps only


SKILLS = (
    LaneSkill(8, 0.0, 0.0, False, False),
    LaneSkill(8, 0.1, 0.1, False, False),
    LaneSkill(4, 0.4, 0.2, True, False),
    LaneSkill(1, 1.0, 0.3, True, True),
)


@compiled
def _draw(key: np.uint64, p: int, age: int) -> float:
    """Uniform in [0, 1): another for each seat and age."""
    mixed = _mix(key * SPLITMIX + np.uint64(p)) + np.uint64(age) * SPLITMIX
    return np.int64(_mix(mixed) >> np.uint64(11)) * 2.0**-53


@compiled
def _choose_enemy(
    units: np.ndarray, team: int, seen: np.ndarray, p: int, first: int, last: int, reach: int, most: int, weakest: bool
) -> int:
    """Of enemies first … last-1 of their side that seat p can attack, within reach and with `most` health: the nearest
    or the weakest; -1: none.
    """
    u, theirs, best, least = unit_of(units, team, p), (len(units) // 2 if p < team else 0), -1, 0
    for v in range(theirs + first, theirs + last):
        near = seen[v] and apart(units, u, v) <= reach * reach
        if near and units[v, HEALTH] <= most and can_attack(units, team, p, v):
            worth = int(units[v, HEALTH]) if weakest else apart(units, u, v)
            if best < 0 or worth < least:
                best, least = v, worth
    return best


@compiled
def _move(units: np.ndarray, team: int, p: int, x: int, y: int, out: np.ndarray) -> None:
    """To a point: the offset that lies in its direction, or on it."""
    u = unit_of(units, team, p)
    dx, dy = (x - units[u, X]) * (1 if p < team else -1), y - units[u, Y]
    far = max(math.sqrt(dx * dx + dy * dy) / (MIDDLE * CELL), 1.0)
    ahead, aside = round(dx / far / CELL), round(dy / far / CELL)
    out[0], out[2] = MOVE, (aside + MIDDLE) * OFFSETS + ahead + MIDDLE


@compiled
def _name(shown: np.ndarray, primary: int, v: int, out: np.ndarray) -> None:
    """An action at unit v; nothing, where no row has it. shown int16 [rows]."""
    for i in range(len(shown)):
        if shown[i] == v:
            out[0], out[1] = primary, i
            return


@compiled
def _go_on(units: np.ndarray, heroes: np.ndarray, shown: np.ndarray, p: int, out: np.ndarray) -> None:
    """The same as before; who used an ability at a unit attacks it now."""
    team, primary, v = len(heroes) // 2, heroes[p, PRIMARY], np.int64(heroes[p, AIM])
    if can_attack(units, team, p, v):
        _name(shown, np.int64(ATTACK), v, out)
    elif primary == MOVE or (primary == GO_HOME and lacks(units, heroes, p)):
        out[0], out[2] = primary, heroes[p, OFFSET]


@compiled
def _cast(
    units: np.ndarray, heroes: np.ndarray, seen: np.ndarray, shown: np.ndarray, p: int, age: int, out: np.ndarray
) -> bool:
    """Whether an ability is of use, and which."""
    team, half = len(heroes) // 2, len(units) // 2
    u, creeps = unit_of(units, team, p), team + SLOTS * count_lanes(units, team)
    if can_use(heroes, p, np.int64(CAST_HEAL), age + 1):
        for v in range(u - p % team, u - p % team + team):
            if 0 < 2 * units[v, HEALTH] < units[v, MOST] and apart(units, u, v) <= HEAL_RADIUS * HEAL_RADIUS:
                out[0] = CAST_HEAL
                return True
    if can_use(heroes, p, np.int64(CAST_BOLT), age + 1):
        v = _choose_enemy(units, team, seen, p, 0, team, CAST_RANGE, 1 << 30, True)
        if v >= 0:
            _name(shown, np.int64(CAST_BOLT), v, out)
            return True
    if can_use(heroes, p, np.int64(CAST_BLAST), age + 1):
        v = _choose_enemy(units, team, seen, p, 0, creeps, CAST_RANGE, 1 << 30, False)
        hit, first = 0, (half if p < team else 0)
        for w in range(first, first + creeps if v >= 0 else first):
            hit += 1 if units[w, HEALTH] > 0 and apart(units, v, w) <= BLAST_RADIUS * BLAST_RADIUS else 0
        if hit >= 2:
            _name(shown, np.int64(CAST_BLAST), v, out)
            return True
    return False


@compiled
def _under_tower(units: np.ndarray, team: int, p: int) -> bool:
    """Whether a tower of the enemy is about to shoot at seat p, because none of its creeps is there."""
    half, u = len(units) // 2, unit_of(units, team, p)
    lanes, own = count_lanes(units, team), u // half * half
    creeps = team + SLOTS * lanes
    for v in range(half - own + creeps, half - own + half - 1):
        if units[v, HEALTH] > 0 and apart(units, u, v) <= (TOWER_RANGE + SAFE) ** 2:
            near = False
            for w in range(own + team, own + creeps):
                near = near or (units[w, HEALTH] > 0 and apart(units, v, w) <= TOWER_RANGE * TOWER_RANGE)
            if not near:
                return True
    return False


@compiled
def _advance(units: np.ndarray, team: int, p: int, lane: int, careful: bool, out: np.ndarray) -> None:
    """Along a lane: behind the foremost creep, else to the outer tower; without care to the end of it."""
    side, half = p // team, len(units) // 2
    y, ahead, lanes = FIRST_LANE + LANE_APART * lane, OUTER_X, count_lanes(units, team)
    first = side * half + team + SLOTS * lane
    for w in range(first, first + SLOTS):
        if units[w, HEALTH] > 0 and forward(side, units[w, X]) - BEHIND > ahead:
            ahead, y = forward(side, units[w, X]) - BEHIND, units[w, Y]
    if not careful:
        ahead = WIDTH - OUTER_X
        inner = (1 - side) * half + team + SLOTS * lanes + 2 * lane + 1
        if forward(side, units[unit_of(units, team, p), X]) >= ahead - CELL or units[inner, HEALTH] <= 0:
            ahead, y = WIDTH - CORE_X, FIRST_LANE + LANE_APART * (lanes - 1) // 2
    _move(units, team, p, forward(side, ahead), np.int64(y), out)


@compiled
def _think(
    units: np.ndarray,
    heroes: np.ndarray,
    seen: np.ndarray,
    shown: np.ndarray,
    age: int,
    key: np.uint64,
    p: int,
    skill: LaneSkill,
    out: np.ndarray,
) -> None:
    """What seat p does now, into out int64 [4], 0 at first."""
    team = len(heroes) // 2
    u, lanes, hit = unit_of(units, team, p), count_lanes(units, team), strength(heroes, p)
    health, creeps, far, most = units[u, HEALTH] / units[u, MOST], team + SLOTS * lanes, NOTICES, 1 << 30
    if health < skill.flees or (skill.flees > 0.0 and health < 0.8 and at_home(units, team, u)):
        out[0] = GO_HOME
        return
    if _draw(key, p, age) < skill.casts and _cast(units, heroes, seen, shown, p, age, out):
        return
    if skill.careful and _under_tower(units, team, p):
        out[0], out[2] = MOVE, MIDDLE * OFFSETS  # straight back
        return
    v = -1
    if skill.farms:
        v = _choose_enemy(units, team, seen, p, team, creeps, RANGE + CELL, hit, False)
        if v < 0:
            v = _choose_enemy(units, team, seen, p, 0, team, RANGE + CELL, most, True)
        if v < 0:
            v = _choose_enemy(units, team, seen, p, creeps, len(units) // 2, RANGE + CELL, most, False)
    if v < 0:
        v = _choose_enemy(units, team, seen, p, 0, len(units) // 2, far, most, False)
    if v >= 0:
        _name(shown, np.int64(ATTACK), v, out)
        return
    _advance(units, team, p, p % team % lanes, skill.careful, out)


@compiled
def choose_lane_actions(
    units: np.ndarray,
    heroes: np.ndarray,
    seen: np.ndarray,
    shown: np.ndarray,
    age: np.ndarray,
    key: np.ndarray,
    match: np.ndarray,
    seat: np.ndarray,
    skill: LaneSkill,
    repeat: int,
    out: np.ndarray,
) -> None:
    """Of seats int64 [n] of matches int64 [n] what they do, into out int64 [n, 4]."""
    out[:] = 0
    for i in range(len(match)):
        m, p = match[i], seat[i]
        if units[m, unit_of(units[m], heroes.shape[1] // 2, p), HEALTH] <= 0:
            continue
        if (age[m] // repeat + p) % skill.holds:
            _go_on(units[m], heroes[m], shown[m, p], p, out[i])
        else:
            _think(units[m], heroes[m], seen[m], shown[m, p], age[m], key[m], p, skill, out[i])


@dataclass(frozen=True)
class LaneBot:
    """One of `bots`: see envs.bots."""

    level: int
    plays_state = True

    def __call__(self, obs: Tree, mask: Tree | None, seats: Seats) -> Tree:
        out = np.empty((len(seats.match), 4), np.int64)
        arrays = (seats.states[k] for k in ("units", "heroes", "seen", "shown", "age", "key"))
        skill, repeat = SKILLS[self.level - 1], seats.game.world.repeat
        choose_lane_actions(*arrays, seats.match, seats.seat, skill, repeat, out)
        return {name: out[:, i].copy() for i, name in enumerate(PARTS)}


level1, level2, level3, level4 = (LaneBot(level) for level in (1, 2, 3, 4))

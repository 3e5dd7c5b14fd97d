"""The lane game: observations of heroes, images for people, and rewards.

A side sees the units within sight of at least one living unit of the side. Rows of unseen units are 0 in observations.
Each side sees the map from its own base, so mirrored positions look the same to both sides.
"""

from __future__ import annotations

import itertools
from collections import namedtuple

import numpy as np

from polyplay.core.compiled import compiled
from polyplay.core.tree import Batch
from polyplay.envs.pool import OWN_REWARD, TEAM_REWARD
from polyplay.games import moba_world as w

RETURN_MOST = w.RETURN_TIME + w.RETURN_A_LEVEL * w.TOP_LEVEL


@compiled
def _see(units: np.ndarray, team: int, seen: np.ndarray, eyes: np.ndarray) -> None:
    """Write whether the enemy side sees each unit into `seen`, bool [U]. `eyes`: scratch array, int64 [U, 3]."""
    half = len(units) // 2
    creeps = team + w.SLOTS * w.count_lanes(units, team)
    for side in range(2):
        own, theirs, n = side * half, half - side * half, 0
        for k in range(half):
            if units[own + k, w.HEALTH] > 0:
                reach = w.CREEP_SIGHT if team <= k < creeps else w.SIGHT
                eyes[n, 0], eyes[n, 1], eyes[n, 2] = units[own + k, w.X], units[own + k, w.Y], reach * reach
                n += 1
        for v in range(theirs, theirs + half):
            found, x, y = False, np.int64(units[v, w.X]), np.int64(units[v, w.Y])
            if units[v, w.HEALTH] > 0:
                for k in range(n):
                    dx, dy = eyes[k, 0] - x, eyes[k, 1] - y
                    if dx * dx + dy * dy <= eyes[k, 2]:
                        found = True
                        break
            seen[v] = found


@compiled
def _list_creeps(
    units: np.ndarray, team: int, side: int, seen: np.ndarray, known: np.ndarray, keys: np.ndarray, shown: np.ndarray
) -> None:
    """List the creeps that a side sees, nearest first, in `shown`, int16 [P, rows]. Each row of a seat's observation
    shows one unit. At equal distances, the side's own creeps come first. `known`, `keys`: scratch arrays, int64 [U].
    """
    half, creeps, n = len(units) // 2, w.SLOTS * w.count_lanes(units, team), 0
    for first in (side * half + team, half - side * half + team):
        for v in range(first, first + creeps):
            if units[v, w.HEALTH] > 0 and (seen[v] or first == side * half + team):
                known[n] = v
                n += 1
    begin, last = max(team - 1, 1) + team, w.SHOWN * creeps // w.SLOTS
    for p in range(side * team, side * team + team):
        u = w.unit_of(units, team, p)
        for k in range(n):
            keys[k] = w.gap2(units, u, known[k]) * 64 + k
        for k in range(n):  # counting is faster than sorting: no branch is mispredicted
            row, key = 0, keys[k]
            for other in keys[:n]:
                row += 1 if other < key else 0
            if row < last:
                shown[p, begin + row] = known[k]
        for row in range(n, last):
            shown[p, begin + row] = -1


@compiled
def _list_others(units: np.ndarray, team: int, side: int, seen: np.ndarray, shown: np.ndarray) -> None:
    """List the heroes and buildings that a side sees in `shown`, int16 [P, rows]."""
    half, lanes = len(units) // 2, w.count_lanes(units, team)
    own, allies, buildings = side * half, max(team - 1, 1), 2 * lanes + 1
    for p in range(side * team, side * team + team):
        u, row, towers = w.unit_of(units, team, p), 0, allies + team + w.SHOWN * lanes
        for v in range(own, own + team):
            if v != u:
                shown[p, row] = v if units[v, w.HEALTH] > 0 else -1
                row += 1
        for k in range(team):
            shown[p, allies + k] = half - own + k if seen[half - own + k] else -1
        for i in range(buildings):
            v = own + half - buildings + i
            shown[p, towers + i] = v if units[v, w.HEALTH] > 0 else -1
            v = 2 * half - own - buildings + i
            shown[p, towers + buildings + i] = v if seen[v] else -1


@compiled
def look(s: w.LaneMatches) -> None:
    """Compute which units each side sees (`seen`), and which unit each row of an observation shows (`shown`)."""
    team, U = s.heroes.shape[1] // 2, s.units.shape[1]
    eyes, known, keys = np.empty((U, 3), np.int64), np.empty(U, np.int64), np.empty(U, np.int64)
    for m in range(len(s.units)):
        units, seen, shown = s.units[m], s.seen[m], s.shown[m]
        _see(units, team, seen, eyes)
        for side in range(2):
            _list_creeps(units, team, side, seen, known, keys, shown)
            _list_others(units, team, side, seen, shown)


# Observations of all seats, as LaneWorld.obs declares their parts, float32 [n, P, …].
LaneSight = namedtuple("LaneSight", "own allies enemies creeps towers last_action")


@compiled
def _left(until: int, age: int) -> int:
    return max(until - age - 1, 0)  # an action at this age takes effect at age + 1


@compiled
def _know(units: np.ndarray, heroes: np.ndarray, age: int, facts: np.ndarray) -> None:
    """Write the features of each unit that are the same for all observers into `facts`, float32 [U, 6].

    A hero's features are the columns of moba_world.HERO from "health" on. A creep's only feature is its health. A
    building's features are its health, its kind, and whether it can be hurt.
    """
    team, half = len(heroes) // 2, len(units) // 2
    towers = 2 * w.count_lanes(units, team)
    for p in range(2 * team):
        u, h = w.unit_of(units, team, p), heroes[p]
        facts[u, 0], facts[u, 1] = units[u, w.HEALTH] / units[u, w.MOST], units[u, w.MOST] / 1000.0
        facts[u, 2], facts[u, 3] = h[w.MANA] / w.most_mana(heroes, p), h[w.LEVEL] / w.TOP_LEVEL
        facts[u, 4], facts[u, 5] = w.strength(heroes, p) / 100.0, _left(units[u, w.READY], age) / w.RELOAD
    for first in (0, half):
        for u in range(first + team, first + half - 1 - towers):
            facts[u, 0] = units[u, w.HEALTH] / w.CREEP_HEALTH
        for i in range(towers + 1):
            u = first + half - 1 - towers + i
            facts[u, 0], facts[u, 1] = units[u, w.HEALTH] / units[u, w.MOST], 1.0 if i == towers else 0.5 * (i % 2)
            facts[u, 2] = 1.0 if w.is_open(units, team, u) else 0.0


@compiled
def _lead_of(units: np.ndarray, team: int) -> float:
    """Return side 0's lead in total health of buildings, scaled to lie between -1 and 1. This lead decides a match that
    reaches its time limit.
    """
    half, first, ahead = len(units) // 2, team + w.SLOTS * w.count_lanes(units, team), 0
    for k in range(first, half):
        ahead += units[k, w.HEALTH] - units[half + k, w.HEALTH]
    return ahead / (abs(ahead) + w.TOWER_HEALTH / 4.0)


@compiled
def _show_own(units: np.ndarray, heroes: np.ndarray, facts: np.ndarray, p: int, age: int, out: np.ndarray) -> None:
    """Write the features of seat p's own hero, except age and lead, into `out`, in the order of moba_world.OWN."""
    team, h = len(heroes) // 2, heroes[p]
    u, level, y = w.unit_of(units, team, p), h[w.LEVEL], w.middle(w.count_lanes(units, team))
    side = 1 if p >= team else 0
    out[0] = 1.0 if units[u, w.HEALTH] > 0 else 0.0
    out[1], out[2] = w.forward(side, units[u, w.X]) * (2.0 / w.WIDTH) - 1.0, units[u, w.Y] / y - 1.0
    for k in range(4):
        out[3 + k] = facts[u, k]
    learnt = (h[w.EXPERIENCE] - w.TO_LEVEL * level * (level - 1)) / (2.0 * w.TO_LEVEL * level)
    out[7] = learnt if level < w.TOP_LEVEL else 1.0
    out[8], out[9], out[10] = h[w.GOLD] / 2000.0, facts[u, 4], facts[u, 5]
    out[11], out[12] = _left(h[w.BOLT], age) / w.BOLT_WAIT, _left(h[w.BLAST], age) / w.BLAST_WAIT
    out[13], out[14] = _left(h[w.HEAL], age) / w.HEAL_WAIT, _left(h[w.RETURNS], age) / RETURN_MOST
    out[16] = (p - side * team) / 4.0


@compiled
def _show_action(hero: np.ndarray, out: np.ndarray) -> None:
    """Write a hero's last action into `out`: primary as one-hot, then offset ahead and aside, then delay."""
    out[hero[w.PRIMARY]] = 1.0
    out[8] = (hero[w.OFFSET] % w.OFFSETS - w.OFFSETS // 2) / (w.OFFSETS // 2)
    out[9] = (hero[w.OFFSET] // w.OFFSETS - w.OFFSETS // 2) / (w.OFFSETS // 2)
    out[10] = hero[w.DELAY] / (w.DELAYS - 1)


@compiled
def _show(units: np.ndarray, facts: np.ndarray, u: int, v: int, first: int, n: int, out: np.ndarray) -> None:
    """Write what hero `u` sees of unit `v` into `out`: "there", "dx" and "dy", then `n` features from `facts`."""
    ahead = (1.0 / w.NEAR) if u < len(units) // 2 else -(1.0 / w.NEAR)
    out[0], out[1] = 1.0, (units[v, w.X] - units[u, w.X]) * ahead
    out[2] = (units[v, w.Y] - units[u, w.Y]) * (1.0 / w.NEAR)
    for k in range(n):
        out[first + k] = facts[v, k]


@compiled
def observe(s: w.LaneMatches, length: int, seen: LaneSight) -> None:
    """Write the observations of all seats (players) into the arrays of `seen`, which must be zeros."""
    team, U, facts = s.heroes.shape[1] // 2, s.units.shape[1], np.empty((s.units.shape[1], 6), np.float32)
    allies, enemies, creeps, towers = seen.allies, seen.enemies, seen.creeps, seen.towers
    A, C, T = allies.shape[2], creeps.shape[2], towers.shape[2]
    for m in range(len(s.units)):
        units, heroes, age = s.units[m], s.heroes[m], s.age[m]
        _know(units, heroes, age, facts)
        y, lead = 1.0 / w.middle(w.count_lanes(units, team)), _lead_of(units, team)
        for p in range(2 * team):
            u, hit, own = w.unit_of(units, team, p), w.strength(heroes, p), seen.own[m, p]
            side = 1 if p >= team else 0
            _show_own(units, heroes, facts, p, age, own)
            own[15], own[17] = age / length, (-lead if side else lead)
            _show_action(heroes[p], seen.last_action[m, p])
            for i in range(A + team + C + T):
                v = np.int64(s.shown[m, p, i])
                mine = (v >= U // 2) == (p >= team)
                if v < 0:
                    continue
                if i < A + team:
                    out = allies[m, p, i] if i < A else enemies[m, p, i - A]
                    _show(units, facts, u, v, 5, 6, out)
                    out[3], out[4] = w.forward(side, units[v, w.X]) * (2.0 / w.WIDTH) - 1.0, units[v, w.Y] * y - 1.0
                elif i < A + team + C:
                    out = creeps[m, p, i - A - team]
                    _show(units, facts, u, v, 3, 1, out)
                    out[4], out[5] = (1.0, 0.0) if mine else (-1.0, 1.0 if units[v, w.HEALTH] <= hit else 0.0)
                else:
                    out = towers[m, p, i - A - team - C]
                    _show(units, facts, u, v, 3, 1, out)
                    out[4], out[5], out[6] = (1.0 if mine else -1.0), facts[v, 1], facts[v, 2]


# Rewards of heroes: shaped terms, and how teams share them (Berner et al. 2019, appendix G).


REWARDS = {
    "win": 5.0,
    "death": -1.0,
    "experience": 0.002,
    "gold": 0.006,
    "health": 2.0,  # per full health, weighted by moba_rules.worth_of_health
    "mana": 0.75,
    "killed_hero": -0.6,  # negative, as gold and experience reward a kill too
    "last_hit": -0.16,
    "outer_tower": 2.25,  # two thirds as the tower's health falls, a third when the tower falls
    "inner_tower": 4.5,
    "core": 5.0,  # as the core's health falls
}
EVENTS = tuple(REWARDS)
SHARES = OWN_REWARD, TEAM_REWARD  # further events: the hero's reward, and the mean reward of its team
DECAY, DECAY_TIME = 0.6, 600 * w.STEPS_A_SECOND  # all rewards but the win are multiplied by DECAY every ten minutes


DOT = 50  # units of length (thousandths of a cell) per pixel
GROUND, ROAD, BACK = (58, 84, 54), (112, 100, 74), (24, 24, 24)
RIM = (240, 240, 230)
SIDES = ((214, 62, 56), (66, 120, 226))
GREEN, SKY = (96, 220, 96), (120, 190, 255)
HERO, CREEP, TOWER, CORE = 8, 3, 9, 16  # pixels from the middle of a unit to its edge
BAR = 3  # height of a bar in pixels


def draw_lanes(s: Batch, m: int) -> np.ndarray:
    """Return an image of match m, uint8 [H, W, 3], with side 0's core to the left. Heroes are discs with bars of health
    and mana. Creeps are dots. Towers and cores are squares with a bar of health.
    """
    units, heroes, lanes = s["units"][m], s["heroes"][m], s["wave"].shape[2]
    half, team, y = len(units) // 2, len(heroes) // 2, w.FIRST_LANE + w.LANE_APART * (lanes - 1) // 2
    out = np.empty((2 * y // DOT, w.WIDTH // DOT, 3), np.uint8)
    out[:] = GROUND
    for lane in range(lanes):
        _road(out, y, w.FIRST_LANE + w.LANE_APART * lane)
    order = [*range(team + w.SLOTS * lanes, half), *range(team, team + w.SLOTS * lanes), *range(team)]  # heroes on top
    for k, side in ((k, side) for k in order for side in range(2)):
        unit = units[side * half + k]
        if unit[w.HEALTH] <= 0:
            continue
        size = HERO if k < team else CORE if k == half - 1 else TOWER if k >= team + w.SLOTS * lanes else CREEP
        column, row = int(unit[w.X]) // DOT, int(unit[w.Y]) // DOT
        if size == HERO:
            _mark(out, column, row, size + 2, False, RIM)
        _mark(out, column, row, size, k >= team + w.SLOTS * lanes, SIDES[side])
        if size != CREEP:
            _bar(out, column, row - size - 2 * BAR - 1, unit[w.HEALTH] / unit[w.MOST], GREEN)
        if size == HERO:
            p = side * team + k
            _bar(out, column, row - size - BAR - 1, heroes[p, w.MANA] / w.most_mana(heroes, p), SKY)
    return out


def _road(out: np.ndarray, y: int, lane_y: int) -> None:
    ends = [(w.CORE_X, y), (w.TURN_X, lane_y), (w.WIDTH - w.TURN_X, lane_y), (w.WIDTH - w.CORE_X, y)]
    for (x0, y0), (x1, y1) in itertools.pairwise(ends):
        for part in np.linspace(0.0, 1.0, 400):
            column, row = int(x0 + part * (x1 - x0)) // DOT, int(y0 + part * (y1 - y0)) // DOT
            out[row - 4 : row + 5, column - 4 : column + 5] = ROAD


def _mark(out: np.ndarray, column: int, row: int, size: int, square: bool, color: tuple[int, int, int]) -> None:
    top, left = max(row - size, 0), max(column - size, 0)
    part = out[top : row + size + 1, left : column + size + 1]
    y, x = np.ogrid[top : top + part.shape[0], left : left + part.shape[1]]
    part[(y - row) ** 2 + (x - column) ** 2 <= (9 if square else 1) * size**2] = color


def _bar(out: np.ndarray, column: int, row: int, part: float, color: tuple[int, int, int]) -> None:
    row, left = max(row, 0), max(column - HERO, 0)
    out[row : row + BAR, left : column + HERO + 1] = BACK
    out[row : row + BAR, left : column - HERO + int(np.ceil(part * (2 * HERO + 1)))] = color

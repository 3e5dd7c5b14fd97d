"""Capture the flag as an environment, and scripted players (bots) in three roles and at five levels.

A bot has no memory. It chooses its action from the match's state, its seat (player number), and pseudo-random numbers
that are computed from both. Bots walk along shortest paths, turn to an opponent that they notice, and tag when they
expect a hit. The level of a bot sets how often the bot notices, pauses and tags, and how well it aims (SKILLS).
"""

from __future__ import annotations

import itertools
import math
from collections import namedtuple
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from polyplay.core import tree
from polyplay.core.compiled import compiled
from polyplay.core.numbers import SPLITMIX, mix
from polyplay.core.tree import Batch, Tree
from polyplay.envs.lane import Seats, StateBot
from polyplay.games import ctf_maps, ctf_views
from polyplay.games import ctf_rules as rules
from polyplay.games.ctf_rules import COS, EVENTS, RANGE, SIN, SPEED, TURN, FlagMatches, World
from polyplay.games.toys import Arrays, Draw, Toy

BOTS = ("level1", "level2", "level3", "level4", "level5", "attacker", "defender", "returner")
STEPS_A_SECOND = 15.0
HELD_OUT = np.uint64(1 << 63)  # bit that is set in the keys of held-out maps only


@dataclass(frozen=True)
class CaptureTheFlag(World, Toy):
    """Capture the flag, a game of two teams. World lists the options. A match is terminated after `length` steps."""

    events = EVENTS
    team_reward = True
    bots = {name: f"polyplay.games.ctf:{name}" for name in BOTS}  # noqa: RUF012

    def reset(self, draw: Draw, n: int) -> Arrays:
        s = self.arrays(n)
        keys, rooms = (draw() * 2.0**53).astype(np.uint64), draw() < 0.5
        if self.maps == "held_out":
            keys |= HELD_OUT
        if self.kind != "both":
            rooms[:] = self.kind == "rooms"
        for m in range(n):
            ctf_maps.draw_map(keys[m], rooms[m], s["grid"][m], s["base"][m], s["spawn"][m])
        rules.begin_matches(FlagMatches.of(s))
        return {**s, "here": np.ones((n, self.seats), bool)}

    def step(self, s: Arrays, action: Tree, draw: Draw) -> tuple[Arrays, Batch]:
        """Make `repeat` steps of all matches, in place."""
        n, P = s["here"].shape
        reward, events = np.zeros((n, P), np.float32), np.zeros((n, P, len(EVENTS)), np.float32)
        now, happened, chosen = np.empty_like(reward), np.empty_like(events), self.composite(action)
        matches, hit = FlagMatches.of(s), np.zeros(P, bool)
        for _ in range(self.repeat):
            rules.step_matches(matches, chosen, now, happened, hit)
            reward += now
            events += happened
        ends = np.repeat((s["age"] >= self.length)[:, None], P, 1)
        if self.reward == "win":
            lead = np.sign(s["score"][:, :1] - s["score"][:, 1:]) * ends
            reward[:] = np.where(np.array(self.teams) == 0, lead, -lead)
        row = {"reward": reward, "team_reward": reward, "events": events}
        return {**s, "here": ~ends}, {**row, "terminated": ends, "truncated": np.zeros_like(ends)}

    def picture(self, s: Arrays, m: int) -> tuple[np.ndarray, float]:
        """See Toy.picture."""
        return ctf_views.draw_match(s, m), STEPS_A_SECOND / self.repeat

    def see(self, s: Arrays) -> Tree:
        seen = tree.zeros(self.obs, s["here"].shape)
        ctf_views.know(FlagMatches.of(s), self.length, seen["facts"])
        draw = ctf_views.draw_windows if self.view == "window" else ctf_views.draw_first_person
        draw(FlagMatches.of(s), seen["view"])
        return seen


ANY, ATTACKER, DEFENDER, RETURNER = range(-1, 3)  # roles of bots; ANY: the place in the team decides
POST = 60  # steps that a defender stays at one spawn point
HIDING = 5  # most moves from the base to a place where a flag carrier hides
TRAVELS, FIGHTS = 0.00125, 0.0025  # cost of a wrong heading, in cells of walking per part of a circle
HIT = 10.0  # value of an expected hit, in cells of walking
ENOUGH = 0.001  # least improvement that counts, in cells of walking
# all ways to tag, turn and walk; among equally good ways, bots choose the first
_WAYS = itertools.product((1, 0), (2, 1, 3, 0, 4), (2, 1, 0), (1, 2, 0))
ALL = np.array([(yaw, 1, strafe, forward, tag, 0) for tag, yaw, forward, strafe in _WAYS])
FEW = np.array(rules.SMALL)
_YAW = np.array(rules.YAW)

Point = tuple[float, float]
_mix = compiled(mix)


class Skill(NamedTuple):
    """Parameters of a bot's strength."""

    block: int  # steps of a block: a bot notices, pauses and errs in whole blocks
    notices: float  # chance per block that the bot notices opponents in sight
    pauses: float  # chance per block that the bot stands still
    off: int  # largest error of the aim in a block, in parts of a circle (TURN parts)
    fires: float  # chance per step that the bot tags when a hit is expected


SKILLS = (
    Skill(15, 0.2, 0.4, 300, 0.1),
    Skill(12, 0.3, 0.3, 220, 0.15),
    Skill(10, 0.4, 0.2, 150, 0.2),
    Skill(8, 0.5, 0.1, 100, 0.28),
    Skill(6, 0.6, 0.0, 60, 0.35),
)


# Results of the last flood, see ctf_maps.flood. held: the flood's match, start cell and number of cells reached.
Floods = namedtuple("Floods", "moves order held")


@compiled
def _draw(s: FlagMatches, m: int, p: int, block: int, n: int) -> float:
    """Return pseudo-random number `n` of seat `p` in a block of steps, uniform in [0, 1)."""
    key = np.uint64(s.score[m, 0] * 1024 + s.score[m, 1])
    for q in range(s.spawn.shape[1]):
        cell = np.uint64(int(s.spawn[m, q, 1]) * s.grid.shape[1] + int(s.spawn[m, q, 0]))
        key = key * SPLITMIX + cell
    key = _mix(key + np.uint64(p)) + np.uint64(block) * SPLITMIX
    return np.int64(_mix(_mix(key) + np.uint64(n)) >> np.uint64(11)) * 2.0**-53


@compiled
def _lead_to(s: FlagMatches, m: int, x: float, y: float, floods: Floods) -> None:
    """Write the shortest paths to the cell of point (x, y) into `floods`. Do nothing if `floods` already holds them."""
    N = s.grid.shape[1]
    cell = int(y) * N + int(x)
    if floods.held[0] != m or floods.held[1] != cell:
        floods.held[0], floods.held[1] = m, cell
        floods.held[2] = ctf_maps.flood(s.grid[m], cell, floods.moves, floods.order)


@compiled
def _sees(s: FlagMatches, m: int, p: int, x: float, y: float) -> bool:
    dx, dy = x - s.at[m, p, 0], y - s.at[m, p, 1]
    return bool(dx * dx + dy * dy <= RANGE * RANGE and rules.clear(s.grid[m], s.at[m, p, 0], s.at[m, p, 1], x, y))


@compiled
def _opponent(s: FlagMatches, m: int, p: int) -> int:
    """Return the nearest opponent in sight of seat `p`, flag carriers first. Return -1 if none is in sight."""
    P, best, nearest = s.at.shape[1], -1, 0.0
    first = P // 2 if p < P // 2 else 0
    for q in range(first, first + P // 2):
        dx, dy = s.at[m, q, 0] - s.at[m, p, 0], s.at[m, q, 1] - s.at[m, p, 1]
        far = dx * dx + dy * dy
        if s.carrier[m, 0] == q or s.carrier[m, 1] == q:
            far -= 2.0 * RANGE * RANGE
        if (best < 0 or far < nearest) and _sees(s, m, p, s.at[m, q, 0], s.at[m, q, 1]):
            best, nearest = q, far
    return best


@compiled
def _hiding_place(s: FlagMatches, m: int, own: int, floods: Floods) -> Point:
    """Return a point near the base of team `own` that no opponent sees. If no such point exists, return the base."""
    N, n = s.grid.shape[1], s.at.shape[1] // 2
    _lead_to(s, m, s.base[m, own, 0], s.base[m, own, 1], floods)
    for cell in floods.order[: floods.held[2]]:
        if floods.moves[cell] > HIDING:
            break
        x, y, seen = cell % N + 0.5, cell // N + 0.5, False
        for q in range((1 - own) * n, (2 - own) * n):
            seen = seen or _sees(s, m, q, x, y)
        if not seen:
            return x, y
    return s.base[m, own, 0], s.base[m, own, 1]


@compiled
def _half_way(s: FlagMatches, m: int, own: int, floods: Floods) -> Point:
    """Return the point at a quarter of the shortest path from the base of team `own` to the other base."""
    N = s.grid.shape[1]
    _lead_to(s, m, s.base[m, 1 - own, 0], s.base[m, 1 - own, 1], floods)
    cell = int(s.base[m, own, 1]) * N + int(s.base[m, own, 0])
    for _ in range(floods.moves[cell] // 4):
        cell = ctf_maps.next_cell(N, floods.moves, cell)
    return cell % N + 0.5, cell // N + 0.5


@compiled
def _goal(s: FlagMatches, m: int, p: int, role: int, floods: Floods) -> Point:
    """Return the point to which seat `p` walks. It depends on the seat's role and on the states of the flags."""
    P = s.at.shape[1]
    own, half = (0, 0) if p < P // 2 else (1, P // 2)
    away, theirs = s.flag[m, own] != rules.HOME, s.carrier[m, 1 - own]
    if theirs == p:
        if not away:
            return s.base[m, own, 0], s.base[m, own, 1]
        if P > 2 and s.flag[m, own] == rules.CARRIED:  # teammates fetch the team's flag
            return _hiding_place(s, m, own, floods)
    if away and (role != ATTACKER or theirs >= 0):
        return s.flag_at[m, own, 0], s.flag_at[m, own, 1]
    if role == ATTACKER:
        return s.flag_at[m, 1 - own, 0], s.flag_at[m, 1 - own, 1]
    if role == RETURNER:
        return _half_way(s, m, own, floods)
    post = half + int(_draw(s, m, p, s.age[m] // POST, 0) * (P // 2))
    return s.spawn[m, post, 0], s.spawn[m, post, 1]


@compiled
def _turned(yaw: int, turn: int) -> int:
    yaw += turn
    return yaw + (TURN if yaw < 0 else -TURN if yaw >= TURN else 0)  # faster than a remainder


@compiled
def _best(
    s: FlagMatches, m: int, p: int, to: Point, face: Point, worth: float, tags: bool, actions: np.ndarray, repeat: int
) -> int:
    """Return the index of the best action for seat `p` in `actions`, int64 [K, 6]. The action is held for `repeat`
    steps. A good action ends near the point `to`, and turns the player toward the point `face`.

    `worth`: cost of a wrong heading, in cells of distance per part of a circle (1 / TURN).
    `tags`: whether the player may tag.
    """
    grid, x, y, yaw = s.grid[m], s.at[m, p, 0], s.at[m, p, 1], s.yaw[m, p]
    best, least, wanted = 0, np.inf, rules.heading(face[0] - x, face[1] - y)
    near = math.sqrt((to[0] - x) ** 2 + (to[1] - y) ** 2) - repeat * SPEED + ENOUGH  # no action ends nearer to `to`
    for k in range(len(actions)):
        tag, turn = actions[k, 4] == 1, _YAW[actions[k, 0]]
        if tag and not tags:
            continue
        off = abs(wanted - _turned(yaw, repeat * turn % TURN))
        cost = worth * min(off, TURN - off) - (HIT if tag else 0.0)
        if near + cost >= least:
            continue
        turned = _turned(yaw, turn)
        at_x, at_y = rules.moved(grid, x, y, turned, actions[k, 2], actions[k, 3])
        dx, dy = face[0] - at_x, face[1] - at_y
        misses = abs(dy * COS[turned] - dx * SIN[turned]) > rules.WIDTH or dx * COS[turned] + dy * SIN[turned] <= 0.0
        for _ in range(1, repeat):
            turned = _turned(turned, turn)
            at_x, at_y = rules.moved(grid, at_x, at_y, turned, actions[k, 2], actions[k, 3])
        cost += math.sqrt((to[0] - at_x) ** 2 + (to[1] - at_y) ** 2)
        if cost < least and not (tag and misses):
            best, least = k, cost
    return best


@compiled
def _choose(
    s: FlagMatches, m: int, p: int, role: int, skill: Skill, actions: np.ndarray, repeat: int, floods: Floods
) -> int:
    """Choose an action for seat `p` to hold for `repeat` steps. Return its index in `actions`."""
    x, y, block = s.at[m, p, 0], s.at[m, p, 1], s.age[m] // skill.block
    if role == ANY:
        role = p % (s.at.shape[1] // 2) % 3
    to = x, y
    if _draw(s, m, p, block, 1) >= skill.pauses:
        goal_x, goal_y = _goal(s, m, p, role, floods)
        _lead_to(s, m, goal_x, goal_y, floods)
        to = ctf_maps.waypoint(s.grid[m], floods.moves, x, y, goal_x, goal_y)
    q = _opponent(s, m, p) if _draw(s, m, p, block, 2) < skill.notices else -1
    if q >= 0:
        dx, dy = s.at[m, q, 0] - x, s.at[m, q, 1] - y
        off = int((2.0 * _draw(s, m, p, block, 3) - 1.0) * skill.off)  # below 0, an index from the end
        face = x + dx * COS[off] - dy * SIN[off], y + dy * COS[off] + dx * SIN[off]
        tags = s.loads[m, p] <= 1 and _draw(s, m, p, s.age[m], 4) < 1.0 - (1.0 - skill.fires) ** repeat
        return _best(s, m, p, to, face, FIGHTS, tags, actions, repeat)
    middle = s.grid.shape[1] / 2
    face = to if abs(to[0] - x) + abs(to[1] - y) > SPEED else (middle, middle)
    return _best(s, m, p, to, face, TRAVELS, False, actions, repeat)


@compiled
def choose_all(
    s: FlagMatches, match: np.ndarray, seat: np.ndarray, role: int, skill: Skill, actions: np.ndarray, repeat: int
) -> np.ndarray:
    """Choose an action for each player. Return the indices in `actions`, int64 [K, 6]. Player i has seat `seat[i]` in
    match `match[i]`. An action is held for `repeat` steps.
    """
    out = np.empty(len(match), np.int64)
    cells = s.grid.shape[1] ** 2
    floods = Floods(np.empty(cells, np.int64), np.empty(cells, np.int64), np.full(3, -1))
    for i in range(len(match)):
        out[i] = _choose(s, match[i], seat[i], role, skill, actions, repeat, floods)
    return out


@dataclass(frozen=True)
class FlagBot(StateBot):
    """Scripted player of capture the flag, with a level from 1 to 5 and a role."""

    level: int
    role: int = ANY

    def __call__(self, obs: Tree, mask: Tree | None, seats: Seats) -> np.ndarray:
        world = seats.game
        few = world.actions == "small"
        actions, matches, skill = FEW if few else ALL, FlagMatches.of(seats.states), SKILLS[self.level - 1]
        out = choose_all(matches, seats.match, seats.seat, self.role, skill, actions, world.repeat)
        return out if few else actions[out]


level1, level2, level3, level4, level5 = (FlagBot(level) for level in (1, 2, 3, 4, 5))
attacker, defender, returner = (FlagBot(5, role) for role in (ATTACKER, DEFENDER, RETURNER))

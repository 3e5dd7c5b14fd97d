"""The lane game, a small MOBA (multiplayer online battle arena), as an environment, and scripted players (bots) at four
levels.

A bot has no memory. It chooses its action from the match's state, its seat (player number), and pseudo-random numbers
that are computed from both. Bots walk along a lane and attack enemies that they see. The level of a bot sets how often
and how well the bot decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from polyplay.core import tree
from polyplay.core.compiled import compiled
from polyplay.core.numbers import SPLITMIX, mix
from polyplay.core.tree import Batch, Tree
from polyplay.envs.lane import Seats, StateBot
from polyplay.games import moba_rules, moba_views
from polyplay.games import moba_world as w
from polyplay.games.moba_world import LaneWorld
from polyplay.games.toys import Arrays, Draw, Toy

BOTS = ("level1", "level2", "level3", "level4")


@dataclass(frozen=True)
class LaneGame(LaneWorld, Toy):
    """The lane game. LaneWorld lists the options. A match is terminated when a core (main building) has fallen, or
    after `length` steps.
    """

    events = (*moba_views.EVENTS, *moba_views.SHARES)
    team_reward = True
    uses = w.USES  # for each part of an action, the values of `primary` that use it
    bots = {name: f"polyplay.games.moba:{name}" for name in BOTS}  # noqa: RUF012

    @cached_property
    def _weights(self) -> np.ndarray:
        """Factor of shaped rewards at each age of a match, float64 [length + 1]."""
        return np.asarray(moba_views.DECAY ** (np.arange(self.length + 1) / moba_views.DECAY_TIME))

    def reset(self, draw: Draw, n: int) -> Arrays:
        s = self.arrays(n)
        s["key"][:] = (draw() * 2.0**53).astype(np.uint64)
        moba_rules.start_matches(self, s, draw)
        moba_views.look(w.LaneMatches.of(s))
        return {**s, "here": np.ones((n, self.seats), bool)}

    def step(self, s: Arrays, action: Tree, draw: Draw) -> tuple[Arrays, Batch]:
        """Make `repeat` steps of all matches, in place."""
        n, P = s["here"].shape
        events, chosen = np.zeros((n, P, len(moba_views.EVENTS))), np.stack([action[k] for k in w.PARTS], -1)
        matches = w.LaneMatches.of(s)
        moba_rules.step_lanes(matches, chosen, self.repeat, events)
        moba_views.look(matches)
        lead, ends = self._lead(s)
        ended = np.repeat(ends[:, None], P, 1)
        won = np.repeat((lead * ends)[:, None] * (1.0, -1.0), self.team, 1)
        events[:, :, moba_views.EVENTS.index("win")] = won > 0
        own = won if self.reward == "win" else self.shaped(events, s["age"])
        shared = np.repeat(own.reshape(n, 2, -1).mean(2), self.team, 1)
        events = np.concatenate([events, np.stack([own, shared], -1)], -1)
        row = {"reward": own + 0.0, "team_reward": won, "events": events}
        return {**s, "here": ~ended}, {**row, "terminated": ended, "truncated": np.zeros_like(ended)}

    def _lead(self, s: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """Return the side that is ahead in each match (1: side 0, -1: side 1, 0: neither), and whether each match ends.
        A side whose core has fallen is behind. Otherwise, the side with more total health of cores and towers is ahead.
        """
        half, team = s["units"].shape[1] // 2, self.team
        health = s["units"][:, :, w.HEALTH].reshape(-1, 2, half)
        fallen = health[:, :, -1] == 0
        standing = np.where(fallen, -1, health[:, :, team + w.SLOTS * self.lanes :].sum(2))
        return np.sign(standing[:, 0] - standing[:, 1]), fallen.any(1) | (s["age"] >= self.length)

    def shaped(self, events: np.ndarray, age: np.ndarray) -> np.ndarray:
        """Return each seat's shaped reward [n, P], for `events` [n, P, 11] in matches of ages [n].

        A seat's score ρ is the sum of its events times REWARDS. At time t, all terms of ρ but the win are multiplied by
        0.6^(t / 10 min). The reward is ρ minus the mean ρ of the enemies, so rewards sum to 0 over all seats.
        """
        shaped = np.zeros(events.shape[:2])
        for k, name in enumerate(moba_views.EVENTS[1:], 1):
            shaped += moba_views.REWARDS[name] * events[:, :, k]
        reward = moba_views.REWARDS["win"] * events[:, :, 0] + self._weights[age][:, None] * shaped
        teams = reward.reshape(len(reward), 2, -1)
        return np.asarray(teams - teams.mean(2, keepdims=True)[:, ::-1]).reshape(reward.shape)

    def legal(self, s: Arrays) -> Tree:
        """Return masks of legal actions: "primary", bool [n, P, 8], and "unit", bool [n, P, 8, rows]."""
        masks = {k: np.empty((*s["here"].shape, *field.shape), bool) for k, field in self.legality.items()}
        w.legal_actions(w.LaneMatches.of(s), masks["primary"], masks["unit"])
        return masks

    def picture(self, s: Arrays, m: int) -> tuple[np.ndarray, float]:
        """See Toy.picture."""
        return moba_views.draw_lanes(s, m), w.STEPS_A_SECOND / self.repeat

    def see(self, s: Arrays) -> Tree:
        out = tree.zeros(self.obs, s["here"].shape)
        moba_views.observe(w.LaneMatches.of(s), self.length, moba_views.LaneSight(**out))
        return out


NOTICES = 6000  # distance within which bots attack enemies, in thousandths of a cell
BEHIND = 1500  # distance that bots keep behind the foremost creep
SAFE = 500  # distance that bots keep from a tower's range
MIDDLE = w.OFFSETS // 2

_mix = compiled(mix)


class LaneSkill(NamedTuple):
    """Parameters of a bot's strength."""

    holds: int  # agent steps from one decision to the next
    casts: float  # chance per decision that the bot uses a helpful ability
    flees: float  # fraction of full health below which the bot goes home
    farms: bool  # whether the bot seeks last hits, and attacks the weakest hero in reach
    careful: bool  # whether the bot approaches towers only behind creeps


SKILLS = (
    LaneSkill(8, 0.0, 0.0, False, False),
    LaneSkill(8, 0.1, 0.1, False, False),
    LaneSkill(4, 0.4, 0.2, True, False),
    LaneSkill(1, 1.0, 0.3, True, True),
)


@compiled
def _draw(key: np.uint64, p: int, age: int) -> float:
    """Return a pseudo-random number in [0, 1), computed from a match's key, a seat and an age."""
    mixed = _mix(key * SPLITMIX + np.uint64(p)) + np.uint64(age) * SPLITMIX
    return np.int64(_mix(mixed) >> np.uint64(11)) * 2.0**-53


@compiled
def _choose_enemy(
    units: np.ndarray, team: int, seen: np.ndarray, p: int, first: int, last: int, reach: int, most: int, weakest: bool
) -> int:
    """Return the nearest (if `weakest`, the weakest) enemy that seat `p` can attack, or -1 if no enemy fits.

    An enemy fits if it is unit `first` to `last` - 1 of its side, within `reach`, and has at most `most` health.
    """
    u, theirs, best, least = w.unit_of(units, team, p), (len(units) // 2 if p < team else 0), -1, 0
    for v in range(theirs + first, theirs + last):
        near = seen[v] and w.gap2(units, u, v) <= reach * reach
        if near and units[v, w.HEALTH] <= most and w.can_attack(units, team, p, v):
            worth = int(units[v, w.HEALTH]) if weakest else w.gap2(units, u, v)
            if best < 0 or worth < least:
                best, least = v, worth
    return best


@compiled
def _move(units: np.ndarray, team: int, p: int, x: int, y: int, out: np.ndarray) -> None:
    """Write a move toward (x, y) into `out`. If the point is too far for one move, move in its direction."""
    u = w.unit_of(units, team, p)
    dx, dy = (x - units[u, w.X]) * (1 if p < team else -1), y - units[u, w.Y]
    far = max(math.sqrt(dx * dx + dy * dy) / (MIDDLE * w.CELL), 1.0)
    ahead, aside = round(dx / far / w.CELL), round(dy / far / w.CELL)
    out[0], out[2] = w.MOVE, (aside + MIDDLE) * w.OFFSETS + ahead + MIDDLE


@compiled
def _name(shown: np.ndarray, primary: int, v: int, out: np.ndarray) -> None:
    """Write the action `primary`, aimed at unit `v`, into `out`. Do nothing if `v` is not in `shown`."""
    for i in range(len(shown)):
        if shown[i] == v:
            out[0], out[1] = primary, i
            return


@compiled
def _go_on(units: np.ndarray, heroes: np.ndarray, shown: np.ndarray, p: int, out: np.ndarray) -> None:
    """Repeat the last action of seat `p`. If it was aimed at an enemy, attack the enemy."""
    team, primary, v = len(heroes) // 2, heroes[p, w.PRIMARY], np.int64(heroes[p, w.AIM])
    if w.can_attack(units, team, p, v):
        _name(shown, np.int64(w.ATTACK), v, out)
    elif primary == w.MOVE or (primary == w.GO_HOME and w.lacks(units, heroes, p)):
        out[0], out[2] = primary, heroes[p, w.OFFSET]


@compiled
def _cast(s: w.LaneMatches, m: int, p: int, out: np.ndarray) -> bool:
    """Use an ability if one helps: write the action into `out`, and return True. Otherwise, return False."""
    units, heroes, seen, shown, age = s.units[m], s.heroes[m], s.seen[m], s.shown[m, p], s.age[m]
    team, half = len(heroes) // 2, len(units) // 2
    u, creeps = w.unit_of(units, team, p), team + w.SLOTS * w.count_lanes(units, team)
    if w.can_use(heroes, p, np.int64(w.CAST_HEAL), age + 1):
        for v in range(u - p % team, u - p % team + team):
            if 0 < 2 * units[v, w.HEALTH] < units[v, w.MOST] and w.gap2(units, u, v) <= w.HEAL_RADIUS * w.HEAL_RADIUS:
                out[0] = w.CAST_HEAL
                return True
    if w.can_use(heroes, p, np.int64(w.CAST_BOLT), age + 1):
        v = _choose_enemy(units, team, seen, p, 0, team, w.CAST_RANGE, 1 << 30, True)
        if v >= 0:
            _name(shown, np.int64(w.CAST_BOLT), v, out)
            return True
    if w.can_use(heroes, p, np.int64(w.CAST_BLAST), age + 1):
        v = _choose_enemy(units, team, seen, p, 0, creeps, w.CAST_RANGE, 1 << 30, False)
        hit, first = 0, (half if p < team else 0)
        for c in range(first, first + creeps if v >= 0 else first):
            hit += 1 if units[c, w.HEALTH] > 0 and w.gap2(units, v, c) <= w.BLAST_RADIUS * w.BLAST_RADIUS else 0
        if hit >= 2:
            _name(shown, np.int64(w.CAST_BLAST), v, out)
            return True
    return False


@compiled
def _under_tower(units: np.ndarray, team: int, p: int) -> bool:
    """Tell whether seat `p` is near an enemy tower that has no creeps of the seat's side in its range."""
    half, u = len(units) // 2, w.unit_of(units, team, p)
    lanes, own = w.count_lanes(units, team), u // half * half
    creeps = team + w.SLOTS * lanes
    for v in range(half - own + creeps, half - own + half - 1):
        if units[v, w.HEALTH] > 0 and w.gap2(units, u, v) <= (w.TOWER_RANGE + SAFE) ** 2:
            near = False
            for c in range(own + team, own + creeps):
                near = near or (units[c, w.HEALTH] > 0 and w.gap2(units, v, c) <= w.TOWER_RANGE * w.TOWER_RANGE)
            if not near:
                return True
    return False


@compiled
def _advance(units: np.ndarray, team: int, p: int, lane: int, careful: bool, out: np.ndarray) -> None:
    """Move along a lane. A careful hero stays behind creeps or at its tower, others go toward the enemy core."""
    side, half = p // team, len(units) // 2
    y, ahead, lanes = w.FIRST_LANE + w.LANE_APART * lane, w.OUTER_X, w.count_lanes(units, team)
    first = side * half + team + w.SLOTS * lane
    for c in range(first, first + w.SLOTS):
        if units[c, w.HEALTH] > 0 and w.forward(side, units[c, w.X]) - BEHIND > ahead:
            ahead, y = w.forward(side, units[c, w.X]) - BEHIND, units[c, w.Y]
    if not careful:
        ahead = w.WIDTH - w.OUTER_X
        inner = (1 - side) * half + team + w.SLOTS * lanes + 2 * lane + 1
        if w.forward(side, units[w.unit_of(units, team, p), w.X]) >= ahead - w.CELL or units[inner, w.HEALTH] <= 0:
            ahead, y = w.WIDTH - w.CORE_X, w.FIRST_LANE + w.LANE_APART * (lanes - 1) // 2
    _move(units, team, p, w.forward(side, ahead), np.int64(y), out)


@compiled
def _think(s: w.LaneMatches, m: int, p: int, skill: LaneSkill, out: np.ndarray) -> None:
    """Choose an action for seat `p`, and write it into `out`, int64 [4], which must be zeros."""
    units, heroes, seen, shown, age = s.units[m], s.heroes[m], s.seen[m], s.shown[m, p], s.age[m]
    team = len(heroes) // 2
    u, lanes, hit = w.unit_of(units, team, p), w.count_lanes(units, team), w.strength(heroes, p)
    health, creeps, far, most = units[u, w.HEALTH] / units[u, w.MOST], team + w.SLOTS * lanes, NOTICES, 1 << 30
    if health < skill.flees or (skill.flees > 0.0 and health < 0.8 and w.at_home(units, team, u)):
        out[0] = w.GO_HOME
        return
    if _draw(s.key[m], p, age) < skill.casts and _cast(s, m, p, out):
        return
    if skill.careful and _under_tower(units, team, p):
        out[0], out[2] = w.MOVE, MIDDLE * w.OFFSETS  # move straight back
        return
    v = -1
    if skill.farms:
        v = _choose_enemy(units, team, seen, p, team, creeps, w.RANGE + w.CELL, hit, False)
        if v < 0:
            v = _choose_enemy(units, team, seen, p, 0, team, w.RANGE + w.CELL, most, True)
        if v < 0:
            v = _choose_enemy(units, team, seen, p, creeps, len(units) // 2, w.RANGE + w.CELL, most, False)
    if v < 0:
        v = _choose_enemy(units, team, seen, p, 0, len(units) // 2, far, most, False)
    if v >= 0:
        _name(shown, np.int64(w.ATTACK), v, out)
        return
    _advance(units, team, p, p % team % lanes, skill.careful, out)


@compiled
def choose_lane_actions(
    s: w.LaneMatches, match: np.ndarray, seat: np.ndarray, skill: LaneSkill, repeat: int, out: np.ndarray
) -> None:
    """Write each player's action into `out`, int64 [n, 4]. Player i has seat `seat[i]` in match `match[i]`."""
    out[:] = 0
    for i in range(len(match)):
        m, p = match[i], seat[i]
        if s.units[m, w.unit_of(s.units[m], s.heroes.shape[1] // 2, p), w.HEALTH] <= 0:
            continue
        if (s.age[m] // repeat + p) % skill.holds:
            _go_on(s.units[m], s.heroes[m], s.shown[m, p], p, out[i])
        else:
            _think(s, m, p, skill, out[i])


@dataclass(frozen=True)
class LaneBot(StateBot):
    """Scripted player of the lane game, with a level from 1 to 4."""

    level: int

    def __call__(self, obs: Tree, mask: Tree | None, seats: Seats) -> Tree:
        out = np.empty((len(seats.match), 4), np.int64)
        matches, skill = w.LaneMatches.of(seats.states), SKILLS[self.level - 1]
        choose_lane_actions(matches, seats.match, seats.seat, skill, seats.game.repeat, out)
        return {name: out[:, i].copy() for i, name in enumerate(w.PARTS)}


level1, level2, level3, level4 = (LaneBot(level) for level in (1, 2, 3, 4))

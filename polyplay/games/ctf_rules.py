"""Capture the flag: options, state arrays and rules, compiled for many matches at once.

A step has four stages. First, all players turn and move. Then players tag from the new positions. Then players that are
hit drop the flag that they carry, and return to their spawns (starting points). Then players return, pick up and
capture flags by touch.
"""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyplay.core.compiled import cached_njit
from polyplay.core.tree import Batch, Field, Spec, Tree
from polyplay.envs.pool import need
from polyplay.envs.spaces import ActionSpec, Discrete, MultiDiscrete

# A map has N × N cells, wall or free. A rotation by 180° gives the same map with the bases swapped: cell [r, c] equals
# cell [N-1-r, N-1-c]. Positions (x, y) are in cells, x to the right and y downward: cell [r, c] covers r ≤ y < r + 1
# and c ≤ x < c + 1. Headings are integers, TURN for a full circle: 0 is right, TURN / 4 is down. Pitches have the same
# unit; above 0 is up. Sines come from a rounded table, so no match depends on how a machine computes a sine.
#
# With n players per team, seats 0 … n-1 are team 0, and seats n … 2n-1 are team 1.


TURN = 3600  # parts of a full circle, the unit of angles
HOME, CARRIED, DROPPED = range(3)  # states of a flag
FREE, WALL = 0, 1
EVENTS = (  # counts per step and seat; "teammate": another player of the team; "opponent": any of the other team
    *(f"{who}{what}" for who in ("", "teammate_", "opponent_") for what in ("picked_up", "captured", "returned")),
    *("tagged_carrier", "tagged_other", "was_tagged_carrying", "was_tagged"),
)
YAW = (-200, -33, 0, 33, 200)  # choices of turns, in parts of a circle per step; five, as Jaderberg et al. 2019
PITCH = (-50, 0, 50)
STEEPEST = 400  # greatest pitch up or down, in parts of a circle
SPEED = 0.21  # cells per step of 1/15 s, forward, sideways or diagonally
RADIUS = 0.25  # least distance from the middle of a player to a wall, in cells
BODY, EYE = 0.7, 0.5  # heights of a body and its eyes, in cells; a wall is 1 high
JUMP, GRAVITY = 0.09, 0.012  # upward speed at a jump, in cells per step; decrease of this speed per step
REACH = 0.6  # distance at which a player touches a flag or a base, in cells
RANGE, WIDTH = 8.0, 0.3  # range of a tag, and half the width of a body that a tag hits, in cells
RELOAD = 8  # least number of steps from one tag of a player to the next
# the small set of actions; the digits choose yaw, pitch, strafe, forward, tag, jump
_DIGITS = "211100 211200 211000 210100 212100 011100 411100 111200 311200 211210 211110"
SMALL = tuple(tuple(map(int, digits)) for digits in _DIGITS.split())
COMPOSITE = MultiDiscrete((6,), (5, 3, 3, 3, 2, 2))  # strafe: left, none, right; forward: back, none, forward
SIN = np.round(np.sin(np.arange(TURN) * (2 * np.pi / TURN)), 12)
COS = np.round(np.cos(np.arange(TURN) * (2 * np.pi / TURN)), 12)
KINDS, SETS, VIEWS, ACTIONS = ("rooms", "open", "both"), ("train", "held_out"), ("window", "pixels"), ("all", "small")
REWARDS = ("captures", "win")
SEEN, FACTS = 11, 12  # cells per side of the window view; number of other observed values


@dataclass(frozen=True)
class World:
    """Options of the environment arena:ctf.

    `view`: "window" (planes of 11 × 11 cells around the player, who looks upward) or "pixels" (first person).
    `actions`: "all" (the 540 actions of Jaderberg et al. 2019) or "small" (eleven of the 540).
    `maps`: set of random maps, "train" or "held_out".
    `kind`: kind of maps, "rooms", "open" or "both".
    `reward`: "captures" (1 for a capture, -1 for one by the opponents) or "win" (1 for a won match, -1 for a lost one).
    """

    view: str = "window"
    actions: str = "all"
    team: int = 2  # number of players per team
    size: int = 13  # cells per side of a map, an odd number
    length: int = 4500  # steps of a match, 15 per second
    repeat: int = 1  # steps for which an action is held; these are one agent step
    kind: str = "both"
    maps: str = "train"
    reward: str = "captures"

    def __post_init__(self) -> None:
        choices = {"view": VIEWS, "actions": ACTIONS, "kind": KINDS, "maps": SETS, "reward": REWARDS}
        for name, allowed in choices.items():
            value = vars(self)[name]
            need(value in allowed, f"arena:ctf: {name} must be one of {', '.join(allowed)}; got {value}")
        odd = 9 <= self.size <= 99 and self.size % 2 == 1
        need(odd, f"arena:ctf: size must be an odd number from 9, so that two bases fit, to 99; got {self.size}")
        good = 1 <= self.team <= 8 and self.length >= 1 and self.repeat >= 1
        got, sides = f"team={self.team}, length={self.length}, repeat={self.repeat}", "1 to 8 players per team"
        need(good, f"arena:ctf: needs {sides}, length ≥ 1 and repeat ≥ 1, got {got}")
        whole = self.length % self.repeat == 0
        need(whole, f"arena:ctf: length must be a multiple of repeat={self.repeat}, got {self.length}")

    seats = property(lambda self: 2 * self.team)
    teams = property(lambda self: (0,) * self.team + (1,) * self.team)

    @property
    def action(self) -> ActionSpec:
        return COMPOSITE if self.actions == "all" else Discrete(len(SMALL))

    @cached_property
    def obs(self) -> Spec:
        view = Field((3, 84, 84), "uint8") if self.view == "pixels" else Field((len(PLANES), SEEN, SEEN), "uint8")
        return {"facts": Field((FACTS,), "float32"), "view": view}

    def arrays(self, n: int) -> Batch:
        """Return new arrays for `n` matches with P seats (players). The last axis of positions is (x, y)."""
        N, P = self.size, self.seats
        return {
            "grid": np.zeros((n, N, N), np.uint8),
            "base": np.zeros((n, 2, 2)),  # home point of each team's flag
            "spawn": np.zeros((n, P, 2)),  # point where each seat starts and returns
            "at": np.zeros((n, P, 2)),
            "z": np.zeros((n, P)),  # height of the feet, in cells
            "rises": np.zeros((n, P)),  # upward speed, in cells per step
            "yaw": np.zeros((n, P), np.int64),
            "pitch": np.zeros((n, P), np.int64),
            "loads": np.zeros((n, P), np.int64),  # steps until a seat can tag again
            "flag": np.zeros((n, 2), np.int64),  # state of each team's flag: HOME, CARRIED, DROPPED
            "flag_at": np.zeros((n, 2, 2)),
            "carrier": np.full((n, 2), -1, np.int64),  # seat that carries each team's flag; -1: none
            "score": np.zeros((n, 2), np.int64),
            "age": np.zeros(n, np.int64),
        }

    def composite(self, action: Tree) -> np.ndarray:
        """Convert actions to composite actions [..., 6]. Actions of the full set are composite already."""
        given = np.asarray(action, np.int64)
        return given if self.actions == "all" else np.asarray(SMALL, np.int64)[given]


class FlagMatches(
    namedtuple("FlagMatches", "grid base spawn at z rises yaw pitch loads flag flag_at carrier score age")
):
    """The arrays of World.arrays, as a named tuple for compiled code."""

    @classmethod
    def of(cls, arrays: Batch) -> FlagMatches:
        return cls(*(arrays[name] for name in cls._fields))


PLANES = (
    *("dark", "wall", "mate", "opponent", "mate_carries", "opponent_carries"),
    *("own_flag", "their_flag", "own_base", "their_base"),
)

_YAW, _PITCH, _SLANTED = np.array(YAW), np.array(PITCH), math.sqrt(0.5)
_CORNER = 1e-9  # tolerance for a line through a corner, as a fraction of the line

compiled = cached_njit(_nrt=False)  # no reference counts: callers hold all arrays; these functions allocate none


@compiled
def hits_wall(grid: np.ndarray, x: float, y: float) -> bool:
    """Tell whether a body with its middle at (x, y) would overlap a wall."""
    left, right, top, bottom = int(x - RADIUS), int(x + RADIUS), int(y - RADIUS), int(y + RADIUS)
    upper = grid[top, left] == WALL or grid[top, right] == WALL
    return bool(upper or grid[bottom, left] == WALL or grid[bottom, right] == WALL)


@compiled
def clear(grid: np.ndarray, x: float, y: float, to_x: float, to_y: float) -> bool:
    """Tell whether no wall blocks the line from (x, y) to (to_x, to_y). The line may touch corners of walls."""
    c, r, dx, dy = int(x), int(y), to_x - x, to_y - y
    step_c, step_r = (1 if dx > 0 else -1), (1 if dy > 0 else -1)
    far = 2.0  # beyond the line's end, at 1
    across_c, across_r = (abs(1.0 / dx) if dx else far), (abs(1.0 / dy) if dy else far)  # part of the line per cell
    next_c = ((c + 1 - x) if dx > 0 else (x - c)) * across_c if dx else far
    next_r = ((r + 1 - y) if dy > 0 else (y - r)) * across_r if dy else far
    while min(next_c, next_r) < 1.0:
        by_c, by_r = next_c < next_r + _CORNER, next_r < next_c + _CORNER  # both: the line meets a corner
        if by_c:
            c, next_c = c + step_c, next_c + across_c
        if by_r:
            r, next_r = r + step_r, next_r + across_r
        if grid[r, c] == WALL:
            return False
    return True


@compiled
def moved(grid: np.ndarray, x: float, y: float, yaw: int, strafe: int, forward: int) -> tuple[float, float]:
    """Return the point that a body at (x, y) reaches in one step. A body slides along a wall in its way."""
    right, ahead = strafe - 1.0, forward - 1.0
    speed = SPEED * (_SLANTED if right and ahead else 1.0)
    to_x = x + speed * (ahead * COS[yaw] - right * SIN[yaw])
    to_x = x if hits_wall(grid, to_x, y) else to_x
    to_y = y + speed * (ahead * SIN[yaw] + right * COS[yaw])
    return to_x, y if hits_wall(grid, to_x, to_y) else to_y


@compiled
def move(s: FlagMatches, m: int, a: np.ndarray) -> None:
    """Turn and move all players of match m by composite actions `a`, int64 [P, 6]."""
    at, z, rises, yaw, pitch = s.at[m], s.z[m], s.rises[m], s.yaw[m], s.pitch[m]
    for p in range(len(at)):
        yaw[p] = (yaw[p] + _YAW[a[p, 0]]) % TURN
        pitch[p] = min(max(pitch[p] + _PITCH[a[p, 1]], -STEEPEST), STEEPEST)
        at[p, 0], at[p, 1] = moved(s.grid[m], at[p, 0], at[p, 1], yaw[p], a[p, 2], a[p, 3])
        if a[p, 5] and z[p] == 0.0:
            rises[p] = JUMP
        z[p] += rises[p]
        rises[p] -= GRAVITY
        if z[p] <= 0.0:
            z[p] = rises[p] = 0.0


@compiled
def aimed_at(s: FlagMatches, m: int, p: int) -> int:
    """Return the nearest opponent in the line of fire of seat `p`, or -1 if a tag would hit no opponent."""
    at, z, yaw, pitch = s.at[m], s.z[m], s.yaw[m, p], s.pitch[m, p]
    P, best, nearest = len(at), -1, RANGE
    for q in range(P):
        if (q < P // 2) == (p < P // 2):
            continue
        dx, dy = at[q, 0] - at[p, 0], at[q, 1] - at[p, 1]
        ahead, aside = dx * COS[yaw] + dy * SIN[yaw], dy * COS[yaw] - dx * SIN[yaw]
        height = z[p] + EYE + ahead * SIN[pitch] / COS[pitch] - z[q]  # a pitch below 0 is an index from the end
        on_it = 0.0 < ahead <= nearest and abs(aside) <= WIDTH and 0.0 <= height <= BODY
        if on_it and clear(s.grid[m], at[p, 0], at[p, 1], at[q, 0], at[q, 1]):
            best, nearest = q, ahead
    return best


@compiled
def _note(events: np.ndarray, p: int, what: int) -> None:
    """Count an event of seat `p` for every seat. `what`: 0 for a flag picked up, 1 for captured, 2 for returned."""
    half = len(events) // 2
    for q in range(len(events)):
        same = (q < half) == (p < half)
        events[q, what + (0 if q == p else 3 if same else 6)] += 1.0


@compiled
def _tags(s: FlagMatches, m: int, a: np.ndarray, events: np.ndarray, hit: np.ndarray) -> None:
    """Apply the tags of a step, and count the events. Write whether each seat (player) was hit into `hit`, bool [P]."""
    loads, carrier = s.loads[m], s.carrier[m]
    hit[:] = False
    for p in range(len(loads)):
        loads[p] = max(loads[p] - 1, 0)
        if not a[p, 4] or loads[p]:
            continue
        loads[p] = RELOAD
        q = aimed_at(s, m, p)
        if q >= 0:
            hit[q] = True
            events[p, 9 if carrier[0] == q or carrier[1] == q else 10] += 1.0
    for q in range(len(loads)):
        if hit[q]:
            events[q, 11 if carrier[0] == q or carrier[1] == q else 12] += 1.0


@compiled
def _put(at: np.ndarray, place: np.ndarray) -> None:
    at[0], at[1] = place[0], place[1]  # assigning a slice would allocate an array


@compiled
def _near(a: np.ndarray, b: np.ndarray) -> bool:
    dx, dy = a[0] - b[0], a[1] - b[1]
    return bool(dx * dx + dy * dy <= REACH * REACH)


@compiled
def _touch(s: FlagMatches, m: int, events: np.ndarray) -> int:
    """Let players return, pick up and capture flags. Return the captures of team 0 minus those of team 1."""
    at, base, flag, flag_at, carrier = s.at[m], s.base[m], s.flag[m], s.flag_at[m], s.carrier[m]
    P, gained = len(at), 0
    for p in range(P):
        own = 0 if p < P // 2 else 1
        if flag[own] == DROPPED and _near(at[p], flag_at[own]):
            flag[own] = HOME
            _put(flag_at[own], base[own])
            _note(events, p, 2)
    for p in range(P):
        theirs = 1 if p < P // 2 else 0
        if flag[theirs] != CARRIED and _near(at[p], flag_at[theirs]):
            flag[theirs], carrier[theirs] = CARRIED, p
            _note(events, p, 0)
    for theirs in range(2):
        p, own = carrier[theirs], 1 - theirs
        if p < 0:
            continue
        _put(flag_at[theirs], at[p])
        if flag[own] == HOME and _near(at[p], base[own]):
            flag[theirs], carrier[theirs] = HOME, -1
            _put(flag_at[theirs], base[theirs])
            s.score[m, own] += 1
            gained += 1 - 2 * own
            _note(events, p, 1)
    return gained


@compiled
def heading(dx: float, dy: float) -> int:
    return math.floor(math.atan2(dy, dx) / (2 * math.pi) * TURN + 0.5) % TURN


@compiled
def _come_back(s: FlagMatches, m: int, p: int) -> None:
    """Put the player of seat p at its spawn point, facing the middle of the map."""
    at, middle = s.spawn[m, p], s.grid.shape[1] / 2
    _put(s.at[m, p], at)
    s.z[m, p] = s.rises[m, p] = 0.0
    s.yaw[m, p], s.pitch[m, p] = heading(middle - at[0], middle - at[1]), 0


@compiled
def step_matches(s: FlagMatches, action: np.ndarray, reward: np.ndarray, events: np.ndarray, hit: np.ndarray) -> None:
    """Make one step of each match, in place, by actions int64 [n, P, 6]. Write rewards into `reward` [n, P], and counts
    of events into `events` [n, P, E]. `hit`: scratch array, bool [P].
    """
    P = s.at.shape[1]
    events[:] = 0.0
    for m in range(len(s.at)):
        s.age[m] += 1
        move(s, m, action[m])
        _tags(s, m, action[m], events[m], hit)
        for p in range(P):
            if hit[p]:
                for team in range(2):
                    if s.carrier[m, team] == p:
                        s.flag[m, team], s.carrier[m, team] = DROPPED, -1
                        _put(s.flag_at[m, team], s.at[m, p])
                _come_back(s, m, p)
        gained = _touch(s, m, events[m])
        for p in range(P):
            reward[m, p] = gained if p < P // 2 else -gained


@compiled
def begin_matches(s: FlagMatches) -> None:
    """Put flags and players at their starting points. The arrays must already contain the maps."""
    for m in range(len(s.at)):
        for team in range(2):
            _put(s.flag_at[m, team], s.base[m, team])
        for p in range(s.at.shape[1]):
            _come_back(s, m, p)

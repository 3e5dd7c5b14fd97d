"""Matches of the lane game in the middle of things, and actions in which much happens."""

from __future__ import annotations

import numpy as np

from polyplay.games import moba_rules, moba_views
from polyplay.games import moba_world as w
from polyplay.games.moba import LaneGame
from polyplay.games.moba_views import EVENTS
from polyplay.games.moba_world import LaneWorld

State = dict[str, np.ndarray]


def begun(given: LaneWorld, n: int, seed: int = 0) -> State:
    rng = np.random.default_rng(seed)
    return LaneGame(given).reset(lambda: rng.random(n), n)


def look(s: State) -> None:
    moba_views.look(w.LaneMatches.of(s))


def scatter(given: LaneWorld, s: State, rng: np.random.Generator) -> None:
    """Heroes and creeps about the middle, everybody hurt, some dead, towers fallen, ages and levels drawn."""
    units, heroes, (n, U, _) = s["units"], s["heroes"], s["units"].shape
    half, creeps = U // 2, given.team + w.SLOTS * given.lanes
    s["age"][:] = rng.integers(0, 400, n) * given.repeat
    s["wave"][:] = rng.integers(60, 100, s["wave"].shape)
    kind = np.arange(U) % half
    moved = kind < creeps
    units[:, moved, w.X] = np.clip(18000 + rng.normal(0, 5000, (n, moved.sum())), 0, w.WIDTH)
    units[:, moved, w.Y] = rng.integers(4000, 2 * w.middle(given.lanes) - 4000, (n, moved.sum()))
    units[:, (kind >= given.team) & moved, w.MOST] = 80
    fallen = rng.random((n, U)) < np.where(kind < given.team, 0.1, 0.4)
    fallen[:, kind == half - 1] = False
    units[:, :, w.HEALTH] = np.where(fallen, 0, np.ceil(rng.random((n, U)) ** 2 * units[:, :, w.MOST]))
    units[:, :, w.READY] = s["age"][:, None] + rng.integers(-20, 20, (n, U))
    heroes[:, :, w.LEVEL] = rng.integers(1, 10, heroes.shape[:2])
    level = heroes[:, :, w.LEVEL]
    heroes[:, :, w.EXPERIENCE] = 60 * level * (level - 1) + rng.integers(0, 120, level.shape)
    heroes[:, :, w.GOLD] = rng.integers(0, 900, level.shape)
    heroes[:, :, w.MANA] = rng.integers(0, 100 + 10 * level)
    for column in (w.BOLT, w.BLAST, w.HEAL, w.RETURNS):
        heroes[:, :, column] = s["age"][:, None] + rng.integers(-30, 30, level.shape)
    look(s)


def nameable(given: LaneWorld, s: State) -> np.ndarray:
    """Which units each primary may name, bool [n, P, 8, rows]; none, where it is illegal or names none."""
    masks, names = LaneGame(given).legal(s), np.isin(np.arange(8), w.USES["unit"])
    return masks["unit"] & (masks["primary"] & names)[..., None]


def actions(given: LaneWorld, s: State, rng: np.random.Generator) -> np.ndarray:
    """int64 [n, P, 4]: most are legal and most of those attack; some are drawn from all there are."""
    n, P = s["here"].shape
    sizes = [part.n for part in given.action.values()]
    out = np.stack([rng.integers(k, size=(n, P)) for k in sizes], -1)
    legal = nameable(given, s)
    for m, p in np.ndindex(n, P):
        named = legal[m, p]
        able = [k for k in (2, 2, 2, 3, 6) if named[k].any()] + [1, 4, 5, 7]
        if rng.random() < 0.8:
            out[m, p, 0] = primary = rng.choice(able)
            if named[primary].any():
                out[m, p, 1] = rng.choice(np.flatnonzero(named[primary]))
    return out


def step(given: LaneWorld, s: State, action: np.ndarray) -> np.ndarray:
    """Events."""
    events = np.zeros((*s["here"].shape, len(EVENTS)))
    moba_rules.step_lanes(w.LaneMatches.of(s), action, given.repeat, events)
    look(s)
    return events

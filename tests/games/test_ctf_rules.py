"""The rules of capture the flag against a slow plain twin, step by step and event by event."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.games import ctf_maps, ctf_rules, ctf_views
from polyplay.games.ctf_rules import CARRIED, DROPPED, EVENTS, FACTS, HOME, SMALL, FlagMatches, World
from tests.games.ctf_twin import Match
from tests.games.test_ctf_views import same_window, windows


def begun(n: int, team: int, size: int, seed: int) -> dict[str, np.ndarray]:
    s = World(team=team, size=size).arrays(n)
    for m in range(n):
        ctf_maps.draw_map(np.uint64(seed * 1000 + m), m % 2 == 0, s["grid"][m], s["base"][m], s["spawn"][m])
    ctf_rules.begin_matches(FlagMatches.of(s))
    return s


def step(s: dict[str, np.ndarray], action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n, P = s["yaw"].shape
    reward, events = np.full((n, P), np.nan, np.float32), np.full((n, P, len(EVENTS)), np.nan, np.float32)
    ctf_rules.step_matches(FlagMatches.of(s), action, reward, events, np.zeros(P, bool))
    return reward, events


def wandering(rng: np.random.Generator, n: int, P: int, last: np.ndarray) -> np.ndarray:
    """Actions that go somewhere: most walk ahead for a while, all tag often."""
    new = np.asarray(SMALL)[rng.integers(len(SMALL), size=(n, P))]
    new[rng.random((n, P)) < 0.3] = (2, 1, 1, 2, 1, 0)
    wild = np.stack([rng.integers(k, size=(n, P)) for k in (5, 3, 3, 3, 2, 2)], -1)
    new = np.where(rng.random((n, P, 1)) < 0.2, wild, new)
    return np.where(rng.random((n, P, 1)) < 0.8, last, new)


def scatter(rng: np.random.Generator, s: dict[str, np.ndarray]) -> None:
    """Everybody somewhere near a base or a flag, so that much happens."""
    for m, grid in enumerate(s["grid"]):
        for p in range(s["yaw"].shape[1]):
            spots = np.concatenate([s["base"][m], s["flag_at"][m], s["at"][m]])
            spot = spots[rng.integers(len(spots))] + rng.normal(0, 0.7, 2)
            if (spot > 1.3).all() and (spot < len(grid) - 1.3).all() and not ctf_rules.hits_wall(grid, *spot):
                s["at"][m, p] = spot


def same(s: dict[str, np.ndarray], twins: list[Match]) -> None:
    """Whether all that changes in a match is as in the twins."""
    players, flags = [twin.players for twin in twins], [twin.flags for twin in twins]
    assert s["at"].tolist() == [[[p.x, p.y] for p in row] for row in players]
    for k in ("z", "rises", "yaw", "pitch", "loads"):
        assert s[k].tolist() == [[getattr(p, k) for p in row] for row in players], k
    seats = [[-1 if f.carrier is None else twin.players.index(f.carrier) for f in twin.flags] for twin in twins]
    assert s["carrier"].tolist() == seats
    states = [[CARRIED if f.carrier else DROPPED if f.dropped else HOME for f in row] for row in flags]
    assert s["flag"].tolist() == states
    assert s["flag_at"].tolist() == [[[f.x, f.y] for f in row] for row in flags]
    assert s["score"].tolist() == [twin.score for twin in twins]
    assert s["age"].tolist() == [twin.age for twin in twins]


def told(twins: list[Match], P: int) -> np.ndarray:
    """The events of the last step as numbers, [n, P, E]."""
    out = np.zeros((len(twins), P, len(EVENTS)), np.float32)
    for m, twin in enumerate(twins):
        for p, player in enumerate(twin.players):
            for event in player.events:
                out[m, p, EVENTS.index(event)] += 1
    return out


def same_observations(s: dict[str, np.ndarray], twins: list[Match], m: int) -> None:
    """What all know, and what the seats of match m see."""
    out = np.empty((*s["yaw"].shape, FACTS), np.float32)
    ctf_views.know(FlagMatches.of(s), 400, out)
    assert (out == np.array([[twin.facts(p, 400) for p in twin.players] for twin in twins], np.float32)).all()
    out = windows({k: v[m : m + 1] for k, v in s.items()})
    for p in range(s["yaw"].shape[1]):
        same_window({k: v[m : m + 1] for k, v in s.items()}, out, 0, p)


def many(*world: int) -> object:
    return pytest.param(*world, marks=[pytest.mark.long, pytest.mark.timeout(900)])


@pytest.mark.parametrize(
    ("n", "team", "size", "steps"),
    [
        (16, 2, 9, 400),
        (12, 1, 9, 400),
        (6, 4, 21, 200),
        *(many(2_000, 2, 9, 300), many(2_000, 2, 11, 300), many(2_000, 2, 13, 300)),  # together 10,000 matches
        *(many(3_000, 1, 9, 300), many(1_000, 3, 11, 300)),
    ],
)
def test_matches_go_as_those_of_a_slow_plain_twin(n, team, size, steps):
    rng, total = np.random.default_rng(size * team), np.zeros(len(EVENTS))
    for first in range(0, n, 100):
        s = begun(min(100, n - first), team, size, first + size)
        twins = [Match(s["grid"][m], s["base"][m], s["spawn"][m], s["yaw"][m]) for m in range(len(s["age"]))]
        action = np.ones((len(twins), 2 * team, 6), np.int64)
        for turn in range(steps):
            if turn % 25 == 0:
                scatter(rng, s)
                for m, p in np.ndindex(s["yaw"].shape):
                    twins[m].players[p].x, twins[m].players[p].y = s["at"][m, p].tolist()
            action = wandering(rng, len(twins), 2 * team, action)
            reward, events = step(s, action)
            total += events.sum((0, 1))
            assert [twin.step(a) for twin, a in zip(twins, action.tolist(), strict=True)] == reward.tolist()
            assert (told(twins, 2 * team) == events).all()
            same(s, twins)
            if turn % 50 == 49:
                same_observations(s, twins, int(rng.integers(len(twins))))
    seldom = {e for e in EVENTS if ("captured" in e and size > 13) or ("teammate" in e and team == 1)}
    assert {e for e, times in zip(EVENTS, total, strict=True) if not times} <= seldom

"""The rules of capture the flag against a slow plain twin, step by step and event by event."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.games import ctf_maps, ctf_rules, ctf_views
from polyplay.games.ctf import FLAGS, MOVED
from polyplay.games.ctf_rules import CARRIED, DROPPED, EVENTS, FACTS, HOME, SMALL, World
from tests.games.ctf_twin import Match
from tests.games.test_ctf_window import same_window, seen


def begun(n: int, team: int, size: int, seed: int) -> dict[str, np.ndarray]:
    s = World(team=team, size=size).arrays(n)
    for m in range(n):
        ctf_maps.draw_map(np.uint64(seed * 1000 + m), m % 2 == 0, s["grid"][m], s["base"][m], s["spawn"][m])
    ctf_rules.begin_matches(*(s[k] for k in ("grid", "base", "spawn", "at", "yaw", "flag_at")))
    return s


def step(s: dict[str, np.ndarray], action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n, P = s["yaw"].shape
    reward, events = np.full((n, P), np.nan, np.float32), np.full((n, P, len(EVENTS)), np.nan, np.float32)
    ctf_rules.step_matches(*(s[k] for k in MOVED + FLAGS), action, reward, events)
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
    ctf_views.know(*(s[k] for k in ("z", "pitch", "loads", "flag", "carrier", "score", "age")), 400, out)
    assert (out == np.array([[twin.facts(p, 400) for p in twin.players] for twin in twins], np.float32)).all()
    out = seen({k: v[m : m + 1] for k, v in s.items()})
    for p in range(s["yaw"].shape[1]):
        same_window({k: v[m : m + 1] for k, v in s.items()}, out, 0, p)


def many(*world: int) -> object:
    return pytest.param(*world, marks=[pytest.mark.long, pytest.mark.timeout(900)])


@pytest.mark.parametrize(
    ("n", "team", "size", "steps"),
    [
        (24, 2, 13, 400),
        (24, 2, 9, 400),
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


def test_a_flag_is_picked_up_carried_home_and_counted():
    s = begun(1, 1, 9, 3)
    still = np.array([[[2, 1, 1, 1, 0, 0]] * 2])
    s["at"][0, 0] = s["base"][0, 1] + (0.1, 0.0)
    s["at"][0, 1] = s["spawn"][0, 1]
    _, events = step(s, still)
    assert events[0, 0, EVENTS.index("picked_up")] == 1
    assert events[0, 1, EVENTS.index("opponent_picked_up")] == 1
    assert s["carrier"][0].tolist() == [-1, 0]
    s["at"][0, 0] = s["base"][0, 0]
    reward, events = step(s, still)
    assert reward[0].tolist() == [1, -1]
    assert events[0, 0, EVENTS.index("captured")] == 1
    assert s["score"][0].tolist() == [1, 0]
    assert s["flag"][0].tolist() == [HOME, HOME]
    assert (s["flag_at"] == s["base"]).all()


def test_nothing_is_captured_while_ones_own_flag_is_away():
    s = begun(1, 1, 9, 3)
    s["at"][0] = s["base"][0, ::-1]
    still = np.array([[[2, 1, 1, 1, 0, 0]] * 2])
    step(s, still)
    assert s["flag"][0].tolist() == [CARRIED, CARRIED]
    s["at"][0] = s["base"][0]
    reward, _ = step(s, still)
    assert not reward.any()
    assert s["score"][0].tolist() == [0, 0]


def test_who_is_hit_drops_the_flag_and_who_touches_ones_own_returns_it():
    s = begun(1, 1, 9, 5)
    s["grid"][0, 1:-1, 1:-1] = 0
    s["carrier"][0, 0], s["flag"][0, 0] = 1, CARRIED  # seat 1 has team 0's flag
    s["at"][0] = (2.5, 4.5), (6.0, 4.5)
    s["base"][0] = (1.5, 1.5), (7.5, 7.5)
    s["yaw"][0] = 0, 1800
    s["flag_at"][0, 0] = s["at"][0, 1]
    shoots = np.array([[[2, 1, 1, 1, 1, 0], [2, 1, 1, 1, 0, 0]]])
    _, events = step(s, shoots)
    assert events[0, 0, EVENTS.index("tagged_carrier")] == events[0, 1, EVENTS.index("was_tagged_carrying")] == 1
    assert s["flag"][0, 0] == DROPPED
    assert (s["flag_at"][0, 0] == (6.0, 4.5)).all()
    assert (s["at"][0, 1] == s["spawn"][0, 1]).all()
    s["at"][0, 0] = (5.6, 4.5)
    _, events = step(s, shoots)
    assert events[0, 0, EVENTS.index("returned")] == 1
    assert s["flag"][0, 0] == HOME
    assert s["loads"][0, 0] > 0, "it had to reload"


@pytest.mark.parametrize(("wall", "hits"), [(False, True), (True, False)])
def test_walls_stop_tags(wall, hits):
    s = begun(1, 1, 9, 5)
    s["grid"][0, 1:-1, 1:-1] = 0
    s["grid"][0, 4, 4] = wall
    s["at"][0], s["yaw"][0] = ((2.5, 4.5), (6.5, 4.5)), 0
    _, events = step(s, np.array([[[2, 1, 1, 1, 1, 0], [2, 1, 1, 1, 0, 0]]]))
    assert (events[0, 0, EVENTS.index("tagged_other")] == 1) == hits


def turned_by_half(s: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same matches with the teams' places swapped."""
    size, P, out = s["grid"].shape[1], s["yaw"].shape[1], {k: v.copy() for k, v in s.items()}
    for k in ("at", "spawn"):
        out[k] = size - np.roll(s[k], P // 2, 1)
    for k in ("base", "flag_at"):
        out[k] = size - s[k][:, ::-1]
    for k in ("z", "rises", "yaw", "pitch", "loads"):
        out[k] = np.roll(s[k], P // 2, 1)
    out["yaw"] = (out["yaw"] + 1800) % 3600
    out["flag"], out["score"] = s["flag"][:, ::-1].copy(), s["score"][:, ::-1].copy()
    out["carrier"] = np.where(s["carrier"] < 0, -1, (s["carrier"] + P // 2) % P)[:, ::-1].copy()
    return out


@pytest.mark.parametrize(("team", "size"), [(1, 13), (2, 9), (3, 11)])
def test_no_rule_prefers_a_team(team, size):
    """A step of a match turned by half, in which the teams do what the other does, is that step turned by half."""
    rng, s, total = np.random.default_rng(team), begun(100, team, size, 41), np.zeros(len(EVENTS))
    action = np.ones((100, 2 * team, 6), np.int64)
    for turn in range(200):
        if turn % 12 == 0:
            scatter(rng, s)
        action, other = wandering(rng, 100, 2 * team, action), turned_by_half(s)
        results, turned = step(s, action), step(other, np.roll(action, team, 1))
        for one, two in zip(results, turned, strict=True):
            assert (np.roll(one, team, 1) == two).all()
        for k, v in turned_by_half(s).items():
            np.testing.assert_allclose(other[k], v, rtol=0, atol=1e-9, err_msg=k)
        total += results[1].sum((0, 1))
    assert {e for e, times in zip(EVENTS, total, strict=True) if not times} <= {e for e in EVENTS if "team" in e}


def test_both_sides_win_alike_under_random_play():
    """A map looks the same from both bases, and no rule prefers a seat: as many tags and pick-ups, by a binomial."""
    rng, n = np.random.default_rng(5), 400
    s = begun(n, 2, 9, 77)
    action, count = np.ones((n, 4, 6), np.int64), np.zeros((4, len(EVENTS)))
    for turn in range(600):
        if turn % 25 == 0:
            scatter(rng, s)
        action = wandering(rng, n, 4, action)
        count += step(s, action)[1].sum(0)
    for name in ("picked_up", "tagged_other"):
        one, two = count[:2, EVENTS.index(name)].sum(), count[2:, EVENTS.index(name)].sum()
        assert one + two > 1000
        assert abs(one - two) < 4 * (one + two) ** 0.5

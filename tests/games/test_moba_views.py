"""What heroes of the lane game see and may do, through fog and from either side; their rewards; the map for people."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.games import moba_views as v
from polyplay.games import moba_world as w
from polyplay.games.moba import LaneGame
from polyplay.games.moba_views import EVENTS, REWARDS
from polyplay.games.moba_world import LaneWorld
from tests.games.moba_scenes import State, actions, begun, nameable, scatter, step
from tests.games.test_moba_rules import WORLDS


def scene(given: LaneWorld, n: int, seed: int) -> State:
    s, rng = begun(given, n, seed), np.random.default_rng(seed)
    scatter(given, s, rng)
    step(given, s, actions(given, s, rng))
    return s


def test_nothing_of_what_is_not_seen_is_in_an_observation():
    """Rows of enemies that are far from all, and of the dead, are 0; what is near is there."""
    given = LaneWorld(team=2, lanes=1)
    s = begun(given, 1)
    units = s["units"][0]
    units[[0, 11, 12], 0] = 17000, 19000, 34000
    units[[0, 11, 12], 1] = 6000
    units[1, w.HEALTH], s["age"][0] = 0, 60
    v.look(w.LaneMatches.of(s))
    seen = LaneGame(given).see(s)
    assert s["seen"][0, [11, 12, 0]].tolist() == [True, False, True]
    enemy = [1, 2 / 16, 0, 2 * 19 / 36 - 1, 0, 1, 0.3, 1, 0.1, 0.2, 0]
    np.testing.assert_allclose(seen["enemies"][0, 0], [enemy, [0] * 11], atol=1e-6)
    assert not seen["allies"][0, 0].any(), "dead"
    towers = seen["towers"][0, 0]
    assert towers[:, 0].tolist() == [1, 1, 1, 1, 0, 0], "of the enemy's the outer one"
    assert towers[:4, 4:].tolist() == [[1, 0, 1], [1, 0.5, 0], [1, 1, 0], [-1, 0, 1]], "whose, which, open"
    own = [1, 2 * 17 / 36 - 1, 0, 1, 0.3, 1, 0.1, 0, 0, 0.2, 0, 0, 0, 0, 0, 60 / 6000, 0, 0]
    np.testing.assert_allclose(seen["own"][0, 0], own, atol=1e-6)


@pytest.mark.parametrize("given", WORLDS, ids=lambda w: f"{w.team}v{w.team}")
def test_no_legal_primary_is_without_a_unit_and_the_dead_do_nothing(given):
    s, kinds = scene(given, 6, 2), set()
    masks, named = LaneGame(given).legal(s), nameable(given, s)
    half, team = s["units"].shape[1] // 2, given.team
    for m, p in np.ndindex(6, given.seats):
        unit, primary = s["units"][m, p if p < team else half + p - team], masks["primary"][m, p]
        shown, theirs = s["shown"][m, p], s["shown"][m, p] // half == int(p < team)
        assert primary.tolist() == [True] + [False] * 7 if unit[w.HEALTH] <= 0 else primary[w.MOVE]
        assert all(named[m, p, k].any() == primary[k] for k in w.USES["unit"])
        assert masks["unit"][m, p][[0, 1, 5, 7]].all(), "where none is named"
        assert not named[m, p, w.ATTACK : w.CAST_BLAST + 1][:, ~theirs | (shown < 0)].any(), "only of the other side"
        assert (named[m, p, w.FOLLOW] == (shown >= 0)).all() or not primary[w.FOLLOW]
        kinds |= {k for k in w.USES["unit"] if primary[k]}
    assert kinds == {*w.USES["unit"]}


@pytest.mark.parametrize("primary", [3, 4, 5])
def test_a_legal_ability_is_used_and_an_illegal_one_is_not(primary):
    given = LaneWorld(team=3, lanes=1)
    s = scene(given, 40, 7)
    masks, column = LaneGame(given).legal(s)["primary"], w.BOLT + primary - 3
    action, before = np.zeros((40, 6, 4), np.int64), s["heroes"][:, :, column].copy()
    action[:, :, 0], action[:, :, 2] = primary, 40
    action[:, :, 1] = nameable(given, s)[:, :, min(primary, 4)].argmax(2)
    half = s["units"].shape[1] // 2
    alive = s["units"][:, [0, 1, 2, half, half + 1, half + 2], w.HEALTH] > 0
    step(given, s, action)
    used, legal = (s["heroes"][:, :, column] != before)[alive], masks[:, :, primary][alive]
    assert min(legal.sum(), (~legal).sum()) > 5
    assert (used == legal).all()


SIZES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32 - 1))


@settings(max_examples=30, deadline=None)
@given(SIZES, st.integers(0, 9000))
def test_events_are_weighed_by_the_table_and_all_but_the_win_by_time(size, age):
    n, team, seed = size
    events = np.random.default_rng(seed).normal(0, 2, (n, 2 * team, len(EVENTS)))
    found = LaneGame(LaneWorld(length=12_000)).shaped(events, np.full(n, age))
    worth = np.array([REWARDS[name] * (1.0 if name == "win" else 0.6 ** (age / 30 / 600)) for name in EVENTS])
    own = (events @ worth).reshape(n, 2, team)
    np.testing.assert_allclose(found, (own - own.mean(2, keepdims=True)[:, ::-1]).reshape(n, -1), atol=1e-9)


def test_the_map_shows_units_of_both_sides():
    def colour(picture, x, y):
        return tuple(picture[y // v.DOT, x // v.DOT].tolist())

    given = LaneWorld(team=2, lanes=2)
    s = begun(given, 2)
    half = s["units"].shape[1] // 2
    s["units"][1, [0, half], : w.HEALTH] = (16000, 9000), (20000, 9000)
    s["units"][1, 0, w.HEALTH] = s["units"][1, 0, w.MOST] // 2
    s["units"][1, half + 2, : w.MOST] = 17000, 14000, 80
    s["units"][1, 2 + 2 * w.SLOTS, w.HEALTH] = 0  # an outer tower has fallen
    picture = v.draw_lanes(s, 1)
    assert picture.shape == (2 * w.middle(given.lanes) // v.DOT, w.WIDTH // v.DOT, 3)
    assert [colour(picture, x, 9000) for x in (16000, 20000)] == list(v.SIDES)
    assert colour(picture, 17000, 14000) == v.SIDES[1]
    assert colour(picture, w.OUTER_X, 6000) == v.ROAD
    assert [colour(picture, x, 6000) for x in (w.INNER_X, w.WIDTH - w.OUTER_X)] == list(v.SIDES)
    assert [colour(picture, x, 10000) for x in (w.CORE_X, w.WIDTH - w.CORE_X)] == list(v.SIDES)
    assert colour(picture, 18000, 3000) == v.GROUND
    bar = picture[9000 // v.DOT - v.HERO - 7, 16000 // v.DOT - v.HERO : 16000 // v.DOT + v.HERO + 1].tolist()
    assert bar == [list(v.GREEN)] * 9 + [list(v.BACK)] * 8

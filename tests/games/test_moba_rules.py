"""The rules of the lane game against a slow plain twin, event by event; where randomised matches begin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from polyplay.games import moba_world as w
from polyplay.games.moba_views import EVENTS
from polyplay.games.moba_world import LaneWorld, middle
from tests.games.moba_scenes import State, actions, begun, scatter, step
from tests.games.moba_twin import TERMS, Match, Unit


def twin_of(given: LaneWorld, s: State, m: int) -> Match:
    twin, units = Match(given.team, given.lanes, given.repeat), s["units"][m].tolist()
    twin.age, twin.wave = int(s["age"][m]), s["wave"][m].tolist()
    everybody = twin.everybody
    for unit, row in zip(everybody, units, strict=True):
        unit.x, unit.y, unit.health, unit.most, unit.ready, target = row
        unit.target = None if target < 0 else everybody[target]
    for hero, row in zip(twin.players, s["heroes"][m].tolist(), strict=True):
        hero.mana, hero.experience, hero.level, hero.gold, *casts, hero.returns = row[:8]
        hero.casts = dict(zip(("bolt", "blast", "heal"), casts, strict=True))
    return twin


def compare(s: State, m: int, twin: Match) -> None:
    everybody = twin.everybody
    number: dict[Unit | None, int] = {None: -1, **{u: i for i, u in enumerate(everybody)}}
    assert s["age"][m] == twin.age
    plain = [[u.x, u.y, u.health, u.most, u.ready, number[u.target]] for u in everybody]
    assert s["units"][m].tolist() == plain
    told = [[h.mana, h.experience, h.level, h.gold, *h.casts.values(), h.returns] for h in twin.players]
    assert s["heroes"][m, :, :8].tolist() == told
    assert s["heroes"][m, :, w.AIM].tolist() == [number[h.aim] for h in twin.players]
    assert s["heroes"][m, :, w.PRIMARY :].tolist() == [list(h.action) for h in twin.players]
    assert s["seen"][m].tolist() == [twin.visible(u) for u in everybody]
    rows = [[number[u] if twin.knows(h, u) else -1 for u in twin.listing(h)] for h in twin.players]
    assert s["shown"][m].tolist() == rows


WORLDS = (
    LaneWorld(team=5, lanes=3),
    LaneWorld(team=2, lanes=1),
    LaneWorld(team=1, lanes=1, repeat=3),
    LaneWorld(team=3, lanes=2, repeat=6),
)


@pytest.mark.parametrize(
    ("n", "steps"),
    [(12, 16), pytest.param(2000, 30, marks=[pytest.mark.long, pytest.mark.timeout(3600)])],
)
def test_matches_go_as_those_of_a_slow_plain_twin(n, steps):
    total = np.zeros(len(EVENTS))
    for k, given in enumerate(WORLDS):
        rng, s = np.random.default_rng(k), begun(given, n // len(WORLDS), k)
        if k:
            scatter(given, s, rng)
        twins, over = [twin_of(given, s, m) for m in range(len(s["age"]))], set()
        for turn in range(steps):
            if turn == 3 and not k:
                scatter(given, s, rng)
                twins = [twin_of(given, s, m) for m in range(len(s["age"]))]
            action = actions(given, s, rng)
            events = step(given, s, action)
            total += np.abs(events).sum((0, 1))
            for m in set(range(len(twins))) - over:
                over |= {m} if twins[m].step(action[m].tolist()) else set()
                told = [[hero.events[term] for term in TERMS] for hero in twins[m].players]
                np.testing.assert_allclose(events[m], told, atol=1e-9)
                compare(s, m, twins[m])
    assert TERMS == EVENTS
    assert all(total > 0) or n < 100, dict(zip(EVENTS, total, strict=True))
    assert set(EVENTS) - {e for e, x in zip(EVENTS, total, strict=True) if x} <= {"win", "inner_tower", "core"}


def test_clocks_of_randomised_matches_begin_at_any_step_of_their_first_half():
    given = LaneWorld(team=1, lanes=1, length=400, repeat=4, randomise=1.0)
    ages = begun(given, 2000, 3)["age"]
    assert not (ages % 4).any()
    assert len(set(ages.tolist())) == 50
    assert (ages.min(), ages.max()) == (0, 196)
    assert not begun(replace(given, randomise=0.0), 5, 3)["age"].any()


def test_heroes_of_randomised_matches_begin_anywhere_on_their_way():
    given = LaneWorld(team=2, lanes=3, randomise=1.0)
    units = begun(given, 3000, 3)["units"]
    half = units.shape[1] // 2
    own, theirs = units[:, :2, w.X], w.WIDTH - units[:, half : half + 2, w.X]
    end = w.WIDTH - w.CORE_X
    for x in (own, theirs):
        assert w.SPAWN_X <= x.min() < w.SPAWN_X + 100
        assert end - 100 < x.max() <= end
    y, lanes = units[:, :2, w.Y], [w.FIRST_LANE + w.LANE_APART * k for k in range(3)]
    assert {*np.unique(y[(own > w.TURN_X) & (own <= w.WIDTH - w.TURN_X)])} == {*lanes}
    assert {*np.unique(y[own > w.WIDTH - w.TURN_X])} == {middle(3)}
    dead = units[:, [0, 1, half, half + 1], w.HEALTH] == 0
    assert abs(dead.mean() - w.DEAD) < 4 * (w.DEAD * (1 - w.DEAD) / dead.size) ** 0.5
    assert len(np.unique(y[own <= w.TURN_X])) == len(
        np.unique(begun(replace(given, randomise=0.0), 1)["units"][:, :2, 1])
    )


def test_buildings_of_randomised_matches_are_worn_from_the_outer_one_on():
    lanes = 3
    units = begun(LaneWorld(team=1, lanes=lanes, randomise=1.0), 3000, 3)["units"]
    first = 1 + w.SLOTS * lanes
    own, theirs = (half[:, first:] for half in np.split(units, 2, 1))
    assert (own[..., w.HEALTH] != theirs[..., w.HEALTH]).any(1).mean() > 0.9, "one side is behind"
    own = np.concatenate([own, theirs])
    assert (own[..., w.HEALTH] <= own[..., w.MOST]).all()
    outer, inner = own[:, : 2 * lanes : 2, w.HEALTH], own[:, 1 : 2 * lanes : 2, w.HEALTH]
    core = own[:, -1, w.HEALTH]
    assert (inner[outer > 0] == w.TOWER_HEALTH).all()
    assert (core[(inner > 0).all(1)] == w.CORE_HEALTH).all()
    assert 400 <= core.min() < 430
    for gone, chance in ((outer == 0, 1.5 / 2.4), (inner == 0, 0.5 / 2.4)):
        assert abs(gone.mean() - chance) < 0.03
    standing = own[:, :, w.HEALTH].sum(1).reshape(2, -1)
    assert (abs(standing[0] - standing[1]) <= lanes * w.UNEVEN * w.CORE_HEALTH + 2).all()


def test_randomised_matches_begin_with_a_wave_of_each_side_face_to_face():
    given = LaneWorld(team=2, lanes=3, randomise=1.0)
    s, plain = begun(given, 500, 3), begun(replace(given, randomise=0.0), 5)
    half = s["units"].shape[1] // 2
    creeps = slice(2, 2 + w.SLOTS * 3)
    own, theirs = (s["units"][:, at : at + half][:, creeps].reshape(500, 3, w.SLOTS, 6) for at in (0, half))
    assert not plain["units"][:, creeps, w.HEALTH].any()
    for side, wave in enumerate((own, theirs)):
        assert (wave[:, :, : w.WAVE, w.HEALTH] == s["wave"][:, side, :, None]).all()
        assert not wave[:, :, w.WAVE :, w.HEALTH].any()
        assert (wave[:, 1, : w.WAVE, w.Y] == middle(3)).all()
    gap = theirs[:, :, 0, w.X] - own[:, :, 0, w.X]
    assert (gap == w.CREEP_RANGE).all(), "so near that they fight at once"
    front = own[:, :, 0, w.X] + gap // 2
    assert w.OUTER_X <= front.min() < w.OUTER_X + 100
    assert w.WIDTH - w.OUTER_X - 100 < front.max() <= w.WIDTH - w.OUTER_X


def test_one_side_of_a_randomised_match_may_have_learnt_and_earned_more():
    given = LaneWorld(team=2, lanes=1, randomise=1.0)
    s = begun(given, 4000, 3)
    half = s["units"].shape[1] // 2
    units, heroes = s["units"][:, [0, 1, half, half + 1]], s["heroes"]
    experience, level = heroes[:, :, w.EXPERIENCE], heroes[:, :, w.LEVEL]
    assert {*np.unique(level)} == {1, 2, 3, 4, 5}
    assert (w.TO_LEVEL * level * (level - 1) <= experience).all()
    assert (experience < w.TO_LEVEL * level * (level + 1)).all()
    alive = units[:, :, w.HEALTH] > 0
    assert (units[:, :, w.HEALTH] == units[:, :, w.MOST])[alive].all()
    grown = units[:, :, w.MOST] - w.HEALTH_A_LEVEL * (level - 1)
    assert 225 <= grown.min() < 235
    assert 365 < grown.max() <= 375
    assert (heroes[:, :, w.MANA] == w.MANA_AT_FIRST + w.MANA_A_LEVEL * level).all()
    mean = experience.reshape(4000, 2, 2).mean(2)
    assert abs(np.corrcoef(mean.T)[0, 1]) < 0.06, "sides are drawn apart"
    assert np.corrcoef(experience[:, 0], experience[:, 1])[0, 1] > 0.2, "heroes of a side are alike"


def test_randomised_matches_are_not_alike():
    one, two = (begun(LaneWorld(team=2, lanes=2, randomise=chance), 50, 3) for chance in (0.0, 1.0))
    for of, low, high in ((lambda s: s["heroes"][:, :, w.GOLD], 0, 800), (lambda s: s["wave"], 60, 100)):
        assert np.ptp(of(one)) == 0
        assert low <= of(two).min() < low + (high - low) / 5
        assert high - (high - low) / 3 < of(two).max() <= high

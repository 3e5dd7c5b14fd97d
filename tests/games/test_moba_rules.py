"""The rules of the lane game against a slow plain twin, event by event; where randomised matches begin."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from polyplay.games import moba_world as w
from polyplay.games.moba_views import EVENTS
from polyplay.games.moba_world import LaneWorld
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
    ("n", "steps"), [(12, 16), pytest.param(2000, 30, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
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


def test_randomised_matches_begin_in_the_middle_of_things_as_they_always_did():
    """Anywhere within their first half, heroes on their way, buildings worn from the outer one on."""
    given = LaneWorld(team=3, lanes=2, randomise=1.0)
    s, plain = begun(given, 50, 3), begun(replace(given, randomise=0.0), 5)
    found = hashlib.sha256(b"".join(s[name].tobytes() for name in ("units", "heroes", "wave", "age")))
    assert found.hexdigest()[:16] == "9e58139b0a78dc90"
    towers = s["units"][:, 3 + w.SLOTS * 2 : 3 + w.SLOTS * 2 + 5, w.HEALTH]
    outer, inner, core = towers[:, :4:2], towers[:, 1:4:2], towers[:, 4]
    assert (inner[outer > 0] == w.TOWER_HEALTH).all()
    assert (core[(inner > 0).all(1)] == w.CORE_HEALTH).all()
    assert 0 <= s["age"].min() < s["age"].max() < given.length // 2
    assert not (s["age"] % given.repeat).any()
    x = s["units"][:, :3, w.X]
    assert w.SPAWN_X <= x.min() < x.max() <= w.WIDTH - w.CORE_X
    assert not plain["age"].any()
    assert np.ptp(plain["heroes"][:, :, w.GOLD]) == 0 < np.ptp(s["heroes"][:, :, w.GOLD])

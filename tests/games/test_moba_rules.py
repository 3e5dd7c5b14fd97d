"""The rules of the lane game against a slow plain twin, step by step and event by event."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.games import moba_world
from polyplay.games.moba_views import EVENTS
from polyplay.games.moba_world import LaneWorld
from tests.games.moba_scenes import State, actions, begun, look, scatter, step
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
    assert s["heroes"][m, :, moba_world.AIM].tolist() == [number[h.aim] for h in twin.players]
    assert s["heroes"][m, :, moba_world.PRIMARY :].tolist() == [list(h.action) for h in twin.players]
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
    [(20, 20), pytest.param(2000, 30, marks=[pytest.mark.long, pytest.mark.timeout(3600)])],
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


def test_matches_go_the_same_with_sides_swapped():
    """Mirrored states and actions give mirrored states, whoever is side 0."""
    given, rng = LaneWorld(team=3, lanes=3), np.random.default_rng(8)
    s = begun(given, 6, 1)
    scatter(given, s, rng)
    other = {k: v.copy() for k, v in s.items()}
    half, team = s["units"].shape[1] // 2, given.team

    def swap(x: State) -> None:
        x["units"] = np.concatenate([x["units"][:, half:], x["units"][:, :half]], 1)
        targets = x["units"][:, :, moba_world.TARGET]
        targets[:] = np.where(targets < 0, -1, (targets + half) % (2 * half))
        x["units"][:, :, moba_world.X] = moba_world.WIDTH - x["units"][:, :, moba_world.X]
        x["heroes"] = np.concatenate([x["heroes"][:, team:], x["heroes"][:, :team]], 1)
        aims = x["heroes"][:, :, moba_world.AIM]
        aims[:] = np.where(aims < 0, -1, (aims + half) % (2 * half))
        x["wave"] = x["wave"][:, ::-1].copy()
        look(x)

    swap(other)
    happened = 0.0
    for _ in range(60):
        action = actions(given, s, rng)
        one = step(given, s, action)
        two = step(given, other, np.concatenate([action[:, team:], action[:, :team]], 1))
        assert (one == np.concatenate([two[:, team:], two[:, :team]], 1)).all()
        happened += np.abs(one).sum()
        back = {k: v.copy() for k, v in other.items()}
        swap(back)
        unmoved = s["units"][:, :, moba_world.HEALTH] > 0  # where the dead lie is nobody's business
        assert (back["units"] == s["units"])[unmoved].all()
        assert (back["heroes"] == s["heroes"]).all()
        assert (back["seen"] == s["seen"]).all()
    assert happened > 100

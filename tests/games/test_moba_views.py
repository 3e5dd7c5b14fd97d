"""What heroes of the lane game see and may do, through fog and from either side; their rewards; the map for people."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.games import moba_views as v
from polyplay.games import moba_world as w
from polyplay.games.moba import LaneGame
from polyplay.games.moba_views import DECAY, EVENTS, REWARDS
from polyplay.games.moba_world import LaneWorld
from tests.games.moba_scenes import State, actions, begun, nameable, scatter, step
from tests.games.moba_twin import Hero, Match, Unit
from tests.games.test_moba_rules import WORLDS, twin_of


def scene(given: LaneWorld, n: int, seed: int) -> State:
    s, rng = begun(given, n, seed), np.random.default_rng(seed)
    scatter(given, s, rng)
    step(given, s, actions(given, s, rng))
    return s


def place_of(twin: Match, hero: Hero, unit: Unit) -> list[float]:
    return [1, (unit.x - hero.x) * (-1 if hero.side else 1) / 16000, (unit.y - hero.y) / 16000]


def at(twin: Match, side: int, unit: Unit) -> list[float]:
    return [2 * twin.mirrored(side, unit.x) / 36000 - 1, unit.y / twin.middle - 1]


def row(twin: Match, hero: Hero, unit: Unit | None) -> list[float]:
    """Of a unit; nothing, of one that is dead or not seen."""
    if unit is None or not twin.knows(hero, unit):
        return []
    place, own = place_of(twin, hero, unit), 1 if unit.side == hero.side else -1
    if isinstance(unit, Hero):
        waits = max(unit.ready - twin.age - 1, 0) / 24
        life = [unit.health / unit.most, unit.most / 1000, unit.mana / unit.most_mana]
        return [*place, *at(twin, hero.side, unit), *life, unit.level / 10, unit.hit / 100, waits]
    if unit.kind == "creep":
        return [*place, unit.health / 80, own, own < 0 and unit.health <= hero.hit]
    kind = {"outer": 0, "inner": 0.5, "core": 1}[unit.kind]
    return [*place, unit.health / unit.most, own, kind, twin.open(unit)]


def own(twin: Match, hero: Hero, length: int) -> list[float]:
    begun, wide = 60 * hero.level * (hero.level - 1), 120 * hero.level
    waits = [max(age - twin.age - 1, 0) for age in (hero.ready, *hero.casts.values(), hero.returns)]
    return [
        *(hero.alive, *at(twin, hero.side, hero), hero.health / hero.most, hero.most / 1000),
        *(hero.mana / hero.most_mana, hero.level / 10),
        *((hero.experience - begun) / wide if hero.level < 10 else 1, hero.gold / 2000, hero.hit / 100),
        *(wait / most for wait, most in zip(waits, (24, 120, 180, 300, 420), strict=True)),
        *(twin.age / length, hero.place / 4, lead(twin, hero.side)),
    ]


def lead(twin: Match, side: int) -> float:
    own, theirs = (sum(tower.health for tower in twin.towers[k]) for k in (side, 1 - side))
    return (own - theirs) / (abs(own - theirs) + 175)


@pytest.mark.parametrize("given", WORLDS, ids=lambda w: f"{w.team}v{w.team}")
def test_observations_are_those_of_plain_code(given):
    s = scene(given, 4, 5)
    seen, shown = LaneGame(given).see(s), 0
    for m in range(4):
        twin = twin_of(given, s, m)
        for p, hero in enumerate(twin.players):
            sets = np.split(np.array(twin.listing(hero), object), np.cumsum(given.sets)[:-1])
            for name, units in zip(("allies", "enemies", "creeps", "towers"), sets, strict=True):
                found = seen[name][m, p]
                rows = [row(twin, hero, unit) or [0] * found.shape[1] for unit in units]
                np.testing.assert_allclose(found, np.array(rows, float), atol=1e-6)
                shown += int(found[:, 0].sum())
            np.testing.assert_allclose(seen["own"][m, p], own(twin, hero, given.length), atol=1e-6)
            primary, _, offset, delay = s["heroes"][m, p, w.PRIMARY :].tolist()
            last = [*(float(i == primary) for i in range(8)), offset % 9 / 4 - 1, offset // 9 / 4 - 1, delay / 3]
            np.testing.assert_allclose(seen["last_action"][m, p], last, atol=1e-6)
    assert shown > 20


def plain_masks(twin: Match, hero: Hero) -> tuple[list[bool], list[list[bool]]]:
    """Of primary, and of units for each primary, as the guide's table has it."""
    ready = {
        name: hero.mana >= mana and hero.casts[name] <= twin.age + 1
        for name, mana in (("bolt", 30), ("blast", 40), ("heal", 50))
    }
    units = {2: [], 3: [], 4: [], 6: []}
    for unit in twin.listing(hero):
        known = hero.alive and twin.knows(hero, unit)
        foe = known and unit.side != hero.side
        units[2].append(foe and twin.open(unit))
        near = foe and unit.kind in ("hero", "creep") and unit.near(hero, 5000)
        units[3].append(near and ready["bolt"])
        units[4].append(near and ready["blast"])
        units[6].append(known)
    lacks = hero.health < hero.most or hero.mana < hero.most_mana
    able = [True, any(units[2]), any(units[3]), any(units[4]), ready["heal"], any(units[6]), lacks]
    every = [True] * len(units[2])
    return [True, *(hero.alive and x for x in able)], [x if any(x := units.get(k, [])) else every for k in range(8)]


@pytest.mark.parametrize("given", WORLDS, ids=lambda w: f"{w.team}v{w.team}")
def test_each_primary_may_name_the_units_of_plain_code(given):
    """All, where it names none: so no legal primary is without a target."""
    s, kinds = scene(given, 6, 2), set()
    masks = LaneGame(given).legal(s)
    shapes = {k: (6, given.seats, *field.shape) for k, field in given.legality.items()}
    assert {k: v.shape for k, v in masks.items()} == shapes
    for m in range(6):
        twin = twin_of(given, s, m)
        for p, hero in enumerate(twin.players):
            primary, units = plain_masks(twin, hero)
            assert masks["primary"][m, p].tolist() == primary
            assert masks["unit"][m, p].tolist() == units
            kinds |= {(k, all(units[k])) for k in w.USES["unit"] if primary[k]}
    assert kinds >= {(k, False) for k in w.USES["unit"]}


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
    found = weigh_events(events, np.repeat(time_weights(9000)[age], n))
    for m, p in np.ndindex(n, 2 * team):
        want = 0.0
        for name, number in zip(EVENTS, events[m, p].tolist(), strict=True):
            want += REWARDS[name] * number * (1.0 if name == "win" else 0.6 ** (age / 30 / 600))
        assert found[m, p] == pytest.approx(want, abs=1e-9)


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

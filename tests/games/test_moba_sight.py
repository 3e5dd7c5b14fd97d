"""What heroes of the lane game see and may do: against plain observations, through fog, and seen from either side."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.core import tree
from polyplay.games import moba_world
from polyplay.games.moba import LaneGame
from polyplay.games.moba_world import LaneWorld
from tests.games.moba_scenes import State, actions, begun, look, nameable, scatter, step
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
            primary, _, offset, delay = s["heroes"][m, p, moba_world.PRIMARY :].tolist()
            last = [*(float(i == primary) for i in range(8)), offset % 9 / 4 - 1, offset // 9 / 4 - 1, delay / 3]
            np.testing.assert_allclose(seen["last_action"][m, p], last, atol=1e-6)
    assert shown > 20


def unlike(s: State, m: int, u: int, rng: np.random.Generator) -> None:
    """Give a unit other numbers; it lives on where it lived, and stays dead where it was."""
    unit, half = s["units"][m, u], s["units"].shape[1] // 2
    team = s["heroes"].shape[1] // 2
    if unit[moba_world.HEALTH] > 0:
        unit[moba_world.MOST] = rng.integers(50, 900)
        unit[moba_world.HEALTH] = rng.integers(1, unit[moba_world.MOST] + 1)
    unit[moba_world.READY], unit[moba_world.TARGET] = rng.integers(0, 9000), -1
    if u % half < team:
        s["heroes"][m, u // half * team + u % half, : moba_world.AIM] = rng.integers(1, 9, moba_world.AIM)


@pytest.mark.parametrize("seed", range(12))
def test_fog_hides_every_number_of_what_is_not_seen(seed):
    """Other numbers and other places of unseen units change no observation and no mask of the other side: all but the
    lead, which both sides know.
    """
    given, rng = WORLDS[seed % len(WORLDS)], np.random.default_rng(seed)
    s, game, changed = scene(given, 6, seed), LaneGame(given), 0
    half = s["units"].shape[1] // 2
    for side in range(2):
        seats = slice(None), slice(side * given.team, (side + 1) * given.team)
        before = [tree.at(told(s), seats) for told in (game.see, game.legal)]
        for m, u in np.argwhere(~s["seen"]):
            if u // half == side:
                continue
            x, y = s["units"][m, u, : moba_world.HEALTH].tolist()
            unlike(s, m, u, rng)
            if u % half < half - 1 - 2 * given.lanes:  # no building
                s["units"][m, u, : moba_world.HEALTH] = rng.integers(0, moba_world.WIDTH), rng.integers(0, given.height)
                look(s)
                if s["seen"][m, u]:
                    s["units"][m, u, : moba_world.HEALTH] = x, y
            changed += 1
        look(s)
        after = [tree.at(told(s), seats) for told in (game.see, game.legal)]
        for seen in (before[0], after[0]):
            seen["own"][..., moba_world.OWN.index("lead")] = 0.0
        for one, two in zip(before, after, strict=True):
            assert all((a == b).all() for (_, a), (_, b) in zip(tree.leaves(one), tree.leaves(two), strict=True))
    assert changed > 10


def test_a_unit_comes_out_of_the_fog():
    given = LaneWorld(team=1, lanes=1)
    s, game = begun(given, 1), LaneGame(given)
    half = s["units"].shape[1] // 2
    assert game.see(s)["enemies"].sum() == 0
    s["units"][0, half, [moba_world.X, moba_world.Y]] = s["units"][0, 0, [moba_world.X, moba_world.Y]] + (8000, 0)
    look(s)
    assert game.see(s)["enemies"][0, 0, 0, :3].tolist() == [1, 0.5, 0]
    s["units"][0, half, moba_world.X] += 2400  # beyond the hero's sight, and the core's
    look(s)
    assert game.see(s)["enemies"][0, 0, 0, 0] == 1, "a tower sees it still"
    s["units"][0, 1 + moba_world.SLOTS : half, moba_world.HEALTH] = 0
    look(s)
    assert game.see(s)["enemies"].sum() == 0


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
            kinds |= {(k, all(units[k])) for k in moba_world.USES["unit"] if primary[k]}
    assert kinds >= {(k, False) for k in moba_world.USES["unit"]}


@pytest.mark.parametrize("primary", [3, 4, 5])
def test_a_legal_ability_is_used_and_an_illegal_one_is_not(primary):
    given = LaneWorld(team=3, lanes=1)
    s = scene(given, 40, 7)
    masks, column = LaneGame(given).legal(s)["primary"], moba_world.BOLT + primary - 3
    action, before = np.zeros((40, 6, 4), np.int64), s["heroes"][:, :, column].copy()
    action[:, :, 0], action[:, :, 2] = primary, 40
    action[:, :, 1] = nameable(given, s)[:, :, min(primary, 4)].argmax(2)
    half = s["units"].shape[1] // 2
    alive = s["units"][:, [0, 1, 2, half, half + 1, half + 2], moba_world.HEALTH] > 0
    step(given, s, action)
    used, legal = (s["heroes"][:, :, column] != before)[alive], masks[:, :, primary][alive]
    assert min(legal.sum(), (~legal).sum()) > 5
    assert (used == legal).all()

"""The lane game: scenes by hand, both sides alike, what heroes see and may do, rewards, and bots in order."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from polyplay.core import tree
from polyplay.envs.lane import Seats
from polyplay.envs.spaces import random_actions
from polyplay.games import moba_rules
from polyplay.games import moba_views as v
from polyplay.games import moba_world as w
from polyplay.games.moba import LaneBot, LaneGame
from polyplay.games.moba_views import EVENTS, REWARDS

# Matches in the middle of things, and actions in which much happens.

State = dict[str, np.ndarray]


def begun(given: LaneGame, n: int, seed: int = 0) -> State:
    rng = np.random.default_rng(seed)
    return given.reset(lambda: rng.random(n), n)


def look(s: State) -> None:
    v.look(w.LaneMatches.of(s))


def scatter(given: LaneGame, s: State, rng: np.random.Generator) -> None:
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


def nameable(given: LaneGame, s: State) -> np.ndarray:
    """Which units each primary may name, bool [n, P, 8, rows]; none, where it is illegal or names none."""
    masks, names = given.legal(s), np.isin(np.arange(8), w.USES["unit"])
    return masks["unit"] & (masks["primary"] & names)[..., None]


def actions(given: LaneGame, s: State, rng: np.random.Generator) -> np.ndarray:
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


def step(given: LaneGame, s: State, action: np.ndarray) -> np.ndarray:
    """Events."""
    events = np.zeros((*s["here"].shape, len(EVENTS)))
    moba_rules.step_lanes(w.LaneMatches.of(s), action, given.repeat, events)
    look(s)
    return events


WORLDS = (
    LaneGame(team=5, lanes=3),
    LaneGame(team=2, lanes=1),
    LaneGame(team=1, lanes=1, repeat=3),
    LaneGame(team=3, lanes=2, repeat=6),
)


def mirrored(s: State) -> State:
    """The map mirrored, and the sides the other way round: the same match."""
    U, P = s["units"].shape[1], s["heroes"].shape[1]
    out = {k: np.roll(v, v.shape[1] // 2, 1) if v.ndim > 1 else v.copy() for k, v in s.items()}
    out["units"][:, :, w.X] = w.WIDTH - out["units"][:, :, w.X]
    for numbers in (out["units"][:, :, w.TARGET], out["heroes"][:, :, w.AIM], out["shown"]):
        numbers[numbers >= 0] = (numbers[numbers >= 0] + U // 2) % U
    assert out["wave"].shape[1] == 2 <= P
    return out


@pytest.mark.parametrize("given", WORLDS, ids=lambda w: f"{w.team}v{w.team}")
def test_sides_play_alike(given):
    """Steps of the mirrored match lead to the mirrored state; heroes see and may do the same there."""
    rng, s, game, total = np.random.default_rng(given.team), begun(given, 12), given, np.zeros(len(EVENTS))
    for turn in range(60):
        if turn % 15 == 5:
            scatter(given, s, rng)
        other, action = mirrored(s), actions(given, s, rng)
        for kind in (game.see, game.legal):
            for (name, ours), (_, theirs) in zip(tree.leaves(kind(s)), tree.leaves(kind(other)), strict=True):
                np.testing.assert_allclose(ours, np.roll(theirs, given.team, 1), atol=1e-6, err_msg=name)
        events, their_events = step(given, s, action), step(given, other, np.roll(action, given.team, 1))
        np.testing.assert_allclose(events, np.roll(their_events, given.team, 1), atol=1e-9)
        again = mirrored(other)
        assert all((again[k] == v).all() for k, v in s.items())
        total += np.abs(events).sum((0, 1))
    assert {e for e, x in zip(EVENTS, total, strict=True) if not x} <= {"win", "inner_tower", "core"}


class Lane:
    """A match of two against two in one lane, a step an action. Unit 0 is hero 0, creeps begin with unit 2, towers are
    units 8 and 9, the core is 10; those of the other side 11 more.
    """

    def __init__(self, **places: tuple[int, int]):
        self.given = LaneGame(team=2, lanes=1, repeat=1)
        self.s = begun(self.given, 1)
        self.units, self.heroes = self.s["units"][0], self.s["heroes"][0]
        for name, place in places.items():
            u = int(name[1:])
            self.units[u, : w.MOST] = *place, self.units[u, w.HEALTH] or 80
            self.units[u, w.MOST] = self.units[u, w.HEALTH]
        self.s["age"][0] = 1  # else a wave comes
        look(self.s)

    def play(self, steps: int = 1, **chosen: tuple[int, int]) -> dict[str, list[float]]:
        """Of the events of all steps those that happened. chosen: primary and unit; MOVE: the offset."""
        action, total = np.zeros((1, 4, 4), np.int64), np.zeros((4, len(EVENTS)))
        for name, (primary, named) in chosen.items():
            rows = self.s["shown"][0, int(name[1:])]
            at = 0 if primary == w.MOVE else int((rows == named).argmax())
            action[0, int(name[1:])] = primary, at, named if primary == w.MOVE else 0, 0
        for _ in range(steps):
            total += step(self.given, self.s, action)[0]
        return {k: x.tolist() for k, x in zip(EVENTS, total.round(3).T, strict=True) if x.any()}


def test_heroes_move_attack_and_chase():
    lane = Lane(u0=(17000, 6000), u11=(20000, 6000))
    lane.play(s0=(w.MOVE, 4 * 9 + 8), s2=(w.MOVE, 0 * 9 + 4))  # straight ahead; to the side
    assert (lane.units[0, :2].tolist(), lane.units[11, :2].tolist()) == ([17120, 6000], [20000, 5880])
    lane.play(24, s0=(w.ATTACK, 11))
    assert lane.units[11, w.HEALTH] == 300 - 20, "18 and 2 of level 1"
    lane.heroes[0, w.GOLD], lane.units[11, w.X] = 150, 21000
    lane.play(s0=(w.ATTACK, 11))
    assert (lane.units[11, w.HEALTH], lane.units[0, w.X]) == (280, 17120 + 119), "too far: it goes there"
    lane.play(24, s0=(w.ATTACK, 11))
    assert lane.units[11, w.HEALTH] == 280 + 2 - 23, "50 of gold make a hit stronger by 1; it recovers meanwhile"


@pytest.mark.parametrize(
    ("primary", "named", "cost", "wait", "health"),
    [
        (w.CAST_BOLT, 11, 30, 120, {11: 240}),
        (w.CAST_BLAST, 11, 40, 180, {11: 260, 12: 260, 13: 40}),
        (w.CAST_HEAL, 11, 50, 300, {0: 170, 1: 300}),
        (w.CAST_BOLT, 19, 0, 0, {}),  # an outer tower
    ],
)
def test_abilities(primary, named, cost, wait, health):
    lane = Lane(u0=(20500, 6000), u1=(21000, 7000), u11=(24000, 6000), u12=(24000, 7400), u13=(23000, 6500))
    lane.units[:2, w.HEALTH] = 100, 290
    before = lane.units[:, w.HEALTH].copy()
    lane.play(s0=(primary, named))
    changed = {u: int(h) for u, h in enumerate(lane.units[:, w.HEALTH]) if h != before[u]}
    assert changed == health
    assert lane.heroes[0, w.MANA] == 110 - cost
    assert lane.heroes[0, primary - w.CAST_BOLT + w.BOLT] == (2 + wait if wait else 0)
    lane.play(s0=(primary, named))
    assert lane.heroes[0, w.MANA] == 110 - cost, "not again at once"


def test_who_kills_earns_and_all_near_learn():
    lane = Lane(u0=(17000, 6000), u1=(16000, 6000), u11=(20000, 6000), u13=(19000, 6000))
    lane.units[[11, 13], w.HEALTH] = 1
    told = lane.play(s0=(w.ATTACK, 13))
    assert (told["last_hit"], told["gold"], told["experience"]) == ([1, 0, 0, 0], [40, 0, 0, 0], [30, 30, 0, 0])
    lane.heroes[2, w.LEVEL], lane.units[0, w.READY] = 3, 0
    told = lane.play(s0=(w.ATTACK, 11))
    assert (told["killed_hero"], told["death"]) == ([1, 0, 0, 0], [0, 0, 1, 0])
    assert (told["gold"], told["experience"]) == ([160, 0, 0, 0], [120, 120, 0, 0])
    assert lane.heroes[:2, w.LEVEL].tolist() == [2, 2]
    assert lane.units[:2, w.MOST].tolist() == [330, 330]
    assert lane.heroes[2, w.RETURNS] == 3 + 120 + 3 * 30
    lane.play(209)
    assert lane.units[11, w.HEALTH] == 0
    lane.play()
    assert lane.units[11, : w.MOST].tolist() == [w.WIDTH - 1500, 5600, 300], "as good as new where it began"


def test_buildings_fall_in_order_and_the_core_ends_the_match():
    lane = Lane(u0=(23500, 6000))
    half = 11
    for tower, closed in ((half + 8, half + 9), (half + 9, half + 10)):
        lane.units[0, : w.HEALTH], lane.units[0, w.READY] = lane.units[tower, : w.HEALTH] - (3000, 0), 0
        lane.units[tower, w.HEALTH], before = 5, lane.units[closed, w.HEALTH]
        look(lane.s)
        lane.play(s0=(w.ATTACK, closed))
        assert lane.units[closed, w.HEALTH] == before, "not yet"
        told = lane.play(s0=(w.ATTACK, tower))
        assert told["gold"] == [80, 80, 0, 0]
        name = "outer_tower" if tower == half + 8 else "inner_tower"
        assert told[name] == pytest.approx([1 / 3 + 2 / 3 * 5 / 700] * 2 + [0, 0], abs=1e-3)
    lane.units[0, : w.HEALTH], lane.units[0, w.READY] = (31000, 6000), 0
    lane.units[half + 10, w.HEALTH] = 5
    look(lane.s)
    assert lane.play(3, s0=(w.ATTACK, half + 10))["win"] == [1, 1, 0, 0]


def test_creeps_come_in_waves_march_and_fight_and_towers_shoot_them_first():
    lane = Lane()
    lane.s["age"][0] = 0
    lane.play()
    there = lane.units[:, w.HEALTH] > 0
    assert (there[2:8].tolist(), there[13:19].tolist()) == ([True] * 3 + [False] * 3,) * 2
    x = lane.units[2, w.X]
    lane.play(10)
    assert lane.units[2, w.X] == x + 800
    lane.play(290)
    assert (lane.units[2:8, w.HEALTH] > 0).sum() == 6 - (lane.units[2:5, w.HEALTH] <= 0).sum(), "the next wave"
    lane = Lane(u0=(22000, 6000), u2=(20500, 6000))
    lane.s["age"][0] = 8
    lane.play()
    assert (lane.units[19, w.TARGET], lane.units[2, w.HEALTH], lane.units[0, w.HEALTH]) == (2, 80 - 25, 300)
    lane.units[2, w.HEALTH], lane.s["age"][0] = 0, 40
    lane.play()
    assert (lane.units[19, w.TARGET], lane.units[0, w.HEALTH]) == (0, 300 - 25)


@pytest.mark.parametrize(("x", "times"), [(17000, 1), (3000, 12)])
def test_heroes_recover_faster_at_home(x: int, times: Any):
    lane = Lane(u0=(x, 6000))
    lane.units[0, w.HEALTH], lane.heroes[0, w.MANA], lane.s["age"][0] = 100, 50, 28
    lane.play()
    assert lane.units[0, w.HEALTH] == 100
    lane.play()
    assert (lane.units[0, w.HEALTH], lane.heroes[0, w.MANA]) == (100 + 2 * times, 50 + 2 * times)


def test_randomized_matches_begin_in_the_middle_of_things_as_they_always_did():
    """Anywhere within their first half, heroes on their way, buildings worn from the outer one on."""
    given = LaneGame(team=3, lanes=2, randomize=1.0)
    s, plain = begun(given, 50, 3), begun(replace(given, randomize=0.0), 5)
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


def scene(given: LaneGame, n: int, seed: int) -> State:
    s, rng = begun(given, n, seed), np.random.default_rng(seed)
    scatter(given, s, rng)
    step(given, s, actions(given, s, rng))
    return s


def test_nothing_of_what_is_not_seen_is_in_an_observation():
    """Rows of enemies that are far from all, and of the dead, are 0; what is near is there."""
    given = LaneGame(team=2, lanes=1)
    s = begun(given, 1)
    units = s["units"][0]
    units[[0, 11, 12], 0] = 17000, 19000, 34000
    units[[0, 11, 12], 1] = 6000
    units[1, w.HEALTH], s["age"][0] = 0, 60
    v.look(w.LaneMatches.of(s))
    seen = given.see(s)
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
    masks, named = given.legal(s), nameable(given, s)
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


SIZES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32 - 1))


@settings(max_examples=30, deadline=None)
@drawn(SIZES, st.integers(0, 9000))
def test_events_are_weighed_by_the_table_and_all_but_the_win_by_time(size, age):
    n, team, seed = size
    events = np.random.default_rng(seed).normal(0, 2, (n, 2 * team, len(EVENTS)))
    found = LaneGame(length=12_000).shaped(events, np.full(n, age))
    worth = np.array([REWARDS[name] * (1.0 if name == "win" else 0.6 ** (age / 30 / 600)) for name in EVENTS])
    own = (events @ worth).reshape(n, 2, team)
    np.testing.assert_allclose(found, (own - own.mean(2, keepdims=True)[:, ::-1]).reshape(n, -1), atol=1e-9)


def test_the_map_shows_units_of_both_sides():
    s = begun(LaneGame(team=2, lanes=2), 2)
    half = s["units"].shape[1] // 2
    s["units"][1, [0, half], : w.HEALTH] = (16000, 9000), (20000, 9000)
    s["units"][1, 0, w.HEALTH] = s["units"][1, 0, w.MOST] // 2
    picture = v.draw_lanes(s, 1)
    assert picture.shape == (400, w.WIDTH // v.DOT, 3)
    places = [(16000, 9000), (20000, 9000), (w.INNER_X, 6000), (w.WIDTH - w.OUTER_X, 6000), (w.CORE_X, 10000)]
    colors = [tuple(picture[y // v.DOT, x // v.DOT].tolist()) for x, y in [*places, (9000, 6000), (18000, 3000)]]
    assert colors == [*v.SIDES, *v.SIDES, v.SIDES[0], v.ROAD, v.GROUND]
    bar = picture[9000 // v.DOT - v.HERO - 7, 16000 // v.DOT - v.HERO : 16000 // v.DOT + v.HERO + 1].tolist()
    assert bar == [list(v.GREEN)] * 9 + [list(v.BACK)] * 8


def test_rewards_of_both_teams_sum_to_nothing():
    given = LaneGame(team=3, lanes=1)
    s, rng, game, most = begun(given, 8), np.random.default_rng(1), given, 0.0
    scatter(given, s, rng)
    for _ in range(15):
        chosen = actions(given, s, rng)
        s, row = game.step(s, {k: chosen[:, :, i] for i, k in enumerate(w.PARTS)}, rng.random)
        np.testing.assert_allclose(row["reward"].sum(1), 0.0, atol=1e-9)
        own, team = np.moveaxis(row["events"][..., len(EVENTS) :], -1, 0)
        np.testing.assert_allclose(row["reward"], own, atol=1e-9)
        np.testing.assert_allclose(team, np.repeat(own.reshape(8, 2, 3).mean(2), 3, 1), atol=1e-9)
        most = max(most, abs(row["reward"]).max())
    assert most > 0.3


@pytest.mark.parametrize(("reward", "side"), [*zip(w.KINDS, (0, 1), strict=True)])
def test_who_takes_the_core_has_won(reward, side):
    given = LaneGame(team=2, lanes=1, reward=reward)
    s, game = begun(given, 2), given
    half = s["units"].shape[1] // 2
    theirs = (1 - side) * half
    s["units"][0, [theirs + half - 2, theirs + half - 1], w.HEALTH] = 0, 1  # an inner tower has fallen
    s["units"][0, side * half, : w.HEALTH] = s["units"][0, theirs + half - 1, : w.HEALTH]
    s = game.step(s, {k: np.zeros((2, 4), np.int64) for k in w.PARTS}, lambda: np.zeros(2))[0]
    chosen = {k: np.zeros((2, 4), np.int64) for k in w.PARTS}
    chosen["primary"][0, side * 2], chosen["unit"][0, side * 2] = 2, sum(given.sets) - 1
    s, row = game.step(s, chosen, lambda: np.zeros(2))
    sign = 1 - 2 * side
    assert row["terminated"].tolist() == [[True] * 4, [False] * 4]
    assert row["team_reward"].tolist() == [[sign, sign, -sign, -sign], [0] * 4]
    assert row["events"][0, :, EVENTS.index("win")].tolist() == [1 - side, 1 - side, side, side]
    assert (row["reward"][0] * row["team_reward"][0] > 0.9).all()


def test_who_has_more_towers_has_won_when_time_is_over():
    given = LaneGame(team=1, lanes=1, length=4)
    s, game = begun(given, 3), given
    half = s["units"].shape[1] // 2
    s["units"][0, half - 2, w.HEALTH] -= 1
    s["units"][1, -2, w.HEALTH] -= 1
    _, row = game.step(s, {k: np.zeros((3, 2), np.int64) for k in w.PARTS}, lambda: np.zeros(3))
    assert row["team_reward"].tolist() == [[-1, 1], [1, -1], [0, 0]]
    assert row["reward"].tolist() == [[-5, 5], [5, -5], [0, 0]]
    assert row["events"][:, :, EVENTS.index("win")].tolist() == [[0, 1], [1, 0], [0, 0]]
    assert row["terminated"].all()


DUEL = LaneGame(team=2, lanes=1)


def seats_of(given: LaneGame, s: Any, sides: tuple[int, ...] = (0, 1)) -> Seats:
    own = np.concatenate([np.arange(given.team) + side * given.team for side in sides])
    n = len(s["age"])
    return Seats(given, s, np.repeat(np.arange(n), len(own)), np.tile(own, n))


class AtRandom:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, obs: None, mask: None, at: Seats) -> Any:
        legal = tree.at(at.game.legal(at.states), (at.match, at.seat))
        return random_actions(at.game.action, self.rng.random((len(at.seat), 4)), legal)


def play(given: LaneGame, one: Any, two: Any, n: int, seed: int) -> np.ndarray:
    """Who has won, [n]: 1 the first, -1 the second."""
    game, s, won = given, begun(given, n, seed), np.zeros(n)
    running = np.ones(n, bool)
    while running.any():
        action = {k: np.zeros((n, given.seats), np.int64) for k in w.PARTS}
        for side, who in enumerate((one, two)):
            at = seats_of(given, s, (side,))
            for k, chosen in who(None, None, at).items():
                action[k][at.match, at.seat] = chosen
        s, row = game.step(s, action, lambda: np.zeros(n))
        ended = running & row["terminated"][:, 0]
        won[ended], running = row["team_reward"][ended, 0], running & ~ended
    return won


def shares(given: LaneGame, better: Any, worse: Any, n: int, seed: int) -> tuple[int, int]:
    """Wins of each over n matches from either side."""
    won = np.concatenate([play(given, better, worse, n, seed), -play(given, worse, better, n, seed + 1)])
    return int((won > 0).sum()), int((won < 0).sum())


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_what_a_bot_does_is_legal_and_follows_from_the_state_of_its_match_alone(level):
    given, rng, bot = LaneGame(team=3, lanes=1), np.random.default_rng(level), LaneBot(level)
    used: set[int] = set()
    for seed in range(4):
        s = begun(given, 30, seed)
        if seed:
            scatter(given, s, rng)
        before, at, legal, named = (
            tree.map(np.copy, s),
            seats_of(given, s),
            given.legal(s),
            nameable(given, s),
        )
        whole, some = bot(None, None, at), rng.permutation(180)[:100]
        part = bot(None, None, at._replace(match=at.match[some], seat=at.seat[some]))
        assert all((part[k] == whole[k][some]).all() for k in w.PARTS)
        found = bot(
            None, None, Seats(at.game, tree.map(lambda x: x[3:4].copy(), s), np.zeros(6, np.int64), np.arange(6))
        )
        assert all((found[k] == whole[k][at.match == 3]).all() for k in w.PARTS)
        assert all((before[k] == v).all() for k, v in s.items()), "only read"
        for m, p, primary, unit in zip(at.match, at.seat, whole["primary"], whole["unit"], strict=True):
            assert legal["primary"][m, p, primary]
            assert primary not in w.USES["unit"] or named[m, p, primary, unit]
            used.add(int(primary))
    assert used >= ({1, 2}, {1, 2, 7}, {1, 2, 3, 5, 7}, {1, 2, 3, 4, 5, 7})[level - 1]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("given", [DUEL, LaneGame()], ids=["2v2", "5v5"])
def test_levels_are_in_order(given):
    for level, _ in itertools.pairwise((1, 2, 3, 4)):
        wins, losses = shares(given, LaneBot(level + 1), LaneBot(level), 60, level)
        assert wins / (wins + losses) > 0.65, level

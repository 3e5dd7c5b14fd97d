"""The rules of the lane game: scenes by hand, both sides alike; where randomised matches begin."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polyplay.core import tree
from polyplay.games import moba_world as w
from polyplay.games.moba import LaneGame
from polyplay.games.moba_views import EVENTS
from polyplay.games.moba_world import LaneWorld
from tests.games.moba_scenes import State, actions, begun, look, scatter, step

WORLDS = (
    LaneWorld(team=5, lanes=3),
    LaneWorld(team=2, lanes=1),
    LaneWorld(team=1, lanes=1, repeat=3),
    LaneWorld(team=3, lanes=2, repeat=6),
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
    rng, s, game, total = np.random.default_rng(given.team), begun(given, 12), LaneGame(given), np.zeros(len(EVENTS))
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
        self.given = LaneWorld(team=2, lanes=1, repeat=1)
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

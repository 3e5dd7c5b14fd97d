"""Matches of several players: steps by hand, digests of their rows; who steps when, rests, is saved and loaded."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.core import tree
from polyplay.envs import Envs
from polyplay.games.toys import RockPaperScissors, Skirmish
from tests.games import visitors
from tests.games.test_arenas import digest

SHORT = {"health": 3, "steps": 7}


def answered(pool, choose):
    """Every group's rows, [lanes, …], and its answer."""
    groups = []
    for _ in range(pool.groups):
        lanes, row = pool.recv()
        groups.append(tree.map(np.copy, row))
        pool.send(lanes, choose(lanes, row))
    return tree.map(lambda *parts: np.concatenate(parts), *groups)


@pytest.mark.parametrize(
    ("name", "lanes", "agents", "options", "wanted"),
    [
        ("toy:rps", 8, 1, {}, "1e1e6dc138f738fc"),
        ("toy:rps", 8, 4, {"rounds": 3}, "3bc29b179cbdd929"),
        (visitors.NAME, 18, 1, {}, "06f61ddecd492885"),
        (visitors.NAME, 18, 6, {}, "45686883171f1ea0"),
        ("toy:skirmish", 16, 1, SHORT, "495f4e4bb983dce9"),
        ("toy:skirmish", 16, 4, {**SHORT, "late": 2}, "d74eaf7bf49fad30"),
    ],
)
def test_rows_are_those_they_always_were_also_while_matches_are_held(name, lanes, agents, options, wanted):
    """A match that is over begins anew, or rests while it is held; who is not there has rows in which nothing is."""
    pool = Envs(name, lanes, agents=agents, groups=agents, options=options).open(3, 2 * lanes)
    rng, found, held, over = np.random.default_rng(3), [], False, np.zeros(lanes, bool)
    for t in range(100):
        if t in (20, 30, 31):
            held = not held
            pool.pause_matches(held)
        sat, actions = pool.seating.lanes.copy(), rng.integers(0, pool.spec.action.n, lanes)
        rested = pool.state()["rests"][pool.seating.match]
        row = answered(pool, lambda numbers, row, a=actions: a[numbers])
        found.append(row)
        ended = row["terminated"] | row["truncated"]
        assert (row["over"] == ended).all()
        assert not (row["terminated"] & row["truncated"]).any()
        assert row["first"][over | (t == 0)].all(), "the row behind an end"
        assert not row["reward"][row["first"]].any()
        assert not (rested & (ended | ~row["first"])).any(), "nothing happens in a match that rests"
        assert held or not rested.any() or t in (20, 30, 31)
        over = ended
        assert sorted(sat.ravel()) == list(range(lanes))
    assert digest(*found) == wanted
    assert pool.spec.mask is None or np.stack([row["mask"].all(1) for row in found]).any()


@pytest.mark.parametrize(
    ("options", "health", "age", "action", "after", "reward", "events", "over"),
    [  # units 0 and 1 against 2 and 3; actions: whom of the two to shoot at; every shot hits
        ({}, (8, 8, 8, 8), 0, (0, 1, 0, 1), (7, 7, 7, 7), (0, 0, 0, 0), {"hit": (1, 1, 1, 1)}, ()),
        ({}, (8, 8, 8, 8), 0, (0, 0, 1, 1), (8, 4, 4, 8), (0, 0, 0, 0), {"hit": (1, 1, 1, 1)}, ()),
        ({}, (8, 8, 4, 8), 0, (0, 0, 0, 0), (4, 8, 0, 8), (0.25, 0.25, -0.5, 0),
         {"hit": (1, 1, 1, 1), "kill": (1, 1, 0, 0), "death": (0, 0, 1, 0)}, (2,)),
        ({}, (8, 8, 1, 0), 0, (0, 1, 1, 0), (8, 7, 0, 0), (0.5, 0, -0.5, 0),
         {"hit": (1, 0, 1, 0), "kill": (1, 0, 0, 0), "death": (0, 0, 1, 0)}, (0, 1, 2, 3)),
        ({"steps": 5}, (8, 8, 8, 8), 4, (0, 1, 0, 1), (7, 7, 7, 7), (0, 0, 0, 0), {"hit": (1, 1, 1, 1)}, (0, 1, 2, 3)),
    ]
)  # fmt: skip
def test_a_step_of_a_skirmish(options, health, age, action, after, reward, events, over):
    game = Skirmish(accuracy=1.0, **options)
    state = {"health": np.array([health]), "here": np.array([health]) > 0, "age": np.array([age])}
    state, row = game.step(state, np.array([action]), lambda: np.zeros(1))
    assert state["health"].tolist() == [[*after]]
    assert row["reward"].tolist() == [[*reward]]
    assert row["team_reward"][0].tolist() == [sum(reward[:2]) / 2] * 2 + [sum(reward[2:]) / 2] * 2
    assert {k: tuple(x) for k, x in zip(game.events, row["events"][0].T.tolist(), strict=True) if any(x)} == events
    assert np.flatnonzero(row["terminated"] | row["truncated"]).tolist() == [*over]
    assert row["truncated"].any() == ("steps" in options)


def test_some_come_late_and_see_nobody_who_is_not_there():
    game, draw = Skirmish(late=2, accuracy=0.5), lambda: np.array([0.4, 0.9])  # in the second match all miss
    state = game.reset(draw, 2)
    assert game.see(state)[0].tolist() == [[0, 1, 0, 1, 0], [1, 0, 1, 1, 0], [0, 1, 0, 1, 0], [1, 0, 1, 1, 0]]
    for here in ([1, 0, 1, 0], [1, 1, 1, 1]):
        state, row = game.step(state, np.zeros((2, 4), np.int64), draw)
        assert state["here"].astype(int).tolist() == [here, here]
        assert row["events"][:, :, 0].astype(int).tolist() == [[1, 0, 1, 0], [0] * 4]
    assert game.see(state)[0, 1].tolist() == [1, 1, 0.75, 0.75, 1]


@pytest.mark.parametrize(("one", "two", "reward"), [(0, 0, 0), (1, 0, 1), (2, 1, 1), (0, 2, 1), (2, 0, -1)])
def test_paper_beats_rock(one, two, reward):
    game = RockPaperScissors(rounds=2)
    state = game.reset(lambda: np.zeros(1), 1)
    for over in (False, True):
        state, row = game.step(state, np.array([[one, two]]), lambda: np.zeros(1))
        assert row["reward"].tolist() == [[reward, -reward]]
        assert row["terminated"].tolist() == [[over] * 2]


@pytest.mark.parametrize(("groups", "agents"), [(1, 1), (4, 4)])
def test_what_a_lane_sees_is_what_its_seat_sees_in_the_state_also_where_seats_change(groups, agents):
    pool, rng = Envs("toy:skirmish", 16, groups=groups, agents=agents, options=SHORT).open(2), np.random.default_rng(0)
    sat = set()
    for _ in range(400):
        lanes, row = pool.recv()
        at = pool.seats_of(lanes)
        assert (at.game.see(at.states)[at.match, at.seat] == row["obs"]).all()
        sat |= {(int(lane), int(seat)) for lane, seat in zip(np.arange(16)[lanes], at.seat, strict=True)}
        pool.send(lanes, rng.integers(2, size=len(at.seat)))
    assert len(sat) == (16 if agents == 1 else 64)


def test_lanes_may_be_answered_one_by_one():
    """Whoever is ready is given; a match waits for all of its lanes."""
    pool, whole = (Envs("toy:skirmish", 8, options=SHORT, at_once=n).open(2) for n in (3, 8))
    rows = {0: [], 1: []}
    for number, one in enumerate((pool, whole)):
        counts = np.zeros(8, int)
        while counts.min() < 30:
            lanes, row = one.recv()
            for i, lane in enumerate(lanes):
                if lane == 5:
                    rows[number].append((row["obs"][i].tolist(), float(row["reward"][i]), bool(row["over"][i])))
            one.send(lanes, (counts[lanes] + lanes) // 2 % 2)
            counts[lanes] += 1
    assert rows[0][:30] == rows[1][:30]

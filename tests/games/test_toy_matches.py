"""Matches of several players against plain twins; who steps when, rests, is saved and loaded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core import tree
from polyplay.envs import Envs, Greedy
from tests.games import visitors
from tests.games.plain_matches import PlainPool, PlainRockPaperScissors, PlainSkirmish, PlainVisitors

KINDS = {"toy:rps": PlainRockPaperScissors, "toy:skirmish": PlainSkirmish, visitors.NAME: PlainVisitors}
SHORT = {"health": 3, "steps": 7}


def answered(pool, choose):
    """Every group's rows, [lanes, …], and its answer."""
    groups = []
    for _ in range(pool.groups):
        lanes, row = pool.recv()
        groups.append(tree.map(np.copy, row))
        pool.send(lanes, choose(lanes, row))
    return tree.map(lambda *parts: np.concatenate(parts), *groups)


def check_rows(got, want):
    for field, value in got.items():
        plain = [row.get(field, np.zeros(np.shape(value)[1:])) for row in want]
        tree.map(np.testing.assert_array_equal, value, _stack(plain, value))


def _stack(rows, like):
    if isinstance(like, dict):
        return {k: _stack([row[k] for row in rows], v) for k, v in like.items()}
    return np.array(rows).astype(like.dtype)


def check_plain(name, lanes, agents, seed, lane, turns, options=None, holds=()):
    pool = Envs(name, lanes, agents=agents, groups=agents, options=options or {}).open(seed, lane)
    plain = PlainPool(KINDS[name], lanes, agents, seed, lane, **(options or {}))
    rng, seen = np.random.default_rng(seed), []
    for t in range(turns):
        if t in holds:
            plain.held = not plain.held
            pool.pause_matches(plain.held)
        actions = rng.integers(0, pool.spec.action.n, lanes)
        assert (pool.seating.lanes == plain.seating.lanes).all()
        check_rows(answered(pool, lambda numbers, row, a=actions: a[numbers]), plain.rows)
        seen.append([dict(row) for row in plain.rows])
        plain.step(actions)
        assert pool.resting == all(plain.rests)
    return seen


@pytest.mark.parametrize(
    ("name", "lanes", "agents", "options"),
    [
        ("toy:rps", 8, 1, {}),
        ("toy:rps", 8, 4, {"rounds": 3}),
        (visitors.NAME, 18, 1, {}),
        (visitors.NAME, 18, 6, {}),
        ("toy:skirmish", 16, 1, SHORT),
        ("toy:skirmish", 16, 4, {**SHORT, "late": 2}),
    ],
)
def test_rows_are_those_of_a_plain_twin(name, lanes, agents, options):
    seen = check_plain(name, lanes, agents, 3, 2 * lanes, 100, options, holds=(20, 30, 31))
    if "health" in options:
        ends = {(row["terminated"], row["truncated"]) for turn in seen for row in turn}
        assert ends == {(False, False), (True, False), (False, True)}
        assert any(0 < sum(row["over"] for row in turn[:4]) < 4 for turn in seen), "somebody dies before the match ends"


@settings(max_examples=8, deadline=None)
@given(
    matches=st.integers(1, 3),
    agents=st.sampled_from([1, 2, 4, 8]),
    seed=st.integers(0, 2**31),
    health=st.integers(1, 6),
    accuracy=st.floats(0.1, 1.0),
    late=st.integers(0, 5),
    holds=st.lists(st.integers(0, 20), max_size=4),
)
def test_any_skirmish_is_its_plain_twin(matches, agents, seed, health, accuracy, late, holds):
    options = {"health": health, "accuracy": accuracy, "steps": 12, "late": min(late, health - 1)}
    check_plain("toy:skirmish", 8 * matches, agents, seed, 0, 20, options, holds)


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
    """Greedy: who is ready; a match waits for all of its lanes."""
    pool, whole = (Envs("toy:skirmish", 8, options=SHORT, batching=b).open(2) for b in (Greedy(3), Greedy(8)))
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


@pytest.mark.parametrize(("kw", "held"), [({}, False), ({"groups": 2}, True), ({"agents": 4, "groups": 4}, True)])
def test_state_and_load_go_on_to_the_bit(kw, held):
    """Saved in the middle of a turn, loaded into a pool with another seed and past."""
    envs = Envs("toy:skirmish", 16, options={**SHORT, "late": 1}, **kw)
    pool, other = envs.open(1), envs.open(99)

    def turns(one, n, rng):
        rows = []
        for _ in range(n):
            lanes, row = one.recv()
            rows.append(({**tree.map(np.copy, row), "seats": one.seating.lanes.copy()}, one.resting))
            one.send(lanes, rng.integers(0, 2, one.lanes // one.groups))
        return rows

    pool.pause_matches(held)
    turns(pool, 37, np.random.default_rng(0))
    lanes, _ = pool.recv()
    state = pool.state()
    turns(other, 11, np.random.default_rng(5))
    other.load(state)
    ends = []
    for one in (pool, other):
        rng = np.random.default_rng(7)
        one.send(lanes, rng.integers(0, 2, 16 // one.groups))
        ends.append(turns(one, 30, rng))
        one.pause_matches(False)
        ends[-1] += turns(one, 90, rng)
    for (a, x), (b, y) in zip(*ends, strict=True):
        tree.map(np.testing.assert_array_equal, a, b)
        assert x == y
    assert any(a["over"].any() for a, _ in ends[0])

"""polyplay/learning/unreal.py: what is kept, and which examples are drawn, against a list of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core import tree
from polyplay.core.tree import Field
from polyplay.learning.unreal import RecentRows

QUICK = settings(max_examples=60, deadline=None)
ROW = {"obs": {"id": Field((), "int64"), "view": Field((2, 3), "uint8")}}
ROW |= {"reward": Field((), "float32"), "first": Field((), "bool")}


def batch(start: int, rows: int, lanes: int, rng: np.random.Generator, zeros: float = 0.5) -> dict[str, Any]:
    """Rows whose observations are numbered, from `start` on."""
    number = start + np.arange(rows * lanes).reshape(rows, lanes)
    view = np.broadcast_to((number % 251)[..., None, None], (rows, lanes, 2, 3)).astype(np.uint8)
    reward = np.where(rng.random((rows, lanes)) < zeros, 0.0, rng.choice([-1.0, 0.5], (rows, lanes)))
    first = rng.random((rows, lanes)) < 0.15
    return {"obs": {"id": number, "view": view}, "reward": reward.astype(np.float32), "first": first}


def examples(kept: list[tuple[Any, Any]]) -> dict[tuple[int, ...], float]:
    """By their three rows' numbers: the reward behind them. kept: columns as (rows of number, reward, first)."""
    found = {}
    for column in kept:
        for t in range(len(column) - 3):
            four = column[t : t + 4]
            if not any(first for _, _, first in four[1:]):
                found[tuple(number for number, _, _ in four[:3])] = four[3][1]
    return found


@QUICK
@given(st.integers(4, 7), st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 3), st.integers(0, 10**6))
def test_examples_are_those_of_the_latest_columns(rows: int, widths: list[int], more: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    memory, columns, start = RecentRows(ROW, rows, rows * (1 + more) + rows // 2), [], 0
    for lanes in widths:
        given = batch(start, rows, lanes, rng)
        memory.add(given)
        start += rows * lanes
        for b in range(lanes):
            each = (x[:, b].tolist() for x in (given["obs"]["id"], given["reward"], given["first"]))
            columns.append(list(zip(*each, strict=True)))
    expected = examples(columns[-(1 + more) :])
    rewarding = sum(r != 0 for r in expected.values())
    assert memory.counts == (len(expected) - rewarding, rewarding)
    if not expected:
        with pytest.raises(ValueError, match="no example to draw"):
            memory.sample_examples(3, rng)
        return
    frames, reward = memory.sample_examples(60, rng)
    assert frames["id"].shape == (3, 60)
    assert frames["view"].shape == (3, 60, 2, 3)
    for i in range(60):
        assert expected[tuple(frames["id"][:, i].tolist())] == pytest.approx(reward[i])
    assert np.array_equal(frames["view"][..., 0, 0], frames["id"] % 251)
    drawn = int((reward != 0).sum())
    assert drawn == (30 if 0 < rewarding < len(expected) else 60 * bool(rewarding))


def test_every_example_of_a_kind_is_drawn_as_often_as_another() -> None:
    rng = np.random.default_rng(0)
    memory = RecentRows(ROW, 20, 200)
    memory.add(batch(0, 20, 10, rng, zeros=0.9))
    zero, rewarding = memory.counts
    frames, reward = memory.sample_examples(40_000, rng)
    for kind, count in ((reward == 0, zero), (reward != 0, rewarding)):
        ids, times = np.unique(frames["id"][0, kind], return_counts=True)
        assert len(ids) == count
        mean = 20_000 / count
        assert abs(times - mean).max() < 5 * mean**0.5  # five deviations of a binomial


def test_the_odd_example_is_of_either_kind_by_chance() -> None:
    rng = np.random.default_rng(1)
    memory = RecentRows(ROW, 20, 100)
    memory.add(batch(0, 20, 5, rng))
    rewarding = [int((memory.sample_examples(1, rng)[1] != 0).sum()) for _ in range(400)]
    assert abs(sum(rewarding) - 200) < 5 * 10
    assert {int((memory.sample_examples(7, rng)[1] != 0).sum()) for _ in range(40)} == {3, 4}


def test_no_example_reaches_over_a_begin() -> None:
    memory = RecentRows(ROW | {"obs": {"id": Field((), "int64")}}, 9, 9)
    first = np.zeros((9, 1), bool)
    first[[0, 5]] = True
    reward = np.arange(9, dtype=np.float32)[:, None]
    memory.add({"obs": {"id": np.arange(9)[:, None]}, "reward": reward, "first": first})
    frames, reward = memory.sample_examples(50, np.random.default_rng(0))
    ends = {(*map(int, ids), int(r)) for *ids, r in zip(*frames["id"], reward, strict=True)}
    assert ends == {(0, 1, 2, 3), (1, 2, 3, 4), (5, 6, 7, 8)}


def test_the_same_generator_draws_the_same() -> None:
    memory = RecentRows(ROW, 20, 100)
    memory.add(batch(0, 20, 5, np.random.default_rng(2)))
    one, two = (memory.sample_examples(16, np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(one[0]["id"], two[0]["id"])
    assert np.array_equal(one[1], two[1])


def test_what_was_drawn_is_a_copy() -> None:
    rng = np.random.default_rng(4)
    memory = RecentRows(ROW, 5, 5)
    memory.add(batch(0, 5, 1, rng, zeros=0.0) | {"first": np.zeros((5, 1), bool)})
    frames, reward = memory.sample_examples(8, rng)
    columns, _ = memory.sample_columns(8, rng)
    before = frames["id"].copy(), reward.copy(), columns["obs"]["id"].copy()
    memory.add(batch(100, 5, 1, rng))
    assert np.array_equal(frames["id"], before[0])
    assert np.array_equal(reward, before[1])
    assert np.array_equal(columns["obs"]["id"], before[2])


@QUICK
@given(st.integers(2, 6), st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 3), st.integers(0, 10**6))
def test_columns_are_the_latest_with_the_state_before_them(
    length: int, widths: list[int], more: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    state = {"h": Field((2,), "float32"), "action": Field((), "int64")}
    memory, added, start = RecentRows(ROW, length, length * (1 + more), state), [], 0
    with pytest.raises(ValueError, match="no column to draw"):
        memory.sample_columns(3, rng)
    for lanes in widths:
        given = batch(start, length, lanes, rng)
        before = {"h": rng.random((lanes, 2)).astype(np.float32), "action": given["obs"]["id"][0] + 7}
        memory.add(given, before)
        start += length * lanes
        added += [(given, before, b) for b in range(lanes)]
    latest = {given["obs"]["id"][0, b]: (given, before, b) for given, before, b in added[-(1 + more) :]}
    rows, drawn = memory.sample_columns(80, rng)
    assert rows["obs"]["view"].shape == (length, 80, 2, 3)
    for i in range(80):
        given, before, b = latest[rows["obs"]["id"][0, i]]
        for k in ("reward", "first"):
            assert np.array_equal(rows[k][:, i], given[k][:, b])
        for k in ("id", "view"):
            assert np.array_equal(rows["obs"][k][:, i], given["obs"][k][:, b])
        assert np.array_equal(drawn["h"][i], before["h"][b])
        assert drawn["action"][i] == before["action"][b]
    assert len({*rows["obs"]["id"][0].tolist()}) == len(latest), "each is drawn some time"


def test_wrong_shapes_are_named() -> None:
    memory = RecentRows(ROW, 5, 20)
    given = batch(0, 5, 2, np.random.default_rng(5))
    with pytest.raises(ValueError, match=r"rows must be one \[5, B\] shape; got \[\(5, 1\), \(5, 2\)\]"):
        memory.add(given | {"first": given["first"][:, :1]})
    with pytest.raises(ValueError, match=r"rows must be one \[5, B\] shape; got \[\(4, 2\)\]"):
        memory.add(tree.at(given, (slice(1, None),)))
    for length, capacity in ((1, 20), (21, 20)):
        with pytest.raises(ValueError, match=rf"got {length}, {capacity}"):
            RecentRows(ROW, length, capacity)


def test_a_memory_that_was_saved_goes_on_as_it_was() -> None:
    """Whether it is full or not, with the state before its columns."""
    for lanes in (3, 9):
        rng, state = np.random.default_rng(lanes), {"h": Field((2,), "float32")}
        memory = RecentRows(ROW, 5, 35, state)
        memory.add(batch(0, 5, lanes, rng), {"h": rng.random((lanes, 2), np.float32)})
        other = RecentRows.of(tree.nest({k: np.array(v) for k, v in tree.leaves(memory.save())}))
        more = batch(100, 5, 2, rng), {"h": rng.random((2, 2), np.float32)}
        for each in (memory, other):
            each.add(*more)
        assert memory.counts == other.counts
        drawn = [each.sample_columns(20, np.random.default_rng(1)) for each in (memory, other)]
        pairs = zip(*(tree.leaves({"rows": rows, "state": before}) for rows, before in drawn), strict=True)
        assert all((one == two).all() for (_, one), (_, two) in pairs)
        found = [each.sample_examples(20, np.random.default_rng(1)) for each in (memory, other)]
        assert (found[0][0]["id"] == found[1][0]["id"]).all()
        assert (found[0][1] == found[1][1]).all()

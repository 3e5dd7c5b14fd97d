"""An optimizer's experience: which windows are there, how often each is drawn, and a buffer that goes on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.tree import Batch, Field
from polyplay.learning.agents import WindowBuffer

ROWS = {"x": Field((), "int64"), "obs": {"y": Field((2,), "float32")}}
STATE = {"h": Field((3,), "float32")}


def buffer(window: int = 2, capacity: int = 6, reuse: float = 1.0, seed: int = 0) -> WindowBuffer:
    return WindowBuffer(ROWS, STATE, window, capacity, reuse, seed)


def rollout(number: int, T: int, window: int, lanes: int) -> tuple[Batch, Batch]:
    """Rows that say in which rollout, step and lane they are, and states that say of which window they are."""
    x = number * 10_000 + 100 * np.arange(T)[:, None] + np.arange(lanes)
    state = np.repeat(x[::window, :, None], 3, 2).astype(np.float32)
    return {"x": x, "obs": {"y": np.stack([x, -x], 2).astype(np.float32)}}, {"h": state}


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(1, 12), st.integers(1, 6))
def test_windows_stay_whole_with_the_state_before_them_and_the_oldest_go(window, each, lanes, more, rollouts):
    capacity = lanes + more
    kept, all_windows = buffer(window, capacity), list[list[int]]()
    for number in range(rollouts):
        rows, state = rollout(number, window * each, window, lanes)
        kept.add(rows, state)
        for first in range(0, window * each, window):
            all_windows += [rows["x"][first : first + window, lane].tolist() for lane in range(lanes)]
    there = min(len(all_windows), capacity)
    found = kept.rows["x"].T[: there if kept.arrived < capacity else capacity].tolist()
    assert sorted(found) == sorted(all_windows[-there:])
    for i in range(there):
        assert kept.state["h"][i].tolist() == [float(kept.rows["x"][0, i])] * 3
    if kept.due(1):
        rows, state = kept.draw(min(3, capacity))
        assert (rows["obs"]["y"][0, :, 0] == state["h"][:, 0]).all()
        assert (np.diff(rows["x"], axis=0) == 100).all()
        assert len({*rows["x"][0].tolist()}) == rows["x"].shape[1], "none twice"


@pytest.mark.parametrize(("reuse", "batches"), [(0.5, 100), (1.0, 200), (4.0, 800)])
def test_reuse_is_what_was_asked_for(reuse, batches):
    kept, made = buffer(2, 32, reuse), 0
    for number in range(202):
        kept.add(*rollout(number, 2, 2, 16))
        while kept.due(16):
            kept.draw(16)
            made += 1
    assert abs(made - batches) <= 2 * reuse + 1
    assert kept.drawn == 16 * made


def test_nothing_is_drawn_before_it_is_full_and_without_a_reuse_always_then():
    kept = buffer(2, 6, 0.0)
    for number, due in enumerate((False, True, True)):
        kept.add(*rollout(number, 2, 2, 3))
        assert kept.due(6) is due
    for _ in range(50):
        kept.draw(6)
    assert kept.due(6)


def test_one_that_was_saved_draws_the_same_and_another_one_is_refused():
    kept, other = buffer(2, 6, 2.0, 5), buffer(2, 6, 2.0, 6)
    kept.add(*rollout(0, 4, 2, 4))
    kept.draw(3)
    arrays, counts = kept.save()
    other.load({k: arrays[k] for k in arrays}, counts)
    assert (other.arrived, other.drawn) == (8, 3)
    assert kept.draw(4)[0]["x"].tolist() == other.draw(4)[0]["x"].tolist()
    with pytest.raises(ValueError, match="not"):
        buffer(2, 5).load(arrays, counts)

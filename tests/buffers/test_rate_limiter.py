from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.buffers.replay import Replay
from tests.buffers.plain_replay import EVENTS, World


def limited(ratio: float | None, start: int = 10, lanes: int = 1, batch: int = 4, slack: int = 2):
    world = World(np.random.default_rng(0), lanes, 0, "zeros")
    world.events = ("go",)
    return world, Replay(world.spec(), lanes, 500, batch, ratio=ratio, start=start, slack=slack).open(0)


@settings(max_examples=25, deadline=None)
@given(
    ratio=st.floats(0.05, 40), start=st.integers(1, 60), T=st.integers(1, 20), lanes=st.integers(1, 3),
    slack=st.integers(1, 3),
)  # fmt: skip
def test_one_side_may_always_go_on_and_neither_runs_away(ratio, start, T, lanes, slack):
    world, buffer = limited(ratio, start, lanes, slack=slack)
    for _ in range(80):
        assert buffer.due or buffer.room
        if buffer.due:
            buffer.sample()
        else:
            buffer.add(world.rows(T, np.arange(lanes)), slice(None))
        if buffer.ready:
            owed = ratio * (buffer.limiter.steps - start) - buffer.sampled
            assert owed >= -1e-6
            assert owed <= slack * 4 + ratio * T * lanes + 1e-6


def test_numbers_of_dqn():
    """One batch of 32 for 4 steps is a ratio of 8, from the start on."""
    world, buffer = limited(8.0, start=50, batch=32)
    buffer.add(world.rows(50, np.arange(1)), slice(None))  # the first is no agent step
    assert (buffer.ready, buffer.due) == (False, 0)
    buffer.add(world.rows(1, np.arange(1)), slice(None))
    assert (buffer.ready, buffer.due) == (True, 0)
    sampled = []
    for _ in range(40):
        buffer.add(world.rows(1, np.arange(1)), slice(None))
        sampled.append(buffer.due)
        for _ in range(buffer.due):
            buffer.sample()
    assert sampled == [0, 0, 0, 1] * 10
    assert buffer.metrics()["ratio"] == pytest.approx(8)


def test_rows_of_a_sequence_count_each():
    world = World(np.random.default_rng(0), 1, 0, "zeros")
    world.events = ("go",)
    buffer = Replay(world.spec(), 1, 500, 2, sequence=8, ratio=1.0, start=20).open(0)
    buffer.add(world.rows(1 + 20 + 3 * 16, np.arange(1)), slice(None))
    assert buffer.due == 3
    buffer.sample()
    assert buffer.due == 2
    assert buffer.metrics()["ratio"] == pytest.approx(1 / 3)


def test_rows_that_begin_episodes_are_no_agent_steps():
    world, buffer = limited(8.0, start=1, batch=4)
    world.events = EVENTS
    rows = [world.rows(10, np.arange(1)) for _ in range(20)]
    for some in rows:
        buffer.add(some, slice(None))
    steps = 200 - sum(int(some["first"].sum()) for some in rows)
    assert steps < 150
    assert (buffer.limiter.steps, buffer.metrics()["steps"]) == (steps, steps)
    assert buffer.due == 8 * (steps - 1) // 4


def test_without_a_ratio_all_is_free():
    world, buffer = limited(None, start=3)
    assert buffer.due == 0 < buffer.room
    buffer.add(world.rows(4, np.arange(1)), slice(None))
    assert buffer.due > 10**9 < buffer.room

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.buffers.replay import Replay
from tests.buffers.replay.plain import World


def paced(ratio: float | None, start: int = 10, lanes: int = 1, batch: int = 4, slack: int = 2):
    world = World(np.random.default_rng(0), lanes, 0, "zeros")
    world.events = ("go",)
    return world, Replay(world.spec(), lanes, 500, batch, ratio=ratio, start=start, slack=slack).open(0)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    ratio=st.floats(0.05, 40), start=st.integers(1, 60), T=st.integers(1, 20), lanes=st.integers(1, 3),
    slack=st.integers(1, 3),
)  # fmt: skip
def test_one_side_may_always_go_on_and_neither_runs_away(ratio, start, T, lanes, slack):
    world, memory = paced(ratio, start, lanes, slack=slack)
    for _ in range(80):
        assert memory.due or memory.room
        if memory.due:
            memory.sample()
        else:
            memory.add(world.rows(T, np.arange(lanes)), slice(None))
        if memory.ready:
            owed = ratio * (memory.pace.rows - start) - memory.sampled
            assert owed >= -1e-6
            assert owed <= slack * 4 + ratio * T * lanes + 1e-6


def test_numbers_of_dqn():
    """One batch of 32 for 4 steps is a ratio of 8, from the start on."""
    world, memory = paced(8.0, start=50, batch=32)
    memory.add(world.rows(49, np.arange(1)), slice(None))
    assert (memory.ready, memory.due) == (False, 0)
    memory.add(world.rows(1, np.arange(1)), slice(None))
    assert (memory.ready, memory.due) == (True, 0)
    sampled = []
    for _ in range(40):
        memory.add(world.rows(1, np.arange(1)), slice(None))
        sampled.append(memory.due)
        for _ in range(memory.due):
            memory.sample()
    assert sampled == [0, 0, 0, 1] * 10
    assert memory.metrics()["ratio"] == pytest.approx(8)


def test_rows_of_a_sequence_count_each():
    world = World(np.random.default_rng(0), 1, 0, "zeros")
    world.events = ("go",)
    memory = Replay(world.spec(), 1, 500, 2, sequence=8, ratio=1.0, start=20).open(0)
    memory.add(world.rows(20 + 3 * 16, np.arange(1)), slice(None))
    assert memory.due == 3
    memory.sample()
    assert memory.due == 2
    assert memory.metrics()["ratio"] == pytest.approx(1 / 3)


def test_without_a_ratio_all_is_free():
    world, memory = paced(None, start=3)
    assert memory.due == 0 < memory.room
    memory.add(world.rows(4, np.arange(1)), slice(None))
    assert memory.due > 10**9 < memory.room

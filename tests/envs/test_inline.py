from __future__ import annotations

import os

import numpy as np
import pytest

from polyplay.core.errors import Closed, EnvFailure, UserError
from polyplay.envs import Envs, Greedy
from tests.envs import faulty
from tests.envs.faulty import FINE, RAISE, SHAPE


def test_the_same_rows_as_with_processes():
    """CartPole under the same seed and actions, to the bit."""
    inline = Envs("CartPole-v1", 3, inline=True).open(7)
    process = Envs("CartPole-v1", 3, workers=2).open(7)
    rng = np.random.default_rng(0)
    try:
        for _ in range(80):
            a, x = inline.recv()
            b, y = process.recv(60)
            assert a == b == slice(0, 3)
            assert all((x[k] == y[k]).all() for k in x)
            action = rng.integers(0, 2, 3)
            inline.send(a, action)
            process.send(b, action)
    finally:
        process.close()
        inline.close()


def test_steps_in_this_process_and_restarts_lanes():
    pool = Envs(faulty.Obedient, 2, inline=True, batching=Greedy(2)).open(0)
    lanes, row = pool.recv()
    assert row["obs"][:, 2].tolist() == [os.getpid()] * 2
    pool.send(lanes, np.array([FINE, RAISE]))
    lanes, row = pool.recv()
    assert row["first"].tolist() == [False, True]
    assert pool.restarts == 1
    assert "boom" in pool.faults[0]
    with pytest.raises(RuntimeError, match="before"):
        pool.recv()


def test_failures_end_it():
    pool = Envs(faulty.Obedient, 1, inline=True, max_restarts=0).open(0)
    lanes, _ = pool.recv()
    with pytest.raises(EnvFailure, match="boom"):
        pool.send(lanes, np.array([RAISE]))
    with pytest.raises(Closed):
        pool.recv()
    pool = Envs(faulty.Obedient, 1, inline=True).open(0)
    lanes, _ = pool.recv()
    with pytest.raises(EnvFailure, match="declared float64"):
        pool.send(lanes, np.array([SHAPE]))
    with pytest.raises(UserError, match="no licence"):
        Envs(faulty.Unbuildable, 1, inline=True).open(0)
    with pytest.raises(Closed):
        pool.state()

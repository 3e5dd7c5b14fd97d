"""ε by schedule and by ladder: the papers' numbers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from polyplay.acting.rows import EpsilonLadder, GaussianNoise, LinearEpsilon, RunSchedule


def at(explore, steps, lane=0):
    return float(explore.at(np.array([steps]), np.array([lane]))[0])


def test_dqns_falls_from_1_to_a_tenth_after_its_warm_up():
    dqn = LinearEpsilon(1.0, 0.1, 1_000_000, 50_000)
    told = [at(dqn, n) for n in (0, 50_000, 550_000, 1_050_000, 10_000_000)]
    assert told == pytest.approx([1.0, 1.0, 0.55, 0.1, 0.1])
    assert at(LinearEpsilon(1.0, 0.0, 1_000, 0, lanes=8), 50) == pytest.approx(1.0 - 8 * 50 / 1_000), "of all lanes"
    assert at(LinearEpsilon(1.0, 0.25, 0, 0), 1) == pytest.approx(0.25), "over nothing it is at its end"


def test_a_joint_schedule_is_at_what_all_did_together_whatever_a_lane_did():
    counts = SimpleNamespace()
    joint, alone = RunSchedule(1.0, 0.1, 1_000, 50, 8, counts), LinearEpsilon(1.0, 0.1, 1_000, 50)
    assert joint.lanes == 8
    for steps in (0, 50, 333, 1_050, 10**7):
        counts.learnt = float(steps)
        told = joint.at(np.array([0, 10**6, 7]), np.arange(3))
        assert (told.shape, told.dtype) == ((3,), np.float32)
        assert told == pytest.approx([at(alone, steps)] * 3)


def test_the_ladder_has_the_fact_sheets_numbers():
    lanes = np.arange(8)
    found = EpsilonLadder(8).at(np.zeros(8), lanes)
    twin = [0.4 ** (1 + i / 7 * 7) for i in range(8)]
    assert found.dtype == np.float32
    assert found == pytest.approx(twin)
    assert (found[0], found[-1]) == pytest.approx((0.4, 6.5536e-4))
    published = EpsilonLadder(360).at(np.zeros(360), np.arange(360))
    assert float(published.mean()) == pytest.approx(0.0626, abs=1e-4)
    assert float(np.median(published)) == pytest.approx(0.01619, rel=2e-2)
    assert at(EpsilonLadder(1, 0.4), 0) == at(EpsilonLadder(1, 0.4), 10**9) == pytest.approx(0.4), "one lane alone"


def test_normal_noise_has_one_deviation_for_every_lane_and_step():
    found = GaussianNoise(0.3).at(np.array([0, 10**9, 5]), np.array([0, 1, 63]))
    assert found.dtype == np.float32
    assert found == pytest.approx([0.3, 0.3, 0.3])

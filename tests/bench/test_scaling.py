"""The benchmarks' arithmetic: the model of replicas against its simulations and by hand, and the tests of few seeds."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import curves
import scaling
from scaling import Algorithm, Lognormal, Machine

EVEN = Lognormal(math.log(0.02), 1e-9)  # every rollout takes 20 ms
UNEVEN = Lognormal(math.log(0.02), 0.2)


def test_waiting_for_the_slowest_is_the_same_summed_and_simulated():
    for n in (2, 8):
        simulated = scaling.synchronous(UNEVEN.draw, n, cost=0.0)
        assert simulated == pytest.approx(1.0 / scaling.straggling(0.2, n), rel=0.01)
    assert scaling.straggling(0.2, 2) == pytest.approx(1 + math.erf(0.2 / 2), abs=1e-3)  # E[max of 2] = 2 Φ(σ/√2)
    assert scaling.synchronous(EVEN.draw, 4, cost=0.005) == pytest.approx(20 / 25)


def test_hours_of_gpus_by_hand():
    machine = Machine(bandwidth=1e9, latency=1e-3)
    assert scaling.ring(8e6, 4, machine) == pytest.approx(2 * 3 / 4 * 8e-3 + 6e-3)
    what = Algorithm("A2C", rows=80, updates=2, hours=1.0, parameters=1_000_000, steps=80 * 3600 * 50)  # T = 20 ms
    assert what.rollout == pytest.approx(0.02)
    cost = 2 * scaling.ring(4e6, 2, machine)
    assert scaling.hours(what, 2, 1e-9, machine) == pytest.approx((0.02 + cost) / 0.02 / 2, rel=1e-6)
    assert scaling.hours(what, 1, 0.2, machine) == 1.0
    assert scaling.implied(what, 2, (0.02 + cost) / 0.02 / 2) == pytest.approx(cost / 2)


def test_few_seeds_intervals_and_permutations():
    assert curves.interval([1.0, 2.0, 4.0]) == (pytest.approx(1.0, abs=0.25), pytest.approx(4.0, abs=0.45))
    assert curves.interval([0.3]) == (0.3, 0.3)
    assert curves.chance([4.0, 5.0, 6.0], [1.0, 2.0, 3.0]) == pytest.approx(2 / 20)
    assert curves.chance([1.0, 3.0], [2.0, 2.0]) == 1.0
    gap, p = curves.pooled([([4.0, 5.0, 6.0], [1.0, 2.0, 3.0])] * 3)
    assert gap == 3.0
    assert p == pytest.approx(2 / 20**3, abs=5e-4)
    assert curves.overlap((0.0, 1.0), (1.0, 2.0))
    assert not curves.overlap((0.0, 1.0), (1.1, 2.0))

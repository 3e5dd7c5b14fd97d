"""bench/measure.py: what the parts of a system cost, in this process and in others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import measure

from polyplay.cli import bench
from polyplay.core.errors import UserError, WorkerLost
from tests.games.traits import NAME as TRAITS


def test_the_limit_is_cores_over_the_sum_of_the_parts():
    assert measure.rate_limit(2, {"env": 300.0, "infer": 100.0, "learn": 100.0}) == 4000.0


def test_between_two_sizes_lies_a_straight_line():
    cost = {1: 10.0, 2: 14.0, 5: 50.0, 10: 80.0}
    assert measure.interpolate(1.0, 1, cost.__getitem__) == 10.0
    assert measure.interpolate(1.25, 1, cost.__getitem__) == 11.0
    assert measure.interpolate(7.5, 5, cost.__getitem__) == 65.0
    assert measure.interpolate(0.3, 1, cost.__getitem__) == 10.0


@pytest.mark.parametrize("system", bench.MEASURED)
def test_every_system_has_parts_that_can_be_measured(system: str):
    """Also with masks and several observations."""
    for env in ("toy:catch", f"{TRAITS}+mask+dict"):
        keywords = bench.keywords(system, env, "mlp", "float32", 2)
        wired = bench.wire(system, keywords)
        order = measure.MeasureRequest(system, keywords, 1e-4, acting=1.5, rows=(wired.T, wired.B), lanes=2)
        found = measure.measure_parts(order)
        assert set(found) == {"env", "infer", "learn"}
        assert min(found.values()) > 0.0


def test_an_order_asks_for_some():
    keywords = bench.keywords("a2c", "toy:catch", "mlp", "bfloat16", 2)
    assert set(measure.measure_parts(measure.MeasureRequest("a2c", keywords, 1e-4, lanes=2))) == {"env"}


def test_measurements_are_averaged():
    assert measure.mean([{"env": 1.0, "learn": 4.0}, {"env": 3.0, "learn": 8.0}]) == {"env": 2.0, "learn": 6.0}


def test_a_process_of_a_crowd():
    keywords = bench.keywords("a2c", "toy:catch", "mlp", "float32", 2)
    with measure.MeasureProcesses(1) as one:
        (child,) = one.children
        assert one.measure(measure.MeasureRequest("a2c", keywords, 1e-4, lanes=2))["env"] > 0
        with pytest.raises(UserError, match="--lanes 3 does not divide"):
            one.measure(measure.MeasureRequest("a2c", {**keywords, "lanes": 3}, 1e-4, lanes=2))
        child.kill()
        child.join()
        with pytest.raises(WorkerLost, match="a process that measures parts"):
            one.measure(measure.MeasureRequest("a2c", keywords, 1e-4, lanes=2))


def test_learning_from_what_acting_computed():
    """No forward pass but those of acting."""
    wired = bench.wire("a2c", bench.keywords("a2c", "toy:still", "a3c", "float32", 2))
    grads = []
    for reuse in (False, True):
        found = measure.Profile(wired.envs, wired.spec, "float32", reuse)
        assert found.reuse == reuse
        calls: list[int] = []
        found.policy.torso.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        found.learn(2, 2, 0.0)
        grads.append(len(calls))
    assert grads[0] > 2  # how often it is measured depends on the machine
    assert grads[1] == 2  # acting, once a row

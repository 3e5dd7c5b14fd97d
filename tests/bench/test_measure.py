"""bench/measure.py: what the parts of a system cost, in this process and in others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import measure

from polyplay.cli.bench import LITTLE, MEASURED, settings_of
from polyplay.core.errors import UserError, WorkerLost
from polyplay.core.files import Row
from polyplay.envs import Envs
from tests.games.traits import NAME as TRAITS


def keywords(system: str, env: str = "toy:catch", network: str = "mlp") -> Row:
    """What `polyplay bench` measures it with."""
    own = settings_of(system, Envs(env, 1).spec, 2)
    return {"env": env, **own, "network": network, "precision": "float32", **LITTLE}


def test_the_limit_is_cores_over_the_sum_of_the_parts():
    assert measure.rate_limit(2, {"env": 300.0, "infer": 100.0, "learn": 100.0}) == 4000.0


@pytest.mark.parametrize("system", MEASURED)
def test_every_system_has_parts_that_can_be_measured(system: str):
    """Also with masks and several observations."""
    for env in ("toy:catch", f"{TRAITS}+mask+dict"):
        wired = measure.wire(system, keywords(system, env))
        order = measure.MeasureRequest(
            system, keywords(system, env), 1e-4, acting=1.5, rows=(wired.T, wired.B), lanes=2
        )
        found = measure.measure_parts(order)
        assert set(found) == {"env", "infer", "learn"}
        assert min(found.values()) > 0.0


def test_a_process_of_a_crowd():
    given = keywords("a2c")
    with measure.MeasureProcesses(1) as one:
        (child,) = one.children
        assert one.measure(measure.MeasureRequest("a2c", given, 1e-4, lanes=2))["env"] > 0
        with pytest.raises(UserError, match="--lanes 3 does not divide"):
            one.measure(measure.MeasureRequest("a2c", {**given, "lanes": 3}, 1e-4, lanes=2))
        child.kill()
        child.join()
        with pytest.raises(WorkerLost, match="a process that measures parts"):
            one.measure(measure.MeasureRequest("a2c", given, 1e-4, lanes=2))


def test_learning_from_what_acting_computed():
    """No forward pass but those of acting."""
    wired = measure.wire("a2c", keywords("a2c", "toy:tests.toys:Still", "a3c"))
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

from __future__ import annotations

import pytest

from polyplay.cli.bench import crowd, settings
from polyplay.workers import profile
from tests.envs.toys.traits import NAME as TRAITS


def test_learning_from_what_acting_computed():
    """No forward pass but those of acting."""
    wired = settings.wire("a2c", settings.keywords("a2c", "toy:still", "a3c", "float32", 2))
    grads = []
    for reuse in (False, True):
        found = profile.CostProfile(wired.envs, wired.spec, "float32", reuse)
        assert found.reuse == reuse
        calls: list[int] = []
        found.policy.torso.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        found.learn(2, 2, 0.0)
        grads.append(len(calls))
    assert grads[0] > 2  # how often it is measured depends on the machine
    assert grads[1] == 2  # acting, once a row


@pytest.mark.parametrize(("seconds", "blocks"), [(0.09, 5), (0.05, 5), (0.01, 3), (0.2, 11)])
def test_a_cost_is_the_median_of_blocks_of_turns(monkeypatch: pytest.MonkeyPatch, seconds: float, blocks: int):
    """Five blocks or more, but three where these take longer than was allowed."""
    turns: list[None] = []

    def clock() -> float:
        return len(turns) * 2e-6

    monkeypatch.setattr(profile, "perf_counter", clock)
    assert profile.cpu_cost(lambda: turns.append(None), seconds, clock) == pytest.approx(2.0)
    assert len(turns) == 6 + blocks * round(profile.BLOCK / 2e-6)


def test_between_two_sizes_lies_a_straight_line():
    cost = {1: 10.0, 2: 14.0, 5: 50.0, 10: 80.0}
    assert profile.interpolate(1.0, 1, cost.__getitem__) == 10.0
    assert profile.interpolate(1.25, 1, cost.__getitem__) == 11.0
    assert profile.interpolate(7.5, 5, cost.__getitem__) == 65.0
    assert profile.interpolate(0.3, 1, cost.__getitem__) == 10.0


@pytest.mark.parametrize("system", settings.MEASURED)
def test_every_system_has_parts_that_can_be_measured(system: str):
    """Also with masks and several observations."""
    for env in ("toy:catch", f"{TRAITS}+mask+dict"):
        keywords = settings.keywords(system, env, "mlp", "float32", 2)
        wired = settings.wire(system, keywords)
        order = crowd.MeasureRequest(system, keywords, 1e-4, acting=1.5, rows=(wired.T, wired.B), lanes=2)
        found = crowd.measure_parts(order)
        assert set(found) == {"env", "infer", "learn"}
        assert min(found.values()) > 0.0


def test_an_order_asks_for_some():
    keywords = settings.keywords("a2c", "toy:catch", "mlp", "bfloat16", 2)
    assert set(crowd.measure_parts(crowd.MeasureRequest("a2c", keywords, 1e-4, lanes=2))) == {"env"}


def test_learning_changes_the_weights():
    wired = settings.wire("ppo", settings.keywords("ppo", "toy:catch", "mlp", "float32", 2))
    found = profile.CostProfile(wired.envs, wired.spec)
    before, heard = found.vector.parameter.detach().clone(), []
    apply_gradient = found.apply_gradient
    found.apply_gradient = lambda *a: (heard.append(1), apply_gradient(*a))[1]  # type: ignore[assignment,method-assign]
    found.learn(wired.T, wired.B, 0.0)
    assert not before.equal(found.vector.parameter.detach())
    assert len(heard) % (3 * 4) == 0  # epochs × minibatches


def test_measurements_are_averaged():
    assert crowd.mean([{"env": 1.0, "learn": 4.0}, {"env": 3.0, "learn": 8.0}]) == {"env": 2.0, "learn": 6.0}

from __future__ import annotations

import pytest

from polyplay.cli import bench
from polyplay.workers import sizing


def test_learning_from_what_acting_computed():
    """No forward pass but those of acting."""
    wired = bench.wire("a2c", bench.keywords("a2c", "toy:still", "a3c", "float32", 2))
    grads = []
    for reuse in (False, True):
        found = sizing.CostProfile(wired.envs, wired.spec, "float32", reuse)
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

    monkeypatch.setattr(sizing, "perf_counter", clock)
    assert sizing.cpu_cost(lambda: turns.append(None), seconds, clock) == pytest.approx(2.0)
    assert len(turns) == 6 + blocks * round(sizing.BLOCK / 2e-6)


def test_learning_changes_the_weights():
    wired = bench.wire("ppo", bench.keywords("ppo", "toy:catch", "mlp", "float32", 2))
    found = sizing.CostProfile(wired.envs, wired.spec)
    before, heard = found.vector.parameter.detach().clone(), []
    apply_gradient = found.apply_gradient
    found.apply_gradient = lambda *a: (heard.append(1), apply_gradient(*a))[1]  # type: ignore[assignment,method-assign]
    found.learn(wired.T, wired.B, 0.0)
    assert not before.equal(found.vector.parameter.detach())
    assert len(heard) % (3 * 4) == 0  # epochs × minibatches

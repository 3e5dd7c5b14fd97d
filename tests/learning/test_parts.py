"""Parts of a learner: which losses are outliers, as a slow plain twin has it; parts of a user's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polyplay.core.errors import UserError
from polyplay.learning import losses
from polyplay.learning.learner import Learner
from polyplay.learning.losses import LossOutput
from polyplay.learning.parts import LearnerPart, OutlierGate, TargetNetwork
from polyplay.weights.parameter_server import ParameterServer, ParameterShard
from polyplay.weights.params import param_sizes
from tests import twins
from tests.weights import ends
from tests.weights.test_parameter_server import whole


def scored(loss: float) -> LossOutput:
    return LossOutput(torch.tensor(loss, dtype=torch.float64), {})


SIZES = st.lists(st.floats(-4.0, 4.0) | st.floats(50.0, 60.0), max_size=25)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([0.5, 1.0, 3.0]), st.integers(1, 5), st.integers(1, 6), st.integers(1, 4), SIZES)
def test_it_decides_as_the_plain_twin_does(k, warm_up, horizon, cap, sizes):
    said = twins.outliers(sizes, k, warm_up, horizon, cap)
    assume(all(away > 1e-6 or away == 0 for _, away in said))  # nearer than that the order of sums decides
    gate = OutlierGate(k)
    gate.WARM_UP, gate.HORIZON, gate.CAP = warm_up, horizon, cap
    assert [gate.admit(scored(x)) for x in sizes] == [admitted for admitted, _ in said]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_left_to_who_tells_of_it(loss):
    gate = OutlierGate(4.0)
    gate.WARM_UP = 2
    for x in (1.0, 1.1, 1.05):
        gate.admit(scored(x))
    kept = gate.mean, gate.variance, gate.n
    assert gate.admit(scored(loss))
    assert (gate.mean, gate.variance, gate.n) == kept


def test_a_learner_pushes_no_gradient_of_an_outlier_and_counts_it(monkeypatch):
    monkeypatch.setattr(OutlierGate, "WARM_UP", 6)
    server = ParameterServer(ends.OPTIM, *param_sizes(ends.POLICY()), workers=1, shards=2)
    learner = Learner(ends.me(), ends.task(server, loss=losses.A2C(reward="none"), parts=(OutlierGate(3.0),)))
    parts = [ParameterShard(server, k) for k in range(2)]
    for i in range(8):
        learner.update.refresh()
        before, learnt, batch = whole(server), learner.learnt, ends.some_rows(i)
        batch["reward"] *= 1e3 if i == 6 else 1.0
        for _ in learner.step(batch, {}):
            for part in parts:
                part.sweep()
        assert np.array_equal(whole(server), before) == (i == 6)
        assert learner.learnt > learnt, "its agent steps are counted in any case"
    assert (server.counts.version, server.totals()["outlier"]) == (7, 1)


class Halved(LearnerPart):
    """Halves the rate, and counts its calls."""

    seen = 0

    def rate(self, rate: float) -> float:
        return 0.5 * rate

    def updated(self, loss: float, norm: float, lags: np.ndarray) -> None:
        self.seen += len(lags)


def test_a_part_of_a_users_own_is_each_learners_own():
    spec = ends.task(parts=(Halved(),))
    one, two = Learner(ends.me(), spec), Learner(ends.me(), spec)
    ends.finish(one.step(ends.some_rows(1), {}))
    [own], [other], [given] = one.parts, two.parts, spec.parts
    assert one.update.optimizer.param_groups[0]["lr"] == 0.5e-2
    assert (own.seen, other.seen, given.seen) == (22, 0, 0)


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_a_target_network_moves_part_of_the_way(tau: float):
    learner = Learner(ends.me(), ends.task(parts=(TargetNetwork(2, tau),)))
    [target], vector = learner.parts, learner.update.vector
    expected = vector.flat.clone()
    for update in range(4):
        ends.finish(learner.step(ends.some_rows(update), {}))
        if update % 2:
            expected += tau * (vector.flat - expected)
        torch.testing.assert_close(target.vector.flat, expected, rtol=0.0, atol=1e-6)
    assert torch.equal(target.vector.flat, vector.flat) == (tau == 1.0)


@pytest.mark.parametrize(("make", "said"), [
    (lambda: ends.task(parts=(TargetNetwork,)), "LearnerSpec.parts: <class .*TargetNetwork.* given, allowed: inst"),
    (lambda: TargetNetwork(0), "TargetNetwork: every=0 given, allowed: 1 or more updates"),
    (lambda: TargetNetwork(tau=0.0), "TargetNetwork: tau=0.0 given, allowed: above 0, at most 1"),
])  # fmt: skip
def test_what_is_no_part_is_one_line_before_anything_starts(make: Any, said):
    with pytest.raises(UserError, match=said) as e:
        make()
    assert "\n" not in str(e.value)

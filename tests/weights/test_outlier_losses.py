"""Which losses are outliers: as a slow plain twin has it, never for ever, and what a learner does with one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polyplay.core.errors import UserError
from polyplay.core.worker import Hyperparameters
from polyplay.learning import policy_losses
from polyplay.learning.learner import Learner, LearnerSpec
from polyplay.weights.parameter_server import OutlierRule, ParameterServer, ParameterShard
from polyplay.weights.params import param_sizes
from tests import twins
from tests.learning.test_learner import OPTIM, POLICY, _me, _rows
from tests.weights.test_parameter_server import whole

RULES = st.builds(
    OutlierRule, st.sampled_from([0.5, 1.0, 3.0]), st.integers(1, 5), st.integers(1, 6), st.integers(1, 4)
)
SIZES = st.lists(st.floats(-4.0, 4.0) | st.floats(50.0, 60.0), max_size=25)


@settings(max_examples=80, deadline=None)
@given(RULES, SIZES)
def test_it_decides_as_the_plain_twin_does(rule, sizes):
    said = twins.outliers(sizes, rule.k, rule.warm_up, rule.horizon, rule.cap)
    assume(all(away > 1e-6 or away == 0 for _, away in said))  # nearer than that the order of sums decides
    gate = rule.open()
    assert [gate.admit(x) for x in sizes] == [admitted for admitted, _ in said]
    assert gate.rejected == sum(not admitted for admitted, _ in said)


def test_the_same_loss_again_is_no_outlier_after_a_large_one():
    gate = OutlierRule(0.5, warm_up=1, horizon=1, cap=1).open()
    assert [gate.admit(x) for x in (0.0, 1.0, 50.0, 1.9, 1.9)] == [True, False, True, True, True]


@settings(max_examples=100, deadline=None)
@given(RULES, SIZES)
def test_never_more_than_the_cap_in_a_row(rule, sizes):
    gate, row = rule.open(), 0
    for i, size in enumerate(sizes):
        row = 0 if gate.admit(size) else row + 1
        assert row <= rule.cap
        assert i >= rule.warm_up or row == 0, "the first are all admitted"


def test_another_regime_is_rejected_for_a_while_and_then_is_the_rule():
    rng = np.random.default_rng(0)
    gate = OutlierRule(k=4.0, warm_up=100, horizon=1000, cap=10).open()
    assert sum(gate.admit(x) for x in rng.normal(1.0, 0.1, 1000)) >= 995
    before = gate.rejected
    assert not gate.admit(3.0)
    assert gate.admit(1.2)
    after = [gate.admit(x) for x in rng.normal(100.0, 1.0, 500)]
    assert after[:10] == [False] * 10
    assert sum(after[10:]) >= 488
    assert gate.mean == pytest.approx(100.0, abs=0.5)
    assert gate.rejected - before <= 13


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_left_to_who_tells_of_it(loss):
    gate = OutlierRule(warm_up=2).open()
    for x in (1.0, 1.1, 1.05):
        gate.admit(x)
    kept = gate.mean, gate.variance, gate.n
    assert gate.admit(loss)
    assert (gate.mean, gate.variance, gate.n) == kept


def test_rules_that_cannot_be_are_one_line():
    with pytest.raises(UserError, match="cap=0 given") as e:
        OutlierRule(cap=0)
    assert "\n" not in str(e.value)


def test_a_learner_pushes_no_gradient_of_an_outlier_and_counts_it():
    server = ParameterServer(OPTIM, *param_sizes(POLICY()), workers=1, shards=2, outliers=OutlierRule(k=3.0, warm_up=6))
    spec = LearnerSpec(
        POLICY, policy_losses.A2C(reward="none"), server, Hyperparameters(learning_rate=1e-3, entropy_cost=0.01), 1e9
    )
    learner = Learner(_me(), spec)
    parts = [ParameterShard(server, k) for k in range(2)]

    def update(rows: dict) -> None:
        learner.counts.newest()
        for _ in learner.step(rows, {}):
            for part in parts:
                part.sweep()

    for i in range(6):
        update(_rows(i))
    pushed, learnt = server.version, learner.counts.learnt
    assert pushed == 6
    weights = whole(server)
    wild = _rows(7)
    wild["reward"] = wild["reward"] * 1e3
    update(wild)
    assert server.version == pushed
    assert np.array_equal(whole(server), weights)
    assert learner.counts.learnt > learnt, "its agent steps are counted"
    assert server.totals()["outlier"] == 1
    update(_rows(8))
    assert server.version == pushed + 1

"""Runs in one thread go on to the bit where they were stopped, and are the same again; bench/exactness.py has more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay.core.errors import UserError
from polyplay.runs.reproduce import reproduce
from tests.systems import settings as of
from tests.systems.trained import resumed_and_whole, same_weights, updates

LONG = pytest.mark.long
CASES: list[Any] = [
    pytest.param("ppo", 2_048, {**of.PPO, "replicas": 1}, id="ppo"),
    pytest.param("accel", 1_024, of.ACCEL, id="accel"),
    pytest.param("accel", 2_048, of.ACCEL_PPO, id="accel ppo", marks=LONG),
    pytest.param("appo", 2_000, {**of.APPO, "lag": 0}, id="appo", marks=LONG),
    pytest.param("dqn", 1_500, {**of.DQN, "double": True, "alpha": 0.6, "beta": 1.0}, id="dqn"),
    pytest.param("accel_dqn", 1_500, of.ACCEL_DQN, id="accel_dqn", marks=LONG),
    # β would depend on where the run is to end
    pytest.param("rainbow", 1_500, {**of.RAINBOW, "beta": 1.0, "learning_starts": 400}, id="rainbow", marks=LONG),
    # actors hold older weights than the learner has
    pytest.param("r2d2", 1_600, {**of.R2D2, "learning_starts": 500, "pull": 40}, id="r2d2"),
]


@pytest.mark.parametrize(("system", "steps", "settings"), CASES)
def test_a_run_that_was_stopped_goes_on_to_the_bit(system, steps, settings, tmp_path):
    resumed, whole = resumed_and_whole(system, tmp_path, steps, **settings)
    assert updates(resumed) == updates(whole)
    assert len(updates(whole)) > 4
    assert [row["update"] for row in updates(resumed)] == list(range(1, len(updates(whole)) + 1))
    assert same_weights(resumed, whole)


@pytest.mark.parametrize(
    ("system", "settings"),
    [
        ("a3c", {**of.A3C, "steps": 200}),
        ("accel", {**of.ACCEL, "sync": "chunked"}),
        ("ga3c", {**of.GA3C, "env": "toy:catch"}),
    ],
    ids=["a3c", "accel in chunks", "ga3c"],
)
def test_where_weights_change_in_any_order_one_thread_repeats_and_nothing_is_replayed(system, settings, tmp_path):
    for name in ("a", "b"):
        polyplay.train(system, run=str(tmp_path / name), serial=True, trace=True, **{"steps": 700, **settings})
    one, two = ((tmp_path / name / "updates.jsonl").read_text() for name in ("a", "b"))
    assert one == two
    assert one.count("\n") >= 5
    with pytest.raises(UserError, match=rf"{system}'s .*--serial repeats") as e:
        reproduce(tmp_path / "a")
    assert "\n" not in str(e.value)


def test_a_process_has_the_losses_of_a_thread(tmp_path):
    """The last bits may differ where a process has more compute threads."""
    losses = []
    for on in ("thread", "process"):
        settings = {**of.A2C, **of.MEMORY, "core_size": 16, "replicas": 1, "steps": 3_000, "trace": True}
        run = polyplay.train("a2c", on=on, run=str(tmp_path / on), **settings)
        losses.append([row["loss"] for row in updates(run)])
    assert len(losses[0]) >= 15
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3, atol=1e-5)

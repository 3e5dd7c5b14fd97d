"""Asynchronous PPO learns however its workers run, with memory; tells lag truly over its passes; goes on."""

from __future__ import annotations

import pytest

import polyplay
from polyplay.core.files import read_lines
from tests.systems import settings as of
from tests.systems.trained import updates

# a lag of five updates, on a busy machine, makes larger learning rates unstable


def test_at_lag_0_rows_are_as_old_as_the_pass(tmp_path):
    settings = {**of.APPO, "lag": 0, "steps": 1_500, "trace": True, "epochs": 3}
    run = polyplay.train("appo", on="thread", run=str(tmp_path / "run"), **settings)
    rows = updates(run)
    batches = len(rows) // 6
    assert batches in (11, 12), "of 144 steps, a few of them from one episode to the next"
    assert [row["update"] for row in rows] == list(range(1, batches * 6 + 1))
    assert [row["lag_max"] for row in rows] == list(range(6)) * batches
    again = polyplay.train("appo", serial=True, run=str(tmp_path / "again"), **settings)
    assert [(r["update"], r["loss"]) for r in updates(again)] == [(r["update"], r["loss"]) for r in rows]


@pytest.mark.parametrize(
    ("more", "batches"),
    [({"lag": 1}, 1), ({"actors": 1, "lanes": 4, "batch": 4, "slots": 3}, 3)],
    ids=["1", "free"],
)
def test_rows_are_older_by_whole_batches(more, batches, tmp_path):
    """Nobody acts with the weights of a pass's middle. Free: one slot is being filled, two are full."""
    settings = {**of.APPO, **more, "steps": 1_500, "trace": True}
    run = polyplay.train("appo", on="thread", run=str(tmp_path / "run"), **settings)
    lags = [row["lag_max"] for row in updates(run)]
    assert all(lag % 4 == i % 4 for i, lag in enumerate(lags)), "it acts with the weights between batches only"
    assert max(lags) <= 4 * batches + 3
    reported = [row["lag_max"] for row in read_lines(run.directory / "metrics.jsonl") if row["lag_max"] is not None]
    assert max(reported) == max(lags)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    "wiring",
    [
        {"actors": 3, "lanes": 2, "batch": 2, "epochs": 1, "minibatches": 1},
        {"actors": 3, "lanes": 2, "batch": 6, "epochs": 3, "minibatches": 2},
        {"actors": 4, "lanes": 1, "batch": 4, "learners": 2, "epochs": 2, "minibatches": 2},
        {"actors": 2, "lanes": 4, "batch": 4, "slots": 3, "epochs": 2, "minibatches": 3},
    ],
    ids=str,
)
def test_rounds_count_batches_whatever_their_updates(wiring, lag, tmp_path):
    """Rounds are what actors wait for: if updates were counted in their place, all would wait or run too far ahead."""
    settings = {**of.QUIET, "env": "toy:catch", "anneal": "constant", "unroll": 5, "steps": 600, "trace": True}
    settings |= {"lag": lag, **wiring}
    run = polyplay.train("appo", serial=True, run=str(tmp_path / "run"), **settings)
    assert run.exit_code == 0
    each = wiring["epochs"] * wiring["minibatches"]
    taken = wiring["batch"] // wiring["lanes"]  # rollouts in a batch
    apart = -(-wiring["actors"] // taken) - 1  # batches that a round is made of, less one
    assert run.summary["steps"] >= 600
    assert run.summary["updates"] % each == 0
    assert max(row["lag_max"] for row in updates(run)) <= each * (lag * (apart + 1) + apart) + each - 1


@pytest.mark.parametrize("lag", [1, -1])
def test_ahead_it_goes_on_with_what_was_in_flight(lag, tmp_path, capfd):
    settings = {**of.APPO, "lag": lag, "on": "thread", "trace": True}
    run = polyplay.train("appo", run=str(tmp_path / "run"), steps=1_000, **settings)
    before = len(updates(run))
    capfd.readouterr()
    more = polyplay.resume(run.directory, steps=2_000)
    assert "begin anew" not in capfd.readouterr().err
    assert [row["update"] for row in updates(more)] == list(range(1, len(updates(more)) + 1))
    assert len(updates(more)) >= before + 20

"""Asynchronous PPO learns however its workers run, with memory; tells lag truly over its passes; goes on."""

from __future__ import annotations

from typing import Any

import pytest

import polyplay
from polyplay import systems
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines
from polyplay.runs import plan
from polyplay.runs.options import RunOptions
from polyplay.runs.run import diagram
from polyplay.workers.crew import Crew
from tests.systems.trained import resumed_and_whole, same_weights, updates

NET = {"network": "mlp", "tensorboard": False, "report_every": 0.5, "anneal": "constant"}
CATCH = {**NET, "env": "toy:catch", "actors": 2, "lanes": 8, "batch": 16, "unroll": 9, "epochs": 2, "minibatches": 2}
CATCH |= {"learning_rate": 5e-3, "clip_range": 0.2}
# a lag of five updates, on a busy machine, makes larger learning rates unstable
FREE = pytest.param({"on": "thread", "learning_rate": 3e-4}, id="threads, free", marks=pytest.mark.long)


def appo(**settings: Any) -> Any:
    return systems.load("appo").Config(**{"env": "toy:catch", "network": "mlp", **settings})


@pytest.mark.parametrize(
    "how",
    [
        FREE,
        pytest.param({"on": "process", "lag": 1}, id="processes, lag 1"),
        pytest.param({"on": "thread", "learners": 2, "normalize_advantage": False}, id="2 learners"),
        pytest.param({"serial": True, "lag": 0}, id="lag 0"),
    ],
)
def test_it_learns_catch(how, tmp_path):
    run = polyplay.train("appo", run=str(tmp_path / "run"), steps=200_000, until_return=0.5, **{**CATCH, **how})
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= 0.5  # random play: -0.6


def test_memory_is_learnt_with_a_core(tmp_path):
    settings = {**CATCH, "env": "toy:memory", "core": "gru", "unroll": 8, "learning_rate": 5e-3}
    run = polyplay.train("appo", serial=True, steps=40_000, until_return=0.8, run=str(tmp_path / "run"), **settings)
    assert run.summary["episodic_return_mean_best"] >= 0.8, "0 is what play without memory gets"


def test_at_lag_0_rows_are_as_old_as_the_pass(tmp_path):
    settings = {**CATCH, "lag": 0, "steps": 1_500, "trace": True, "epochs": 3}
    run = polyplay.train("appo", on="thread", run=str(tmp_path / "run"), **settings)
    rows = updates(run)
    batches = len(rows) // 6
    assert batches in (11, 12), "of 144 steps, a few of them from one episode to the next"
    assert [row["update"] for row in rows] == list(range(1, batches * 6 + 1))
    assert [row["lag_max"] for row in rows] == list(range(6)) * batches
    again = polyplay.train("appo", serial=True, run=str(tmp_path / "again"), **settings)
    assert [(r["update"], r["loss"]) for r in updates(again)] == [(r["update"], r["loss"]) for r in rows]


def test_at_lag_1_rows_are_a_batch_older_at_most(tmp_path):
    """Whole batches: nobody acts with the weights of a pass's middle, however many updates are made of a batch."""
    settings = {**CATCH, "lag": 1, "steps": 1_500, "trace": True}
    run = polyplay.train("appo", on="thread", run=str(tmp_path / "run"), **settings)
    rows = updates(run)
    assert len(rows) % 4 == 0
    assert max(row["lag_max"] for row in rows) <= 7
    for k in range(0, len(rows), 4):
        lags = [row["lag_max"] for row in rows[k : k + 4]]
        assert lags[0] in (0, 4)
        assert lags == [lags[0] + i for i in range(4)]


def test_running_free_lag_is_that_of_the_slots(tmp_path):
    settings = {**CATCH, "actors": 1, "lanes": 4, "batch": 4, "slots": 3, "steps": 2_000, "trace": True}
    run = polyplay.train("appo", on="thread", run=str(tmp_path / "run"), **settings)
    lags = [row["lag_max"] for row in updates(run)]
    assert all(lag % 4 == i % 4 for i, lag in enumerate(lags)), "it acts with the weights between batches only"
    assert max(lags) <= 4 * 3 + 3, "one slot is being filled, two are full"
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
    settings = {**NET, "env": "toy:catch", "unroll": 5, "steps": 600, "trace": True, "lag": lag, **wiring}
    run = polyplay.train("appo", serial=True, run=str(tmp_path / "run"), **settings)
    assert run.exit_code == 0
    each = wiring["epochs"] * wiring["minibatches"]
    taken = wiring["batch"] // wiring["lanes"]  # rollouts in a batch
    apart = -(-wiring["actors"] // taken) - 1  # batches that a round is made of, less one
    assert run.summary["steps"] >= 600
    assert run.summary["updates"] % each == 0
    assert max(row["lag_max"] for row in updates(run)) <= each * (lag * (apart + 1) + apart) + each - 1


def test_at_lag_0_a_run_goes_on_to_the_bit(tmp_path):
    resumed, whole = resumed_and_whole("appo", tmp_path, 2_000, **CATCH, lag=0)
    assert updates(resumed) == updates(whole)
    assert [row["update"] for row in updates(resumed)] == list(range(1, len(updates(whole)) + 1))
    assert same_weights(resumed, whole)


@pytest.mark.parametrize("lag", [1, -1])
def test_ahead_it_goes_on_with_what_was_in_flight(lag, tmp_path, capfd):
    settings = {**CATCH, "lag": lag, "on": "thread", "trace": True}
    run = polyplay.train("appo", run=str(tmp_path / "run"), steps=1_000, **settings)
    before = len(updates(run))
    capfd.readouterr()
    more = polyplay.resume(run.directory, steps=2_000)
    assert "begin anew" not in capfd.readouterr().err
    assert [row["update"] for row in updates(more)] == list(range(1, len(updates(more)) + 1))
    assert len(updates(more)) >= before + 20


def test_the_figure_and_the_plan_say_what_is_done():
    figure = diagram("appo", appo(), RunOptions())
    assert "passes  4 of 4 minibatches" in figure
    assert "rollout 128 steps, free" in figure
    assert "loss    APPO" in figure
    assert "batch   2 slots × 4 lanes × 128 steps" in figure
    assert "act ──► RolloutQueue: 4 slots × 129 rows × 4 lanes ──► learn" in figure
    crew = Crew(0, steps=10_240)
    made = dict(plan.make_plan(crew, systems.load("appo").build(appo(), crew), RunOptions(steps=10_240)).lines)
    assert "about 160 updates: 10 rollouts of 1,024 rows, 4 epochs of 4 minibatches each" in made["updates"]
    assert made["repeat"].startswith("not bitwise")


def test_presets_have_sample_factorys_numbers():
    c = vars(systems.load("appo").PRESETS["paper"]())
    known = {
        "unroll": 128,
        "epochs": 4,
        "minibatches": 4,
        "clip_range": 0.1,
        "gamma": 0.99,
        "lam": 0.95,
        "optimizer_eps": 1e-5,
    }
    known |= {
        "learning_rate": 2.5e-4,
        "anneal": "linear",
        "max_grad_norm": 0.5,
        "value_cost": 0.5,
        "entropy_cost": 0.01,
    }
    known |= {"normalize_advantage": True, "budget": 40_000_000}
    assert c.items() >= known.items()
    assert c["batch"] * c["unroll"] // c["minibatches"] == 256
    assert c["actors"] * c["lanes"] == 8


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"minibatches": 9}, "--minibatches 9 of 8 trajectories per learner: raise --batch"),
        ({"batch": 9}, "--batch 9 is not a multiple of --learners 1 x --lanes 4"),
        ({"batch": 8, "lag": 0, "actors": 3}, "--batch 8 takes 2 rollouts .*--lag 0 allow 1"),
        ({"batch": 64}, "--batch 64 takes 16 rollouts"),
        ({"clip_range": 0.0}, "clip_range is 0.0"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(wrong, told):
    with pytest.raises(UserError, match=told) as e:
        systems.load("appo").build(appo(**wrong), Crew(0))
    assert "\n" not in str(e.value)

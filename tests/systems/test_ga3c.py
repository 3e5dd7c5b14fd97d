"""GA3C: learns what is only rewarded at the end, with memory, as processes; goes on from a checkpoint; is scheduled;
counts at the service.
"""

from __future__ import annotations

import json
from functools import partial

import pytest

import polyplay
from polyplay.core.errors import UserError
from polyplay.workers.autoscale import annealing, schedule

NET = {
    "network": "mlp",
    "optimizer": "adam",
    "optimizer_eps": 1e-5,
    "max_grad_norm": 0.5,
    "reduction": "mean",
    "schedule": "off",
}
FAST = {**NET, "learning_rate": 3e-3, "agents": 16, "min_batch": 40, "tensorboard": False, "report_every": 1.0}


def lines(run, name: str) -> list[dict]:
    path = run.directory / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("how", [{}, {"serial": True}, {"correction": "vtrace"}], ids=["threads", "serial", "vtrace"])
def test_a_task_rewarded_only_at_its_end_is_learnt(how, tmp_path):
    """toy:catch: nine steps without a reward, then 1 or -1. The released code never learns from that last one."""
    settings = {**FAST, **how, "until_return": 0.8}
    run = polyplay.train("ga3c", env="toy:catch", steps=90_000, run=str(tmp_path / "run"), **settings)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= 0.8


def test_agents_that_are_processes_learn_to_balance(tmp_path):
    settings = {"agents": 6, "learning_rate": 5e-3, "gamma": 0.98, "reward": "scale", "entropy_cost": 0.0}
    settings |= {"steps": 60_000, "until_return": 60.0, "preset": "paper"}
    run = polyplay.train("ga3c", env="CartPole-v1", run=str(tmp_path / "run"), **{**FAST, **settings})
    assert run.summary["episodic_return_mean_best"] >= 60.0, "25 is what random play gets"
    row = next(r for r in reversed(lines(run, "metrics.jsonl")) if r["train_batch"] and r["predict_batch"])
    assert row["agents"] == 6
    assert row["predictors"] == row["trainers"] == 2
    assert 1.0 <= row["predict_batch"] <= 6.0
    assert min(map(int, run.summary["batch_sizes"]["train_batch"])) >= 40
    assert row["pps"] > 0.0
    assert row["tps"] > 0.0
    assert row["agent_wait_ms"] > 0.0
    assert row["lag_mean"] >= 0.0


@pytest.mark.long
def test_memory_is_learnt(tmp_path):
    settings = {"core": "gru", "learning_rate": 5e-3, "min_batch": 64, "agents": 32, "serial": True}
    run = polyplay.train("ga3c", env="toy:memory", steps=25_000, run=str(tmp_path / "run"), **{**FAST, **settings})
    assert run.summary["episodic_return_mean"] >= 0.6, "0 is what play without memory gets"


def test_what_was_served_and_learnt_at_once_is_in_the_summary(tmp_path):
    settings = {"predict_batch": 4, "predictors": 1, "trainers": 1, "min_batch": 0}
    run = polyplay.train("ga3c", env="toy:catch", steps=2_000, run=str(tmp_path / "run"), **{**FAST, **settings})
    sizes = run.summary["batch_sizes"]
    assert set(sizes["predict_batch"]) == {"4"}
    assert set(sizes["train_batch"]) <= {"1", "2", "3", "4", "5"}
    learnt = sum(int(k) * n for k, n in sizes["train_batch"].items())
    assert learnt >= 2_000


def test_in_one_thread_a_run_repeats_to_the_bit(tmp_path):
    settings = {**FAST, "serial": True, "trace": True}
    for name in ("one", "two"):
        polyplay.train("ga3c", env="toy:catch", steps=1_500, run=str(tmp_path / name), **settings)
    one, two = ((tmp_path / name / "updates.jsonl").read_text() for name in ("one", "two"))
    assert one == two
    assert len(one.splitlines()) >= 15


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    where = str(tmp_path / "run")
    run = polyplay.train("ga3c", env="toy:catch", steps=3_000, run=where, **FAST)
    more = polyplay.resume(run.directory, steps=6_000)
    assert more.exit_code == 0
    assert more.summary["steps"] >= 6_000
    assert more.summary["updates"] > run.summary["updates"]


def test_a_run_is_evaluated_with_many_lanes_in_step(tmp_path):
    settings = {
        **FAST,
        "agents": 3,
        "predict_batch": 2,
        "schedule": "annealing",
    }  # few served at once, not all lanes there
    run = polyplay.train("ga3c", env="CartPole-v1", steps=500, run=str(tmp_path / "run"), **settings)
    result = run.evaluate(episodes=20)
    assert result["episodes"] == len(result["returns"]) == 20
    assert 8.0 <= result["episodic_return_mean"] <= 500.0


def test_the_scheduler_decides_and_says_so(tmp_path, monkeypatch):
    def hurried(ctx, *, dials):
        return schedule(ctx, dials=dials, rule=partial(annealing, interval=0.3))

    monkeypatch.setattr("polyplay.systems.ga3c.schedule", hurried)
    settings = {"schedule": "annealing", "agents": 4, "predictors": 1, "trainers": 1}
    run = polyplay.train("ga3c", env="CartPole-v1", steps=12_000, run=str(tmp_path / "run"), **{**FAST, **settings})
    assert run.exit_code == 0
    decisions = lines(run, "decisions.jsonl")
    assert decisions
    for row in decisions:
        assert set(row["from"]) == set(row["to"]) == {"agents", "act", "learn"}
        assert isinstance(row["kept"], bool)


def test_a_batch_that_may_never_come_is_refused(tmp_path):
    with pytest.raises(UserError, match="--min-batch 200 can take more chunks than --queue 100 holds"):
        polyplay.train("ga3c", env="toy:catch", network="mlp", min_batch=200, run=str(tmp_path / "run"))

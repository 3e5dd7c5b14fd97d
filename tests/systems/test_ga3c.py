"""GA3C: learns what is only rewarded at the end, with memory, as processes; goes on from a checkpoint; is scheduled;
counts at the service.
"""

from __future__ import annotations

import json

import polyplay
from polyplay.workers.autoscale import schedule
from tests.systems import settings as of


def lines(run, name: str) -> list[dict]:
    path = run.directory / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_reports_say_what_was_served_and_learnt_at_once(tmp_path):
    settings = {"predict_batch": 4, "predictors": 1, "trainers": 1, "min_batch": 0}
    run = polyplay.train("ga3c", env="toy:catch", steps=2_000, run=str(tmp_path / "run"), **{**of.GA3C, **settings})
    rows = [row for row in lines(run, "metrics.jsonl") if row["predict_batch"] is not None]
    assert {row[f"predict_batch_p{q}"] for row in rows for q in (10, 90)} == {4.0}
    assert all(1.0 <= row["train_batch_p10"] <= row["train_batch_p90"] <= 5.0 for row in rows if row["train_batch"])


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    where = str(tmp_path / "run")
    run = polyplay.train("ga3c", env="toy:catch", steps=3_000, run=where, **of.GA3C)
    more = polyplay.resume(run.directory, steps=6_000)
    assert more.exit_code == 0
    assert more.summary["steps"] >= 6_000
    assert more.summary["updates"] > run.summary["updates"]


def test_a_run_is_evaluated_with_many_lanes_in_step(tmp_path):
    settings = {
        **of.GA3C,
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
        return schedule(ctx, dials=dials, interval=0.3)

    monkeypatch.setattr("polyplay.systems.ga3c.schedule", hurried)
    settings = {"schedule": "annealing", "agents": 4, "predictors": 1, "trainers": 1}
    run = polyplay.train("ga3c", env="CartPole-v1", steps=12_000, run=str(tmp_path / "run"), **{**of.GA3C, **settings})
    assert run.exit_code == 0
    decisions = lines(run, "decisions.jsonl")
    assert decisions
    for row in decisions:
        assert set(row["from"]) == set(row["to"]) == {"agents", "act", "learn"}
        assert isinstance(row["kept"], bool)

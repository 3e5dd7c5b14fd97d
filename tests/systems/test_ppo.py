"""PPO learns however its workers run, with memory, in step; says what it does."""

from __future__ import annotations

import json

import pytest

import polyplay
from tests.systems import settings as of
from tests.systems.trained import same_weights, updates


def test_replicas_stay_equal_to_the_bit_and_lag_is_told(tmp_path):
    """Two replicas with half the lanes each: their common updates, and each row's age in updates."""
    settings = {**of.PPO, "replicas": 2, "steps": 1_024, "trace": True, "epochs": 2, "minibatches": 4}
    run = polyplay.train("ppo", serial=True, run=str(tmp_path / "run"), **settings)
    rows = updates(run)
    rollouts = len(rows) // 8  # of 256 steps, a few of them from one episode to the next
    assert rollouts in (4, 5)
    assert [row["update"] for row in rows] == list(range(1, rollouts * 8 + 1))
    assert [row["lag_max"] for row in rows] == list(range(8)) * rollouts
    again = polyplay.train("ppo", serial=True, run=str(tmp_path / "again"), **settings)
    assert updates(again) == rows
    apart = polyplay.train("ppo", on="thread", run=str(tmp_path / "apart"), **settings)
    assert same_weights(run, apart)


def test_rate_and_clip_range_fall_from_rollout_to_rollout(tmp_path):
    settings = {**of.PPO, "anneal": "linear", "replicas": 1, "serial": True, "report_every": 1e-3}
    run = polyplay.train("ppo", run=str(tmp_path / "run"), steps=1_024, **settings)
    last = json.loads((run.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["clip_range"] / 0.2 == pytest.approx(last["learning_rate"] / 3e-3)
    assert 0.0 <= last["clip_range"] / 0.2 < 1.0, "a mean since the report before"


def test_target_kl_makes_fewer_updates(tmp_path):
    settings = {**of.PPO, "replicas": 2, "steps": 4_096, "serial": True, "learning_rate": 2e-2}
    free = polyplay.train("ppo", run=str(tmp_path / "free"), **settings)
    bound = polyplay.train("ppo", run=str(tmp_path / "bound"), target_kl=0.01, **settings)
    assert free.summary["updates"] % 12 == 0
    assert 16 <= bound.summary["updates"] < free.summary["updates"] - 12
    assert abs(bound.summary["steps"] - free.summary["steps"]) <= 256

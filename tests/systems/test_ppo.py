"""PPO learns however its workers run, with memory, in step; says what it does."""

from __future__ import annotations

import json

import pytest

import polyplay
from tests.systems import settings as of


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

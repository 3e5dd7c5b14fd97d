"""Traits of environments and networks together, in every system: all at once, and each by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay import systems
from polyplay.core import checkpoint
from polyplay.nets.factory import build_network
from polyplay.runs import options as config
from polyplay.workers.crew import Crew
from tests.games.traits import NAME as TRAITS
from tests.systems.settings import REAL, VALUES

NET: dict[str, Any] = {"network": "mlp", "learning_rate": 1e-2, "anneal": "constant", "gamma": 0.5, "unroll": 8}
NET |= {"max_grad_norm": 0.5, "optimizer_eps": 1e-5, "tensorboard": False, "report_every": 1.0}
RMS: dict[str, Any] = {"optimizer": "adam", "reward": "none"}
QUEUED: dict[str, Any] = {"actors": 1, "lag": 0, "batch": 16, "lanes": 16, "learning_rate": 3e-3}
OF: dict[str, dict[str, Any]] = {
    "impala": {**RMS, **QUEUED, "reduction": "mean"},
    "a2c": {**RMS, "lanes": 16, "replicas": 1, "lam": 0.95, "core_size": 32},
    "a3c": {**RMS, "workers": 2, "core_size": 32},
    "accel": {"optimizer": "adam", "lanes": 16, "replicas": 1, "lam": 0.95},
    "appo": {"reward": "none", **QUEUED, "epochs": 2, "minibatches": 2},
    "ga3c": {**RMS, "agents": 16, "trainers": 1, "schedule": "off", "min_batch": 64, "correction": "none"},
    "ppo": {"reward": "none", "lanes": 16, "replicas": 1, "lam": 0.95, "core_size": 32, "epochs": 2, "minibatches": 2},
}
REST = "+memory+mask+dict+hybrid+continuous"
LEARN = {("a2c", "thread"), ("impala", "thread"), ("ppo", "thread")}  # 0.6 of at most 1; random play has 0.4
TOGETHER = [
    (system, on, ("lstm", "gru")[(on == "process") != (system == "impala")], REST, 0.6 * ((system, on) in LEARN))
    for system in OF
    for on in ("process", "thread")
]
ALONE = [("a2c", "thread", core, "+memory", 0.7) for core in ("lstm", "gru")]
ALONE += [("a2c", "thread", "none", f"+{x}", 0.6 if x == "continuous" else 0.7) for x in REST[8:].split("+")]


def settings(system: str, on: str, core: str, switches: str) -> dict[str, Any]:
    cost = 0.0 if "continuous" in switches else 0.01
    return {**NET, **OF[system], "core": core, "env": TRAITS + switches, "on": on, "entropy_cost": cost}


@pytest.mark.parametrize("case", TOGETHER + ALONE, ids=lambda c: " ".join(c[:4]))
def test_it_learns_or_trains(case, tmp_path):
    *what, goal = case
    steps = (20_000 if case in TOGETHER else 12_000) if goal else 1_000
    run = polyplay.train(case[0], run=str(tmp_path / "run"), steps=steps, **settings(*what))
    trained(case[0], run)
    assert not goal or run.summary["episodic_return_mean"] >= goal


def trained(system: str, run: polyplay.Run) -> None:
    """Some updates without error, weights finite and changed."""
    assert run.exit_code == 0
    assert run.summary["updates"] >= 5
    page, options = systems.load(system), config.RunOptions()
    fresh = build_network(page.build(run.settings, Crew(options.seed)).policy, options.seed).state_dict()
    now = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print)).arrays("agents/0/policy")
    assert now.keys() == fresh.keys()
    assert all(np.isfinite(v).all() for v in now.values())
    assert any((v != fresh[k].numpy()).any() for k, v in now.items())


def test_everything_at_once_resumes_to_the_bit_and_is_evaluated(tmp_path):
    given = {**settings("a2c", "thread", "gru", REST), "serial": True, "trace": True, "steps": 1_500}
    whole = polyplay.train("a2c", run=str(tmp_path / "whole"), **given)
    polyplay.train("a2c", run=str(tmp_path / "cut"), **{**given, "steps": 700})
    polyplay.resume(str(tmp_path / "cut"), steps=1_500)
    losses = [(tmp_path / run / "updates.jsonl").read_text() for run in ("whole", "cut")]
    assert losses[0] == losses[1]
    result = whole.evaluate(episodes=5)
    assert result["episodes"] == 5
    assert result["episodic_return_min"] > 0, "no illegal action, which gives -1"


def test_every_system_is_in_a_table():
    assert {*OF, *VALUES, *REAL, "alphago_zero", "five", "ftw", "league"} == set(systems.ordinary())


SOME: Any = {"batch": 16, "capacity": 2_000, "learning_starts": 100, "target_update": 5, "ratio": 2.0, "lanes": 4}
SOME |= {"env": f"{TRAITS}+mask+dict", "network": "mlp", "tensorboard": False, "report_every": 1.0, "unroll": 4}
R2D2: Any = {"actors": 1, "sequence": 4, "burn_in": 2, "n_step": 2, "core_size": 16}
FREE: Any = {"learners": 2, "actors": 2, "replay_workers": 2}
RUNS: Any = [("accel_dqn", {"replicas": 2}), ("apex", {"replay_workers": 2}), ("dqn", {"on": "process"})]
RUNS += [("gorila", {"learners": 2}), ("gorila", FREE), ("rainbow", {}), ("r2d2", R2D2)]


@pytest.mark.parametrize(("system", "more"), RUNS)
def test_it_trains_with_masks_and_dicts(system, more, tmp_path):
    run = polyplay.train(system, run=str(tmp_path / "run"), steps=600, **{**SOME, "on": "thread", **more})
    trained(system, run)
    assert run.summary["episodic_return_mean"] >= 0.0, "an illegal action gives -1"

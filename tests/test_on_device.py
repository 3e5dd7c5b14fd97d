"""Whole systems with their learners on a device that is pretended: the same losses as on the CPU, checkpoints that both
read, and no wait for the device that isn't meant.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import polyplay
from polyplay.core import checkpoint
from polyplay.learning import learner, runners
from tests.learning.test_graphs import compared
from tests.pretend import WAITS, Far, pretended
from tests.reports import rows

FEW = {"trace": True, "serial": True, "tensorboard": False, "seed": 3, "anneal": "constant", "report_every": 60.0}
CATCH = {**FEW, "env": "toy:catch", "network": "mlp", "lanes": 4}
MEMORY = {**CATCH, "env": "toy:memory", "core": "lstm"}
ONE = {"replicas": 1, "unroll": 3, "steps": 60}
DRAWN = {k: v for k, v in CATCH.items() if k != "anneal"} | {
    "batch": 8,
    "capacity": 200,
    "learning_starts": 16,
    "target_update": 2,
}
RUNS = {
    "a2c, two replicas, statistics": {**CATCH, **ONE, "replicas": 2, "inputs": "normalize", "reward": "scale"},
    "a2c, memory, two groups": {**MEMORY, **ONE, "groups": 2, "core_size": 8},
    "accel in chunks": {**CATCH, **ONE, "replicas": 2, "sync": "chunked"},
    "ppo with a memory": {**MEMORY, **ONE, "epochs": 2, "minibatches": 2, "core_size": 8},
    "impala": {**CATCH, "batch": 8, "unroll": 3, "steps": 120},
    "impala, two learners, lag 0": {**CATCH, "learners": 2, "batch": 8, "unroll": 3, "lag": 0, "steps": 96},
    "dqn, by priority": {**DRAWN, "unroll": 2, "alpha": 0.6, "ratio": 2.0, "steps": 60},
    "apex": {**DRAWN, "actors": 2, "replay_workers": 2, "unroll": 4, "ratio": 2.0, "prefetch": 1, "steps": 90},
    "gorila": {**DRAWN, "unroll": 2, "ratio": 2.0, "learners": 1, "steps": 60},
    "apex_dpg": {
        **{**DRAWN, "env": "toy:tests.toys:Pendulum"},
        **{"actors": 2, "replay_workers": 2, "unroll": 4, "ratio": 2.0, "prefetch": 1, "steps": 90},
    },
    "r2d2": {**DRAWN, "actors": 1, "unroll": 4, "sequence": 4, "burn_in": 2, "ratio": 4.0, "core_size": 8, "steps": 90},
    "ga3c": {k: v for k, v in CATCH.items() if k != "lanes"} | {"agents": 2, "schedule": "off", "steps": 60},
}

RESUMED = ("a2c, memory, two groups", "impala", "ppo with a memory")  # that are compared with a CPU there


def _system(name: str) -> str:
    return name.replace(",", "").split()[0]


def _losses(run: Path) -> list[float]:
    return [row["loss"] for row in rows(run / "updates.jsonl")]


@pytest.mark.parametrize("name", [name for name in RUNS if name not in RESUMED])
def test_a_learner_elsewhere_learns_the_same(name, tmp_path, monkeypatch):
    """Losses of updates, as far as last bits don't choose other actions; all numbers of a checkpoint."""
    system, settings = _system(name), RUNS[name]
    polyplay.train(system, run=str(tmp_path / "cpu"), device="cpu", **settings)
    with pretended(monkeypatch):
        polyplay.train(system, run=str(tmp_path / "cuda"), device="cuda", **settings)
    assert WAITS["back"] > 4  # it did run there
    near, far = (_losses(tmp_path / run) for run in ("cpu", "cuda"))
    assert len(near) >= 4
    np.testing.assert_allclose(far[:8], near[:8], rtol=2e-3, atol=1e-4)
    kept = [checkpoint.open_checkpoint(checkpoint.newest(tmp_path / run, print)) for run in ("cpu", "cuda")]
    for part in ("policy", "optimizer"):
        one, other = (found.arrays(f"agents/0/{part}") for found in kept)
        assert one.keys() == other.keys()
        assert all(one[k].shape == other[k].shape and one[k].dtype == other[k].dtype for k in one)


@pytest.mark.parametrize("name", RESUMED)
def test_a_checkpoint_of_one_goes_on_on_the_other(name, tmp_path, monkeypatch):
    """From the CPU to the device and back, the same as in one go."""
    settings, run, whole = RUNS[name], str(tmp_path / "run"), str(tmp_path / "whole")
    steps = settings["steps"]
    with pretended(monkeypatch):
        polyplay.train(_system(name), run=run, device="cpu", **{**settings, "steps": steps // 3})
        polyplay.resume(run, steps=2 * steps // 3, device="cuda")
        polyplay.resume(run, steps=steps, device="cpu")
        assert polyplay.evaluate(run, episodes=1, device="cuda")["episodes"] == 1
    polyplay.train(_system(name), run=whole, device="cpu", **settings)
    assert len(_losses(tmp_path / "run")) >= 3
    np.testing.assert_allclose(_losses(tmp_path / "run"), _losses(tmp_path / "whole"), rtol=5e-3, atol=1e-3)


@pytest.mark.parametrize("how", ["off", "on"])
def test_a_step_waits_once_and_an_update_thrice(how, tmp_path, monkeypatch):
    """One copy back per call of the policy; per update the gradient's norm, the loss, all metrics together. By a CUDA
    graph the norm and the loss are with the metrics.
    """
    monkeypatch.setattr(runners, "LOOK", -1.0)
    monkeypatch.setattr(learner, "SMALL", 0)  # of small networks metrics are rare
    found = []
    for updates in (4, 9):
        with pretended(monkeypatch):
            more = {**CATCH, **ONE, "lanes": 40, "steps": updates * 120}  # of fewer rows too
            run = polyplay.train("a2c", run=str(tmp_path / str(updates)), device="cuda", compile=how, **more)
        found.append((run.summary["updates"], dict(WAITS)))
    (few, before), (many, after) = found
    each = {k: (after[k] - before[k]) / (many - few) for k in before}
    assert each["number"] == (2 if how == "off" else 0)
    assert each["back"] == (3 + 1) + 1  # acts of 3 rows, and of the last one again; metrics
    assert each["stream"] == 1  # before slots are given back


@pytest.mark.filterwarnings("error:acting stays eager")
@pytest.mark.parametrize("name", RUNS)
def test_updates_and_acts_there_are_captured(name, tmp_path, monkeypatch):
    """Nothing in them waits for the device, or copies between it and the CPU; each gives what the eager one does."""
    with pretended(monkeypatch):
        made = compared(_system(name), monkeypatch, tmp_path / "run", near=1e-5, device="cuda", **RUNS[name])
    assert made
    assert not any(run.over for run in made)
    assert all(run.served for run in made)


def test_replicas_elsewhere_stay_equal_to_the_bit(tmp_path, monkeypatch):
    from polyplay.learning import learner as learning

    made = []
    real = learning.Learner.__init__
    monkeypatch.setattr(learning.Learner, "__init__", lambda self, *a: (real(self, *a), made.append(self))[0])
    with pretended(monkeypatch):
        polyplay.train("a2c", run=str(tmp_path / "run"), device="cuda", **{**CATCH, **ONE, "replicas": 2})
    assert len(made) == 2
    one, other = (learner.update.vector for learner in made)
    assert isinstance(one.flat, Far)
    assert one.flat.tolist() == other.flat.tolist()

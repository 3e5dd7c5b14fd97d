"""Accel RL's value learning: in groups, in step or in chunks, with each of its three losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay import systems
from polyplay.core import checkpoint
from polyplay.runs.options import RunOptions
from polyplay.runs.run import diagram

PACE: Any = {"lanes": 8, "unroll": 2, "batch": 256, "ratio": 32.0, "capacity": 20_000, "start": 500, "target": 20}
CATCH: Any = {
    **PACE,
    "env": "toy:catch",
    "network": "mlp",
    "learning_rate": 5e-3,
    "epsilon": 0.05,
    "max_grad_norm": 10.0,
}
CATCH |= {"epsilon_over": 1_500, "replicas": 2, "tensorboard": False, "report_every": 0.5}


def picture(**settings: Any) -> str:
    return diagram("accel_dqn", systems.load("accel_dqn").Config(**settings), RunOptions())


def trained(path, **settings: Any) -> Any:
    return polyplay.train("accel_dqn", run=str(path), **{**CATCH, **settings})


HOW: Any = {
    "dqn in chunks, threads": {"algo": "dqn", "sync": "chunked", "on": "thread"},
    "catdqn in step, processes": {"algo": "catdqn", "on": "process"},
    "catdqn in chunks, processes": {"algo": "catdqn", "sync": "chunked", "on": "process"},
    "rainbow": {"algo": "rainbow", "serial": True, "replicas": 1},
}


LONG = ("catdqn in chunks, processes", "rainbow")


@pytest.mark.parametrize("how", [pytest.param(how, marks=[pytest.mark.long] * (how in LONG)) for how in HOW])
def test_it_learns_catch(how, tmp_path):
    run = trained(tmp_path / "run", steps=16_000, until_return=0.2, **HOW[how])
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= 0.2  # random play: -0.6


def test_replicas_in_step_repeat_to_the_bit_and_go_on_so(tmp_path):
    trained(tmp_path / "whole", steps=1_500, serial=True)
    trained(tmp_path / "parts", steps=1_000, serial=True)
    polyplay.resume(str(tmp_path / "parts"), steps=1_500)
    ends = [checkpoint.everything(tmp_path / name)[-1] for name in ("whole", "parts")]
    mine, theirs = (checkpoint.open_checkpoint(end).arrays("agents/0/policy") for end in ends)
    assert all(np.array_equal(mine[k], theirs[k]) for k in mine)


def test_its_picture_shows_groups_and_memories():
    text = picture(env="toy:catch", network="mlp", replicas=2)
    assert "replica × 2" in text
    assert "in 2 groups" in text
    assert "AllReduce(adam) of 2" in text
    assert "replay  500,000 agent steps" in text

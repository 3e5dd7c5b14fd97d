"""Rainbow learns with all six improvements and with Dopamine's three; its noise comes from counters alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay import systems
from polyplay.core import checkpoint
from polyplay.runs.options import RunOptions
from polyplay.runs.run import diagram

PACE: Any = {"lanes": 8, "unroll": 1, "batch": 64, "ratio": 8.0, "capacity": 20_000, "start": 500, "target": 50}
CATCH: Any = {**PACE, "env": "toy:catch", "network": "mlp", "learning_rate": 2e-3, "bound": 2.0}
CATCH |= {"epsilon": 0.05, "epsilon_over": 3_000, "tensorboard": False, "report_every": 0.5}


def picture(**settings: Any) -> str:
    return diagram("rainbow", systems.load("rainbow").Config(**settings), RunOptions())


def trained(path, **settings: Any) -> Any:
    return polyplay.train("rainbow", run=str(path), **{**CATCH, **settings})


SERIAL = pytest.param({"serial": True, "code": "dopamine", "sigma": 0.0}, marks=pytest.mark.long)


@pytest.mark.parametrize("how", [{"on": "thread"}, {"on": "process"}, SERIAL])
def test_it_learns_catch(how, tmp_path):
    run = trained(tmp_path / "run", steps=12_000, until_return=0.2, **how)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= 0.2  # random play: -0.6


def test_a_resumed_run_goes_on_to_the_bit(tmp_path):
    settings = {"serial": True, "weighting": 1.0}  # else β depends on where the run is to end
    trained(tmp_path / "whole", steps=1_500, **settings)
    trained(tmp_path / "parts", steps=1_000, **settings)
    polyplay.resume(str(tmp_path / "parts"), steps=1_500)
    ends = [checkpoint.everything(tmp_path / name)[-1] for name in ("whole", "parts")]
    mine, theirs = (checkpoint.open_checkpoint(end).arrays("agents/0/policy") for end in ends)
    assert all(np.array_equal(mine[k], theirs[k]) for k in mine)


def test_its_picture_says_how_it_explores():
    assert "ε       " not in picture(env="toy:catch", network="mlp"), "noisy layers explore"
    assert "ε       LinearEpsilon to 0.01" in picture(env="toy:catch", network="mlp", sigma=0.0)

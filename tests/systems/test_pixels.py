"""Systems on images outside Atari: a task that takes both the picture and the numbers beside it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import polyplay
from polyplay.core import checkpoint

sys.path.append(str(Path(__file__).parents[2] / "bench"))

LENGTH = 16  # of an episode; its right actions have a reward of 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("system", "steps", "settings"),
    [
        ("ppo", 60_000, {}),
        ("dqn", 30_000, {"lanes": 8, "learning_starts": 500, "capacity": 10_000, "epsilon_decay_steps": 5_000}),
    ],
)
def test_a_picture_and_numbers_are_learned_from_together(system, steps, settings, tmp_path):
    given: Any = {"tensorboard": False, "quiet": True, "serial": True, "seed": 1, **settings}
    run = polyplay.train(system, env="samples:LookAndSign", run=str(tmp_path / "run"), steps=steps, **given)
    assert run.summary["episodic_return_mean"] > 0.9 * LENGTH


def test_critics_of_images_share_convolutions(tmp_path):
    given: Any = {"tensorboard": False, "quiet": True, "serial": True, "compile": "off", "network": "auto"}
    given |= {"learning_starts": 64, "batch": 16, "ratio": 16.0, "capacity": 1_000}
    run = polyplay.train("sac", env="samples:LookAndSign", run=str(tmp_path / "run"), steps=100, **given)
    found = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print)).arrays("agents/0/policy")
    assert run.summary["updates"] == 36  # one for each step after the first 64
    kernels = [name for name, x in found.items() if x.ndim == 4]
    assert kernels
    assert all(name.startswith("trunk.") for name in kernels)

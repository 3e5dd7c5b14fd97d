"""R2D2 learns a task of memory; its actors are replaced at their own ε; its pace is kept on both sides."""

from __future__ import annotations

from typing import Any

import pytest

import polyplay
from polyplay import systems
from polyplay.core import checkpoint
from polyplay.workers.crew import Crew
from tests.systems import settings as of


def trained(path, **settings: Any) -> Any:
    return polyplay.train("r2d2", run=str(path), **{**of.R2D2, **settings})


def test_the_ratio_of_rows_is_kept_on_both_sides(tmp_path):
    run = trained(tmp_path / "run", steps=4_000, on="thread", actors=2)
    assert run.summary["updates"] == pytest.approx((4_000 - 2_000) * 2.0 / (16 * 8), rel=0.15)


def test_the_last_checkpoint_has_every_step(tmp_path):
    run = trained(tmp_path / "run", steps=600, learning_starts=200, on="thread", quiet=True)
    counters = checkpoint.manifest(checkpoint.newest(run.directory, print))["counters"]
    assert (counters["steps"], counters["episodes"]) == (run.summary["steps"], run.summary["episodes"])


def test_actors_pull_after_so_many_steps_in_whole_rollouts():
    page = systems.load("r2d2")
    for pull, rollouts in ((400, 50), (8, 1), (30, 3), (4, 1)):
        crew = Crew(0)
        page.build(page.Config(env="toy:memory", network="mlp", unroll=8, pull=pull), crew)
        assert crew.roles[0].arguments()["keep"] == rollouts

"""R2D2 learns a task of memory; its actors are replaced at their own ε; its pace is kept on both sides."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay import systems
from polyplay.core import checkpoint
from polyplay.core.shared_memory import SharedBlock
from polyplay.workers.crew import Crew
from tests.systems import settings as of
from tests.systems.trained import wired


def trained(path, **settings: Any) -> Any:
    return polyplay.train("r2d2", run=str(path), **{**of.R2D2, **settings})


@dataclass
class Asked:
    """A ladder that notes in shared memory for which lanes each of two actors asked it."""

    ladder: Any

    def __post_init__(self) -> None:
        self.block = SharedBlock(8 * 4)

    def at(self, acts: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        seen = self.block.array((2, 2), np.int64)
        seen[int(lanes[0]) // 2] = np.asarray(lanes) + 1
        return self.ladder.at(acts, lanes)

    def lanes(self, actor: int) -> list[int]:
        return [int(x) - 1 for x in self.block.array((2, 2), np.int64)[actor] if x]

    def forget(self, actor: int) -> None:
        self.block.array((2, 2), np.int64)[actor] = 0


def test_the_ratio_of_rows_is_kept_on_both_sides(tmp_path):
    run = trained(tmp_path / "run", steps=6_000, on="thread", actors=2)
    assert run.summary["updates"] == pytest.approx((6_000 - 2_000) * 2.0 / (16 * 8), rel=0.15)


def test_the_last_checkpoint_has_every_step(tmp_path):
    run = trained(tmp_path / "run", steps=600, learning_starts=200, on="thread", quiet=True)
    counters = checkpoint.manifest(checkpoint.newest(run.directory, print))["counters"]
    assert (counters["steps"], counters["episodes"]) == (run.summary["steps"], run.summary["episodes"])


def test_actors_pull_after_so_many_steps_in_whole_rollouts():
    page = systems.load("r2d2")
    for pull, rollouts in ((400, 50), (8, 1), (30, 3), (4, 1)):
        crew = Crew(0)
        page.build(page.Config(env="toy:memory", network="mlp", unroll=8, pull=pull), crew)
        assert crew.roles[0].arguments(0)["keep"] == rollouts


def test_a_killed_actor_comes_back_with_its_rungs(tmp_path):
    """Its lanes have the same numbers on the ladder: what it plays at random is as often as before."""
    said: list[str] = []
    crew = Crew(steps=10**9, log=lambda kind, text: said.append(text))
    wired("r2d2", crew, **{**of.R2D2, "actors": 2, "lanes": 2, "learning_starts": 10**4})
    role = next(r for r in crew.roles if r.name == "act")
    asked = Asked(role.explore)
    role.explore = asked
    crew.start()
    try:
        while not asked.lanes(0) or not asked.lanes(1):
            crew.poll(0.1)
        before = asked.lanes(1)
        asked.forget(1)
        os.kill(role.workers[1].runs.pid, signal.SIGKILL)
        while role.lost == 0 or not asked.lanes(1):
            crew.poll(0.1)
        assert asked.lanes(1) == before == [2, 3]
    finally:
        crew.stop()
    assert any("act 1" in text for text in said)

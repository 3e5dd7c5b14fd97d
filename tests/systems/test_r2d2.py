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
from polyplay.core.files import read_lines
from polyplay.core.shared_memory import SharedBlock
from polyplay.runs.options import RunOptions
from polyplay.runs.run import diagram
from polyplay.workers.crew import Crew

SHORT: Any = {"unroll": 8, "pull": 8, "sequence": 8, "burn_in": 4, "n_step": 2, "core_size": 32, "gamma": 0.97}
PACE: Any = {"actors": 1, "lanes": 8, "batch": 16, "ratio": 2.0, "capacity": 40_000, "start": 2_000, "target": 50}
MEMORY: Any = {**SHORT, **PACE, "env": "toy:memory", "network": "mlp", "learning_rate": 3e-3, "optimizer_eps": 1e-5}
MEMORY |= {"tensorboard": False, "report_every": 0.5}


def picture(**settings: Any) -> str:
    return diagram("r2d2", systems.load("r2d2").Config(**settings), RunOptions())


def trained(path, **settings: Any) -> Any:
    return polyplay.train("r2d2", run=str(path), **{**MEMORY, **settings})


SERIAL = pytest.param({"serial": True}, marks=pytest.mark.long)


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


@pytest.mark.parametrize("how", [{"on": "thread"}, {"on": "process"}, SERIAL])
def test_it_learns_a_task_of_memory(how, tmp_path):
    run = trained(tmp_path / "run", steps=40_000, epsilon=0.1, until_return=0.6, **how)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= 0.6  # without memory: 0


def test_the_ratio_of_rows_is_kept_on_both_sides(tmp_path):
    run = trained(tmp_path / "run", steps=6_000, on="process", actors=2)
    assert run.summary["updates"] == pytest.approx((6_000 - 2_000) * 2.0 / (16 * 8), rel=0.15)


def test_the_last_checkpoint_has_every_step(tmp_path):
    run = trained(tmp_path / "run", steps=600, start=200, on="thread", quiet=True)
    counters = checkpoint.manifest(checkpoint.newest(run.directory, print))["counters"]
    assert (counters["steps"], counters["episodes"]) == (run.summary["steps"], run.summary["episodes"])


@pytest.mark.parametrize("pull", [8, 40])
def test_a_resumed_run_goes_on_with_its_memory_to_the_bit(pull, tmp_path):
    """Also where actors hold older weights than the learner has."""
    settings = {"serial": True, "trace": True, "start": 500, "pull": pull}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    trained(whole, steps=1_600, **settings)
    trained(parts, steps=1_000, **settings)
    polyplay.resume(str(parts), steps=1_600)
    losses = [[row["loss"] for row in read_lines(run / "updates.jsonl")] for run in (whole, parts)]
    assert len(losses[0]) > 8
    assert losses[0] == losses[1]


def test_actors_pull_after_so_many_steps_in_whole_rollouts():
    page = systems.load("r2d2")
    for pull, rollouts in ((400, 50), (8, 1), (30, 3), (4, 1)):
        crew = Crew(0)
        page.build(page.Config(env="toy:memory", network="mlp", unroll=8, pull=pull), crew)
        assert crew.roles[0].arguments(0)["keep"] == rollouts


def test_its_picture_shows_stream_replay_and_ladder():
    text = picture(env="toy:memory", network="mlp", actors=2)
    assert "draws   64 sequences of 80 after 40 of 5 steps: 0.4 per agent step, proportional" in text
    assert "ε       EpsilonLadder to 0.000655" in text
    queue = next(line for line in text.splitlines() if line.startswith("act ──► RolloutQueue: "))
    assert queue.endswith(" ──► learn")
    assert "learn ──► Params: " in text


def test_a_killed_actor_comes_back_with_its_rungs(tmp_path):
    """Its lanes have the same numbers on the ladder: what it plays at random is as often as before."""
    page, said = systems.load("r2d2"), []
    crew = Crew(steps=10**9, say=lambda kind, text: said.append(text))
    settings = {k: v for k, v in MEMORY.items() if k not in ("tensorboard", "report_every")}
    page.build(page.Config(**{**settings, "actors": 2, "lanes": 2, "start": 10**4}), crew)
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

"""DQN learns however its workers run, with every improvement, and goes on to the bit with its memory."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines
from tests.systems import settings as of


def trained(path, **settings: Any) -> Any:
    return polyplay.train("dqn", run=str(path), serial=True, trace=True, **{**of.DQN, **settings})


def losses(path) -> list[float]:
    return [row["loss"] for row in read_lines(path / "updates.jsonl")]


def test_both_networks_see_inputs_by_the_statistics_of_what_was_acted(tmp_path):
    run = trained(tmp_path / "run", steps=1_000, inputs="normalize", target_update=10_000)
    found = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print))
    policy, target = (found.arrays(f"agents/0/{name}") for name in ("policy", "target"))
    learnt = [name for name in policy if name.startswith("inputs.")]
    assert any(policy[name].any() for name in learnt)
    assert all((policy[name] == target[name]).all() for name in learnt)
    assert any((policy[name] != target[name]).any() for name in policy), "the weights are those of the start"


@pytest.mark.long
def test_a_process_whose_threads_divide_the_batches_goes_on_to_the_bit(tmp_path):
    """With samples drawn ahead, at a ratio at which an update is due now and then."""
    given: Any = {**of.QUIET, "env": "ALE/Pong-v5", "network": "a3c", "batch": 16, "ratio": 3.0, "target_update": 20}
    given |= {"learning_starts": 60, "capacity": 1_000, "on": "process", "seed": 3}
    polyplay.train("dqn", run=str(tmp_path / "whole"), steps=300, **given)
    polyplay.train("dqn", run=str(tmp_path / "parts"), steps=170, **given)
    polyplay.resume(str(tmp_path / "parts"), steps=300)
    ends = [checkpoint.open_checkpoint(checkpoint.everything(tmp_path / name)[-1]) for name in ("whole", "parts")]
    for name in ("policy", "optimizer", "target"):
        mine, theirs = (end.arrays(f"agents/0/{name}") for end in ends)
        assert all(np.array_equal(mine[k], theirs[k]) for k in mine)
    assert ends[0].json("agents/0/learner")["version"] == ends[1].json("agents/0/learner")["version"] == 45


def test_a_replay_of_another_version_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    trained(tmp_path / "run", steps=700)
    before = (tmp_path / "run" / "config.json").read_text()
    monkeypatch.setattr("polyplay.buffers.replay.SCHEMA", 1_000)
    with pytest.raises(UserError, match="this version reads 1000"):
        polyplay.resume(str(tmp_path / "run"), steps=900)
    assert (tmp_path / "run" / "config.json").read_text() == before


def test_two_replicas_stay_equal_and_draw_from_memories_of_their_own(tmp_path):
    run = trained(tmp_path / "run", steps=1_500, replicas=2)
    last = checkpoint.everything(run.directory)[-1]
    kept = sorted(p.name for p in (last / "replay").iterdir())
    assert kept == ["replica-0", "replica-1"]
    made = [json.loads((last / "replay" / name / "replay_learner.json").read_text())["updates"] for name in kept]
    steps = [json.loads((last / "replay" / name / "replay.json").read_text())["numbers"]["steps"] for name in kept]
    assert (made[0], steps[0]) == (made[1], steps[1])
    assert made[0] == (steps[0] - 250) * 8.0 // 32


def test_the_ratio_is_kept_and_told(tmp_path):
    run = trained(tmp_path / "run", steps=2_000)
    told = [r["replay_ratio"] for r in read_lines(run.directory / "metrics.jsonl") if "replay_ratio" in r]
    updates = len(losses(run.directory))
    assert updates == pytest.approx((2_000 - 500) * 8.0 / 64, abs=2)
    assert told[-1] == pytest.approx(8.0, rel=0.1)


@pytest.mark.parametrize("system", ["dqn", "gorila"])
def test_the_target_network_is_a_copy_of_every_so_many_updates(system, tmp_path):
    settings = {"dqn": of.DQN, "gorila": of.GORILA}[system] | {"serial": True, "target_update": 10_000}
    for name, steps in (("run", 800), ("first", 8)):  # saved before any update
        polyplay.train(system, run=str(tmp_path / name), steps=steps, **settings)
    found, start = (checkpoint.open_checkpoint(checkpoint.newest(tmp_path / n, print)) for n in ("run", "first"))
    old, new = start.arrays("agents/0/target"), found.arrays("agents/0/target")
    assert all(np.array_equal(old[k], new[k]) for k in old)
    assert any(not np.array_equal(new[k], found.arrays("agents/0/policy")[k]) for k in new)


def test_a_run_that_ends_in_its_warm_up_is_saved_and_goes_on(tmp_path):
    run = trained(tmp_path / "run", steps=200)
    assert run.exit_code == 0
    assert run.summary["updates"] == 0
    polyplay.resume(str(run.directory), steps=800)
    assert len(losses(run.directory)) > 0

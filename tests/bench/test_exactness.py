"""Runs in one thread that are cut at random and resumed: actors and learner take turns at their own pace."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import exactness

from polyplay import systems
from polyplay.core import checkpoint
from polyplay.core.files import read_object

CELLS = {
    cell.name: cell
    for cell in exactness.in_queues()
    if (cell.system, cell.workers, cell.batch)
    in {
        ("impala", "2 actors", "2 trajectories, 1 slot"),
        ("impala", "2 actors", "6 trajectories, not one rollout of each"),
        ("impala", "3 actors", "4 trajectories, not one rollout of each"),
        ("impala", "3 actors", "8 trajectories, a GRU, 3 slots"),
        ("impala", "4 actors, 2 learners", "24 trajectories, 6 slots"),
        ("appo", "3 actors", "4 trajectories, not one rollout of each"),
        ("r2d2", "2 actors", "4 sequences"),
        ("r2d2", "3 actors", "7 sequences"),
    }
}


@pytest.mark.parametrize("name", CELLS)
def test_a_batch_that_fits_no_round_resumes_to_the_bit(name, tmp_path):
    cell = CELLS[name]
    cell = dataclasses.replace(cell, settings={**cell.settings, "steps": cell.settings["steps"] * 2 // 3})
    assert exactness.documented(cell)
    run, whole, cuts = exactness.cut_and_whole(cell, tmp_path)
    assert cuts[0] < checkpoint.update_of(exactness.newest(whole))
    assert exactness.differs(run, whole) == ""


def test_what_is_learnt_apart_is_not_said_to_resume_to_the_bit():
    said = {cell.system: exactness.documented(cell) for cell in exactness.asynchronous()}
    assert said == dict.fromkeys(["a3c", "ga3c", "apex", "apex_dpg", "apex_sac", "gorila"], False)
    assert {c.system for c in exactness.in_step() if not exactness.documented(c)} == {"accel", "accel_dqn"}


def test_self_play_by_one_learner_alone_and_leagues_are_said_to_resume_to_the_bit():
    said = {(cell.system, cell.settings.get("learners")): exactness.documented(cell) for cell in exactness.by_search()}
    assert said == {("alphago_zero", 1): True, ("alphago_zero", 2): False}
    said = {cell.system: exactness.documented(cell) for cell in exactness.at_tables()}
    assert said == dict.fromkeys(["league", "ftw", "five"], True)


def test_every_system_was_measured_and_is_as_documented():
    rows = read_object(exactness.RESULTS / "exactness.json")["rows"]
    assert {row["system"] for row in rows} == set(systems.names())
    assert {row["verdict"] for row in rows} <= {"as documented", "exact by chance"}
    said = {row["system"] for row in rows if row["documented"] == "exact"}
    assert said >= {"league", "ftw", "five"}
    assert said.isdisjoint({"a3c", "ga3c", "apex", "apex_dpg", "apex_sac", "gorila"})


def test_a_bit_that_differs_is_found(tmp_path):
    for name, value in (("one", 0.0), ("other", 1e-9)):
        part = checkpoint.CheckpointPart(tmp_path / name, 0)
        part.arrays("agents/0/policy", {"x": np.array([1.0, value])})
        part.json("workers/act-0", {"steps": value})
        part.json("workers/stream-0", {"turn": 1})
    one, other = (checkpoint.partial(tmp_path / name, 0) for name in ("one", "other"))
    assert exactness.saved_differs(one, other) == "the last checkpoint's agents/0/policy.safetensors"
    part.arrays("agents/0/policy", {"x": np.array([1.0, 0.0])})
    assert exactness.saved_differs(one, other) == "", "steps of one part of a run are counted anew"
    part.json("workers/stream-0", {"turn": 2})
    assert exactness.saved_differs(one, other) == "the last checkpoint's workers/stream-0.json"

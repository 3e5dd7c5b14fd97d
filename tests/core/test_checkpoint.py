"""Complete or absent, checked, and the one before when the newest is damaged."""

from __future__ import annotations

import errno
import json
import os
import sys

import numpy as np
import pytest
import torch
from torch import nn

from polyplay.core import checkpoint
from polyplay.core.checkpoint import read_self, self_flaw, self_path, write_self
from polyplay.core.errors import UserError

ARRAYS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "flag": np.array([True, False]), "n": np.array(3)}


def _save(directory, version, score=None, **counters):
    part = checkpoint.CheckpointPart(directory, version)
    part.arrays("agents/0/policy", {**ARRAYS, "version": np.array(version)})
    part.json("agents/0/learner", {"version": version})
    return checkpoint.complete(directory, version, {"episodic_return_mean": score, **counters})


def test_its_name_has_the_steps_and_sorts_by_update(tmp_path):
    for version, steps in ((7, 90), (12, 100), (7, 95)):  # one update saved twice
        checkpoint.CheckpointPart(tmp_path, version).arrays("x", ARRAYS)
        checkpoint.complete(tmp_path, version, {"steps": steps})
    assert [p.name for p in checkpoint.everything(tmp_path)] == ["000000000007-steps-95", "000000000012-steps-100"]
    assert [checkpoint.update_of(p) for p in checkpoint.everything(tmp_path)] == [7, 12]
    assert checkpoint.update_of(tmp_path / "best-000000000007-steps-95") == -1


def test_parts_alone_are_no_checkpoint_and_are_swept(tmp_path):
    checkpoint.CheckpointPart(tmp_path, 5).arrays("x", ARRAYS)
    assert checkpoint.everything(tmp_path) == []
    with pytest.raises(UserError, match="no usable checkpoint"):
        checkpoint.newest(tmp_path, print)
    checkpoint.remove_partial(tmp_path)
    assert list(checkpoint.checkpoints_dir(tmp_path).iterdir()) == []


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "manifest", "schema"])
def test_a_damaged_newest_falls_back_to_the_one_before_and_says_so(tmp_path, damage):
    old, new = _save(tmp_path, 1), _save(tmp_path, 2)
    file, said = new / "agents/0/policy.safetensors", []
    data = bytearray(file.read_bytes())
    if damage in ("flip", "cut"):
        data[-1] ^= 1
        file.write_bytes(data if damage == "flip" else data[:-8])
    elif damage == "gone":
        file.unlink()
    elif damage == "manifest":
        (new / "manifest.json").write_text("{")
    else:
        manifest = json.loads((new / "manifest.json").read_text())
        (new / "manifest.json").write_text(json.dumps({**manifest, "schema": 99}))
    assert checkpoint.newest(tmp_path, said.append) == old
    assert len(said) == 1
    assert "falling back to the one before" in said[0]


def test_the_last_and_the_best_are_kept(tmp_path):
    for version, score in enumerate([None, 5.0, 1.0, 2.0, 3.0]):
        _save(tmp_path, version, score)
    checkpoint.prune(tmp_path, 2)
    assert [int(p.name) for p in checkpoint.everything(tmp_path)] == [1, 3, 4]
    assert int(checkpoint.best(tmp_path).name) == 1


@pytest.mark.parametrize("of", [{"agents": {"0": 1}}, {"self_play": True}])
def test_of_agents_that_play_each_other_or_themselves_none_is_the_best(of, tmp_path):
    for version, score in ((1, 0.9), (2, 0.1), (3, None), (4, 0.8)):
        _save(tmp_path, version, score, **of)
    checkpoint.prune(tmp_path, 2)
    assert [int(p.name) for p in checkpoint.everything(tmp_path)] == [3, 4]
    assert checkpoint.best(tmp_path) is None


def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch):
    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.CheckpointPart(tmp_path, 7).arrays("agents/0/policy", ARRAYS)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_fit_copies_in_place_and_names_what_differs():
    net = nn.Linear(3, 2)
    storage = net.weight.data_ptr()
    checkpoint.load_into(net, {"weight": np.ones((2, 3), np.float32), "bias": np.zeros(2, np.float32)})
    assert net.weight.data_ptr() == storage
    assert bool((net.weight == 1).all())
    assert torch.equal(net.bias, torch.zeros(2))
    with pytest.raises(UserError, match="weight has shape \\(2, 4\\), must have \\(2, 3\\)"):
        checkpoint.load_into(net, {"weight": np.ones((2, 4), np.float32), "bias": np.zeros(2, np.float32)})
    with pytest.raises(UserError, match="missing \\['bias'\\]"):
        checkpoint.load_into(net, {"weight": np.ones((2, 3), np.float32)})


def test_what_a_killed_worker_had_begun_is_no_part_of_a_checkpoint(tmp_path):
    part = checkpoint.CheckpointPart(tmp_path, 3)
    part.json("workers/act-0", {"steps": 1})
    begun = part.root / "workers" / ".act-1.safetensors.4711"
    begun.write_bytes(b"half")
    final = checkpoint.complete(tmp_path, 3, {"updates": 3})
    assert not list(final.rglob(".*"))
    assert list(checkpoint.manifest(final)["files"]) == ["workers/act-0.json"]
    assert checkpoint.flaw(final) is None


def test_of_several_agents_each_may_have_learnt_nothing_yet(tmp_path):
    """An optimizer without statistics is a flaw only of an agent that has made an update."""
    counters = {"steps": 10, "frames": 10, "updates": 3, "agents": {"0": 3, "1": 0}, "wall_seconds": 1.0}
    for version, agents in ((5, counters["agents"]), (6, {"0": 3, "1": 1})):
        part = checkpoint.CheckpointPart(tmp_path, version)
        for agent in (0, 1):
            part.arrays(f"agents/{agent}/policy", {"w": np.ones(2, np.float32)})
            part.arrays(f"agents/{agent}/optimizer", {} if agent else {"m": np.ones(2, np.float32)})
        path = checkpoint.complete(tmp_path, version, {**counters, "agents": agents})
        assert checkpoint.resume_flaw(path) == ("agents/1/optimizer.safetensors is empty" if agents["1"] else None)


KILLED = """
import os, shutil, sys
from pathlib import Path
import numpy as np
from polyplay.core import checkpoint

at, directory, seen = int(sys.argv[1]), Path(sys.argv[2]), [0]

def counted(real):
    def call(*args, **more):
        seen[0] += 1
        if seen[0] == at:
            os._exit(9)
        return real(*args, **more)
    return call

for module, name in (os, "rename"), (os, "replace"), (os, "unlink"), (os, "rmdir"), (shutil, "rmtree"):
    setattr(module, name, counted(getattr(module, name)))
part = checkpoint.CheckpointPart(directory, 3)
part.arrays("agents/0/policy", {"w": np.full(3, 2, np.float32)})
checkpoint.complete(directory, 3, {"steps": int(sys.argv[3])})
checkpoint.prune(directory, 1)
"""


@pytest.mark.parametrize("steps", [100, 120], ids=["the same name", "more steps"])
def test_a_kill_at_any_call_leaves_the_old_checkpoint_or_the_new_one(steps, tmp_path):
    at, left = 1, []
    while True:
        directory = tmp_path / str(at)
        for version in (1, 3):
            checkpoint.CheckpointPart(directory, version).arrays("agents/0/policy", {"w": np.full(3, 1, np.float32)})
            checkpoint.complete(directory, version, {"steps": 100})
        if not (pid := os.fork()):
            sys.argv = ["", str(at), str(directory), str(steps)]
            exec(KILLED, {})
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        newest = checkpoint.newest(directory, left.append)
        assert checkpoint.update_of(newest) == 3
        value = checkpoint.OpenCheckpoint(newest).arrays("agents/0/policy")["w"][0]
        assert (value == 2) or code == 9
        checkpoint.remove_partial(directory)
        if code == 0:
            break
        at += 1
    assert at > 4, "it was killed several times"
    assert not left, "no checkpoint was passed over"
    assert [p.name for p in checkpoint.checkpoints_dir(directory).iterdir()] == [f"000000000003-steps-{steps}"]


def test_a_save_of_an_update_whose_checkpoint_is_made_meanwhile_has_a_directory_of_its_own(tmp_path, monkeypatch):
    """A part is being written when the main process takes what was there before."""
    part = checkpoint.CheckpointPart(tmp_path, 5)
    part.arrays("agents/0/policy", {"w": np.zeros(3, np.float32)})
    real, made = checkpoint.write_arrays, []

    def write(path, arrays):
        if not made:
            made.append(checkpoint.complete(tmp_path, 5, {"steps": 5}))
        real(path, arrays)

    monkeypatch.setattr(checkpoint, "write_arrays", write)
    part.arrays("agents/0/policy", {"w": np.ones(3, np.float32)})
    assert checkpoint.flaw(made[0]) is None
    assert checkpoint.OpenCheckpoint(made[0]).arrays("agents/0/policy")["w"][0] == 0
    again = checkpoint.complete(tmp_path, 5, {"steps": 6})
    assert checkpoint.OpenCheckpoint(again).arrays("agents/0/policy")["w"][0] == 1
    assert checkpoint.everything(tmp_path) == [again]


@pytest.mark.parametrize("harm", ["number", "name", "nan", "empty", "gone"])
def test_a_past_self_that_is_damaged_is_one_line(harm, tmp_path):
    path, arrays = self_path(tmp_path, 1, 9), {"w": np.linspace(-1, 1, 50, dtype=np.float32), "n": np.array(3)}
    path.parent.mkdir()
    write_self(path, arrays)
    assert all(np.array_equal(v, arrays[k]) for k, v in read_self(path).items())
    assert self_flaw(path) == ""
    data = bytearray(path.read_bytes())
    if harm == "number":
        data[-7] ^= 0x40
    elif harm == "name":
        data[data.index(b'"w"') + 1] ^= 1
    elif harm == "nan":
        checkpoint.write_arrays(path, {**arrays, "w": np.full(50, np.nan, np.float32)})  # as of a version without one
    path.write_bytes(path.read_bytes() if harm == "nan" else b"" if harm == "empty" else data)
    if harm == "gone":
        path.unlink()
    with pytest.raises(UserError, match=r"past agent .*1-9\.safetensors plays in the league, but .*: put back a copy"):
        read_self(path)
    assert self_flaw(path)

"""A copy is whole, or not there: whose every part is, while donors move on, disks fill and files rot."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay.buffers import actor_checkpoint
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.population import trainer
from tests.population.fake_members import save

OWN, GIVEN = [1.0, 2.0], [5.0, 6.0]


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """A receiver at update 7 and a donor at update 30."""
    receiver, donor = tmp_path / "receiver", tmp_path / "donor"
    save(receiver, 5, OWN, 90)
    save(receiver, 7, OWN, 100, rate=0.5, episodes=3, games={"0+2": 3}, episodic_return_mean=4.0)
    save(donor, 20, [9.0, 9.0], 350)
    save(donor, 30, GIVEN, 400, rate=0.01)
    return receiver, donor


def copied(receiver: Path, donor: Path, **more: Any) -> Path:
    final, _ = trainer.prepare_copy(receiver, donor, "copy-17", **more)
    assert trainer.complete_copy(receiver, "copy-17", final)
    found = checkpoint.newest(receiver, pytest.fail, checkpoint.resume_flaw)
    assert found.name == final
    return found


def arrays(found: Path, name: str) -> dict[str, np.ndarray]:
    return checkpoint.read_arrays(found / f"{name}.safetensors")


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_what_comes_from_whom(runs):
    receiver, donor = runs
    before, given = checkpoint.everything(receiver)[-1], checkpoint.everything(donor)[-1]
    found = copied(receiver, donor)
    assert found.name == "000000000008-steps-100"
    for name in ("policy", "optimizer", "target"):
        assert same(arrays(found, f"agents/0/{name}"), arrays(given, f"agents/0/{name}")), name
    assert arrays(found, "agents/0/policy")["running_mean"].tolist() == [105.0, 106.0]
    learner = json.loads((found / "agents/0/learner.json").read_text())
    own = {"hyperparameters": {"learning_rate": 0.5}, "configured": {"learning_rate": 0.5}}
    assert learner == {"version": 8, "learnt": 100.0, **own}
    lanes, own_lanes = arrays(found, "workers/act-0"), arrays(before, "workers/act-0")
    assert own_lanes["groups/0/state/core"].any()
    assert not lanes.pop("groups/0/state/core").any()
    assert same(lanes, {k: v for k, v in own_lanes.items() if k in lanes})
    for name in ("workers/act-0.json", "replay/0/replay.json"):
        assert (found / name).read_bytes() == (before / name).read_bytes()
    counters = checkpoint.manifest(found)["counters"]
    assert counters == {**checkpoint.manifest(before)["counters"], "updates": 8, "episodic_return_mean": None}


def test_lanes_that_cannot_go_on_begin_anew_and_the_replay_stays(runs):
    found = copied(*runs, lanes=False)
    assert not (found / "workers").exists()
    assert (found / "replay/0/replay.json").exists()


def test_a_donor_may_remove_what_was_copied(runs):
    receiver, donor = runs
    final, steps = trainer.prepare_copy(receiver, donor, "copy-17")
    assert steps == checkpoint.manifest(checkpoint.everything(donor)[-1])["counters"]["steps"]
    shutil.rmtree(donor)
    assert trainer.complete_copy(receiver, "copy-17", final)
    assert trainer.complete_copy(receiver, "copy-17", final), "it may be called again"
    assert checkpoint.flaw(receiver / "checkpoints" / final) is None


def test_a_donor_that_trains_on_meanwhile(runs, monkeypatch):
    """Its newest checkpoint is removed after it was found whole; the next is taken."""
    receiver, donor = runs
    real, left = trainer._compose, [2]

    def compose(part: Path, own: Path, given: Path, *how: Any) -> str:
        if left[0]:
            left[0] -= 1
            save(donor, checkpoint.update_of(given) + 1, [7.0, left[0]], 500)
            checkpoint.prune(donor, 1)
            assert not given.exists()
        return real(part, own, given, *how)

    monkeypatch.setattr(trainer, "_compose", compose)
    assert arrays(copied(receiver, donor), "agents/0/policy")["w"].tolist() == [7.0, 0.0]


@pytest.mark.parametrize("at", ["while it is checked", "before it is checked"])
def test_a_donor_whose_only_checkpoint_is_replaced_meanwhile(at, runs, monkeypatch):
    receiver, donor = runs
    checkpoint.prune(donor, 1)
    real, left = checkpoint.flaw, [1]

    def flaw(path: Path, within: str = "") -> str | None:
        if path.is_relative_to(donor) and left[0]:
            left[0] -= 1
            save(donor, 31, [7.0, 7.0], 500)
            shutil.rmtree(path)
            if at == "while it is checked":
                raise FileNotFoundError(errno.ENOENT, "gone", str(path))
        return real(path, within)

    monkeypatch.setattr(checkpoint, "flaw", flaw)
    assert arrays(copied(receiver, donor), "agents/0/policy")["w"].tolist() == [7.0, 7.0]


@pytest.mark.parametrize("harm", ["bytes", "missing", "manifest", "not finite"])
def test_of_a_damaged_donor_the_checkpoint_before_is_copied(harm, runs):
    receiver, donor = runs
    newest = checkpoint.everything(donor)[-1]
    file = newest / "agents/0/policy.safetensors"
    if harm == "bytes":
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    elif harm == "missing":
        file.unlink()
    elif harm == "manifest":
        (newest / "manifest.json").write_text("{")
    else:
        save(donor, 30, [np.nan, 1.0], 400)
    assert arrays(copied(receiver, donor), "agents/0/policy")["w"].tolist() == [9.0, 9.0]


def test_a_donor_without_a_whole_checkpoint_is_not_copied(runs):
    receiver, donor = runs
    for found in checkpoint.everything(donor):
        (found / "agents/0/optimizer.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match=r"donor has no usable checkpoint \(2 there, none whole\)"):
        trainer.prepare_copy(receiver, donor, "copy-17")
    assert checkpoint.everything(receiver)[-1].name == "000000000007-steps-100"


def test_a_donor_that_has_learnt_nothing_is_not_copied(runs, tmp_path):
    receiver, _ = runs
    save(tmp_path / "new", 0, GIVEN, 0)
    with pytest.raises(UserError, match="new has learnt nothing yet"):
        trainer.prepare_copy(receiver, tmp_path / "new", "copy-17")


@pytest.mark.parametrize("file", ["workers/act-0.safetensors", "replay/0/replay.json", "agents/0/learner.json"])
def test_of_a_damaged_receiver_the_checkpoint_before_goes_on(file, runs):
    """What a run would pass over when it goes on is no part of the copy, and the copy is the newest all the same."""
    receiver, donor = runs
    newest = checkpoint.everything(receiver)[-1]
    (newest / file).unlink()
    (newest / file).write_bytes(b"damaged")
    found = copied(receiver, donor)
    assert found.name == "000000000006-steps-90"
    assert checkpoint.everything(receiver)[-1] == found
    assert json.loads((found / "agents/0/learner.json").read_text())["learnt"] == 90.0
    assert (receiver / "checkpoints" / f"unused-{newest.name}").exists()


def test_a_full_disk_leaves_both_as_they_were(runs, monkeypatch):
    receiver, donor = runs
    for n in (1, 2, 3):  # files that are written, not linked
        real, left = os.replace, [n]

        def replace(*args: Any, real: Any = real, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            with pytest.raises(OSError, match="No space left"):
                trainer.prepare_copy(receiver, donor, "copy-17")
        assert checkpoint.everything(receiver)[-1].name == "000000000007-steps-100"
    copied(receiver, donor)


def test_where_files_have_one_name_each_they_are_copied(runs, monkeypatch):
    def link(*args: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    receiver, donor = runs
    found = copied(receiver, donor)
    assert arrays(found, "agents/0/policy")["w"].tolist() == GIVEN
    assert (found / "agents/0/policy.safetensors").stat().st_nlink == 1


def test_files_are_linked_where_the_file_system_can(runs):
    found = copied(*runs)
    linked = [p for p in found.rglob("*") if p.is_file() and p.stat().st_nlink > 1]
    assert {p.name for p in linked} >= {
        "policy.safetensors",
        "optimizer.safetensors",
        "target.safetensors",
        "replay.json",
    }


def test_it_imports_no_torch():
    code = "import sys, polyplay.population.trainer, polyplay.population.trainer; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


BASE: dict[str, Any] = {"env": "toy:catch", "network": "mlp", "serial": True, "tensorboard": False, "quiet": True}
DQN = {"lanes": 2, "capacity": 600, "start": 100, "target": 10, "optimizer": "adam", "inputs": "normalize"}
IMPALA = {"actors": 1, "lanes": 2, "batch": 2, "unroll": 5, "core": "lstm"}


@pytest.mark.parametrize(("system", "kw"), [("dqn", DQN), ("impala", IMPALA)], ids=["dqn", "impala with a core"])
def test_a_run_goes_on_from_a_copy(system, kw, tmp_path, capfd):
    """Replay, lanes and the place in the schedule are its own, weights and statistics the other's."""
    receiver = polyplay.train(system, run=str(tmp_path / "a"), steps=300, seed=1, **BASE, **kw).directory
    donor = polyplay.train(system, run=str(tmp_path / "b"), steps=500, seed=2, **BASE, **kw).directory
    before, given = checkpoint.everything(receiver)[-1], checkpoint.everything(donor)[-1]
    found = copied(receiver, donor)
    names = checkpoint.manifest(found)["files"]
    assert names.keys() == checkpoint.manifest(before)["files"].keys()
    agents = [n for n in names if n.startswith("agents/") and n.endswith(".safetensors")]
    assert len(agents) == 2 + (system == "dqn")
    assert all((found / n).read_bytes() == (given / n).read_bytes() != (before / n).read_bytes() for n in agents)
    rest = [n for n in names if not n.startswith("agents/") and not n.endswith("-0.safetensors")]
    assert all((found / n).read_bytes() == (before / n).read_bytes() for n in rest)
    assert any(n.startswith("replay/") for n in rest) == (system == "dqn")
    if system == "impala":
        lanes = arrays(found, "workers/act-0")
        states = [k for k in lanes if trainer.RECURRENT.match(k)]
        assert states
        assert not any(lanes[k].any() for k in states)
    assert actor_checkpoint.lost_lanes(found, 0) == ""
    learnt = json.loads((before / "agents/0/learner.json").read_text())
    capfd.readouterr()
    result = polyplay.resume(receiver, steps=400)
    assert result.exit_code == 0
    assert "going back" not in capfd.readouterr().err
    last = json.loads((checkpoint.everything(receiver)[-1] / "agents/0/learner.json").read_text())
    assert last["learnt"] > learnt["learnt"] >= 300
    assert last["version"] > learnt["version"] + 1

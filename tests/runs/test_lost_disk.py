"""A full disk under every log, and a directory that is deleted: a run goes on, says so once, and leaves whole files."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polyplay
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.runs.directory import DirectoryLock, read_config
from polyplay.runs.session import Session
from tests.reports import rows

KW: dict[str, Any] = {"env": "toy:catch", "network": "mlp", "lanes": 4, "serial": True, "trace": True, "seed": 3}
KW |= {"report_every": 0.02, "checkpoint_every": 0.05, "eval_every": 100, "eval_episodes": 1}
SYSTEMS = {"a2c": {}, "impala": {"actors": 1, "batch": 4, "unroll": 5}}


class Disk:
    """Under a run's directory: writes fail while it is full."""

    def __init__(self, run: Path, monkeypatch: pytest.MonkeyPatch):
        self.run, self.full, self.refused = run, False, set[str]()
        self.write, self.fsync = os.write, os.fsync
        monkeypatch.setattr(os, "write", self._write)
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _refuse(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if self.full and path.startswith(str(self.run)):
            self.refused.add(Path(path).name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _write(self, fd: int, data: bytes) -> int:
        if self.full and len(data) > 1 and str(self.run) in os.readlink(f"/proc/self/fd/{fd}"):
            self.write(fd, data[: len(data) // 2])  # as the last bytes of a disk are taken
            self._refuse(fd)
        return self.write(fd, data)

    def _fsync(self, fd: int) -> None:
        self._refuse(fd)
        self.fsync(fd)


@pytest.fixture
def at_ticks(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[[], None]]:
    """What happens at a run's tick of that number; from the first on the run takes as many as it gets."""
    events: dict[int, Callable[[], None]] = {}
    real, ticks = Session._tick, [0]

    def tick(self: Session) -> None:
        ticks[0] += 1
        events.get(ticks[0], lambda: None)()
        real(self)
        if ticks[0] == max(events) + 6:
            self._finish("enough")

    monkeypatch.setattr(Session, "_tick", tick)
    monkeypatch.setattr("polyplay.runs.session.TICK", 0.03)
    return events


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_full_disk_costs_what_does_not_fit_and_is_told_once(system: str, tmp_path, monkeypatch, at_ticks, capfd):
    run = tmp_path / "run"
    disk = Disk(run, monkeypatch)
    sizes: list[int] = []

    def room() -> None:
        disk.full = False
        sizes.append((run / "metrics.jsonl").stat().st_size)

    at_ticks |= {8: lambda: setattr(disk, "full", True), 20: room, 30: lambda: None}
    result = polyplay.train(system, run=str(run), steps=100_000_000, **{**KW, **SYSTEMS[system]})
    assert (result.exit_code, result.reason) == (0, "enough")
    said = "".join(capfd.readouterr())
    logs = ["metrics.jsonl", "episodes.jsonl", "updates.jsonl", "evaluations.jsonl", "tensorboard/"]
    logs += ["deliveries-0.jsonl"] if system == "impala" else []
    for name in logs:
        assert (
            said.count(f"{name}: No space left on device; the disk is full: free some space; the run continues") == 1
        ), name
    assert "No space left on device; the disk is full: free some space; the previous checkpoint remains" in said
    assert (run / "metrics.jsonl").stat().st_size > sizes[0]  # written again
    for path in run.glob("*.jsonl"):
        assert all(json.loads(line) for line in path.read_bytes().splitlines())
    last = rows(run / "updates.jsonl")[-1]["update"]
    assert len(rows(run / "updates.jsonl")) < last == result.summary["updates"]
    assert checkpoint.flaw(checkpoint.everything(run)[-1]) is None
    assert polyplay.resume(run, steps=result.summary["steps"] + 200).exit_code == 0


def test_a_directory_that_is_deleted_is_written_anew_whole(tmp_path, at_ticks, capfd):
    run = tmp_path / "run"
    config: list[Any] = []

    def delete() -> None:
        config.append(read_config(run))
        shutil.rmtree(run)

    at_ticks[10] = delete
    at_ticks[20] = lambda: None
    result = polyplay.train("impala", run=str(run), steps=100_000_000, **{**KW, **SYSTEMS["impala"]})
    assert (result.exit_code, result.reason) == (0, "enough")
    said = "".join(capfd.readouterr())
    assert said.count("was deleted: it is written anew") == 1
    assert re.findall("warning .*", said) == [next(re.finditer("warning .*deleted.*", said))[0]]
    assert read_config(run) == config[0]
    assert [row["update"] for row in rows(run / "updates.jsonl")] == list(range(1, result.summary["updates"] + 1))
    assert len(rows(run / "episodes.jsonl")) == result.summary["episodes"]
    assert rows(run / "metrics.jsonl")[0]["updates"] < rows(run / "metrics.jsonl")[-1]["updates"]
    assert list((run / "tensorboard").iterdir())
    assert (run / "deliveries-0.jsonl").read_text().startswith('{"from":0,')
    assert json.loads((run / "summary.json").read_text())["reason"] == "enough"
    assert checkpoint.flaw(checkpoint.everything(run)[-1]) is None
    assert polyplay.resume(run, steps=result.summary["steps"] + 200).exit_code == 0


def test_a_directory_that_is_moved_is_followed(tmp_path, at_ticks, capfd):
    run, there = tmp_path / "runs" / "run", tmp_path / "elsewhere" / "run"
    at_ticks |= {10: lambda: (tmp_path / "runs").rename(tmp_path / "elsewhere"), 20: lambda: None}
    result = polyplay.train("impala", run=str(run), steps=100_000_000, **{**KW, **SYSTEMS["impala"]})
    assert (result.exit_code, result.reason) == (0, "enough")
    said = " ".join("".join(capfd.readouterr()).split())
    assert said.count(f"{run} was moved to {there}: the run goes on there, and its old name is a link to it") == 1
    assert run.is_symlink()
    assert not there.is_symlink()
    assert [row["update"] for row in rows(there / "updates.jsonl")] == list(range(1, result.summary["updates"] + 1))
    assert len(rows(there / "episodes.jsonl")) == result.summary["episodes"]
    assert checkpoint.flaw(checkpoint.everything(there)[-1]) is None
    assert polyplay.resume(there, steps=result.summary["steps"] + 200).exit_code == 0


def test_a_directory_that_is_moved_and_replaced_ends_the_run(tmp_path, at_ticks):
    """No checkpoint is written in the other place, so the run has one history."""
    run, there = tmp_path / "run", tmp_path / "there"

    def move() -> None:
        run.rename(there)
        run.mkdir()

    at_ticks[10] = move
    with pytest.raises(
        UserError, match=f"was moved to {there} .*: `polyplay resume {there}` goes on from its last check"
    ):
        polyplay.train("impala", run=str(run), steps=100_000_000, **{**KW, **SYSTEMS["impala"], "eval_every": None})
    assert not {path.name for path in run.iterdir()} & {"config.json", "checkpoints", "summary.json"}
    assert polyplay.resume(there, steps=50_000).exit_code == 0


def test_a_lock_that_is_deleted_is_taken_again(tmp_path, at_ticks, capfd):
    run = tmp_path / "run"
    at_ticks |= {10: lambda: (run / ".lock").unlink(), 20: lambda: None}
    result = polyplay.train("impala", run=str(run), steps=100_000_000, **{**KW, **SYSTEMS["impala"]})
    assert (result.exit_code, result.reason) == (0, "enough")
    said = "".join(capfd.readouterr())
    assert re.findall("warning .*", said) == [
        next(re.finditer("warning .*lock was deleted: it is locked again", said))[0]
    ]
    assert (run / "summary.json").exists()


@pytest.mark.parametrize("deleted", ["all", "lock"])
def test_a_run_that_was_there_meanwhile_is_left_alone(deleted: str, tmp_path, at_ticks):
    run, other = tmp_path / "run", '{"another": 1}'

    def replace() -> None:
        (run / ".lock").unlink()
        if deleted == "all":
            shutil.rmtree(run)
            run.mkdir()
        (run / "config.json").write_text(other)

    at_ticks[10] = replace
    kw = {**KW, **SYSTEMS["impala"], "eval_every": None}
    with pytest.raises(UserError, match="another command has written to"):
        polyplay.train("impala", run=str(run), steps=100_000_000, **kw)
    assert (run / "config.json").read_text() == other
    assert not (run / "summary.json").exists()


def test_another_run_in_its_place_ends_a_run_that_leaves_it_alone(tmp_path, at_ticks, capfd):
    run, kw = tmp_path / "run", {**KW, **SYSTEMS["impala"], "eval_every": None}
    locks: list[Any] = []

    def replace() -> None:
        shutil.rmtree(run)
        run.mkdir()
        locks.append(DirectoryLock(run))
        (run / "config.json").write_text("another")

    at_ticks[10] = replace
    with pytest.raises(UserError, match="is being written by process"):
        polyplay.train("impala", run=str(run), steps=100_000_000, **kw)
    locks[0].close()
    assert (run / "config.json").read_text() == "another"
    assert not (run / "summary.json").exists()

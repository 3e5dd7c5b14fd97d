"""One process writes a run's directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import polyplay
from polyplay.core.errors import UserError
from polyplay.runs.directory import LOCK_FILE, DirectoryLock
from tests import made

HOLDER = "import sys, time; from pathlib import Path; from polyplay.runs.directory import DirectoryLock;"
HOLDER += "lock = DirectoryLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


def test_a_second_writer_is_told_who_holds_it(tmp_path: Path):
    with closing(DirectoryLock(tmp_path)) as lock:
        assert lock.held
        with pytest.raises(UserError) as said:
            DirectoryLock(tmp_path)
        assert f"process {os.getpid()} on " in str(said.value)
        assert "end it" in str(said.value)
    assert not lock.held
    DirectoryLock(tmp_path).close()


def test_the_system_releases_it_when_its_holder_is_killed(tmp_path: Path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"process {holder.pid} on"):
        DirectoryLock(tmp_path)
    holder.kill()
    holder.communicate()
    DirectoryLock(tmp_path).close()


def test_a_directory_that_was_deleted_and_made_again_is_locked_anew(tmp_path: Path):
    place = tmp_path / "run"
    place.mkdir()
    lock = DirectoryLock(place)
    shutil.rmtree(place)
    assert not lock.held
    place.mkdir()
    lock.take()
    assert lock.held
    shutil.rmtree(place)
    place.mkdir()
    with closing(DirectoryLock(place)), pytest.raises(UserError, match="is being written by process"):
        lock.take()
    assert not lock.held


@pytest.mark.parametrize("written", [b"", b"[]", b"\xff", b"{}"])
def test_what_the_file_says_does_not_matter(tmp_path: Path, written: bytes):
    (tmp_path / LOCK_FILE).write_bytes(written)
    with closing(DirectoryLock(tmp_path)):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
        (tmp_path / LOCK_FILE).write_bytes(written)
        with pytest.raises(UserError, match="is being written by"):
            DirectoryLock(tmp_path)


def test_train_and_resume_take_it_and_readers_need_none(tmp_path: Path):
    run = made.run(tmp_path / "run", ended=False)
    with closing(DirectoryLock(run)):
        with pytest.raises(UserError, match="is being written by process"):
            polyplay.resume(run)
        with pytest.raises(UserError, match="is being written by process"):
            polyplay.train("a2c", env="toy:catch", replicas=1, lanes=4, run=str(run), resume="auto")
        assert polyplay.evaluate(run, episodes=1)["episodes"] == 1
    (tmp_path / "new").mkdir()
    with closing(DirectoryLock(tmp_path / "new")), pytest.raises(UserError, match="is being written by process"):
        polyplay.train("a2c", env="toy:catch", serial=True, steps=10, run=str(tmp_path / "new"))
    assert not (tmp_path / "new" / "config.json").exists()

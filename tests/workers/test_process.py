"""polyplay/workers/process.py: a process keeps to the cores that it is told, and starts the fork server early."""

from __future__ import annotations

import subprocess
import sys

import pytest

import polyplay
from polyplay.core.errors import UserError
from polyplay.workers import process


@pytest.mark.long
def test_cores_are_those_asked_for():
    """In a process of its own: it binds itself."""
    code = (
        "from polyplay import systems; from polyplay.core.machine import cores\n"
        "from polyplay.runs import load, options\n"
        "options = options.RunOptions(cores=1)\n"
        "page = systems.load('a2c'); crew = load.crew_of(options)\n"
        "print(cores(), page.build(page.Config(env='toy:catch', network='mlp'), crew).resolved)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "1 {'replicas': 1}", done.stderr


def test_more_cores_than_there_are_is_one_line(tmp_path):
    with pytest.raises(UserError, match="--cores 4096: must be 1 to "):
        polyplay.train("a2c", env="toy:catch", cores=4096, run=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "starts"), [(["env", "steps"], True), (["env", "serial"], False), (["cores"], False), (["help"], False)]
)
def test_the_fork_server_starts_early_unless_it_is_not_needed(monkeypatch, given, starts):
    started = []
    monkeypatch.setattr(process.SERVER, "ensure_running", lambda: started.append(True))
    process.start_early(given)
    assert bool(started) is starts

"""The guide's SAC, as printed: it resumes after kill -9 with all that it had, and solves Pendulum."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import polyplay
from docs.assemble import ROOT
from polyplay.runs.directory import lock_holder
from tests.docs.test_code import blocks

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
SMALL = ["--width", "64", "--batch", "64", "--learning-starts", "500", "--no-tensorboard", "--quiet"]


@pytest.fixture
def there(tmp_path: Path) -> Path:
    [block] = [b for b in blocks(ROOT / "docs" / "guides" / "sac_from_scratch.md") if b.kind == "python"]
    (tmp_path / "sac.py").write_text(block.text)
    return tmp_path


def start(there: Path, *words: str) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "polyplay", *words]
    return subprocess.Popen(line, cwd=there, env={**os.environ, "PYTHONPATH": str(ROOT)})


def newest(run: Path) -> int:
    """Agent steps of the newest checkpoint; 0: there is none."""
    return max((int(path.name.rpartition("-")[2]) for path in run.glob("checkpoints/0*-steps-*")), default=0)


def test_it_resumes_after_kill_9(there: Path):
    words = ["train", "sac:system", *SMALL, "--ratio", "8", "--steps", "3k", "--checkpoint-every", "1", "--run", "run"]
    process, run = start(there, *words), there / "run"
    while newest(run) < 700:
        assert process.poll() is None
        time.sleep(0.05)
    holder = lock_holder(run)
    assert holder is not None
    os.kill(holder, signal.SIGKILL)
    process.wait()
    assert not (run / "summary.json").exists() or json.loads((run / "summary.json").read_text()).get("exit_code") != 0
    kept = newest(run)
    assert start(there, "resume", "run", "--quiet").wait() == 0
    assert json.loads((run / "summary.json").read_text())["steps"] >= 3_000
    ended = [json.loads(line)["frames"] for line in (run / "episodes.jsonl").read_text().splitlines()]
    assert ended == sorted(ended), "from the checkpoint, not from the start"
    assert any(frames <= kept for frames in ended)


def test_it_solves_pendulum(there: Path, monkeypatch: pytest.MonkeyPatch):
    words = ["train", "sac:system", "--env", "Pendulum-v1", "--steps", "10k", "--run", "run"]  # as the guide has it
    assert start(there, *words, "--quiet").wait() == 0
    monkeypatch.chdir(there)
    monkeypatch.syspath_prepend(str(there))
    assert polyplay.evaluate("run", episodes=20)["episodic_return_mean"] > -250  # random play: about -1,200

"""The learning queue: its list, what ends a run and what does not, and real runs that are killed and go on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from polyplay.core.errors import UserError
from polyplay.core.files import read_lines

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import learning_queue as queue

BENCH = queue.HERE
TABLE = """
[[runs]]
group = "Toys"
system = "a2c"
preset = "quick"
envs = [{envs}]
seeds = [1]
{limit}
options = ["--network", "mlp", "--inputs", "raw", "--lanes", "4", "--replicas", "1", "--report-every", "0.2"]
protocol = "run"
episodes = 3
"""


def listed(tmp_path: Path, envs: str, limit: str = "steps = 3000") -> SimpleNamespace:
    """A list in a folder, and where its runs and results go."""
    path = tmp_path / "list.toml"
    path.write_text(TABLE.format(envs=envs, limit=limit))
    return SimpleNamespace(list=path, runs=tmp_path / "runs", results=tmp_path / "results", nice=0)


def command(asked: SimpleNamespace, word: str) -> subprocess.CompletedProcess[str]:
    words = [word, *(f"--{k}={v}" for k, v in vars(asked).items())]
    return subprocess.run([sys.executable, str(BENCH / "learning_queue.py"), *words], capture_output=True, text=True)


def until(asked: SimpleNamespace, seconds: float = 170.0) -> str:
    """The queue's table, once it has ended."""
    end = time.monotonic() + seconds
    while queue.holder(asked.runs) is not None:
        assert time.monotonic() < end, (asked.runs / "queue.log").read_text()
        time.sleep(0.1)
    return command(asked, "status").stdout


@pytest.fixture
def asked(tmp_path):
    """A list of one toy, and whatever works on it ended afterwards."""
    found = listed(tmp_path, '"toy:catch"')
    yield found
    if pid := queue.holder(found.runs):
        os.kill(pid, signal.SIGKILL)


def test_a_killed_queue_continues_and_a_run_that_cannot_start_is_a_line(tmp_path, asked):
    listed(tmp_path, '"ALE/Nope-v5", "toy:catch"', "steps = 6000")
    assert "works on 2 runs" in command(asked, "start").stdout
    second = command(asked, "start")
    assert (second.returncode, second.stdout) == (2, "")
    assert f"a queue works already: process {queue.holder(asked.runs)} since" in second.stderr
    _kill_when(asked, lambda: list((asked.runs / "a2c-quick-toy_catch-6k-s1").glob("checkpoints/*-steps-*")))
    assert "no queue works here" in command(asked, "status").stdout
    command(asked, "start")
    table = until(asked)
    assert "failed" in table
    assert "unknown Atari game" in table
    result = json.loads((asked.results / "a2c-quick-toy_catch-6k-s1.json").read_text())
    assert result["steps"] >= 6_000
    assert result["command"].startswith("polyplay train a2c --env toy:catch")
    assert result["commit"] != "unknown"
    assert len(result["evaluation"]["returns"]) == 3
    assert result["curve"][-1][0] >= 6_000
    assert result["core_seconds"] > 1.0
    assert "nothing is left" in command(listed(tmp_path, '"toy:catch"', "steps = 6000"), "start").stdout


def _kill_when(asked: SimpleNamespace, ready) -> None:
    """kill -9 at a moment; the run that it began ends by itself."""
    end = time.monotonic() + 60.0
    while not ready():
        assert time.monotonic() < end, (asked.runs / "queue.log").read_text()
        time.sleep(0.05)
    os.kill(queue.holder(asked.runs), signal.SIGKILL)
    while queue.holder(asked.runs) is not None:
        time.sleep(0.05)


@pytest.mark.long
def test_stop_saves_and_core_seconds_end_a_run(tmp_path, asked):
    listed(tmp_path, '"toy:catch"', "core_seconds = 25")
    run = asked.runs / "a2c-quick-toy_catch-25cs-s1"
    command(asked, "start")
    while not list(read_lines(run / "metrics.jsonl", "steps")):
        time.sleep(0.1)
    assert "stopped process" in command(asked, "stop").stdout
    assert (run / "summary.json").exists()
    assert "cut" in command(asked, "status").stdout
    command(asked, "start")
    assert "finished" in until(asked)
    assert json.loads((asked.results / f"{run.name}.json").read_text())["core_seconds"] >= 25.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[runs]\n", "cannot be read"),
        ("[[runs]]\nsystem = 'a2c'\nstep = 5\n", "table 1 of .* has 'step', allowed: core_seconds, envs"),
        ("[[runs]]\nsystem = 'a2c'\npreset = 'paper'\nseeds = [1]\nsteps = 5\n", "lacks envs"),
        ("[[runs]]\nsystem='a2c'\npreset='paper'\nseeds=[1]\nenvs=['x']\n", "needs either steps or core_seconds"),
        ("[[runs]]\nsystem='a2c'\npreset='paper'\nseeds=[1, 1]\nenvs=['x']\nsteps=5\n", "twice; remove one"),
    ],
)
def test_a_wrong_list_is_one_line(tmp_path, text, says):
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(UserError, match=says):
        queue.read_list(tmp_path / "list.toml")


def test_the_list_of_the_project_is_whole():
    entries = queue.read_list(queue.LIST)
    assert len({e.name for e in entries}) == len(entries) >= 30
    fixed = {}
    for e in entries:  # one preset per system for all games
        assert fixed.setdefault(e.system, (e.preset, e.options)) == (e.preset, e.options)


class FakeWorker(queue.Worker):
    """Runs whose `polyplay` is a script: each call takes the next line of `script`."""

    def __init__(self, asked, *script: str):
        super().__init__(asked)
        asked.runs.mkdir()
        self.script, self.said = list(script), list[str]()

    def log(self, text):
        self.said.append(text)

    def wait(self, seconds):
        self.said.append(f"waits {seconds:g}")

    def watch(self, entry, process, counts):
        process.kill()
        process.wait()
        done = subprocess.run(["sh", "-c", self.script.pop(0)], stderr=process_log(self, entry))
        process.returncode = done.returncode
        return ""


def process_log(worker, entry):
    return (worker.runs / f"{entry.name}.log").open("ab")


def test_a_users_mistake_fails_at_once_other_faults_after_three_tries(asked):
    (entry,) = queue.read_list(asked.list)
    worker = FakeWorker(asked, "echo bad option >&2; exit 2")
    worker.work()
    assert worker.state(entry)["error"] == "exit status 2: bad option"
    shutil.rmtree(asked.runs)
    worker = FakeWorker(asked, *["echo lost >&2; exit 1"] * 3)
    worker.work()
    assert worker.state(entry)["error"] == "exit status 1: lost"
    assert worker.script == []


def test_a_full_disk_pauses_and_the_run_goes_on(asked, monkeypatch):
    (entry,) = queue.read_list(asked.list)
    worker = FakeWorker(asked, "echo 'polyplay: error: No space left on device' >&2; exit 1", "exit 2")
    free = iter([0, 2**40, 2**40])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=next(free)))
    worker.work()
    paused = [line for line in worker.said if line.startswith("paused")]
    assert paused == ["paused: 0 MB free, 1,024 needed", "paused: polyplay: error: No space left on device"]
    assert "exit status 2" in worker.state(entry)["error"]


def test_published_values_are_those_of_equal_frames():
    assert queue.published("ppo", "ALE/Breakout-v5", 2_500_000) == [73.05, pytest.approx(80, abs=0.6)]
    assert queue.published("impala", "ALE/Breakout-v5", 2_500_000) == []
    assert queue.published("ppo", "ALE/Breakout-v5", 2_500_001) == []
    assert queue.sparkline([0.0, 1.0, 2.0]) == "▁▅█"

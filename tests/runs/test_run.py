"""Whole runs as a person starts them: what they leave behind, how they end, how they go on.

The command is called here, its workers are processes; the main process is one of its own where it is killed or counts.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

import polyplay
from polyplay import systems
from polyplay.cli import main
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.runs import directory
from polyplay.runs.load import load_run
from polyplay.runs.options import RunOptions, to_json
from tests.reports import KEYS, rows

TOY = ["--env", "toy:catch", "--optimizer=adam", "--learning-rate=2e-3", "--network=mlp", "--report-every=0.2"]
SMALL = {"a2c": ["--lanes=8"], "impala": ["--lanes=4", "--batch=8", "--unroll=5"]}
ENDLESS = ["--steps", "100000000"]


def training(system: str, run: Path, *words: str | Path) -> list[str]:
    return [str(w) for w in ("train", system, *TOY, *SMALL[system], "--run", run, *words)]


def start(words: list[str], **more: Any) -> subprocess.Popen:
    command = [sys.executable, "-m", "polyplay", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def end(process: subprocess.Popen, seconds: float = 150.0) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def wait_for(condition: Callable[[], Any], seconds: float = 150.0) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come to that in time")


def reported(run: Path, times: int = 2) -> None:
    wait_for(lambda: len(rows(run / "metrics.jsonl")) >= times)


@contextlib.contextmanager
def meanwhile(happens: Callable[[], None]) -> Iterator[None]:
    """`happens` in another thread; signals of it that come late do nothing."""
    handlers = {s: signal.signal(s, lambda *_: None) for s in (signal.SIGINT, signal.SIGTERM)}
    failed: list[BaseException] = []

    def work() -> None:
        try:
            happens()
        except BaseException as e:
            failed.append(e)
            os.kill(os.getpid(), signal.SIGTERM)  # the run would not end

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
        thread.join()
        assert failed == []
    finally:
        for s, handler in handlers.items():
            signal.signal(s, handler)


def stopped(words: list[str], run: Path, updates: int, by: signal.Signals = signal.SIGTERM) -> int:
    """The exit status of a traced run that gets a signal after so many updates."""

    def send() -> None:
        file = run / "updates.jsonl"
        wait_for(lambda: file.exists() and file.read_bytes().count(b"\n") > updates)
        os.kill(os.getpid(), by)

    with meanwhile(send):
        return main.main(words)


def family(number: int | None = None, also: str = "") -> list[psutil.Process]:
    """The processes below a main process; `also`: only workers of that role."""
    found = psutil.Process(number).children(recursive=True)
    return [p for p in found if _role(p) == also] if also else found


def gone(processes: list[psutil.Process], seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
            return True
        time.sleep(0.02)
    return False


def _role(p: psutil.Process) -> str:
    """The first word of its title."""
    try:
        return Path(f"/proc/{p.pid}/cmdline").read_text().removeprefix("polyplay: ").split()[0]
    except (OSError, IndexError):
        return ""


# ------------------------------------------------------------------------------------------------- what is left


@pytest.fixture(scope="module")
def impala(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("impala") / "run"
    assert main.main(training("impala", run, "--steps", "8000", "--seed", "3")) == 0
    return run


@pytest.fixture(scope="module")
def a2c(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("a2c") / "run"
    assert main.main(training("a2c", run, "--steps", "8000", "--seed", "3")) == 0
    return run


@pytest.mark.parametrize("system", ["a2c", "impala"])
def test_a_run_leaves_what_was_promised_and_can_be_evaluated(system, request, tmp_path, capfd):
    run = shutil.copytree(request.getfixturevalue(system), tmp_path / "run")
    reports = rows(run / "metrics.jsonl")
    assert all(set(KEYS) <= set(r) for r in reports)
    assert reports[-1]["steps"] >= 8000
    assert all(a["steps"] <= b["steps"] for a, b in pairwise(reports))
    if system == "a2c":
        assert {r["lag_max"] for r in reports} <= {0, None}  # None: nothing was learnt since the report before
        assert any(r["lag_max"] == 0 for r in reports)
    config = json.loads((run / "config.json").read_text())
    assert config["seed"] == 3
    assert config["sources"]["lanes"] == "command line"
    assert config["sources"]["gamma"] == "default"
    assert json.loads((run / "summary.json").read_text())["reason"] == "done"
    games = rows(run / "episodes.jsonl")
    assert len(games) == reports[-1]["episodes"]
    assert {g["episodic_return"] for g in games} <= {-1.0, 1.0}
    (last,) = checkpoint.everything(run)
    counters = checkpoint.manifest(last)["counters"]
    assert (counters["steps"], counters["episodes"]) == (reports[-1]["steps"], len(games)), "all that was done"
    assert list((run / "tensorboard").iterdir())
    assert main.main(["evaluate", str(run), "--episodes", "12"]) == 0
    result = json.loads(next(run.glob("evaluation-*.json")).read_text())
    assert result["episodes"] == len(result["returns"]) == 12
    assert "\x1b" not in capfd.readouterr().out  # not a terminal: no escape codes


def test_python_does_the_same(tmp_path):
    run = polyplay.train(
        "a2c",
        env="toy:catch",
        steps=4000,
        serial=True,
        run=str(tmp_path / "x"),
        learning_rate=2e-3,
        report_every=0.5,
    )
    assert run.exit_code == 0
    assert run.summary["steps"] >= 4000
    assert run.evaluate(episodes=5)["episodes"] == 5
    with pytest.raises(UserError, match="holds a run already"):
        polyplay.train("a2c", env="toy:catch", run=str(tmp_path / "x"))
    with pytest.raises(UserError, match="did you mean learning_rate"):
        polyplay.train("a2c", learning_rat=1.0)


# ---------------------------------------------------------------------------------------------- going on exactly


@pytest.mark.parametrize(
    "how",
    [
        "--serial",
        pytest.param("--on thread --replicas 2 --groups 2", marks=pytest.mark.long),
        "--env CartPole-v1 --replicas 2",
        pytest.param("--env CartPole-v1 --replicas 1 --core gru --core-size 16", marks=pytest.mark.long),
    ],
    ids=["serial", "threads", "CartPole, replicas", "CartPole, gru"],
)
def test_sigterm_and_resume_give_the_uninterrupted_losses_to_the_bit(how, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    endless = ["--steps", "1000000", "--trace", "--seed", "11", *how.split()]  # the rate falls all the way to there
    assert stopped(training("a2c", cut, *endless), cut, 60) == 143
    before = len(rows(cut / "updates.jsonl"))
    assert json.loads((cut / "summary.json").read_text())["exit_code"] == 143
    assert stopped(["resume", str(cut)], cut, before + 40) == 143
    again = rows(cut / "updates.jsonl")
    assert stopped(training("a2c", whole, *endless), whole, len(again)) == 143
    assert again == rows(whole / "updates.jsonl")[: len(again)]
    steps = [r["steps"] for r in rows(cut / "metrics.jsonl")]
    assert steps == sorted(steps)


def test_impala_goes_on_from_its_counters(impala, tmp_path):
    run = shutil.copytree(impala, tmp_path / "run")
    first = json.loads((run / "summary.json").read_text())
    assert main.main(["resume", str(run), "--steps", "12000"]) == 0
    second = json.loads((run / "summary.json").read_text())
    assert second["updates"] > first["updates"]
    assert second["steps"] >= 12000
    assert second["episodes"] > first["episodes"]


def test_a_run_that_is_older_than_an_option_has_its_default(tmp_path):
    options = to_json(RunOptions(keep=7))
    del options["step_timeout"]
    config = to_json(systems.load("a2c").Config())
    told = {"system": "a2c", "config": config, "options": options, "sources": {}, "environment": {}}
    directory.write_config(tmp_path, told)
    assert load_run(tmp_path)[2] == RunOptions(keep=7)


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path, capfd):
    run = tmp_path / "run"
    assert main.main(training("a2c", run, "--steps", "400", "--serial")) == 0
    assert main.main(["resume", str(run), "--steps", "800"]) == 0
    saved = checkpoint.everything(run)
    assert len(saved) == 2
    file = saved[-1] / "agents/0/policy.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    capfd.readouterr()
    assert main.main(["resume", str(run), "--steps", "1200"]) == 0
    err = capfd.readouterr().err
    assert f"checkpoint {saved[-1].name}: agents/0/policy.safetensors is damaged" in err
    assert "going back to the one before" in err


def test_a_full_disk_during_a_checkpoint_is_reported_and_leaves_nothing_half_written(tmp_path, monkeypatch, capfd):
    """The disk fills up at the second file of a checkpoint (as the system reports it when data is written out)."""
    run, real = tmp_path / "run", os.fsync

    def full(fd: int) -> None:
        if "optimizer" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    assert main.main(training("a2c", run, "--steps", "2000", "--serial")) == 1
    assert "No space left on device; the disk is full: free some space; the previous checkpoint remains" in "".join(
        capfd.readouterr()
    )
    assert checkpoint.everything(run) == []
    assert not [p for p in (run / "checkpoints").rglob("*") if p.is_file()]
    assert "not saved" in json.loads((run / "summary.json").read_text())["reason"]


# ---------------------------------------------------------------------------------------------- users' mistakes

LINES = [
    (["train", "a2c", "--env", "ALE/Pogn-v5"], "Pong"),
    (["train", "a2c", "--env", "CartPol-v1"], "CartPole"),
    (["train", "a2c", "--lanse", "4"], "--lanes"),
    (["train", "a2c", "--lanes", "four"], "--lanes"),
    (["train", "a2c", "--lanes", "15", "--replicas", "2"], "--lanes 15"),
    (["train", "a2x"], "a2c"),
    (["train", "alphago_zero", "--env", "ALE/Pong-v5"], "--env: ALE/Pong-v5 given, allowed: game:tic_tac_toe"),
    (
        ["train", "alphago_zero", "--hidden", "64"],
        "--hidden, --activation: given, but this system's network has --blocks",
    ),
    (["train", "impala", "--batch", "33"], "--batch 33"),
    (["train", "a2c", "--env", "toy:catch", "--network", "natur"], "nature"),
    (["train", "impala", "--lag", "0", "--actors", "1", "--lanes", "4", "--batch", "8"], "--lag 0"),
    (
        ["train", "dqn", "--env", "Pendulum-v1"],
        "--env: Pendulum-v1 given, but dqn needs discrete actions, this has [1]",
    ),
    (
        ["train", "dqn", "--env", "CartPole-v1", "--preset", "atari"],
        "--preset atari is for atari environments, but CartPole-v1",
    ),
    (
        ["train", "dqn", "--env", "CartPole-v1", "--preset", "atari", "--network", "a3c"],
        "--network: 'a3c' takes one im",
    ),
    (["evaluate", "no-such-run"], "no-such-run"),
    (["trian", "a2c"], "train"),
]


@pytest.mark.parametrize(("words", "hint"), LINES, ids=[" ".join(w) for w, _ in LINES])
def test_a_users_mistake_is_one_clear_line_and_leaves_nothing(words, hint, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main.main(words) == 2
    _, err = capfd.readouterr()
    assert err.startswith("polyplay: error: ")
    assert err.count("\n") == 1
    assert hint in err
    assert list(tmp_path.iterdir()) == []


BROKEN = """
import gymnasium, numpy as np
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}
    def step(self, action):
        self.steps += 1
        return WHAT
def make():
    return Env()
"""


@pytest.mark.parametrize(
    ("name", "what", "message"),
    [
        ("raises", "(np.zeros(3, np.float32), 1 / (self.steps < 30), False, False, {})", "ZeroDivisionError"),
        ("shape", "(np.zeros(4, np.float32), 0.0, False, False, {})", "given float32 [4]"),
        ("nan", "(np.full(3, np.nan, np.float32), 0.0, False, False, {})", "(rule finite;"),
    ],
)
def test_an_environment_that_breaks_the_rules_is_named(name, what, message, tmp_path, monkeypatch, capfd):
    (tmp_path / f"broken_{name}.py").write_text(BROKEN.replace("WHAT", what))
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    words = f"train a2c --env broken_{name}:make --lanes 4 --replicas 1 --steps 100000 --run".split()
    assert main.main([*words, str(run)]) == 1
    _, err = capfd.readouterr()
    assert err.startswith("polyplay: failed: ")
    assert message in err
    assert json.loads((run / "summary.json").read_text())["exit_code"] == 1

"""Whole runs as a person starts them: what they leave behind, how they end, how they go on."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium import spaces

import polyplay
from polyplay.cli import main
from polyplay.core import checkpoint
from polyplay.core.errors import EnvFailure
from polyplay.runs import run as run_module
from polyplay.runs import session
from polyplay.runs.run import RunResult
from tests import leftovers
from tests.envs.drawn import Drawn
from tests.envs.faulty import gone
from tests.reports import KEYS, rows
from tests.verbs import refused

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


def test_a_run_leaves_what_was_promised_and_can_be_evaluated(tmp_path, capfd):
    run = tmp_path / "run"
    assert main.main(training("impala", run, "--steps", "3000", "--seed", "3")) == 0
    reports = rows(run / "metrics.jsonl")
    assert all(set(KEYS) <= set(r) for r in reports)
    steps = [r["steps"] for r in reports]
    assert steps == sorted(steps)
    assert steps[-1] >= 3000
    config = json.loads((run / "config.json").read_text())
    assert (config["seed"], config["sources"]["lanes"]) == (3, "command line")
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


@pytest.mark.parametrize(
    "how",
    [
        "--serial",
        "--env CartPole-v1 --replicas 2",
        pytest.param("--env CartPole-v1 --replicas 1 --core gru --core-size 16", marks=pytest.mark.long),
    ],
    ids=["serial", "CartPole, replicas", "CartPole, gru"],
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


LINES = [
    ("train a2c --env ALE/Pogn-v5", "Pong"),
    ("train alphago_zero --hidden 64", "--hidden, --activation: given, but this system's network has --blocks"),
    ("train a2c --env toy:catch --network natur", "nature"),
    ("train dqn --env CartPole-v1 --preset atari --network a3c", "--network: 'a3c' takes one im"),
]


@pytest.mark.parametrize(("words", "hint"), LINES)
def test_a_users_mistake_is_one_clear_line_and_leaves_nothing(words, hint, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert hint in refused(capfd, *words.split())
    assert list(tmp_path.iterdir()) == []


class Broken(Drawn):
    """Shows what another function makes of its observations."""

    def __init__(self, spoil: Callable[[Any], Any]) -> None:
        super().__init__(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2))
        self.spoil = spoil

    def step(self, action: Any) -> Any:
        seen, *more = super().step(action)
        return self.spoil(seen), *more


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda seen: 1 / (seen is None), "ZeroDivisionError"),
        (lambda seen: seen[:2], r"given float32 \[2\]"),
        (lambda seen: seen * np.float32(np.nan), r"\(rule finite;"),
    ],
)
def test_an_environment_that_breaks_the_rules_is_named(spoil, message, tmp_path):
    kw = {"env": partial(Broken, spoil), "network": "mlp", "lanes": 4, "serial": True, "run": tmp_path / "run"}
    with pytest.raises(EnvFailure, match=message):
        polyplay.train("a2c", steps=100_000, **kw)
    assert json.loads((tmp_path / "run/summary.json").read_text())["exit_code"] == 1


TERMINAL = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
ENDS = {"two Ctrl-C at once": 130, "a killed main process": -9, "SIGTERM for the group": 143, "a closed terminal": 129}


@pytest.mark.parametrize("how", ENDS)
def test_a_signal_saves_and_nothing_outlives_the_run(how, tmp_path):
    """Neither workers nor, below them, environment processes. A whole group gets the signal from timeout and Slurm."""
    run, shared = tmp_path / "run", leftovers.names()
    system, more = ("impala", []) if how.startswith("two") else ("a2c", ["--env", "CartPole-v1", "--env-workers=1"])
    command = [sys.executable, "-c", TERMINAL, sys.executable, "-m", "polyplay"]
    command += training(system, run, *ENDLESS, *more)
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)

    def learnt() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(ours, 1 << 16)  # the panel goes on
        return any(row["updates"] for row in rows(run / "metrics.jsonl"))

    wait_for(learnt)
    everybody = psutil.Process(process.pid).children(recursive=True)
    assert len(everybody) >= 3
    if how == "a closed terminal":
        os.close(ours)
    elif how == "SIGTERM for the group":
        os.killpg(process.pid, signal.SIGTERM)
    else:
        os.kill(process.pid, signal.SIGINT if ENDS[how] > 0 else signal.SIGKILL)
        os.kill(process.pid, signal.SIGINT)
    assert process.wait(150) == ENDS[how]
    assert gone([p.pid for p in everybody]), [p.cmdline() for p in everybody if p.is_running()]
    assert not leftovers.since(shared)
    (last,) = checkpoint.everything(run)
    assert (checkpoint.manifest(last)["counters"]["updates"] > 0) == (ENDS[how] > 0)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        text = (run / name).read_text()
        assert text == "" or text.endswith("\n")
    if how != "a closed terminal":
        os.close(ours)


FILES = ("config.json", "MANIFEST", "metrics.jsonl", "episodes.jsonl", "updates.jsonl", "evaluations.jsonl")
FILES += ("decisions.jsonl", "deliveries-0.jsonl", "summary.json", "EVALUATION")
READ = ("config.json", "MANIFEST", "episodes.jsonl", "EVALUATION")  # by those who only read, too
VALUES = [b"", b"null", b"[]", b"{}", b'"x"', b"-1", b"1e308", b"1" + b"0" * 400, b"true", b"NaN", b'{"a": {"b": 1}}']
VALUE = re.compile(rb'"[^"]*"|-?\d[\d.e+-]*|\[[^\[\]]*\]|\{[^{}]*\}')


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints and every file of lines."""
    run = tmp_path_factory.mktemp("whole") / "run"
    kw = {"env": "toy:catch", "network": "mlp", "lanes": 4, "serial": True, "trace": True, "tensorboard": False}
    polyplay.train("a2c", run=str(run), steps=600, eval_every=100, eval_episodes=1, **kw)
    polyplay.resume(run, steps=900)
    polyplay.evaluate(run, episodes=1)
    (run / "decisions.jsonl").write_text('{"steps": 10, "updates": 1, "kept": true}\n' * 2)
    (run / "deliveries-0.jsonl").write_text('{"from":0,"threads":1,"length":0}\n[1,[0,0]]\n')
    return run


def mangled(data: bytes, rng: random.Random) -> bytes:
    """Bytes of a JSON file, or of lines of it, that a run never wrote: cut, flipped, and with another value or name."""
    at, spot = rng.randrange(len(data)), rng.choice([*VALUE.finditer(data)])
    flipped = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    other = data[: spot.start()] + rng.choice(VALUES) + data[spot.end() :]
    return rng.choice([data[:at], flipped, b"", b"[" * 100_000 + b"\n" + data, other, other, other])


def command_ends(capfd: pytest.CaptureFixture, *words: str) -> tuple[int, list[str]]:
    """Its status and lines of stderr; no traceback."""
    status = main.main(list(words))
    err = capfd.readouterr().err
    assert "Traceback" not in err
    assert status in (0, 2), err
    assert status == 0 or err.splitlines()[-1].startswith("polyplay: error: ")
    return status, err.splitlines()


@pytest.mark.parametrize("name", FILES)
def test_mangled_json_is_one_line_or_the_checkpoint_before(
    name: str, whole: Path, tmp_path: Path, monkeypatch, capfd: pytest.CaptureFixture
):
    """100 files in all. What is read when a run goes on is all read; it is not gone on with."""
    begun: list[session.RunSetup] = []

    def go(setup: session.RunSetup) -> RunResult:
        session.Session(setup).reporter.close("", 0)
        begun.append(setup)
        return RunResult(setup.directory)

    monkeypatch.setattr(run_module, "_go", go)
    for case in range(10):
        rng, run = random.Random(f"{name} {case}"), shutil.copytree(whole, tmp_path / str(case))
        old, new = checkpoint.everything(run)
        special = {"MANIFEST": new / "manifest.json", "EVALUATION": next(run.glob("evaluation-*.json"))}
        file = special.get(name, run / name)
        file.write_bytes(mangled(file.read_bytes(), rng))
        begun.clear()
        status, err = command_ends(capfd, "resume", str(run), "--steps", "2000")
        if name == "config.json":
            assert status == 0 or "config.json" in err[-1] or "--" in err[-1], err
        else:
            assert status == 0, err
            assert begun[0].counters["steps"] > 0
        if name == "MANIFEST" and begun[0].crew.resume == old:
            assert f"checkpoint {new.name}: " in err[0]
        if name in READ:
            command_ends(capfd, "evaluate", str(run), "--episodes", "1")
            command_ends(capfd, "scores", str(run))

from __future__ import annotations

import errno
import json
import os
import signal
import time
from typing import Any

import pytest

from polyplay.cli import main
from polyplay.core import checkpoint, processes
from polyplay.core.errors import WorkerLost
from polyplay.core.worker import RunControl
from polyplay.runs import session
from polyplay.runs.terminal import Output
from polyplay.workers.crew import Crew


@pytest.mark.timeout(60)
def test_a_signal_while_a_line_is_written_stops_the_run(tmp_path, monkeypatch, capfd):
    """The handler runs in the thread that holds the console's lock."""
    real, sent = Output.flush, []

    def flush(self: Output) -> None:
        if signal.getsignal(signal.SIGTERM) is not handler and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGTERM))
            assert signal.getsignal(signal.SIGTERM)  # a few instructions more: it is handled here
        real(self)

    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Output, "flush", flush)
    words = "train a2c --env toy:catch --network mlp --lanes 4 --serial --steps 100M --report-every 0.1 --run"
    assert main.main([*words.split(), str(tmp_path / "run")]) == 143
    assert len(sent) == 1
    assert "SIGTERM: saving a checkpoint; a second signal, at least 1 s later, ends without saving" in "".join(
        capfd.readouterr()
    )
    assert len(checkpoint.everything(tmp_path / "run")) == 1


@pytest.mark.timeout(60)
def test_a_signal_while_a_run_that_failed_is_closed_changes_nothing(tmp_path, monkeypatch, capfd):
    """A worker was lost, and whoever watches the run asks it to end just then."""
    real, run = Crew.stop, tmp_path / "run"

    def stop(self: Crew) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM)  # a few instructions more
        real(self)

    def lost(self: Crew, timeout: float) -> bool:
        raise WorkerLost("worker learn 0 was killed by SIGKILL; the run cannot go on without it")

    monkeypatch.setattr(Crew, "stop", stop)
    monkeypatch.setattr(Crew, "poll", lost)
    words = "train a2c --env toy:catch --network mlp --lanes 4 --serial --steps 1M --run"
    outside: list[int] = []  # who would have ended the process
    handler = signal.signal(signal.SIGTERM, lambda number, frame: outside.append(number))
    try:
        assert main.main([*words.split(), str(run)]) == 1
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert not outside
    summary = json.loads((run / "summary.json").read_text())
    assert summary["exit_code"] == 1
    assert summary["reason"].startswith("worker learn 0 was killed by SIGKILL")
    assert "saving a checkpoint" not in "".join(capfd.readouterr())


ENDLESS = "train a2c --env toy:catch --network mlp --lanes 4 --serial --steps 100M --report-every 0.1 --run"


def asked_twice(monkeypatch: pytest.MonkeyPatch, gap: float) -> None:
    """A run whose learners never end gets SIGTERM, and once more so many seconds after the first was told."""
    real = session.Session._tick

    def tick(self: session.Session) -> None:
        real(self)
        if not self.signalled or (self.warned_at and time.monotonic() - self.warned_at >= gap):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(session.Session, "_tick", tick)
    monkeypatch.setattr(RunControl, "finish", lambda self: None)


@pytest.mark.timeout(60)
def test_another_signal_a_second_later_drops_everything_and_says_so(tmp_path, monkeypatch, capfd):
    asked_twice(monkeypatch, 0.0)
    monkeypatch.setattr(processes, "AGAIN", 0.5)
    assert main.main([*ENDLESS.split(), str(tmp_path / "run")]) == 143
    said = "".join(capfd.readouterr())
    assert said.count("SIGTERM again: ending without saving") == 1
    assert "stopped by SIGTERM, at once: what was learnt since the last checkpoint is lost" in said


@pytest.mark.timeout(60)
def test_signals_that_come_together_are_one(tmp_path, monkeypatch, capfd):
    asked_twice(monkeypatch, 0.0)
    monkeypatch.setattr(session, "PATIENCE", 0.5)  # it would not end otherwise
    assert main.main([*ENDLESS.split(), str(tmp_path / "run")]) == 1
    said = "".join(capfd.readouterr())
    assert "again" not in said
    assert "stopped by SIGTERM; not saved: learners did not end within 0 s" in said


@pytest.mark.timeout(60)
def test_a_signal_before_any_learner_has_begun_is_one_line(tmp_path, monkeypatch, capfd):
    asked_twice(monkeypatch, 60.0)
    monkeypatch.setattr(session.Session, "_learning", lambda self: False)
    assert main.main([*ENDLESS.split(), str(tmp_path / "run")]) == 143
    said = "".join(capfd.readouterr())
    assert said.count("SIGTERM") == 1
    assert "stopped by SIGTERM before anything was learnt" in said


@pytest.mark.timeout(60)
def test_a_last_save_that_fails_is_said_last_and_in_the_status(tmp_path, monkeypatch, capfd):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def send(self: session.Session, real: Any = session.Session._tick) -> None:
        real(self)
        if self.metrics.updates and not self.signalled:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(checkpoint, "complete", full)
    monkeypatch.setattr(session.Session, "_tick", send)
    assert main.main([*ENDLESS.split(), str(tmp_path / "run")]) == 1
    last = capfd.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("stopped by SIGTERM; not saved: checkpoint of update ")
    assert "No space left on device" in last
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["exit_code"] == 1


@pytest.mark.timeout(60)
def test_a_signal_while_workers_start_ends_the_run_with_a_summary(tmp_path, monkeypatch, capfd):
    def start(self: Crew, role: Any, index: int, check: Any) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        check()
        raise AssertionError("it went on")

    monkeypatch.setattr(Crew, "_start", start)
    assert main.main([*ENDLESS.split(), str(tmp_path / "run")]) == 129
    said = "".join(capfd.readouterr())
    assert "stopped by SIGHUP while it was starting" in said
    assert "Traceback" not in said
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["exit_code"] == 129

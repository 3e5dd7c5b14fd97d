from __future__ import annotations

import json
import os
import signal

import pytest

from polyplay.cli import main
from polyplay.common import checkpoint
from polyplay.common.errors import WorkerLost
from polyplay.runs.reports.nonblocking import NonBlockingWriter
from polyplay.workers.crew import Crew


@pytest.mark.timeout(60)
def test_a_signal_while_a_line_is_written_stops_the_run(tmp_path, monkeypatch, capfd):
    """The handler runs in the thread that holds the queue's lock."""
    real, sent = NonBlockingWriter.flush, []

    def flush(self: NonBlockingWriter) -> None:
        if signal.getsignal(signal.SIGTERM) is not handler and not sent:
            with self.due.mutex:
                sent.append(os.kill(os.getpid(), signal.SIGTERM))
                assert signal.getsignal(signal.SIGTERM)  # a few instructions more: it is handled here
        real(self)

    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(NonBlockingWriter, "flush", flush)
    words = "train a2c --env toy:catch --network mlp --lanes 4 --serial --steps 100M --report-every 0.1 --run"
    assert main.main([*words.split(), str(tmp_path / "run")]) == 143
    assert len(sent) == 1
    assert "SIGTERM: saving a checkpoint; once more, a second from now or later, drops everything" in "".join(capfd.readouterr())
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

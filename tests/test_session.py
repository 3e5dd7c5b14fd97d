from __future__ import annotations

import os
import signal

import pytest

from polyplay import checkpoint, cli
from polyplay.outlet import Outlet


@pytest.mark.timeout(60)
def test_a_signal_while_a_line_is_written_stops_the_run(tmp_path, monkeypatch, capfd):
    """The handler runs in the thread that holds the queue's lock."""
    real, sent = Outlet.flush, []

    def flush(self: Outlet) -> None:
        if signal.getsignal(signal.SIGTERM) is not kept and not sent:
            with self.due.mutex:
                sent.append(os.kill(os.getpid(), signal.SIGTERM))
                assert signal.getsignal(signal.SIGTERM)  # a few instructions more: it was heard in here
        real(self)

    kept = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Outlet, "flush", flush)
    words = "train a2c --env toy:catch --network mlp --lanes 4 --serial --steps 100M --report-every 0.1 --run"
    assert cli.main([*words.split(), str(tmp_path / "run")]) == 143
    assert len(sent) == 1
    assert "SIGTERM: saving a checkpoint; once more to drop everything" in "".join(capfd.readouterr())
    assert len(checkpoint.everything(tmp_path / "run")) == 1

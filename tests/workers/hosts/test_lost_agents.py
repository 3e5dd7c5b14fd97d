"""An agent is lost while its machine lives: the machine gets another one, and its actors go on there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.workers.hosts.runs import command, events, learning, metrics, processes_of, wait_for

pytestmark = pytest.mark.long
WAIT = 240.0  # seconds, at most, also on a machine that is busy with other things


def agents(test: Path) -> list[int]:
    """Their processes."""
    return [pid for pid, title in processes_of(test).items() if title.startswith("polyplay: agent")]


def opened(run: Path) -> list[tuple[str, str]]:
    return [(row["event"], row["machine"]) for row in events(run) if row["event"] in ("opened", "lost")]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("machines", "number"),
    [(1, signal.SIGKILL), (1, signal.SIGSTOP), (2, signal.SIGKILL)],
    ids=["killed", "silent", "both killed"],
)
def test_actors_go_on_where_they_were(machines, number, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYPLAY_TEST", str(tmp_path))
    run = tmp_path / "run"
    main = command(run, "--hosts", f"pretend:{machines}", "--steps", "100M", "--host-timeout", "2")
    try:
        for lost in (1, 2):
            at = metrics(run)[-1]["updates"] if run.exists() and metrics(run) else 0
            wait_for(lambda at=at: learning(run, at + 20), WAIT)
            for pid in agents(tmp_path):
                os.kill(pid, number)
            wait_for(lambda lost=lost: opened(run).count(("lost", "pretend-1")) == lost, WAIT)
            wait_for(lambda lost=lost: opened(run).count(("opened", "pretend-1")) == 1 + lost, WAIT)
        at = metrics(run)[-1]["updates"]
        wait_for(lambda: learning(run, at + 20), WAIT)
        again = [row for row in events(run) if row.get("again")]
        assert len(again) >= 2 * machines
        assert [row["retry"] for row in events(run) if (row["event"], row["machine"]) == ("lost", "pretend-1")] == [
            2,
            4,
        ]
        wait_for(lambda: len(agents(tmp_path)) == machines)
    finally:
        main.terminate()
        said = main.communicate(timeout=120)[0].decode()
    assert main.returncode == 143, said
    assert "Traceback" not in said
    assert said.count("machine pretend-1 has a new agent") == 2
    wait_for(lambda: not processes_of(tmp_path), 5.0)

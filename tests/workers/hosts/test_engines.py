"""The head of a Ray cluster is watched; who knows of other machines."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import polyplay
from polyplay.core import checkpoint
from polyplay.runs import load
from polyplay.workers.hosts import engines
from polyplay.workers.hosts.engines import GREETING, HeadWatch, answers
from tests.workers.hosts.runs import wait_for


@contextmanager
def server(says: bytes) -> Iterator[str]:
    """The address of somebody who reads a greeting and answers; empty: and closes."""
    listener, heard = socket.create_server(("127.0.0.1", 0)), list[bytes]()

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            heard.append(sock.recv(100))
            sock.sendall(says)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)
    assert heard == [GREETING]


@pytest.mark.parametrize("says", [b"\0\0\0\4\0\0\0\0\0", b""])
def test_who_does_anything_with_a_greeting_answers(says):
    with server(says) as address:
        assert answers(address, 10.0)


def test_nobody_a_stopped_process_and_what_is_no_address_do_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the system accepts, the process does not
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert not answers(address, 0.05)
    for other in (address, "nowhere", "127.0.0.1:99999999"):
        assert not answers(other, 0.05)


def test_a_head_is_lost_after_so_many_tries_in_vain_one_after_the_other(monkeypatch):
    said = iter([False, False, True, False, False, False])
    monkeypatch.setattr(engines, "answers", lambda address, seconds: next(said, False))
    counts, watch = list[int](), HeadWatch("10.0.0.1:6379", every=0.001, tries=3)
    try:
        assert watch.failing() == "" or watch.failed >= 3
        wait_for(lambda: counts.append(watch.failed) or watch.failed >= 3)
        assert watch.failing().startswith(
            "--hosts: the head of the Ray cluster, 10.0.0.1:6379, has given no answer for"
        )
    finally:
        watch.stop()
    assert list(said) == [], "an answer sets the count back"


class Alone:
    """A fleet of no machines, whose engine fails once something was learnt."""

    def __init__(self) -> None:
        self.why, self.lines = "", ["machine a has joined"]
        self.engine = SimpleNamespace(failing=lambda: self.why)

    def check(self, crew) -> str:
        return "none"

    def prepare(self, crew) -> None:
        self.directory = crew.directory

    def goes(self, role) -> bool:
        return False

    def news(self) -> list[str]:
        if (self.directory / "metrics.jsonl").exists():
            self.why = "--hosts: the head, 10.0.0.1:6379, has given no answer for 20 s"
        lines, self.lines = self.lines, []
        return lines

    def report(self) -> dict:
        return {}

    def learner_away(self, crew) -> bool:
        return False

    cores = cores_for = lambda self, *who: 0

    def close(self) -> None:
        """Nothing is open."""


def test_a_lost_head_ends_the_run_in_order_with_a_checkpoint_and_status_1(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(load, "fleet_of", lambda options: Alone())
    run, begun = tmp_path / "run", time.monotonic()
    given = {"env": "toy:catch", "network": "mlp", "hidden": (8,), "serial": True, "report_every": 0.1}
    result = polyplay.train("a2c", **given, steps=10**9, tensorboard=False, run=str(run))
    assert time.monotonic() - begun < 60.0
    assert result.exit_code == 1
    assert json.loads((run / "summary.json").read_text())["reason"] == result.reason
    assert "the head, 10.0.0.1:6379," in result.reason
    saved = checkpoint.everything(run)[-1]
    assert checkpoint.update_of(saved) == result.summary["updates"] > 0
    said = capfd.readouterr()
    text = " ".join((said.out + said.err).split())
    assert "machine a has joined" in text
    assert "has given no answer for 20 s: saving a checkpoint" in text


PACKAGE = Path(polyplay.__file__).parent


def test_one_file_knows_ray():
    files = [p for p in PACKAGE.rglob("*.py") if "import ray" in p.read_text()]
    assert [str(p.relative_to(PACKAGE)) for p in files] == ["workers/hosts/engines.py"]


def test_no_page_and_no_loop_names_machines():
    for room in ("systems", "acting", "learning", "buffers", "nets", "weights", "envs"):
        for path in (PACKAGE / room).rglob("*.py"):
            text = path.read_text()
            assert "workers.hosts" not in text, path
            assert "fleet" not in text, path


@pytest.mark.long
def test_a_run_without_hosts_loads_nothing_of_them():
    code = "import polyplay, polyplay.runs.run, polyplay.systems, sys; polyplay.systems.load('impala')\n"
    code += "assert not {m for m in sys.modules if m == 'ray' or m.startswith('polyplay.workers.hosts.')}"
    code += " - {'polyplay.workers.hosts.engines'}"
    subprocess.run([sys.executable, "-c", code], check=True)

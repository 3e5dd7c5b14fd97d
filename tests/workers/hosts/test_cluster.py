"""The head of a Ray cluster is watched; who knows of other machines."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import polyplay
from polyplay.core import checkpoint
from polyplay.workers.hosts import cluster
from polyplay.workers.hosts.cluster import GREETING, HeadWatch, answers
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
    monkeypatch.setattr(cluster, "answers", lambda address, seconds: next(said, False))
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


def test_a_lost_head_ends_the_run_in_order_with_a_checkpoint_and_status_1(monkeypatch, tmp_path, capfd):
    """Of a fleet of no machines, whose cluster fails once something was learnt."""
    run, lines, no = tmp_path / "run", ["machine a has joined"], lambda *who: 0
    why = "--hosts: the head, 10.0.0.1:6379, has given no answer for 20 s"
    failing = SimpleNamespace(failing=lambda: why * (run / "metrics.jsonl").exists())
    fleet = SimpleNamespace(cluster=failing, check=lambda crew: "none", report=dict, prepare=no, close=no)
    vars(fleet).update(
        is_away=no, learner_away=no, cores=no, cores_for=no, news=lambda: [lines.pop() for _ in lines[:]]
    )
    monkeypatch.setattr(cluster, "fleet_of", lambda options: fleet)
    given = {"env": "toy:catch", "network": "mlp", "hidden": (8,), "serial": True, "report_every": 0.1}
    result = polyplay.train("a2c", **given, steps=10**9, tensorboard=False, run=str(run))
    assert (result.exit_code, result.reason) == (1, why)
    assert json.loads((run / "summary.json").read_text())["reason"] == why
    saved = checkpoint.everything(run)[-1]
    assert checkpoint.update_of(saved) == result.summary["updates"] > 0
    said = capfd.readouterr()
    text = " ".join((said.out + said.err).split())
    assert "machine a has joined" in text
    assert "has given no answer for 20 s: saving a checkpoint" in text

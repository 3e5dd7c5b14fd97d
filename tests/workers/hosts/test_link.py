"""A link: its handshake, its frames, and what it refuses."""

from __future__ import annotations

import errno
import io
import json
import os
import socket
import struct
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polyplay.core import checkpoint
from polyplay.core.shared_memory import Semaphores
from polyplay.core.worker import RunControl
from polyplay.workers.hosts import link as link_module
from polyplay.workers.hosts.agent import MachineAgent
from polyplay.workers.hosts.link import DATA, FILE, HEAD, MAGIC, WORD, Link, LinkLost, prove
from polyplay.workers.hosts.mirrors import CellsMirror

BELL = Semaphores(1)


def pair() -> tuple[socket.socket, socket.socket]:
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    listener.close()
    return one, other


def ends(timeout: float = 5.0, mirrors=(), root: Path | None = None) -> tuple[Link, socket.socket]:
    """An end, and the socket of whoever is the other."""
    mine, theirs = socket.socketpair()
    return Link(mine, mirrors, BELL[0], timeout, root), theirs


def frame(kind: int, mirror: int = 0, body: bytes = b"", n: int | None = None) -> bytes:
    return HEAD.pack(MAGIC, kind, mirror, 0, 0, len(body) if n is None else n) + body


def received(link: Link, theirs: socket.socket, data: bytes) -> str:
    """Why the link ends that receives this, and then nothing more."""
    theirs.sendall(data)
    theirs.close()
    link.receive()
    link.sock.close()
    return link.why


class TestHandshake:
    @pytest.mark.parametrize(("home", "away"), [(b"a" * 32, b"b" * 32), (b"", b"b" * 32)])
    def test_who_does_not_know_the_secret_is_refused_before_anything_is_read(self, home, away):
        one, other = pair()
        said = []

        def answer() -> None:
            try:
                prove(other, away, away=True)
            except LinkLost as e:
                said.append(str(e))
                other.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(LinkLost):
            prove(one, home, away=False)
        thread.join()
        assert said == ["the other end does not know this run's secret"]


class TestFrames:
    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "no frame"),
            (frame(99, body=b"{}"), "KeyError"),
            (frame(DATA, mirror=3), "IndexError"),
            (frame(DATA, n=1 << 60), "bytes for 0, 0 of CellsMirror"),
            (frame(FILE, body=b"{"), "JSONDecodeError"),
            (frame(FILE, body=json.dumps({"name": "../../x", "bytes": 1}).encode()), "a file named"),
        ],
    )
    def test_a_frame_that_is_none_ends_the_link(self, data, why):
        control = RunControl()
        mirror = CellsMirror(control, "_flags")
        mirror.away = True
        assert why in received(*ends(mirrors=[mirror]), data)
        assert not control._flags.any()

    @pytest.mark.parametrize(
        "name",
        [
            "/etc/passwd",
            "checkpoints/.partial-000000000001/workers/../../../x-1.json",
            "resume/workers/act-0.py",
            "resume/workers/act-0.json\n",
        ],
    )
    def test_a_file_goes_nowhere_but_to_a_part_of_a_checkpoint(self, name, tmp_path):
        body = json.dumps({"name": name, "bytes": 1}).encode()
        assert "a file named" in received(*ends(root=tmp_path), frame(FILE, body=body) + b"x")
        assert list(tmp_path.rglob("*")) == []

    def test_another_save_of_the_beginning_and_parts_that_are_waited_for_are_not_late(self, tmp_path):
        (tmp_path / "checkpoints/000000000000-steps-0").mkdir(parents=True)
        (tmp_path / "checkpoints/000000000004-steps-9").mkdir(parents=True)
        names = ["0/workers/act-1.json", "0/agents/0/policy.safetensors", "4/workers/replica-1.json"]
        names += ["4/replay/replica-1/replay.json", "4/workers/act-1.json"]
        names = [f"checkpoints/.partial-00000000000{name}" for name in names]
        data = b"".join(frame(FILE, body=json.dumps({"name": name, "bytes": 2}).encode()) + b"ab" for name in names)
        received(*ends(root=tmp_path), data)
        assert [(tmp_path / name).is_file() for name in names] == [True] * 4 + [False]

    @pytest.mark.parametrize("how", ["late", "made meanwhile", "full", "full, and nobody listens"])
    def test_a_part_that_cannot_be_written_is_dropped_whole_and_the_link_goes_on(self, how, tmp_path, monkeypatch):
        """But where nobody can do without it."""
        link, theirs = ends(root=tmp_path)
        said, real, replace = list[str](), open, os.replace
        link.dropped = said.append if "nobody" not in how else None
        monkeypatch.setattr(link_module, "CHUNK", 7)
        checkpoint.CheckpointPart(tmp_path, 5).arrays("agents/0/policy", {"w": np.zeros(3, np.float32)})

        def make(*of: Any) -> None:
            monkeypatch.setattr(os, "replace", replace)
            checkpoint.complete(tmp_path, 5, {"steps": 5})
            if of:
                replace(*of)

        class Full(io.BytesIO):
            def write(self, data: object) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

        if how == "late":
            make()
        elif how == "made meanwhile":
            monkeypatch.setattr(os, "replace", make)
        else:
            monkeypatch.setattr(
                link_module, "open", lambda *a: Full() if "act-1" in str(a[0]) else real(*a), raising=False
            )
        names = [f"checkpoints/.partial-00000000000{i}/workers/act-1.json" for i in (5, 6)]
        names[1] = names[1].replace("act-1", "act-2")
        heads = [frame(FILE, body=json.dumps({"name": name, "bytes": 99}).encode()) for name in names]
        why = received(link, theirs, b"".join(head + bytes(99) for head in heads))
        assert (tmp_path / names[1]).exists() == ("nobody" not in how)
        assert [p.name for p in tmp_path.rglob("*act-1*")] == []
        wanted = f"{names[0]} could not be written: No space left on device"
        assert said == [wanted] * (how == "full")
        assert (why == f"{names[0]}: No space left on device") == ("nobody" in how)
        assert not checkpoint.everything(tmp_path) or checkpoint.flaw(checkpoint.everything(tmp_path)[-1]) is None


@pytest.mark.parametrize("fault", [ValueError("of a mirror"), OSError(28, "No space left"), KeyError("number")])
def test_a_thread_that_fails_closes_the_link_so_that_its_machine_counts_as_lost(fault):
    def fail(*of: object) -> None:
        raise fault

    link, theirs = ends()
    link.on[WORD] = fail
    assert repr(fault) in received(link, theirs, frame(WORD, body=b"{}"))
    assert link.closed.is_set()
    link, theirs = ends()
    link.each_beat = fail
    assert repr(fault) in link.run()
    theirs.close()


class TestStrangers:
    @pytest.mark.parametrize("kind", ["silent", "gone", "wrong"])
    def test_strangers_do_not_keep_the_main_process_from_its_agent(self, kind):
        fake: Any = SimpleNamespace(secret=b"s" * 32, listener=socket.create_server(("127.0.0.1", 0)))
        address, accepted = fake.listener.getsockname(), list[socket.socket]()
        thread = threading.Thread(target=lambda: accepted.append(MachineAgent._accept(fake)), daemon=True)
        thread.start()
        strangers = [socket.create_connection(address) for _ in range(5)]
        for stranger in strangers:
            if kind == "gone":
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                stranger.close()
            elif kind == "wrong":  # what listens proves nothing first that a stranger could send back
                stranger.sendall(stranger.recv(32) + bytes(32))
                assert stranger.recv(100) == b""
        with socket.create_connection(address, 20.0) as home:
            prove(home, fake.secret, away=False)
            thread.join(20.0)
            (found,) = accepted
            assert found.getpeername() == home.getsockname()
            found.close()
        for stranger in strangers:
            stranger.close()


class TestSilence:
    def test_a_silent_end_is_lost_after_the_timeout(self):
        link, theirs = ends(timeout=0.2)
        began = time.monotonic()
        assert link.run() == "nothing came for 0.2 s"
        assert time.monotonic() - began < 20.0
        theirs.close()

    def test_two_idle_ends_hear_each_other(self):
        one, other = pair()
        both = [Link(sock, [], Semaphores(1)[0], 1.2, None) for sock in (one, other)]
        threads = [threading.Thread(target=link.run) for link in both]
        for thread in threads:
            thread.start()
        time.sleep(1.6)
        assert not any(link.closed.is_set() for link in both)
        both[0].end("")
        for thread in threads:
            thread.join()
        assert both[1].why == "the connection was closed"

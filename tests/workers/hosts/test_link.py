"""A link: its handshake, its frames, and what it refuses."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from polyplay.common.control import RunControl
from polyplay.common.semaphores import Semaphores
from polyplay.workers.hosts import link as links
from polyplay.workers.hosts.link import DATA, FILE, HEAD, MAGIC, START, WORD, Link, LinkLost, prove
from polyplay.workers.hosts.mirrors import CellsMirror, RemoteSeat
from polyplay.workers.hosts.queue_mirror import QueueMirror
from tests.workers.hosts.by_hand import queue_of

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


def frame(kind: int, mirror: int = 0, item: int = 0, body: bytes = b"", n: int | None = None) -> bytes:
    return HEAD.pack(MAGIC, kind, mirror, item, len(body) if n is None else n) + body


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

    def test_both_ends_know_it(self):
        one, other = pair()
        thread = threading.Thread(target=prove, args=(other, b"x" * 32, True))
        thread.start()
        prove(one, b"x" * 32, away=False)
        thread.join()
        other.sendall(b"the first frame")
        assert one.recv(100) == b"the first frame", "nothing of the handshake is left"

    def test_an_answer_that_was_heard_before_proves_nothing(self):
        """Who listens does not answer a stranger with a proof that he could send back."""
        one, other = pair()

        def answer() -> None:
            with pytest.raises(LinkLost):
                prove(other, b"x" * 32, away=True)

        thread = threading.Thread(target=answer)
        thread.start()
        nonce = links.read_exactly(one, 32)
        one.sendall(nonce + b"\0" * 32)
        one.settimeout(1.0)
        other.settimeout(1.0)
        thread.join()
        other.close()
        assert one.recv(100) == b""


class TestFrames:
    def test_a_frame_that_is_none_ends_the_link(self):
        cases = {
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n": "none of ours",
            frame(99): "kind 99",
            frame(DATA, mirror=3): "mirror 3 of 1",
            frame(DATA, item=7, body=b"x"): "item 7",
            frame(DATA, n=1 << 60): "bytes for item 0",
            frame(WORD, n=1 << 40): "bytes of JSON",
            frame(WORD, body=b"[1]"): "no JSON object",
            frame(WORD, body=b"{"): "no JSON object",
            frame(START, body=b"{}"): "kind",
            frame(FILE, body=json.dumps({"name": "../../x", "bytes": 1}).encode()): "a file named",
        }
        for data, why in cases.items():
            control = RunControl()
            mirror = CellsMirror(control, "_flags")
            mirror.away = True
            assert why in received(*ends(mirrors=[mirror]), data)
            assert not control._flags.any()

    @pytest.mark.parametrize(
        "name",
        [
            "../x",
            "/etc/passwd",
            "checkpoints/.partial-000000000001/workers/../../../x-1.json",
            "resume/workers/act-0.py",
            "resume/workers/act-0.json\n",
            "config.json",
            "resume/workers/.json",
        ],
    )
    def test_a_file_goes_nowhere_but_to_a_part_of_a_checkpoint(self, name, tmp_path):
        body = json.dumps({"name": name, "bytes": 1}).encode()
        assert "a file named" in received(*ends(root=tmp_path), frame(FILE, body=body) + b"x")
        assert list(tmp_path.rglob("*")) == []

    def test_parts_of_a_checkpoint_arrive_whole_and_late_ones_are_dropped(self, tmp_path):
        (tmp_path / "checkpoints/000000000002-steps-5").mkdir(parents=True)
        data, content = b"", bytes(range(256)) * 9000
        for name in ("checkpoints/.partial-000000000001", "checkpoints/.partial-000000000002"):
            head = json.dumps({"name": f"{name}/workers/act-3.safetensors", "bytes": len(content)}).encode()
            data += frame(FILE, body=head) + content
        link, theirs = ends(root=tmp_path)
        sending = threading.Thread(target=lambda: (theirs.sendall(data), theirs.close()))
        sending.start()
        link.receive()
        sending.join()
        files = [p for p in tmp_path.rglob("*") if p.is_file()]
        assert files == [tmp_path / "checkpoints/.partial-000000000001/workers/act-3.safetensors"]
        assert files[0].read_bytes() == content

    def test_ten_thousand_altered_and_cut_frames(self):
        """A link takes the frame, or ends; and no array outside the frame's own places has changed."""
        rng, outcomes = random.Random(1), set[str]()
        queue = queue_of()
        mirror = QueueMirror(queue)
        queue._bells.relay_by(Semaphores(1))
        queue._attach()
        mirror.sit(RemoteSeat(0, 0, role="act", end="out"))
        slot = mirror._rest(0)
        good = frame(DATA, 0, 0, b"".join(x.tobytes() for x in slot))
        rings = np.zeros(2 + queue.share, np.int64)
        goods = [good, frame(DATA, 0, mirror.of_pairs, rings.tobytes())]
        other = [np.array(x) for x in (queue.rows["obs"][3:], queue._rings[:, 1], queue.marks[3:], queue.base)]
        for _ in range(10_000):
            data = bytearray(rng.choice(goods))
            if rng.random() < 0.3:
                del data[rng.randrange(len(data)) :]
            for _ in range(rng.randrange(1, 4)):
                if data:
                    data[rng.randrange(min(len(data), rng.choice([24, 1 << 20])))] = rng.randrange(256)
            outcomes.add(received(*ends(mirrors=[mirror]), bytes(data)).split(":")[0])
            now = queue.rows["obs"][3:], queue._rings[:, 1], queue.marks[3:], queue.base
            assert all((a == b).all() for a, b in zip(now, other, strict=True))
        assert outcomes == {"the connection was closed", "a frame that cannot be"}

    def test_ten_thousand_random_ones(self):
        """Half of them begin as ours do."""
        rng, control = random.Random(2), RunControl()
        mirror = CellsMirror(control, "_flags")
        for i in range(10_000):
            data = MAGIC * (i % 2) + rng.randbytes(rng.randrange(1, 200))
            assert received(*ends(mirrors=[mirror]), data)
            assert not control._flags.any()


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


def test_nothing_is_unpickled_here():
    text = Path(links.__file__).read_text()
    assert "import pickle" not in text
    assert "cloudpickle" not in text
    assert "twins" not in text

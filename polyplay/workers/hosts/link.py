"""A link: one TCP connection between two machines, its frames, and the two threads that serve an end of it.

Frames: kind, mirror, part, number, bytes; then so many bytes, which go straight into the places that the mirror
declares. What is not a mirror's is JSON, or a file of a checkpoint. Nothing is unpickled here. Before the first frame
both ends prove that they know the run's secret. Each side sends a beat every second; who hears nothing for a while
takes the other for lost.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import os
import re
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from polyplay.core.errors import Closed
from polyplay.core.shared_memory import Semaphore
from polyplay.workers.hosts.mirrors import CountersMirror, MachineCopy, RemoteSeat

HEAD = struct.Struct("<4sHHHIQ")
MAGIC, NONCE = b"poly", 32
DATA, BEAT, ECHO, START, SIGNAL, WORD, ENDED, LOAD, FILE, CLOSE = range(10)
CHUNK = 1 << 20  # bytes of a file at once
BEAT_EVERY, TICK = 1.0, 0.1  # seconds; between two looks at what rings no bell
_WORKERS = r"workers/[a-z_]+-\d+\.(safetensors|json)|replay/[a-z_]+-\d+/\w[\w.-]*\.(safetensors|json)"
_AGENTS = r"agents/\d+/[a-z]+\.(safetensors|json)"
_FAILED = r"not-finite-[\d-]+\.safetensors"
PART = re.compile(rf"checkpoints/\.partial-\d{{12}}/({_WORKERS}|{_AGENTS})|{_FAILED}", re.ASCII)  # comes home
ACTORS = re.compile(r"checkpoints/\.partial-(\d{12})/workers/(?!replica-)")
RESUMED = re.compile(rf"resume/({_WORKERS}|{_AGENTS})", re.ASCII)  # goes out


class LinkLost(Exception):
    """The other end is gone, silent, or none of ours."""


def prove(sock: socket.socket, secret: bytes, away: bool) -> None:
    """Both ends show that they know the secret. Raises LinkLost."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    mine, me, other = secrets.token_bytes(NONCE), *(b"away", b"home")[:: 1 if away else -1]
    sock.sendall(mine)
    theirs = read_exactly(sock, NONCE)

    def proof(who: bytes, a: bytes, b: bytes) -> bytes:
        return hmac.digest(secret, who + a + b, "sha256")

    if not away:  # who connects goes first: who listens proves nothing to a stranger
        sock.sendall(proof(me, mine, theirs))
    if not hmac.compare_digest(read_exactly(sock, 32), proof(other, theirs, mine)):
        raise LinkLost("the other end does not know this run's secret")
    if away:
        sock.sendall(proof(me, mine, theirs))


def read_exactly(sock: socket.socket, n: int) -> bytes:
    data = bytearray(n)
    _fill(sock, memoryview(data))
    return bytes(data)


def _fill(sock: socket.socket, view: memoryview) -> int:
    at = 0
    while at < len(view):
        try:
            got = sock.recv_into(view[at:])
        except TimeoutError:
            raise LinkLost(f"nothing came for {sock.gettimeout():g} s") from None
        except OSError as e:
            raise LinkLost(e.strerror or str(e)) from None
        if not got:
            raise LinkLost("the connection was closed")
        at += got
    return at


def _write_pieces(path: Path, pieces: Iterator[memoryview]) -> None:
    """Write a file, whole or not at all. Raises OSError."""
    temporary = path.with_name(f".{path.name}.link")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(temporary, "wb") as file:
            for piece in pieces:
                file.write(piece)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def views_of(arrays: Sequence[np.ndarray]) -> list[memoryview]:
    """The arrays' own memory. They are contiguous."""
    return [x.reshape(-1).view(np.uint8).data for x in arrays if x.size]


class Link:
    """One end. `mirrors` have the same order on both sides. root: where files of checkpoints go."""

    def __init__(
        self, sock: socket.socket, mirrors: Sequence[MachineCopy], bell: Semaphore, timeout: float, root: Path | None
    ):
        self.sock, self.mirrors, self.bell, self.root = sock, mirrors, bell, root
        self.accepts = PART  # names of files
        self.dropped: Callable[[str], None] | None = None  # told of a file that could not be written; None: the end
        self.why, self.closed = "", threading.Event()
        self.sent = self.received = 0  # bytes
        self.beaten = self.round_trip = 0.0  # when the last beat went; seconds to the echo of one
        self.each_beat: Callable[[], None] = lambda: None  # what the sending thread does besides
        self.echoes = False  # one side alone answers, so that never both wait for the other to read
        self.on: dict[int, Callable[[dict[str, Any]], None]] = {FILE: self._take_file}  # what JSON of a kind does
        self.requests: list[Callable[[], None]] = []  # for the sending thread
        self.before: Callable[[MachineCopy, int, int], None] = lambda mirror, part, i: None  # a frame is sent
        self._lock = threading.Lock()
        sock.settimeout(timeout)

    # ------------------------------------------------------------------------------------------ sending

    def send(self, kind: int, mirror: int = 0, part: int = 0, i: int = 0, arrays: Sequence[np.ndarray] = ()) -> None:
        """Raises LinkLost."""
        views = views_of(arrays)
        with self._lock:
            self._push([memoryview(HEAD.pack(MAGIC, kind, mirror, part, i, sum(map(len, views)))), *views])

    def send_json(self, kind: int, value: dict[str, Any]) -> None:
        self.send(kind, arrays=[np.frombuffer(json.dumps(value).encode(), np.uint8)])

    def send_file(self, name: str, path: Path) -> None:
        """A part of a checkpoint, whole before the other side's name appears."""
        with open(path, "rb") as file, self._lock:
            head = json.dumps({"name": name, "bytes": os.fstat(file.fileno()).st_size}).encode()
            self._push([memoryview(HEAD.pack(MAGIC, FILE, 0, 0, 0, len(head))), memoryview(head)])
            while data := file.read(CHUNK):
                self._push([memoryview(data)])

    def _push(self, views: list[memoryview]) -> None:
        try:
            while views:
                n = self.sock.sendmsg(views[:512])
                self.sent += n
                while views and n >= len(views[0]):
                    n -= len(views.pop(0))
                if n:
                    views[0] = views[0][n:]
        except TimeoutError:
            raise LinkLost(f"nothing could be sent for {self.sock.gettimeout():g} s") from None
        except OSError as e:
            raise LinkLost(e.strerror or str(e)) from None

    def serve(self) -> None:
        """The sending thread: what the mirrors find changed, whenever the bell rings."""
        beat = 0.0
        try:
            while not self.closed.is_set():
                now = time.monotonic()
                if now >= beat:
                    beat = now + BEAT_EVERY
                    self.beaten = time.perf_counter()
                    self.send(BEAT)
                    self.each_beat()
                while self.requests:
                    self.requests.pop(0)()
                for i in range(len(self.mirrors)):
                    self._mirror(i, now)
                self.bell.wait(TICK)
        except Closed:
            self.end("")
        except LinkLost as e:
            self.end(str(e))
        except Exception as e:  # nobody else would notice
            self.end(f"its sending thread failed: {e!r}")

    def _mirror(self, i: int, now: float) -> None:
        for n, (part, number, arrays) in enumerate(self.mirrors[i].changes(now)):
            if n == 0 and self.mirrors[i].last:
                for other in range(i):
                    self._mirror(other, now)
            self.before(self.mirrors[i], part, number)
            self.send(DATA, i, part, number, arrays)

    def flush(self) -> None:
        """In the sending thread: also what is not due yet."""
        for i in range(len(self.mirrors)):
            self._mirror(i, math.inf)

    def flush_counters(self) -> None:
        for i, mirror in enumerate(self.mirrors):
            if isinstance(mirror, CountersMirror):
                self._mirror(i, math.inf)

    def seat(
        self,
        seat: RemoteSeat,
        number: int,
        mirrors: Sequence[tuple[int, str]],
        files: Sequence[tuple[str, Path]],
        fresh: bool,
    ) -> None:
        """home, in the sending thread: have the other side start worker `number`. mirrors: of what it holds, and as
        what. files: of the checkpoint that it goes on from. fresh: none at this seat was there before, so it gets what
        is here of the seat.
        """
        for name, path in files:
            self.send_file(f"resume/{name}", path)
        ends = [(self.mirrors[i], i, replace(seat, end=end)) for i, end in mirrors]
        for mirror, i, as_what in ends if fresh else ():
            for frame in mirror.begin(as_what):
                self.send(DATA, i, *frame)
        for mirror, _, as_what in ends:
            mirror.sit(as_what)
        who = {"role": seat.role, "index": seat.index, "row": seat.row, "group": list(seat.group)}
        self.send_json(START, {"number": number, "mirrors": list(mirrors), **who})

    def close(self) -> None:
        """home, in the sending thread."""
        self.send(CLOSE)
        self.end("")

    def request(self, what: Callable[[], None]) -> None:
        self.requests.append(what)
        self.bell.post()

    # ---------------------------------------------------------------------------------------- receiving

    def receive(self) -> None:
        """The receiving thread, until the link ends."""
        head = bytearray(HEAD.size)
        try:
            while not self.closed.is_set():
                self.received += _fill(self.sock, memoryview(head))
                magic, kind, mirror, part, i, n = HEAD.unpack(head)
                if magic != MAGIC:
                    raise LinkLost("what came is no frame")
                if kind == DATA:
                    self._take(self.mirrors[mirror], part, i, n)
                elif kind == BEAT:
                    if self.echoes:
                        self.send(ECHO)
                elif kind == ECHO:
                    self.round_trip = time.perf_counter() - self.beaten
                elif kind == CLOSE:
                    self.end("")
                else:
                    self.on[kind](json.loads(read_exactly(self.sock, n)))
        except Closed:
            self.end("")
        except LinkLost as e:
            self.end(str(e))
        except Exception as e:
            self.end(f"its receiving thread failed: {e!r}")

    def _take(self, mirror: MachineCopy, part: int, i: int, n: int) -> None:
        views = views_of(mirror.places(part, i))
        if sum(map(len, views)) != n:
            raise LinkLost(f"a frame that cannot be: {n} bytes for {part}, {i} of {type(mirror).__name__}")
        for view in views:
            self.received += _fill(self.sock, view)
        mirror.arrived(part, i)

    def _take_file(self, head: dict[str, Any]) -> None:
        name, pieces = head["name"], self._pieces(head["bytes"])
        if self.root is None or not self.accepts.fullmatch(name):
            raise LinkLost(f"a file named {name!r}")
        try:
            if not self._is_late(name):
                _write_pieces(self.root / name, pieces)
        except FileNotFoundError:  # the checkpoint was made meanwhile, without this part
            pass
        except OSError as e:
            if self.dropped is None:
                raise LinkLost(f"{name}: {e.strerror or e}") from None
            self.dropped(f"{name} could not be written: {e.strerror or e}")
        for _ in pieces:  # what follows is another frame
            pass

    def _pieces(self, left: int) -> Iterator[memoryview]:
        """What comes of a file of so many bytes."""
        buffer = memoryview(bytearray(CHUNK))
        while left:
            got = _fill(self.sock, buffer[: min(left, CHUNK)])
            left -= got
            yield buffer[:got]

    def _is_late(self, name: str) -> bool:
        """Whether the checkpoint was made without this part. Only actors' parts are not waited for; the checkpoint of
        the beginning has none, and update 0 may be saved again.
        """
        found = ACTORS.match(name)
        made = (self.root / "checkpoints").glob(f"{found[1]}*") if found and self.root else ()
        return any(not path.name.endswith("-steps-0") for path in made)

    # ------------------------------------------------------------------------------------------- ending

    def end(self, why: str) -> None:
        """This end is closed; why: where that was nobody's wish."""
        if not self.closed.is_set():
            self.why = why
            self.closed.set()
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
            self.bell.post()

    def run(self) -> str:
        """Serve until it ends; why."""
        receiving = threading.Thread(target=self.receive, daemon=True)
        receiving.start()
        self.serve()
        receiving.join()
        self.sock.close()
        return self.why

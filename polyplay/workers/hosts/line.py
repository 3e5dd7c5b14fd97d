"""Line: the connection between the main machine and another machine, for rollouts, weights and counts.

A line uses `multiprocessing.connection`. Both ends prove that they know the run's key, which they got through Ray. A
message has a header in JSON and arrays. Nothing is unpickled. Each end sends a heartbeat (beat) every second. If an end
receives nothing for `timeout` seconds, it considers the other end lost.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Any

import numpy as np

from polyplay.core import platform
from polyplay.core.errors import Closed
from polyplay.core.shared_memory import Semaphore

if TYPE_CHECKING:
    from polyplay.workers.hosts.traffic import Traffic

BEAT_EVERY, TICK = 1.0, 0.1  # seconds between heartbeats; seconds between checks for changes that no semaphore signals
GATHER = 1e-4  # seconds to gather changes after a bell (semaphore): each message costs 100 µs of work
TRIES = 5  # waits for a message, each of timeout/TRIES: if this process is suspended, only one wait expires
LARGE, ALIGNED = 1 << 17, 8  # least bytes of an array that is sent separately; alignment of smaller arrays
BEAT, ECHO, CLOSE, LOAD = "beat", "echo", "close", "load"  # kinds of messages
START, SIGNAL, WORD, ENDED = "start", "signal", "word", "ended"  # kinds of messages about workers
Message = tuple[Any, ...]  # entries that are sent in JSON, and last a list of arrays
_encode, _decode = json.JSONEncoder(separators=(",", ":")).encode, json.JSONDecoder().raw_decode
_dtype = functools.cache(np.dtype)


class LineLost(Exception):
    """Error: the other end of a line has closed the line, sends nothing, or does not know the run's key."""


class Line:
    """One end of a line (connection between two machines). The constructor raises LineLost if the other end does not
    know the key. `send` and `receive` raise LineLost if the other end has closed, or is silent for `timeout` seconds.
    """

    def __init__(self, sock: socket.socket, timeout: float, key: bytes, listens: bool):
        sock.settimeout(None)
        span = struct.pack("ll", int(timeout), int(timeout % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, span)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout, self._sock, self._connection = timeout, sock, Connection(sock.dup().detach())
        self._lock, self._ready = threading.Lock(), platform.reader_of(self._connection.fileno())
        self.sent = self.received = 0  # bytes so far
        self._large: dict[tuple[int, int], np.ndarray] = {}  # reused memory for large arrays that arrive
        try:
            first, second = (deliver_challenge, answer_challenge)[:: 1 if listens else -1]
            first(self._connection, key)
            second(self._connection, key)
        except (AuthenticationError, OSError, EOFError, ValueError, AssertionError) as e:
            self.close()
            raise LineLost(f"the other end does not know this run's key ({e or type(e).__name__})") from None

    def _lost(self, e: OSError | EOFError, what: str) -> LineLost:
        why = "the connection was closed" if isinstance(e, EOFError) else e.strerror or str(e)
        return LineLost(f"nothing {what} for {self.timeout:g} s" if isinstance(e, BlockingIOError) else why)

    def send(self, messages: Iterable[Message]) -> None:
        """Send messages. Each block of bytes holds the headers and small arrays. Large arrays follow their block."""
        heads, small = list[Any](), list[bytes]()
        for *head, arrays in messages:
            large = [x for x in arrays if x.nbytes >= LARGE]
            heads.append([*head, [(x.dtype.str, x.shape) for x in arrays]])
            small += [x.tobytes() + bytes(-x.nbytes % ALIGNED) for x in arrays if x.nbytes < LARGE]
            if large:  # send now: the next message may reuse the memory of these arrays
                self._write(heads, small, large)
                heads, small = [], []
        if heads:
            self._write(heads, small, [])

    def _write(self, heads: list[Any], small: list[bytes], large: list[np.ndarray]) -> None:
        about = _encode(heads).encode()
        block = b"".join([about, b" " * (~len(about) % ALIGNED), b"\n", *small])
        try:
            with self._lock:
                self._connection.send_bytes(block)
                for x in large:
                    self._sock.sendall(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)
                self.sent += len(block) + sum(x.nbytes for x in large)
        except (OSError, EOFError) as e:
            raise self._lost(e, "could be sent") from None

    def receive(self) -> list[Message]:
        """Return the messages that arrive next. The next call may overwrite the large arrays in these messages."""
        try:
            if not any(self._ready(self.timeout / TRIES) for _ in range(TRIES)):
                raise BlockingIOError
            data = bytearray(self._connection.recv_bytes())  # a bytearray, so that the received arrays are writable
            self.received, at, messages = self.received + len(data), data.index(b"\n") + 1, list[Message]()
            for *head, shapes in _decode(data[:at].decode())[0]:
                messages.append((*head, arrays := list[np.ndarray]()))
                for kind, shape in shapes:
                    size = (dtype := _dtype(kind)).itemsize * math.prod(shape)
                    if size < LARGE:
                        x, at = np.frombuffer(data, np.uint8, size, at), at + size + -size % ALIGNED
                    else:
                        # reused, because new memory takes longer than the data; `recv_bytes_into` would copy twice
                        place = len(arrays), size.bit_length()
                        x, left = self._large.setdefault(place, np.empty(1 << place[1], np.uint8))[:size], size
                        while left:
                            if not (n := self._sock.recv_into(x.data[-left:])):
                                raise EOFError
                            left -= n
                        self.received += size
                    arrays.append(x.view(dtype).reshape(shape))
            return messages
        except (OSError, EOFError) as e:
            raise self._lost(e, "came") from None

    def close(self) -> None:
        """Shut the connection down, which ends the waits at both ends."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def free(self) -> None:
        """Release the sockets of this end."""
        self._connection.close()
        self._sock.close()


def connect(address: tuple[str, int], key: bytes, timeout: float) -> Line:
    """Connect to a machine that accepts lines. Return this end of the line. Raises LineLost, OSError."""
    return Line(socket.create_connection(address, timeout), timeout, key, listens=False)


def accept_lines(address: str, key: bytes, timeout: float) -> tuple[socket.socket, queue.SimpleQueue[Line]]:
    """Accept connections until the returned socket is shut down. The returned queue gets a line for each connection
    whose other end knows the key. Separate threads check the keys, so that no connection delays another.
    """
    listener, proven = socket.create_server((address, 0)), queue.SimpleQueue[Line]()

    def let_in(sock: socket.socket) -> None:
        with contextlib.suppress(LineLost, OSError):
            proven.put(Line(sock, timeout, key, listens=True))

    def accept() -> None:
        with contextlib.suppress(OSError), listener:
            while True:
                threading.Thread(target=let_in, args=listener.accept()[:1], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener, proven


class LineEnd:
    """One end of a line, with two threads. One thread receives. The other thread sends changes of shared data, whenever
    the semaphore `bell` is posted. `on`: functions that handle messages, by the kind of message.
    """

    def __init__(self, line: Line, traffic: Traffic, bell: Semaphore, on: Mapping[str, Callable[[Any], None]]):
        self.line, self.traffic, self.bell, self.why, self.round_trip = line, traffic, bell, "", 0.0
        self.on: dict[str, Callable[[Any], None]] = {BEAT: self._beat, ECHO: self._echo, CLOSE: self.end, **on}
        self.closed = threading.Event()
        self.each_beat: Callable[[], None] = lambda: None  # called by the sending thread at each heartbeat
        self.requests = queue.SimpleQueue[Callable[[], None]]()  # functions that the sending thread calls

    def tell(self, kind: str, value: Any = None) -> None:
        """Send a message with a kind and a value. Raises LineLost."""
        self.line.send([(kind, value, [])])

    def request(self, what: Callable[[], None]) -> None:
        self.requests.put(what)
        self.bell.post()

    def _serve(self) -> None:
        beat = 0.0
        while not self.closed.is_set():
            if (now := time.monotonic()) >= beat:
                beat = now + BEAT_EVERY
                self.tell(BEAT, now)
                self.each_beat()
            while not self.requests.empty():
                self.requests.get()()
            self.line.send(self.traffic.news(now))
            time.sleep(GATHER * self.bell.wait(TICK))
            while self.bell.wait(0.0):  # one pass of the loop serves all signals
                pass

    def _receive(self) -> None:
        while not self.closed.is_set():
            for message in self.line.receive():
                if len(message) == 4:
                    self.traffic.land(message)
                else:
                    self.on[message[0]](message[1])

    def _beat(self, sent: float) -> None:
        if self.traffic.away:  # only the end on the other machine answers
            self.request(functools.partial(self.tell, ECHO, sent))

    def _echo(self, sent: float) -> None:
        self.round_trip = time.monotonic() - sent

    def _guard(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except Closed:
            self.end()
        except LineLost as e:
            if loop == self._serve:  # the receiving thread may still get the reason from the other end
                self.closed.wait(BEAT_EVERY)
            self.end(str(e))
        except Exception as e:  # without this, no log would show the exception
            self.end(f"a thread of its line failed: {e!r}", tell=True)

    def end(self, why: str | None = "", tell: bool = False) -> None:
        """Close this end. `why`: reason of a failure, or "". `tell`: also send `why`, so that the other end closes."""
        if not self.closed.is_set():
            self.why = why or ""
            self.closed.set()
            if tell:
                with contextlib.suppress(LineLost):
                    self.tell(CLOSE, why)
            self.line.close()
            self.bell.post()

    def run(self) -> str:
        """Send and receive until the line ends. Return the reason of a failure, or an empty string."""
        receiving = threading.Thread(target=self._guard, args=(self._receive,), daemon=True)
        receiving.start()
        self._guard(self._serve)
        receiving.join()
        self.line.free()
        return self.why

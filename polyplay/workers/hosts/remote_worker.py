"""A worker on another machine, with what the crew uses of a process."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import connection

from polyplay.common.forkserver import LOST, ending_text


class RemoteWorker:
    """sentinel: readable once it has ended. pipe: what it says. Its machine's thread tells it both."""

    pid = None  # of this machine

    def __init__(self, machine: str, send_signal: Callable[[int], None]):
        self.machine, self._send_signal = machine, send_signal
        self.pipe, self._said = connection.Pipe(duplex=False)
        self.sentinel, self._end = os.pipe()
        self.exitcode: int | None = None
        self.lost_first = True  # of those that were lost with a machine at once: the one that counts
        self._how, self._over = "", threading.Event()

    def say(self, kind: str, text: str) -> None:
        with contextlib.suppress(OSError):
            self._said.send((kind, text))

    def ended(self, how: str, code: int | None) -> None:
        if not self._over.is_set():
            self._how, self.exitcode = how, LOST if code is None else code
            self._said.close()
            os.close(self._end)
            self._over.set()

    def is_alive(self) -> bool:
        return not self._over.is_set()

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        self._send_signal(number)

    def ending(self) -> str:
        return self._how or ending_text(self.exitcode)

    def close(self) -> None:
        os.close(self.sentinel)

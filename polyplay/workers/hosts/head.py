"""Whether the head of a Ray cluster answers. Ray's own client ends this process a minute after it does not."""

from __future__ import annotations

import socket
import threading
import time

EVERY, TRIES = 2.0, 10  # seconds from one try to the next, and that one may take; tries in vain until it is lost
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # gRPC's: it has to be answered


def answers(address: str, seconds: float = EVERY) -> bool:
    """Whether somebody at HOST:PORT does anything with a greeting: a process that is stopped would not."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), seconds) as sock:
            sock.settimeout(seconds)
            sock.sendall(GREETING)
            sock.recv(1)
    except (OSError, ValueError, OverflowError):
        return False
    return True


class HeadWatch:
    """A thread that tries again and again. It counts tries, not seconds: this process may have been stopped itself."""

    def __init__(self, address: str, every: float = EVERY, tries: int = TRIES):
        self.address, self.every, self.tries = address, every, tries
        self.failed = 0  # tries in vain, since the last answer
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        pause = self.every
        while not self._over.wait(pause):
            begun = time.monotonic()
            self.failed = 0 if answers(self.address, self.every) else self.failed + 1
            pause = max(0.0, begun + self.every - time.monotonic())

    def failing(self) -> str:
        """Why the run can't go on; "": it can."""
        if self.failed < self.tries:
            return ""
        silent = self.tries * self.every
        return f"--hosts: the head of the Ray cluster, {self.address}, has given no answer for {silent:.0f} s"

    def stop(self) -> None:
        self._over.set()

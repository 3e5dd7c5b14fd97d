"""A Go program in a process of its own that answers commands of the Go Text Protocol, version 2."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from subprocess import PIPE

from polyplay.common.files import Row

SECONDS = 60.0  # for an answer
QUIT = 2.0  # for its end
LONGEST = 1 << 20  # bytes of an answer
TOLD = 200  # letters of what a program said, in a message
TIMEOUT, ILLEGAL, CRASH = "timeout", "illegal move", "crash"


class GtpFault(Exception):
    """A program's answer to a command is late (TIMEOUT), no legal move or a refusal (ILLEGAL), or no GTP, as where it
    has ended (CRASH). After an illegal move it can be asked again.
    """

    def __init__(self, kind: str, command: str, answer: str):
        said, late = " ".join(answer.split())[:TOLD], f" in {SECONDS:g} seconds" if kind == TIMEOUT else ""
        self.kind, shown = kind, f"'{said}'" if said else "nothing"
        self.answered = f"it answered {command} with {shown}{late}"
        super().__init__(f"{kind}: {self.answered}")


def program_line(about: Row) -> str:
    """What came of a program's games, in one line for people."""
    said, lost = f"{about['program']}: agreed on {about['agreed']} of {about['scored']} winners", len(about["faults"])
    return f"{said}, lost {lost} game{'s' * (lost != 1)} by its own fault" if lost else said


class GtpProgram:
    """Raises OSError: it can't be started."""

    def __init__(self, command: Sequence[str]):
        started = subprocess.Popen(command, 0, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True)
        assert started.stdin is not None
        assert started.stdout is not None
        assert started.stderr is not None
        self._process, self._in, self._out, self._err = started, started.stdin, started.stdout, started.stderr
        self._selector, self._number, self._answer, self._complaint = selectors.DefaultSelector(), 0, b"", b""
        for stream in (self._out, self._err):
            self._selector.register(stream, selectors.EVENT_READ)
        self.lost = False  # whether it has been ended

    def ask(self, command: str) -> str:
        """Its answer, without status and number. Raises GtpFault."""
        self._number += 1
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended: so has its output
                self._in.write(f"{self._number} {command}\n".encode())
            return self._parse(command, self._read(command))
        except GtpFault as e:
            if e.kind != ILLEGAL:
                self.close(0)
            raise

    def close(self, seconds: float = QUIT) -> None:
        """End it, and whatever it started. It has so many seconds to quit."""
        if self.lost:
            return
        self.lost = True
        with contextlib.suppress(OSError):
            self._in.write(b"quit\n")
            self._in.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        for stream in (self._out, self._err):
            stream.close()

    def _read(self, command: str) -> str:
        """An answer with its status: what stands before an empty line."""
        until, self._answer = time.monotonic() + SECONDS, self._answer.replace(b"\r", b"").lstrip(b"\n")
        while b"\n\n" not in self._answer:
            if len(self._answer) > LONGEST:
                raise GtpFault(CRASH, command, self._answer[:TOLD].decode(errors="replace"))
            left = until - time.monotonic()
            ready = self._selector.select(left) if left > 0 else []
            if not ready:
                raise GtpFault(TIMEOUT, command, "")
            for key, _ in ready:
                self._take(key.fileobj is self._out, os.read(key.fd, 1 << 16), command)
        answer, _, self._answer = self._answer.partition(b"\n\n")
        return answer.decode(errors="replace")

    def _take(self, answer: bool, found: bytes, command: str) -> None:
        if answer and not found:
            raise GtpFault(CRASH, command, self._last_words())
        if answer:
            self._answer = (self._answer + found.replace(b"\r", b"")).lstrip(b"\n")
        elif found:
            self._complaint = (self._complaint + found)[-4096:]
        else:
            self._selector.unregister(self._err)

    def _last_words(self) -> str:
        """Its last line on standard error."""
        os.set_blocking(self._err.fileno(), False)
        with contextlib.suppress(OSError):
            self._complaint += self._err.read(1 << 16) or b""
        lines = self._complaint.decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")

    def _parse(self, command: str, answer: str) -> str:
        status, (number, _, text) = answer[:1], answer[1:].partition(" ")
        if "\n" in number:  # `=7` and its text on lines below
            number, _, text = answer[1:].partition("\n")
        if status not in ("=", "?") or number != str(self._number):
            raise GtpFault(CRASH, command, answer)
        if status == "?":
            raise GtpFault(ILLEGAL, command, f"? {text}")
        return text.strip()

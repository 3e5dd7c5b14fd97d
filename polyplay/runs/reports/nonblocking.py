"""A text file whose writes never wait: a thread passes them on to the terminal, however slow it is."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from typing import TextIO


class NonBlockingWriter:
    """Replaces `file` behind a console. What is written becomes due at `flush`, in order.

    backlog: pieces not yet passed on. gone: the other end is closed (a terminal, a pipe); from then on everything
    goes to /dev/null, also what others write to the file, so that the interpreter's last flush does not change the
    exit status. A file without a descriptor (a recording) is written to at once.
    """

    def __init__(self, file: TextIO) -> None:
        self.file, self.gone = file, False
        self.encoding = getattr(file, "encoding", None) or "utf-8"
        self.errors = getattr(file, "errors", None) or "strict"
        self.parts: list[str] = []
        self.due: queue.Queue[bytes] = queue.Queue()
        self.thread: threading.Thread | None = None
        try:
            file.flush()  # what others wrote before comes first
            self.fd = file.fileno()
        except (OSError, ValueError, AttributeError):
            self.fd = -1

    @property
    def backlog(self) -> int:
        return self.due.unfinished_tasks

    def write(self, text: str) -> int:
        self.parts.append(text)
        return len(text)

    def flush(self) -> None:
        text, self.parts = "".join(self.parts), []
        if self.gone or not text:
            return
        if self.fd < 0:
            try:
                self.file.write(text)
            except (OSError, ValueError):  # it was closed
                self.gone = True
        else:
            self.due.put(text.encode(self.encoding, self.errors))
            if self.thread is None:
                self.thread = threading.Thread(target=self._pass_on, name="polyplay-output", daemon=True)
                self.thread.start()

    def drain(self, seconds: float) -> None:
        """Wait until everything is passed on, for at most so long."""
        until = time.monotonic() + seconds
        while self.backlog and time.monotonic() < until:
            time.sleep(0.002)

    def isatty(self) -> bool:
        return bool(self.file.isatty())

    def fileno(self) -> int:
        return self.file.fileno()

    def _pass_on(self) -> None:
        while True:
            data = self.due.get()
            try:
                while data and not self.gone:
                    data = data[os.write(self.fd, data) :]
            except OSError:
                self.gone = True
                with contextlib.suppress(OSError), open(os.devnull, "wb") as null:
                    os.dup2(null.fileno(), self.fd)
            self.due.task_done()

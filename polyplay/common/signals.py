"""What SIGINT, SIGTERM and SIGHUP do to a command, from its first instruction to its exit.

Until a verb says otherwise the command ends at once. A run that has begun saves first (runs.session); other verbs get
an exception. Nothing heavy is imported: this is the first thing that a command loads.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from polyplay.common import processes

Handler = Callable[[int, FrameType | None], Any]
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IMPORTS = "<frozen importlib._bootstrap>"  # the file of the code that imports
AGAIN = 1.0  # seconds after the line about one from which on another counts: schedulers send several at once


class Stopped(KeyboardInterrupt):
    """A signal asks to end. number: which."""

    def __init__(self, number: int):
        super().__init__(name(number))
        self.number = number


def name(number: int) -> str:
    return signal.Signals(number).name


def install(handler: Handler | signal.Handlers) -> dict[signal.Signals, Any]:
    """From now on `handler` gets them; who got them before. Under nohup SIGHUP stays ignored."""
    heeded = [n for n in ENDING if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    return {n: signal.signal(n, handler) for n in heeded}


@contextlib.contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """`handler` gets them meanwhile; elsewhere than in the main thread nothing changes. A command that would have ended
    at once before ignores them after: it has done its work, and its status stands.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = install(handler)
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, signal.SIG_IGN if handler_before is end_at_once else handler_before)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """They wait until the end of this block; a process that is started meanwhile begins with them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore() -> None:
    """For processes whose main process decides, and for a command that has ended."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Raise Stopped; within an import, where an exception could be lost or become another one, end the process."""
    if _within_import(frame):
        _end(number, f"ended by {name(number)}")
    raise Stopped(number)


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Nothing is worth saving yet. An exception could be lost, or printed, within an import: none is raised."""
    _end(number, f"{name(number)}: ended before anything had begun")


def _end(number: int, text: str) -> NoReturn:
    ignore()
    processes.end_descendants()
    with contextlib.suppress(OSError):
        os.write(2, f"polyplay: {text}\n".encode())
    os._exit(128 + number)


def _within_import(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != IMPORTS:
        frame = frame.f_back
    return frame is not None

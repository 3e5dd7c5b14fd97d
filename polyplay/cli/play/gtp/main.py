"""`polyplay play RUN --gtp`: the engine between stdin and stdout."""

from __future__ import annotations

import contextlib
import io
import queue
import sys
import threading
from collections.abc import Callable
from typing import TextIO

from polyplay.cli.play.gtp.engine import GtpEngine


def answer_lines(engine: GtpEngine, source: TextIO, out: TextIO) -> None:
    """Answer line by line until `quit` or the end of the source. An analysis ends as soon as there is another line."""
    if isinstance(source, io.TextIOWrapper):
        source.reconfigure(errors="replace")  # no byte is the end
    lines = queue.Queue[str | None]()
    threading.Thread(target=_read, args=(source, lines), daemon=True, name="gtp").start()
    while not engine.over and (line := lines.get()) is not None:
        for piece in engine.answer(line):
            out.write(piece)
            out.flush()
            if engine.endless and not lines.empty() and piece[:1] not in ("=", "?"):
                out.write("\n")
                break
        out.flush()


def _read(source: TextIO, lines: queue.Queue[str | None]) -> None:
    try:
        for line in source:
            lines.put(line)
    finally:
        lines.put(None)


def main(open_engine: Callable[[], GtpEngine]) -> None:
    """Only answers go to stdout: whatever else is printed goes to stderr. No clock runs before the first answer."""
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        engine = open_engine()
        engine.warm()
        answer_lines(engine, sys.stdin, out)

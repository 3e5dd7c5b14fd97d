"""A console for lines that stay and, on a terminal, a picture below them that is drawn anew.

If the terminal is closed, the run gets SIGHUP and ends as with SIGTERM; under nohup it goes on. Imports no torch.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

EVERY = 0.25  # seconds between two pictures
LIVE: dict[str, Any] = {"auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}


class Output:
    """Replaces `file` behind a console. gone: the other end is closed (a terminal, a pipe). From then on everything
    goes to /dev/null, also what others write to the file, so that the interpreter's last flush does not change the
    exit status.
    """

    def __init__(self, file: TextIO) -> None:
        self.file, self.gone = file, False

    @property
    def encoding(self) -> str:
        return self.file.encoding or "utf-8"

    def write(self, text: str) -> int:
        self._try(lambda: self.file.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self.file.flush)

    def isatty(self) -> bool:
        return self.file.isatty()

    def fileno(self) -> int:
        return self.file.fileno()

    def _try(self, write: Callable[[], object]) -> None:
        if self.gone:
            return
        try:
            write()
        except (OSError, ValueError):  # ValueError: it was closed
            self.gone = True
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), self.file.fileno())


class Screen:
    """`print` lines, `draw` the picture, `close`. live: with a picture (default: if the console is a terminal)."""

    def __init__(self, console: Console | None = None, live: bool | None = None) -> None:
        self.console = console or default_console()
        self.output = Output(self.console.file)  # type: ignore[arg-type] # typeshed's IO[str]
        self.console.file = self.output  # type: ignore[assignment]
        live = _is_terminal(self.console) if live is None else live
        self.live = Live(**LIVE, console=self.console) if live else None

    def print(self, what: RenderableType) -> None:
        """A line, or several, that stay."""
        print_all(self.console, [what])

    def draw(self, picture: Callable[[], RenderableType]) -> None:
        """Show the picture, if there is to be one."""
        if self.live is None:
            return
        if not self.live.is_started:
            self.live.start()
        self.live.update(picture(), refresh=True)

    def close(self) -> None:
        """Give the terminal back. May be called again."""
        live, self.live = self.live, None
        if live is not None and live.is_started:
            live.stop()


def default_console() -> Console:
    """Standard output; 120 columns where that is no terminal and COLUMNS does not say."""
    if isinstance(sys.stdout, io.TextIOWrapper) and "utf" not in sys.stdout.encoding.lower():
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 120
    return console


def _is_terminal(console: Console) -> bool:
    """FORCE_COLOR makes rich take a log file for a terminal; a panel needs a real one."""
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


def print_all(console: Console, lines: Iterable[RenderableType]) -> None:
    """Lines are left to the terminal to fold, so that a command or path in them can be copied whole."""
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, Text))

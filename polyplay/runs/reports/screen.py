"""A console that nobody waits for: lines that stay and, on a terminal, a picture below them that is drawn anew.

If the terminal takes no output (Ctrl-S, a pager), the run goes on. If it is closed, the run gets SIGHUP and ends as
with SIGTERM; under nohup it goes on.
Imports no torch.
"""

from __future__ import annotations

import io
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from polyplay.runs.reports.nonblocking import NonBlockingWriter

EVERY = 0.25  # seconds between two pictures
BACKLOG = 100  # pieces of output on their way at once; the newest 1000 lines beyond wait in `pending`
LIVE: dict[str, Any] = {"auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}


class Screen:
    """`print` lines, `draw` the picture, `close`. live: with a picture (default: if the console is a terminal)."""

    def __init__(self, console: Console | None = None, live: bool | None = None) -> None:
        self.console = console or default_console()
        self.output = NonBlockingWriter(self.console.file)  # type: ignore[arg-type] # typeshed's IO[str]
        self.console.file = self.output  # type: ignore[assignment]
        live = _is_terminal(self.console) if live is None else live
        self.live = Live(**LIVE, console=self.console) if live else None
        self.pending: deque[RenderableType] = deque(maxlen=1000)

    def print(self, what: RenderableType) -> None:
        """A line, or several, that stay."""
        self.pending.append(what)
        self._flush()

    def draw(self, picture: Callable[[], RenderableType]) -> None:
        """Show the picture, if there is to be one and the terminal has taken what was there before."""
        self._flush()
        if self.live is None or self.output.backlog:
            return
        if not self.live.is_started:
            self.live.start()
        self.live.update(picture(), refresh=True)

    def close(self) -> None:
        """Give the terminal back. May be called again."""
        live, self.live = self.live, None
        if live is not None and live.is_started:
            live.stop()
        self._flush()
        self.output.drain(0.5)

    def _flush(self) -> None:
        while self.pending and self.output.backlog < BACKLOG:
            print_all(self.console, [self.pending.popleft()])


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

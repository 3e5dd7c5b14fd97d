"""How far an evaluation is, shown on standard error; and its end before all games are over."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from polyplay.common import signals

if TYPE_CHECKING:  # it imports torch
    from polyplay.acting.play import PlayedGame, Watch

EVERY = 30.0  # seconds between two lines where standard error is no terminal


class GamesWatch:
    """Counts games and steps, and ends an evaluation after `max_steps` of all lanes together, or by a signal."""

    def __init__(self, max_steps: int | None = None):
        self.max_steps = max_steps
        self.games, self.steps, self.total = 0, 0, 0.0
        self.signal, self.ended = 0, ""  # ended: by what

    def step(self, found: list[PlayedGame], lanes: int) -> bool:
        """All lanes made a step, and these games ended in it. Whether to go on."""
        self.games, self.steps = self.games + len(found), self.steps + lanes
        self.total += sum(game.ret for game in found)
        if self.signal:
            self.ended = f"stopped by {signals.name(self.signal)}"
        elif self.max_steps is not None and self.steps >= self.max_steps:
            self.ended = f"--max-steps {self.max_steps:,} are over"
        return not self.ended

    @property
    def line(self) -> str:
        mean = f"mean return {self.total / self.games:,.2f}" if self.games else "none is over yet"
        return f"{mean} · {self.steps:,} steps"


@contextlib.contextmanager
def on_screen(watch: GamesWatch, episodes: int, console: Console | None = None) -> Iterator[Watch]:
    """A watch's `step` that shows its progress: a bar on a terminal, else a line every half a minute. Meanwhile the
    first signal ends the evaluation after the present step; another one, a second or more later, at once.
    """
    console = console or Console(stderr=True, highlight=False)
    columns = (TextColumn("games"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal)
    task, due = bar.add_task(watch.line, total=episodes), time.monotonic() + EVERY

    def step(found: list[PlayedGame], lanes: int) -> bool:
        nonlocal due
        going = watch.step(found, lanes)
        bar.update(task, completed=watch.games, description=watch.line)
        if not console.is_terminal and time.monotonic() >= due:
            due = time.monotonic() + EVERY
            console.print(f"{watch.games:,} of {episodes:,} games · {watch.line}", soft_wrap=True)
        return going

    with bar, signals.handled(_receiver(watch)):
        yield step


def _receiver(watch: GamesWatch) -> signals.Handler:
    warned = 0.0

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal warned
        if watch.signal:
            if time.monotonic() - warned >= signals.AGAIN:
                raise signals.Stopped(number)
            return
        watch.signal, warned = number, time.monotonic()
        what = "ending after this step; a second signal, at least 1 s later, ends without a score"
        with contextlib.suppress(OSError):  # a stream could wait for a lock that this thread holds
            os.write(2, f"\npolyplay: {signals.name(number)}: {what}\n".encode())

    return receive

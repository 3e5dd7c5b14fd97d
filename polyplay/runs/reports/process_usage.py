"""Memory and processor time of this process and all below it. Imports no torch."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable

import psutil


class Throttled:
    """The last result of `measure`, which is called so seldom that it takes no more than a `share` of the time: to read
    the memory of 20 processes takes 0.15 s.
    """

    def __init__(self, measure: Callable[[], float], share: float = 0.01, clock: Callable[[], float] = time.monotonic):
        self.measure, self.share, self.clock = measure, share, clock
        self.next, self.last = -math.inf, 0.0

    def __call__(self) -> float:
        before = self.clock()
        if before >= self.next:
            self.last = self.measure()
            now = self.clock()
            self.next = now + (now - before) / self.share
        return self.last


def _process_tree() -> list[psutil.Process]:
    root = psutil.Process()
    return [root, *root.children(recursive=True)]


def memory_mb() -> float:
    """Megabytes; pages that processes share count once (PSS) where the system counts so."""
    total = 0
    for process in _process_tree():
        with contextlib.suppress(psutil.Error):  # it has ended, or another user owns it
            info = process.memory_full_info()
            total += getattr(info, "pss", info.rss)
    return round(total / 2**20, 1)


def cpu_seconds() -> float:
    """Processor time of all processes, children that have ended included."""
    total = 0.0
    for process in _process_tree():
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total

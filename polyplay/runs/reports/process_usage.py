"""Memory and processor time of a process and all below it, this one unless another is named. Imports no torch."""

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


def process_tree(root: psutil.Process | None = None) -> list[psutil.Process]:
    """Empty if it has ended."""
    with contextlib.suppress(psutil.Error):
        root = root or psutil.Process()
        return [root, *root.children(recursive=True)]
    return []


def memory_mb(root: psutil.Process | None = None) -> float:
    """Megabytes; pages that processes share count once (PSS) where the system counts so."""
    return round(_total(root, _own_mb), 1)


def _own_mb(process: psutil.Process) -> float:
    info = process.memory_full_info()
    return float(getattr(info, "pss", info.rss)) / 2**20


def cpu_seconds(root: psutil.Process | None = None, ended: bool = True) -> float:
    """Processor time of all processes. ended: children that have ended included."""
    return _total(root, lambda process: sum(process.cpu_times()[: 4 if ended else 2]))


def _total(root: psutil.Process | None, of: Callable[[psutil.Process], float]) -> float:
    total = 0.0
    for process in process_tree(root):
        with contextlib.suppress(psutil.Error):  # it has ended, or another user owns it
            total += of(process)
    return total

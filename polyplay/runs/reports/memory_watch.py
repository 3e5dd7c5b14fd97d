"""Memory of a run's processes: all of it, and which of them rise without end. Imports no torch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import psutil

from polyplay.runs.reports.process_usage import Throttled, process_memory

if TYPE_CHECKING:
    from polyplay.workers.crew import Crew

MOST = 64  # samples kept of a process
LEAST_SECONDS, LEAST_MB, LEAST_RATE = 600.0, 64.0, 20.0  # what is watched for less, or rises by less (an hour), is none
WARM_UP, PARTS, STEADY = 0.2, 4, 0.7
MB = 2**20


class MemoryTrend:
    """What one process used over its life: a few samples, evenly spread."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []  # (seconds, MB)
        self.apart = 0.0

    def add(self, seconds: float, mb: float) -> None:
        if self.samples and seconds < self.samples[-1][0] + self.apart:
            return
        self.samples.append((seconds, mb))
        if len(self.samples) > MOST:
            self.samples = self.samples[::2]
            self.apart = (self.samples[-1][0] - self.samples[0][0]) / (MOST // 2)

    def leak(self) -> float:
        """MB per hour, if the memory rises without end; else 0.

        The first fifth of the time is warming up. The rest has four parts: from each to the next the least that was
        used must have risen by 0.7 of the mean rise or more. So what settles, comes at once or swings is no leak.
        """
        begin, end = (self.samples[0][0], self.samples[-1][0]) if self.samples else (0.0, 0.0)
        if end - begin < LEAST_SECONDS:
            return 0.0
        begin += WARM_UP * (end - begin)
        part = (end - begin) / PARTS
        found = [[mb for t, mb in self.samples if 0 <= t - begin - i * part <= part] for i in range(PARTS)]
        if not all(found):
            return 0.0
        lows = [min(values) for values in found]
        rise, rate = lows[-1] - lows[0], (lows[-1] - lows[0]) / ((PARTS - 1) * part) * 3600
        steady = min(b - a for a, b in pairwise(lows)) >= STEADY * rise / (PARTS - 1)
        return rate if steady and rise >= LEAST_MB and rate >= LEAST_RATE else 0.0


class MemoryWatch:
    """Called, it gives the megabytes of all processes of a crew, measured now and then. `leaking`: how fast those that
    rise without end do so together, in MB per hour; `news` has a line for each, and another whenever it has doubled.

    Processes that hold a replay are left out: theirs rises until it is full.
    """

    def __init__(self, crew: Crew, clock: Callable[[], float] = time.monotonic):
        self.crew, self.clock = crew, clock
        self.trends: dict[tuple[int, float], MemoryTrend] = {}  # by process number and when it began
        self.warned: dict[tuple[int, float], float] = {}  # what it used at the last warning
        self.leaking, self.lines = 0.0, list[str]()
        self.total = Throttled(self._measure)

    def __call__(self) -> float:
        return self.total()

    def news(self) -> Iterator[str]:
        while self.lines:
            yield self.lines.pop(0)

    def _measure(self) -> float:
        total, now, leaking, there = 0.0, self.clock(), 0.0, set()
        workers, filling = self._workers()
        for process, shared, own in process_memory():
            total += shared
            with contextlib.suppress(psutil.Error):  # it has ended
                key = process.pid, process.create_time()
                if process.pid in filling:
                    continue
                there.add(key)
                trend = self.trends.setdefault(key, MemoryTrend())
                trend.add(now, own)
                if rate := trend.leak():
                    leaking += rate
                    self._warn(key, own, rate, name_of(process, workers))
        self.trends = {key: trend for key, trend in self.trends.items() if key in there}
        self.leaking = round(leaking, 1)
        return round(total, 1)

    def _workers(self) -> tuple[dict[int, str], set[int]]:
        """By process number what a worker is called; and whose replay may be filling."""
        names, filling, main = {psutil.Process().pid: "the main process"}, set(), psutil.Process().pid
        for role in self.crew.roles:
            pids = {getattr(w.runs, "pid", None) or main: w.ctx.index for w in role.workers.values()}
            names = {**{pid: f"{role.name} {i}" for pid, i in pids.items()}, **names}
            filling |= set(pids) if role.held_replay else set()
        return names, filling

    def _warn(self, key: tuple[int, float], mb: float, rate: float, name: str) -> None:
        if mb < 2 * self.warned.get(key, 0.0):
            return
        self.warned[key] = mb
        hours = psutil.virtual_memory().available / MB / rate
        self.lines.append(
            f"{name} (process {key[0]}): its memory grows by {rate:,.0f} MB per hour and is {mb:,.0f} MB now; "
            f"at this rate the machine's memory is full in {hours:,.1f} h"
        )


def name_of(process: psutil.Process, workers: dict[int, str]) -> str:
    """What a process is in a run: a worker, or what one of them started."""
    if process.pid in workers:
        return workers[process.pid]
    above = next((workers[p.pid] for p in process.parents() if p.pid in workers), "the run")
    return f"an environment process of {above}"

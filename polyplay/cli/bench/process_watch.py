"""CPU, memory and rate of a run, measured from outside."""

from __future__ import annotations

import time
from itertools import pairwise

import psutil

from polyplay.common.files import Row
from polyplay.runs.reports.process_usage import Throttled, cpu_seconds, memory_mb, process_tree

SHARE = 0.02  # of the time that sampling memory may take: with 60 processes it is not free

Mark = tuple[Row, tuple[float, float, float]]  # a line of metrics.jsonl, and ProcessWatch.cpu() when it came


class ProcessWatch:
    """CPU and memory of a process and all below it."""

    def __init__(self, pid: int):
        self.root = psutil.Process(pid)
        self.peak_mb, self.processes = 0.0, 0
        self.sample_memory = Throttled(self._sample_memory, SHARE)

    def _sample_memory(self) -> float:
        """Sum of PSS: pages that several processes share count once. The greatest so far."""
        self.peak_mb = max(self.peak_mb, memory_mb(self.root))
        self.processes = max(self.processes, len(process_tree(self.root)))
        return self.peak_mb

    def cpu(self) -> tuple[float, float, float]:
        """(now, CPU seconds of the tree, CPU seconds of the machine that were not idle), all totals."""
        own, t = cpu_seconds(self.root, ended=False), psutil.cpu_times()
        return time.monotonic(), own, sum(t) - t.idle - t.iowait - t.guest - t.guest_nice


def started_at(marks: list[Mark]) -> float:
    """When the first steps were reported: 16 environments may take their time to come up."""
    return next((row["wall_seconds"] for row, _ in marks if row["steps"] > 0), float("inf"))


def watched_rate(marks: list[Mark], warm: float, window: float, slack: float = 0.5, turn: int = 1) -> Row | None:
    """From the first line at or after `warm` seconds to the first one `window` seconds later, both where the counter
    had just moved: where rollouts are long it jumps. "lines" are these two and those between. None: there is no
    such window yet. A window may be `slack` seconds short.

    turn: updates that follow one another without a step, as PPO's on a rollout do. Both lines are then the first after
    such a turn: steps come while acting only, so a window that ends in the midst of one counts too many or too few.
    """
    key, of = ("updates", turn) if turn > 1 else ("steps", 1)
    moved = [b for a, b in pairwise(marks) if b[0][key] // of > a[0][key] // of]
    begin = next((m for m in moved if m[0]["wall_seconds"] >= warm), None)
    if begin is None:
        return None
    last = begin[0]["wall_seconds"] + window - slack
    end = next((m for m in moved if m[0]["wall_seconds"] >= last and m is not begin), None)
    if end is None:
        return None
    wall = end[0]["wall_seconds"] - begin[0]["wall_seconds"]
    passed, own, busy = (b - a for a, b in zip(begin[1], end[1], strict=True))
    sps = (end[0]["steps"] - begin[0]["steps"]) / wall
    return {
        "sps": sps,
        "window_s": wall,
        "own_cores": own / passed,
        "others_cores": max(0.0, busy - own) / passed,
        "core_ms_per_step": 1000.0 * own / passed / sps if sps else None,
        "lines": [row for row, _ in marks if begin[0]["wall_seconds"] <= row["wall_seconds"] <= end[0]["wall_seconds"]],
    }

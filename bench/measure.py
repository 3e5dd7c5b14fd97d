"""Rate, memory and CPU of a program, all its processes together, that writes its progress as JSON lines."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from polyplay.record import read_lines

SLACK = 180.0  # seconds for start and end, besides warm-up and window: 64 processes that load torch take their time
LOOK = 1.0  # seconds between two looks at memory,
SHARE = 50.0  # and at least this many times what a look took: with 60 processes it is not free


class Watch:
    """CPU and memory of a process and all below it, seen from outside."""

    def __init__(self, pid: int):
        self.root = psutil.Process(pid)
        self.peak_mb, self.processes, self._next = 0.0, 0, 0.0

    def _tree(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return [self.root, *self.root.children(recursive=True)]
        return []

    def look(self) -> None:
        """Sum of PSS: pages that several processes share count once."""
        before = time.monotonic()
        if before < self._next:
            return
        total, tree = 0, self._tree()
        for process in tree:
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        self.peak_mb = max(self.peak_mb, total / 2**20)
        self.processes = max(self.processes, len(tree))
        now = time.monotonic()
        self._next = now + max(LOOK, SHARE * (now - before))

    def cpu(self) -> tuple[float, float, float]:
        """(now, CPU seconds of the tree, CPU seconds of the machine that were not idle), all totals."""
        own = 0.0
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                own += times.user + times.system
        t = psutil.cpu_times()
        return time.monotonic(), own, sum(t) - t.idle - t.iowait - t.guest - t.guest_nice


def versions(python: str, packages: Sequence[str]) -> str:
    """Of packages in another environment. Raises OSError, CalledProcessError."""
    each = f"f'{{n}} {{m.version(n)}}' for n in {list(packages)}"
    code = f"import importlib.metadata as m; print(', '.join({each}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def measure(
    words: Sequence[str], log: Path, warm: float, window: float, cwd: Path, stop: bool = False
) -> dict[str, Any]:
    """Run `words` until it ends by itself, or, with `stop`, until it has been seen long enough. `log` grows by lines
    with wall_seconds and steps.

    The rate is taken from the first line with new steps at or after `warm` seconds (with `stop`: after the first step)
    to the first such one `window` seconds later; "lines" are these two and those between. Raises RuntimeError with what
    the program said when it gave no such lines.
    """
    marks: list[tuple[dict[str, Any], tuple[float, float, float]]] = []
    limit = time.monotonic() + warm + window + SLACK
    with tempfile.TemporaryFile("w+") as spoken:
        child = subprocess.Popen(list(words), stdout=spoken, stderr=subprocess.STDOUT, cwd=cwd, start_new_session=True)
        try:
            watch = Watch(child.pid)
            while child.poll() is None and time.monotonic() < limit:
                watch.look()
                rows = list(read_lines(log))
                marks += [(row, watch.cpu()) for row in rows[len(marks) :]]
                if stop and _rate(marks, warm + _begun(marks), window) is not None:
                    break
                time.sleep(0.1)
        finally:
            _end(child)
        spoken.seek(0)
        text = spoken.read()
    answer = _rate(marks, warm + (_begun(marks) if stop else 0.0), window)
    if answer is None:
        what = f"no window of {window:g} s, exit status {child.returncode}"
        raise RuntimeError(f"{what}\n{' '.join(words)}\n{text[-3000:]}")
    return {**answer, "pss_mb": watch.peak_mb, "processes": watch.processes, "exit": child.returncode}


def _begun(marks: list[Any]) -> float:
    """When the first steps were seen: 16 environments may take their time to come up."""
    return next((row["wall_seconds"] for row, _ in marks if row["steps"] > 0), float("inf"))


def _rate(marks: list[Any], warm: float, window: float) -> dict[str, Any] | None:
    """Between two lines at which the counter had just moved: where rollouts are long it moves in jumps."""
    moved = [b for a, b in pairwise(marks) if b[0]["steps"] > a[0]["steps"]]
    begin = next((m for m in moved if m[0]["wall_seconds"] >= warm), None)
    if begin is None:
        return None
    last = begin[0]["wall_seconds"] + window - 0.5
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


def _end(child: subprocess.Popen) -> None:
    """It should have ended; if not, it and all that it started do now, even if we are told twice to stop."""
    try:
        if child.poll() is None:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

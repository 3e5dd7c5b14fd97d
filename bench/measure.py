"""Rate, memory and CPU of a program, all its processes together, that writes its progress as JSON lines."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyplay.cli.bench_measure import ProcessWatch, started_at, watched_rate
from polyplay.core.files import read_lines

SLACK = 180.0  # seconds for start and end, besides warm-up and window: 64 processes that load torch take their time


def versions(python: str, packages: Sequence[str]) -> str:
    """Of packages in another environment. Raises OSError, CalledProcessError."""
    each = f"f'{{n}} {{m.version(n)}}' for n in {list(packages)}"
    code = f"import importlib.metadata as m; print(', '.join({each}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def measure(
    words: Sequence[str], log: Path, warm: float, window: float, cwd: Path, stop: bool = False, turn: int = 1
) -> dict[str, Any]:
    """Run `words` until it ends by itself, or, with `stop`, until it has been seen long enough. `log` grows by lines
    with wall_seconds and steps.

    The rate is taken from the first line with new steps at or after `warm` seconds (with `stop`: after the first step)
    to the first such one `window` seconds later; "lines" are these two and those between. Lines that count updates, and
    none so far, are left out: what plays before it learns is faster. Raises RuntimeError with what
    the program said when it gave no such lines. turn: see rate().
    """
    marks: list[tuple[dict[str, Any], tuple[float, float, float]]] = []
    limit = time.monotonic() + warm + window + SLACK
    with tempfile.TemporaryFile("w+") as spoken:
        child = subprocess.Popen(list(words), stdout=spoken, stderr=subprocess.STDOUT, cwd=cwd, start_new_session=True)
        try:
            watch = ProcessWatch(child.pid)
            while child.poll() is None and time.monotonic() < limit:
                watch.sample_memory()
                rows = [row for row in read_lines(log) if row.get("updates", 1)]
                marks += [(row, watch.cpu()) for row in rows[len(marks) :]]
                if stop and watched_rate(marks, warm + started_at(marks), window, turn=turn) is not None:
                    break
                time.sleep(0.1)
        finally:
            end(child)
        spoken.seek(0)
        text = spoken.read()
    answer = watched_rate(marks, warm + (started_at(marks) if stop else 0.0), window, turn=turn)
    if answer is None:
        what = f"no window of {window:g} s, exit status {child.returncode}"
        raise RuntimeError(f"{what}\n{' '.join(words)}\n{text[-3000:]}")
    return {**answer, "pss_mb": watch.peak_mb, "processes": watch.processes, "exit": child.returncode}


def end(child: subprocess.Popen) -> None:
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

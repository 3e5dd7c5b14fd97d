"""How fast a system is: a real run of it, in a process and a directory of its own, watched for a while and ended.

`python -m polyplay.cli.bench.watched_run` is that run: the system and its keywords as a line of JSON. Imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from polyplay.cli.bench.process_watch import Mark, ProcessWatch, started_at, watched_rate
from polyplay.common.errors import UserError, WorkerLost
from polyplay.common.files import Row, read_lines

WARM = 2.0  # seconds after the first steps that don't count, at most
SLACK = 120.0  # seconds for the start, besides: 64 processes that load torch take their time
FRACTIONS = ("env", "infer", "learn", "replay", "wait")
NUMBERS = ("predict_batch", "train_batch", "lag_mean", "queue_depth")


def watched(system: str, keywords: Row, seconds: float, turn: int = 1) -> Row:
    """sps, own_cores, others_cores, time (fractions of its workers' wall time), and means of what it reports.

    Raises UserError and WorkerLost, with what the run printed. turn: see process_watch.watched_rate.
    """
    place = tempfile.TemporaryDirectory(prefix="polyplay-bench-", ignore_cleanup_errors=True)
    with place, open(Path(place.name, "output"), "w+") as output:
        run = Path(place.name, "run")
        often = max(0.25, min(1.0, seconds / 8)) if turn == 1 else 0.1  # several lines while a turn is acted
        request = {"system": system, "keywords": {**keywords, "run": str(run), "report_every": often}}
        words = [sys.executable, "-m", "polyplay.cli.bench.watched_run"]
        child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        try:
            with contextlib.suppress(BrokenPipeError):
                print(json.dumps(request), file=child.stdin, flush=True)
            found = _watch(child, run / "metrics.jsonl", seconds, turn)
        finally:
            end(child)
        if found is None:
            output.seek(0)
            raise _complaint(system, child.returncode, output.read())
        return summed(found)


def _watch(child: subprocess.Popen[str], log: Path, seconds: float, turn: int) -> Row | None:
    marks: list[Mark] = []
    watch, limit = ProcessWatch(child.pid), time.monotonic() + SLACK + WARM + 2 * seconds
    while child.poll() is None and time.monotonic() < limit:
        rows = list(read_lines(log))
        if len(rows) > len(marks):
            times = watch.cpu()
            marks += [(row, times) for row in rows[len(marks) :]]
            found = watched_rate(marks, started_at(marks) + min(WARM, seconds), seconds, min(0.5, seconds / 8), turn)
            if found is not None and found["sps"] > 0:
                watch.look()
                return {**found, "pss_mb": watch.peak_mb, "processes": watch.processes}
        time.sleep(0.02)
    return None


def summed(found: Row) -> Row:
    """The lines of a window as one."""
    lines = found.pop("lines")[1:]

    def mean(key: str) -> float | None:
        values = [row[key] for row in lines if row.get(key) is not None]
        return sum(values) / len(values) if values else None

    times = {k: mean(f"time_{k}") or 0.0 for k in FRACTIONS}
    return {**found, "time": times, **{k: mean(k) for k in NUMBERS}}


def _complaint(system: str, status: int | None, text: str) -> Exception:
    for line in text.splitlines():
        if line.startswith("mistake: "):
            return UserError(line.removeprefix("mistake: "))
    tail = "\n".join(text.strip().splitlines()[-20:])
    return WorkerLost(f"{system}: its run gave no reports (exit status {status}):\n{tail}")


def end(child: subprocess.Popen[str]) -> None:
    """End a run and all that it started, at once: nothing of it is to be kept."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(BrokenPipeError):
        child.communicate()


def lifeline(pipe: IO[str], leave: Callable[[int], object] = os._exit) -> threading.Thread:
    """If whoever watches this run dies, however, so does the run: its end of the pipe closes."""

    def wait() -> None:
        pipe.read()
        leave(1)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def main() -> int:
    import polyplay
    from polyplay.cli.bench.settings import environment

    request = json.loads(sys.stdin.readline())
    lifeline(sys.stdin)
    keywords = request["keywords"]
    try:
        polyplay.train(request["system"], **{**keywords, "env": environment(keywords["env"])})
    except UserError as e:
        print(f"mistake: {' '.join(str(e).split())}", flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

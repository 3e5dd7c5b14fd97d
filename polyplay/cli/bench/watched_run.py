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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from polyplay.cli.bench.process_watch import ProcessWatch, started_at, watched_rate
from polyplay.common.errors import UserError, WorkerLost
from polyplay.common.files import read_lines

WARM = 2.0  # seconds after the first steps that don't count, at most
SLACK = 120.0  # seconds for the start, besides: 64 processes that load torch take their time
FRACTIONS = ("env", "infer", "learn", "replay", "wait")
NUMBERS = ("predict_batch", "train_batch", "lag_mean", "queue_depth")


def watched(system: str, keywords: Mapping[str, Any], seconds: float, turn: int = 1) -> dict[str, Any]:
    """sps, own_cores, others_cores, time (fractions of its workers' wall time), and means of what it reports.

    Raises UserError and WorkerLost, with what the run said. turn: see watch.rate.
    """
    with tempfile.TemporaryDirectory(prefix="polyplay-bench-", ignore_cleanup_errors=True) as place:
        run = Path(place, "run")
        often = max(0.25, min(1.0, seconds / 8)) if turn == 1 else 0.1  # several lines while a turn is acted
        more = {"run": str(run), "report_every": often}
        asked = json.dumps({"system": system, "keywords": {**keywords, **more}})
        with open(Path(place, "said"), "w+") as said:
            child = subprocess.Popen(
                [sys.executable, "-m", "polyplay.cli.bench.watched_run"],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            try:
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.write(asked + "\n")  # type: ignore[union-attr]
                    child.stdin.flush()  # type: ignore[union-attr]
                found = _watch(child, run / "metrics.jsonl", seconds, turn)
            finally:
                end(child)
            if found is not None:
                return summed(found)
            said.seek(0)
            raise _complaint(system, child.returncode, said.read())


def _watch(child: subprocess.Popen, log: Path, seconds: float, turn: int) -> dict[str, Any] | None:
    marks: list[Any] = []
    watch, limit = ProcessWatch(child.pid), time.monotonic() + SLACK + WARM + 2 * seconds
    while child.poll() is None and time.monotonic() < limit:
        rows = list(read_lines(log))
        if len(rows) > len(marks):
            seen = watch.cpu()
            marks += [(row, seen) for row in rows[len(marks) :]]
            found = watched_rate(marks, started_at(marks) + min(WARM, seconds), seconds, min(0.5, seconds / 8), turn)
            if found is not None and found["sps"] > 0:
                watch.look()
                return {**found, "pss_mb": watch.peak_mb, "processes": watch.processes}
        time.sleep(0.02)
    return None


def summed(found: dict[str, Any]) -> dict[str, Any]:
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


def end(child: subprocess.Popen) -> None:
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

    asked = json.loads(sys.stdin.readline())
    lifeline(sys.stdin)
    keywords = asked["keywords"]
    try:
        polyplay.train(asked["system"], **{**keywords, "env": environment(keywords["env"])})
    except UserError as e:
        print(f"mistake: {' '.join(str(e).split())}", flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

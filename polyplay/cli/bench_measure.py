"""How fast a system is: a real run of it, in a process and a directory of its own, watched for a while and ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from polyplay.core.errors import UserError, WorkerLost
from polyplay.core.files import Row, read_lines
from polyplay.runs.crew_metrics import Throttled, cpu_seconds, memory_mb, process_tree
from polyplay.workers.process import no_main

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


WARM = 2.0  # seconds after the first steps that don't count, at most
SLACK = 120.0  # seconds for the start, besides: 64 processes that load torch take their time
FRACTIONS = ("env", "infer", "learn", "replay", "wait")
NUMBERS = ("predict_batch", "train_batch", "lag_mean", "queue_depth")


def spawn(work: Callable[..., None], *given: object) -> tuple[BaseProcess, Connection]:
    """A new process that does work(*given, pipe), and our end of the pipe; its end closes with it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=work, args=(*given, theirs))
    with no_main():
        child.start()
    theirs.close()
    return child, ours


def watched(system: str, keywords: Row, seconds: float, turn: int = 1) -> Row:
    """sps, own_cores, others_cores, time (fractions of its workers' wall time), and means of what it reports.

    Raises UserError and WorkerLost, with what the run printed. turn: see watched_rate.
    """
    with tempfile.TemporaryDirectory(prefix="polyplay-bench-", ignore_cleanup_errors=True) as place:
        run, output = Path(place, "run"), Path(place, "output")
        often = max(0.25, min(1.0, seconds / 8)) if turn == 1 else 0.1  # several lines while a turn is acted
        given = {**keywords, "run": str(run), "report_every": often}
        child, pipe = spawn(train, system, given, output)
        try:
            found = _watch(child, run / "metrics.jsonl", seconds, turn)
        finally:
            status = child.exitcode
            end(child)
        if found is None:
            raise _complaint(system, pipe, status, output)
        return summed(found)


def _watch(child: BaseProcess, log: Path, seconds: float, turn: int) -> Row | None:
    marks: list[Mark] = []
    watch, limit = ProcessWatch(child.pid or 0), time.monotonic() + SLACK + WARM + 2 * seconds
    while child.is_alive() and time.monotonic() < limit:
        rows = list(read_lines(log))
        if len(rows) > len(marks):
            times = watch.cpu()
            marks += [(row, times) for row in rows[len(marks) :]]
            found = watched_rate(marks, started_at(marks) + min(WARM, seconds), seconds, min(0.5, seconds / 8), turn)
            if found is not None and found["sps"] > 0:
                watch.sample_memory()
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


def _complaint(system: str, pipe: Connection, status: int | None, output: Path) -> Exception:
    """Why a run gave no reports: the user's mistake that it sent, or the end of what it printed."""
    with contextlib.suppress(EOFError, OSError):
        if pipe.poll():
            return pipe.recv()
    text = output.read_text("utf-8") if output.exists() else ""
    tail = "\n".join(text.strip().splitlines()[-20:])
    return WorkerLost(f"{system}: its run gave no reports (exit status {status}):\n{tail}")


def end(child: BaseProcess) -> None:
    """End a run and all that it started, at once: nothing of it is saved."""
    if child.pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.join()


def lifeline(pipe: Connection, leave: Callable[[int], object] = os._exit) -> threading.Thread:
    """If whoever watches this run dies, however, so does the run: its end of the pipe closes."""

    def wait() -> None:
        with contextlib.suppress(EOFError, OSError):
            pipe.recv()
        leave(1)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def train(system: str, keywords: Row, output: Path, pipe: Connection) -> None:
    """That run, with what it prints in a file; a user's mistake goes through the pipe."""
    import polyplay

    os.setsid()
    with output.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    lifeline(pipe)
    try:
        polyplay.train(system, **keywords)
    except UserError as e:
        pipe.send(e)

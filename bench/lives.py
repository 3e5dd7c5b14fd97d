"""One life of a run that is harmed on purpose: from its start or resumption to its end, and what must hold after it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil
from common import HERE, Row

from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines

LOOK = 0.2  # seconds between two looks at a run
GONE = 10.0  # seconds that its processes may take to be gone
SHM = Path("/dev/shm")
TOGETHER = ("gorila",)  # what their learners write is a count of all: after a dropped gradient the same


@dataclass
class Life:
    """What was seen of a life from outside."""

    base: Row  # counters of the checkpoint it began with
    number: int = 0  # lives before it
    status: int = 0
    asked: str = ""  # why it was asked to end; "": it was not
    seconds: float = 0.0
    first: float | None = None  # seconds until it reported more updates than it began with
    said: str = ""
    family: dict[int, psutil.Process] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)  # names in shared memory before it


def live(faults: str, words: Sequence[str], run: Path, log: Path, ends: Callable[[], str]) -> Life:
    """Start the command with such faults (tests/faults.py), watch it to its end; `ends` says why it is to be ended, "":
    not yet.
    """
    life = Life(newest(run) or {"steps": 0, "updates": 0, "frames": 0}, shared=set(os.listdir(SHM)))
    life.number, begun = started(run), time.monotonic()
    path = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
    with open(log, "w+") as said:
        command = [sys.executable, "-m", "tests.faults", faults, *words]
        child = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": path})
        while child.poll() is None:
            _look(life, child, run, time.monotonic() - begun)
            if not life.asked and (why := ends()):
                life.asked = why
                child.send_signal(signal.SIGTERM)
            time.sleep(LOOK)
        life.status, life.seconds = child.returncode, time.monotonic() - begun
        said.seek(0)
        life.said = said.read()
    return life


def _look(life: Life, child: subprocess.Popen, run: Path, seconds: float) -> None:
    with contextlib.suppress(psutil.Error):
        life.family |= {p.pid: p for p in psutil.Process(child.pid).children(recursive=True)}
    begun = started(run) > life.number  # what came after the checkpoint is cut off by then
    if life.first is None and begun and last_line(run / "metrics.jsonl").get("updates", 0) > life.base["updates"]:
        life.first = seconds


def started(run: Path) -> int:
    """Lives that have begun."""
    return sum("rules" in line for line in read_lines(run / "chaos.jsonl"))


def last_line(path: Path) -> Row:
    """The last whole line, read from the end."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 8192))
        lines = [x for x in file.read().splitlines(keepends=True)[1:] if x.endswith(b"\n")]
    return json.loads(lines[-1]) if lines else {}


def newest(run: Path) -> Row | None:
    """Counters of the newest whole checkpoint; None: there is none."""
    with contextlib.suppress(UserError):
        return checkpoint.manifest(checkpoint.newest(run, lambda text: None))["counters"]
    return None


def faults(run: Path) -> list[Row]:
    """A row per fault: its life, what, role, index, and the seconds until it was over (None: it never was)."""
    rows: list[Row] = []
    begun, life = {}, -1  # type: dict[int, Row], int
    for line in read_lines(run / "chaos.jsonl"):
        if "rules" in line:
            begun, life = {}, life + 1
        elif line["what"] == "ended":
            continue
        elif line["what"] == "back":
            begun[line["event"]]["seconds"] = line["seconds"]
        else:
            begun[line["event"]] = {"life": life, "seconds": None, **line}
            rows.append(begun[line["event"]])
    return rows


# ------------------------------------------------------------------------------------------------ what must hold


def wrong(run: Path, life: Life) -> list[str]:
    """Everything that should not be so after a life; empty: nothing."""
    found = [*_ended(run, life), *_left(life), *_counted(run, life)]
    found += [f"{p.name}: it learnt from what is not finite" for p in run.glob("not-finite*")]
    return found


def _ended(run: Path, life: Life) -> list[str]:
    by = last_line(run / "chaos.jsonl").get("ended_by")
    if life.asked and life.status == 143:
        return []
    if life.status == 1 and "s for a machine; `polyplay resume` goes on" in life.said:
        return []  # all machines were lost
    if life.status != 1 or by is None:
        return [f"it ended with status {life.status}, and not by a fault: {life.said[-800:]}"]
    loud = f"worker {by['role']} {by['index']} was killed by SIGKILL" in life.said
    return [] if loud else [f"it did not say that {by['role']} {by['index']} was killed"]


def _left(life: Life) -> list[str]:
    """Processes and names in shared memory that are still there."""
    until = time.monotonic() + GONE
    while (left := [p for p in life.family.values() if _lives(p)]) and time.monotonic() < until:
        time.sleep(0.05)
    found = [f"process {p.pid} is left behind" for p in left]
    new = {name for name in set(os.listdir(SHM)) - life.shared if not _held(name)}
    return found + [f"{name} is left in shared memory" for name in sorted(new)]


def _held(name: str) -> bool:
    """Whether a living process has it mapped; others on this machine may have made it meanwhile. By its inode, since
    who makes a semaphore maps it under another name.
    """
    try:
        inode = f" {(SHM / name).stat().st_ino} "
    except OSError:
        return True  # it is gone by now
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if any(inode in line and f"{SHM}/" in line for line in maps.read_text().splitlines()):
                return True
    return not (SHM / name).exists()


def _lives(p: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return p.is_running() and p.status() != psutil.STATUS_ZOMBIE
    return False


def _counted(run: Path, life: Life) -> list[str]:
    """Counters never go back behind the checkpoint that a life began with, and never back at all in a file."""
    found, now = [], newest(run)
    if now is None:
        return ["there is no whole checkpoint to go on from"]
    for key in ("steps", "updates"):
        rows = [row[key] for row in read_lines(run / "metrics.jsonl")]
        if rows != sorted(rows):
            found.append(f"metrics.jsonl: {key} go back")
        if now[key] < life.base[key]:
            found.append(f"the newest checkpoint has {now[key]} {key}, the one before had {life.base[key]}")
    updates = list(read_lines(run / "updates.jsonl"))
    least = 0 if json.loads((run / "config.json").read_text())["system"] in TOGETHER else 1
    if any(b["update"] < a["update"] + least for a, b in pairwise(updates)):
        found.append("updates.jsonl: an update is there twice")
    if any(row["loss"] is None or not math.isfinite(row["loss"]) for row in updates):
        found.append("updates.jsonl: a loss is not finite")
    return found

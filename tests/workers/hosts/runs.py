"""Runs on several machines, as their tests start, watch and read them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

TOY: dict[str, Any] = {"env": "toy:catch", "network": "mlp", "actors": 2, "lanes": 8, "batch": 16, "unroll": 10}


def updates(run: Path) -> list[dict[str, Any]]:
    """What the learner computed, without clocks."""
    rows = map(json.loads, (run / "updates.jsonl").read_text().splitlines())
    return [{k: v for k, v in row.items() if k != "time"} for row in rows]


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "hosts.jsonl").read_text().splitlines()]


def metrics(run: Path) -> list[dict[str, Any]]:
    """The rows so far, all but one that is being written."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def learning(run: Path, more: int = 20) -> bool:
    """Whether it has made more updates than that."""
    rows = metrics(run)
    return len(rows) > 2 and rows[-1]["updates"] > more


@contextmanager
def raylets(n: int) -> Iterator[str]:
    """A cluster of this machine, local-1 to local-N: what --hosts takes. All that belongs to it has its token."""
    pytest.importorskip("ray")
    from polyplay.workers.hosts.cluster import LocalCluster

    cluster = LocalCluster(n)
    try:
        yield f"ray:{cluster.address}"
    finally:
        cluster.close()


def commands_with(mark: str) -> dict[int, str]:
    """Processes that have this in their environment, by number: their commands, or titles."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (path / "environ").read_bytes():
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def processes(mark: str = "") -> dict[int, str]:
    """Crews and workers with this in their environment, by default with the token of the cluster that there is."""
    mine = commands_with(mark or f"RAY_AUTH_TOKEN={os.environ['RAY_AUTH_TOKEN']}")
    return {pid: words for pid, words in mine.items() if words.startswith(("polyplay: ", CREW))}


CREW = "ray::RemoteCrew"


def crews(mark: str = "") -> list[int]:
    return [pid for pid, words in processes(mark).items() if words.startswith(CREW)]


def one(title: str) -> int:
    """A worker's process, by its title."""
    return next(pid for pid, words in sorted(processes().items()) if words.startswith(f"polyplay: {title}"))


def crew_of(worker: int) -> int:
    """The process that started it on its machine."""
    import psutil

    return next(p.pid for p in psutil.Process(worker).parents() if p.cmdline()[0].startswith(CREW))


def raylet(name: str) -> int:
    """The process of a machine's raylet."""
    mine = commands_with(f"RAY_AUTH_TOKEN={os.environ['RAY_AUTH_TOKEN']}")
    first = {pid: words.partition(" ")[0] for pid, words in mine.items() if f"--node-name={name} " in f"{words} "}
    return next(pid for pid, program in first.items() if program.endswith("/raylet"))


def command(run: Path, *words: str, system: str = "impala", toy: dict[str, Any] = TOY) -> subprocess.Popen[bytes]:
    options = [f"--{k.replace('_', '-')}={v}" for k, v in toy.items()]
    given = ["train", system, *options, "--run", str(run), "--no-tensorboard", "--report-every", "0.5", *words]
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([sys.executable, "-m", "polyplay", *given], **pipes)


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")

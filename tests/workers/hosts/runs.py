"""Runs on several machines, as their tests start, watch and read them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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


def processes() -> dict[int, str]:
    """Those that bear our title, by number."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = path.read_bytes().rstrip(b"\0").decode(errors="replace")
        except OSError:
            continue
        if title.startswith("polyplay: "):
            found[int(path.parent.name)] = title
    return found


def processes_of(test: Path) -> dict[int, str]:
    """Those that were started, however indirectly, with this test's mark in their environment."""
    mine = {}
    for number, title in processes().items():
        try:
            environment = Path(f"/proc/{number}/environ").read_bytes()
        except OSError:
            continue
        if f"POLYPLAY_TEST={test}".encode() in environment:
            mine[number] = title
    return mine


def command(run: Path, *words: str, system: str = "impala", toy: dict[str, Any] = TOY) -> subprocess.Popen[bytes]:
    options = [f"--{k.replace('_', '-')}={v}" for k, v in toy.items()]
    given = ["train", system, *options, "--run", str(run), "--no-tensorboard", "--report-every", "0.5", *words]
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([sys.executable, "-m", "polyplay", *given], **pipes)


def wait_for(what: Any, seconds: float = 60.0) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")

"""More than fifty kills of player, judge and learner, and the run goes on: no torn champion, no contradiction."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import polyplay
from polyplay.core import checkpoint
from polyplay.core.errors import WorkerLost
from polyplay.core.files import read_lines
from tests.faults import injected
from tests.population.test_judge import agree, trained

FAULTS = "kill=judge:1,kill=self_play:1,kill=learn:12"


def kills(run: Path) -> dict[str, int]:
    found = [row["role"] for row in read_lines(run / "chaos.jsonl", "event") if row["what"] == "killed"]
    return {role: found.count(role) for role in ("judge", "self_play", "learn")}


def done(run: Path) -> int:
    return int(checkpoint.manifest(checkpoint.everything(run)[-1])["counters"]["steps"])


@pytest.mark.long
def test_fifty_kills(tmp_path):
    """The learner's kills end the run, which is resumed."""
    run = tmp_path / "run"
    how = {"on": "process", "players": 2, "checkpoint_every": 2, "steps": 15_000}
    with injected(FAULTS), contextlib.suppress(WorkerLost):
        trained(run, **how)
    while sum(kills(run).values()) < 50 or min(kills(run).values()) == 0:
        with injected(FAULTS), contextlib.suppress(WorkerLost):
            polyplay.resume(run, steps=max(done(run) + 2_000, 15_000))
        there = {p.name for p in (run / "checkpoints").glob(f"{checkpoint.CHAMPION}*")}
        assert {p.name for p in checkpoint.champions(run)} == there, "a torn champion"
    last = polyplay.resume(run, steps=done(run) + 2_000)
    assert last.reason == "done"
    agree(run)
    steps = [row["steps"] for row in read_lines(run / "metrics.jsonl", "steps")]
    assert steps == sorted(steps)

"""More than fifty kills of player, judge and learner, and the run goes on: no torn champion, no contradiction."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import polyplay
from polyplay.common import checkpoint
from polyplay.common.errors import WorkerLost
from polyplay.common.files import read_lines
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
    with contextlib.suppress(WorkerLost):
        trained(run, chaos=FAULTS, **how)
    while sum(kills(run).values()) < 50 or min(kills(run).values()) == 0:
        with contextlib.suppress(WorkerLost):
            polyplay.resume(run, steps=max(done(run) + 2_000, 15_000))
        there = {p.name for p in (run / "checkpoints").glob(f"{checkpoint.CHAMPION}*")}
        assert {p.name for p in checkpoint.champions(run)} == there, "a torn champion"
    last = polyplay.resume(run, steps=done(run) + 2_000, chaos=None)
    assert last.reason == "done"
    killed = [row for row in read_lines(run / "chaos.jsonl", "event") if row["what"] == "killed"]
    lost = [row["lost"] for row in killed if row["role"] == "self_play"]
    assert max(row["rollouts"] for row in lost) >= 16, "a player's games are counted as they are dropped"
    assert all(row["steps"] <= 9 * row["rollouts"] for row in lost), "no game of tic-tac-toe is longer"
    agree(run)
    steps = [row["steps"] for row in read_lines(run / "metrics.jsonl", "steps")]
    assert steps == sorted(steps)

"""Ape-X learns however its workers run; lost actors come back at their own ε, a lost memory is replaced; it goes on."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay.core import checkpoint
from polyplay.core.files import read_lines
from polyplay.systems import _wiring
from polyplay.workers.crew import Crew
from tests.systems import settings as of
from tests.systems.trained import until, updates, wired


def trained(path, **settings: Any) -> Any:
    return polyplay.train("apex", run=str(path), **{**of.APEX, **settings})


def test_the_ratio_is_kept_over_all_memories_and_a_resumed_run_goes_on_with_them(tmp_path):
    run = trained(tmp_path / "run", steps=1_200, serial=True, trace=True)
    owed = (1_200 - 500) * 8.0 / 64  # but for what is under way
    assert run.summary["updates"] == pytest.approx(owed, rel=0.25)
    last = checkpoint.everything(run.directory)[-1]
    assert sorted(p.name for p in (last / "replay").iterdir()) == ["serve_replay-0", "serve_replay-1"]
    assert sorted(p.name for p in (last / "workers").glob("stream-*")) == ["stream-0.json", "stream-1.json"]
    more = polyplay.resume(str(run.directory), steps=2_000)
    assert more.exit_code == 0
    assert more.summary["steps"] >= 2_000
    assert more.summary["updates"] == pytest.approx((2_000 - 500) * 8.0 / 64, rel=0.25)
    assert [row["update"] for row in updates(more)] == list(range(1, more.summary["updates"] + 1))
    told = [r["replay_ratio"] for r in read_lines(run.directory / "metrics.jsonl") if "replay_ratio" in r]
    assert not told or told[-1] == pytest.approx(8.0, rel=0.25)


def test_learners_that_average_their_gradients_share_the_memories(tmp_path):
    run = trained(tmp_path / "run", steps=800, serial=True, trace=True, learners=2)
    assert (run.exit_code, run.summary["updates"]) == (0, pytest.approx((800 - 500) * 8.0 / 64, rel=0.4))
    assert checkpoint.everything(run.directory)


def started(**settings: Any) -> tuple[Crew, list[str]]:
    said: list[str] = []
    crew = Crew(steps=10**9, log=lambda kind, text: said.append(text))
    system = wired("apex", crew, **{**of.APEX, **settings})
    crew.start(system.metrics)
    return crew, said


def test_killed_actors_and_memories_are_replaced_and_learning_goes_on():
    crew, said = started(ratio=0.0)
    try:
        roles = {r.name: r for r in crew.roles}
        assert crew.counters is not None
        done = crew.counters.column("updates")
        until(crew, lambda: done.max() >= 20)
        ladder = roles["act"].explore
        rungs = ladder.at(np.zeros(4), 4 + np.arange(4))
        for name in ("act", "serve_replay"):
            os.kill(roles[name].workers[1].runs.pid, signal.SIGKILL)
            until(crew, lambda name=name: roles[name].lost == 1)
        ctx = roles["act"].workers[1].ctx
        assert (ctx.index, ctx.incarnation) == (1, 1)
        assert roles["act"].explore is ladder
        assert np.array_equal(ladder.at(np.zeros(4), ctx.index * 4 + np.arange(4)), rungs), "its lanes' own ε"
        before, rows = done.max(), roles["serve_replay"].workers[1].ctx.row
        until(crew, lambda: any("starts empty" in text for text in said))
        stamps = float(crew.counters.column("stamps")[rows])
        until(crew, lambda: done.max() >= before + 40 and crew.counters.column("stamps")[rows] > stamps)
    finally:
        crew.stop()
    assert any("act 1 was killed by SIGKILL" in text for text in said)
    assert any("serve_replay 1 was killed by SIGKILL" in text for text in said)


@pytest.mark.parametrize(
    ("actors", "learners", "cores", "nice"), [(2, 1, 2, 3), (8, 1, 8, 1), (1, 1, 8, 0), (8, 1, 2, 9), (4, 2, 4, 3)]
)
def test_actors_are_as_nice_as_leaves_each_learner_a_core(actors, learners, cores, nice, monkeypatch):
    """At nice n a process has 1.25⁻ⁿ of the weight of others: together they weigh one learner on each core."""
    monkeypatch.setattr(_wiring, "cores", lambda: cores)
    assert _wiring.nice_of(actors, learners) == nice
    assert actors * 1.25**-nice / max(cores - learners, 1) == pytest.approx(1.0, abs=0.15) or nice == 0

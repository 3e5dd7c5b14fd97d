"""Rates and sizes are differences of what workers counted at the service and at the optimiser."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from polyplay.core import machine
from polyplay.core.worker import Counters
from polyplay.runs import crew_metrics
from polyplay.runs.crew_metrics import CrewMetrics


@pytest.fixture
def crew(monkeypatch):
    """One predictor and two trainers, in rows 0, 1 and 2; a clock that stands still until it is set."""
    now = SimpleNamespace(t=100.0)
    monkeypatch.setattr(crew_metrics.time, "monotonic", lambda: now.t)
    pool = SimpleNamespace(lanes=8, present=6, waits=lambda: (now.t, 10.0 * now.t))
    agents, none = (
        SimpleNamespace(is_open=True, pool=pool),
        {**dict.fromkeys(("agents", "source", "server", "held_replay", "league")), "workers": {}, "served": ()},
    )
    act = SimpleNamespace(**none | {"agents": agents}, name="act", n=1, learner=False, at=[0], left=[])
    learn = SimpleNamespace(**none | {"source": "chunks"}, name="learn", n=2, learner=True, at=[1, 2], left=[])
    return SimpleNamespace(
        counters=Counters(3),
        roles=[act, learn],
        rows=lambda role, past=False: role.at + role.left if past else role.at,
        now=now,
    )


def test_rates_are_of_the_time_since_the_last_reading(crew):
    service, counters = CrewMetrics(crew, 1, {"steps": 0, "updates": 0}), crew.counters
    for _ in range(10):
        counters.row(0).served(4)
    for row in (1, 2):
        counters.row(row).set("updates", 20)  # each trainer knows of all
        counters.row(row).add("lag_count", 50)
    counters.row(0).add("depth_sum", 60)
    counters.row(0).add("depth_count", 10)
    crew.now.t += 2.0
    metrics = service.read_service()
    assert metrics["pps"] == 20.0
    assert metrics["predict_batch"] == metrics["predict_batch_p50"] == 4.0
    assert metrics["tps"] == 10.0
    assert metrics["train_batch"] == 5.0
    assert metrics["prediction_queue"] == 6.0
    assert (metrics["agents"], metrics["predictors"], metrics["trainers"]) == (6, 1, 2)
    assert metrics["agent_wait_ms"] == pytest.approx(100.0)
    assert metrics["cpu"] is None, "nothing to compare with yet"
    crew.now.t += 4.0
    again = service.read_service()
    assert again["pps"] == again["tps"] == 0.0
    assert again["predict_batch"] is again["train_batch"] is None
    assert again["cpu"] >= 0.0


def test_deciles_are_those_of_the_new_sizes(crew):
    service = CrewMetrics(crew, 1, {"steps": 0, "updates": 0})
    for n in (1, 1, 2, 3, 3, 3, 3, 3, 9, 300):
        crew.counters.row(0).served(n)
    crew.now.t += 1.0
    metrics = service.read_service()
    assert (metrics["predict_batch_p10"], metrics["predict_batch_p50"], metrics["predict_batch_p90"]) == (1.0, 3.0, 9.0)
    assert service.histograms() == {"predict_batch": {1: 2, 2: 1, 3: 5, 9: 1, 256: 1}}


def test_what_workers_counted_who_have_left_stays_counted(crew):
    service, (act, learn) = CrewMetrics(crew, 1, {"steps": 0, "updates": 0}), crew.roles
    crew.counters.row(0).served(4)
    crew.counters.row(1).set("updates", 7)
    crew.now.t += 1.0
    assert (service.read_service()["pps"], service.read_service()["tps"]) == (4.0, None)
    act.at, act.left, learn.at, learn.left = [], [0], [2], [1]
    crew.counters.row(2).set("updates", 9)
    crew.now.t += 1.0
    gone = service.read_service()
    assert (gone["pps"], gone["tps"]) == (0.0, 2.0)
    act.at, act.left = [0], []
    crew.counters.row(0).served(5)
    crew.now.t += 1.0
    assert service.read_service()["pps"] == 5.0
    assert service.histograms()["predict_batch"] == {4: 1, 5: 1}


def test_the_time_of_processes_that_ended_stays_counted(crew, monkeypatch):
    import subprocess
    import sys

    service = CrewMetrics(crew, 1, {"steps": 0, "updates": 0})
    service.read_service()
    crew.now.t += 1.0
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)  # it has ended when we look
    assert service.read_service()["cpu"] * machine.cores() > 0.27, "the system counts in ticks of 0.01 s"


def test_a_count_that_fell_has_begun_anew(crew):
    service = CrewMetrics(crew, 1, {"steps": 0, "updates": 0})
    crew.counters.row(1).set("updates", 50)
    crew.now.t += 1.0
    service.read_service()
    crew.counters.row(1).set("updates", 10)
    crew.now.t += 1.0
    assert service.read_service()["tps"] == 0.0

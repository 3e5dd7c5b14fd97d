"""The numbers of a run, as its workers counted them, and warnings that follow from them."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polyplay.core import machine
from polyplay.core.worker import EPISODES, Counters
from polyplay.runs import crew_metrics
from polyplay.runs.crew_metrics import REPORTS, SILENCE, CrewMetrics, SelfPlayAlarms

HOLDS = {"served": (), "league": None, "source": None, "agents": None, "server": None, "held_replay": None}


@pytest.fixture
def crew() -> Any:
    """An actor in row 0, two learner roles in rows 1 and 2."""
    names = ("act", "learn", "learn_more")
    workers = [{0: SimpleNamespace(ctx=SimpleNamespace(row=row, index=0), done=False, runs=None)} for row in range(3)]
    roles = [
        SimpleNamespace(name=name, n=1, learner=row > 0, lost=0, workers=workers[row], row=row, **HOLDS)
        for row, name in enumerate(names)
    ]
    counters = Counters(3, ("loss", "entropy"))
    return SimpleNamespace(counters=counters, roles=roles, fleet=None, rows=lambda role, past=False: [role.row])


def test_updates_of_all_learner_roles_are_added(crew):
    metrics = CrewMetrics(crew, 4, {"steps": 100, "updates": 10})
    crew.counters.row(0).add("steps", 7)
    crew.counters.row(1).set("updates", 3)
    crew.counters.row(2).set("updates", 5)
    assert (metrics.steps, metrics.frames, metrics.updates) == (107, 428, 18)


def test_losses_lags_and_queue_depth_are_since_the_last_report(crew):
    metrics, row = CrewMetrics(crew, 1, {"steps": 0, "updates": 0}), crew.counters.row(1)
    row.losses({"loss": -2.0})
    row.lag(np.array([1, 3]))
    row.add("depth_sum", 6)
    row.add("depth_count", 4)
    first = metrics.snapshot()
    assert (first.losses, first.lag_max, first.queue_depth) == ({"loss": -2.0}, 3, 1.5)
    row.losses({"loss": -4.0, "entropy": 1.0})
    row.lag(np.array([2]))
    second = metrics.snapshot()
    assert (second.losses, second.lag_max, second.queue_depth) == ({"loss": -4.0, "entropy": 1.0}, 2, None)
    assert list(second.time) == ["act", "learn", "learn_more"]


def test_games_are_reported_once_and_those_missed_are_counted(crew):
    metrics, row = CrewMetrics(crew, 1, {"steps": 0, "updates": 0}), crew.counters.row(0)
    games: list[tuple] = []
    warnings: list[str] = []
    reporter: Any = SimpleNamespace(episode=lambda *game: games.append(game))
    row.episode(1.5, 20, 7)
    for _ in range(2):
        metrics.report_games(reporter, warnings.append)
    assert (games, warnings) == ([(1.5, 20, 0, 0, 7, None, 0)], [])
    for _ in range(EPISODES + 3):
        row.episode(0.0, 1, 0)
    metrics.report_games(reporter, warnings.append)
    assert len(games) == 1 + EPISODES
    assert warnings == ["3 games ended faster than they could be counted: reports lack them and later such ones"]


def test_a_silent_worker_is_named_once_until_it_takes_a_turn_again(crew):
    metrics, row = CrewMetrics(crew, 1, {"steps": 0, "updates": 0}), crew.counters.row(0)
    row.stamp()
    now = row.get("stamp") + SILENCE + 1
    assert list(metrics.newly_silent(now)) == [f"worker act 0 has not taken a turn for {SILENCE + 1:.0f} s"]
    assert list(metrics.newly_silent(now)) == []
    row.set("stamp", now)
    assert list(metrics.newly_silent(now)) == []
    assert len(list(metrics.newly_silent(now + SILENCE + 1))) == 1


@pytest.fixture
def service_crew(monkeypatch):
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


def test_rates_are_of_the_time_since_the_last_reading(service_crew):
    service, counters = CrewMetrics(service_crew, 1, {"steps": 0, "updates": 0}), service_crew.counters
    for _ in range(10):
        counters.row(0).served(4)
    for row in (1, 2):
        counters.row(row).set("updates", 20)  # each trainer knows of all
        counters.row(row).add("lag_count", 50)
    counters.row(0).add("depth_sum", 60)
    counters.row(0).add("depth_count", 10)
    service_crew.now.t += 2.0
    metrics = service.read_service()
    assert metrics["pps"] == 20.0
    assert metrics["predict_batch"] == metrics["predict_batch_p50"] == 4.0
    assert metrics["tps"] == 10.0
    assert metrics["train_batch"] == 5.0
    assert metrics["prediction_queue"] == 6.0
    assert (metrics["agents"], metrics["predictors"], metrics["trainers"]) == (6, 1, 2)
    assert metrics["agent_wait_ms"] == pytest.approx(100.0)
    assert metrics["cpu"] is None, "nothing to compare with yet"
    service_crew.now.t += 4.0
    again = service.read_service()
    assert again["pps"] == again["tps"] == 0.0
    assert again["predict_batch"] is again["train_batch"] is None
    assert again["cpu"] >= 0.0


def test_deciles_are_those_of_the_new_sizes(service_crew):
    service = CrewMetrics(service_crew, 1, {"steps": 0, "updates": 0})
    for n in (1, 1, 2, 3, 3, 3, 3, 3, 9, 300):
        service_crew.counters.row(0).served(n)
    service_crew.now.t += 1.0
    metrics = service.read_service()
    assert (metrics["predict_batch_p10"], metrics["predict_batch_p50"], metrics["predict_batch_p90"]) == (1.0, 3.0, 9.0)
    assert service.histograms() == {"predict_batch": {1: 2, 2: 1, 3: 5, 9: 1, 256: 1}}


def test_what_workers_counted_who_have_left_stays_counted(service_crew):
    service, (act, learn) = CrewMetrics(service_crew, 1, {"steps": 0, "updates": 0}), service_crew.roles
    service_crew.counters.row(0).served(4)
    service_crew.counters.row(1).set("updates", 7)
    service_crew.now.t += 1.0
    assert (service.read_service()["pps"], service.read_service()["tps"]) == (4.0, None)
    act.at, act.left, learn.at, learn.left = [], [0], [2], [1]
    service_crew.counters.row(2).set("updates", 9)
    service_crew.now.t += 1.0
    gone = service.read_service()
    assert (gone["pps"], gone["tps"]) == (0.0, 2.0)
    act.at, act.left = [0], []
    service_crew.counters.row(0).served(5)
    service_crew.now.t += 1.0
    assert service.read_service()["pps"] == 5.0
    assert service.histograms()["predict_batch"] == {4: 1, 5: 1}


def test_the_time_of_processes_that_ended_stays_counted(service_crew, monkeypatch):
    import subprocess
    import sys

    service = CrewMetrics(service_crew, 1, {"steps": 0, "updates": 0})
    service.read_service()
    service_crew.now.t += 1.0
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)  # it has ended when we look
    assert service.read_service()["cpu"] * machine.cores() > 0.27, "the system counts in ticks of 0.01 s"


def test_memory_counts_the_processes_below():
    alone = crew_metrics.memory_mb()
    child = subprocess.Popen(
        [sys.executable, "-c", "x = bytearray(60_000_000); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    both = crew_metrics.memory_mb()
    child.communicate(b"\n")
    assert alone > 1
    assert 55 < both - alone < 90


def test_memory_is_looked_at_so_seldom_that_it_costs_nothing():
    now, looks = [0.0], iter((10.0, 20.0, 30.0))

    def look() -> float:
        now[0] += 0.25
        return next(looks)

    memory = crew_metrics.Throttled(look, share=0.01, clock=lambda: now[0])
    assert memory() == 10.0  # at 0.25 s: for the next 25 s that is what it says
    now[0] = 25.0
    assert (memory(), now[0]) == (10.0, 25.0)
    now[0] = 25.5
    assert (memory(), memory(), now[0]) == (20.0, 20.0, 25.75)


def told(*reports: dict[str, float | None]) -> list[str]:
    alarms = SelfPlayAlarms()
    return [line for row in reports for line in alarms.look(row)]


def losses(learnt: float | None, fresh: float | None, ratio: float | None = 2.0) -> dict[str, float | None]:
    return {"value_loss": learnt, "fresh_value_loss": fresh, "replay_ratio": ratio}


def test_reuse_above_four_is_told_once():
    assert told(*[losses(0.5, 0.5, 4.0)] * 3) == []
    lines = told(losses(0.5, 0.5, None), *[losses(0.5, 0.5, 6.0)] * 3)
    assert lines == ["each position is drawn 6.0 times in the mean; above 4 the network may overfit: lower --ratio"]


def test_a_value_loss_far_below_that_of_fresh_games_is_told_once():
    assert told(*[losses(0.36, 0.5)] * 3 * REPORTS) == []
    assert told(*[losses(0.1, 0.5)] * (REPORTS - 1)) == []
    (line,) = told(*[losses(0.1, 0.5)] * 3 * REPORTS)
    assert line.startswith("value loss 0.1 on the replay, 0.5 on fresh games: the network overfits")
    assert "--ratio" in line


def test_reports_without_a_loss_or_a_game_count_for_nothing():
    assert told(*[losses(None, 0.5)] * 2 * REPORTS, *[losses(0.1, None)] * 2 * REPORTS) == []


def test_other_systems_may_draw_more_often():
    assert told({"value_loss": 0.1, "replay_ratio": 8.0}) == []

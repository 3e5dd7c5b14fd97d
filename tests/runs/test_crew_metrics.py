"""The numbers of a run, as its workers counted them, and warnings that follow from them."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polyplay.core import machine
from polyplay.core.worker import EPISODES, Counters
from polyplay.runs import crew_metrics
from polyplay.runs.crew_metrics import KINDS, SILENCE, CrewMetrics
from tests.reports import KEYS


@pytest.fixture
def crew(monkeypatch) -> Any:
    """An actor, who serves 6 agents, in row 0, two learner roles in rows 1 and 2; a clock that stands still until it is
    set.
    """
    now = SimpleNamespace(t=100.0)
    monkeypatch.setattr(crew_metrics.time, "monotonic", lambda: now.t)
    pool = SimpleNamespace(present=6, waits=lambda: (now.t, 10.0 * now.t))
    roles, workers = list[Any](), list[Any]()
    for row, name in enumerate(("act", "learn", "learn_more")):
        edge = {"source": None} if row else {"agents": SimpleNamespace(is_open=True, pool=pool)}
        held = {"edges": lambda edge=edge: edge, "find": lambda kind: None, "holds": {}, "agents": 0}
        roles.append(SimpleNamespace(name=name, learner=row > 0, at=[row], left=[], envs=None, **held))
        workers.append(SimpleNamespace(ctx=SimpleNamespace(row=row, index=0), done=False, role=roles[-1]))
    counters, fleet = Counters(3, ("loss", "entropy")), SimpleNamespace(report=dict)
    rows = lambda role, past=False: role.at + role.left if past else role.at  # noqa: E731
    counts = {"rows": rows, "agent_rows": lambda role: [], "count": lambda role: 1, "lost": 0}
    return SimpleNamespace(counters=counters, roles=roles, workers=lambda: workers, fleet=fleet, now=now, **counts)


@pytest.fixture
def metrics(crew) -> CrewMetrics:
    return CrewMetrics(crew, 4, {"steps": 100, "updates": 10})


def read(metrics: CrewMetrics, after: float = 2.0) -> dict[str, Any]:
    metrics.crew.now.t += after  # type: ignore[attr-defined]
    row, losses = metrics.read()
    return {**row, **losses}


def test_totals_are_the_runs_and_rates_are_since_the_last_report(crew, metrics):
    row = crew.counters.row
    row(0).add("steps", 7)
    row(1).set("updates", 3)
    row(2).set("updates", 5)
    row(1).losses({"loss": -2.0})
    row(1).lag(np.array([1, 3]))
    row(1).add("depth_sum", 6)
    row(1).add("depth_count", 4)
    first = read(metrics)
    assert (metrics.steps, metrics.frames, metrics.updates) == (107, 428, 18)
    wanted = {"frames": 428, "steps": 107, "updates": 18, "fps": 14.0, "sps": 3.5, "tps": 4.0, "restarts": 0}
    wanted |= {"loss": -2.0, "lag_mean": 2.0, "lag_max": 3, "queue_depth": 1.5}
    assert {k: first[k] for k in wanted} == wanted
    assert {key for key in KEYS if key != "wall_seconds" and "episod" not in key} <= {*first}
    row(1).losses({"loss": -4.0, "entropy": 1.0})
    row(1).lag(np.array([2]))
    second = read(metrics)
    wanted = {
        "steps": 107,
        "sps": 0.0,
        "loss": -4.0,
        "entropy": 1.0,
        "lag_mean": 2.0,
        "lag_max": 2,
        "queue_depth": None,
    }
    assert {k: second[k] for k in wanted} == wanted
    assert (read(metrics)["lag_max"], read(metrics, after=0.0)["fps"]) == (None, None)


def test_times_are_fractions_per_role_and_over_all_workers(crew, metrics):
    for row, kind, seconds in (
        (0, "env", 2.0),
        (0, "infer", 4.0),
        (0, "wait", 2.0),
        (1, "learn", 3.0),
        (1, "wait", 1.0),
    ):
        crew.counters.row(row).add(kind, seconds)
    found = read(metrics)
    assert [found[f"time_{k}"] for k in KINDS] == [0.1667, 0.3333, 0.25, 0.0, 0.25]
    assert metrics.roles["act"] == {"workers": 1, "env": 0.25, "infer": 0.5, "learn": 0.0, "replay": 0.0, "wait": 0.25}
    assert (metrics.roles["learn"]["learn"], metrics.roles["learn_more"]["learn"]) == (0.75, 0.0)
    crew.counters.row(0).add("env", 1.0)
    crew.counters.row(1).set("learn", 0.0)  # a total that fell has begun anew
    found = read(metrics)
    assert [found[f"time_{k}"] for k in KINDS] == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_games_are_reported_once_and_those_missed_are_counted(crew, metrics):
    row = crew.counters.row(0)
    games: list[tuple] = []
    warnings: list[str] = []
    reporter: Any = SimpleNamespace(episode=lambda *ended: games.extend(ended))
    row.episode(1.5, 20, 7)
    for _ in range(2):
        metrics.report_games(reporter, warnings.append)
    game = {"frames": 400, "steps": 100, "episodic_return": 1.5, "lane": 7, "episodic_length": 20}
    assert (games, warnings) == ([game], [])
    for _ in range(EPISODES + 3):
        row.episode(0.0, 1, 0)
    metrics.report_games(reporter, warnings.append)
    assert len(games) == 1 + EPISODES
    assert warnings == ["games ended faster than they could be counted: reports lack some"]


def test_a_silent_worker_is_named_until_it_takes_a_turn_again(crew, metrics):
    row = crew.counters.row(0)
    row.set("stamp", time.monotonic())
    now = row.get("stamp") + SILENCE + 1
    assert list(metrics.silent(now)) == [f"worker act 0 has not taken a turn for {SILENCE:.0f} s"]
    row.set("stamp", now)
    assert list(metrics.silent(now)) == []


def test_a_service_is_measured_where_it_is_served_and_learnt(crew, metrics):
    counters = crew.counters
    for n in (1, 1, 2, 3, 3, 3, 3, 3, 9, 300):
        counters.row(0).served(n)
    for row in (1, 2):
        counters.row(row).set("updates", 10)
        counters.row(row).add("lag_count", 50)
    counters.row(0).add("depth_sum", 60)
    counters.row(0).add("depth_count", 10)
    found = read(metrics)
    wanted = {"pps": 164.0, "predict_batch": 32.8, "tps": 10.0, "train_batch": 5.0, "prediction_queue": 6.0}
    wanted |= {"predict_batch_p10": 1.0, "predict_batch_p50": 3.0, "predict_batch_p90": 9.0, "agent_wait_ms": 100.0}
    wanted |= {"agents": 6, "predictors": 1, "trainers": 2, "cpu": None}  # of cpu there is nothing to compare with yet
    assert {k: found[k] for k in wanted} == pytest.approx(wanted)
    again = read(metrics, after=4.0)
    assert {k: again[k] for k in ("pps", "tps", "predict_batch", "train_batch")} == {
        "pps": 0.0,
        "tps": 0.0,
        "predict_batch": None,
        "train_batch": None,
    }
    assert again["cpu"] >= 0.0


def test_what_workers_counted_who_have_left_stays_counted(crew, metrics):
    act, learn, _ = crew.roles
    crew.counters.row(0).served(4)
    crew.counters.row(1).set("updates", 7)
    assert (read(metrics)["pps"], metrics.updates) == (2.0, 17)
    act.at, act.left, learn.at, learn.left = [], [0], [], [1]
    assert (read(metrics)["pps"], metrics.updates) == (0.0, 17)
    act.at, act.left = [0], []
    crew.counters.row(0).served(5)
    assert read(metrics)["pps"] == 2.5


def test_the_time_of_processes_that_ended_stays_counted(metrics):
    read(metrics)
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)  # it has ended when we look
    assert read(metrics, after=1.0)["cpu"] * machine.cores() > 0.27, "the system counts in ticks of 0.01 s"


def test_memory_counts_the_processes_below():
    alone, code = crew_metrics.memory_mb(), "x = bytearray(60_000_000); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        both = crew_metrics.memory_mb()
        child.communicate(b"\n")
    assert 55 < both - alone < 90


def test_memory_is_looked_at_so_seldom_that_it_costs_nothing():
    now, looks = [0.0], list[float]()

    def look() -> float:
        now[0] += 0.25
        looks.append(now[0])
        return now[0]

    memory = crew_metrics.Throttled(look, share=0.01, clock=lambda: now[0])
    while now[0] < 100.0:
        assert memory() == looks[-1]
        now[0] += 0.5
    assert (looks[0], len(looks)) == (0.25, 4)  # the next one is 25 s later

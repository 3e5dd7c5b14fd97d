from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polyplay.core.worker import EPISODES, Counters
from polyplay.runs.crew_metrics import SILENCE, CrewMetrics

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

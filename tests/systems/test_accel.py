"""Accel RL learns in step and in chunks, with A2C and PPO, however its workers run; tells lag truly; goes on."""

from __future__ import annotations

import json

import pytest

import polyplay
from polyplay.core import checkpoint
from polyplay.weights.update import Chunked
from polyplay.workers.crew import Crew
from tests.systems import settings as of
from tests.systems.trained import kill_one_by_one, same_weights, updates, wired


@pytest.mark.parametrize(
    ("system", "settings", "each"),
    [
        ("accel", of.ACCEL, 1),
        ("accel", of.ACCEL_PPO, 4),
        ("ppo", {**of.PPO, "replicas": 2, "epochs": 2, "minibatches": 4}, 8),
    ],
    ids=["accel a2c", "accel ppo", "ppo"],
)
def test_replicas_stay_equal_to_the_bit_and_lag_is_the_passes(system, settings, each, tmp_path):
    given = {**settings, "steps": 1_000, "trace": True}
    run = polyplay.train(system, serial=True, run=str(tmp_path / "run"), **given)
    rows = updates(run)
    assert len(rows) >= 4
    assert len(rows) % each == 0
    assert [row["update"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["lag_max"] for row in rows] == list(range(each)) * (len(rows) // each)
    assert [row["lag_mean"] for row in rows] == [row["lag_max"] for row in rows], "of both groups"
    again = polyplay.train(system, serial=True, run=str(tmp_path / "again"), **given)
    assert updates(again) == rows
    apart = polyplay.train(system, on="thread", run=str(tmp_path / "apart"), **given)
    assert same_weights(run, apart), "whoever came first"


def test_groups_change_nothing_but_who_waits(tmp_path):
    """Noise is a lane's, whatever its group; in step with 1, 2 or 4 groups all lanes learn the same."""
    runs = []
    for groups in (1, 2, 4):
        settings = {**of.ACCEL, "groups": groups, "replicas": 1, "steps": 1_500, "normalize_advantage": False}
        runs.append(polyplay.train("accel", serial=True, trace=True, run=str(tmp_path / str(groups)), **settings))
    losses = [[row["loss"] for row in updates(r)] for r in runs]
    assert len(losses[0]) >= 10
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize(
    ("system", "settings", "steps"), [("a3c", of.A3C, 400), ("accel", {**of.ACCEL, "sync": "chunked"}, 1_500)]
)
def test_without_a_lock_it_goes_on_from_its_counts_with_new_games(system, settings, steps, tmp_path, capfd):
    run = polyplay.train(system, run=str(tmp_path / "run"), on="thread", steps=steps, **settings)
    first = json.loads((checkpoint.everything(run.directory)[-1] / "agents/0/learner.json").read_text())
    assert steps - 9 <= first["learnt"] < steps + 400
    assert first["version"] >= 15
    capfd.readouterr()
    again = polyplay.resume(str(run.directory), steps=2 * steps)
    assert "all lanes begin anew, from seed" in capfd.readouterr().err
    assert again.exit_code == 0
    last = json.loads((checkpoint.everything(run.directory)[-1] / "agents/0/learner.json").read_text())
    assert 2 * steps - 9 <= last["learnt"] < 2 * steps + 400
    assert last["version"] >= first["version"] + 15


def test_a_killed_replica_is_replaced_and_the_run_goes_on_from_where_it_was():
    said: list[str] = []
    crew = Crew(seed=1, steps=10**9, log=lambda kind, text: said.append(text))
    settings = {**of.CHUNKED, "optimizer": "adam", "optimizer_eps": 1e-5, "replicas": 2}
    wired("accel", crew, env="toy:catch", network="mlp", **settings)
    update: Chunked = crew.roles[0].spec.update
    kill_one_by_one(crew)
    assert said == [f"worker replica {i} was killed by SIGKILL; a new one takes its place" for i in (0, 1)]
    counters, done = update.counters[:, :2], update.done
    assert done.max() - done.min() <= 4, "of the two that died in an update, and of two at the end, some chunks"
    assert abs(int(done.min()) - int(counters[:, 0].sum())) <= 4

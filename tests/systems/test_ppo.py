"""PPO learns however its workers run, with memory, in step; says what it does."""

from __future__ import annotations

import json

import numpy as np
import pytest

import polyplay
from polyplay import systems
from polyplay.core.errors import UserError
from polyplay.games.toys import Skirmish
from polyplay.runs import plan
from polyplay.runs.options import RunOptions
from polyplay.runs.run import diagram
from polyplay.workers.crew import Crew
from tests.games.skirmishes import outcome
from tests.systems.trained import resumed_and_whole, same_weights, updates

NET = {"network": "mlp", "tensorboard": False, "report_every": 0.5, "anneal": "constant", "normalize_advantage": True}
CATCH = {**NET, "env": "toy:catch", "lanes": 16, "unroll": 16, "learning_rate": 3e-3, "clip_range": 0.2}


SERIAL = pytest.param({"serial": True}, marks=pytest.mark.long)


@pytest.mark.parametrize("how", [{"on": "thread"}, {"on": "process"}, SERIAL])
def test_it_learns_catch(how, tmp_path):
    settings = {**CATCH, "replicas": 2, "steps": 60_000, "until_return": 0.6}
    run = polyplay.train("ppo", run=str(tmp_path / "run"), **settings, **how)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= 0.6  # random play: -0.6


def test_memory_is_learnt_in_whole_lanes(tmp_path):
    settings = {**NET, "core": "gru", "core_size": 16, "lanes": 16, "unroll": 16, "learning_rate": 5e-3}
    settings |= {"steps": 40_000, "until_return": 0.8, "serial": True, "replicas": 1}
    run = polyplay.train("ppo", env="toy:memory", run=str(tmp_path / "run"), **settings)
    assert run.summary["episodic_return_mean_best"] >= 0.8, "0 is what play without memory gets"


def test_replicas_stay_equal_to_the_bit_and_lag_is_told(tmp_path):
    """Two replicas with half the lanes each: their common updates, and each row's age in updates."""
    settings = {**CATCH, "replicas": 2, "steps": 1_024, "trace": True, "epochs": 2, "minibatches": 4}
    run = polyplay.train("ppo", serial=True, run=str(tmp_path / "run"), **settings)
    rows = updates(run)
    rollouts = len(rows) // 8  # of 256 steps, a few of them from one episode to the next
    assert rollouts in (4, 5)
    assert [row["update"] for row in rows] == list(range(1, rollouts * 8 + 1))
    assert [row["lag_max"] for row in rows] == list(range(8)) * rollouts
    again = polyplay.train("ppo", serial=True, run=str(tmp_path / "again"), **settings)
    assert updates(again) == rows
    apart = polyplay.train("ppo", on="thread", run=str(tmp_path / "apart"), **settings)
    assert same_weights(run, apart)


def test_a_run_goes_on_to_the_bit(tmp_path):
    resumed, whole = resumed_and_whole("ppo", tmp_path, 2_048, **CATCH, replicas=1)
    assert updates(resumed) == updates(whole)
    assert [row["update"] for row in updates(resumed)] == list(range(1, len(updates(whole)) + 1))
    assert same_weights(resumed, whole)


def test_rate_and_clip_range_fall_from_rollout_to_rollout(tmp_path):
    settings = {**CATCH, "anneal": "linear", "replicas": 1, "serial": True, "report_every": 1e-3}
    run = polyplay.train("ppo", run=str(tmp_path / "run"), steps=1_024, **settings)
    last = json.loads((run.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["clip_range"] / 0.2 == pytest.approx(last["learning_rate"] / 3e-3)
    assert 0.0 <= last["clip_range"] / 0.2 < 1.0, "a mean since the report before"


def test_target_kl_makes_fewer_updates(tmp_path):
    settings = {**CATCH, "replicas": 2, "steps": 4_096, "serial": True, "learning_rate": 2e-2}
    free = polyplay.train("ppo", run=str(tmp_path / "free"), **settings)
    bound = polyplay.train("ppo", run=str(tmp_path / "bound"), target_kl=0.01, **settings)
    assert free.summary["updates"] % 12 == 0
    assert 16 <= bound.summary["updates"] < free.summary["updates"] - 12
    assert abs(bound.summary["steps"] - free.summary["steps"]) <= 256


def test_the_figure_and_the_plan_say_what_is_done():
    page = systems.load("ppo")
    c = page.Config(env="toy:catch", network="mlp", replicas=2)
    figure = diagram("ppo", c, RunOptions())
    assert "passes  3 of 4 minibatches" in figure
    assert "rollout 128 steps, lag at most 11" in figure
    assert "AllReduce(adam) of 2" in figure
    crew = Crew(0, steps=10_240)
    made = dict(plan.make_plan(crew, page.build(c, crew), RunOptions(steps=10_240)).lines)
    assert "about 120 updates: 10 rollouts of 1,024 rows, 3 epochs of 4 minibatches each" in made["updates"]
    assert made["repeat"].startswith("bitwise reproducible")


def test_lanes_that_cannot_be_parted_are_refused():
    page = systems.load("ppo")
    with pytest.raises(UserError, match="--lanes 6 does not divide among --replicas 1 x --groups 1 x --minibatches 4"):
        page.build(page.Config(env="toy:memory", network="mlp", core="gru", lanes=6), Crew(0))
    with pytest.raises(UserError, match="--lanes 8 does not divide among --replicas 3"):
        page.build(page.Config(env="toy:catch", network="mlp", replicas=3), Crew(0))


@pytest.mark.long
def test_self_play_learns_to_beat_the_scripted_team(tmp_path):
    """One policy in all seats of toy:skirmish; the bot was never seen."""
    optim = {"epochs": 4, "minibatches": 4, "learning_rate": 2e-3, "max_grad_norm": 0.5, "clip_range": 0.2}
    loss = {"normalize_advantage": True, "lam": 0.9, "entropy_cost": 0.003, "network": "separate"}
    size = {"lanes": 64, "replicas": 1, "unroll": 16, "steps": 150_000}
    run = polyplay.train("ppo", env="toy:skirmish", run=str(tmp_path / "run"), quiet=True, **optim, **loss, **size)
    agent = polyplay.load(str(run.directory))
    won, _ = outcome(lambda obs: np.asarray(agent.act(obs)[0]), Skirmish.opposite, seed=5, n=500)
    assert won >= 0.95  # random play: 0.69

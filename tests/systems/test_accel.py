"""Accel RL learns in step and in chunks, with A2C and PPO, however its workers run; tells lag truly; goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

import polyplay
from polyplay import systems
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines
from polyplay.runs import plan
from polyplay.runs.options import RunOptions
from polyplay.runs.reproduce import reproduce
from polyplay.runs.run import diagram
from polyplay.weights.hogwild import Chunked
from polyplay.workers.crew import Crew
from tests.systems.trained import kill_one_by_one, resumed_and_whole, same_weights, updates

NET = {"network": "mlp", "optimizer": "adam", "optimizer_eps": 1e-5, "tensorboard": False, "report_every": 0.5}
NET |= {"anneal": "constant", "normalize_advantage": True}
CATCH = {**NET, "env": "toy:catch", "lanes": 16, "replicas": 2, "unroll": 9, "lam": 0.95, "learning_rate": 1e-2}
PPO = {"algo": "ppo", "unroll": 16, "learning_rate": 3e-3, "epochs": 2, "minibatches": 2}


def accel(**settings: Any) -> Any:
    return systems.load("accel").Config(**{"env": "toy:catch", "network": "mlp", "replicas": 2, **settings})


def wired(crew: Crew, **settings: Any) -> Any:
    return systems.load("accel").build(accel(**settings), crew)


@pytest.mark.parametrize(
    ("algo", "sync", "on"),
    [
        ("a2c", "allreduce", "thread"),
        pytest.param("a2c", "chunked", "thread", marks=pytest.mark.long),
        pytest.param("ppo", "allreduce", "thread", marks=pytest.mark.long),
        ("ppo", "chunked", "thread"),
        ("a2c", "allreduce", "process"),
        ("ppo", "chunked", "process"),
    ],
)
def test_it_learns_catch(algo, sync, on, tmp_path):
    chunked = {"learning_rate": 3e-3, "entropy_cost": 0.05}  # with CATCH's, 1 run in 10 plays one way before it is good
    settings = {**CATCH, **(chunked if sync == "chunked" else {}), **(PPO if algo == "ppo" else {})}
    settings |= {"sync": sync, "on": on}
    run = polyplay.train("accel", run=str(tmp_path / "run"), steps=60_000, until_return=0.5, **settings)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= 0.5  # random play: -0.6
    lag = max(row["lag_max"] or 0 for row in read_lines(run.directory / "metrics.jsonl"))
    own = 3 if algo == "ppo" else 0  # of 4 updates from one rollout
    assert lag == own if sync == "allreduce" else lag > own, "its own, and in chunks the other replica's"


def test_memory_is_learnt_with_a_core(tmp_path):
    settings = {**CATCH, **PPO, "env": "toy:memory", "core": "gru", "learning_rate": 5e-3, "until_return": 0.8}
    run = polyplay.train("accel", serial=True, steps=40_000, run=str(tmp_path / "run"), **settings)
    assert run.summary["episodic_return_mean_best"] >= 0.8, "0 is what play without memory gets"


@pytest.mark.long
def test_the_papers_optimiser_learns_too(tmp_path):
    paper = {"optimizer": "rmsprop_a3c", "optimizer_eps": 1e-6, "learning_rate": 2e-3, "unroll": 5, "lam": 1.0}
    paper |= {"normalize_advantage": False, "max_grad_norm": 0.5}
    run = polyplay.train(
        "accel", serial=True, steps=40_000, until_return=0.3, run=str(tmp_path / "run"), **{**CATCH, **paper}
    )
    assert run.summary["episodic_return_mean_best"] >= 0.3


@pytest.mark.parametrize("algo", [{}, PPO], ids=["a2c", "ppo"])
def test_replicas_stay_equal_to_the_bit_and_lag_is_the_passes(algo, tmp_path):
    settings = {**CATCH, **algo, "steps": 1_000, "trace": True}
    run = polyplay.train("accel", serial=True, run=str(tmp_path / "run"), **settings)
    rows, each = updates(run), 4 if algo else 1
    assert len(rows) >= 4
    assert len(rows) % each == 0
    assert [row["update"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["lag_max"] for row in rows] == list(range(each)) * (len(rows) // each)
    assert [row["lag_mean"] for row in rows] == [row["lag_max"] for row in rows], "of both groups"
    again = polyplay.train("accel", serial=True, run=str(tmp_path / "again"), **settings)
    assert updates(again) == rows
    apart = polyplay.train("accel", on="thread", run=str(tmp_path / "apart"), **settings)
    assert same_weights(run, apart), "whoever came first"


def test_groups_change_nothing_but_who_waits(tmp_path):
    """Noise is a lane's, whatever its group; in step with 1, 2 or 4 groups all lanes learn the same."""
    runs = []
    for groups in (1, 2, 4):
        settings = {**CATCH, "groups": groups, "replicas": 1, "steps": 1_500, "normalize_advantage": False}
        runs.append(polyplay.train("accel", serial=True, trace=True, run=str(tmp_path / str(groups)), **settings))
    losses = [[row["loss"] for row in updates(r)] for r in runs]
    assert len(losses[0]) >= 10
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("algo", [{}, PPO], ids=["a2c", "ppo"])
def test_in_step_a_run_goes_on_to_the_bit(algo, tmp_path):
    resumed, whole = resumed_and_whole("accel", tmp_path, 2_048, **{**CATCH, **algo})
    assert updates(resumed) == updates(whole)
    assert [row["update"] for row in updates(resumed)] == list(range(1, len(updates(whole)) + 1))
    assert same_weights(resumed, whole)


def test_in_chunks_it_goes_on_from_its_counts_with_new_games(tmp_path, capfd):
    run = polyplay.train("accel", run=str(tmp_path / "run"), on="thread", sync="chunked", steps=1_500, **CATCH)
    first = json.loads((checkpoint.everything(run.directory)[-1] / "agents/0/learner.json").read_text())
    assert 1_500 <= first["learnt"] < 1_900
    assert first["version"] >= 15
    capfd.readouterr()
    again = polyplay.resume(str(run.directory), steps=3_000)
    assert "all lanes begin anew, from seed" in capfd.readouterr().err
    assert again.exit_code == 0
    last = json.loads((checkpoint.everything(run.directory)[-1] / "agents/0/learner.json").read_text())
    assert 3_000 <= last["learnt"] < 3_400
    assert last["version"] >= first["version"] + 15


def test_in_chunks_and_one_thread_it_repeats_to_the_bit_and_is_not_replayed(tmp_path):
    kw = {**CATCH, "sync": "chunked", "steps": 600, "trace": True, "serial": True}
    for name in ("a", "b"):
        polyplay.train("accel", run=str(tmp_path / name), **kw)
    one, two = ((tmp_path / name / "updates.jsonl").read_text() for name in ("a", "b"))
    assert one == two
    rows = [json.loads(line) for line in one.splitlines()]
    assert [row["lag_max"] for row in rows[1:]] == [1] * (len(rows) - 1), "in turn each meets the other's update"
    with pytest.raises(UserError, match=r"accel's workers .*in any order.*--serial repeats") as e:
        reproduce(tmp_path / "a")
    assert "\n" not in str(e.value)


def test_a_killed_replica_is_replaced_and_the_run_goes_on_from_where_it_was():
    said: list[str] = []
    crew = Crew(seed=1, steps=10**9, say=lambda kind, text: said.append(text))
    wired(crew, sync="chunked", optimizer="adam", optimizer_eps=1e-5)
    update: Chunked = crew.roles[0].spec.update
    kill_one_by_one(crew)
    assert said == [f"worker replica {i} was killed by SIGKILL; a new one takes its place" for i in (0, 1)]
    counters, done = update.counters[:, :2], update.done
    assert done.max() - done.min() <= 4, "of the two that died in an update, and of two at the end, some chunks"
    assert abs(int(done.min()) - int(counters[:, 0].sum())) <= 4


def test_the_figure_and_the_plan_say_what_is_done():
    figure = diagram("accel", accel(), RunOptions())
    assert "replica × 2" in figure
    assert "toy:catch × 8 lanes in 2 groups" in figure
    assert "rollout 5 steps, lag 0" in figure
    assert "AllReduce(rmsprop_a3c) of 2" in figure
    assert "if lost fail" in figure
    crew = Crew(0, steps=10_240)
    made = dict(plan.make_plan(crew, wired(crew, algo="ppo", unroll=64), RunOptions(steps=10_240)).lines)
    assert "about 160 updates: 10 rollouts of 1,024 rows, 4 epochs of 4 minibatches each" in made["updates"]
    assert made["repeat"].startswith("bitwise reproducible")


def test_they_say_so_of_chunks_too():
    figure = diagram("accel", accel(sync="chunked"), RunOptions())
    assert "rollout 5 steps, free" in figure
    assert "Chunked(rmsprop_a3c), 3 parts" in figure
    assert "weights and rmsprop_a3c's square ──► replica" in figure
    assert "if lost replace" in figure
    crew = Crew(0, steps=1_000)
    made = dict(plan.make_plan(crew, wired(crew, sync="chunked"), RunOptions(steps=1_000)).lines)
    assert made["updates"] == "about 25 updates of 40 rows"
    assert made["repeat"].startswith("not bitwise")
    assert "environments start new episodes" in made["resume"]


def test_memory_counts_the_central_vector_and_statistics_once():
    crew = Crew(0, steps=1000)
    system = wired(crew, sync="chunked", optimizer="adam", lanes=12, replicas=3)
    net = plan.bytes_of(system.policy())
    told = plan.predict_memory(crew, system.policy())["weights"]
    assert told == pytest.approx((3 * 2 + 1 + 2) * net, abs=1024)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"lanes": 6}, "--replicas 2 x --groups 2; make it a multiple of 4"),
        ({"lanes": 16, "replicas": 3}, "does not divide among --replicas 3 x --groups 2; make it a multiple of 6"),
        (
            {"lanes": 8, "algo": "ppo", "core": "gru"},
            "--replicas 2 x --groups 2 x --minibatches 4; make it a multiple of 16",
        ),
        ({"optimizer": "adamm"}, "did you mean 'adam'"),
        ({"env": "ALE/Pong-v5", "atari": "acel"}, "acel"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(wrong, told):
    with pytest.raises(UserError, match=told) as e:
        wired(Crew(0), **wrong)
    assert "\n" not in str(e.value)


def of(preset: str) -> dict[str, Any]:
    return vars(systems.load("accel").PRESETS[preset]())


def test_a_run_plays_the_pages_own_screen_unless_another_is_asked_for(tmp_path):
    settings = dict(env="ALE/Breakout-v5", serial=True, lanes=2, replicas=1, unroll=2, steps=8, tensorboard=False)
    run = polyplay.train("accel", run=str(tmp_path / "run"), **settings)
    kept = json.loads((run.directory / "config.json").read_text())
    assert "104, 80" in kept["environment"]["observation"]
    other = polyplay.train("accel", run=str(tmp_path / "other"), atari="baselines", **settings)
    assert "84, 84" in json.loads((other.directory / "config.json").read_text())["environment"]["observation"]

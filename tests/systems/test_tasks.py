"""Systems on several tasks at once: they learn them, count, evaluate, resume and survive; PopArt between two scales."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import polyplay
from polyplay import systems
from polyplay.cli import main
from polyplay.cli.plot import PlotOptions, draw_curves, read_curves
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines, read_object
from polyplay.envs import Envs, atari
from polyplay.evaluation import evaluate as evaluate_
from polyplay.evaluation import scores, verify
from polyplay.nets.policy import PopArt
from polyplay.runs import options, plan, population
from polyplay.workers.crew import Crew
from polyplay.workers.row_costs import CostProfile
from tests.systems import settings as of
from tests.systems.trained import resumed_and_whole, same_weights, until, updates, wired

TWO = "toy:catch,toy:catch+rows=6"
SCALES = "toy:tests.toys:Cue,toy:tests.toys:Cue+scale=1000+other"
BOTH = "CartPole-v1,Acrobot-v1"
QUICK: Any = {"quiet": True, "tensorboard": False}


def games_of(run: Any) -> dict[str, list[float]]:
    """The returns of each task."""
    found = dict[str, list[float]]()
    for game in read_lines(Path(run.directory) / "episodes.jsonl"):
        found.setdefault(game["task"], []).append(game["episodic_return"])
    return found


def last_means(run: Any, n: int = 50) -> list[float]:
    return [float(np.mean(returns[-n:])) for _, returns in sorted(games_of(run).items())]


@pytest.mark.parametrize(("value", "learns"), [("plain", False), ("popart", True)])
def test_with_popart_a_task_of_small_rewards_is_learnt_beside_one_of_large_ones(
    value: str, learns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Random play returns 2.5 and 2,500. Statistics follow faster than the published rate, for a run of seconds."""
    monkeypatch.setattr(PopArt.__init__, "__defaults__", (1e-2,))
    run = polyplay.train(
        "a2c", env=SCALES, value=value, reward="none", preset="paper", network="mlp", lanes=16, steps=30_000,
        learning_rate=3e-3, anneal="constant", optimizer="adam", optimizer_eps=1e-5, compile="off", serial=True,
        run=str(tmp_path / "run"), **QUICK,
    )  # fmt: skip
    small, large = last_means(run)
    assert (small > 6.0 and large > 4_500) if learns else small < 4.0


SETTINGS: dict[str, dict[str, Any]] = {
    "a2c": {**of.A2C, "value": "popart"},
    "a3c": {**of.A3C},
    "accel": {**of.ACCEL},
    "appo": {**of.APPO, "value": "heads"},
    "apex": {**of.APEX},
    "dqn": {**of.DQN},
    "impala": {**of.IMPALA, "value": "popart"},
    "ppo": {**of.PPO, "value": "popart", "replicas": 2},
    "r2d2": {**of.R2D2},
    "sac": {**of.QUIET, "lanes": 2, "batch": 32, "learning_starts": 100},
}


LATER = ("a3c", "accel", "appo", "apex", "r2d2", "sac")


@pytest.mark.parametrize("system", [pytest.param(x, marks=[pytest.mark.long] * (x in LATER)) for x in SETTINGS])
def test_systems_play_two_tasks_and_count_them_apart(system: str, tmp_path: Path):
    given = {
        **SETTINGS[system],
        "env": TWO,
        "steps": 1_200,
        "run": str(tmp_path / "run"),
        "on": "thread",
        "quiet": True,
    }
    run = polyplay.train(system, **given)
    assert sorted(games_of(run)) == ["toy:catch", "toy:catch+rows=6"]
    *_, row = read_lines(tmp_path / "run/metrics.jsonl")
    steps = list(row["task_steps"].values())
    assert sum(steps) == row["steps"]
    # of as many rows those count that begin no game; games of the second are half as long
    assert system == "a3c" or 0.8 < steps[1] / steps[0] < 1.01, "a3c's workers run freely"
    assert row["task_return_means"].keys() == {"toy:catch", "toy:catch+rows=6"}


@pytest.mark.parametrize(
    ("system", "given", "error"),
    [
        ("ga3c", {"env": TWO}, "several tasks need lanes that step in turn"),
        (
            "ppo",
            {"env": TWO, "lanes": 7},
            "--lanes: 7 lanes given for 2 lanes of the tasks of --env; allowed: a",
        ),
        ("a3c", {"env": TWO, "workers": 3}, "--lanes: 3 lanes of 3 workers .role actor_learner. given for 2 lanes"),
        ("ppo", {"env": "@there_is_no_file"}, "--env: cannot read there_is_no_file: No such file"),
        ("ppo", {"env": "@tests.systems.test_tasks:nothing"}, "returned dict; allowed: a list of names"),
        ("ppo", {"env": TWO, "value": "norm"}, "value: 'norm' given, allowed: plain, popart, heads"),
        (
            "impala",
            {"env": "toy:catch", "value": "popart", "auxiliary": "value"},
            "--value: popart given with",
        ),
    ],
)
def test_wrong_input_is_one_line(system: str, given: dict[str, Any], error: str, tmp_path: Path):
    with pytest.raises(UserError, match=error) as refused:
        polyplay.train(system, **{**QUICK, "steps": 100, "network": "mlp", "run": str(tmp_path / "run"), **given})
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())


def nothing() -> dict[str, str]:
    return {}


def names() -> list[str]:
    return ["toy:catch", "toy:catch+rows=6:2"]


def test_a_file_and_a_function_give_the_list(tmp_path: Path):
    file = tmp_path / "tasks.txt"
    file.write_text("toy:catch\ntoy:catch+rows=6:2\n")
    for env in (f"@{file}", "@tests.systems.test_tasks:names"):
        settings, _, _ = options.resolve(systems.load("ppo"), env=env)
        assert settings.env == "toy:catch,toy:catch+rows=6:2"
        assert settings.lanes == 9, "the preset's 8, for an order of three"
    settings, _, _ = options.resolve(systems.load("impala"), env=f"@{file}")
    assert (settings.lanes, settings.batch) == (18, 36)
    settings, _, _ = options.resolve(systems.load("impala"), env=f"@{file}", lanes=3)
    assert (settings.lanes, settings.batch) == (3, 32)


@pytest.mark.parametrize(("system", "given"), [("a2c", of.A2C), ("ppo", {**of.PPO, "replicas": 1})])
def test_a_run_with_popart_goes_on_to_the_bit(system: str, given: dict[str, Any], tmp_path: Path):
    more = {**given, "anneal": "constant", "env": TWO, "value": "popart", "reward": "none"}
    resumed, whole = resumed_and_whole(system, tmp_path, 2_048, **more)
    assert updates(resumed) == updates(whole)
    assert same_weights(resumed, whole)


@pytest.mark.parametrize(
    ("system", "given", "lanes"),
    [
        ("accel", {"env": f"{TWO},toy:catch+rows=7"}, 18),  # the preset's 16, in two groups
        ("ppo", {"env": f"{TWO},toy:catch+rows=7", "core": "lstm"}, 12),  # of the 8, in four minibatches
        ("ppo", {"env": TWO, "replicas": 3}, 12),
    ],
)
def test_lanes_for_all_tasks_divide_as_the_system_divides_them(system: str, given: dict[str, Any], lanes: int):
    settings, _, _ = options.resolve(systems.load(system), **given)
    assert settings.lanes == lanes


@pytest.mark.parametrize("system", ["a3c", "gorila", "dqn"])
def test_values_in_units_of_their_own_are_for_some_systems(system: str, tmp_path: Path):
    with pytest.raises(UserError, match="value"):
        polyplay.train(system, env=TWO, value="popart", run=str(tmp_path / "run"), **QUICK)


def test_old_ids_of_several_games_stand_for_one_setting(tmp_path: Path):
    names = "PongNoFrameskip-v4,BreakoutNoFrameskip-v4", "Pong-v0,Breakout-v0"
    found = [wired("ppo", Crew(), env=name).envs.options["sticky"] for name in names]
    assert found == [0.0, 0.25]
    with pytest.raises(UserError, match="--env: Pong-v0 given beside ALE/Breakout-v5, but they stand for different"):
        wired("ppo", Crew(), env="Pong-v0,ALE/Breakout-v5")


def test_the_plan_counts_emulators_and_names_how_tasks_are_stepped():
    crew = Crew()
    made = wired("impala", crew, env="ALE/Pong-v5,ALE/Breakout-v5", actors=2, lanes=4, batch=8)
    assert plan.predict_memory(crew, made.policy())["emulators"] == pytest.approx(8 * 1.7 * 2**20)
    assert [plan.kind_of(Envs(name, 2, inline=True)) for name in (TWO, BOTH)] == ["toy", "inline"]
    mixed = Envs(f"toy:tests.toys:Cue,{__name__}:Four", 2, inline=True)
    assert (plan.kind_of(mixed), plan.kinds_of(mixed)) == ("mixed", {"toy", "inline"})


class Four(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2)

    def reset(self, **kw):
        return np.zeros(4, np.float32), {}

    def step(self, action):
        return np.zeros(4, np.float32), 1.0, False, False, {}


def test_what_a_step_of_tasks_costs_is_measured_with_allowed_actions():
    made = wired("impala", Crew(), env=BOTH, actors=1, lanes=2, batch=2, network="mlp")
    profile = CostProfile(made.envs, made.spec)
    assert profile.env(0.01, 2) > 0.0


GAMES = {"env": "ALE/Pong-v5,ALE/Breakout-v5", "atari": "impala:plain", "network": "a3c", "unroll": 8, "quiet": True}


@pytest.mark.long
@pytest.mark.parametrize("value", ["plain", "popart"])
def test_a_run_of_two_atari_games_goes_on_to_the_bit(value: str, tmp_path: Path):
    given = {**GAMES, "actors": 2, "lanes": 2, "batch": 4, "lag": 0, "value": value, "anneal": "constant"}
    given |= {"tensorboard": False, "compile": "off"}
    resumed, whole = resumed_and_whole("impala", tmp_path, 960, **given)
    assert updates(resumed) == updates(whole)
    assert same_weights(resumed, whole)
    one, two = (list(read_lines(Path(run.directory) / "metrics.jsonl"))[-1]["task_steps"] for run in (resumed, whole))
    assert one == two


def test_a_killed_actor_of_two_tasks_is_replaced_and_plays_the_same(tmp_path: Path):
    crew = Crew(on="process")
    found = wired("impala", crew, **{**of.IMPALA, "env": TWO, "actors": 2, "frames": 10**9})
    crew.start(found.metrics)
    try:
        counters = crew.counters
        assert counters is not None
        until(crew, lambda: (counters.tasks.sum(0) > 200).all())
        (acts,) = (workers for role, workers in _by_role(crew).items() if role == "act")
        os.kill(acts[0].runs.pid, signal.SIGKILL)
        until(crew, lambda: crew.lost == 1)
        before = counters.tasks[acts[0].ctx.row].copy()
        until(crew, lambda: (counters.tasks[acts[0].ctx.row] > before + 200).all())
    finally:
        crew.stop()


def _by_role(crew: Crew) -> dict[str, list[Any]]:
    found = dict[str, list[Any]]()
    for worker in crew.workers():
        found.setdefault(worker.role.name, []).append(worker)
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tasks") / "run"
    given = {**of.PPO, "env": TWO, "replicas": 1, "value": "popart", "steps": 12_000, "serial": True, "compile": "off"}
    polyplay.train("ppo", **given, run=str(place), quiet=True)
    return place


def test_each_task_is_evaluated_with_the_same_weights(trained: Path, capsys: pytest.CaptureFixture[str]):
    assert main.main(["evaluate", str(trained), "--episodes", "20"]) == 0
    shown = capsys.readouterr().out
    assert "toy:catch+rows=6" in shown
    files = sorted(trained.glob("evaluation-*.json"))
    found = {read_object(file)["task"]: read_object(file) for file in files}
    assert found.keys() == {"toy:catch", "toy:catch+rows=6"}
    means = [row["episodic_return_mean"] for row in found.values()]
    assert f"mean over tasks {np.mean(means):,.1f}" in shown
    assert len({row["checkpoint_sha256"] for row in found.values()}) == 1
    assert all(finding.level == "ok" for file in files for finding in verify.verify(trained, file.name))
    rows = scores.compare_runs([trained], scores.ScoresOptions())["games"]
    measured = {task: round(row["episodic_return_mean"], 2) for task, row in found.items()}
    assert {row["game"]: row["score"] for row in rows} == measured
    one = evaluate_.evaluate(trained, evaluate_.EvaluateOptions(episodes=3, task="toy:catch", seed=1))
    assert (one["task"], one["episodes"]) == ("toy:catch", 3)
    with pytest.raises(UserError, match=r"--task: catch given.*; allowed: toy:catch, toy:catch\+rows=6"):
        evaluate_.evaluate(trained, evaluate_.EvaluateOptions(task="catch"))


def test_a_loaded_agent_names_the_task_of_a_value(trained: Path):
    agent = polyplay.load(trained)
    obs = np.zeros(agent.spec.obs.shape, np.float32)
    agent.act(obs)
    found = {agent.value(obs, task=task) for task in agent.spec.tasks}
    assert len(found) == 2
    assert agent.evaluate(episodes=4, task="toy:catch")["episodes"] == 4
    for call in (lambda: agent.value(obs), lambda: agent.evaluate(episodes=4, task="x")):
        with pytest.raises(UserError, match=r"task: (None|x) given, allowed: toy:catch, toy:catch\+rows=6"):
            call()


def test_a_picture_has_a_panel_for_each_task_over_its_own_frames(trained: Path):
    curves = read_curves(trained)
    assert [curve.env for curve in curves] == ["toy:catch", "toy:catch+rows=6"]
    last = read_object(trained / "summary.json")["frames"]
    assert all(curve.across["frames"][-1] <= last / 2 for curve in curves)
    figure = draw_curves([trained], PlotOptions())
    shown = [panel.get_title(loc="left") for panel in figure.axes if panel.axison]
    assert shown == ["toy:catch", "toy:catch+rows=6"]


def test_the_goal_of_a_run_is_the_mean_over_tasks(tmp_path: Path):
    given = {**of.PPO, "env": TWO, "replicas": 1, "steps": 60_000, "serial": True, "compile": "off", "quiet": True}
    run = polyplay.train("ppo", **given, until_return=0.0, run=str(tmp_path / "run"))
    assert run.summary["reason"] == "the mean return of 100 games reached 0"
    means = [np.mean(returns[-100:]) for returns in games_of(run).values()]
    assert np.mean(means) >= 0.0


def test_the_fitness_of_a_population_is_the_mean_over_tasks(trained: Path):
    games: dict[str, list[float]] = {}
    for game in read_lines(trained / "episodes.jsonl"):
        games.setdefault(game["task"], []).append(game["episodic_return"])
    found = population.last_returns(trained, 9_000)
    assert len(found) == 10
    assert len({*found}) == 1
    assert abs(found[0] - np.mean([np.mean(returns[-100:]) for returns in games.values()])) < 0.3
    assert population.last_returns(trained, 10**9) == ()


def test_a_file_for_other_programs_has_no_value_of_several_tasks(trained: Path, tmp_path: Path):
    told = polyplay.export(trained, tmp_path / "policy.onnx")
    assert list(told["outputs"]) == ["action"]


def test_a_loss_of_ones_own_does_not_go_with_popart(tmp_path: Path):
    with pytest.raises(UserError, match=r"--loss: .* given, but only the system's own loss knows the units of --value"):
        polyplay.train("a2c", env="toy:catch", value="popart", loss=lambda own: own, run=str(tmp_path / "run"), **QUICK)


def test_protocols_and_signs_are_for_several_games_too(tmp_path: Path):
    envs = Envs("ALE/Pong-v5,ALE/Freeway-v5", 2, options={**atari.atari_preset("impala"), "full_actions": True})
    changed, _ = atari.apply(atari.protocol("null-op"), envs)
    assert changed.options["max_frames"] == 18_000
    crew = Crew()
    found = wired("accel_dqn", crew, env=envs.title, lanes=2, replicas=1)
    replay = found.spec and crew.learner.replay
    assert (replay.reward, replay.stack) == ("sign", 4)


def test_evaluations_beside_training_are_of_all_tasks(tmp_path: Path):
    given = {**of.PPO, "env": TWO, "replicas": 1, "steps": 4_000, "on": "thread", "quiet": True}
    polyplay.train("ppo", **given, eval_every=1_000, eval_episodes=6, run=str(tmp_path / "run"))
    first, *_ = read_lines(tmp_path / "run/evaluations.jsonl")
    assert first["episodes"] == 6
    assert first["episodic_return_mean"] == pytest.approx(np.mean(list(first["task_return_means"].values())))
    *_, last = read_lines(tmp_path / "run/evaluations.jsonl")
    fitness = population.last_returns(tmp_path / "run", 0, "evaluations")
    assert fitness == pytest.approx((last["episodic_return_mean"],) * 6)


def test_a_run_of_two_tasks_grows_to_three(trained: Path, tmp_path: Path):
    new, steps = tmp_path / "new", {}
    file = tmp_path / "tasks.txt"
    file.write_text(f"{TWO.replace(',', chr(10))}\ntoy:catch+rows=7\n")
    assert main.main(["surgery", str(trained), "--out", str(new), "--env", f"@{file}", "--lanes", "12"]) == 0
    grown = polyplay.resume(str(new), steps=13_000)
    for run in (trained, grown.directory):
        *_, row = read_lines(Path(run) / "metrics.jsonl")
        steps[str(run)] = list(row["task_steps"].values())
        assert sum(steps[str(run)]) == row["steps"], "also those before it was resumed"
    assert len(steps[str(grown.directory)]) == 3


@pytest.mark.long
@pytest.mark.parametrize("system", ["impala", "ppo"])
def test_cartpole_and_acrobot_in_one_run(system: str, tmp_path: Path):
    """The default preset; Acrobot is solved from −100 on."""
    begun = time.monotonic()
    run = polyplay.train(system, env=BOTH, value="popart", steps=500_000, run=str(tmp_path / "run"), **QUICK)
    acrobot, cartpole = last_means(run, 100)
    print(json.dumps({"acrobot": acrobot, "cartpole": cartpole, "seconds": time.monotonic() - begun}))
    assert cartpole > 400
    assert acrobot > -100

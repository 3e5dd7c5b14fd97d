"""Systems learn small tasks as threads and processes, and with auxiliary tasks; long: other cores, losses and tasks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay import systems
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines
from polyplay.core.tree import Field
from polyplay.games.toys import Catch
from polyplay.learning.unreal import KL, task_costs
from polyplay.workers.crew import Crew
from tests.systems import settings as of

THREAD, PROCESS, SERIAL = {"on": "thread"}, {"on": "process"}, {"serial": True}
FAST = {"lanes": 8, "unroll": 10, "learning_rate": 4e-3, "epsilon_decay_steps": 1_500}
PAPER = {"optimizer": "rmsprop_a3c", "learning_rate": 1e-2, "optimizer_eps": 0.1, "max_grad_norm": 40.0, "unroll": 5}
BALANCE = {"agents": 6, "learning_rate": 5e-3, "gamma": 0.98, "reward": "scale", "entropy_cost": 0.0}
CARTPOLE: Any = {**of.QUIET, "lanes": 8, "unroll": 8, "learning_rate": 4e-3, "gamma": 0.98, "lam": 0.98, "replicas": 1}
CARTPOLE |= {"env": "CartPole-v1", "optimizer": "adam"}
CARTPOLE |= {"entropy_cost": 0.0, "reward_scale": 0.1, "anneal": "constant"}
PENDULUM: Any = {**CARTPOLE, "env": "toy:tests.toys:Pendulum", "lanes": 32, "learning_rate": 3e-3}
PENDULUM |= {"gamma": 0.9, "lam": 0.9}
REMEMBERS: Any = {**of.A2C, **of.MEMORY, "lanes": 32, "unroll": 8, "learning_rate": 1e-2, "core_size": 16}
REMEMBERS |= {"replicas": 1}
TWO_CLOCKS = {"core": "temporal", "learning_rate": 2e-2}

# system, settings, agent steps at most, the mean return of a hundred games that is asked for: random play has −0.6 in
# Catch, 0 in the memory task, 25 in CartPole, −1200 on the pendulum
RUNS: dict[str, tuple[str, dict[str, Any], int, float]] = {
    "a3c": ("a3c", {**of.A3C, **THREAD}, 80_000, -0.1),
    "accel": ("accel", {**of.ACCEL, **THREAD}, 60_000, 0.2),
    "accel in chunks": ("accel", {**of.ACCEL, **of.CHUNKED, **THREAD}, 60_000, 0.0),
    "apex": ("apex", {**of.APEX, **THREAD}, 16_000, 0.0),
    "appo, two learners": ("appo", {**of.APPO, "learners": 2, **THREAD}, 200_000, 0.0),
    "dqn": ("dqn", {**of.DQN, **THREAD}, 12_000, 0.0),
    "ga3c": ("ga3c", {**of.GA3C, "env": "toy:catch"}, 90_000, 0.2),
    "gorila": ("gorila", {**of.GORILA, **THREAD}, 16_000, 0.0),
    "impala, processes": ("impala", {**of.IMPALA, **PROCESS}, 120_000, 0.0),
    "ppo": ("ppo", {**of.PPO, "replicas": 2, **THREAD}, 60_000, 0.0),
    "r2d2": ("r2d2", {**of.R2D2, "epsilon": 0.1, **THREAD}, 40_000, 0.5),
    "rainbow": ("rainbow", {**of.RAINBOW, **THREAD}, 12_000, -0.1),
}
LONG: dict[str, tuple[str, dict[str, Any], int, float]] = {
    "a2c, processes": ("a2c", {**of.A2C, "replicas": 2, "groups": 2, **PROCESS}, 80_000, 0.2),
    "a3c, processes": ("a3c", {**of.A3C, **PROCESS}, 80_000, 0.2),
    "accel_dqn in chunks": ("accel_dqn", {**of.ACCEL_DQN, "sync": "chunked", **THREAD}, 16_000, 0.2),
    "accel_dqn catdqn, processes": ("accel_dqn", {**of.ACCEL_DQN, "algo": "catdqn", **PROCESS}, 16_000, 0.2),
    "apex, processes": ("apex", {**of.APEX, **PROCESS}, 16_000, 0.2),
    "gorila, processes": ("gorila", {**of.GORILA, **PROCESS}, 16_000, 0.2),
    "a2c, CartPole": ("a2c", {**CARTPOLE, **THREAD}, 26_000, 120.0),
    "a2c, pendulum": ("a2c", {**PENDULUM, "reward": "none", **THREAD}, 350_000, -800.0),
    "a2c, memory": ("a2c", {**REMEMBERS, **THREAD}, 25_000, 0.8),
    "a2c, two clocks": ("a2c", {**REMEMBERS, **TWO_CLOCKS, **SERIAL}, 16_000, 0.8),
    "a3c, memory": ("a3c", {**of.A3C, "env": "toy:memory", "core": "lstm", "core_size": 16, **SERIAL}, 9_000, 0.8),
    "a3c, the paper's optimizer": ("a3c", {**of.A3C, **PAPER, "lam": 1.0, **SERIAL}, 20_000, 0.2),
    "accel ppo, memory": ("accel", {**of.ACCEL_PPO, **of.MEMORY, "learning_rate": 5e-3, **SERIAL}, 40_000, 0.8),
    "accel_dqn rainbow": ("accel_dqn", {**of.ACCEL_DQN, "algo": "rainbow", "replicas": 1, **SERIAL}, 16_000, 0.2),
    "appo, memory": ("appo", {**of.APPO, **of.MEMORY, "unroll": 8, **SERIAL}, 40_000, 0.8),
    "appo, free": ("appo", {**of.APPO, "learning_rate": 3e-4, **THREAD}, 200_000, 0.5),  # at a lag of five updates
    "dqn, double and dueling": ("dqn", {**of.DQN, "double": True, "head": "dueling", **SERIAL}, 12_000, 0.2),
    "dqn, by priority, replicas": ("dqn", {**of.DQN, "alpha": 0.6, "replicas": 2, **SERIAL}, 12_000, 0.2),
    "ga3c, CartPole": ("ga3c", {**of.GA3C, **BALANCE, "env": "CartPole-v1", "preset": "paper"}, 60_000, 60.0),
    "ga3c, V-trace": ("ga3c", {**of.GA3C, "env": "toy:catch", "correction": "vtrace"}, 90_000, 0.8),
    "gorila, the paper's": ("gorila", {**of.GORILA, "shards": 3, "optimizer": "adagrad", "learning_rate": 0.03,
                                       "optimizer_eps": 0.01, **SERIAL}, 16_000, 0.3),
    "gorila, free": ("gorila", {**of.FREE, **FAST, **THREAD}, 20_000, 0.3),
    "gorila, free, processes": ("gorila", {**of.FREE, **FAST, "replay_workers": 1, **PROCESS}, 20_000, 0.3),
    "impala, lag 1": ("impala", {**of.IMPALA, "lag": 1, **PROCESS}, 120_000, 0.5),
    "ppo, memory": ("ppo", {**of.PPO, **of.MEMORY, "core_size": 16, "learning_rate": 5e-3, **SERIAL}, 40_000, 0.8),
    "rainbow, Dopamine's": ("rainbow", {**of.RAINBOW, "variant": "dopamine", "sigma": 0.0, **SERIAL}, 12_000, 0.2),
    "conditional actions": ("a2c", {**of.A2C, "env": "toy:tests.toys:ConditionalGame", "hidden": (32,),
                                    "learning_rate": 1e-2, "gamma": 0.5, "entropy_cost": 0.005,
                                    "reward": "none", "unroll": 8, "replicas": 1, **THREAD},
                            20_000, 0.9),  # independent parts: 2/3
}  # fmt: skip


@pytest.mark.parametrize("name", [*RUNS, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)])
def test_it_learns(name, tmp_path):
    system, settings, steps, good = {**RUNS, **LONG}[name]
    run = polyplay.train(system, run=str(tmp_path / "run"), steps=steps, until_return=good, **settings)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= good
    rows = list(read_lines(run.directory / "metrics.jsonl"))
    if system == "a3c" and "on" in settings:  # in one thread a turn is a whole rollout and its update
        assert 0.3 <= rows[-1]["lag_mean"] <= 3.0, "the other worker's updates meanwhile"
    if system == "accel":
        lag, own = max(row["lag_max"] or 0 for row in rows), 3 if settings.get("algo") == "ppo" else 0
        assert lag == own if "sync" not in settings else lag > own, "its own, and in chunks the other replica's"
    if system == "gorila":
        row = next(row for row in reversed(rows) if row.get("shard_updates_max"))
        assert row["grads_applied"] >= 100
        assert row["shard_updates_min"] - 4 <= row["updates"] <= row["shard_updates_max"]
        assert min(row["grads_discarded_stale"], row["grads_discarded_outlier"]) >= 0


@pytest.mark.parametrize("without", [{"core": "none"}, {}])
def test_the_memory_task_needs_a_core(without, tmp_path):
    """Few steps of the same run: the task tests what it says."""
    run = polyplay.train("a2c", steps=14_000, run=str(tmp_path / "run"), **{**REMEMBERS, **SERIAL, **without})
    assert (run.summary["episodic_return_mean"] < 0.5) == bool(without)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", sorted(set(systems.ordinary()) - {"apex_dpg", "apex_sac", "td3", "alphago_zero", "five", "ftw", "league"})
)
def test_cartpole_is_learnt_with_no_option_but_the_environment(name, tmp_path):
    """By the settings of tuned.toml; systems for real actions, and for games of several players, refuse it."""
    run = polyplay.train(name, env="CartPole-v1", run=tmp_path / name, tensorboard=False)
    assert run.evaluate(episodes=100)["episodic_return_mean"] >= 450


PUBLISHED = {"pixel": 0.05, "reward": 1.0, "value": 1.0}
TERMS = ("pixel_control", "reward_prediction", "value_replay")


class Pictured(Catch):
    """Catch whose board is an image of bytes."""

    obs = property(lambda self: Field((1, self.rows, self.columns), "uint8"))

    def see(self, s: dict[str, np.ndarray]) -> np.ndarray:
        return 255 * super().see(s).reshape(-1, 1, self.rows, self.columns).astype(np.uint8)


SHARED: dict[str, Any] = {"env": f"toy:{__name__}:Pictured", "network": "mlp", "unroll": 9, "optimizer": "adam"}
SHARED |= {"optimizer_eps": 1e-5, "max_grad_norm": 1.0, "anneal": "constant", "reduction": "mean"}
SHARED |= {"auxiliary": "pixel=0.01,reward,value", "tensorboard": False, "report_every": 0.2}
PAGES: dict[str, dict[str, Any]] = {
    "a3c": {**SHARED, "workers": 2, "lam": 0.95, "learning_rate": 1e-2},
    "impala": {**SHARED, "lanes": 8, "batch": 16, "learning_rate": 1e-2},
}
HOW = [("thread", "none"), pytest.param("process", "lstm", marks=pytest.mark.long)]


@pytest.mark.parametrize(("on", "core"), HOW)
@pytest.mark.parametrize("page", PAGES)
def test_it_learns_from_pictures_with_all_three_and_goes_on(page, on, core, tmp_path):
    given = {**PAGES[page], "core": core, "on": on}
    run = polyplay.train(page, run=str(tmp_path / "run"), steps=120_000, until_return=-0.2, **given)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= -0.2  # random play: -0.6
    logged = [row for row in read_lines(run.directory / "metrics.jsonl") if row.get("value_replay") is not None]
    for term in TERMS:
        assert 0.0 < np.mean([row[term] for row in logged]) < np.inf
    again = polyplay.resume(run.directory, steps=run.summary["steps"] + 100, until_return=2.0)
    assert again.summary["steps"] >= run.summary["steps"] + 100


def page(name: str, **settings: Any) -> Any:
    return systems.load(name).Config(**{"env": SHARED["env"], "network": "mlp", **settings})


def wired(name: str, **settings: Any) -> Any:
    """The learner's LearnerSpec."""
    crew = Crew(0, steps=1000)
    systems.load(name).build(page(name, **settings), crew)
    return next(role for role in crew.roles if role.learner).spec


def test_costs_are_the_published_ones_unless_given():
    name = "a3c"
    for text, costs in {
        "none": {},
        "value": {"value": 1.0},
        "reward=2,pixel": {"reward": 2.0, "pixel": 0.05},
        "pixel, reward, value=0": PUBLISHED | {"value": 0.0},
    }.items():
        assert task_costs(text, page(name).unroll) == costs
    assert not wired(name).loss.terms
    spec = wired(name, auxiliary="value=0.5,pixel")
    assert spec.loss.terms == {"value_replay": 0.5, "pixel_control": 0.05}
    heads = spec.policy().auxiliary
    assert heads.value
    assert heads.reward is None
    assert heads.pixel.cells == (10, 5)
    assert wired(name, core="temporal", auxiliary="value").loss.terms == {**KL, "value_replay": 1.0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"auxiliary": "sound"}, "--auxiliary: sound given, allowed: pixel, reward, value, separated by commas"),
        ({"auxiliary": "value,value=2"}, "--auxiliary: value=2 given twice, allowed: pixel"),
        ({"auxiliary": "pixel=-1"}, "--auxiliary: pixel=-1 given, allowed for a cost: a number, 0 or more"),
        ({"auxiliary": "value,pixel=much"}, "--auxiliary: pixel=much given, allowed for a cost"),
        ({"auxiliary": "reward=inf"}, "--auxiliary: reward=inf given, allowed for a cost"),
        ({"auxiliary": "reward", "unroll": 2}, "--unroll 2 given, allowed with --auxiliary reward: 3 or more"),
        ({"auxiliary": "pixel", "env": "toy:catch"}, "--auxiliary pixel: takes one image of bytes, but"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(given, said):
    with pytest.raises(UserError, match=re.escape(said)) as e:
        wired("impala", **given)
    assert "\n" not in str(e.value)

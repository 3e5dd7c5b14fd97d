"""Conditional actions in whole runs: toy:conditional is learnt, by what no independent parts could reach."""

from __future__ import annotations

import pytest

import polyplay
from polyplay.core.errors import UserError
from polyplay.envs.spaces import Conditional

GOAL = 0.9  # independent parts: 2/3; random play: 0.2
SETTINGS = {
    "env": "toy:conditional",
    "network": "mlp",
    "hidden": (32,),
    "on": "thread",
    "learning_rate": 1e-2,
    "anneal": "constant",
    "gamma": 0.5,
    "entropy_cost": 0.005,
    "reward": "none",
    "lanes": 16,
    "unroll": 8,
    "tensorboard": False,
}
OF = {
    "a2c": {"replicas": 1, "optimizer": "adam"},
    "ppo": {"replicas": 1, "epochs": 2, "minibatches": 2},
    "impala": {"actors": 1, "lag": 0, "batch": 16, "optimizer": "adam", "reduction": "mean", "optimizer_eps": 1e-5},
    "appo": {"actors": 1, "lag": 0, "batch": 16, "epochs": 2, "minibatches": 2},
}


def trained(system, tmp_path, **more):
    return polyplay.train(system, run=str(tmp_path / "run"), **{**SETTINGS, **OF[system], **more})


LONG = [pytest.param(system, marks=pytest.mark.long) for system in ("ppo", "impala", "appo")]


@pytest.mark.parametrize("system", ["a2c", *LONG])
def test_it_is_learnt(system, tmp_path):
    run = trained(system, tmp_path, steps=7_000 if system == "a2c" else 15_000)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean"] > GOAL


@pytest.mark.long
@pytest.mark.parametrize("system", ["ppo", "impala"])
def test_it_is_learnt_with_a_core_in_processes_too_and_is_played_greedily(system, tmp_path):
    run = trained(system, tmp_path, steps=30_000, core="lstm", on="process")
    result = run.evaluate(episodes=20, greedy=True)
    assert result["episodic_return_mean"] > GOAL


def test_a_trained_agent_acts_without_its_environment(tmp_path):
    run = trained("a2c", tmp_path, steps=300)
    agent = polyplay.load(str(run.directory))
    assert isinstance(agent.spec.action, Conditional)
    obs = [0.0, 1.0, 0.0, 0.0]
    each = [[False] * 4, [True] * 4, [False] * 4, [False, True, True, True]]
    mask = {"verb": [False, False, False, True], "unit": each, "offset": [True, False, True]}
    action, _ = agent.act(obs, mask=mask, greedy=True)
    assert action["verb"] == 3
    assert action["unit"] > 0
    assert action["offset"] != 1
    action, _ = agent.act(obs, mask={**mask, "verb": [True, False, False, False]})
    assert dict(action) == {"verb": 0, "unit": 0, "offset": 0}


def test_systems_of_values_refuse_it_in_one_line(tmp_path):
    with pytest.raises(UserError, match=r"dqn needs discrete actions, this has verb: 4 discrete, unit.*\(verb 1, 3\)"):
        polyplay.train("dqn", env="toy:conditional", run=str(tmp_path / "run"), steps=100)

"""Traits of environments and networks together, in every system: the table of traits_matrix."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import polyplay
from polyplay import systems
from polyplay.acting import play
from polyplay.core import checkpoint
from polyplay.envs import Envs
from polyplay.nets.factory import build_network
from polyplay.runs import options as config
from polyplay.workers.crew import Crew
from tests.games.traits import NAME as TRAITS
from tests.systems import traits_matrix as matrix

NET = {"network": "mlp", "optimizer": "adam", "learning_rate": 1e-2, "anneal": "constant", "gamma": 0.5}
NET |= {"max_grad_norm": 0.5, "optimizer_eps": 1e-5, "reward": "none", "lanes": 16, "unroll": 8, "tensorboard": False}
NET |= {"report_every": 1.0}

OF = {
    "a2c": {"replicas": 1, "lam": 0.95, "core_size": 32},
    "a3c": {"workers": 2, "core_size": 32},
    "ga3c": {"agents": 16, "predictors": 1, "trainers": 1, "schedule": "off", "min_batch": 64, "correction": "none"},
    "ppo": {"replicas": 1, "lam": 0.95, "core_size": 32, "epochs": 2, "minibatches": 2},
    "accel": {"replicas": 1, "lam": 0.95},
    "appo": {"actors": 1, "lag": 0, "batch": 16, "epochs": 2, "minibatches": 2, "learning_rate": 3e-3},
    "impala": {"actors": 1, "lag": 0, "batch": 16, "reduction": "mean", "learning_rate": 3e-3},
}

STEPS, FEW = {1: 12_000, 5: 20_000}, 1_000  # agent steps, by number of traits; of runs that only train


def settings(case):
    steps = FEW if case.goal is None else STEPS[len(case.traits)]
    cost = 0.0 if "continuous" in case.traits else 0.01
    given = {**NET, **OF[case.system], **case.settings, "steps": steps, "entropy_cost": cost}
    lacks = {
        "a3c": {"lanes"},
        "accel": {"reward"},  # its sign: these are 0 to 1
        "appo": {"optimizer"},
        "ga3c": {"lanes"},
        "ppo": {"optimizer"},
    }.get(case.system, set())
    return {k: v for k, v in given.items() if k not in lacks}


def weights(module):
    return {k: v.numpy().copy() for k, v in module.state_dict().items()}


def fresh(case):
    """The network that the run began with."""
    page = systems.load(case.system)
    chosen, options, _ = config.resolve(page, **settings(case))
    return build_network(page.build(chosen, Crew(options.seed, options.on)).policy, options.seed)


USUAL = "a2c threads lstm+mask+dict+hybrid+continuous", "impala processes lstm+mask+dict+hybrid+continuous"


def marks(case):
    return [pytest.mark.long] * (str(case) not in USUAL)


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case), marks=marks(case)) for case in matrix.CASES])
def test_it_learns_or_trains(case, tmp_path):
    run = polyplay.train(case.system, run=str(tmp_path / "run"), **settings(case))
    assert run.exit_code == 0
    assert run.summary["updates"] >= 5
    now = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print)).arrays("agents/0/policy")
    before = weights(fresh(case))
    assert now.keys() == before.keys()
    for name, values in now.items():
        assert np.isfinite(values).all(), name
        assert (values != before[name]).any(), f"{name} is as it was"
    if case.goal is not None:
        assert run.summary["episodic_return_mean"] >= case.goal


def test_random_play_is_far_from_the_goals():
    """What a run that learns nothing would show."""
    for case in matrix.CASES:
        if case.goal is not None and case.system == "a2c":
            policy = fresh(case)
            for parameter in policy.parameters():
                torch.nn.init.zeros_(parameter)
            games = play.play_games(Envs(case.env, 1), policy, 32, seed=0)
            assert np.mean([ret for ret, _ in games]) < case.goal - 0.15, case


def test_everything_at_once_resumes_to_the_bit_and_is_evaluated(tmp_path):
    case = matrix.Case("a2c", "thread", ("gru", *matrix.REST))
    given = {**settings(case), "serial": True, "trace": True, "steps": 1_500}
    whole = polyplay.train("a2c", run=str(tmp_path / "whole"), **given)
    polyplay.train("a2c", run=str(tmp_path / "cut"), **{**given, "steps": 700})
    polyplay.resume(str(tmp_path / "cut"), steps=1_500)
    losses = [(tmp_path / run / "updates.jsonl").read_text() for run in ("whole", "cut")]
    assert losses[0] == losses[1]
    result = whole.evaluate(episodes=5)
    assert result["episodes"] == 5
    assert result["episodic_return_min"] > 0, "no illegal action, which gives -1"


def test_every_pair_is_on_together_in_every_system_and_kind_of_workers():
    assert {*matrix.SYSTEMS, *matrix.VALUES, *matrix.REAL} == set(systems.ordinary()) - {
        "alphago_zero",
        "five",
        "ftw",
        "league",
    }
    for system, on, pair in product(matrix.SYSTEMS, matrix.HOW, matrix.pairs()):
        assert matrix.verdict(system, on, pair) in ("learns", "trains"), (system, on, pair)


VALUES_NET: Any = {"env": f"{TRAITS}+mask+dict", "network": "mlp", "tensorboard": False, "report_every": 1.0}
VALUES_NET |= {"steps": 600}

SOME: Any = {"batch": 16, "capacity": 2_000, "learning_starts": 100, "target_update": 5, "ratio": 2.0, "lanes": 4}
SOME["unroll"] = 4

R2D2: Any = {"actors": 1, "sequence": 4, "burn_in": 2, "n_step": 2, "core_size": 16}

VALUES_OF: Any = {"accel_dqn": {"replicas": 2}, "apex": {"replay_workers": 2}, "dqn": {}, "gorila": {"learners": 2}}
VALUES_OF |= {"rainbow": {}, "r2d2": R2D2}

RUNS: Any = [(name, VALUES_OF[name] | {"on": "thread"}) for name in matrix.VALUES]

RUNS += [("dqn", {"on": "process"}), ("gorila", {"on": "thread", "learners": 2, "actors": 2, "replay_workers": 2})]


@pytest.mark.parametrize(("system", "more"), RUNS)
def test_it_trains_with_masks_and_dicts(system, more, tmp_path):
    given = {**VALUES_NET, **SOME, **more}
    run = polyplay.train(system, run=str(tmp_path / "run"), **given)
    assert run.exit_code == 0
    assert run.summary["updates"] >= 5
    assert run.summary["episodic_return_mean"] >= 0.0, "an illegal action gives -1"
    page = systems.load(system)
    chosen, options, _ = config.resolve(page, **given)
    fresh = build_network(page.build(chosen, Crew(options.seed)).policy, options.seed).state_dict()
    now = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print)).arrays("agents/0/policy")
    assert all(np.isfinite(v).all() for v in now.values())
    assert any((v != fresh[k].numpy()).any() for k, v in now.items())

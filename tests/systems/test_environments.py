"""Kinds of environments in whole runs: several players, drawn spaces, real actions in teams."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyplay
from polyplay import systems
from polyplay.core.errors import UserError
from polyplay.envs import check
from polyplay.envs.spaces import Box
from polyplay.runs import options, run
from polyplay.runs.load import load_run
from polyplay.runs.options import fitted
from polyplay.runs.plan import _scaling
from tests.envs.players import Scripted
from tests.systems.test_five import GIVEN, Shared
from tests.systems.test_ftw import TEAMS, Recall

LONG = pytest.mark.long

SMALL: dict[str, Any] = {"network": "mlp", "preset": "paper", "tensorboard": False, "checkpoint_every": 1e9}

REPLAY: dict[str, Any] = {"lanes": 3, "capacity": 3000, "learning_starts": 60, "batch": 16}

PAGES: dict[str, dict[str, Any]] = {
    "a2c": {"lanes": 6},
    "ppo": {"lanes": 12, "groups": 2, "replicas": 2, "unroll": 16, "minibatches": 2},
    "impala": {"actors": 2, "lanes": 3, "batch": 6, "unroll": 5},
    "appo": {"actors": 2, "lanes": 3, "batch": 6, "unroll": 5, "minibatches": 2},
    "a3c": {"workers": 2},
    "ga3c": {"agents": 6, "schedule": "off", "min_batch": 20},
    "dqn": REPLAY,
    "rainbow": REPLAY,
    "apex": {**REPLAY, "actors": 2},
    "r2d2": {**REPLAY, "actors": 1, "unroll": 8, "burn_in": 4, "capacity": 100},
    "accel": {"lanes": 12, "replicas": 1},
    "accel_dqn": {**REPLAY, "lanes": 6, "replicas": 1},
    "gorila": {**REPLAY},
}

QUICK = ("ppo",)


def train(page: str, run: Path, steps: int = 400, **more: Any) -> Any:
    return polyplay.train(page, env=Scripted, steps=steps, run=str(run), **{**SMALL, **PAGES[page], **more})


@pytest.mark.parametrize("page", [p if p in QUICK else pytest.param(p, marks=LONG) for p in PAGES])
def test_one_policy_plays_all_seats(page: str, tmp_path: Path):
    run = train(page, tmp_path / "run", serial=True)
    assert run.exit_code == 0
    assert run.summary["steps"] >= 400
    # seats die, come late or never come: returns are those of players, whose games last 1 to 5 steps
    assert 10 <= run.summary["episodic_return_mean"] <= 160


def test_a_run_is_repeated_evaluated_and_resumed(tmp_path: Path):
    first, again = (train("a2c", tmp_path / name, serial=True) for name in ("a", "b"))
    assert first.summary["episodic_return_mean"] == again.summary["episodic_return_mean"]
    agents, at = [polyplay.load(tmp_path / name) for name in ("a", "b")], np.arange(100)
    seen = np.stack([at % 3, at % 6, at % 20, at % 4, 10 * at], 1).astype(np.float32)
    actions = [agent.act(seen)[0].tolist() for agent in agents]
    assert actions[0] == actions[1]
    found = polyplay.evaluate(tmp_path / "a", episodes=7)
    assert found["episodes"] == 7
    whole = polyplay.resume(tmp_path / "a", steps=800)
    assert whole.summary["steps"] >= 800


@pytest.mark.parametrize(
    ("page", "change", "text"),
    [
        ("a2c", {"lanes": 4}, "--lanes 4 is no multiple of the 3 seats"),
        ("ppo", {"lanes": 12, "groups": 1, "replicas": 8}, "--lanes 12 does not divide among --replicas 8 .*3 seats"),
        ("impala", {"lanes": 4, "batch": 8}, "--lanes 4 is no multiple of the 3 seats"),
        ("dqn", {"lanes": 1}, "--lanes 1 is no multiple of the 3 seats"),
        ("ga3c", {"agents": 4}, "--agents 4 is no multiple of the 3 seats"),
    ],
)
def test_lanes_that_make_no_whole_matches_are_refused(page: str, change: dict, text: str, tmp_path: Path):
    with pytest.raises(UserError, match=text):
        train(page, tmp_path / "run", **change)
    assert not (tmp_path / "run").exists()


FEW: dict[str, Any] = {"lanes": 2, "unroll": 4}


POLICIES = {"impala": {**FEW, "actors": 1, "batch": 2}, "ppo": {**FEW, "replicas": 1, "minibatches": 1}}

ENV = "tests.envs.drawn:make"


def trained(system: str, settings: dict[str, Any], seed: int, taken: str, directory: Any) -> None:
    """Some updates, in this process; a refusal would be told in one line."""
    made = {"env": ENV, "env_kwargs": {"seed": seed, "taken": taken}, "preset": "paper", "network": "mlp"}
    where = {"run": str(directory / f"{system}-{seed}"), "serial": True, "tensorboard": False, "steps": 40}
    run = polyplay.train(system, **made, **where, **settings)
    assert run.exit_code == 0, (system, seed, taken)


def checked(seed: int, taken: str) -> None:
    found = check.check_env(ENV, options={"seed": seed, "taken": taken}, steps=12, measure=0.01)
    assert found.status == 0, [f for f in found.findings if f.level == "failed"]


@pytest.mark.parametrize(("seed", "system"), [(0, "ppo"), (13, "impala")])
def test_what_check_accepts_trains(seed: int, system: str, tmp_path: Any):
    checked(seed, "drawn")
    trained(system, POLICIES[system], seed, "drawn", tmp_path)


def test_what_check_refuses_does_not_train(tmp_path: Any):
    """A width of 0, by both in the same words."""
    env = "tests.envs.drawn:empty"
    (failed,) = [f for f in check.check_env(env, steps=5).findings if f.level == "failed"]
    assert failed.name == "spaces"
    with pytest.raises(UserError) as e:
        polyplay.train("ppo", env=env, run=str(tmp_path / "run"), serial=True, tensorboard=False, steps=20)
    assert failed.seen in str(e.value)
    assert not (tmp_path / "run").exists()


FAR = Box((1,), np.float32([900.0]), np.float32([1_100.0]))


@dataclass(frozen=True)
class RealRecall(Recall):
    """A number above the middle of its range stands for 1."""

    action = FAR

    def step(self, s: dict[str, np.ndarray], action: np.ndarray, draw: Any) -> tuple[Any, Any]:
        return super().step(s, (np.asarray(action)[..., 0] > 1_000).astype(np.int64), draw)


@dataclass(frozen=True)
class RealShared(Shared):
    action = FAR

    def step(self, s: dict[str, np.ndarray], action: np.ndarray, draw: Any) -> tuple[Any, Any]:
        return super().step(s, (np.asarray(action)[..., 0] > 1_000).astype(np.int64), draw)


FTW: dict[str, Any] = {**TEAMS, "env": f"toy:{__name__}:RealRecall", "event_rewards": (), "agents": 2, "players": 2}

FTW |= {"batch": 8, "evolve": False, "rewards": "game", "unroll": 20}

FIVE: dict[str, Any] = {**GIVEN, "env": f"toy:{__name__}:RealShared"}

BOTH = pytest.mark.parametrize(("system", "given"), [("ftw", FTW), ("five", FIVE)])


def wired(system: str, given: dict[str, Any]) -> tuple[Any, Any, list[tuple[str, str]]]:
    page = systems.load(system)
    settings, how, sources = options.resolve(page, serial=True, **given)
    return fitted(settings, sources, partial(run._wire, page, how))


@BOTH
@pytest.mark.parametrize("actions", ["scale", "clip"])
def test_a_new_policy_s_actions_are_scaled_or_taken_as_they_are(system, given, actions):
    _, (_, made), _ = wired(system, {**given, **({} if actions == "scale" else {"actions": "clip"})})
    torch.manual_seed(0)
    head = made.policy().head
    with torch.no_grad():
        drawn = head.sample(torch.zeros(500, head.size), torch.rand(500, head.noise))
    assert (900 < drawn.mean() < 1_100) == (actions == "scale")
    assert float(drawn.std()) == pytest.approx(100.0 if actions == "scale" else 1.0, rel=0.1)
    said = _scaling(made)
    assert said.startswith("a policy's −1 … 1 is scaled to [900, 1100]" if actions == "scale" else "a policy's numbers")


@BOTH
def test_they_train_go_on_and_are_read_again(system, given, tmp_path):
    how = {**given, "serial": True, "tensorboard": False, "run": tmp_path / "run"}
    first = polyplay.train(system, steps=400, **how)
    assert first.exit_code == 0
    assert first.summary["updates"] > 0
    assert load_run(tmp_path / "run")[1].actions == "scale"
    assert polyplay.resume(tmp_path / "run", steps=800).summary["updates"] > first.summary["updates"]


def test_pixel_control_is_left_out_of_real_actions_and_refused_where_it_was_given():
    given = {k: v for k, v in FTW.items() if k != "auxiliary"}
    settings, _, left = wired("ftw", given)
    assert settings.auxiliary == "reward"
    assert len(left) == 1
    with pytest.raises(UserError, match=r"^--auxiliary pixel: takes "):
        wired("ftw", {**given, "auxiliary": "pixel"})

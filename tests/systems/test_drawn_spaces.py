"""What check accepts trains: environments of drawn spaces in every system that takes their actions."""

from __future__ import annotations

from typing import Any

import pytest

import polyplay
from polyplay.core.errors import UserError
from polyplay.envs import check

FEW: dict[str, Any] = {"lanes": 2, "unroll": 4}
REPLAY: dict[str, Any] = {"start": 8, "capacity": 400, "batch": 4}
POLICIES: dict[str, dict[str, Any]] = {
    "a2c": {**FEW, "replicas": 1},
    "a3c": {"workers": 1, "unroll": 4},
    "accel": {**FEW, "lanes": 4, "replicas": 1},
    "appo": {**FEW, "actors": 1, "batch": 2, "minibatches": 1},
    "ga3c": {"agents": 2, "predictors": 1, "trainers": 1},
    "impala": {**FEW, "actors": 1, "batch": 2},
    "ppo": {**FEW, "replicas": 1, "minibatches": 1},
}
VALUES: dict[str, dict[str, Any]] = {
    "accel_dqn": {**REPLAY, "lanes": 4, "replicas": 1},
    "apex": {**REPLAY, "actors": 1, "lanes": 2},
    "dqn": REPLAY,
    "gorila": REPLAY,
    "r2d2": {**REPLAY, "batch": 2, "actors": 1, "lanes": 2},
    "rainbow": REPLAY,
}
REAL: dict[str, dict[str, Any]] = {"apex_dpg": {**REPLAY, "actors": 1, "lanes": 2}}
KINDS = {"drawn": POLICIES, "discrete": VALUES, "box": REAL}
ENV = "tests.envs.drawn:make"


def trained(system: str, settings: dict[str, Any], seed: int, taken: str, directory: Any) -> None:
    """Some updates, in this process; a refusal would be told in one line."""
    made = {"env": ENV, "env_kwargs": {"seed": seed, "taken": taken}, "preset": "paper", "network": "mlp"}
    more = {"reward": "none"} if system == "a2c" else {}
    where = {"run": str(directory / f"{system}-{seed}"), "serial": True, "tensorboard": False, "steps": 40}
    run = polyplay.train(system, **made, **where, **settings, **more)
    assert run.exit_code == 0, (system, seed, taken)


def checked(seed: int, taken: str) -> None:
    found = check.check_env(ENV, options={"seed": seed, "taken": taken}, steps=12, measure=0.01)
    assert found.status == 0, [f for f in found.findings if f.level == "failed"]


@pytest.mark.parametrize(("seed", "system"), [(0, "ppo"), (13, "impala")])
def test_what_check_accepts_trains(seed: int, system: str, tmp_path: Any):
    checked(seed, "drawn")
    trained(system, POLICIES[system], seed, "drawn", tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(60))
def test_what_check_accepts_trains_in_every_system(seed: int, tmp_path: Any):
    for taken, those in KINDS.items():
        checked(seed, taken)
        for system, settings in those.items():
            trained(system, settings, seed, taken, tmp_path)


def test_what_check_refuses_does_not_train(tmp_path: Any):
    """A width of 0, by both in the same words."""
    env = "tests.envs.drawn:empty"
    (failed,) = [f for f in check.check_env(env, steps=5).findings if f.level == "failed"]
    assert failed.name == "spaces"
    with pytest.raises(UserError) as e:
        polyplay.train("ppo", env=env, run=str(tmp_path / "run"), serial=True, tensorboard=False, steps=20)
    assert failed.seen in str(e.value)
    assert not (tmp_path / "run").exists()

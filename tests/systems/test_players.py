"""Every page plays a game of several players with one policy in all seats; evaluates, resumes and repeats it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay.core.errors import UserError
from tests.envs.players import Scripted

LONG = pytest.mark.long
SMALL: dict[str, Any] = {"network": "mlp", "tensorboard": False, "checkpoint_every": 1e9}
REPLAY: dict[str, Any] = {"lanes": 3, "capacity": 3000, "start": 60, "batch": 16}
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
QUICK = ("ppo", "a3c")


def train(page: str, run: Path, steps: int = 400, **more: Any) -> Any:
    return polyplay.train(page, env=Scripted, steps=steps, run=str(run), **{**SMALL, **PAGES[page], **more})


@pytest.mark.parametrize("page", [p if p in QUICK else pytest.param(p, marks=LONG) for p in PAGES])
def test_one_policy_plays_all_seats(page: str, tmp_path: Path):
    run = train(page, tmp_path / "run", serial=True)
    assert run.exit_code == 0
    assert run.summary["steps"] >= 400
    # seats die, come late or never come: returns are those of players, whose games last 1 to 5 steps
    assert 10 <= run.summary["episodic_return_mean"] <= 160


@pytest.mark.parametrize("page", [pytest.param(p, marks=LONG) for p in PAGES if p not in ("accel", "accel_dqn")])
def test_as_processes(page: str, tmp_path: Path):
    assert train(page, tmp_path / "run").exit_code == 0


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

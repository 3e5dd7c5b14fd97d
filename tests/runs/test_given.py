"""What a program gave as an object, a run has again when it goes on; another environment than then is refused."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import polyplay
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.nets.torsos import MLP
from polyplay.runs import load

KW: dict[str, Any] = {
    "network": "mlp(8)",
    "lanes": 4,
    "serial": True,
    "steps": 100,
    "tensorboard": False,
    "quiet": True,
}


class Walk(gymnasium.Env):
    """Ten steps; shows and takes so much."""

    def __init__(self, seen: int = 3, actions: int = 2, kind: str = "float32", box: bool = False):
        self.observation_space = gymnasium.spaces.Box(0, 1, (seen,), np.dtype(kind).type)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,)) if box else gymnasium.spaces.Discrete(actions)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self.observation_space.low, {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observation_space.low, 1.0, self.t >= 10, False, {}


def train(directory: Path, env: Any, **more: Any) -> Path:
    return polyplay.train("a2c", env=env, run=str(directory), **KW | more).directory


def steps(directory: Path) -> int:
    return checkpoint.steps_of(checkpoint.everything(directory)[-1]) // 100 * 100  # the end of a rollout


@pytest.mark.parametrize("env", [lambda: Walk(), partial(Walk, seen=4)], ids=["lambda", "partial"])
def test_an_object_is_found_in_the_process_that_gave_it_and_given_again_elsewhere(
    env: Any, tmp_path: Path, monkeypatch
):
    run = train(tmp_path / "run", env)
    polyplay.resume(run, steps=200)
    assert steps(run) == 200
    monkeypatch.setattr(load, "_given", {})  # another process
    with pytest.raises(
        UserError, match=r"begun by a program with env=.*, which is not here: polyplay\.resume\('.*', env=…\)"
    ):
        polyplay.resume(run, steps=300)
    assert polyplay.load(run).observation_space.shape == env().observation_space.shape
    polyplay.resume(run, steps=300, env=env)
    assert steps(run) == 300
    assert json.loads((run / "config.json").read_text())["sources"]["env"] == "keyword"


def test_a_program_finds_what_it_defines_by_its_name(tmp_path: Path, monkeypatch):
    """The class of a script or a notebook, in another process of it."""
    here = type("Here", (Walk,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Here", here, raising=False)
    run = train(tmp_path / "run", here)
    monkeypatch.setattr(load, "_given", {})
    polyplay.resume(run, steps=200)
    assert steps(run) == 200
    assert polyplay.evaluate(run, episodes=1)["episodic_return_mean"] == 10.0
    monkeypatch.delattr(sys.modules["__main__"], "Here")
    monkeypatch.setattr(load, "_given", {})
    with pytest.raises(UserError, match="begun by a program with env=__main__:Here, which is not here"):
        polyplay.evaluate(run, episodes=1)
    moved = type("Moved", (Walk,), {"__module__": "strange_module"})
    polyplay.resume(run, steps=300, env=moved)
    assert json.loads((run / "config.json").read_text())["config"]["env"] == "strange_module:Moved"
    polyplay.resume(run, steps=400)


def test_the_same_call_goes_on_with_its_own_objects(tmp_path: Path, monkeypatch):
    env, network = partial(Walk, 3), partial(MLP, hidden=(8,))
    for steps_ in (100, 200):
        monkeypatch.setattr(load, "_given", {})
        train(tmp_path / "run", env, network=network, resume="auto", steps=steps_)
    assert steps(tmp_path / "run") == 200


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ({"seen": 5}, r"shows float32 \[5\], but .* was trained on float32 \[3\] \(spaces\.json\)"),
        ({"kind": "float64"}, r"shows float64 \[3\], but .* was trained on float32 \[3\]"),
        ({"actions": 4}, r"takes .*4.*, but .* was trained on .*2"),
        ({"box": True}, r"takes .*, but .* was trained on "),
    ],
)
def test_an_environment_that_has_changed_is_refused_before_anything_starts(
    now: dict[str, Any], says: str, tmp_path: Path
):
    run = train(tmp_path / "run", Walk)
    before = sorted((p.name, p.stat().st_mtime_ns) for p in run.iterdir() if p.name != ".lock")
    with pytest.raises(UserError, match=says):
        polyplay.resume(run, steps=200, env=partial(Walk, **now))
    assert sorted((p.name, p.stat().st_mtime_ns) for p in run.iterdir() if p.name != ".lock") == before

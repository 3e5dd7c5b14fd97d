"""Real actions in the systems of teams: scaled to their bounds, or clipped to them, and the plan says which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import polyplay
from polyplay import systems
from polyplay.core.errors import UserError
from polyplay.envs.spaces import Box
from polyplay.runs import options, run
from polyplay.runs.load import load_run
from polyplay.runs.options import fitted
from polyplay.runs.plan import _scaling
from tests.systems.test_five import GIVEN, Shared
from tests.systems.test_ftw import TEAMS, Recall

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


FTW: dict[str, Any] = {**TEAMS, "env": f"toy:{__name__}:RealRecall", "points": (), "agents": 2, "players": 2}
FTW |= {"batch": 8, "evolve": False, "rewards": "game", "unroll": 20}
FIVE: dict[str, Any] = {**GIVEN, "env": f"toy:{__name__}:RealShared"}
BOTH = pytest.mark.parametrize(("system", "given"), [("ftw", FTW), ("five", FIVE)])


def wired(system: str, given: dict[str, Any]) -> tuple[Any, Any, list[tuple[str, str]]]:
    page = systems.load(system)
    settings, how, sources = options.resolve(page, serial=True, **given)
    return fitted(settings, sources, lambda c: run._wire(page, c, how, sources))


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


@BOTH
def test_another_word_is_refused_in_one_line(system, given):
    with pytest.raises(UserError, match=r"^actions: 'some' given, allowed: scale, clip|^--actions"):
        wired(system, {**given, "actions": "some"})


def test_pixel_control_is_left_out_of_real_actions_and_refused_where_it_was_given():
    given = {k: v for k, v in FTW.items() if k != "auxiliary"}
    settings, _, left = wired("ftw", given)
    assert settings.auxiliary == "reward"
    assert len(left) == 1
    with pytest.raises(UserError, match=r"^--auxiliary pixel: takes "):
        wired("ftw", {**given, "auxiliary": "pixel"})

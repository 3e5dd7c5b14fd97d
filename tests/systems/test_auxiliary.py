"""UNREAL's auxiliary tasks on a3c and impala: they learn with them, go on, cost what is said; bad input is said."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay import systems
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines
from polyplay.core.tree import Field
from polyplay.games.toys import Catch
from polyplay.learning.unreal import KL
from polyplay.systems._wiring import auxiliary_of
from polyplay.workers.crew import Crew

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
        assert auxiliary_of(page(name, auxiliary=text)) == costs
    assert not hasattr(wired(name).loss, "terms")
    spec = wired(name, auxiliary="value=0.5,pixel")
    assert spec.loss.terms == {"value_replay": 0.5, "pixel_control": 0.05}
    heads = spec.policy().auxiliary
    assert heads.value
    assert heads.reward is None
    assert heads.pixel.cells == (10, 5)
    assert wired(name, core="temporal", auxiliary="value").loss.terms == {**KL, "value_replay": 1.0}


def test_the_network_of_a3c_takes_what_came_before_where_that_is_asked_for():
    plain, informed = (wired("a3c", core="lstm", core_size=8, previous=p).policy() for p in (False, True))
    assert informed.core.inputs == plain.core.inputs + 3 + 1  # an action of three, a reward


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"auxiliary": "sound"}, "--auxiliary: sound given, allowed: pixel, reward, value, a comma between, or none;"),
        ({"auxiliary": "value,value=2"}, "--auxiliary: value=2 given twice, allowed: pixel"),
        ({"auxiliary": "pixel=-1"}, "--auxiliary: pixel=-1 given, allowed for a cost: a number, 0 or more"),
        ({"auxiliary": "value,pixel=much"}, "--auxiliary: pixel=much given, allowed for a cost"),
        ({"auxiliary": "reward=inf"}, "--auxiliary: reward=inf given, allowed for a cost"),
        ({"auxiliary": "reward", "unroll": 2}, "--unroll 2 given, allowed with --auxiliary reward: 3 or more"),
        ({"auxiliary": "pixel", "env": "toy:catch"}, "--auxiliary pixel: takes one image of bytes, here"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(given, said):
    with pytest.raises(UserError, match=re.escape(said)) as e:
        wired("impala", **given)
    assert "\n" not in str(e.value)


def test_where_costs_are_hyperparameters_none_is_given():
    config = SimpleNamespace(auxiliary="pixel,reward=1", unroll=20)
    with pytest.raises(UserError, match=r"--auxiliary: reward=1 given, allowed: pixel, reward, .*--ranges"):
        auxiliary_of(config, ("pixel", "reward"))
    config.auxiliary = "reward,value"
    with pytest.raises(UserError, match="--auxiliary: value given, allowed: pixel, reward, a comma"):
        auxiliary_of(config, ("pixel", "reward"))

"""What may change when a run grows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from polyplay import systems
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs import Envs
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Conditional, Discrete, MultiBinary
from polyplay.runs.options import RunOptions, resolve
from polyplay.runs.surgery import change_options, check_games

PAGE = systems.load("ppo")


def changed(given: dict[str, Any], **changes: Any) -> tuple[Any, RunOptions]:
    settings, options, _ = resolve(PAGE, env="toy:memory", **given)
    return change_options(PAGE, settings, options, "ppo", changes)


def test_layers_keep_their_activation():
    settings, options = changed({"network": "mlp(64,64,relu)"}, hidden=(128, 128))
    assert (settings.network, options.hidden) == ("mlp(128,128,relu)", (128, 128))
    settings, options = changed({"network": "auto"}, hidden=(96,), env="toy:memory+cues=3")
    assert (settings.network, settings.env) == ("auto(96)", "toy:memory+cues=3")


@pytest.mark.parametrize(
    ("given", "changes", "says"),
    [
        ({}, {"core_size": 512}, "--core-size: 512 given, but RUN has no core: leave it out"),
        ({"core": "lstm"}, {"core_size": 64}, "--core-size: 64 given, but RUN has 256, and networks only grow"),
        ({"core": "lstm"}, {"core_size": 256}, "surgery: nothing changes"),
        ({}, {"heroes": 3}, "--heroes: ppo has no such option"),
    ],
)
def test_mistakes(given: dict[str, Any], changes: dict[str, Any], says: str):
    with pytest.raises(UserError) as caught:
        changed(given, **changes)
    assert str(caught.value).startswith(says)


def test_a_core_that_is_there_without_an_option_grows():
    page = systems.load("five")
    settings, options, _ = resolve(page)
    assert change_options(page, settings, options, "five", {"core_size": 8192})[0].core_size == 8192


OLD = EnvSpec({"a": Field((2,), "float32"), "b": Field((), "int64")}, Discrete(2), classes={"b": 3}, seats=2)


def game(spec: EnvSpec) -> Envs:
    envs = Envs("toy:catch", 2)
    envs.__dict__["spec"] = spec
    return envs


@pytest.mark.parametrize(
    "new",
    [
        replace(OLD, obs={"a": Field((5,), "float32"), "c": Field((1, 1), "float32")}, classes={}),
        replace(OLD, action=Discrete(4), classes={"b": 5}, bots={"new": "m:f"}),
    ],
)
def test_games_that_grow(new: EnvSpec):
    check_games(game(OLD), game(new), league=False)


UNITS = Conditional({"v": Discrete(2), "x": Discrete(3)}, {"x": (1,)})


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (replace(OLD, obs=OLD.obs["a"], classes={}), "observations are of another kind"),
        (replace(OLD, obs={"a": Field((2,), "uint8"), "b": OLD.obs["b"]}), "observations are of another kind"),
        (replace(OLD, obs={"a": Field((2, 2), "float32"), "b": OLD.obs["b"]}), "observations are of another kind"),
        (replace(OLD, obs={"c": Field((2,), "float32")}, classes={}), "observations are of another kind"),
        (replace(OLD, classes={}), "observations are of another kind"),
        (replace(OLD, action=MultiBinary((2,))), "actions are of another kind"),
        (replace(OLD, action=UNITS), "actions are of another kind"),
        (replace(OLD, seats=1), "which has 1 seats"),
        (replace(OLD, seats=4), "matches of RUN's league were played with other teams"),
        (replace(OLD, bots={"new": "m:f"}), "matches of RUN's league were played with other bots"),
    ],
)
def test_games_of_another_kind(new: EnvSpec, says: str):
    with pytest.raises(UserError, match=says):
        check_games(game(OLD), game(new), league=True)

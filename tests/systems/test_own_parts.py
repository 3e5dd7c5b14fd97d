"""A loss and an optimizer of the user's own: in every system, resumed, evaluated, refused in one line."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import polyplay
from polyplay import systems
from polyplay.cli import main
from polyplay.core.errors import UserError
from polyplay.extend import PPO, Loss, LossOutput
from polyplay.runs import directory, load
from tests.systems import settings as of
from tests.verbs import refused

HERE = __name__
OF: dict[str, dict[str, Any]] = {
    "a2c": of.A2C, "a3c": of.A3C, "accel": of.ACCEL, "accel_dqn": of.ACCEL_DQN, "alphago_zero": of.BOARD,
    "apex": of.APEX, "apex_dpg": of.AIM, "appo": of.APPO, "dqn": of.DQN, "ga3c": of.GA3C, "gorila": of.GORILA,
    "impala": of.IMPALA, "ppo": of.PPO, "r2d2": {**of.R2D2, "learning_starts": 300}, "rainbow": of.RAINBOW,
    "apex_sac": of.APEX_SAC, "sac": of.SAC, "td3": {**of.SAC, "delay": 1},
}  # fmt: skip
FAST = ("a2c", "a3c", "dqn", "impala", "ppo", "rainbow")
LONG = [pytest.param(name, marks=pytest.mark.long) for name in OF if name not in FAST]


def same(loss: Loss) -> Loss:
    return loss


@dataclass(frozen=True)
class Scratch(Loss):
    """−A·log π(a), of the targets that PPO prepares."""

    own: PPO
    metrics = ("loss",)
    whole = False

    def prepare(self, rows, scale=1.0):
        return self.own.prepare(rows, scale)

    def __call__(self, policy, target, batch, state, hyper):
        return self.made(-(policy.unroll(batch, state)["logp"] * batch["advantage"]).mean(), batch, hyper)

    def made(self, loss, batch, hyper):
        return LossOutput(loss, {"loss": loss.detach()})


@dataclass(frozen=True)
class Subclass(PPO):
    def score(self, out, batch, hyper):
        return super().score(out, batch, {**hyper, "entropy_cost": 0.02})


def subclass(loss: PPO) -> PPO:
    return Subclass(**vars(loss))


tight = partial(replace, clip_range=0.05)


class NotFinite(Scratch):
    def made(self, loss, batch, hyper):
        return super().made(loss / 0.0 - loss / 0.0, batch, hyper)


class Vector(Scratch):
    def made(self, loss, batch, hyper):
        return LossOutput(loss.expand(3), {"loss": loss.detach()})


class NoField(Scratch):
    def made(self, loss, batch, hyper):
        return super().made(loss * batch["advantages"].mean(), batch, hyper)


class NoHyper(Scratch):
    def made(self, loss, batch, hyper):
        return super().made(loss * hyper["cost"], batch, hyper)


class Narrow(Scratch):
    def __call__(self, policy, batch):
        return None


def takes_nothing() -> None:
    """No loss is taken."""


def gives_nothing(loss: Loss) -> None:
    """No loss is given."""


adamw = partial(torch.optim.AdamW, weight_decay=1e-2)


def no_optimizer(parameters: list[torch.Tensor], lr: float) -> list[torch.Tensor]:
    return parameters


@pytest.mark.parametrize("system", [*FAST, *LONG])
def test_every_system_trains_with_both(system: str, tmp_path: Path):
    given = {k: v for k, v in OF[system].items() if k not in ("optimizer", "optimizer_eps", "tensorboard")}
    given |= {"steps": 800, "on": "thread", "compile": "off", "tensorboard": False, "quiet": True}
    run = polyplay.train(system, loss=same, optimizer=torch.optim.NAdam, run=tmp_path / "run", **given)
    assert run.exit_code == 0
    assert run.summary["updates"] > 0


def test_the_table_has_all_systems_but_those_of_several_agents():
    assert {*OF, "five", "ftw", "league"} == {*systems.ordinary()}


@pytest.mark.parametrize("system", ["five", "ftw", "league"])
def test_systems_of_several_agents_are_wired_with_both(system: str, capsys: pytest.CaptureFixture):
    line = f"systems {system} --diagram --loss {HERE}:same --optimizer torch.optim:NAdam"
    assert main.main([*line.split(), *(["--env", "toy:skirmish"] if system == "ftw" else [])]) == 0
    assert "torch.optim:NAdam" in capsys.readouterr().out


CATCH: dict[str, Any] = {**of.PPO, "serial": True, "steps": 600, "quiet": True}


@pytest.mark.parametrize("loss", ["tight", "subclass", "Scratch"])
def test_a_loss_may_be_a_partial_a_subclass_or_made_from_scratch(loss: str, tmp_path: Path):
    run = polyplay.train("ppo", **CATCH, loss=f"{HERE}:{loss}", run=tmp_path / "run")
    assert run.exit_code == 0
    config = directory.read_config(run.directory)
    assert config["options"]["loss"] == f"{HERE}:{loss}"
    assert ("loss", f"{HERE}:{loss}") in directory.code_of(config)
    assert run.evaluate(episodes=2)["episodes"] == 2


def test_the_loss_changes_what_is_learned(tmp_path: Path):
    said = {}
    for name, loss in {"system": None, "same": same, "tight": tight}.items():
        polyplay.train("ppo", **{**CATCH, "trace": True}, loss=loss, run=tmp_path / name)
        said[name] = (tmp_path / name / "updates.jsonl").read_text()
    assert said["system"] == said["same"] != said["tight"]


@pytest.mark.parametrize(("system", "given"), [("ppo", of.PPO), ("dqn", of.DQN)])
def test_a_resumed_run_learns_as_if_it_was_never_stopped(system: str, given: dict[str, Any], tmp_path: Path):
    given = {**given, "serial": True, "trace": True, "quiet": True}
    given |= {"optimizer": f"{HERE}:adamw", "loss": f"{HERE}:same"}
    polyplay.train(system, **{**given, "steps": 1_200}, run=tmp_path / "whole")
    polyplay.train(system, **{**given, "steps": 700}, run=tmp_path / "cut")
    polyplay.resume(tmp_path / "cut", steps=1_200)
    whole, cut = ((tmp_path / name / "updates.jsonl").read_text().splitlines() for name in ("whole", "cut"))
    assert whole == cut


def test_objects_are_found_in_the_process_and_asked_for_in_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given = {"loss": lambda loss: replace(loss, clip_range=0.3), "optimizer": partial(torch.optim.SGD, momentum=0.9)}
    run = polyplay.train("ppo", **CATCH, **given, run=tmp_path / "run")
    assert polyplay.resume(run.directory, steps=900).summary["steps"] >= 900
    monkeypatch.setattr(load, "_given", {})
    assert run.evaluate(episodes=1)["episodes"] == 1, "to look at it takes neither"
    with pytest.raises(UserError, match=r"was started by a program with optimizer=.*resume\(.*, optimizer=…\)"):
        polyplay.resume(run.directory, steps=1_200)
    assert polyplay.resume(run.directory, steps=1_200, **given).summary["steps"] >= 1_200


WRONG = [
    ("--loss", "NotFinite", "class NotFinite: __call__ gave nan for a batch of made-up rows"),
    ("--loss", "Vector", r"class Vector: __call__ gave a loss Tensor \[3\], it must be a tensor \[\] with a gradient"),
    ("--loss", "NoField", "there is no field of a batch 'advantages'; use one of obs, "),
    ("--loss", "NoHyper", "there is no hyperparameter 'cost'; use one of learning_rate, entropy_cost"),
    ("--loss", "Narrow", "class Narrow: __call__ does not take what it is given, too many positional arguments"),
    ("--loss", "takes_nothing", r"takes_nothing\(PPO\) raised TypeError: .*; allowed: module:callable, a function of"),
    ("--loss", "gives_nothing", "class NoneType: it must inherit polyplay.learning.Loss"),
    ("--loss", "absent", "has no 'absent'; allowed: module:callable"),
    ("--optimizer", "absent", "has no 'absent'; allowed: rmsprop_tf, .* or module:callable"),
    (
        "--optimizer",
        "takes_nothing",
        r"failed on four weights: .*; allowed: module:callable, a function of \(\[parameter\]",
    ),
    ("--optimizer", "no_optimizer", "failed on four weights: it returned list; allowed"),
]


@pytest.mark.parametrize(("option", "name", "said"), WRONG)
def test_what_does_not_fit_is_one_line_before_anything_starts(
    option: str, name: str, said: str, capsys: pytest.CaptureFixture, tmp_path: Path
):
    line = ["train", "ppo", "--env", "toy:catch", "--run", str(tmp_path / "run"), option, f"{HERE}:{name}"]
    text = refused(capsys, *line)
    assert text.startswith(f"polyplay: error: {option}: ")
    assert re.search(said, text)
    assert not (tmp_path / "run").exists()


def test_a_module_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture):
    for option in ("--loss", "--optimizer", "--network"):
        assert "no module 'not_here'" in refused(capsys, "train", "ppo", "--env", "toy:catch", option, "not_here:it")


def test_a_population_is_over_a_system_of_the_users_own(tmp_path: Path):
    given: dict[str, Any] = {"env": "toy:catch", "vary": ("learning_rate=1e-3,1e-2",), "population": 2, "every": 256}
    run = polyplay.train("pbt", over="examples.reinforce:system", **given, steps=512, quiet=True, run=tmp_path / "run")
    assert run.exit_code == 0
    assert ("over", "examples.reinforce:system") in directory.code_of(
        directory.read_config(run.directory, population=True)
    )
    assert polyplay.resume(run.directory, steps=768).exit_code == 0

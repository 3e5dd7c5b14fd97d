from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn

import polyplay
from examples import serve
from polyplay.cli import main
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.numbers import ValueUnits, unscale
from polyplay.core.tree import Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Box, Discrete
from polyplay.nets import factory, layers
from polyplay.nets import onnx as export
from polyplay.nets.policy import Torso
from tests.nets.fights import FIGHT

MANY = EnvSpec({"at": Field((3,), "float32"), "n": Field((), "int64")}, Discrete(3), classes={"n": 4})
ONE = np.ones(2, np.float32)
REAL = EnvSpec(Field((5,), "float32"), Box((2,), -ONE, ONE))
IMAGE = EnvSpec(Field((4, 28, 28), "uint8"), Discrete(6))


class Stiff(Torso):
    """A user's network that fixes the number of rows: len() is a plain number."""

    features = 4

    def __init__(self, spec: EnvSpec):
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layer(obs.reshape(len(obs), -1))


def names(model: Any) -> tuple[list[str], list[str]]:
    return [v.name for v in model.graph.input], [v.name for v in model.graph.output]


def test_a_recurrent_policy_of_dict_observations(tmp_path: Path):
    policy = factory.make("mlp", MANY, core="lstm", core_size=16, previous=True)
    file, kinds = tmp_path / "p.onnx", [type(m) for m in policy.modules()]
    told = export.export_onnx(policy, MANY, file, {"system": "a2c"})
    assert [type(m) for m in policy.modules()] == kinds  # torch's own acting is left as it was
    assert layers.pad_lanes(5, torch.device("cpu")) == 3
    model = onnx.load(file)
    state = ["state/h", "state/c", "state/action"]
    assert names(model) == (
        ["obs/at", "obs/n", "reward", "first", *state],
        ["action", "value", "next/h", "next/c", "next/action"],
    )
    kept = json.loads(next(p.value for p in model.metadata_props if p.key == "polyplay"))
    assert (kept["system"], kept["lanes"], kept["actions"]) == ("a2c", "any", "mode")
    assert kept["inputs"]["obs/at"] == {"shape": ["lanes", 3], "dtype": "float32"}
    assert kept["outputs"]["action"] == {"shape": ["lanes"], "dtype": "int64"}
    assert told["checked"].endswith("100 % of actions are the same"), "three steps, the state carried between them"
    with pytest.raises(SystemExit, match="without memory and masks"):
        serve.load_onnx(str(file))


@pytest.mark.long
def test_actions_that_name_a_unit(tmp_path: Path):
    policy = factory.make("five", FIGHT, "lstm", 8, init="torch", inputs="normalize", hidden=8, embedding=8)
    told = export.export_onnx(policy, FIGHT, tmp_path / "p.onnx", {})
    assert told["lanes"] == "any"
    assert told["inputs"]["obs/towers"] == {"shape": ["lanes", 4, 2], "dtype": "float32"}
    assert told["checked"].endswith("100 % of actions are the same")


def test_an_image_network_with_its_mean_picture_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(export, "CHECKED", (1, 2))
    policy = factory.make("a3c", IMAGE, hidden=16, inputs="center")
    policy.observe({"obs": torch.randint(0, 255, (3, 2, 4, 28, 28), dtype=torch.uint8)})
    told = export.export_onnx(policy, IMAGE, tmp_path / "p.onnx", {})
    assert list(told["inputs"]) == ["obs"]  # it hears nothing else: no core, no previous reward
    assert told["inputs"]["obs"]["dtype"] == "uint8"
    policy.inputs.mean.zero_()  # type: ignore[union-attr]
    assert export.compare_outputs(policy, IMAGE, (tmp_path / "p.onnx").read_bytes(), (1,))[0] > 1e-4


def test_action_values_are_exported_for_any_number_of_lanes(tmp_path: Path):
    spec = EnvSpec(Field((5,), "float32"), Discrete(4))
    options = {"dueling": True, "atoms": 11, "noisy": "zoo", "core": "lstm", "core_size": 8, "previous": True}
    told = export.export_onnx(factory.make_values("mlp", spec, **options), spec, tmp_path / "q.onnx", {})
    assert told["lanes"] == "any"
    assert "100 % of actions are the same" in told["checked"]
    state = {"state/h", "state/c", "state/action"}
    assert set(told["inputs"]) == {"obs", "reward", "first", *state}


@pytest.mark.parametrize("options", [{}, {"actor": "deterministic"}, {"normalization": "batch", "width": 16}])
def test_an_actor_with_critics_is_exported_without_values(tmp_path: Path, options: dict[str, Any]):
    told = export.export_onnx(factory.make_critics("mlp", REAL, **options), REAL, tmp_path / "p.onnx", {})
    assert list(told["outputs"]) == ["action"]
    assert told["outputs"]["action"]["shape"] == ["lanes", 2]


def test_what_cannot_be_exported_is_refused_in_one_line_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "p.onnx"
    with pytest.raises(UserError, match="--onnx: torch cannot export this network: ") as refused:
        export.export_onnx(factory.make(Stiff, REAL), REAL, file, {})
    assert "\n" not in str(refused.value)
    with monkeypatch.context() as patch:
        patch.setattr(export, "compare_outputs", lambda *_: (1.0, 1.0))
        with pytest.raises(UserError, match=r"--onnx: the exported network is not this one: numbers differ by"):
            export.export_onnx(factory.make("mlp", REAL), REAL, file, {})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="--onnx: there is no directory"):
        export.check_export(tmp_path / "x" / "p.onnx")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the package onnx and onnxscript; `pip install .*\[onnx\]'`"):
        export.check_export(file)


def test_own_rewards_are_inside(tmp_path: Path):
    """The file takes events, and no reward: it has their weights."""
    spec = EnvSpec(Field((5,), "float32"), Discrete(3), events=("kill", "death"))
    policy = factory.make("mlp", spec, previous=True, rewards=spec.events, hidden=(8,))
    policy.rewards.apply_hyperparameters({"reward_kill": 0.5, "reward_death": -0.2})
    told = export.export_onnx(policy, spec, tmp_path / "p.onnx", {})
    assert set(told["inputs"]) == {"obs", "events", "first", "state/action"}
    assert told["inputs"]["events"] == {"shape": ["lanes", 2], "dtype": "float32"}
    data = (tmp_path / "p.onnx").read_bytes()
    assert export.compare_outputs(policy, spec, data, (3,))[0] < 1e-4
    policy.rewards.apply_hyperparameters({"reward_kill": -0.5})
    assert export.compare_outputs(policy, spec, data, (3,))[0] > 1e-4


@pytest.mark.parametrize("units", [ValueUnits(rescale=1e-3), ValueUnits(0.25)])
def test_the_file_s_values_are_in_the_environments_units(units: ValueUnits, tmp_path: Path):
    policy = factory.make("mlp", REAL, returns=0.9)
    policy.returns.total.fill_(8.0)
    policy.returns.count.fill_(2.0)  # rewards count half
    export.export_onnx(policy, REAL, tmp_path / "p.onnx", {}, units)
    obs = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    with torch.no_grad():
        own = policy.act({"obs": torch.from_numpy(obs)}, {})[0]["value"].numpy()
    value = ReferenceEvaluator(onnx.load(tmp_path / "p.onnx")).run(["value"], {"obs": obs})[0]
    by_hand = 2.0 * unscale(own, 1e-3) if units.rescale else 2.0 * own / 0.25
    assert value == pytest.approx(by_hand, rel=1e-3)


def test_a_run_is_exported_by_the_command_and_acts_in_onnxruntime(tmp_path: Path, capsys: pytest.CaptureFixture):
    """Its normalizer is inside: the file takes the environment's own observations."""
    run, file = tmp_path / "r", tmp_path / "p.onnx"
    settings = {"env": "CartPole-v1", "inputs": "normalize", "reward": "scale", "lanes": 4, "replicas": 1}
    polyplay.train("a2c", **settings, steps=400, serial=True, run=str(run))
    capsys.readouterr()
    assert main.main(["export", str(run), "--onnx", str(file)]) == 0
    assert "numbers differ by at most" in capsys.readouterr().out
    kept = json.loads(onnx.load(file).metadata_props[0].value)
    assert (kept["env"], kept["system"]) == ("CartPole-v1", "a2c")
    assert kept["checkpoint"] == checkpoint.newest(run, print).name
    assert kept["counters"]["steps"] >= 400
    assert main.main(["export", str(run), "--onnx", str(file), "--checkpoint", "7"]) == 2

    obs = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    agent, session = polyplay.load(run), onnxruntime.InferenceSession(file)
    value = session.run(["value"], {"obs": obs})[0]
    np.testing.assert_allclose(value, agent.value(obs), rtol=1e-4, atol=1e-4)
    shape, dtype, act = serve.load_onnx(str(file))
    assert (shape, dtype) == ((4,), np.float32)
    assert (act(obs) == agent.act(obs, greedy=True)[0]).mean() >= 0.998, "two actions may be equally likely"
    (moments,) = agent._policy.inputs.moments
    moments.mean += 1.0
    assert np.abs(value - agent.value(obs)).max() > 0.05, "with another normalizer the values are others"

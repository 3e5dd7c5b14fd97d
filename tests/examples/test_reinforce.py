"""The example of a system outside the package: it is short, trains, resumes, evaluates, and is not executed unasked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import polyplay
from examples import reinforce
from polyplay.cli import main
from polyplay.core.errors import UserError
from polyplay.runs.directory import read_config
from tests.verbs import refused

CATCH: dict[str, Any] = {"env": "toy:catch", "tensorboard": False, "quiet": True}


def test_it_is_short():
    assert len(Path(reinforce.__file__).read_text().splitlines()) <= 60


def test_it_learns(tmp_path: Path):
    more: dict[str, Any] = {"steps": 14_000, "serial": True, "learning_rate": 1e-2}
    run = polyplay.train(reinforce.system, **CATCH, **more, run=tmp_path / "run")
    assert run.summary["episodic_return_mean"] > 0.7  # random play: -0.6


def test_its_runs_go_on_and_are_evaluated_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    run = polyplay.train(reinforce.system, **CATCH, steps=256, run=tmp_path / "run")  # its workers are processes
    assert read_config(run.directory)["system"] == "examples.reinforce:system"
    assert run.evaluate(episodes=2)["episodes"] == 2
    assert polyplay.load(run.directory).config["system"] == "examples.reinforce:system"
    assert main.main(["resume", str(run.directory), "--steps", "512"]) == 0
    assert "SYSTEM examples.reinforce:system executes examples.reinforce of " in capsys.readouterr().err
    assert polyplay.train(config=run.directory, steps=128, run=tmp_path / "again").exit_code == 0

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))  # another user's key
    monkeypatch.setattr("polyplay.runs.load._given", {})  # and process
    with pytest.raises(UserError, match=r"made elsewhere, and its SYSTEM examples\.reinforce:system would execute"):
        polyplay.resume(run.directory, steps=600)
    assert polyplay.resume(run.directory, steps=600, trust=True).summary["steps"] >= 600


def test_the_command_line_takes_it_too(capsys: pytest.CaptureFixture, tmp_path: Path):
    line = f"train examples.reinforce:system --env toy:catch --steps 128 --serial --run {tmp_path / 'run'}"
    assert main.main(line.split()) == 0
    capsys.readouterr()
    assert main.main(["train", "examples.reinforce:system", "--help-all"]) == 0
    assert "weight of the entropy bonus" in capsys.readouterr().out
    assert "has no 'sytem'" in refused(capsys, "train", "examples.reinforce:sytem")

"""A run made elsewhere executes nothing of this machine's, nor of its own, without a word."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

import polyplay
from polyplay.cli import main
from polyplay.common.errors import UserError
from polyplay.runs import run as runs
from polyplay.runs import trust
from tests import made

ENV = """
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()
import gymnasium
def make():
    return gymnasium.make("CartPole-v1")
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of an environment in a module of the current directory."""
    (tmp_path / "strange_game.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return made.run(tmp_path / "run", env="strange_game:make", ended=False, serial=True, steps=100)


def test_ones_own_run_says_which_file_it_executes(run: Path, capfd: pytest.CaptureFixture):
    assert main.main(["evaluate", str(run), "--episodes", "1"]) == 0
    file = run.parent / "strange_game.py"
    assert capfd.readouterr().err.startswith(f"polyplay: the run's environment strange_game:make executes {file}\n")


@pytest.mark.parametrize("verb", ["evaluate", "resume", "resume --dry-run", "export --onnx x.onnx", "verify"])
def test_a_strangers_run_needs_trust(verb: str, run: Path, monkeypatch, capfd: pytest.CaptureFixture):
    monkeypatch.setenv("XDG_DATA_HOME", str(run.parent / "another"))
    (run.parent / "strange_game.ran").unlink(missing_ok=True)
    monkeypatch.delitem(sys.modules, "strange_game", raising=False)
    name, *more = verb.split()
    if name == "verify":
        evaluation = dict.fromkeys(("versions", "machine", "starts"), None) | {"returns": [1.0], "episodes": 1}
        evaluation |= {"episodic_return_mean": 1.0, "config_hash": "", "protocol": "run", "lanes": 1, "seed": 0}
        evaluation |= {"epsilon": 0.0, "actions": "sampled", "checkpoint": "7", "checkpoint_sha256": ""}
        (run / "evaluation-7.json").write_text(json.dumps(evaluation))
    assert main.main([name, str(run), *more]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert (
        f"was made elsewhere, and its environment strange_game:make would execute {run.parent}/strange_game.py" in err
    )
    assert "--trust" in err
    assert not (run.parent / "strange_game.ran").exists()


def test_a_word_is_enough_and_a_changed_name_is_not_ones_own(run: Path, monkeypatch):
    config = json.loads((run / "config.json").read_text())
    config["config"]["env"] = "other_game:make"
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="would execute the module other_game, which is not found here"):
        polyplay.evaluate(run, episodes=1)
    config["config"]["env"] = "strange_game:make"
    (run / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("XDG_DATA_HOME", str(run.parent / "another"))
    assert polyplay.evaluate(run, episodes=1, trust=True)["episodes"] == 1


def test_a_network_by_name_is_code_too(tmp_path: Path, monkeypatch):
    run = made.run(tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config["config"]["network"] = "strange_net:make"
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="its network strange_net:make would execute the module strange_net"):
        polyplay.evaluate(run, episodes=1)


def test_other_environments_need_none(tmp_path: Path, monkeypatch, capfd: pytest.CaptureFixture):
    run = made.run(tmp_path / "run")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another"))
    assert main.main(["evaluate", str(run), "--episodes", "1"]) == 0
    assert "executes" not in capfd.readouterr().err
    assert "signature" not in json.loads((run / "config.json").read_text())
    names = ("ALE/Pong-v5", "toy:catch", "game:connect:4x5x3", "envpool:Pong-v5", "CartPole-v1", None, "a:b", "toy:a:b")
    assert [trust.runs_code(name) for name in names] == [False] * 6 + [True] * 2


def test_a_module_within_packages_is_found_and_nothing_executed(tmp_path: Path, monkeypatch):
    package = tmp_path / "strange_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit")
    (package / "game.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert trust.module_file("strange_package.game") == str(package / "game.py")
    assert "not found" in trust.module_file("strange_package.none")
    shutil.rmtree(package)
    assert "not found" in trust.module_file("strange_package.game")


def test_a_run_that_cannot_be_signed_says_so_once(tmp_path: Path, monkeypatch, capfd: pytest.CaptureFixture):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))  # also for root nothing can be made within a file
    (tmp_path / "strange_game.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    kw = {"network": "mlp", "lanes": 4, "serial": True, "steps": 100, "tensorboard": False}
    polyplay.train("a2c", env="strange_game:make", run="one", **kw)
    said = capfd.readouterr().err
    assert said.count("is not signed: whoever opens it says --trust") == 1
    assert f"{tmp_path}/file/polyplay/key cannot be written" in said
    polyplay.train("a2c", env="toy:catch", run="two", **kw)
    assert "signed" not in capfd.readouterr().err


def test_resume_auto_trusts_what_its_own_command_names(run: Path, monkeypatch):
    trusted: list[bool] = []

    def resume(directory: Path, changes: object, trust: bool, *others: object) -> runs.RunResult:
        trusted.append(trust)
        return runs.RunResult(directory)

    monkeypatch.setattr(runs, "resume", resume)
    for given in ({}, {"env": "strange_game:make"}):
        polyplay.train("a2c", run=str(run), resume="auto", **given)
    assert trusted == [False, True]


def test_what_a_notebook_defines_executes_no_file():
    assert not trust.runs_code("__main__:Follow")
    assert trust.runs_code("strange_game:make")

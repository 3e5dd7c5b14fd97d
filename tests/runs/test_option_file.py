from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import polyplay
from polyplay.cli import main
from polyplay.core.errors import UserError
from polyplay.runs import options
from polyplay.runs.options import parse, read_option_file, resolve
from polyplay.systems import load

TOML = 'system = "a2c"\nenv = "toy:catch"\nnetwork = "mlp"\nlanes = 4\nsteps = 1e3\nlearning-rate = 2e-3\n'
FILES = {
    "a.toml": TOML,
    "a.json": json.dumps(
        {"env": "toy:catch", "network": "mlp", "lanes": 4, "steps": "1k", "learning_rate": 2e-3} | {"system": "a2c"}
    ),
    "a.yaml": "system: a2c\nenv: toy:catch\nnetwork: mlp\nlanes: 4\nsteps: 1e3\nlearning_rate: 2e-3\n",
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_is_read(tmp_path: Path, name: str):
    if name.endswith("yaml"):
        pytest.importorskip("yaml")
    path = tmp_path / name
    path.write_text(FILES[name])
    file = read_option_file(path)
    assert file.choose_system(None) == "a2c"
    settings, options, sources = parse(load("a2c"), ["--lanes", "8"], file=file)
    assert (settings.env, settings.lanes, settings.learning_rate, options.steps) == ("toy:catch", 8, 2e-3, 1000)
    assert (sources["lanes"], sources["steps"], sources["gamma"]) == ("command line", f"config {path}", "default")


def test_a_limit_given_overrides_the_files(tmp_path: Path):
    path = tmp_path / "a.toml"
    path.write_text(TOML)
    _, options, sources = resolve(load("a2c"), read_option_file(path), frames=50)
    assert (options.frames, options.steps, sources["frames"]) == (50, None, "keyword")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    there = tmp_path_factory.mktemp("config") / "run"
    quick = {"env": "toy:catch", "network": "mlp", "lanes": 4, "serial": True, "tensorboard": False}
    polyplay.train("a2c", **quick, seed=5, steps=200, run=there, quiet=True)
    return there


def test_a_run_is_repeated_from_its_directory(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    assert main.main(["train", "--config", str(run), "--run", str(tmp_path / "again"), "--quiet"]) == 0
    was, now = (json.loads((there / "config.json").read_text()) for there in (run, tmp_path / "again"))
    assert now["config"] == was["config"]
    assert now["seed"] == 5
    assert now["sources"]["env"] == f"config {run}/config.json"
    assert now["sources"]["gamma"] == was["sources"]["gamma"] == "default"
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("done · ")


def test_in_python_too(run: Path, tmp_path: Path):
    again = polyplay.train(config=run / "config.json", steps=100, run=tmp_path / "again", quiet=True)
    assert again.settings is not None
    assert (again.settings.env, again.exit_code) == ("toy:catch", 0)
    with pytest.raises(UserError, match=r"SYSTEM: ppo given, but .* is of a2c"):
        polyplay.train("ppo", config=run)
    with pytest.raises(UserError, match="train takes a system first"):
        polyplay.train(steps=10)


WRONG = {
    "unknown.toml": ("system = 'a2c'\nlane = 3\n", "unknown option lane; did you mean lanes?"),
    "value.toml": ("system = 'a2c'\nlanes = 'many'\n", "lanes: 'many' given, allowed: a whole number"),
    "torn.toml": ("lanes = 3\nenv = CartPole-v1\n", 'at line 2, column 7); write options as in env = "CartPole-v1", a'),
    "torn.json": (
        "{",
        "is no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1); write",
    ),
    "list.json": ("[1]", "has no options"),
    "none.toml": ("lanes = 3\n", "names no system"),
    "kind.ini": ("", "allowed: a file .json, .toml or .yaml"),
    "system.toml": ("system = 3\n", "allowed: the name of a system"),
    "schema.json": ('{"schema": 99, "system": "a2c"}', "has schema 99, this version reads 1"),
    "damaged.json": ('{"schema": 1, "system": "a2c"}', "is damaged"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_one_line(tmp_path: Path, name: str, capsys: pytest.CaptureFixture):
    text, message = WRONG[name]
    (tmp_path / name).write_text(text)
    assert main.main(["train", "--config", str(tmp_path / name)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--config: " in line
    assert message in line


def test_absent_files_and_yaml_without_a_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_option_file(tmp_path / "absent.toml")
    (tmp_path / "a.yml").write_text("lanes: 3\n")
    monkeypatch.setattr(options.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install pyyaml, or write TOML"):
        read_option_file(tmp_path / "a.yml")


def test_a_wrapper_of_a_run_made_elsewhere_is_not_executed_either(run: Path, tmp_path: Path):
    contents = json.loads((run / "config.json").read_text())
    contents["options"]["wrapper"] = ["antigravity:make"]
    (tmp_path / "config.json").write_text(json.dumps(contents))
    with pytest.raises(UserError, match=r"made elsewhere.* then give --wrapper antigravity:make as well"):
        read_option_file(tmp_path)
    assert read_option_file(tmp_path, ("wrapper",)).values["wrapper"] == ["antigravity:make"]


def test_a_run_made_elsewhere_executes_nothing_by_name(run: Path, tmp_path: Path):
    shutil.copy(run / "config.json", tmp_path)
    contents = json.loads((tmp_path / "config.json").read_text())
    contents["config"]["env"] = "antigravity:make"
    (tmp_path / "config.json").write_text(json.dumps(contents))
    with pytest.raises(UserError, match=r"made elsewhere.* then give --env antigravity:make as well"):
        read_option_file(tmp_path)
    assert read_option_file(tmp_path, ["env"]).system == "a2c"

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
from pathlib import Path

import pytest

from polyplay.cli import main
from polyplay.cli.play import resign_value
from polyplay.core import checkpoint
from polyplay.games.records import NEVER
from polyplay.runs.directory import read_config

CHAMPION = Path(__file__).parents[2] / "bench" / "champions" / "connect_four"


def run_of(root: Path, system: str = "alphago_zero", env: str = "game:connect_four", **more: object) -> str:
    """The champion's directory without its checkpoints."""
    config = read_config(CHAMPION)
    config |= {"system": system, "config": {"env": env} if system == "ppo" else {**config["config"], "env": env}}
    root.mkdir(exist_ok=True)
    (root / "config.json").write_text(json.dumps({**config, **more}))
    return str(root)


def complaint(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main.main(["play", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("polyplay: error: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--port", "0"], "--port: 0 given, allowed: 1 to 65535"),
        (["--simulations", "-1"], "--simulations: -1 given, allowed: 0 to 100000"),
        (["--simulations", "100001"], "--simulations: 100001 given, allowed: 0 to 100000"),
        (["--resign", "soon"], "--resign: soon given; allowed: auto, off, or a value from -1 to 0"),
        (["--resign", "0.5"], "--resign: 0.5 given; allowed: auto, off, or a value from -1 to 0"),
        (["--resign", "off"], "--resign: off given, but only --gtp resigns: add --gtp, or leave it out"),
        (["--checkpoint", "7"], "--checkpoint: '7' given, allowed: best, none there yet"),
        ([], "has no usable checkpoint (none there); let it run on"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str):
    run = run_of(tmp_path / "run")
    assert says in complaint([run, "--trust", *([] if "--port" in options else free_port()), *options], capsys)


def free_port() -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return ["--port", str(free.getsockname()[1])]


def test_a_run_is_named_first(capsys: pytest.CaptureFixture[str]):
    assert "play takes the directory of a run first: polyplay play runs/…" in complaint([], capsys)
    assert "no run at nowhere" in complaint(["nowhere"], capsys)


@pytest.mark.parametrize(("system", "env"), [("ppo", "toy:catch"), ("impala", "ALE/Pong-v5")])
def test_a_run_without_a_board_game(tmp_path: Path, capsys: pytest.CaptureFixture[str], system: str, env: str):
    said = complaint([run_of(tmp_path / "run", system, env)], capsys)
    assert f"play: {tmp_path / 'run'} is a run of {system} on {env}; allowed: a run of alphago_zero" in said
    assert "polyplay train alphago_zero --env game:connect_four" in said


def test_a_port_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"--port: {port} is in use" in complaint([run_of(tmp_path / "run"), "--port", str(port)], capsys)


def test_a_missing_extra_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = complaint([run_of(tmp_path / "run")], capsys)
    assert "play needs starlette and uvicorn: pip install 'polyplay[watch]'" in said


def test_a_run_of_a_board_game_that_does_not_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import polyplay

    run = tmp_path / "run"
    polyplay.train("ppo", env="game:tic_tac_toe", steps=200, run=str(run), quiet=True, tensorboard=False)
    said = complaint([str(run), *free_port()], capsys)
    assert f"play: {run} is a run of ppo on game:tic_tac_toe; allowed: a run of alphago_zero" in said
    shutil.rmtree(run)


def test_a_game_whose_moves_are_no_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import polyplay

    pytest.importorskip("pyspiel")
    run, small = tmp_path / "run", {"blocks": 1, "filters": 4, "simulations": 4, "start": 50, "batch": 16}
    settings = {"env": "game:spiel:nim", "preset": "tic_tac_toe", "steps": 100, "serial": True, "tensorboard": False}
    polyplay.train("alphago_zero", run=str(run), **settings, **small)
    capsys.readouterr()
    said = complaint([str(run), *free_port()], capsys)
    assert (
        f"play: {run} plays game:spiel:nim, whose moves are no cells of a board; allowed: games where they are" in said
    )


@pytest.mark.parametrize(
    ("champion", "given", "value"),
    [
        ("go9", "auto", -0.83),
        ("go5", "auto", -0.86),
        ("connect_four", "auto", NEVER),
        ("go9", "off", NEVER),
        ("go9", "-0.5", -0.5),
    ],
)
def test_a_champion_resigns_as_it_learned_to(champion: str, given: str, value: float):
    (found,) = checkpoint.everything(CHAMPION.parent / champion)
    assert resign_value(given, found) == value

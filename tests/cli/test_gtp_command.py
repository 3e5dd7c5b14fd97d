"""`polyplay play RUN --gtp` as a program of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import polyplay
from polyplay.cli import main
from tests.cli.test_play import CHAMPION

SMALL = {
    "players": 1,
    "games": 4,
    "simulations": 4,
    "blocks": 1,
    "filters": 4,
    "batch": 8,
    "start": 16,
    "capacity": 100,
}


def test_a_run_of_go_answers_on_stdout_alone(tmp_path: Path):
    settings = {"preset": "go5", "env": "game:go+size=3+komi=0.5", "steps": 100, "tensorboard": False, "serial": True}
    run = polyplay.train("alphago_zero", run=str(tmp_path / "run"), **settings, **SMALL)
    command = [sys.executable, "-m", "polyplay", "play", str(run.directory), "--gtp"]
    lines = "boardsize 3\nclear_board\ngenmove b\nplay w pass\n7 final_score\nquit\n"
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120)
    answers = done.stdout.split("\n\n")
    assert done.returncode == 0, done.stderr
    assert answers[0] == answers[1] == "="
    assert answers[2].startswith("= ")
    assert answers[4].startswith("=7 ")
    assert answers[5:] == ["=", ""]


def test_another_game_is_one_line(capsys: pytest.CaptureFixture[str]):
    assert main.main(["play", str(CHAMPION), "--gtp", "--trust"]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert said == f"polyplay: error: --gtp: {CHAMPION} plays connect_four; allowed: a run of game:go\n"

"""`polyplay play RUN --games`: a table of 80 columns, the same as JSON, and one line for each mistake."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyplay.cli import main
from polyplay.cli.gtp import load_sgf
from polyplay.core.files import Row
from polyplay.games import board_rules, records
from polyplay.games.boards import Game, Go
from polyplay.games.boards import game as game_of
from polyplay.search.self_play import GameNotes
from tests.runs.test_directory import make_run
from tests.search.twins import found
from tests.verbs import refused

GO = {"wall_seconds": 9.5, "steps": 123_456_789, "updates": 700_001, "kind": "gate", "game": "go+size=9+komi=7"}
GO |= {"name": "gate-700000-399", "black": 700_000, "white": 699_000, "outcome": -1, "margin": 3.5, "resigned": False}
GO |= {"moves": ["E5", "pass"], "values": [0.25, None], "visits": [30, 0], "searched": [100, 0]}
SELF = GO | {"kind": "self_play", "name": "self_play-1000-4", "black": 9, "white": 9, "margin": None, "resigned": True}


def run_with(root: Path, *rows: Any) -> Path:
    run = make_run(root, "run")
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    (run / "games.jsonl").write_text("".join(line + "\n" for line in lines))
    return run


def listed(run: Path, capsys: pytest.CaptureFixture[str]) -> list[Row]:
    assert main.main(["play", str(run), "--games", "--json"]) == 0
    found: list[Row] = json.loads(capsys.readouterr().out)
    return found


def test_a_table_of_80_columns_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    rows = [GO, SELF, GO | {"outcome": 1, "margin": 12.0}, GO | {"outcome": 0}, GO | {"margin": None}]
    run = run_with(tmp_path, *rows, "{", "[]", {"steps": 1}, '{"torn')
    (run / "games.jsonl").write_text((run / "games.jsonl").read_text()[:-1])
    assert main.main(["play", str(run), "--games"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    listed_rows = [line.split() for line in lines if "-" in line]
    assert [row[-1] for row in listed_rows] == ["W+3.5", "W+R", "B+12", "0", "W+"], "as in SGF"
    assert listed_rows[:2] == [
        ["1", "gate-700000-399", "123M", "700,000", "699,000", "2", "W+3.5"],
        ["2", "self_play-1000-4", "123M", "9", "9", "2", "W+R"],
    ]
    assert listed(run, capsys) == [{"number": i, **row} for i, row in enumerate(rows, 1)]


def test_a_run_without_games_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = make_run(tmp_path, "run")
    assert f"RUN: {run} has no games; runs of alphago_zero record games" in refused(capsys, "play", run, "--games")
    assert "play takes the directory of a run first" in refused(capsys, "play", "--games")


def random_game(board: Game, seed: int, moves: int = 1000) -> Row:
    """A line of games.jsonl; one that is cut off after so many moves is resigned. The first move was not searched."""
    random, notes, record, result = np.random.default_rng(seed), GameNotes(board, 1), board.new(), records.GOES_ON
    room, n, at = np.zeros(board.actions, np.int16), 0, np.array([0])
    while result == records.GOES_ON and n < moves:
        action = int(random.choice(room[: board_rules.legal(board.numbers, record, room)]))
        result, n = board_rules.play(board.numbers, record, action), n + 1
        visits = np.eye(1, board.actions, action, np.int32) * n
        notes.add(at, np.array([action]), found(visits, -n / 1000))
        if n == 1:
            notes.begin(0, notes.action[0, :1].copy())
    outcome = {records.WON: 1, records.DRAWN: 0, records.LOST: -1}.get(result, 1) * (-1) ** (n - 1)
    about = {"steps": 10 * seed, "kind": "gate", "name": f"gate-20-{seed}", "black": 20, "white": 10}
    return about | notes.row(0, outcome)


def exported(root: Path, *rows: Row) -> list[Path]:
    out = root / "games"
    assert main.main(["play", str(run_with(root, *rows)), "--games", "--export", str(out)]) == 0
    return sorted(out.iterdir())


def test_go_comes_back_as_the_same_games(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("sgfmill")
    names = ("go+size=5+komi=24.5", "go+size=9+komi=7", "go+size=13+ko=situational", "go+size=3+suicide")
    boards = [game_of(name) for name in names]
    rows = [random_game(board, seed, 40 if seed == 2 else 1000) for seed, board in enumerate(boards)]
    files = exported(tmp_path, *rows)
    assert capsys.readouterr().out == f"4 games written to {tmp_path / 'games'}\n"
    assert [file.name for file in files] == [f"{i + 1:05d}-gate-20-{i}.sgf" for i in range(4)]
    for board, row, file in zip(boards, rows, files, strict=True):
        assert isinstance(board, Go)
        read, known = load_sgf(str(file), replace(board, halves=0))
        assert (read.komi, known, read.stones(0).any()) == (board.halves / 2, True, False)
        assert [(1 + i % 2, move) for i, move in enumerate(row["moves"])] == [(c, read.name(a)) for c, a in read.moves]


def test_sgf_says_who_played_by_which_rules_and_what_they_thought(tmp_path: Path):
    sgf = pytest.importorskip("sgfmill.sgf")
    board = game_of("go+size=5+komi=0.5+ko=simple+suicide")
    rows = [random_game(board, 1), random_game(board, 2, 3)]
    whole, resigned = (sgf.Sgf_game.from_bytes(file.read_bytes()) for file in exported(tmp_path, *rows))
    root = whole.get_root()
    assert root.get_raw("FF") == b"4"
    assert (whole.get_size(), whole.get_komi()) == (5, 0.5)
    assert root.get("RU") == "area scoring, simple ko, suicide allowed"
    assert (whole.get_player_name("b"), whole.get_player_name("w")) == ("run, update 20", "run, update 10")
    assert root.get("RE") == f"{'B' if rows[0]['outcome'] > 0 else 'W'}+{rows[0]['margin']:g}"
    assert resigned.get_root().get("RE") == "B+R"
    first, second, third = list(resigned.get_main_sequence())[1:]
    assert not first.has_property("C")
    assert [node.get("C") for node in (second, third)] == [
        "value -0.002, 2 of 2 visits",
        "value -0.003, 3 of 3 visits",
    ]


def test_other_games_have_no_sgf(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = run_with(tmp_path, random_game(game_of("connect_four"), 3))
    said = refused(capsys, "play", run, "--games", "--export", tmp_path / "out")
    assert said.endswith("--export: connect four has no SGF; --json prints its moves")
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine").write_text("mine")
    run, out = run_with(tmp_path / "runs", random_game(game_of("tic_tac_toe"), 1)), tmp_path / "mine"
    for place in (out, tmp_path):
        said = refused(capsys, "play", run, "--games", "--export", place)
        assert said.endswith(f"--export {place}: must be a new or an empty directory")
    assert out.read_text() == "mine"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"moves": ["Z9"]}, "Z9 is not a point of the board"),
        ({"values": ["?"]}, "Unknown format code"),
        ({"game": "go+size=99"}, "game:go+size=99: size must be from 3 to 19, got 99"),
    ],
)
def test_a_damaged_game_is_named_and_nothing_is_written(
    more: Row, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    row, out = random_game(game_of("go+size=5"), 1, 1), tmp_path / "out"
    said = refused(capsys, "play", run_with(tmp_path, row, row | more), "--games", "--export", out)
    assert said.startswith(f"polyplay: error: RUN: game 2 of games.jsonl is damaged: {why}")
    assert not out.exists()

"""`polyplay games`: a table of 80 columns, the same as JSON, some of the games, and one line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from polyplay.cli import games, main
from polyplay.core.files import Row
from tests.runs.test_directory import make_run

GO = {"wall_seconds": 9.5, "steps": 123_456_789, "updates": 700_001, "kind": "gate", "game": "go+size=9+komi=7"}
GO |= {"name": "gate-700000-399", "black": 700_000, "white": 699_000, "outcome": -1, "margin": 3.5, "resigned": False}
GO |= {"moves": ["E5", "pass"], "values": [0.25, None], "visits": [30, 0], "searched": [100, 0]}
SELF = GO | {"kind": "self_play", "name": "self_play-1000-4", "black": 9, "white": 9, "margin": None, "resigned": True}


def run_with(root: Path, *rows: Any) -> Path:
    run = make_run(root, "run")
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    (run / "games.jsonl").write_text("".join(line + "\n" for line in lines))
    return run


def listed(run: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[Row]:
    assert main.main(["games", str(run), "--json", *words]) == 0
    found: list[Row] = json.loads(capsys.readouterr().out)
    return found


def test_the_table_fits_80_columns_and_cuts_nothing(tmp_path: Path):
    console = Console(width=80, record=True, color_system=None)
    console.print(games.table_of_games(games.read_games(run_with(tmp_path, GO, *[SELF] * 9_999))[:2]))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    rows = [line.split() for line in text.splitlines() if "-" in line]
    assert rows[0] == ["1", "gate-700000-399", "123M", "700,000", "699,000", "2", "W+3.5"]
    assert rows[1] == ["2", "self_play-1000-4", "123M", "9", "9", "2", "W+R"]


def test_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = run_with(tmp_path, GO, SELF, GO | {"name": "gate-700000-400"})
    assert main.main(["games", str(run)]) == 0
    assert capsys.readouterr().out.count("gate-700000") == 2
    assert listed(run, capsys) == [
        {"number": i, **row} for i, row in enumerate([GO, SELF, GO | {"name": "gate-700000-400"}], 1)
    ]
    assert [row["number"] for row in listed(run, capsys, "--numbers", "2..3")] == [2, 3]
    assert [row["number"] for row in listed(run, capsys, "--numbers", "3")] == [3]


@pytest.mark.parametrize("numbers", ["0", "4", "2..4", "3..2", "x", "1..", "-1", "1,2"])
def test_numbers_that_are_not_there_are_named(numbers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = run_with(tmp_path, *[GO] * 3)
    assert main.main(["games", str(run), f"--numbers={numbers}"]) == 2
    said = capsys.readouterr().err
    assert said == f"polyplay: error: --numbers: {numbers} given; allowed: numbers from 1 to 3, as 3..7 or 3\n"


def test_damaged_lines_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    bad = ["{", "[]", {"steps": 1}, GO | {"moves": 3}, GO | {"values": []}, GO | {"game": None}, GO | {"black": "x"}]
    run = run_with(tmp_path, *bad, GO, '{"torn'[:-1])
    (run / "games.jsonl").write_text((run / "games.jsonl").read_text()[:-1])
    assert listed(run, capsys) == [{"number": 1, **GO}]


def test_a_run_without_games_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = make_run(tmp_path, "run")
    assert main.main(["games", str(run)]) == 2
    said = capsys.readouterr().err
    assert said == f"polyplay: error: RUN: {run} has no games: runs of alphago_zero write them down as they end\n"
    assert main.main(["games"]) == 2
    assert "games takes the directory of a run first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"outcome": 1, "resigned": True, "margin": None}, "B+R"),
        ({"outcome": -1, "margin": 3.5}, "W+3.5"),
        ({"outcome": 1, "margin": 12.0}, "B+12"),
        ({"outcome": 0, "margin": 0.0}, "0"),
        ({"outcome": -1, "margin": None}, "W+"),
    ],
)
def test_results_are_written_as_in_sgf(more: Row, text: str):
    assert games.result_of({"resigned": False, **more}) == text

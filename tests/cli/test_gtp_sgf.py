"""Games of Go that the engine reads from SGF files, and the game that it prints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyplay.cli.gtp import GtpEngine
from polyplay.games import records
from tests.cli.test_gtp_engine import engine_of, said

pytest.importorskip("sgfmill")


def loaded(tmp_path: Path, text: str, until: str = "") -> GtpEngine:
    file, engine = tmp_path / "game.sgf", engine_of()
    file.write_text(text)
    assert said(engine, f"loadsgf {file} {until}") == ["="]
    return engine


def test_a_game_from_an_sgf_file(tmp_path: Path):
    file = tmp_path / "game.sgf"
    file.write_text("(;FF[4]GM[1]SZ[9]KM[5.5]AB[cc];W[gg];B[ee];W[];B[aa])")
    engine = engine_of()
    assert said(engine, f"loadsgf {file}", "showboard") == ["=", said(engine, "showboard")[0]]
    assert engine.game.komi == 5.5
    assert [engine.game.name(int(cell)) for cell in np.flatnonzero(engine.game.stones())] == ["A9", "C7", "E5", "G3"]
    assert said(engine, f"loadsgf {file} 2") == ["="]
    assert np.count_nonzero(engine.game.stones()) == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nonsense", "no SGF data found"),
        ("(;SZ[9];B[aa]", "unexpected end of SGF data"),
        ("(;SZ[19];B[aa])", "its board has 19 lines, not 9"),
        ("(;SZ[9:13])", "its board has 9:13 lines, not 9"),
        ("(;B[aa])", "its board has 19 lines, not 9"),
        ("(;SZ[9]AB[zz])", "a stone is no point of the board"),
        ("(;SZ[9];B[aa];W[zz])", "move 2 is no point of the board"),
        ("(;SZ[9];B[aa];W[aa])", "move 2 W A9: illegal move"),
        ("(;SZ[9]AB[bb];W[ee];B[bb])", "move 2 B B8: illegal move"),
        ("(;SZ[9]AB[ab][ba]AW[aa])", "the stone W A9: illegal move"),
        ("(;SZ[9];B[aa];AW[bb];W[cc])", "stones are set up after move 1"),
    ],
)
def test_a_bad_sgf_file_is_an_answer_that_says_why(tmp_path: Path, text: str, error: str):
    file, engine = tmp_path / "game.sgf", engine_of()
    assert said(engine, "play b E5") == ["="]
    before = engine.game.record.copy()
    file.write_text(text)
    assert said(engine, f"loadsgf {file}") == [f"? cannot load file: {error}"]
    assert np.array_equal(engine.game.record, before)


def test_a_problem_of_many_stones_leaves_room_for_moves(tmp_path: Path):
    black, white = ("".join(f"[{c}{r}]" for r in rows for c in "abcdefgh") for rows in ("abcd", "efgh"))
    file, engine = tmp_path / "problem.sgf", engine_of()
    file.write_text(f"(;FF[4]GM[1]SZ[9]AB{black}AW{white})")
    assert said(engine, f"loadsgf {file}") == ["="]
    assert np.count_nonzero(engine.game.stones()) == 64
    left = engine.game.board.longest - records.ply(engine.game.position(1))
    assert left >= engine.game.board.cells // 2
    assert said(engine, *["play b pass", "play w pass"] * 40) == ["="] * 80


@pytest.mark.parametrize(
    ("text", "until", "colour"),
    [
        ("(;SZ[9]AB[ee][ef]AW[cc][dd]PL[W])", "", "W"),
        ("(;SZ[9]AB[ee][ef]AW[cc][dd]PL[B])", "", "B"),
        ("(;SZ[9]AB[ee][ef]AW[cc][dd])", "", "B"),
        ("(;SZ[9]AB[gc][cg][gg])", "", "W"),
        ("(;SZ[9]AB[gc][cg][gg]PL[Black])", "", "B"),
        ("(;SZ[9]PL[w])", "", "W"),
        ("(;SZ[9]AB[ee];AW[cc];PL[W])", "", "W"),
        ("(;SZ[9];B[ee];PL[B])", "", "B"),
        ("(;SZ[9];B[ee];PL[B];W[cc])", "", "B"),
        ("(;SZ[9];B[ee];PL[B];B[cc])", "2", "B"),
        ("(;SZ[9];W[ee];B[cc])", "1", "W"),
        ("(;SZ[9];B[ee];B[cc])", "2", "B"),
        ("(;SZ[9]AB[ee]AW[dd]PL[nobody])", "", "B"),
    ],
)
def test_the_file_says_which_colour_is_to_move(tmp_path: Path, text: str, until: str, colour: str):
    engine = loaded(tmp_path, text, until)
    assert "-BW"[engine.game.to_move] == colour
    assert engine._asked(["20"]) == engine._asked([colour, "20"]), "an analysis is of that colour"
    said(engine, f"play {colour} A1")
    assert "-BW"[engine.game.to_move] != colour
    said(engine, "undo", "clear_board")
    assert engine.game.to_move == 1


@pytest.mark.parametrize(
    ("text", "stones", "moves"),
    [
        ("(;SZ[9]HA[3]AB[gc][cg][gg]PL[W];W[cc];B[ee])", 3, 2),
        ("(;SZ[9]AB[ee]AW[cc];B[dd])", 2, 1),
        ("(;SZ[9];AB[ee];AW[cc];AE[ee];W[dd])", 1, 1),
        ("(;SZ[9]AB[aa:cc])", 9, 0),
    ],
)
def test_stones_that_were_set_up_are_not_taken_back(tmp_path: Path, text: str, stones: int, moves: int):
    engine = loaded(tmp_path, text)
    assert np.count_nonzero(engine.game.stones()) == stones + moves
    first = engine.game.first_to_move
    assert said(engine, *["undo"] * (moves + 1)) == ["="] * moves + ["? cannot undo"]
    assert np.count_nonzero(engine.game.stones()) == stones
    assert engine.game.to_move == first


@pytest.mark.parametrize(
    "header",
    ["KM[many]", "KM[]", "KM[nan]", "KM[1e999]", "KM[6.25]", "CA[none-such]", "HA[few]", "SZ[nine]", "RU[\xff]"],
)
def test_a_header_that_cannot_be_read_does_not_refuse_the_game(
    tmp_path: Path, header: str, capsys: pytest.CaptureFixture[str]
):
    size = "" if header.startswith("SZ") else "SZ[9]"
    engine = loaded(tmp_path, f"(;GM[1]{size}{header};B[ee])")
    assert engine.game.komi == 6.5
    assert np.count_nonzero(engine.game.stones()) == 1
    err = capsys.readouterr().err
    assert err.endswith(f"{header} is no komi; it stays 6.5\n") if header.startswith("KM") else not err


def test_names_of_files_may_have_spaces(tmp_path: Path):
    file, engine = tmp_path / "a game 2.sgf", engine_of(9)
    file.write_text("(;SZ[9];B[aa];W[bb];B[cc])")
    assert said(engine, f"loadsgf {file}", f"loadsgf {file} 3") == ["=", "="]
    assert len(engine.game.moves) == 2
    assert said(engine, f"loadsgf {file} -3") == ["? cannot load file: No such file or directory"]
    assert len(engine.game.moves) == 2, "a failure changes nothing"
    assert said(engine, f"printsgf {tmp_path / 'b c.sgf'}", "printsgf") == [
        "=",
        f"= {(tmp_path / 'b c.sgf').read_text().strip()}",
    ]


def test_a_size_may_be_written_twice(tmp_path: Path):
    assert loaded(tmp_path, "(;SZ[9:9]KM[7];B[ee])").game.komi == 7


@pytest.mark.parametrize("start", ["", "set_free_handicap C7 G3 G7", "play w D4", "place_free_handicap 2"])
def test_the_printed_game_is_read_again(tmp_path: Path, start: str):
    engine, other, file = engine_of(), engine_of(), tmp_path / "game.sgf"
    said(engine, "komi 5.5", start, "play w E5", "play b pass", "play w E6")
    (text,) = said(engine, "printsgf")
    assert text.startswith("= (;GM[1]FF[4]")
    assert said(engine, f"printsgf {file}", f"printsgf {file}") == ["=", "? cannot write file: File exists"]
    assert file.read_text() == text.removeprefix("= ") + "\n"
    assert said(other, f"loadsgf {file}") == ["="]
    for game in (engine.game, other.game):
        assert (game.komi, game.moves[-1]) == (5.5, (2, game.vertex("E6")))
    assert engine.game.moves == other.game.moves
    assert np.array_equal(engine.game.stones_set_up(), other.game.stones_set_up())
    assert np.array_equal(engine.game.stones(), other.game.stones())
    assert said(other, "printsgf") == [text]


def test_an_empty_board_is_printed_in_sgfs_own_words():
    (text,) = said(engine_of(), "printsgf")
    assert text == (
        "= (;GM[1]FF[4]AP[Polyplay:1.0]SZ[9]KM[6.5]RU[area scoring, positional superko, suicide forbidden])"
    )

"""The Go Text Protocol's engine: SGF files, the command, transcripts of programs."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import polyplay
from polyplay.cli.gtp import GtpEngine, answer_lines
from tests.cli.test_gtp import engine_of, said
from tests.cli.test_play import CHAMPION
from tests.verbs import refused

pytest.importorskip("sgfmill")


def loaded(tmp_path: Path, text: str, until: str = "") -> GtpEngine:
    file, engine = tmp_path / "game.sgf", engine_of()
    file.write_text(text)
    assert said(engine, f"loadsgf {file} {until}") == ["="]
    return engine


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
    assert said(engine, *["undo"] * (moves + 1)) == ["="] * moves + ["? cannot undo"]
    assert np.count_nonzero(engine.game.stones()) == stones
    assert np.array_equal(engine.game.stones(), engine.game.stones(0))


KOMI = ("KM[many]", "KM[]", "KM[nan]", "KM[1e999]", "KM[6.25]")


@pytest.mark.parametrize("header", [*KOMI, "CA[none-such]", "HA[few]", "SZ[nine]", "SZ[9:9]", "RU[\xff]"])
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
    assert (said(engine, f"loadsgf {file}", f"loadsgf {file} 3"), len(engine.game.moves)) == (["=", "="], 2)
    assert said(engine, f"loadsgf {file} -3") == ["? cannot load file: No such file or directory"]
    assert len(engine.game.moves) == 2, "a failure changes nothing"
    assert said(engine, f"printsgf {tmp_path / 'b c.sgf'}", "printsgf") == [
        "=",
        f"= {(tmp_path / 'b c.sgf').read_text().strip()}",
    ]


@pytest.mark.parametrize("start", ["", "set_free_handicap C7 G3 G7", "play w D4", "place_free_handicap 2"])
def test_the_printed_game_is_read_again(tmp_path: Path, start: str):
    engine, other, file = engine_of(), engine_of(), tmp_path / "game.sgf"
    said(engine, "komi 5.5", start, "play w E5", "play b pass", "play w E6")
    (text,) = said(engine, "printsgf")
    assert text.startswith("= (;GM[1]FF[4]")
    assert said(engine, f"printsgf {file}", f"printsgf {file}") == ["=", "? cannot write file: File exists"]
    assert file.read_text() == text.removeprefix("= ") + "\n"
    assert said(other, f"loadsgf {file}") == ["="]
    for one in (engine.game, other.game):
        assert (one.komi, one.moves[-1]) == (5.5, (2, one.vertex("E6")))
    assert engine.game.moves == other.game.moves
    assert np.array_equal(engine.game.stones(0), other.game.stones(0))
    assert np.array_equal(engine.game.stones(), other.game.stones())
    assert said(other, "printsgf") == [text]


def test_an_empty_board_is_printed_in_sgfs_own_words():
    (text,) = said(engine_of(), "printsgf")
    assert text == (
        "= (;GM[1]FF[4]AP[Polyplay:1.0]SZ[9]KM[6.5]RU[area scoring, positional superko, suicide forbidden])"
    )


SMALL = {"players": 1, "games": 4, "simulations": 4, "blocks": 1, "filters": 4}
SMALL |= {"batch": 8, "learning_starts": 16, "capacity": 100}


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
    line = refused(capsys, "play", CHAMPION, "--gtp", "--trust")
    assert line == f"polyplay: error: --gtp: {CHAMPION} plays connect_four; allowed: a run of game:go"


TRANSCRIPTS = Path(__file__).with_name("transcripts")
REFUSED = {"sabaki": ["foo bar", "boardsize 13"], "gogui": ["no_such_command"]}
SILENT = ("play", "undo", "komi", "boardsize", "clear_board", "time_settings", "time_left")
INFO = r"info move (?:[A-HJ][1-9]|pass) visits \d+ winrate [\d.]+ .*pv(?: (?:[A-HJ][1-9]|pass))+"


class FrontEnd:
    """Sends the lines. It begins an analysis when all before is answered, and then waits for a line of it."""

    def __init__(self, text: str, out: io.StringIO):
        self.text, self.out = text, out

    def __iter__(self) -> Iterator[str]:
        sent = 0
        for line in self.text.splitlines(keepends=True):
            analyses = "-analyze " in line
            if analyses:
                self._wait("\n\n", sent)
            before = self.out.getvalue().count("info move")
            yield line
            sent += not line.startswith("#")
            if analyses:
                self._wait("info move", before + 1)

    def _wait(self, words: str, times: int) -> None:
        until = time.monotonic() + 120  # loops may have to be compiled
        while self.out.getvalue().count(words) < times and time.monotonic() < until:
            time.sleep(0.01)


def replay(text: str) -> list[tuple[str, str]]:
    """Commands with their answers."""
    out = io.StringIO()
    answer_lines(engine_of(), FrontEnd(text, out), out)
    *answers, rest = out.getvalue().split("\n\n")
    assert rest == ""
    commands = [line for line in text.splitlines() if not line.startswith("#")]
    return [*zip(commands, answers, strict=True)]


@pytest.mark.parametrize("program", ["sabaki", "gogui"])
def test_every_command_has_one_answer_of_the_right_form(program: str):
    found = replay((TRANSCRIPTS / f"{program}.txt").read_text())
    assert [command for command, answer in found if answer.startswith("?")] == REFUSED[program]
    for command, answer in found:
        number = re.match(r"\d*", command)[0]
        assert re.match(rf"[=?]{number}( |\n|$)", answer), (command, answer)
        words = command.removeprefix(number).split()
        if "genmove" in words[0]:
            assert re.fullmatch(r"= ([A-HJ][1-9]|pass)", answer), command
        if "analyze" in words[0]:
            lines = answer.splitlines()
            assert lines[0] == "="
            assert lines[1:]
            for line in lines[1:]:
                assert all(re.fullmatch(INFO, part) for part in re.split(r" (?=info )", line))
        if words[0] in SILENT and command not in REFUSED[program]:
            assert answer == f"={number}"


def test_lines_of_json_are_refused_and_not_the_end():
    found = replay((TRANSCRIPTS / "katrain.txt").read_text() + "name\n")
    assert [answer for _, answer in found] == ["? unknown command"] * 8 + ["= Polyplay"]

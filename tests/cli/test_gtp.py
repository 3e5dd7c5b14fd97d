"""The Go Text Protocol: every command, its errors, SGF files, what Go programs send, and the command itself."""

from __future__ import annotations

import io
import itertools
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest
import torch

import polyplay
from polyplay.cli import gtp
from polyplay.cli.gtp import BLACK, WHITE, Clock, GtpEngine, analysis_line, answer_lines, by_choice
from polyplay.envs.pool import Envs
from polyplay.games import board_rules, records
from polyplay.games.boards import game
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.search import Search, SearchOptions
from polyplay.search.search import Finished, SearchPolicy
from tests.cli.test_play import CHAMPION
from tests.search.test_policy import preferring
from tests.verbs import refused


def engine_of(size: int = 9, simulations: int = 8) -> GtpEngine:
    torch.manual_seed(0)
    board = game(f"go+size={size}+komi=6.5")
    factory = BoardNetworkFactory(Envs(f"game:{board.name}", 1).spec, blocks=1, filters=4, hidden=4)
    return GtpEngine(SearchPolicy(board, SearchOptions(simulations), factory, factory()), simulations, "1.0")


def said(engine: GtpEngine, *lines: str) -> list[str]:
    """The answers to lines, without the empty lines that end them; commands that analyse give none here."""
    return ["".join(engine.answer(line)).removesuffix("\n\n") for line in lines]


COMMANDS = "protocol_version name version known_command list_commands quit boardsize clear_board komi play genmove "
COMMANDS += "undo time_settings time_left final_score final_status_list fixed_handicap place_free_handicap clear_cache "
COMMANDS += "set_free_handicap loadsgf reg_genmove showboard kata-analyze kata-genmove_analyze"
LONG = "9" * 5_000  # too long for int()
HUGE = "9" * 400  # too large for a float


def test_it_has_every_command_and_says_so():
    (listed,) = said(engine_of(), "list_commands")
    assert set(listed.removeprefix("= ").split()) == set(COMMANDS.split())
    for line, answer in {
        "known_command play": "= true",
        "known_command foo": "= false",
        "known_command": "= false",
        "protocol_version": "= 2",
        "version": "= 1.0",
        "clear_cache": "=",
        "7 name # who?": "=7 Polyplay",
        "12\tprotocol_version\r": "=12 2",
        "3 foo": "?3 unknown command",
        "   ": "",
        "# nothing": "",
        "5": "",
    }.items():
        assert said(engine_of(3), line) == [answer]


MISTAKES = {
    "syntax error": "boardsize;boardsize nine;komi;komi six;komi 1e9;play b;genmove;reg_genmove;fixed_handicap x;"
    "time_settings 1;time_settings -1 0 0;time_left b 1;time_left b soon 0;time_left b nan 0;time_left b 4.5 0.5;"
    "final_status_list;final_status_list sleeping;kata-analyze interval;boardsize 9999999999;"
    f"boardsize {LONG};komi {LONG};loadsgf /x {LONG};time_settings 0 0 {HUGE};time_left b 0 {HUGE};"
    f"kata-analyze 9999999999;kata-analyze b {HUGE};"
    f"kata-genmove_analyze b {HUGE}",
    "unacceptable size": "boardsize 19",
    "komi must be whole or half": "komi 6.25;komi 100",
    "invalid color": "play purple D4;genmove green",
    "invalid coordinate": f"play b I5;play b K1;play b D0;play b D²;play b A{LONG};set_free_handicap A1 A{LONG}",
    "cannot undo": "undo",
    "invalid number of stones": "fixed_handicap 1;fixed_handicap 10;place_free_handicap 1",
    "bad vertex list": "set_free_handicap D4;set_free_handicap D4 D4;set_free_handicap D4 C4 pass",
    "cannot load file: No such file or directory": "loadsgf /nowhere.sgf",
}


def test_a_mistake_is_an_answer_and_changes_nothing():
    engine = engine_of()
    before = engine.game.record.copy()
    for error, lines in MISTAKES.items():
        for line in lines.split(";"):
            assert said(engine, line) == [f"? {error}"], line[:80]
            assert np.array_equal(engine.game.record, before)
    assert said(engine, "name") == ["= Polyplay"], "it goes on"


KO = ("b C5", "w D5", "b B4", "w E4", "b C3", "w D3", "b D4", "w C4")


def test_stones_are_played_in_any_order_and_taken_back():
    engine = engine_of()
    assert said(engine, "play b D4", "play B e5", "play white PASS", "play w C3") == ["="] * 4
    assert said(engine, "play b D4") == ["? illegal move"]
    assert said(engine, "showboard")[0].count("x") == 2
    assert said(engine, "undo", "undo", "undo", "undo", "undo") == ["=", "=", "=", "=", "? cannot undo"]
    assert not engine.game.stones().any()
    assert said(engine, *(f"play {move}" for move in KO), "play b D4") == ["="] * 8 + ["? illegal move"], "a ko"
    assert said(engine, "play b A2", "play b B1", "play w A1") == ["=", "=", "? illegal move"], "a suicide"


def test_no_game_is_too_long_and_a_record_that_forgets_shows_the_same():
    engine, board = engine_of(5), game("go+size=5+komi=6.5")
    assert said(engine, *["play b pass", "play w pass"] * 100, "final_score") == ["="] * 200 + ["= W+6.5"]
    engine = engine_of(5)
    record, moves = board.new(), np.random.default_rng(1)
    for i in range(board.longest - 2):
        action = int(moves.choice(board.legal(record)[:-1] or [board.cells]))
        assert board_rules.play(board.numbers, record, action) == records.GOES_ON
        engine.game.play(1 + i % 2, action)
        shown = np.zeros((2, *board.planes), np.float32)
        board_rules.write_planes(board.numbers, record, shown[0])
        board_rules.write_planes(board.numbers, engine.game.record, shown[1])
        assert np.array_equal(*shown)
        assert board.legal(engine.game.record) == board.legal(record)
    assert records.ply(engine.game.record) < records.ply(record)


def test_scores_statuses_and_handicaps():
    engine = engine_of()
    assert said(engine, "komi 0", "final_score", "play b D4", "komi 7.5") == ["=", "= 0", "=", "="]
    assert said(engine, "final_score", "final_status_list alive", "final_status_list dead") == ["= B+73.5", "= D4", "="]
    assert said(engine, "fixed_handicap 2", "clear_board") == ["? board not empty", "="]
    assert said(engine, "fixed_handicap 5", "undo") == ["= C3 G7 C7 G3 E5", "? cannot undo"]
    assert said(engine, "clear_board", "set_free_handicap A1 B2 C3") == ["=", "="]
    assert said(engine, "clear_board", "place_free_handicap 80") == ["=", "= C3 G7 C7 G3 C5 G5 E3 E7 E5"]
    assert re.fullmatch("= ([A-J][1-9]|pass)", said(engine, "genmove w")[0])


@pytest.mark.parametrize("simulations", [0, 8])
def test_its_moves_are_the_searchs_and_the_same_again(simulations: int):
    engine, again = engine_of(5, simulations), engine_of(5, simulations)
    for color in "bwb":
        (move,) = said(engine, f"genmove {color}")
        assert said(again, f"reg_genmove {color}") == [move], "it is not played"
        assert said(again, f"play {color} {move.removeprefix('= ')}") == ["="]
    if not simulations:
        policy, (first, _) = engine.policy, engine.game.records[:2]
        assert engine.game.moves[0][1] == policy.choose(first[None])[0][0]
        assert said(engine, "kata-genmove_analyze w 5")[0].startswith("=\nplay ")


# -------------------------------------------------------------------------------------------------- SGF


def loaded(tmp_path: Path, text: str, until: str = "") -> GtpEngine:
    pytest.importorskip("sgfmill")
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
        ("(;SZ[9]AB[zz])", "a point or a color cannot be read"),
        ("(;SZ[9]PL[nobody])", "a point or a color cannot be read"),
        ("(;SZ[9];B[aa];W[aa])", "move 2 W A9: illegal move"),
        ("(;SZ[9]AB[ab][ba]AW[aa])", "setup position not legal"),
        ("(;SZ[9];B[aa];AW[bb];W[cc])", "setup properties after the root node"),
    ],
)
def test_a_bad_sgf_file_is_an_answer_that_says_why(tmp_path: Path, text: str, error: str):
    pytest.importorskip("sgfmill")
    file, engine = tmp_path / "game.sgf", engine_of()
    file.write_text(text)
    assert said(engine, "play b E5", f"loadsgf {file}") == ["=", f"? cannot load file: {error}"]
    assert len(engine.game.moves) == 1, "a failure changes nothing"


@pytest.mark.parametrize(
    ("text", "until", "color", "stones", "moves"),
    [
        ("(;SZ[9]AB[ee][ef]AW[cc][dd]PL[W])", "", "W", 4, 0),
        ("(;SZ[9]AB[ee][ef]AW[cc][dd])", "", "B", 4, 0),
        ("(;SZ[9]AB[gc][cg][gg])", "", "W", 3, 0),
        ("(;SZ[9]AB[gc][cg][gg]PL[b])", "", "B", 3, 0),
        ("(;SZ[9]HA[3]AB[gc][cg][gg]PL[W];W[cc];B[ee])", "", "W", 3, 2),
        ("(;SZ[9]AB[aa:cc])", "", "W", 9, 0),
        ("(;SZ[9];W[ee];B[cc])", "", "W", 0, 2),
        ("(;SZ[9];W[ee];B[cc])", "1", "W", 0, 0),
        ("(;SZ[9];B[ee];W[cc];B[])", "3", "B", 0, 2),
    ],
)
def test_a_file_says_who_is_to_move_and_its_first_stones_are_not_taken_back(
    tmp_path: Path, text: str, until: str, color: str, stones: int, moves: int
):
    engine = loaded(tmp_path, text, until)
    assert "-BW"[engine.game.to_move] == color
    assert engine._asked(["20"]) == engine._asked([color, "20"]), "an analysis is of that color"
    assert np.count_nonzero(engine.game.stones()) == stones + moves
    assert said(engine, *["undo"] * (moves + 1)) == ["="] * moves + ["? cannot undo"]
    assert np.count_nonzero(engine.game.stones()) == stones


@pytest.mark.parametrize("komi", ["many", "", "nan", "1e999", "6.25"])
def test_a_komi_that_cannot_be_had_does_not_refuse_the_game(
    tmp_path: Path, komi: str, capsys: pytest.CaptureFixture[str]
):
    engine = loaded(tmp_path, f"(;SZ[9]KM[{komi}];B[ee])")
    assert (engine.game.komi, len(engine.game.moves)) == (6.5, 1)
    assert capsys.readouterr().err.endswith("its komi does not fit this board; komi stays 6.5\n")


# -------------------------------------------------------------------------------------------------- time


def test_time_is_limited():
    engine = engine_of(9, simulations=100_000)
    said(engine, "time_settings 0 1 1", "time_left b 1 1")
    begun = time.monotonic()
    said(engine, "genmove b")
    assert 0.5 < time.monotonic() - begun < 30  # all simulations would take minutes
    said(engine, "time_settings 20 0 0", "genmove b")
    assert engine.clock.remaining(BLACK) < (20, 0) == engine.clock.remaining(WHITE), "it counts its own time"
    said(engine, "clear_board")
    assert engine.clock == Clock(20, 0, 0)
    assert said(engine, "time_settings 5.5 2.5 1", "time_left b 4.25 0", "time_left w -0.5 0") == ["="] * 3
    assert engine.clock == Clock(5.5, 2.5, 1, {BLACK: (4.25, 0), WHITE: (0.0, 0)})
    assert (said(engine, "time_settings 0 10 0"), engine.clock) == (["="], None)


@pytest.mark.parametrize(
    ("clock", "left", "move", "used", "then"),
    [
        (Clock(10, 30, 5), None, 5.4, 4.0, (6.0, 0)),
        (Clock(10, 30, 5), (3.0, 0), 5.4, 5.0, (28.0, 4)),  # byo-yomi is what comes next
        (Clock(10, 30, 5), (28.0, 4), 6.3, 6.0, (22.0, 3)),
        (Clock(10, 30, 5), (2.0, 1), 1.8, 1.0, (30.0, 5)),
        (Clock(10, 30, 1), (3.0, 0), 27.0, 5.0, (30.0, 1)),
        (Clock(0, 30, 5), None, 5.4, 20.0, (10.0, 4)),
        (Clock(60, 0, 0), (40.0, 0), 0.9, 5.0, (35.0, 0)),
        (Clock(10, 0, 0), (3.0, 0), 0.0675, 5.0, (0.0, 0)),
    ],
)
def test_a_move_uses_up_time(
    clock: Clock, left: tuple[float, int] | None, move: float, used: float, then: tuple[float, int]
):
    clock = Clock(clock.main, clock.byo, clock.stones, {} if left is None else {BLACK: left})
    assert clock.per_move(BLACK) == pytest.approx(move)
    clock.use(BLACK, used)
    assert clock.remaining(BLACK) == then
    assert clock.remaining(WHITE) == ((clock.main, 0) if clock.main else (clock.byo, clock.stones))


def test_the_search_is_compiled_before_the_first_answer(monkeypatch: pytest.MonkeyPatch):
    engine, happened = engine_of(5), list[str]()
    engine.warm()
    assert engine.policy._searching is not None, "what genmove will use"
    assert not engine.game.moves
    monkeypatch.setattr(GtpEngine, "warm", lambda engine: happened.append("warm"))
    monkeypatch.setattr(gtp, "answer_lines", lambda *given: happened.append("read"))
    gtp.main(lambda: engine)
    assert happened == ["warm", "read"]


# -------------------------------------------------------------------------------------------------- passing

# nothing is left: points that no stone fills are eyes
#   5 X X X O O      Black has 15 points, White 10
#   4 . X X O .
#   3 X X X O O
#   2 . X X O .
#   1 X X X O O
FULL = ("A5 B5 C5 B4 C4 A3 B3 C3 B2 C2 A1 B1 C1", "D5 E5 D4 D3 E3 D2 D1 E1")
# the same with White's side empty
ROOM = (FULL[0], "D5 D4 D3 D2 D1")
# the same with a column that is still open to both
OPEN = ("A5 B5 B4 A3 B3 B2 A1 B1", "D5 E5 D4 D3 E3 D2 D1 E1")


def engine_on(stones: tuple[str, str], komi: float, last: str) -> GtpEngine:
    """An engine on that board, after a last move."""
    engine = engine_of(5)
    for color, points in zip("bw", stones, strict=True):
        said(engine, *(f"play {color} {point}" for point in points.split()))
    assert said(engine, f"komi {komi}", last) == ["=", "="]
    return engine


def choosing(monkeypatch: pytest.MonkeyPatch, engine: GtpEngine, move: str) -> None:
    """From now on its search chooses that move."""
    action = np.array([engine.game.vertex(move)])
    monkeypatch.setattr("polyplay.search.search.Search.choose", lambda self, found: action)


def valued(monkeypatch: pytest.MonkeyPatch, root: float, best: float) -> None:
    """From now on searches find these values."""
    look = Search.look

    def changed(self: Search, games: np.ndarray) -> Finished:
        found = look(self, games)
        return found._replace(value=np.full(1, root, np.float32), q=np.full_like(found.q, best))

    monkeypatch.setattr(Search, "look", changed)


@pytest.mark.parametrize(
    ("stones", "komi", "last", "chosen", "move"),
    [
        (FULL, 6.5, "play w pass", "A4", "pass"),
        (FULL, 6.5, "play w pass", "pass", "pass"),  # Black is behind, and the search says so
        (FULL, 0.5, "play w pass", "A4", "pass"),
        (FULL, 24.5, "play b pass", "E4", "pass"),
        (ROOM, 6.5, "play w pass", "E3", "E3"),  # White's side is large: something is left
        (ROOM, 6.5, "play w pass", "A4", "E."),
        (OPEN, 9.5, "play w pass", "C3", "C3"),
        (OPEN, 9.5, "play w pass", "A4", "C."),
        (ROOM, 6.5, "play w E3", "A4", "pass"),  # each point has an owner, and Black is behind
        (ROOM, 0.5, "play w E3", "A4", "A4"),  # Black leads: the search may have its reasons
        (OPEN, 9.5, "play w C5", "A4", "A4"),
    ],
)
def test_the_search_decides_but_for_moves_that_gain_nothing(
    monkeypatch: pytest.MonkeyPatch, stones: tuple[str, str], komi: float, last: str, chosen: str, move: str
):
    """Whoever leads: an own eye is not filled where nothing is left."""
    engine = engine_on(stones, komi, last)
    choosing(monkeypatch, engine, chosen)
    assert re.fullmatch(f"= {move}", said(engine, f"reg_genmove {'w' if ' b ' in last else 'b'}")[0])


def test_a_hopeless_invasion_is_not_tried_after_a_pass(monkeypatch: pytest.MonkeyPatch):
    engine = engine_on(ROOM, 6.5, "play w pass")
    choosing(monkeypatch, engine, "E3")
    for best, answer in ((gtp.HOPELESS + 0.01, "= E3"), (gtp.HOPELESS - 0.01, "= pass")):
        valued(monkeypatch, gtp.HOPELESS - 0.01, best)
        assert said(engine, "reg_genmove b") == [answer]
    said(engine, "undo", "play w E3")
    choosing(monkeypatch, engine, "E5")
    assert said(engine, "reg_genmove b") == ["= E5"], "White plays on"


@pytest.mark.parametrize(
    ("threshold", "root", "best", "resigns"),
    [
        (-0.8, -0.9, -0.85, True),
        (-0.8, -0.9, -0.75, False),  # its best move is better
        (-0.8, -0.75, -0.9, False),
        (-1.0, -1.0, -1.0, False),  # --resign off
    ],
)
def test_it_resigns_where_root_and_best_move_are_below_the_threshold(
    monkeypatch: pytest.MonkeyPatch, threshold: float, root: float, best: float, resigns: bool
):
    engine, full = engine_of(5), engine_on(FULL, 6.5, "play w pass")
    engine.resign = full.resign = threshold
    valued(monkeypatch, root, best)
    said(engine, "play b C3")
    assert said(engine, "reg_genmove w") != ["= resign"], "before its first move"
    assert said(full, "genmove b") == ["= pass"], "which ends the game as well"
    said(engine, "play w D4")
    (found,) = said(engine, "reg_genmove b")
    assert said(engine, "genmove b") == [found]
    assert (found == "= resign", len(engine.game.moves)) == (resigns, 3 - resigns), "to resign makes no move"


# -------------------------------------------------------------------------------------------------- analysis


def order_of(line: str) -> list[tuple[str, int]]:
    """Moves with their visits."""
    return [(move, int(visits)) for move, visits in re.findall(r"info move (\S+) visits (\d+)", line)]


@pytest.mark.parametrize(
    ("line", "form"),
    [
        ("kata-analyze b 5", r"info move \S+ visits \d+ winrate 0\.\d+ prior 0\.\d+ lcb 0\.\d+ order 0 pv \S+.*\n"),
        ("kata-analyze 5", r"info move \S+ visits \d+ winrate 0\.\d+ prior 0\.\d+ lcb 0.*\n"),
    ],
)
def test_an_analysis_streams_until_the_next_line(line: str, form: str):
    engine = engine_of(5)
    first, *found = itertools.islice((piece for piece in engine.answer(f"9 {line}") if piece), 4)
    assert first == "=9\n"
    assert all(re.fullmatch(form, piece) for piece in found), found
    visits = [sum(visits for _, visits in order_of(piece)) for piece in found]
    assert visits == sorted(visits)
    assert visits[0] > 0
    assert not engine.game.stones().any(), "nothing was played"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("", (BLACK, 0.5)),
        ("w 20", (WHITE, 0.2)),
        ("0", (BLACK, 0.05)),
        ("White interval 30 maxmoves 3", (WHITE, 0.3)),
        ("avoid w C3,D4 9", (BLACK, 0.5)),
        ("ownership true interval 25 rootInfo true", (BLACK, 0.25)),
    ],
)
def test_the_options_of_an_analysis(words: str, asked: tuple[int, float]):
    """Numbers and colors that belong to an option are neither the interval nor the side."""
    assert engine_of(5)._asked(words.split()) == asked


@pytest.mark.parametrize("root", ["puct", "gumbel", "gumbel_mctx"])
def test_an_analysis_begins_with_the_move_that_the_search_chooses(root: str):
    """Of equal visits the likelier comes first, not the one whose point has the smaller number."""
    board = game("go+size=5+komi=6.5")
    likely = {3: 1.0, 9: 3.0, 20: 2.0}
    policy = preferring(board, likely, 4)
    for simulations in (4, 40):
        policy.configured = replace(policy.configured, root=root, gumbel_actions=4)
        policy.simulate(simulations)
        for search in policy.grow(board.new()[None]):
            found = search.look(np.array([0]))
            if not found.visits.any():
                assert analysis_line(search, str) == "", "an empty line would end the answer"
                continue
            order, line = by_choice(search, found), analysis_line(search, board.move_name)
            assert order_of(line) == [(board.move_name(a), int(found.visits[0, a])) for a in order]
            assert order[0] == search.choose(found)[0]
            assert sorted(found.visits[0, order[1:]], reverse=True) == found.visits[0, order[1:]].tolist()
            assert set(order) == set(np.flatnonzero(found.visits[0]))
        if simulations == 4 and root != "puct":
            assert order[:3] == [9, 20, 3]


def test_a_move_with_its_analysis():
    engine, plain = engine_of(5, 24), engine_of(5, 24)
    first, *lines, played, end, rest = "".join(engine.answer("4 kata-genmove_analyze b 5")).split("\n")
    assert (first, end, rest) == ("=4", "", "")
    assert all(re.match(r"info move \S+ visits \d+ winrate 0\.\d+ prior ", line) for line in lines)
    assert [played] == [move.replace("=", "play") for move in said(plain, "genmove b")]
    assert np.array_equal(engine.game.record, plain.game.record), "it is played"
    assert order_of(lines[-1])[0][0] == played.removeprefix("play ")
    assert not engine.endless, "the next line does not cut it short"
    assert said(engine, "kata-genmove_analyze")[0].startswith("=\ninfo move"), "a color may be left out"
    assert engine.game.moves[-1][0] == WHITE


# -------------------------------------------------------------------------------------------------- stdin, stdout


def answers_to(source: TextIO) -> str:
    out = io.StringIO()
    answer_lines(engine_of(5), source, out)
    return out.getvalue()


def test_from_stdin_to_stdout():
    answers = answers_to(io.StringIO("1 name\n\n2 kata-analyze b 1\n3 play b C3\n4 quit\n5 name\n"))
    assert answers.startswith("=1 Polyplay\n\n=2\n")
    assert answers.endswith("\n=3\n\n=4\n\n"), "the analysis has ended, and nothing follows quit"
    assert answers_to(io.StringIO("play b C3")) == "=\n\n", "the end of stdin is the end"
    stream = io.TextIOWrapper(io.BytesIO(b"1 name\n\xff\n2 play b \xc3\n3 quit\n"), "utf-8", errors="strict")
    assert answers_to(stream) == "=1 Polyplay\n\n? unknown command\n\n?2 invalid coordinate\n\n=3\n\n"


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
    assert answers[:2] + answers[5:] == ["=", "=", "=", ""]
    assert (answers[2][:2], answers[4][:3]) == ("= ", "=7 ")


def test_another_game_is_one_line(capsys: pytest.CaptureFixture[str]):
    line = refused(capsys, "play", CHAMPION, "--gtp", "--trust")
    assert line == f"polyplay: error: --gtp: {CHAMPION} plays connect_four; choose a run of game:go"


TRANSCRIPTS = Path(__file__).with_name("transcripts")
REFUSED = {"sabaki": ["foo bar", "boardsize 13"], "gogui": ["no_such_command"]}
SILENT = ("play", "undo", "komi", "boardsize", "clear_board", "time_settings", "time_left")
INFO = r"info move (?:[A-HJ][1-9]|pass) visits \d+ winrate [\d.]+ .*pv(?: (?:[A-HJ][1-9]|pass))+"


@pytest.mark.parametrize("program", ["sabaki", "gogui", "katrain"])
def test_every_command_has_one_answer_of_the_right_form(program: str):
    """An analysis ends after its first line. KaTrain's lines of JSON are all refused, and not the end."""
    engine, found = engine_of(), list[tuple[str, str]]()
    for line in (TRANSCRIPTS / f"{program}.txt").read_text().splitlines():
        answer = ""
        for piece in engine.answer(line):
            answer += piece
            if engine.endless and "info move" in piece:
                answer += "\n"
                break
        if answer:
            assert answer.endswith("\n\n")
            assert answer.count("\n\n") == 1
            found.append((line, answer.strip()))
    refused = [command for command, answer in found if answer.startswith("?")]
    assert refused == REFUSED.get(program, [command for command, _ in found])
    for command, answer in found:
        number = re.match(r"\d*", command)[0]
        assert re.match(rf"[=?]{number}( |\n|$)", answer), (command, answer)
        words = command.removeprefix(number).split()
        if "genmove" in words[0]:
            assert re.fullmatch(r"= ([A-HJ][1-9]|pass)", answer), command
        if "analyze" in words[0]:
            first, *lines = answer.splitlines()
            assert first == "="
            assert lines
            assert all(re.fullmatch(INFO, part) for line in lines for part in re.split(r" (?=info )", line))
        if words[0] in SILENT and command not in refused:
            assert answer == f"={number}"

"""The Go Text Protocol: every command, its errors, what Go programs send, and games with another engine."""

from __future__ import annotations

import io
import itertools
import queue
import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from polyplay.cli import gtp
from polyplay.cli.gtp import BLACK, KATA, WHITE, GtpEngine, analysis_line, answer_lines
from polyplay.cli.play import legal_moves
from polyplay.envs.pool import Envs
from polyplay.games import board_rules, records
from polyplay.games.boards import game
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.search import SearchOptions
from polyplay.search.search import SearchPolicy


def engine_of(size: int = 9, simulations: int = 8) -> GtpEngine:
    torch.manual_seed(0)
    board = game(f"go+size={size}+komi=6.5")
    factory = BoardNetworkFactory(Envs(f"game:{board.name}", 1).spec, blocks=1, filters=4, hidden=4)
    return GtpEngine(SearchPolicy(board, SearchOptions(simulations), factory, factory()), simulations, "1.0")


def said(engine: GtpEngine, *lines: str) -> list[str]:
    """The answers to lines, without the empty lines that end them; commands that analyse give none here."""
    return ["".join(engine.answer(line)).removesuffix("\n\n") for line in lines]


REQUIRED = "protocol_version name version known_command list_commands quit boardsize clear_board komi play genmove"
MORE = "undo time_settings time_left final_score final_status_list fixed_handicap place_free_handicap"
LAST = "set_free_handicap loadsgf printsgf reg_genmove showboard lz-analyze kata-analyze clear_cache"
KATAGO = "lz-genmove_analyze kata-genmove_analyze kata-get-rules"
LONG = "9" * 5_000  # too long for int()
HUGE = "9" * 400  # too large for a float


def test_it_has_every_command_and_says_so():
    engine = engine_of()
    (listed,) = said(engine, "list_commands")
    assert set(listed.removeprefix("= ").split()) == set(f"{REQUIRED} {MORE} {LAST} {KATAGO}".split())
    assert said(engine, "known_command play", "known_command foo", "known_command") == ["= true", "= false", "= false"]
    assert said(engine, "protocol_version", "name", "version") == ["= 2", "= Polyplay", "= 1.0"]


def test_numbers_comments_and_control_characters():
    engine = engine_of()
    assert said(engine, "7 name # who?", "12\tprotocol_version\r", "3 foo") == [
        "=7 Polyplay",
        "=12 2",
        "?3 unknown command",
    ]
    assert said(engine, "", "   ", "# nothing", "5") == ["", "", "", ""]
    assert said(engine, "x" * 10_000) == ["? unknown command"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("boardsize 19", "unacceptable size"),
        ("boardsize nine", "syntax error"),
        ("boardsize", "syntax error"),
        ("komi", "syntax error"),
        ("kata-analyze interval", "syntax error"),
        ("lz-analyze 9999999999", "syntax error"),
        ("komi six", "syntax error"),
        ("komi 6.25", "komi must be whole or half"),
        ("komi 1e9", "syntax error"),
        ("play b", "syntax error"),
        ("play purple D4", "invalid color"),
        ("play b I5", "invalid coordinate"),
        ("play b K1", "invalid coordinate"),
        ("play b D0", "invalid coordinate"),
        ("play b D²", "invalid coordinate"),
        ("genmove", "syntax error"),
        ("genmove green", "invalid color"),
        ("undo", "cannot undo"),
        ("fixed_handicap 1", "invalid number of stones"),
        ("fixed_handicap 10", "invalid number of stones"),
        ("fixed_handicap x", "syntax error"),
        ("place_free_handicap 1", "invalid number of stones"),
        ("set_free_handicap D4", "bad vertex list"),
        ("set_free_handicap D4 D4", "bad vertex list"),
        ("set_free_handicap D4 pass", "bad vertex list"),
        ("time_settings 1", "syntax error"),
        ("time_left b 1", "syntax error"),
        ("time_left b soon 0", "syntax error"),
        ("time_left b nan 0", "syntax error"),
        ("time_left b 1_0 0", "syntax error"),
        ("time_left b 4.5 0.5", "syntax error"),
        ("time_settings -1 0 0", "syntax error"),
        ("lz-genmove_analyze b 5 " + "9" * 400, "syntax error"),
        ("printsgf /nowhere/game.sgf", "cannot write file: No such file or directory"),
        ("final_status_list", "syntax error"),
        ("final_status_list sleeping", "syntax error"),
        ("loadsgf", "syntax error"),
        ("loadsgf /nowhere.sgf", "cannot load file: No such file or directory"),
        ("reg_genmove", "syntax error"),
        ("unheard_of", "unknown command"),
        *(
            pytest.param(line, error, id=f"{line.split()[0]}, {len(line.split()[-1])} digits")
            for line, error in (
                ("boardsize 9999999999", "syntax error"),
                (f"boardsize {LONG}", "syntax error"),
                (f"komi {LONG}", "syntax error"),
                ("play b A9999999999", "invalid coordinate"),
                (f"play b A{LONG}", "invalid coordinate"),
                (f"fixed_handicap {LONG}", "syntax error"),
                (f"place_free_handicap {LONG}", "syntax error"),
                (f"set_free_handicap A1 A{LONG}", "invalid coordinate"),
                (f"loadsgf /x {LONG}", "syntax error"),
                (f"time_settings 0 0 {HUGE}", "syntax error"),
                (f"time_settings {HUGE} {HUGE} {LONG}", "syntax error"),
                (f"time_left b 0 {HUGE}", "syntax error"),
                (f"time_left b {HUGE} {LONG}", "syntax error"),
                (f"lz-analyze b {HUGE}", "syntax error"),
                (f"lz-analyze {LONG}", "syntax error"),
                (f"kata-analyze {HUGE}", "syntax error"),
            )
        ),
    ],
)
def test_a_mistake_is_an_answer_and_changes_nothing(line: str, error: str):
    engine = engine_of()
    before = engine.game.record.copy()
    assert said(engine, line) == [f"? {error}"]
    assert np.array_equal(engine.game.record, before)
    assert said(engine, "name") == ["= Polyplay"], "it goes on"


def test_stones_are_played_in_any_order_and_taken_back():
    engine = engine_of()
    assert said(engine, "play b D4", "play B e5", "play white PASS", "play w C3") == ["="] * 4
    assert said(engine, "play b D4") == ["? illegal move"]
    board = said(engine, "showboard")[0]
    assert [line.split()[4] for line in board.splitlines() if line.split()[0] == "4"] == ["X"]
    assert said(engine, "undo", "undo", "undo", "undo", "undo") == ["=", "=", "=", "=", "? cannot undo"]
    assert not engine.game.stones().any()


def test_a_ko_and_a_suicide_are_illegal():
    engine = engine_of()
    for move in ["b C5", "w D5", "b B4", "w E4", "b C3", "w D3", "b D4", "w C4"]:
        assert said(engine, f"play {move}") == ["="]
    assert said(engine, "play b D4") == ["? illegal move"]
    assert said(engine, "play b A2", "play b B1", "play w A1") == ["=", "=", "? illegal move"]


def test_passes_do_not_end_what_a_controller_goes_on_with():
    engine = engine_of()
    assert said(engine, "play b pass", "play w pass", "play b pass", "play w D4", "play b pass") == ["="] * 5
    assert said(engine, "final_score") == ["= W+87.5"]
    assert re.fullmatch("= ([A-J][1-9]|pass)", said(engine, "genmove w")[0])


def test_no_game_is_too_long():
    engine, board = engine_of(5), game("go+size=5+komi=6.5")
    assert said(engine, *["play b pass", "play w pass"] * 100) == ["="] * 200
    for move in ["b C4", "w D4", "b B3", "w E3", "b C2", "w D2", "b D3", "w C3"]:
        assert said(engine, f"play {move}") == ["="]
    assert said(engine, "play b D3") == ["? illegal move"], "a ko"
    assert said(engine, *["play b pass"] * 8, "play b D3") == ["="] * 8 + ["? illegal move"], "it is not forgotten"
    assert said(engine, *["undo"] * 16) == ["="] * 16
    assert np.array_equal(engine.game.stones(), np.zeros(board.cells))
    assert re.fullmatch("= ([A-E][1-5]|pass)", said(engine, "genmove w")[0])


def test_a_record_that_forgets_shows_the_same():
    engine, board = engine_of(5), game("go+size=5+komi=6.5")
    record, moves = board.new(), np.random.default_rng(1)
    for i in range(board.longest - 2):
        action = int(moves.choice(legal_moves(board, record)[:-1] or [board.cells]))
        assert board_rules.play(board.numbers, record, action) == records.GOES_ON
        engine.game.play(1 + i % 2, action)
        shown = np.zeros((2, *board.planes), np.float32)
        board_rules.write_planes(board.numbers, record, shown[0])
        board_rules.write_planes(board.numbers, engine.game.record, shown[1])
        assert np.array_equal(*shown)
        assert legal_moves(board, engine.game.record) == legal_moves(board, record)
    assert records.ply(engine.game.record) < records.ply(record)


def test_scores_and_statuses_are_those_of_the_board_as_it_stands():
    engine = engine_of()
    assert said(engine, "komi 0", "final_score") == ["=", "= 0"]
    assert said(engine, "play b D4", "komi 7.5", "final_score") == ["=", "=", "= B+73.5"]
    assert said(engine, "final_status_list alive", "final_status_list dead", "final_status_list seki") == [
        "= D4",
        "=",
        "=",
    ]


def test_handicaps():
    engine = engine_of()
    assert said(engine, "fixed_handicap 5") == ["= C3 G7 C7 G3 E5"]
    assert said(engine, "fixed_handicap 2") == ["? board not empty"]
    assert said(engine, "undo", "clear_board", "set_free_handicap A1 B2 C3") == ["? cannot undo", "=", "="]
    assert said(engine, "clear_board", "place_free_handicap 80") == ["=", "= C3 G7 C7 G3 C5 G5 E3 E7 E5"]
    assert int(engine.game.stones().sum()) == 9
    assert re.fullmatch("= ([A-J][1-9]|pass)", said(engine, "genmove w")[0])


def test_without_simulations_it_plays_the_bare_network():
    engine = engine_of(5, 0)
    moves = [said(engine, f"genmove {colour}")[0].removeprefix("= ") for colour in "bwb"]
    record = engine.policy.board.new()
    for move in moves:
        engine.policy.simulate(0)
        assert engine.game.name(int(engine.policy.choose(record[None])[0][0])) == move
        board_rules.play(engine.policy.board.numbers, record, engine.game.vertex(move))
    assert said(engine, "kata-genmove_analyze w 5")[0].startswith("=\nplay ")


def test_its_moves_are_legal_and_the_same_again():
    games = []
    for _ in range(2):
        engine = engine_of(5)
        games.append([said(engine, f"genmove {colour}")[0] for colour in "bw" * 8])
    assert games[0] == games[1]
    engine = engine_of(5)
    for colour, move in zip("bw" * 8, games[0], strict=True):
        assert said(engine, f"reg_genmove {colour}") == [move], "it is not played"
        assert said(engine, f"play {colour} {move.removeprefix('= ')}") == ["="]


@pytest.mark.parametrize(
    ("line", "form"),
    [
        (
            "lz-analyze b 5",
            r"info move \S+ visits \d+ winrate \d+ prior \d+ lcb \d+ order 0 pv \S+.*",
        ),
        (
            "kata-analyze 5",
            r"info move \S+ visits \d+ winrate 0\.\d+ prior 0\.\d+ lcb 0.*",
        ),
    ],
)
def test_an_analysis_streams_until_the_next_line(line: str, form: str):
    engine, found = engine_of(5), []
    for piece in engine.answer(f"9 {line}"):
        found += [piece] if piece else []
        if len(found) == 4:
            break
    assert found[0] == "=9\n"
    for piece in found[1:]:
        assert re.fullmatch(form + "\n", piece), piece
    visits = [sum(map(int, re.findall(r"visits (\d+)", piece))) for piece in found[1:]]
    assert visits == sorted(visits)
    assert visits[0] > 0
    assert said(engine, "showboard")[0].count("X") == 0, "nothing was played"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("", (BLACK, 0.5)),
        ("w 20", (WHITE, 0.2)),
        ("0", (BLACK, 0.05)),
        ("interval 30 maxmoves 3", (BLACK, 0.3)),
        ("minmoves 7 10", (BLACK, 0.1)),
        ("avoid w C3,D4 9 100", (BLACK, 1.0)),
        ("White allow b pass 5 interval 25 ownership true rootInfo true", (WHITE, 0.25)),
    ],
)
def test_the_options_of_an_analysis(words: str, asked: tuple[int, float]):
    """Numbers and colors that belong to an option are neither the interval nor the side."""
    assert engine_of(5)._asked(words.split()) == asked


def test_an_analysis_has_no_empty_line_before_the_first_visit():
    engine = engine_of(5)
    search = next(engine.policy.grow(engine.game.record[None]))
    assert search.look(np.array([0])).visits.sum() == 0
    assert analysis_line(search, str, KATA) == ""


def test_from_stdin_to_stdout():
    out = io.StringIO()
    answer_lines(engine_of(5), io.StringIO("1 name\n\n2 lz-analyze b 1\n3 play b C3\n4 quit\n5 name\n"), out)
    answers = out.getvalue()
    assert answers.startswith("=1 Polyplay\n\n=2\n")
    assert answers.endswith("\n=3\n\n=4\n\n"), "the analysis has ended, and nothing follows quit"
    out = io.StringIO()
    answer_lines(engine_of(5), io.StringIO("play b C3"), out)
    assert out.getvalue() == "=\n\n", "the end of stdin is the end"


def test_bytes_that_are_no_text_are_no_end():
    stream = io.TextIOWrapper(io.BytesIO(b"1 name\n\xff\n2 play b \xc3\n3 quit\n"), "utf-8", errors="strict")
    out = io.StringIO()
    answer_lines(engine_of(5), stream, out)
    assert out.getvalue() == "=1 Polyplay\n\n? unknown command\n\n?2 invalid coordinate\n\n=3\n\n"


def test_a_source_that_breaks_is_the_end():
    def source() -> Iterator[str]:
        yield "name\n"
        raise OSError("it is gone")

    lines = queue.Queue[str | None]()
    with pytest.raises(OSError, match="it is gone"):
        gtp._read(source(), lines)
    assert [*lines.queue] == ["name\n", None]


def test_two_engines_play_games_by_the_same_rules():
    for seed in range(2):
        first, second = engine_of(5, 4 + seed), engine_of(5, 12)
        passes = 0
        for colour, mover, other in itertools.islice(itertools.cycle((("b", first, second), ("w", second, first))), 60):
            move = said(mover, f"genmove {colour}")[0].removeprefix("= ")
            assert said(other, f"play {colour} {move}") == ["="]
            passes = passes + 1 if move == "pass" else 0
            if passes == 2:
                break
        assert said(first, "final_score") == said(second, "final_score")
        assert np.array_equal(first.game.stones(), second.game.stones())

"""The Go Text Protocol: every command, its errors, what Go programs send, and games with another engine."""

from __future__ import annotations

import io
import itertools
import re
import time
from dataclasses import replace
from typing import TextIO

import numpy as np
import pytest
import torch

from polyplay.cli import gtp
from polyplay.cli.gtp import BLACK, KATA, LEELA, WHITE, Clock, GtpEngine, analysis_line, answer_lines, by_choice
from polyplay.cli.play import legal_moves
from polyplay.envs.pool import Envs
from polyplay.games import board_rules, records
from polyplay.games.boards import game
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.search import Search, SearchOptions
from polyplay.search.search import Finished, SearchPolicy
from tests.search.test_policy import policy_of, preferring


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
    assert said(engine, "7 name # who?", "12\tprotocol_version\r") == ["=7 Polyplay", "=12 2"]
    assert said(engine, "3 foo", "x" * 10_000) == ["?3 unknown command", "? unknown command"]
    assert said(engine, "", "   ", "# nothing", "5") == ["", "", "", ""]


MISTAKES = {
    "syntax error": "boardsize;boardsize nine;komi;komi six;komi 1e9;play b;genmove;reg_genmove;fixed_handicap x;"
    "loadsgf;time_settings 1;time_settings -1 0 0;time_left b 1;time_left b soon 0;time_left b nan 0;time_left b 1_0 0;"
    "time_left b 4.5 0.5;final_status_list;final_status_list sleeping;kata-analyze interval;lz-analyze 9999999999;"
    f"boardsize 9999999999;boardsize {LONG};komi {LONG};fixed_handicap {LONG};place_free_handicap {LONG};"
    f"loadsgf /x {LONG};time_settings 0 0 {HUGE};time_settings {HUGE} {HUGE} {LONG};"
    f"time_left b 0 {HUGE};time_left b {HUGE} {LONG};lz-analyze b {HUGE};"
    f"lz-analyze {LONG};kata-analyze {HUGE};lz-genmove_analyze b 5 {HUGE}",
    "unacceptable size": "boardsize 19",
    "komi must be whole or half": "komi 6.25",
    "invalid color": "play purple D4;genmove green",
    "invalid coordinate": f"play b I5;play b K1;play b D0;play b D²;play b A9999999999;play b A{LONG};"
    f"set_free_handicap A1 A{LONG}",
    "cannot undo": "undo",
    "invalid number of stones": "fixed_handicap 1;fixed_handicap 10;place_free_handicap 1",
    "bad vertex list": "set_free_handicap D4;set_free_handicap D4 D4;set_free_handicap D4 pass",
    "cannot write file: No such file or directory": "printsgf /nowhere/game.sgf",
    "cannot load file: No such file or directory": "loadsgf /nowhere.sgf",
    "unknown command": "unheard_of",
}


def test_a_mistake_is_an_answer_and_changes_nothing():
    engine = engine_of()
    before = engine.game.record.copy()
    for error, lines in MISTAKES.items():
        for line in lines.split(";"):
            assert said(engine, line) == [f"? {error}"], line[:80]
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


def test_no_game_is_too_long():
    engine, board = engine_of(5), game("go+size=5+komi=6.5")
    assert said(engine, *["play b pass", "play w pass"] * 100, "final_score") == ["="] * 200 + ["= W+6.5"]
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
    assert said(engine, "komi 0", "final_score", "play b D4", "komi 7.5") == ["=", "= 0", "=", "="]
    assert said(engine, "final_score", "final_status_list alive") == ["= B+73.5", "= D4"]
    assert said(engine, "final_status_list dead", "final_status_list seki") == ["=", "="]


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
        ("lz-analyze b 5", r"info move \S+ visits \d+ winrate \d+ prior \d+ lcb \d+ order 0 pv \S+.*\n"),
        ("kata-analyze 5", r"info move \S+ visits \d+ winrate 0\.\d+ prior 0\.\d+ lcb 0.*\n"),
    ],
)
def test_an_analysis_streams_until_the_next_line(line: str, form: str):
    engine = engine_of(5)
    first, *found = itertools.islice((piece for piece in engine.answer(f"9 {line}") if piece), 4)
    assert first == "=9\n"
    assert all(re.fullmatch(form, piece) for piece in found), found
    visits = [sum(map(int, re.findall(r"visits (\d+)", piece))) for piece in found]
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
    assert (search.look(np.array([0])).visits.sum(), analysis_line(search, str, KATA)) == (0, "")


def answers_to(source: TextIO) -> str:
    out = io.StringIO()
    answer_lines(engine_of(5), source, out)
    return out.getvalue()


def test_from_stdin_to_stdout():
    answers = answers_to(io.StringIO("1 name\n\n2 lz-analyze b 1\n3 play b C3\n4 quit\n5 name\n"))
    assert answers.startswith("=1 Polyplay\n\n=2\n")
    assert answers.endswith("\n=3\n\n=4\n\n"), "the analysis has ended, and nothing follows quit"
    assert answers_to(io.StringIO("play b C3")) == "=\n\n", "the end of stdin is the end"
    stream = io.TextIOWrapper(io.BytesIO(b"1 name\n\xff\n2 play b \xc3\n3 quit\n"), "utf-8", errors="strict")
    assert answers_to(stream) == "=1 Polyplay\n\n? unknown command\n\n?2 invalid coordinate\n\n=3\n\n"


def test_time_is_heeded():
    engine = engine_of(9, simulations=100_000)
    said(engine, "time_settings 0 1 1", "time_left b 1 1")
    begun = time.monotonic()
    said(engine, "genmove b")
    assert 0.5 < time.monotonic() - begun < 30  # all simulations would take minutes
    assert Clock(limited=False).per_move(None) is None
    assert Clock(60, 0, 0, True).per_move((40.0, 0)) == pytest.approx(0.9)
    assert Clock(60, 30, 10, True).per_move((20.0, 4)) == pytest.approx(4.5)
    assert Clock(0, 30, 10, True).per_move(None) == pytest.approx(2.7)
    assert Clock(60, 30, 10, True).per_move((0.5, 0)) == pytest.approx(2.7), "byo-yomi is what comes next"


@pytest.mark.parametrize(
    ("clock", "left", "used", "then"),
    [
        (Clock(10, 30, 5, True), None, 4.0, (6.0, 0)),
        (Clock(10, 30, 5, True), (3.0, 0), 5.0, (28.0, 4)),
        (Clock(10, 30, 5, True), (28.0, 4), 6.0, (22.0, 3)),
        (Clock(10, 30, 5, True), (2.0, 1), 1.0, (30.0, 5)),
        (Clock(10, 30, 1, True), (3.0, 0), 5.0, (30.0, 1)),
        (Clock(0, 30, 5, True), None, 20.0, (10.0, 4)),
        (Clock(0, 30, 5, True), (1.0, 2), 2.0, (0.0, 1)),
        (Clock(10, 0, 0, True), (3.0, 0), 5.0, (0.0, 0)),
    ],
)
def test_a_move_uses_up_time(clock: Clock, left: tuple[float, int] | None, used: float, then: tuple[float, int]):
    assert clock.after(left, used) == then


def test_its_own_time_is_subtracted_where_nobody_says_what_is_left(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]

    def think(engine: GtpEngine, colour: int) -> int:
        now[0] += engine.clock.per_move(engine.left.get(colour)) or 0.0
        return engine.game.board.cells

    monkeypatch.setattr(GtpEngine, "_choose", think)
    monkeypatch.setattr("polyplay.cli.gtp.time.monotonic", lambda: now[0])
    engine = engine_of()
    said(engine, "time_settings 600 0 0", *["genmove b"] * 60)
    assert 400 < now[0] < 600
    assert engine.left[1] == pytest.approx((600 - now[0], 0))
    assert engine.clock.per_move(engine.left.get(2)) == pytest.approx(13.5), "the other colour has a clock of its own"
    said(engine, "time_left b 100 0", "genmove b")
    assert engine.left[1] == pytest.approx((97.75, 0))
    said(engine, "clear_board")
    assert engine.clock.per_move(engine.left.get(1)) == pytest.approx(13.5)
    said(engine, "genmove b", "time_settings 20 0 0")
    assert engine.clock.per_move(engine.left.get(1)) == pytest.approx(0.45)


def test_the_clock_takes_parts_of_a_second():
    engine = engine_of()
    assert said(engine, "time_settings 5.5 2.5 1", "time_left b 4.25 0", "time_left w 0.5 1") == ["="] * 3
    assert (engine.clock.main, engine.clock.byo, engine.clock.byo_stones) == (5.5, 2.5, 1)
    assert engine.left == {1: (4.25, 0), 2: (0.5, 1)}
    assert said(engine, "time_left b -0.2 0") == ["="], "a controller that counts on: nothing is left"
    assert engine.left[1] == (0.0, 0)
    assert said(engine, "time_left b 1e3 0", "time_left b 99999999 0") == ["=", "="]


def test_the_search_is_compiled_before_the_first_answer(monkeypatch: pytest.MonkeyPatch):
    happened = list[str]()

    class Source(io.StringIO):
        def __next__(self) -> str:
            happened.append("read")
            return super().__next__()

    engine, warm = engine_of(5), GtpEngine.warm

    def warmed(self: GtpEngine) -> None:
        warm(self)
        assert self.policy._searching is not None, "what genmove will use"
        happened.append(f"warm with {self.policy.simulations}")

    monkeypatch.setattr(GtpEngine, "warm", warmed)
    monkeypatch.setattr("sys.stdin", Source("name\n"))
    gtp.main(lambda: engine)
    assert happened[:2] == ["warm with 8", "read"]
    assert not engine.game.moves


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


def engine_on(stones: tuple[str, str], komi: float, last: str, simulations: int = 8) -> GtpEngine:
    """An engine on that board, after a last move."""
    engine = engine_of(5, simulations)
    for colour, points in zip("bw", stones, strict=True):
        said(engine, *(f"play {colour} {point}" for point in points.split()))
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


@pytest.mark.parametrize(("colour", "komi"), [("b", 6.5), ("w", 0.5), ("b", -24.5), ("w", 24.5)])
def test_a_pass_is_answered_by_a_pass_where_nothing_is_left(colour: str, komi: float):
    """Whoever leads: an own eye is not filled."""
    engine = engine_on(FULL, komi, f"play {'w' if colour == 'b' else 'b'} pass")
    before = engine.game.stones().copy()
    assert said(engine, f"genmove {colour}") == ["= pass"]
    assert np.array_equal(engine.game.stones(), before)


@pytest.mark.parametrize(
    ("stones", "komi", "last", "chosen", "move"),
    [
        (FULL, 6.5, "play w pass", "A4", "pass"),
        (FULL, 6.5, "play w pass", "pass", "pass"),  # Black is behind, and the search says so
        (FULL, 0.5, "play w pass", "A4", "pass"),
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
    engine = engine_on(stones, komi, last)
    choosing(monkeypatch, engine, chosen)
    assert re.fullmatch(f"= {move}", said(engine, "reg_genmove b")[0])


def test_a_hopeless_invasion_is_not_tried_after_a_pass(monkeypatch: pytest.MonkeyPatch):
    engine = engine_on(ROOM, 6.5, "play w pass")
    choosing(monkeypatch, engine, "E3")
    valued(monkeypatch, gtp.HOPELESS - 0.01, gtp.HOPELESS + 0.01)
    assert said(engine, "reg_genmove b") == ["= E3"], "the best move is better than that"
    valued(monkeypatch, gtp.HOPELESS - 0.01, gtp.HOPELESS - 0.01)
    assert said(engine, "reg_genmove b") == ["= pass"]
    said(engine, "undo", "play w E3")
    choosing(monkeypatch, engine, "E5")
    assert said(engine, "reg_genmove b") == ["= E5"], "White plays on"


# -------------------------------------------------------------------------------------------------- resigning


@pytest.mark.parametrize(
    ("threshold", "root", "best", "answer"),
    [
        (-0.8, -0.9, -0.85, "resign"),
        (-0.8, -0.9, -0.75, "move"),  # its best move is better
        (-0.8, -0.75, -0.9, "move"),
        (-1.0, -1.0, -1.0, "move"),  # --resign off
    ],
)
def test_it_resigns_where_root_and_best_move_are_below_the_threshold(
    monkeypatch: pytest.MonkeyPatch, threshold: float, root: float, best: float, answer: str
):
    engine = engine_of(5)
    engine.resign = threshold
    said(engine, "play b C3", "play w D4", "time_settings 100 0 0")
    valued(monkeypatch, root, best)
    before = engine.game.record.copy()
    (found,) = said(engine, "reg_genmove b")
    assert (found == "= resign") == (answer == "resign")
    assert said(engine, "genmove b") == [found]
    assert np.array_equal(engine.game.record, before) == (answer == "resign"), "to resign makes no move"
    assert engine.left[1][0] < 100
    assert said(engine, "name") == ["= Polyplay"]


def test_it_does_not_resign_before_its_first_move_nor_at_the_end(monkeypatch: pytest.MonkeyPatch):
    engine = engine_of(5)
    engine.resign = -0.8
    valued(monkeypatch, -0.99, -0.99)
    said(engine, "play b C3")
    assert said(engine, "reg_genmove w") != ["= resign"]
    engine = engine_on(FULL, 6.5, "play w pass")
    engine.resign = -0.8
    assert said(engine, "genmove b") == ["= pass"], "which ends the game as well"


# -------------------------------------------------------------------------------------------------- analysis


def order_of(line: str) -> list[tuple[str, int]]:
    """Moves with their visits."""
    return [(move, int(visits)) for move, visits in re.findall(r"info move (\S+) visits (\d+)", line)]


@pytest.mark.parametrize("root", ["puct", "gumbel", "gumbel_mctx"])
@pytest.mark.parametrize("simulations", [5, 40])
def test_an_analysis_begins_with_the_move_that_the_search_chooses(root: str, simulations: int):
    board = game("go+size=5+komi=6.5")
    policy = policy_of(board, SearchOptions(simulations, root=root, gumbel_actions=4))
    for search in policy.grow(board.new()[None]):
        found = search.look(np.array([0]))
        if found.visits.any():
            order = by_choice(search, found)
            assert order[0] == search.choose(found)[0]
            assert sorted(found.visits[0, order[1:]], reverse=True) == found.visits[0, order[1:]].tolist()
            assert set(order) == set(np.flatnonzero(found.visits[0]))


@pytest.mark.parametrize("root", ["gumbel", "gumbel_mctx"])
def test_of_equal_visits_the_likelier_move_comes_first(root: str):
    """Not the one whose point has the smaller number."""
    board = game("go+size=5+komi=6.5")
    policy = preferring(board, {3: 1.0, 9: 3.0, 20: 2.0}, 4)
    policy.configured = replace(policy.configured, root=root, gumbel_actions=4)
    policy.simulate(4)
    *_, search = policy.grow(board.new()[None])
    moves = order_of(analysis_line(search, board.move_name, KATA))
    assert [move for move, _ in moves[:3]] == [board.move_name(action) for action in (9, 20, 3)]
    assert len({visits for _, visits in moves}) == 1
    assert " order 3 pv" in analysis_line(search, board.move_name, LEELA)


@pytest.mark.parametrize(
    ("command", "rate"), [("lz-genmove_analyze", r"\d+"), ("kata-genmove_analyze", r"0\.\d+|1\.0+")]
)
def test_a_move_with_its_analysis(command: str, rate: str):
    engine, plain = engine_of(5, 24), engine_of(5, 24)
    answer = "".join(engine.answer(f"4 {command} b 5"))
    first, *lines, played, end, rest = answer.split("\n")
    assert (first, end, rest) == ("=4", "", "")
    assert lines
    for line in lines:
        assert re.match(rf"info move \S+ visits \d+ winrate ({rate}) prior ", line)
    assert [played] == [move.replace("=", "play") for move in said(plain, "genmove b")]
    assert np.array_equal(engine.game.record, plain.game.record), "it is played"
    assert order_of(lines[-1])[0][0] == played.removeprefix("play ")
    assert not engine.endless, "the next line does not cut it short"
    assert said(engine, f"{command} purple x")[0].startswith("=\ninfo move"), "a color may be left out"
    assert engine.game.moves[-1][0] == 2


def test_rules_and_an_empty_cache():
    assert said(engine_of(5), "clear_cache", "kata-get-rules") == [
        "=",
        '= {"friendlyPassOk":false,"hasButton":false,"ko":"POSITIONAL","scoring":"AREA","suicide":false,'
        '"tax":"NONE","whiteHandicapBonus":"0"}',
    ]

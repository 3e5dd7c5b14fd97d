"""When the engine passes, answers a pass by a pass, and resigns; and in what order it lists moves."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from polyplay.cli import gtp
from polyplay.cli.gtp import KATA, LEELA, GtpEngine, analysis_line, by_choice
from polyplay.games.boards import game
from polyplay.search import Search, SearchOptions
from polyplay.search.search import Finished
from tests.cli.test_gtp_engine import engine_of, said
from tests.search.test_policy import policy_of, preferring

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


def test_a_game_that_is_behind_ends_without_harm():
    """Two engines to the end: no stone is put into an eye of its own color."""
    engine = engine_on(ROOM, 6.5, "play w pass", simulations=16)
    for colour in "bw" * 30:
        eyes = {name for name in ("A2", "A4") if engine.game.owners()[engine.game.vertex(name)] == 1}
        (move,) = said(engine, f"genmove {colour}")
        assert colour != "b" or move.removeprefix("= ") not in eyes
        if [action for _, action in engine.game.moves[-2:]] == [engine.game.board.cells] * 2:
            break
    else:
        raise AssertionError("the game has no end")
    assert engine.game.owners()[engine.game.vertex("A4")] == 1


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
@pytest.mark.parametrize("simulations", [5, 16, 40])
def test_an_analysis_begins_with_the_move_that_the_search_chooses(root: str, simulations: int):
    board = game("go+size=5+komi=6.5")
    policy = policy_of(board, SearchOptions(simulations, root=root, considered=4))
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
    policy.configured = replace(policy.configured, root=root, considered=4)
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


def test_a_move_with_its_analysis_may_be_to_resign(monkeypatch: pytest.MonkeyPatch):
    engine = engine_of(5)
    engine.resign = -0.5
    said(engine, "play b C3", "play w D4")
    valued(monkeypatch, -0.9, -0.9)
    assert "".join(engine.answer("kata-genmove_analyze b")).endswith("\nplay resign\n\n")
    assert len(engine.game.moves) == 2


def test_rules_and_an_empty_cache():
    assert said(engine_of(5), "clear_cache", "kata-get-rules") == [
        "=",
        '= {"friendlyPassOk":false,"hasButton":false,"ko":"POSITIONAL","scoring":"AREA","suicide":false,'
        '"tax":"NONE","whiteHandicapBonus":"0"}',
    ]

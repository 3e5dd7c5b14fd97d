"""OpenSpiel's games: their rules behind ours, turns that alternate, search and replay, and what is not for a search."""

from __future__ import annotations

import os
import pickle
import sys
from collections import OrderedDict
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay.core.errors import UserError
from polyplay.games import board_rules, open_spiel, records
from polyplay.games.boards import game
from polyplay.games.open_spiel import SpielGame
from polyplay.games.own_game import OwnGame, calls_of, keep_newest
from polyplay.search import Search, SearchOptions
from tests.games.test_board_rules import legal_of as legal
from tests.search.twins import UniformEvaluator

pyspiel = pytest.importorskip("pyspiel")
SMALL = ("tic_tac_toe", "hex(board_size=3)", "dots_and_boxes", "mancala")
SMALL += ("nim", "connect_four", "clobber(rows=3,columns=3)")
LARGE = tuple(
    kind.short_name
    for kind in pyspiel.registered_games()
    if kind.dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL
    and kind.chance_mode == pyspiel.GameType.ChanceMode.DETERMINISTIC
    and kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION
    and kind.min_num_players <= 2 <= kind.max_num_players
    and kind.short_name != "efg_game"
)


def agree(name: str, seed: int, games: int = 1) -> tuple[int, int]:
    """Random games by our kernels and by OpenSpiel alone; gives the moves and how many of them were passes."""
    board, theirs, rng = game(f"spiel:{name}"), pyspiel.load_game(name), np.random.default_rng(seed)
    planes, passes, made = np.zeros(board.planes, np.float32), 0, 0
    for _ in range(games):
        record, state, result, moves = board.new(), theirs.new_initial_state(), records.GOES_ON, 0
        first = state.current_player()
        while result == records.GOES_ON:
            who = (first + records.mover(record)) % 2
            own = legal(board, record)
            if state.current_player() != who:
                assert own == [board.actions - 1], "who is not to move there has to pass here"
            else:
                assert own == state.legal_actions()
            board_rules.write_planes(board.numbers, record, planes)
            assert planes[:-1].ravel() == pytest.approx(np.array(state.observation_tensor(who), np.float32))
            assert (planes[-1] == 1 - records.mover(record)).all()
            action = own[rng.integers(len(own))]
            result, moves = board_rules.play(board.numbers, record, action), moves + 1
            passes += action == board.actions - 1
            if action < board.actions - 1:
                state.apply_action(action)
            assert records.ply(record) == moves
        if state.is_terminal():
            points = state.returns()[who]
            assert result == (records.WON if points > 0 else records.LOST if points < 0 else records.DRAWN)
        else:
            assert (moves, result) == (board.longest, records.DRAWN)
        made += moves
    return made, passes


@pytest.mark.parametrize("name", SMALL)
def test_random_games_are_open_spiels_move_by_move(name: str):
    _, passes = agree(name, seed=1, games=5)
    assert (passes > 0) == (name in ("dots_and_boxes", "mancala"))


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_random_games_of_every_game_are_open_spiels(name: str):
    moves, passes = agree(name, seed=2)
    assert 0 <= passes < moves


def test_it_learns_and_goes_on_to_the_bit(tmp_path):
    """Also with saved searches: a record has all moves, so a state that is not known is made again."""
    settings: Any = {"env": "game:spiel:tic_tac_toe", "preset": "tic_tac_toe", "blocks": 1, "filters": 8, "games": 16}
    settings |= {
        "learning_starts": 400,
        "batch": 64,
        "simulations": 12,
        "serial": True,
        "trace": True,
        "tensorboard": False,
    }
    settings |= {"checkpoint_every": 1e6, "anneal": "constant", "players": 1}
    polyplay.train("alphago_zero", run=str(tmp_path / "whole"), steps=2_000, **settings)
    run = polyplay.train("alphago_zero", run=str(tmp_path / "parts"), steps=1_000, **settings)
    calls_of("spiel:tic_tac_toe").rules.states.clear()
    run = polyplay.resume(run.directory, steps=2_000)
    one, two = ((tmp_path / name / "updates.jsonl").read_text() for name in ("whole", "parts"))
    assert one == two
    assert one.count("\n") > 40
    assert polyplay.evaluate(run.directory, episodes=64)["episodic_return_mean"] > 0.3, "against random moves"


def test_stones_are_where_moves_put_them():
    board, record = game("spiel:hex(board_size=4)"), None
    record = board.new()
    for action in (5, 0, 15):
        board_rules.play(board.numbers, record, action)
    assert board.stones(record).tolist() == [2, 0, 0, 0, 0, 1, *[0] * 9, 1]
    assert board.move_name(5) == "b3"
    assert board.move_name(16) == "pass"
    assert board.line(record).endswith("second player to move")
    assert "x" in board.draw(record)
    assert board.title == "Hex, board size 4"
    chess = game("spiel:chess")
    assert not chess.stones(chess.new()).any(), "pieces are no stones"
    assert chess.move_name(17) == "17"


def test_what_was_not_shown_cant_be_found():
    board, shown = game("spiel:nim"), np.zeros(game("spiel:nim").planes, np.float32)
    record = board.new()
    board_rules.play(board.numbers, record, legal(board, record)[0])
    board_rules.write_planes(board.numbers, record, shown)
    board.remember(record[None], shown[None], np.array([0]), np.array([False]))
    assert np.array_equal(board.records(shown[None])[0], record)
    with pytest.raises(ValueError, match="a position that was not shown before"):
        board.records(shown[None] + 7)
    while board_rules.play(board.numbers, record, legal(board, record)[0]) == records.GOES_ON:
        pass
    board_rules.write_planes(board.numbers, record, shown)
    board.remember(record[None], shown[None], np.array([0]), np.array([True]))
    assert np.array_equal(board.records(shown[None])[0], board.new()), "of a game that is over nothing is searched"


def test_the_newest_stay():
    known = OrderedDict[bytes, int]()
    for i in range(8):
        keep_newest(known, bytes([i]), i, 3)
    assert [*known.values()] == [5, 6, 7]
    for i in (5, 8):  # what is shown again is new
        keep_newest(known, bytes([i]), i, 3)
    assert [*known.values()] == [7, 5, 8]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("backgammon", "game:spiel:backgammon: it has chance; allowed: two players in turn"),
        ("phantom_ttt", "it hides information from its players"),
        ("goofspiel(num_cards=3)", "its players move simultaneously"),
        ("hexx", "OpenSpiel has no hexx, did you mean 'hex'?"),
        ("hex(size=3)", "game:spiel:hex(size=3): OpenSpiel says: "),
        ("efg_game", "game:spiel:efg_game: OpenSpiel says: "),
        ("cliff_walking", "it has 1 player; allowed: two players"),
        ("mnk(m=200,n=200,k=5)", "it has 40,000 actions, more than 32,766"),
        ("go(board_size=99)", "game:spiel:go(board_size=99): OpenSpiel says: The current Go implementation supports"),
        ("breakthrough(rows=1,columns=1)", "OpenSpiel says: breakthrough.cc:"),
        ("quoridor(board_size=1)", "OpenSpiel says: Board size must be at least 3x3."),
        ("hex(board_size=-3)", "game:spiel:hex(board_size=-3): its board has no cells; give it other parameters"),
        ("nim(pile_sizes=0;0)", "it is over before the first move; give it other parameters"),
    ],
)
def test_what_is_not_for_a_search_is_refused_in_one_line(name: str, said: str, capfd: pytest.CaptureFixture):
    with pytest.raises(UserError) as raised:
        game(f"spiel:{name}")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", ""), "OpenSpiel prints nothing of its own"


def test_what_is_printed_of_a_refusal_is_left_out_and_else_shown(capfd: pytest.CaptureFixture):
    before = os.fstat(2)
    for error, printed in ((ValueError("two\nlines"), ""), (None, "and more")):
        with pytest.raises(UserError, match="two lines") if error else nullcontext(), open_spiel.refusals_of("hex"):
            os.write(2, b"and more")
            if error:
                raise error
        assert os.path.samestat(os.fstat(2), before)
        assert capfd.readouterr() == ("", printed)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    with pytest.raises(UserError, match=r"needs the package open_spiel; `pip install .*\[spiel\]'`"):
        open_spiel.load_game("hex")


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ValueError])
def test_an_exception_within_its_rules_ends_a_search(raised: type[BaseException], monkeypatch):
    """Ctrl-C in `polyplay evaluate`, say: compiled code stands between the rules and who asks."""
    board = game("spiel:tic_tac_toe")
    search, known, n = Search(board, 4, SearchOptions(50), UniformEvaluator(board.actions)), SpielGame.state, [0]

    def state(rules: SpielGame, moves: bytes) -> Any:
        n[0] += 1
        if n[0] == 30:
            raise raised("here")
        return known(rules, moves)

    monkeypatch.setattr(SpielGame, "state", state)
    search.restart()
    with pytest.raises(UserError, match=f"game:spiel:tic_tac_toe: .* raised {raised.__name__}: here"):
        [search.step() for _ in range(50)]
    assert n[0] == 30, "it ends there"


def test_a_game_is_the_same_in_another_process():
    board = game("spiel:hex(board_size=4)")
    again = pickle.loads(pickle.dumps(board))
    assert isinstance(again, OwnGame)
    assert again == board
    assert np.array_equal(again.numbers, board.numbers)
    assert not np.array_equal(game("spiel:hex").numbers, board.numbers)

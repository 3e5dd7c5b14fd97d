"""A user's games: Python and compiled ones play alike; what is wrong with one is a line that names it and the fix."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import polyplay
from examples.gomoku import CELLS, SWAP, Gomoku
from polyplay.cli import main
from polyplay.core.errors import UserError
from polyplay.envs import Envs
from polyplay.games import records
from polyplay.games.boards import Game, game
from polyplay.games.own_game import OwnGame, check_rules
from polyplay.runs.directory import code_of
from polyplay.runs.plan import searching
from polyplay.search import Search, SearchOptions
from tests.games.test_board_rules import random_games
from tests.search.twins import UniformEvaluator
from tests.verbs import refused

HERE = "tests.games.own_games"
GOMOKU = "examples.gomoku:Gomoku"


def shown(board: Game, record: np.ndarray) -> np.ndarray:
    return board.shown(record[None])[0]


def test_python_and_compiled_rules_play_the_same_games():
    python, compiled = game(f"{HERE}:Row"), game(f"{HERE}:Compiled")
    assert isinstance(python, OwnGame)
    ends = set[int]()
    for one, two in zip(random_games(python, 30), random_games(compiled, 30), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
        assert np.array_equal(shown(python, one[0]), shown(compiled, one[0]))
        ends.add(one[3])
    assert ends == {records.GOES_ON, records.WON, records.DRAWN}
    assert compiled.how == ""
    assert python.how.startswith("legal, play, write_planes of tests.games.own_games:Row: Python")
    assert (python.title, compiled.title) == ("Row", "a row")


def test_a_game_that_reaches_its_longest_is_drawn():
    board = game(f"{HERE}:Endless")
    check_rules(board.name)
    *_, (_, _, last, status) = random_games(board, 1)
    assert (records.ply(last), status) == (6, records.DRAWN)


def test_a_game_is_the_same_in_another_process():
    board = game(GOMOKU)
    again = pickle.loads(pickle.dumps(board))
    assert again == board
    assert np.array_equal(again.numbers, board.numbers)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "Stuck",
            "after 1 moves legal is empty before the game is over: let play return WON, LOST or DRAWN, or add a pass",
        ),
        ("CompiledStuck", "after 1 moves legal is empty before the game is over"),
        ("Beyond", "after 0 moves legal names the action 6; `actions` allows 0 to 5"),
        ("Twice", "legal names an action twice: [0, 0]"),
        ("Halves", "legal must return whole numbers [n], got [0.5]"),
        (
            "Wide",
            "write_planes raised ValueError: could not broadcast input array from shape (2,1,7) into shape (2,1,6)",
        ),
        ("Wide", "(own_games.py:"),
        ("Wide", "; out is float32 [2, 1, 6]"),
        ("Odd", "returned 7; allowed: GOES_ON, WON, DRAWN, LOST"),
        ("Careless", "legal or write_planes changed the position; only play may"),
        ("Hot", "write_planes wrote NaN or infinity; networks take finite numbers"),
        ("Broken", "after 0 moves legal raised KeyError: 'cells' (own_games.py:"),
        ("Floats", "start() must return int8 [6], as `size` says, got float64 [6]"),
        ("Crooked", "symmetries[0] does not hold: the mirrored game has other planes or legal actions; leave it out"),
        ("Loose", "symmetries[0] must be two permutations, of 6 cells and of 6 actions"),
        ("Unsized", "actions is None; it must be a whole number from 1 to 32,767"),
        ("Flat", "planes is (6,); it must be (planes, rows, columns)"),
        ("Unfinished", "Unfinished() raised TypeError: Can't instantiate abstract class Unfinished"),
        ("Untyped", "legal can't be compiled: "),
        (
            "nothing",
            "nothing is not a class of rules; allowed: game:module:Class, a class that inherits polyplay",
        ),
        ("Nowhere", "has no attribute 'Nowhere'; allowed: game:module:Class"),
    ],
)
def test_check_names_what_is_wrong(name: str, said: str, capsys: pytest.CaptureFixture):
    line = refused(capsys, "check", f"game:{HERE}:{name}")
    assert f"{HERE}:{name}" in line
    assert said in line


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere_at_all:Game", "no module 'nowhere_at_all'; it must be installed or lie in"),
        ("tests/games/own_games.py:Row", "which is a file: write tests.games.own_games:Row"),
        (
            "__main__:Row",
            "worker processes can't import a class of the program itself; move it into a separate file",
        ),
        (f"spiel:{HERE}:hexx", "OpenSpiel has no hexx, did you mean 'hex'?"),
        ("spiel:nowhere_at_all:hex", "no module 'nowhere_at_all'"),
    ],
)
def test_a_name_that_leads_to_no_game(name: str, said: str):
    if name.startswith("spiel"):
        pytest.importorskip("pyspiel")
    with pytest.raises(UserError) as raised:
        game(name)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["Stuck", "CompiledStuck", "Beyond", "Odd", "Wide", "Broken"])
def test_rules_that_fail_in_a_search_end_it_with_a_line(name: str):
    board = game(f"{HERE}:{name}")
    search = Search(board, 4, SearchOptions(30), UniformEvaluator(board.actions))
    for _ in range(2):  # each time
        search.restart()
        with pytest.raises(UserError, match=rf"^game:{HERE}:{name}: (legal|play|write_planes) [a-z]"):
            [search.step() for _ in range(60)]


def test_every_game_can_be_saved_and_searched_from_what_it_showed():
    board, pool = game(f"{HERE}:Row"), Envs(f"game:{HERE}:Row", 8).open(seed=1)
    _, row = pool.recv()
    found = board.records(row["obs"])
    assert np.array_equal(board.shown(found), row["obs"])
    assert np.array_equal(found[:, 0], np.arange(8) % 2), "in every other lane the player moves second"
    with pytest.raises(ValueError, match="a position that was not shown before"):
        board.records(row["obs"] + 1)
    pool.close()


def test_a_game_may_end_with_the_opponents_first_move(capsys: pytest.CaptureFixture):
    assert main.main(["check", f"game:{HERE}:Trap", "--steps", "300"]) == 0
    assert "Python, one call at a time in a process (GIL)" in capsys.readouterr().out


def test_runs_that_import_a_game_are_trusted_by_that():
    def code(env: str) -> list[tuple[str, str]]:
        return code_of({"config": {"env": env}})

    assert code("game:gomoku:Gomoku+opponent=mcts:20") == [("env", "gomoku:Gomoku+opponent=mcts:20")]
    assert code("game:spiel:own.games:mine(size=3)") == [("env", "own.games:mine(size=3)")]
    for plain in ("game:connect:4x5x3", "game:spiel:hex(board_size=5)", "game:tic_tac_toe+opponent=mcts:9"):
        assert code(plain) == []


def test_the_plan_says_that_python_is_slow():
    options = SimpleNamespace(simulations=8)
    role = SimpleNamespace(holds={"options": options, "resign": records.ResignOptions(), "board": game(f"{HERE}:Row")})
    assert "Python, one call at a time in a process (GIL); numba.njit avoids it" in searching(role)
    role.holds["board"] = game(GOMOKU)
    assert "GIL" not in searching(role)


# The example.


def test_gomoku_is_short_and_has_no_flaw(capsys: pytest.CaptureFixture):
    assert len(Path("examples/gomoku.py").read_text().splitlines()) <= 60
    assert main.main(["check", f"game:{GOMOKU}", "--steps", "200"]) == 0
    assert "the legal moves" in capsys.readouterr().out


def played(*moves: int) -> tuple[Game, np.ndarray, int]:
    board, status = game(GOMOKU), records.GOES_ON
    record = board.new()
    for move in moves:
        assert status == records.GOES_ON
        assert move in board.legal(record)
        status = board.play(record, move)
    return board, record, status


def test_five_in_a_row_win_in_each_direction():
    for step, first in ((1, 0), (7, 0), (8, 0), (6, 6)):
        others = [c for c in range(CELLS) if c % step or step == 1]
        own = [first + i * step for i in range(5)]
        away = [c for c in (48, 46, 44, 27, 29) if c not in own] or others
        moves = [m for pair in zip(own, away, strict=False) for m in pair][:9]
        assert played(*moves)[2] == records.WON
    assert played(5, 20, 6, 21, 7, 22, 8, 23, 9)[2] == records.GOES_ON, "a row does not go round the edge"


def test_a_swap_gives_the_stone_to_the_second_player():
    board, record, _ = played(24)
    assert board.legal(record)[-1] == SWAP
    assert board.move_name(SWAP) == "swap"
    board, record, status = played(24, SWAP)
    assert status == records.GOES_ON
    assert records.mover(record) == 0
    assert board.stones(record)[24] == 2
    assert SWAP not in board.legal(record)
    assert SWAP not in board.legal(played(24, 25)[1])
    assert "x" not in board.draw(record)
    assert board.line(record).endswith("first player to move")


def test_a_whole_board_without_five_is_drawn():
    position = np.ones(CELLS + 1, np.int8)
    position[:CELLS:2] = -1
    position[[0, CELLS]] = 0, 48
    assert Gomoku().play(position, 0) in (records.DRAWN, records.WON)


QUICK: dict[str, Any] = {"blocks": 1, "filters": 8, "games": 16, "simulations": 8, "gumbel_actions": 4, "batch": 32}
QUICK |= {"learning_starts": 300, "tensorboard": False, "quiet": True}


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [GOMOKU, f"{HERE}:Row", "spiel:open_spiel.python.games.tic_tac_toe:python_tic_tac_toe"]
)
def test_workers_import_it_train_and_evaluate(tmp_path: Path, name: str):
    if name.startswith("spiel"):
        pytest.importorskip("pyspiel")
    run = polyplay.train("alphago_zero", env=f"game:{name}", players=2, steps=600, run=tmp_path / "run", **QUICK)
    assert run.reason == "done"
    assert run.evaluate(episodes=4)["episodes"] == 4
    against = polyplay.evaluate(run.directory, protocol="versus", against="mcts:5", episodes=4)
    assert against["episodes"] == 4


@pytest.mark.long
def test_a_worker_that_cant_import_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tests.games import own_games

    only = ModuleType("only_in_this_process")
    only.Row = own_games.Row
    monkeypatch.setitem(__import__("sys").modules, only.__name__, only)
    with pytest.raises(UserError, match="no module 'only_in_this_process'; it must be installed or lie in"):
        polyplay.train("alphago_zero", env=f"game:{only.__name__}:Row", steps=600, run=tmp_path / "run", **QUICK)

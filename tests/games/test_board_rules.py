"""The compiled rules against OpenSpiel, by digests of random games, and in positions by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest

from polyplay.core.errors import UserError
from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES, Game, KInARow, game

SIZES = [*GAMES.values(), KInARow("wide", 4, 9, 4, gravity=True), KInARow("cells", 5, 4, 3, gravity=False)]


def legal_of(game: Game, record: np.ndarray) -> list[int]:
    out = np.empty(game.actions, np.int16)
    return out[: board_rules.legal(game.numbers, record, out)].tolist()


def random_games(board: Game, games: int, seed: int = 0) -> Iterator[tuple[np.ndarray, int, np.ndarray, int]]:
    """Of every move the record before, the action, the record after, and what it led to."""
    rng = np.random.default_rng(seed)
    for _ in range(games):
        record, status = board.new(), records.GOES_ON
        while status == records.GOES_ON:
            before, moves = record.copy(), legal_of(board, record)
            few = len(moves) > 1 and board.passes and rng.random() < 0.95  # seldom the pass
            action = int(rng.choice(moves[:-1] if few and moves[-1] == board.cells else moves))
            status = board_rules.play(board.numbers, record, action)
            yield before, action, record.copy(), status


@pytest.mark.parametrize(
    ("name", "games", "digest"),
    [
        ("tic_tac_toe", 30, "da77510152ca6785"),
        ("three_in_a_row", 30, "af942c207dc2e94a"),
        ("connect_four", 30, "275d8f6e97c08c7c"),
        ("connect:4x9x4", 30, "067d63f7eb7a9b4c"),
        ("othello+size=4", 30, "3471c01bd5d182f5"),
        ("othello+size=6", 8, "83a121422efae9e7"),
        ("go+size=3+ko=situational+suicide", 20, "bfa32807a07326b6"),
        ("go+size=5+suicide", 5, "128ad1ebb8e44ef8"),
        ("go+size=7+ko=simple", 3, "4a3f35103a1f482c"),
        ("go+size=9", 2, "d246e0207f0b5d85"),
    ],
)
def test_random_games_go_as_they_always_did(name: str, games: int, digest: str):
    """Legal moves, records, planes, and records that are made of these again."""
    board, found, ends = game(name), hashlib.sha256(), set[int]()
    for before, action, after, status in random_games(board, games):
        planes = np.empty((1, *board.planes), np.float32)
        board_rules.write_planes(board.numbers, before, planes[0])
        for x in (np.array([*legal_of(board, before), action]), after, planes, board.records(planes)):
            found.update(x.tobytes())
        ends.add(status)
    assert ends >= {records.GOES_ON, records.WON}
    assert found.hexdigest()[:16] == digest


@pytest.mark.parametrize(("name", "games"), [("tic_tac_toe", 60), ("connect_four", 40), ("othello", 6)])
def test_random_games_are_open_spiels_move_by_move(name: str, games: int):
    state, passes, board = None, 0, game(name)
    new = pytest.importorskip("pyspiel").load_game(name).new_initial_state
    for before, action, after, status in random_games(board, games):
        state = new() if records.ply(before) == 0 else state
        assert legal_of(board, before) == state.legal_actions()
        planes = np.empty((1, *board.planes), np.float32)
        board_rules.write_planes(board.numbers, before, planes[0])
        assert legal_of(board, board.records(planes)[0]) == state.legal_actions()
        state.apply_action(action)
        passes += action == board.cells and board.passes
        assert (records.mover(after), records.ply(after)) == ((records.ply(before) + 1) % 2, records.ply(before) + 1)
        assert state.is_terminal() == (status != records.GOES_ON)
        assert status == records.GOES_ON or state.returns()[records.mover(before)] == records.WORTH[status]
    assert passes > 0 or name != "othello"


@pytest.mark.parametrize(
    ("name", "moves", "ends"),
    [
        ("connect:4x9x4", (0, 0, 1, 1, 2, 2, 3), records.WON),
        ("connect:4x9x4", (0, 1, 1, 2, 2, 3, 2, 3, 3, 8, 3), records.WON),  # up to the right
        ("connect:4x9x4", (8, 0, 8, 0, 8, 0, 8), records.WON),
        ("connect:4x9x4", (0, 8, 1, 8, 2, 7, 4), records.GOES_ON),  # three and one are no four
        ("connect:4x9x4", (7, 0, 8, 0, 0, 1, 0, 1, 2), records.GOES_ON),  # not round the edge
        ("tic_tac_toe", (2, 0, 4, 1, 6), records.WON),
        ("tic_tac_toe", (0, 1, 2, 4, 3, 5, 7, 6, 8), records.DRAWN),
    ],
)
def test_k_in_a_row(name: str, moves: tuple[int, ...], ends: int):
    board, record, status = game(name), game(name).new(), records.GOES_ON
    for move in moves:
        assert status == records.GOES_ON
        status = board_rules.play(board.numbers, record, move)
    assert status == ends


def test_a_long_game_counts_its_moves():
    game = KInARow("large", 26, 26, 26, gravity=False)
    record = game.new()
    for action in range(300):
        assert board_rules.play(game.numbers, record, action) == records.GOES_ON
        assert records.ply(record) == action + 1


# Symmetries, names, drawings, and what is no game.


@pytest.mark.parametrize("board", [*SIZES, game("othello+size=6"), game("go+size=5")], ids=lambda g: g.name)
def test_symmetries_are_bijections_that_commute_with_play(board: Game):
    rng, cells_of = np.random.default_rng(0), slice(records.CELLS, records.CELLS + board.cells)
    assert np.array_equal(board.symmetries[0][0], np.arange(board.cells))
    for cells, actions in board.symmetries:
        assert sorted(cells) == list(range(board.cells))
        assert sorted(actions) == list(range(board.actions))
        for _ in range(3):
            record, image, status = board.new(), board.new(), records.GOES_ON
            image[cells_of][cells] = record[cells_of]
            while status == records.GOES_ON:
                moves = legal_of(board, record)
                assert sorted(actions[moves]) == legal_of(board, image)
                action = int(rng.choice(moves))
                status = board_rules.play(board.numbers, record, action)
                assert board_rules.play(board.numbers, image, int(actions[action])) == status
                assert np.array_equal(image[cells_of][cells], record[cells_of])


def test_numbers_of_symmetries():
    assert [len(GAMES[name].symmetries) for name in ("tic_tac_toe", "connect_four")] == [8, 2]
    assert len(KInARow("cells", 5, 4, 3, gravity=False).symmetries) == 4
    assert len(game("go+size=5").symmetries) == 8


def test_moves_have_names_and_boards_are_drawn():
    four, three = GAMES["connect_four"], GAMES["tic_tac_toe"]
    assert [four.move_name(a) for a in (0, 6)] == ["a", "g"]
    assert [three.move_name(a) for a in (0, 4, 8)] == ["a3", "b2", "c1"]
    record = three.new()
    for action in (4, 0, 8):
        board_rules.play(three.numbers, record, action)
    assert three.draw(record) == "o . .\n. x .\n. . x\na b c"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("conect_four", "did you mean connect_four?"),
        (
            "chess",
            "allowed: tic_tac_toe, three_in_a_row, connect_four, connect:ROWSxCOLUMNSxK (connect:6x7x4), go, othello",
        ),
        ("connect:4x5x6", "6 in a row; a 4x5 board allows 2 to 5"),
        ("connect:0x5x3", "0x5 does not fit; a side must have 1 to 26 cells"),
        *((f"othello+size={n}", f"size must be an even number from 4 to 26, got {n}") for n in (5, 2, 28)),
        ("go+size=2", "size must be from 3 to 19, got 2"),
        ("go+komi=7.25", "komi must be in whole or half points up to 361, got 7.25"),
        *((f"go+komi={x}", f"option komi='{x}' must be of type float") for x in ("seven", "7,5", "nan")),
        ("go+komi", "option komi=True must be of type float"),
        ("go+komi=" + "9" * 5_000, "must be of type float"),
        ("go+size=" + "9" * 5_000, "must be of type int"),
        ("go+size=9²", "must be of type int"),
        ("go+ko=super", "ko must be one of positional, situational, simple; got super"),
        ("go+sizes=9", "unknown option 'sizes', did you mean 'size'"),
    ],
)
def test_what_is_no_game_is_one_line(name: str, said: str):
    with pytest.raises(UserError, match="game:") as raised:
        game(name)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)

"""The compiled rules against OpenSpiel, by digests of random games, and in positions by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest

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

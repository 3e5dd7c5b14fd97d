"""Symmetries, names, drawings, and what is no game."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.core.errors import UserError
from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES, Game, KInARow, game
from tests.games.test_board_rules import SIZES, legal_of


@pytest.mark.parametrize("game", SIZES, ids=lambda g: g.name)
def test_symmetries_are_bijections_that_commute_with_play(game: Game):
    rng = np.random.default_rng(0)
    for cells, actions in game.symmetries:
        assert sorted(cells) == list(range(game.rows * game.columns))
        assert sorted(actions) == list(range(game.actions))
        for _ in range(10):
            record, image, status = game.new(), game.new(), records.GOES_ON
            while status == records.GOES_ON:
                action = rng.choice(legal_of(game, record))
                status = board_rules.play(game.numbers, record, action)
                assert board_rules.play(game.numbers, image, actions[action]) == status
                assert np.array_equal(image[records.CELLS :][cells], record[records.CELLS :])


def test_numbers_of_symmetries():
    assert [len(GAMES[name].symmetries) for name in ("tic_tac_toe", "connect_four")] == [8, 2]
    assert len(KInARow("cells", 5, 4, 3, gravity=False).symmetries) == 4
    for g in SIZES:
        assert np.array_equal(g.symmetries[0][0], np.arange(g.rows * g.columns))


def test_moves_have_names_and_boards_are_drawn():
    four, three = GAMES["connect_four"], GAMES["tic_tac_toe"]
    assert [four.move_name(a) for a in (0, 6)] == ["a", "g"]
    assert [three.move_name(a) for a in (0, 4, 8)] == ["a3", "b2", "c1"]
    record = three.new()
    for action in (4, 0, 8):
        board_rules.play(three.numbers, record, action)
    assert three.draw(record) == "o . .\n. x .\n. . x\na b c"


def test_a_board_of_other_sizes_goes_by_its_name():
    made = game("connect:4x5x3")
    assert (made.rows, made.columns, made.k, made.gravity) == (4, 5, 3, True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("conect_four", "did you mean connect_four?"),
        (
            "chess",
            "allowed: tic_tac_toe, three_in_a_row, connect_four, connect:ROWSxCOLUMNSxK (connect:6x7x4), go, othello",
        ),
        ("connect:4x5x6", "6 in a row given; a 4x5 board has 2 to 5"),
        ("connect:0x5x3", "a side has 1 to 26 cells"),
    ],
)
def test_what_is_no_game_is_one_line(name: str, said: str):
    with pytest.raises(UserError, match="game:") as raised:
        game(name)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)

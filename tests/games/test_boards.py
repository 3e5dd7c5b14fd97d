"""Symmetries, names, drawings, and what is no game."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.core.errors import UserError
from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES, Game, KInARow, game
from tests.games.test_board_rules import SIZES, legal_of


@pytest.mark.parametrize("game", [*SIZES, game("othello+size=6"), game("go+size=5")], ids=lambda g: g.name)
def test_symmetries_are_bijections_that_commute_with_play(game: Game):
    rng, cells_of = np.random.default_rng(0), slice(records.CELLS, records.CELLS + game.cells)
    assert np.array_equal(game.symmetries[0][0], np.arange(game.cells))
    for cells, actions in game.symmetries:
        assert sorted(cells) == list(range(game.cells))
        assert sorted(actions) == list(range(game.actions))
        for _ in range(3):
            record, image, status = game.new(), game.new(), records.GOES_ON
            image[cells_of][cells] = record[cells_of]
            while status == records.GOES_ON:
                moves = legal_of(game, record)
                assert sorted(actions[moves]) == legal_of(game, image)
                action = int(rng.choice(moves))
                status = board_rules.play(game.numbers, record, action)
                assert board_rules.play(game.numbers, image, int(actions[action])) == status
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
        ("connect:4x5x6", "6 in a row given; a 4x5 board has 2 to 5"),
        ("connect:0x5x3", "a side has 1 to 26 cells"),
        *((f"othello+size={n}", f"size={n} given; allowed: even numbers from 4 to 26") for n in (5, 2, 28)),
        ("go+size=2", "size=2 given; allowed: 3 to 19"),
        ("go+komi=7.25", "komi=7.25 given; allowed: whole and half points"),
        *(
            (f"go+komi={x}", f"komi={x} given; allowed: whole and half points, as komi=7 or komi=-0.5")
            for x in ("seven", "7,5", "nan")
        ),
        ("go+komi", "komi= given; allowed: whole and half points, as komi=7 or komi=-0.5"),
        ("go+komi=" + "9" * 5_000, "komi=inf given; allowed: whole and half points up to 361"),
        ("go+size=" + "9" * 5_000, "must be of type int"),
        ("go+size=9²", "must be of type int"),
        ("go+ko=super", "ko=super given; allowed: positional, situational, simple"),
        ("go+sizes=9", "unknown option 'sizes', did you mean 'size'"),
    ],
)
def test_what_is_no_game_is_one_line(name: str, said: str):
    with pytest.raises(UserError, match="game:") as raised:
        game(name)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)

from __future__ import annotations

import pytest

from polyplay.cli.play import MoveList
from polyplay.games.boards import game
from polyplay.games.records import DRAWN, GOES_ON, WON


def played(name: str, *moves: int) -> MoveList:
    found = MoveList(game(name))
    for move in moves:
        found.play(move)
    return found


@pytest.mark.parametrize(
    ("moves", "line"),
    [
        ((0, 6, 1, 6, 2, 6, 3), [35, 36, 37, 38]),
        ((0, 1, 0, 1, 0, 1, 0), [14, 21, 28, 35]),
        ((0, 1, 1, 2, 2, 3, 2, 3, 3, 6, 3), [17, 23, 29, 35]),
        ((0, 6, 1, 6, 2, 5, 4, 5, 3), [35, 36, 37, 38, 39]),
    ],
)
def test_the_cells_of_the_line_that_won(moves: tuple[int, ...], line: list[int]):
    found = played("connect_four", *moves)
    assert (found.result, found.winner, found.line(), found.legal) == (WON, 0, line, [])


def test_two_lines_at_once():
    found = played("tic_tac_toe", 0, 1, 2, 4, 8, 3, 6, 7)  # the second player's middle column
    assert (found.winner, found.line()) == (1, [1, 4, 7])
    found = played("tic_tac_toe", 1, 3, 2, 5, 4, 7, 8, 6, 0)
    assert (found.winner, found.line()) == (0, [0, 1, 2, 4, 8])


def test_a_draw_has_no_line_and_no_winner():
    found = played("tic_tac_toe", 0, 1, 2, 4, 3, 5, 7, 6, 8)
    assert (found.result, found.winner, found.line()) == (DRAWN, None, [])


def test_undo_takes_back_a_win():
    found = played("connect_four", 0, 1, 0, 1, 0, 1, 0)
    found.undo(2)
    assert (found.result, found.moves, found.mover) == (GOES_ON, [0, 1, 0, 1, 0], 1)
    assert (found.record == played("connect_four", 0, 1, 0, 1, 0).record).all()


def test_a_full_column_is_refused():
    found = played("connect_four", 0, 0, 0, 0, 0, 0)
    assert found.legal == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ValueError, match="not legal"):
        found.play(0)

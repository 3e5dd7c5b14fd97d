"""The moves that are found in a record of Go are those that were made."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.evaluation.gtp import moves_between
from polyplay.games import board_rules
from polyplay.games import records as kernels
from polyplay.games.boards import Go
from tests.games.test_board_rules import legal_of
from tests.games.test_go import RULES, choose, go


def random_game(board: Go, seed: int) -> tuple[list[int], list[np.ndarray]]:
    """Moves until the end, or at most 120, and the position before each and after the last."""
    rng, moves, records, status = np.random.default_rng(seed), list[int](), [board.new()], kernels.GOES_ON
    while status == kernels.GOES_ON and len(moves) < 120:
        record = records[-1].copy()
        moves.append(choose(rng, legal_of(board, record)))
        status = board_rules.play(board.numbers, record, moves[-1])
        records.append(record)
    return moves, records


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([3, 5, 7, 9]), st.sampled_from(RULES), st.data())
def test_moves_between_are_those_that_were_made(seed: int, size: int, rules: str, data: st.DataObject):
    board = go(size, rules)
    moves, records = random_game(board, seed)
    last = data.draw(st.integers(0, len(moves)))
    first = data.draw(st.integers(0, last))
    assert moves_between(board, records[0], records[-1]) == moves
    assert moves_between(board, records[first], records[last]) == moves[first:last]
    if first < last:
        assert moves_between(board, records[last], records[first]) is None


@pytest.mark.parametrize(("size", "ends"), [(3, "its length"), (5, "two passes")])
def test_the_last_move_of_a_game_is_found_too(size: int, ends: str):
    """Of its position the record has no hash."""
    board, found = go(size, "+suicide"), 0
    for seed in range(60):
        moves, records = random_game(board, seed)
        passed = moves[-2:] == [board.cells] * 2
        if passed == (ends == "two passes") and (passed or len(moves) == board.longest):
            found += 1
            assert moves_between(board, records[0], records[-1]) == moves
    assert found >= 3


def test_a_suicide_that_empties_the_board_is_no_second_pass():
    """A game that is over has no hash of its last position, which is 0, as that of the empty board."""
    board = go(3, "+ko=situational+suicide")
    moves, records = random_game(board, 331)
    assert moves[-3:] == [9, 4, 7]
    assert not records[-2][kernels.CELLS : kernels.CELLS + 9].any()
    assert moves_between(board, records[0], records[-1]) == moves


def test_a_game_that_went_another_way_is_another_game():
    board = go(5)
    moves, records = random_game(board, 1)
    other = records[3].copy()
    board_rules.play(board.numbers, other, next(a for a in legal_of(board, other) if a != moves[3]))
    assert moves_between(board, other, records[-1]) is None
    assert moves_between(board, other, records[4]) is None
    assert moves_between(board, records[4], records[4]) == []
    stones = records[-1].copy()
    stones[kernels.CELLS :] = 0
    assert moves_between(board, board.new(), stones) is None, "a position that no moves lead to"


def test_captures_and_suicides_are_among_them():
    """So that the games above are not too tame."""
    board = go(3, "+suicide")
    moves, records = random_game(board, 0)
    stones = [np.count_nonzero(record[kernels.CELLS : kernels.CELLS + 9]) for record in records]
    assert any(after <= before for (before, after), move in zip(pairwise(stones), moves, strict=True) if move < 9)

"""Searches from positions: the same moves as one by one, however many are asked for at once."""

from __future__ import annotations

from itertools import islice

import numpy as np

from polyplay.evaluation.matches import openings as random_openings
from polyplay.games.boards import GAMES
from polyplay.search import SearchOptions
from polyplay.search.evaluators import UniformEvaluator
from polyplay.search.search import PositionSearch

BOARD = GAMES["connect_four"]
OPTIONS = SearchOptions(30, noise=0.0, temperature=((0, 0.0),), reuse=False)


def openings(n: int, plies: int) -> np.ndarray:
    return np.stack([*islice(random_openings(BOARD, plies, seed=1), n)])


def searching(most: int, options: SearchOptions = OPTIONS, seed: int = 0) -> PositionSearch:
    return PositionSearch(BOARD, options, UniformEvaluator(BOARD.actions), most, seed)


def test_a_position_has_the_same_move_in_whatever_company():
    records = openings(23, 6)
    alone = [int(searching(1).choose(record[None])[0]) for record in records]
    assert len(set(alone)) > 2
    eight = searching(8)
    assert eight.choose(records).tolist() == alone, "in parts of eight"
    assert eight.choose(records[:3]).tolist() == alone[:3], "fewer than before"
    assert eight.choose(records[10:18]).tolist() == alone[10:18]


def test_without_simulations_moves_are_drawn_from_the_policy():
    drawing = SearchOptions(0, noise=0.0, temperature=((0, 1.0),), reuse=False)
    records = np.repeat(BOARD.new()[None], 700, 0)
    found = np.bincount(searching(100, drawing, seed=5).choose(records), minlength=7)
    assert found.min() > 60, "each of seven moves about a hundred times"
    again = searching(100, drawing, seed=5).choose(records)
    assert np.bincount(again, minlength=7).tolist() == found.tolist()


def test_every_evaluation_is_a_turn():
    turns = []
    searching(4).choose(openings(4, 2), lambda: turns.append(1))
    assert len(turns) >= 30

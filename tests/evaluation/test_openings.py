"""Matches of a board game: colours, openings and points are what they say."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from polyplay.acting.play import match
from polyplay.core.errors import UserError
from polyplay.evaluation.matches import both_colors, openings
from polyplay.games import board_rules
from polyplay.games import records as kernels
from polyplay.games.boards import GAMES
from polyplay.games.mcts import opponent

BOARD = GAMES["tic_tac_toe"]


def first_legal(records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
    room = np.zeros(BOARD.actions, np.int16)
    return np.array([room[: board_rules.legal(BOARD.numbers, record, room)][0] for record in records[at]], np.int64)


def drawn(n: int, plies: int, seed: int) -> np.ndarray:
    return np.stack([*islice(openings(BOARD, plies, seed), n)])


def test_openings_have_their_plies_and_go_on():
    found = drawn(50, 3, seed=1)
    assert {kernels.ply(record) for record in found} == {3}
    assert len({record.tobytes() for record in found}) > 20
    assert np.array_equal(found, drawn(50, 3, seed=1))


def test_openings_that_no_game_survives():
    with pytest.raises(UserError, match="--opening-plies 9: every random game of game:tic_tac_toe is over by then"):
        next(openings(BOARD, 9, 0))


def test_every_opening_is_played_with_both_colours():
    starts = both_colors(BOARD, 40, 1, seed=3)
    assert np.array_equal(starts.records[:20], starts.records[20:])
    assert starts.begins.tolist() == [True] * 20 + [False] * 20
    seen: dict[bool, set[int]] = {True: set(), False: set()}

    def watched(records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        for lane in at.tolist():
            seen[lane < 20].add(kernels.mover(records[lane]))
        return first_legal(records, random, at)

    match(BOARD, watched, opponent("random", BOARD), starts, seed=3)
    assert seen == {True: {1}, False: {0}}, "after one ply the second player moves next"


def test_a_stronger_player_gets_the_points():
    starts = both_colors(BOARD, 40, 1, seed=3)
    points = match(BOARD, opponent("mcts:400", BOARD), opponent("random", BOARD), starts, seed=3)
    assert set(points) <= {0.0, 0.5, 1.0}
    assert points[:20].sum() > 15
    assert points[20:].sum() > 15
    again = match(BOARD, opponent("mcts:400", BOARD), opponent("random", BOARD), starts, seed=3)
    assert points.tolist() == again.tolist()


def test_a_match_of_equals_has_the_same_points_both_ways():
    points = match(BOARD, first_legal, first_legal, both_colors(BOARD, 60, 2, seed=5))
    assert (points[:30] + points[30:] == 1).all(), "the second game of a pair is the first with colours changed"
    assert {0.0, 1.0} <= set(points)


def test_a_match_that_is_watched_can_be_ended():
    seen = list[int]()

    def watch(ended: dict[int, float], moves: int) -> bool:
        seen.append(moves)
        return len(seen) < 3

    points = match(BOARD, first_legal, first_legal, both_colors(BOARD, 10, 0, seed=5), watch=watch)
    assert seen == [10, 10, 10]
    assert np.isnan(points).all(), "no game of tic-tac-toe is over after three plies"

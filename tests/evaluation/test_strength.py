"""Strength by known positions and by matches: colours, openings and points are what they say."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from polyplay.acting.match import match
from polyplay.common.errors import UserError
from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import GAMES, game
from polyplay.envs.boards.opponents import Opponent, opponent
from polyplay.envs.boards.positions import Decisive
from polyplay.envs.boards.solver import solver_of
from polyplay.evaluation.strength import Judge, both_colors, moves_kept, openings, unlost

BOARD = GAMES["tic_tac_toe"]
THREE = GAMES["three_in_a_row"]


def first_legal(records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
    room = np.zeros(BOARD.actions, np.int16)
    return np.array([room[: kernels.legal(BOARD.numbers, record, room)][0] for record in records[at]], np.int64)


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


def test_starts_that_are_not_lost_are_those_of_the_solver():
    solver = solver_of(THREE)
    starts, values = unlost(solver, 40, 3, seed=2)
    assert len(starts.records) == len(values) == 40
    for record, begins, value in zip(starts.records, starts.begins, values, strict=True):
        assert value == solver.outcome(record) * (1 if begins else -1) >= 0
    assert {True, False} == set(starts.begins.tolist())


def play_perfect(player: Opponent) -> tuple[Judge, np.ndarray, np.ndarray]:
    judge, (starts, values) = Judge(player, solver_of(THREE)), unlost(solver_of(THREE), 30, 3, seed=2)
    return judge, match(THREE, judge, opponent("perfect", THREE), starts), values


def test_perfect_play_keeps_every_value_and_a_random_player_does_not():
    judge, points, values = play_perfect(opponent("perfect", THREE))
    assert judge.kept == judge.moves > 30
    assert points.tolist() == ((1 + values) / 2).tolist()
    judge, points, values = play_perfect(opponent("random", THREE))
    assert judge.kept < 0.9 * judge.moves
    assert points.sum() < ((1 + values) / 2).sum()
    assert (points <= (1 + values) / 2).all(), "perfect play gives nothing away"


def test_perfect_play_wins_what_is_won_from_the_start():
    board = game("connect:4x4x3")
    starts = both_colors(board, 20, 0, seed=0)
    points = match(board, opponent("perfect", board), opponent("mcts:50", board), starts)
    assert points[:10].tolist() == [1.0] * 10, "the first player wins"


def test_the_share_of_moves_that_keep_the_value():
    records = drawn(210, 2, seed=2)
    keeping = np.zeros((210, BOARD.actions), bool)
    keeping[np.arange(210), first_legal(records, np.zeros(0), np.arange(210))] = True
    keeping[150:] = False
    positions = Decisive(BOARD, [""] * 210, records, np.zeros(210, np.int8), keeping)
    assert moves_kept(first_legal, positions) == [1.0] * 150 + [0.0] * 60
    assert len(moves_kept(first_legal, positions, lambda found, moves: False)) == 100, "ended by the watch"

"""Decisive positions: what the committed ones are, and what the solver says of them."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import GAMES, Game, game
from polyplay.envs.boards.positions import (
    MEASURES,
    candidates,
    decisive_positions,
    keeping_moves,
    measure_of,
    positions_of,
    random_play,
    wins_at_once,
)
from polyplay.envs.boards.solver import RowSolver, solver_of
from tests.envs.boards.test_kernels import legal_of

FOUR, OTHELLO = GAMES["connect_four"], game("othello+size=6")
IN_FOUR, IN_OTHELLO = MEASURES


def plies(record: np.ndarray) -> int:
    return int(np.count_nonzero(record[kernels.CELLS :]))


def legal_moves(of: Game, records: np.ndarray) -> np.ndarray:
    """bool [n, actions]."""
    found = np.zeros((len(records), of.actions), bool)
    for row, record in zip(found, records, strict=True):
        row[legal_of(of, record)] = True
    return found


@pytest.mark.parametrize(("of", "stones"), [(FOUR, range(8, 25)), (OTHELLO, range(24, 32))])
def test_a_measure_has_1000_decisive_positions(of: Game, stones: range):
    positions = decisive_positions(of)
    legal = legal_moves(of, positions.records)
    assert positions.records.shape == (1000, of.record)
    assert {plies(record) for record in positions.records} == set(stones)
    assert not (positions.keeping & ~legal).any()
    assert positions.keeping.any(1).all(), "some move keeps the value"
    assert (positions.keeping != legal).any(1).all(), "some move gives it away"
    assert len({record.tobytes() for record in positions.records}) == 1000
    assert not any(wins_at_once(of, record) for record in positions.records)
    assert set(positions.outcomes.tolist()) == {0, 1}, "what is lost cannot be given away"


def test_positions_of_othello_are_spread_over_5_to_12_empty_cells_and_some_come_after_a_pass():
    positions = decisive_positions(OTHELLO)
    empty = np.bincount([OTHELLO.cells - plies(record) for record in positions.records])
    assert empty[5:].min() >= 90
    assert len(empty) == 13
    passed = [play.count("pass") for play in positions.plays]
    assert sum(map(bool, passed)) >= 10
    made = [kernels.ply(record) for record in positions.records]
    assert made == [plies(r) - 4 + n for r, n in zip(positions.records, passed, strict=True)], "a pass is a move"


@pytest.mark.parametrize(("of", "low", "high"), [(FOUR, 0.30, 0.40), (OTHELLO, 0.43, 0.49)])
def test_a_random_move_keeps_about_a_third_or_half(of: Game, low: float, high: float):
    positions, rng = decisive_positions(of), np.random.default_rng(0)
    legal = legal_moves(of, positions.records)
    chosen = [[rng.choice(np.flatnonzero(row)) for row in legal] for _ in range(20)]
    played = [positions.keeping[np.arange(1000), moves].mean() for moves in chosen]
    assert positions.at_random == pytest.approx(np.mean(played), abs=0.01)
    assert low < positions.at_random < high


def test_the_solver_says_the_same_of_late_ones():
    positions, solver = decisive_positions(FOUR), RowSolver(FOUR, 1 << 18)
    late = [i for i, record in enumerate(positions.records) if plies(record) >= 20][:60]
    assert len(late) == 60
    for i in late:
        assert keeping_moves(solver, positions.records[i]) == (
            positions.outcomes[i],
            np.flatnonzero(positions.keeping[i]).tolist(),
        )


def test_the_solver_says_the_same_of_a_tenth_of_othello():
    positions, solver = decisive_positions(OTHELLO), solver_of(OTHELLO)
    for i in range(0, 1000, 10):
        assert keeping_moves(solver, positions.records[i]) == (
            positions.outcomes[i],
            np.flatnonzero(positions.keeping[i]).tolist(),
        )


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("of", [FOUR, OTHELLO])
def test_the_solver_says_the_same_of_all(of: Game):
    positions, solver = decisive_positions(of), solver_of(of)
    for record, outcome, keeping in zip(positions.records, positions.outcomes, positions.keeping, strict=True):
        assert keeping_moves(solver, record) == (outcome, np.flatnonzero(keeping).tolist())


def test_the_committed_ones_are_the_first_that_the_seed_draws():
    positions, solver, found = decisive_positions(FOUR), RowSolver(FOUR, 1 << 18), []
    for play, record in islice(candidates(IN_FOUR, 0), 200):
        if plies(record) >= 18 and keeping_moves(solver, record):
            found.append(play)
    expected = [play for play in positions.plays if len(play) >= 18]
    assert len(found) > 5
    assert found == expected[: len(found)]


def test_the_committed_ones_of_othello_are_the_first_that_the_seed_draws():
    solver, drawn = solver_of(OTHELLO), islice(candidates(IN_OTHELLO, 0), 150)
    found = [play for play, record in drawn if keeping_moves(solver, record)]
    assert len(found) > 40
    assert found == decisive_positions(OTHELLO).plays[: len(found)]


def test_a_measure_is_of_the_rules_whatever_the_name():
    assert measure_of(game("connect:6x7x4")) is measure_of(FOUR) is IN_FOUR
    assert measure_of(OTHELLO) is IN_OTHELLO
    assert measure_of(game("othello")) is None
    with pytest.raises(ValueError, match="game:othello has no decisive positions"):
        decisive_positions(game("othello"))


def test_rows_of_othello_are_played():
    found = positions_of(OTHELLO, [("c5 c6 b5", 1, "b6 c6")])
    assert found.keeping.nonzero()[1].tolist() == [1, 2]
    assert kernels.ply(found.records[0]) == 3


def test_a_forced_pass_is_not_decisive():
    rng, solver, seen = np.random.default_rng(1), solver_of(OTHELLO), 0
    for _ in range(300):
        made = random_play(OTHELLO, 26, rng)
        if made and legal_of(OTHELLO, made[1]) == [OTHELLO.cells]:
            assert keeping_moves(solver, made[1]) is None
            seen += 1
    assert seen > 3


def test_rows_are_played():
    found = positions_of(FOUR, [("ddca", 1, "d"), ("", 0, "abcdefg")])
    assert plies(found.records[0]) == 4
    assert found.records[0, kernels.CELLS + 5 * 7 :].tolist() == [2, 0, 1, 1, 0, 0, 0]
    assert found.keeping.tolist() == [[False, False, False, True, False, False, False], [True] * 7]
    assert found.at_random == pytest.approx((1 / 7 + 1) / 2)


def test_what_is_decisive_and_which_moves_keep_the_value():
    rng, solver, seen = np.random.default_rng(4), RowSolver(FOUR, 1 << 18), set[bool]()
    for _ in range(60):
        if made := random_play(FOUR, 22, rng):
            scores, found = solver.scores(made[1]), keeping_moves(solver, made[1])
            signs = {action: np.sign(score) for action, score in scores.items()}
            keeping = [action for action, sign in signs.items() if sign == max(signs.values())]
            assert found == ((max(signs.values()), keeping) if len(set(signs.values())) > 1 else None)
            seen.add(found is None)
    assert seen == {True, False}


def test_candidates_are_the_seeds():
    found = [[play for play, _ in islice(candidates(IN_FOUR, seed), 20)] for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    for play, record in islice(candidates(IN_FOUR, 3), 50):
        assert IN_FOUR.fewest <= len(play) == plies(record) <= IN_FOUR.most
        assert not wins_at_once(FOUR, record)

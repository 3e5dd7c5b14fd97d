"""Decisive positions: what the committed ones are, and what the solver says of them."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import GAMES
from polyplay.envs.boards.positions import (
    FEWEST,
    MOST,
    candidates,
    decisive_positions,
    keeping_moves,
    positions_of,
    random_play,
    wins_at_once,
)
from polyplay.envs.boards.solver import RowSolver

FOUR = GAMES["connect_four"]


def plies(record: np.ndarray) -> int:
    return int(np.count_nonzero(record[kernels.CELLS :]))


def test_the_measure_has_1000_decisive_positions():
    positions = decisive_positions()
    legal = positions.records[:, kernels.CELLS : kernels.CELLS + FOUR.columns] == 0
    assert positions.records.shape == (1000, FOUR.record)
    assert {plies(record) for record in positions.records} == set(range(FEWEST, MOST + 1))
    assert not (positions.keeping & ~legal).any()
    assert positions.keeping.any(1).all(), "some move keeps the value"
    assert (positions.keeping != legal).any(1).all(), "some move gives it away"
    assert len({record.tobytes() for record in positions.records}) == 1000
    assert not any(wins_at_once(FOUR, record) for record in positions.records)
    assert set(positions.outcomes.tolist()) == {0, 1}, "what is lost cannot be given away"


def test_a_random_move_keeps_about_a_third():
    positions, rng = decisive_positions(), np.random.default_rng(0)
    legal = positions.records[:, kernels.CELLS : kernels.CELLS + FOUR.columns] == 0
    chosen = [[rng.choice(np.flatnonzero(row)) for row in legal] for _ in range(20)]
    played = [positions.keeping[np.arange(1000), moves].mean() for moves in chosen]
    assert positions.at_random == pytest.approx(np.mean(played), abs=0.01)
    assert 0.30 < positions.at_random < 0.40


def test_the_solver_says_the_same_of_late_ones():
    positions, solver = decisive_positions(), RowSolver(FOUR, 1 << 18)
    late = [i for i, record in enumerate(positions.records) if plies(record) >= 20][:60]
    assert len(late) == 60
    for i in late:
        assert keeping_moves(solver, positions.records[i]) == (
            positions.outcomes[i],
            np.flatnonzero(positions.keeping[i]).tolist(),
        )


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_solver_says_the_same_of_all():
    positions, solver = decisive_positions(), RowSolver(FOUR)
    for record, outcome, keeping in zip(positions.records, positions.outcomes, positions.keeping, strict=True):
        assert keeping_moves(solver, record) == (outcome, np.flatnonzero(keeping).tolist())


def test_the_committed_ones_are_the_first_that_the_seed_draws():
    positions, solver, found = decisive_positions(), RowSolver(FOUR, 1 << 18), []
    for play, record in islice(candidates(0), 200):
        if plies(record) >= 18 and keeping_moves(solver, record):
            found.append(play)
    expected = [play for play in positions.plays if len(play) >= 18]
    assert len(found) > 5
    assert found == expected[: len(found)]


def test_rows_are_played():
    found = positions_of([("ddca", 1, "d"), ("", 0, "abcdefg")])
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
    found = [[play for play, _ in islice(candidates(seed), 20)] for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    for play, record in islice(candidates(3), 50):
        assert FEWEST <= len(play) == plies(record) <= MOST
        assert not wins_at_once(FOUR, record)

"""Gumbel searches: tables of published fixtures, the formulas, noise. With mctx: test_mctx."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from polyplay.games import board_rules
from polyplay.games.boards import GAMES, Game, game
from polyplay.search import Search, SearchOptions
from polyplay.search.tree import considered_visits
from tests.search.test_policy import positions
from tests.search.twins import Stub, searched

THREE, FOUR = GAMES["tic_tac_toe"], GAMES["connect_four"]


@pytest.mark.parametrize(
    ("actions", "simulations", "visits"),
    [  # mctx/_src/tests/seq_halving_test.py
        (0, 5, [0, 1, 2, 3, 4]),
        (1, 6, [0, 1, 2, 3, 4, 5]),
        (8, 24, [*[0] * 8, *[1] * 4, *[2] * 4, 3, 3, 4, 4, 5, 5, 6, 6]),
        (7, 24, [*[0] * 7, *[1] * 3, *[2] * 3, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8]),
        (2, 7, [0, 0, 1, 1, 2, 2, 3]),
        (4, 16, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]),
    ],
)
def test_considered_visits_are_the_published_ones(actions: int, simulations: int, visits: list[int]):
    assert considered_visits(actions, simulations) == visits


@pytest.mark.parametrize(
    ("board", "options"),
    [
        (THREE, {"simulations": 8, "gumbel_actions": 4}),
        (THREE, {"simulations": 30}),
        (FOUR, {"simulations": 16, "temperature": ((0, 0.0),)}),
        (FOUR, {"simulations": 40, "gumbel_actions": 7}),
        (game("go+size=3+komi=0.5"), {"simulations": 24, "gumbel_actions": 8}),
    ],
    ids=lambda x: x.name if isinstance(x, Game) else "",
)
def test_visits_move_and_policy_follow_from_the_noise_and_the_values_of_moves(board: Game, options: dict[str, Any]):
    """The paper's formulas at the root: v_mix, σ, the improved policy, and whom sequential halving leaves. What happens
    below it is compared with mctx (test_mctx).
    """
    given, n = SearchOptions(**{"root": "gumbel", "gumbel_actions": 16, **options}), 12
    search = Search(board, n, given, Stub(board), seed=4)
    search.restart(records=positions(board, n))
    done = searched(search)
    moves, policy = search.choose(done), search.targets(done)
    for g in range(n):
        legal = np.flatnonzero(done.legal[g])
        visits, p, noise = done.visits[g, legal], done.priors[g, legal], search.tree.gumbel[g, : len(legal)]
        q, seen, logit = done.q[g, legal].astype(float), visits > 0, np.log(done.priors[g, legal])
        mixed = (done.raw[g] + visits.sum() * (p * q)[seen].sum() / p[seen].sum()) / (1 + visits.sum())
        sigma = (given.c_visit + visits.max()) * (np.where(seen, q, mixed) + 1) / 2
        improved = np.exp(logit + sigma - (logit + sigma).max())
        np.testing.assert_allclose(policy[g, legal], improved / improved.sum(), atol=2e-5)
        score = np.where(visits == visits.max(), noise + logit + sigma, -np.inf)
        assert moves[g] == legal[score.argmax()]
        considered = min(len(legal), given.gumbel_actions)
        assert set(np.flatnonzero(seen)) <= set(np.argsort(-(noise + logit), kind="stable")[:considered])
        table = np.array(considered_visits(considered, given.simulations))
        assert sorted(visits[seen]) == sorted(counts_of(table)), "as many of each number of visits"


def counts_of(table: np.ndarray) -> list[int]:
    """The visits that moves have at the end, if each simulation goes to one that has so many before it."""
    left = np.bincount(table, minlength=table.max() + 2)
    return [n for n in range(1, len(left)) for _ in range(left[n - 1] - left[n])]


def test_its_noise_is_gumbels_and_depends_on_the_seed():
    options, found = SearchOptions(16, root="gumbel"), []
    for seed in (0, 0, 1):
        search = Search(FOUR, 400, options, Stub(FOUR), seed=seed)
        search.restart()
        search.step()
        found.append(search.tree.gumbel.copy())
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])
    assert found[0].mean() == pytest.approx(0.5772, abs=0.1)
    assert found[0].var() == pytest.approx(math.pi**2 / 6, rel=0.15)


def test_its_noise_is_times_the_temperature_at_the_ply_of_the_root():
    """As logits / temperature plus noise would choose: so it ends where moves are no longer drawn."""

    def noise(board: Game, record: np.ndarray, *schedule: tuple[int, float]) -> np.ndarray:
        search = Search(board, 1, SearchOptions(16, root="gumbel", temperature=schedule), Stub(board), seed=3)
        search.restart(records=record[None])
        search.step()
        return search.tree.gumbel[0].copy()

    record = FOUR.new()
    for ply in range(4):
        whole, cooling = noise(FOUR, record, (0, 1.0)), noise(FOUR, record, (0, 1.0), (2, 0.5), (3, 0.0))
        assert np.count_nonzero(whole) > 4
        np.testing.assert_allclose(cooling, whole * (1.0, 1.0, 0.5, 0.0)[ply], rtol=1e-6)
        board_rules.play(FOUR.numbers, record, ply)

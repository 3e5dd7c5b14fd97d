"""Elo ratings against a plain twin, by hand, and how often their intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.evaluation.tournament import SCALE, rate


def twin(points: np.ndarray, anchor: int, sweeps: int = 20_000) -> np.ndarray:
    """Hunter's (2004) iteration for Bradley and Terry's model: strength = points / Σ games / (own + other's)."""
    n = len(points)
    strength = [1.0] * n
    for _ in range(sweeps):
        for i in range(n):
            below = sum((points[i][j] + points[j][i]) / (strength[i] + strength[j]) for j in range(n) if j != i)
            strength[i] = sum(points[i]) / below
    return np.array([400 * np.log10(s / strength[anchor]) for s in strength])


def likelihood(elo: np.ndarray, points: np.ndarray) -> float:
    n, total = len(elo), 0.0
    for i in range(n):
        for j in range(n):
            total += points[i, j] * -np.log(1 + 10 ** ((elo[j] - elo[i]) / 400))
    return total


def tournament(true: np.ndarray, games: int, rng: np.random.Generator) -> np.ndarray:
    points = np.zeros((len(true), len(true)))
    for i in range(len(true)):
        for j in range(i):
            won = rng.binomial(games, 1 / (1 + 10 ** ((true[j] - true[i]) / 400)))
            points[i, j], points[j, i] = won, games - won
    return points


def test_two_players_by_hand():
    low, high = rate(["low", "high"], np.array([[0, 10], [90, 0]]), anchor="low", at=1000, prior=0)
    assert (low.elo, low.low, low.high) == (1000, 1000, 1000)
    assert high.elo == pytest.approx(1000 + 400 * np.log10(9))
    assert high.high - high.elo == pytest.approx(1.96 * SCALE / np.sqrt(100 * 0.9 * 0.1), rel=1e-4)
    assert high.elo - high.low == pytest.approx(high.high - high.elo)
    assert high.games == 100


def test_400_points_are_odds_of_ten_to_one():
    _, strong = rate(["a", "b"], np.array([[0, 1], [10, 0]]), anchor="a", prior=0)
    assert strong.elo == pytest.approx(400)


@pytest.mark.parametrize("seed", range(4))
def test_ratings_are_the_plain_twins_and_intervals_the_likelihoods(seed):
    rng = np.random.default_rng(seed)
    points = tournament(np.array([0.0, 150.0, -80.0, 300.0, 40.0]), 30, rng)
    if seed % 2:
        points[0, 3] = points[3, 0] = 0  # these never met
    points[1, 2], points[2, 1] = points[1, 2] + 0.5, points[2, 1] + 0.5  # a draw
    found = rate(list("abcde"), points, anchor="b", prior=0)
    elo = np.array([r.elo for r in found])
    assert elo == pytest.approx(twin(points, 1, 2000), abs=1e-3)
    free, step = [0, 2, 3, 4], 0.1
    curvature = np.zeros((4, 4))
    for i, a in enumerate(free):
        for j, b in enumerate(free):
            u, v = np.eye(5)[a] * step, np.eye(5)[b] * step
            corners = [likelihood(elo + x * u + y * v, points) * x * y for x in (-1, 1) for y in (-1, 1)]
            curvature[i, j] = -sum(corners) / (4 * step**2)
    errors = np.sqrt(np.diag(np.linalg.inv(curvature)))
    assert [r.high - r.elo for r in found if r.name != "b"] == pytest.approx(1.95996 * errors, rel=1e-3)


def test_a_prior_keeps_who_won_every_game_finite():
    points = np.array([[0, 20], [0, 0]])
    with pytest.raises(ValueError, match="no finite ratings"):
        rate(["a", "b"], points, anchor="b", prior=0)
    winner, _ = rate(["a", "b"], points, anchor="b")
    assert winner.elo == pytest.approx(400 * np.log10(20.5 / 0.5))


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng, true = np.random.default_rng(0), np.array([0.0, 100.0, -50.0, 200.0])
    hits = [
        rating.low <= t <= rating.high
        for _ in range(150)
        for rating, t in zip(rate(list("abcd"), tournament(true, 100, rng), "a", prior=0)[1:], true[1:], strict=True)
    ]
    assert 0.92 <= np.mean(hits) <= 0.98


def test_players_that_nothing_joins_to_the_anchor():
    points = np.zeros((4, 4))
    points[0, 1] = points[1, 0] = points[2, 3] = points[3, 2] = 1
    with pytest.raises(ValueError, match="no games join c, d to a"):
        rate(list("abcd"), points, anchor="a")


def test_a_player_alone():
    (only,) = rate(["a"], np.zeros((1, 1)), anchor="a", at=7)
    assert (only.elo, only.low, only.high, only.games) == (7, 7, 7, 0)

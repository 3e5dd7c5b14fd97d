"""Noise from a counter: the same key, the same number, whatever the grouping."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.numbers import (
    Estimate,
    aggregate,
    aggregates_agree,
    interval_name,
    mean_interval,
    uniform,
)


def test_a_number_depends_on_its_key_alone():
    whole = uniform(7, np.arange(10), np.arange(10) + 100, 3)
    part = uniform(7, np.array([4, 9]), np.array([104, 109]), 3)
    assert whole.dtype == np.float32
    assert np.array_equal(whole[[4, 9]], part)
    assert not np.array_equal(whole, uniform(8, np.arange(10), np.arange(10) + 100, 3))


def test_numbers_are_uniform_and_unrelated():
    x = uniform(0, np.arange(64)[None], np.arange(400)[:, None], 2).astype(np.float64)
    assert x.min() > 0.0
    assert x.max() < 1.0
    counts = np.histogram(x, 20, (0, 1))[0]
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 45  # χ² of 19 degrees, p ≈ 0.001
    for a, b in ((x[:-1, :, 0], x[1:, :, 0]), (x[:, :-1, 0], x[:, 1:, 0]), (x[..., 0], x[..., 1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02


# Aggregates against slow plain twins, and what must hold for any scores.


NUMBER = st.floats(-1e4, 1e4)
RUNS = st.dictionaries(st.sampled_from("abcdefgh"), st.lists(NUMBER, min_size=1, max_size=5), min_size=1)


def twin(games: dict[str, list[float]]) -> dict[str, float]:
    """Sorted lists and sums; nothing shared with the package."""
    means = sorted(sum(runs) / len(runs) for runs in games.values())
    everything = sorted(x for runs in games.values() for x in runs)
    cut = len(everything) // 4
    middle = everything[cut : len(everything) - cut]
    return {
        "median": statistics.median(means),
        "mean": math.fsum(means) / len(means),
        "iqm": math.fsum(middle) / len(middle),
    }


@given(RUNS)
@settings(deadline=None)
def test_the_values_are_the_plain_twins(games):
    plain, made = twin(games), aggregate(games, reps=10)
    for name, value in plain.items():
        assert made[name].value == pytest.approx(value, rel=1e-9, abs=1e-6)


@given(RUNS, st.integers(0, 5))
@settings(deadline=None, max_examples=50)
def test_intervals_are_deterministic_ordered_and_within_the_scores(games, seed):
    once, again = aggregate(games, seed, 50), aggregate(dict(reversed(games.items())), seed, 50)
    assert once == again
    low, high = (pick(x for runs in games.values() for x in runs) for pick in (min, max))
    for name, estimate in once.items():
        if all(len(runs) == 1 for runs in games.values()):
            assert estimate == Estimate(estimate.value)
        else:
            assert estimate.low is not None
            assert estimate.high is not None
            assert low - 1e-6 <= estimate.low <= estimate.high <= high + 1e-6, name


@given(st.lists(NUMBER, min_size=2, max_size=4), st.integers(2, 4))
@settings(deadline=None, max_examples=25)
def test_the_bootstrap_never_leaves_a_game(values, copies):
    """Every game's runs are alike, so drawing within games changes nothing, while drawing games would."""
    games = {str(i): [x] * copies for i, x in enumerate(values)}
    for estimate in aggregate(games, reps=20).values():
        assert estimate.low == pytest.approx(estimate.value, abs=1e-6)
        assert estimate.high == pytest.approx(estimate.value, abs=1e-6)


@pytest.mark.parametrize("n", [2, 3, 4, 10])
def test_the_interval_of_few_values_is_called_their_range(n: int):
    values = [float(x) for x in range(n)]
    assert (mean_interval(values) == (0.0, n - 1.0)) == (interval_name(n) == "range")


def test_two_evaluations_agree_unless_their_means_are_far_apart():
    rng = np.random.default_rng(2)
    a, b = rng.normal(0, 1, 50), rng.normal(0, 1, 50)
    assert aggregates_agree(a.tolist(), b.tolist())
    assert not aggregates_agree(a.tolist(), (b + 2).tolist())
    assert aggregates_agree([1.0], [1.0])
    assert not aggregates_agree([1.0], [2.0])

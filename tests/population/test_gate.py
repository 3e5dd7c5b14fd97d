"""The gate's verdict is that of the whole match, comes once it is certain, and passes as often as the docs say."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyplay.core.errors import UserError
from polyplay.population.judge import Gate

PAGE = Path(__file__).parents[2] / "docs/systems/alphago_zero.md"


def gate(games: int = 400, share: float = 0.55) -> Gate:
    return Gate(share, games, 1_000, 8)


def chance(p: float, games: int = 400, share: float = 0.55) -> float:
    """That more than `share` of so many games without draws are won, each with chance p."""
    won = range(math.floor(share * games + 1e-9) + 1, games + 1)
    return math.fsum(math.comb(games, k) * p**k * (1 - p) ** (games - k) for k in won)


@given(st.sampled_from([0.5, 0.55, 0.57, 0.6]), st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=40, max_size=40))
def test_an_early_verdict_is_the_verdict_of_the_whole_match(share, results):
    found = [gate(40, share).verdict(sum(results[:n]), n) for n in range(41)]
    whole = round(2 * sum(results)) > round(2 * share * 40, 6)
    assert found[-1] is whole
    first = next(i for i, verdict in enumerate(found) if verdict is not None)
    assert set(found[first:]) == {whole}, "once certain it stays"
    if first:
        before, left = sum(results[: first - 1]), 41 - first
        assert before + left > share * 40 >= before, "before its last game either end was open"


def test_a_match_of_400_needs_221_points():
    assert gate().verdict(220.0, 400) is False
    assert gate().verdict(220.5, 400) is True
    assert gate().verdict(221.0, 300) is True
    assert gate().verdict(0.0, 179) is None
    assert gate().verdict(0.0, 180) is False


@pytest.mark.parametrize("p", [0.5, 0.52, 0.55, 0.6])
def test_the_page_prints_the_odds(p):
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {100 * p:.0f} %"))
    assert float(re.findall(r"([0-9.]+) %", row)[1]) == pytest.approx(100 * chance(p), abs=0.06 if p != 0.55 else 0.6)


def test_an_equal_candidate_passes_as_often_as_the_page_says():
    rng, passes, matches = np.random.default_rng(0), 0, 4_000
    for results in rng.integers(0, 2, (matches, 400)):
        for played, points in enumerate(results.cumsum(), 1):
            verdict = gate().verdict(float(points), played)
            if verdict is not None:
                passes += verdict
                break
    spread = 4 * math.sqrt(chance(0.5) * (1 - chance(0.5)) / matches)
    assert passes / matches == pytest.approx(chance(0.5), abs=spread)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"share": 0.4}, "--gate: 0.4 given; allowed: 0 for no matches, or from 0.5 to below 1"),
        ({"share": 1.0}, "--gate: 1 given; allowed: 0 for no matches"),
        ({"games": 41}, "--gate-games: 41 given; allowed: an even number"),
    ],
)
def test_bad_settings_are_named(settings, words):
    with pytest.raises(UserError, match=words):
        gate(**settings)


def test_the_next_match_is_at_the_next_multiple():
    assert [gate().due_after(n) for n in (0, 999, 1_000, 1_001)] == [1_000, 1_000, 2_000, 2_000]

"""Elo by hand; TrueSkill against the package `trueskill`: 200 matches kept here, 10,000 where it is installed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyplay.population.ratings import Elo, TrueSkill, win_probability
from tests.population.trueskill_peer import draw_matches


def furthest(matches: Iterable[dict[str, Any]]) -> tuple[int, float]:
    """How many there were, and how far a μ or a σ is from the peer's at most."""
    n, far = 0, 0.0
    for match in matches:
        n += 1
        found = TrueSkill(**match["rules"]).rate(*match["teams"], match["points"], match["weights"])
        for team, then in zip(found, match["then"], strict=True):
            for skill, expected in zip(team, then, strict=True):
                far = max(far, *(abs(a - b) for a, b in zip(skill, expected, strict=True)))
    return n, far


def test_trueskill_is_that_of_the_package():
    kept = json.loads((Path(__file__).parent / "trueskill_matches.json").read_text())
    n, far = furthest(kept)
    assert n == 200
    assert far < 1e-6


@pytest.mark.long
def test_trueskill_is_that_of_the_package_in_10_000_matches():
    pytest.importorskip("trueskill")
    n, far = furthest(draw_matches(10_000, seed=2))
    assert n == 10_000
    assert far < 1e-6


def test_elo_by_hand():
    assert win_probability(1400, 1000) == pytest.approx(10 / 11)
    assert win_probability(1000, 1400) == pytest.approx(1 / 11)
    assert Elo(k=32).change(1000, 1000, 1) == 16
    assert Elo(k=32).change(1000, 1000, 0.5) == 0
    assert Elo(k=11).change(1400, 1000, 0) == pytest.approx(-10)


@pytest.mark.parametrize("points", [1, 0.5])
@pytest.mark.parametrize("apart", [1e2, 1e4, 1e8])
def test_what_was_nearly_impossible_still_gives_a_rating(points, apart):
    (first,), (second,) = TrueSkill().rate([(0.0, 1.0)], [(apart, 1.0)], points)
    assert 0 <= first[0] <= second[0] <= apart
    assert 0.9 < first[1] == second[1] < 1


def test_sides_do_not_matter():
    a, b = [(20.0, 3.0), (30.0, 1.0)], [(28.0, 5.0)]
    for points in (1.0, 0.5, 0.0):
        one, other = TrueSkill(tau=0.1).rate(a, b, points), TrueSkill(tau=0.1).rate(b, a, 1 - points)[::-1]
        for team, same in zip(one, other, strict=True):
            assert np.array(team) == pytest.approx(np.array(same), abs=1e-12)

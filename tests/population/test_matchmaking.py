"""Rules of opponents: who is drawn how often, exactly where it can be counted, and what a beaten past self loses."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyplay.core.errors import UserError
from polyplay.population.ratings import win_probability
from polyplay.population.referee import (
    RATE,
    Candidates,
    Opponents,
    draw_index,
    keep_seats,
    match_weight,
    quality_chances,
    quality_cost,
)

ELO = np.array([1000.0, 1000.0, 1400.0, 600.0, 1200.0, 1000.0])
QUALITY = np.array([0.0, 0.0, 0.0, 1.0, 2.0, 0.0])
SIX = Candidates(range(3), [3, 4], [5], ELO, QUALITY)  # three agents, two past selves, a bot


def opponents(rule: str, among: Candidates = SIX, n: int = 200) -> dict[int, float]:
    """How often each is drawn against player 0, over a grid of the random numbers."""
    grid = (np.arange(n) + 0.5) / n
    found: Counter[int] = Counter()
    for which in grid[::10]:
        for where in grid:
            players, _ = Opponents.parse(rule).draw(0, 2, among, np.array([[0.5, 0.5], [which, where]]))
            assert players[0] == 0
            found[players[1]] += 1
    return {p: found[p] / found.total() for p in sorted(found)}


def test_each_rule_draws_as_it_says():
    assert opponents("latest") == {1: 0.5, 2: 0.5}
    assert opponents("uniform") == dict.fromkeys(range(1, 6), 0.2)
    shares = opponents("past:0.2")
    assert shares == pytest.approx({1: 0.4, 2: 0.4, 3: 0.2 / (1 + np.e), 4: 0.2 * np.e / (1 + np.e)}, abs=2e-3)
    assert opponents("past:0") == opponents("latest")
    weights = {p: match_weight(win_probability(1000, ELO[p])) for p in range(1, 6)}
    expected = {p: weight / sum(weights.values()) for p, weight in weights.items()}
    assert opponents("elo") == pytest.approx(expected, abs=6e-3)


def test_a_match_is_wanted_most_at_even_odds_and_0_049_of_it_at_400_elo():
    weights = [match_weight(p) for p in np.linspace(0, 1, 101)]
    assert int(np.argmax(weights)) == 50
    assert match_weight(0.5) == 1
    for apart in (400, -400):
        assert match_weight(win_probability(1000, 1000 + apart)) == pytest.approx(0.049, abs=5e-4)


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=30))
def test_the_expected_loss_of_quality_does_not_depend_on_how_past_selves_are_drawn(quality):
    chances = quality_chances(np.array(quality))
    assert chances.sum() == pytest.approx(1)
    expected = [p * quality_cost(p, len(quality)) for p in chances.tolist()]  # over who is drawn, each being beaten
    assert expected == pytest.approx([RATE / len(quality)] * len(quality))


def test_the_same_by_enumeration_in_fractions():
    chances = [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)]
    costs = [Fraction(quality_cost(float(p), 3)).limit_denominator(10**6) for p in chances]
    assert [p * cost for p, cost in zip(chances, costs, strict=True)] == [Fraction(1, 300)] * 3


def test_costs_come_with_past_selves_that_were_drawn_by_quality():
    players, costs = Opponents.parse("past:1").draw(1, 3, SIX, np.array([[0.5, 0.5], [0.5, 0.1], [0.5, 0.9]]))
    assert players == [1, 3, 4]
    e = np.e
    assert costs == pytest.approx([0, 0.005 * (1 + e), 0.005 * (1 + e) / e])
    assert Opponents.parse("uniform").draw(1, 6, SIX, np.full((6, 2), 0.999))[1] == [0.0] * 6


def test_nobody_sits_twice_while_there_are_others():
    random = np.random.default_rng(0)
    for rule in ("latest", "uniform", "elo"):
        players, _ = Opponents.parse(rule).draw(2, 3, SIX, random.random((3, 2)))
        assert len(set(players)) == 3
    alone = Candidates([0], [], [], ELO, QUALITY)
    for rule in ("latest", "uniform", "elo", "past:0.5"):
        assert Opponents.parse(rule).draw(0, 2, alone, random.random((2, 2)))[0] == [0, 0]


@pytest.mark.parametrize("text", ["past", "past:", "past:1.5", "past:-0", "past:nan", "latest:1", "elo:", "best", ""])
def test_what_is_no_rule_is_refused_in_one_line(text):
    if text == "past:-0":
        assert Opponents.parse(text) == Opponents("past", 0.0)
        return
    with pytest.raises(UserError, match=r"^--opponents: .*; allowed: latest, uniform, elo, or past:P") as e:
        Opponents.parse(text)
    assert "\n" not in str(e.value)


def test_who_stays_keeps_the_seat():
    assert keep_seats([1, 2], [0.0, 0.5], [2, 1]) == ([2, 1], [0.5, 0.0])
    assert keep_seats([3, 1, 2], [0.1, 0.2, 0.3], [1, 4, 3]) == ([1, 2, 3], [0.2, 0.3, 0.1])
    assert keep_seats([0, 0], [0.0, 0.0], []) == ([0, 0], [0.0, 0.0])
    assert keep_seats([0, 5], [0.0, 0.0], [0, 0]) == ([0, 5], [0.0, 0.0])


def test_indices_are_drawn_by_shares():
    assert [draw_index(np.array([1.0, 0.0, 3.0]), where) for where in (0.0, 0.249, 0.251, 1.0)] == [0, 0, 2, 2]


def test_ratings_matching_and_the_league_load_no_torch():
    names = "ratings", "matchmaking", "league", "league_ratings", "league_state", "match_log", "referee"
    code = f"import sys, {', '.join(f'polyplay.population.{name}' for name in names)}; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"

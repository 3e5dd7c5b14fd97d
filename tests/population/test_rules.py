"""The rules against slow plain twins: ranks with their ties, who is drawn how often, what becomes of values."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.population.rules import EXPLOIT, EXPLORE, Choice, Prior, Standing, is_ready
from tests.population.test_welch import GAMES, welch

FAILED = -math.inf
SCORES = st.lists(st.sampled_from([None, FAILED, 0.0, 1.0, 2.0, 3.0, 4.0]), min_size=1, max_size=16)
MODULES = ("priors", "rules", "lineage", "welch")


class Fixed:
    """A generator of random numbers that draws the k-th of anything."""

    def __init__(self, k: int):
        self.k = k

    def integers(self, n: int) -> int:
        return self.k % n


def members(scores: list[float | None], games: tuple[float, ...] = ()) -> list[Standing]:
    return [Standing(score, games) for score in scores]


def donors(rule: str, scores: list[float | None], i: int) -> set[int | None]:
    return {choice.donor for choice in choices(rule, members(scores), i)}


def choices(rule: str, standings: list[Standing], i: int) -> list[Choice]:
    """What a rule says, whichever donor is drawn."""
    return [EXPLOIT[rule](standings, i, Fixed(k)) for k in range(len(standings))]


@pytest.mark.parametrize(("steps", "ready"), [(99, False), (100, True), (250, True)])
def test_a_member_is_ready_after_so_many_steps_of_its_own(steps, ready):
    assert is_ready(1_000 + steps, 1_000, 100) is ready


def truncated(scores: list[float | None], i: int) -> set[int | None]:
    """Whom member i may copy: a sorted list, and a fifth of it rounded up, exactly."""
    ranked = sorted(score for score in scores if score is not None)
    if scores[i] is None:
        return {None}
    k = math.ceil(Fraction(1, 5) * len(ranked))
    worst, best = ranked[k - 1], ranked[-k]
    if scores[i] > worst:
        return {None}
    better = {j for j, s in enumerate(scores) if s is not None and s >= best and s > scores[i] and s != FAILED}
    return better or {None}


@given(SCORES)
@settings(max_examples=300, deadline=None)
def test_truncation_is_the_twin_s(scores):
    for i in range(len(scores)):
        assert donors("truncation", scores, i) == truncated(scores, i)


@pytest.mark.parametrize("n", [5, 10, 15, 35, 55])
def test_a_fifth_is_a_fifth(n):
    """Where 0.2 × n as a float is a little more than the whole number."""
    scores = [float(k) for k in range(n)]
    copying = [i for i in range(n) if donors("truncation", scores, i) != {None}]
    assert copying == list(range(n // 5))
    assert donors("truncation", scores, 0) == set(range(n - n // 5, n))


@given(st.integers(1, 12), st.sampled_from(["truncation", "tournament"]))
@settings(deadline=None)
def test_members_that_tie_copy_nothing(n, rule):
    assert all(donors(rule, [1.0] * n, i) == {None} for i in range(n))


def test_members_that_tie_at_the_edge_share_the_fifth():
    scores = [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 5.0]
    assert [donors("truncation", scores, i) for i in range(4)] == [{7, 8, 9}] * 3 + [{None}]


@given(SCORES)
@settings(deadline=None)
def test_tournament_is_the_twin_s(scores):
    for i in range(len(scores)):
        peers = [j for j, s in enumerate(scores) if j != i and s is not None and s != FAILED]
        copied = {j if scores[i] is not None and scores[j] > scores[i] else None for j in peers}
        expected = copied if scores[i] is not None and peers else {None}
        assert donors("tournament", scores, i) == expected


@given(SCORES, st.sampled_from(sorted(EXPLOIT)), st.integers(0, 2**32))
@settings(deadline=None)
def test_what_holds_for_every_rule(scores, rule, seed):
    games = [
        tuple(np.random.default_rng(seed).normal(score or 0, 0.1, 10)) if score != FAILED else () for score in scores
    ]
    standings = [Standing(score, own) for score, own in zip(scores, games, strict=True)]
    for i, score in enumerate(scores):
        found = EXPLOIT[rule](standings, i, np.random.default_rng(seed))
        assert found == EXPLOIT[rule](standings, i, np.random.default_rng(seed))
        if score is None:
            assert found == Choice(None, "no score since its last copy")
        if found.donor is not None:
            given_by = scores[found.donor]
            assert given_by is not None
            assert score is not None
            assert given_by > score
        assert found.why.startswith("its run failed; ") is (score == FAILED)
        assert found.why == " ".join(found.why.split())


def test_nobody_copies_under_none():
    scores = [None, FAILED, 0.0, 5.0]
    assert all(donors("none", scores, i) == {None} for i in range(4))


@pytest.mark.parametrize("rule", ["truncation", "tournament", "ttest"])
def test_a_member_that_failed_copies_any_that_has_not(rule):
    standings = [Standing(FAILED), Standing(FAILED), Standing(1.0, (1.0,) * 10), Standing(None)]
    assert {c.donor for c in choices(rule, standings, 0)} == {2}
    assert EXPLOIT[rule](standings[:2], 0, Fixed(0)).donor is None


def test_what_is_said():
    scores = [FAILED, 1.0, 2.0, None]
    said = {rule: [c.why for c in (EXPLOIT[rule](members(scores), i, Fixed(1)) for i in range(4))] for rule in EXPLOIT}
    none = "no score since its last copy"
    assert said["truncation"] == ["its run failed; in the bottom 20 %", *["not in the bottom 20 %"] * 2, none]
    assert said["tournament"] == [
        "its run failed; member 2 is better",
        "member 2 is better",
        "member 1 is no better",
        none,
    ]
    assert said["none"] == ["its run failed; nothing is copied", "nothing is copied", "nothing is copied", none]
    assert EXPLOIT["truncation"](members([1.0]), 0, Fixed(0)).why == "no member is better"
    assert EXPLOIT["tournament"](members([1.0, None]), 0, Fixed(0)).why == "no other member has a score"


@pytest.mark.parametrize(("rule", "among"), [("truncation", {8, 9}), ("tournament", set(range(1, 10)))])
def test_donors_are_drawn_uniformly(rule, among):
    rng, n = np.random.default_rng(0), 4_000
    standings = members([float(k) for k in range(10)])
    drawn = Counter(EXPLOIT[rule](standings, 0, rng).donor for _ in range(n))
    p = 1 / len(among)
    assert set(drawn) == among
    assert all(abs(k - n * p) < 4 * math.sqrt(n * p * (1 - p)) for k in drawn.values())


# The t-test: Welch's is tested in test_welch.py


def one_against_one(own: list[float], other: list[float]) -> Choice:
    standings = [Standing(float(np.mean(own)), tuple(own)), Standing(float(np.mean(other)), tuple(other))]
    return EXPLOIT["ttest"](standings, 0, Fixed(0))


@given(GAMES, GAMES)
@settings(deadline=None)
def test_the_t_test_copies_what_the_twin_says(own, other):
    if len(set(own)) == len(set(other)) == 1:
        expected = other[0] > own[0]
    else:
        t, _, p = welch(other, own)
        expected = t > 0 and p < 0.05
    assert one_against_one(own, other).donor == (1 if expected else None)


@pytest.mark.parametrize(
    ("own", "other", "donor", "why"),
    [
        ([1.0] * 10, [2.0], None, "fewer than two games of it or of member 1"),
        ([1.0], [2.0] * 10, None, "fewer than two games of it or of member 1"),
        ([1.0] * 10, [1.0] * 10, None, "member 1 is no better"),
        ([0.0, 1.0, 2.0] * 3, [0.0, 1.0, 2.0] * 3, None, "member 1 is no better"),
        ([1.0] * 10, [2.0] * 10, 1, "member 1 is better, p = 0"),
        ([0.0, 2.0] * 5, [1.0, 3.0] * 5, 1, "member 1 is better, p = 0.048"),
        ([0.0, 2.0] * 5, [0.9, 2.9] * 5, None, "member 1 may be no better, p = 0.072"),
        ([9.0] * 30 + [1.0] * 10, [2.0] * 10, 1, "member 1 is better, p = 0"),  # the last 10 alone
    ],
)
def test_the_t_test_by_hand(own, other, donor, why):
    assert one_against_one(own, other) == Choice(donor, why)


def test_an_equal_peer_is_copied_in_one_look_of_forty():
    rng, n = np.random.default_rng(0), 4_000
    copied = sum(one_against_one(*rng.normal(size=(2, 10)).tolist()).donor is not None for _ in range(n))
    assert copied / n == pytest.approx(0.025, abs=4 * math.sqrt(0.025 * 0.975 / n))


# Explore

PRIORS = {
    "a": Prior("a", "log", 1e-3, 1e3),
    "b": Prior("b", "list", choices=(1, 2, 3)),
    "c": Prior("c", "uniform", 0, 9),
}
VALUES: dict[str, Any] = {"a": 1.0, "b": 2, "c": 5.0, "other": "kept"}


def explored(rule: str, n: int = 4_000) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [EXPLORE[rule](dict(VALUES), PRIORS, rng) for _ in range(n)]


@pytest.mark.parametrize("rule", sorted(EXPLORE))
def test_what_has_no_prior_stays_and_nothing_is_changed_in_place(rule):
    given_values = dict(VALUES)
    found = EXPLORE[rule](given_values, PRIORS, np.random.default_rng(0))
    assert given_values == VALUES
    assert found is not given_values
    assert list(found) == list(VALUES)
    assert found["other"] == "kept"
    assert EXPLORE[rule](given_values, {}, np.random.default_rng(0)) == VALUES


def test_unchanged():
    assert all(found == VALUES for found in explored("none", 20))


def test_each_is_perturbed_by_itself():
    drawn = Counter((found["a"], found["b"], found["c"]) for found in explored("perturb"))
    assert set(drawn) == {(a, b, c) for a in (0.8, 1.2) for b in (1, 3) for c in (4.0, 6.0)}
    assert all(abs(k - 500) < 4 * math.sqrt(500) for k in drawn.values())


@pytest.mark.parametrize(("rule", "stays"), [("resample", {1.0}), ("both", {0.8, 1.2})])
def test_each_is_drawn_anew_by_itself_with_a_quarter(rule, stays):
    found = explored(rule)
    anew = [(f["a"] not in stays, f["c"] not in {5.0 * x for x in stays}) for f in found]
    for pair, p in {(True, True): 1 / 16, (True, False): 3 / 16, (False, True): 3 / 16, (False, False): 9 / 16}.items():
        assert anew.count(pair) / len(found) == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / len(found)))
    drawn = [math.log10(f["a"]) for f in found if f["a"] not in stays]
    assert np.quantile(drawn, [0.25, 0.5, 0.75]) == pytest.approx([-1.5, 0.0, 1.5], abs=0.3), "from the prior"


def test_the_rules_load_neither_torch_nor_scipy():
    names = ", ".join(f"polyplay.population.{m}" for m in MODULES)
    code = f"import sys, {names}; assert not {{'torch', 'scipy'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

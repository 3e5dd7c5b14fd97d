"""Priors: what --vary may say and what it may not, draws that cover the range, perturbations that never leave it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Annotated

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.errors import Count, Positive, UserError
from polyplay.population.rules import Prior, initial, parse_prior, prior_name
from polyplay.runs.flags import Word, check_value

FORMS = "NAME=log:LOW:HIGH, NAME=uniform:LOW:HIGH or NAME=a,b,c, as in --vary learning_rate=log:1e-5:1e-2"


def of(text: str, hint: object = float) -> Prior:
    """The prior of a field of type `hint`."""
    flag = "--" + text.partition("=")[0].replace("_", "-")
    return parse_prior(text, lambda word: check_value(flag, Word(word), hint))


@st.composite
def ranges(draw: st.DrawFn, whole: bool) -> Prior:
    """Any range; under log above 0."""
    kind = draw(st.sampled_from(["log", "uniform"]))
    least = (1 if whole else 1e-9) if kind == "log" else (-1000 if whole else -1e6)
    number = st.integers(least, 1000) if whole else st.floats(least, 1e6)
    low, high = sorted(draw(st.lists(number, min_size=2, max_size=2, unique=True)))
    return Prior("x", kind, low, high, whole=whole)


LISTS = st.lists(st.integers(-5, 5), min_size=2, max_size=6, unique=True).map(
    lambda words: Prior("x", "list", choices=tuple(words))
)
ANY = st.one_of(ranges(False), ranges(True), LISTS)


def test_what_the_words_say():
    assert of("learning_rate=log:1e-5:1e-2") == Prior("learning_rate", "log", 1e-5, 1e-2)
    assert of("entropy_cost=uniform:0:1") == Prior("entropy_cost", "uniform", 0.0, 1.0)
    assert of("unroll=log:5:100", int) == Prior("unroll", "log", 5, 100, whole=True)
    assert of("gamma=0.9,0.99,0.999") == Prior("gamma", "list", choices=(0.9, 0.99, 0.999))
    assert of("lstm=true,false", bool) == Prior("lstm", "list", choices=(True, False))
    assert of("cap=none,0.5", float | None) == Prior("cap", "list", choices=(None, 0.5))
    assert of("torso=a:1,b:2", str) == Prior("torso", "list", choices=("a:1", "b:2"))
    assert of("steps=uniform:10k:1e5", Count) == Prior("steps", "uniform", 10_000, 100_000, whole=True)


@given(ANY)
@settings(deadline=None)
def test_the_label_is_what_was_written(prior):
    hint = int if prior.whole or prior.kind == "list" else float
    assert of(f"x={prior.label()}", hint) == prior


@given(ANY, st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_ten_thousand_perturbations_stay_in_the_range(prior, seed):
    rng = np.random.default_rng(seed)
    value = prior.draw(rng)
    kind = type(value)
    for _ in range(10_000):
        assert prior.contains(value)
        value = prior.perturb(value, rng)
        assert type(value) is kind
    assert prior.contains(value)


@given(ANY, st.integers(0, 2**32))
@settings(deadline=None)
def test_what_is_drawn_is_in_the_range(prior, seed):
    rng = np.random.default_rng(seed)
    assert all(prior.contains(prior.draw(rng)) for _ in range(100))


@given(ranges(False), st.floats(0, 1), st.integers(0, 2**32))
@settings(deadline=None)
def test_a_number_becomes_eight_or_twelve_tenths_of_itself(prior, share, seed):
    value = min(max(prior.low + share * (prior.high - prior.low), prior.low), prior.high)
    held = {sorted((prior.low, factor * value, prior.high))[1] for factor in (0.8, 1.2)}
    rng = np.random.default_rng(seed)
    assert {prior.perturb(value, rng) for _ in range(50)} == held


@given(ranges(True), st.floats(0, 1), st.integers(0, 2**32))
@settings(deadline=None)
def test_a_whole_number_is_never_stuck(prior, share, seed):
    value = round(prior.low + share * (prior.high - prior.low))
    rng = np.random.default_rng(seed)
    for moved in (prior.perturb(value, rng) for _ in range(20)):
        assert moved != value
        assert abs(moved - value) <= max(1, round(0.2 * abs(value) + 0.5))


@pytest.mark.parametrize(
    ("value", "low", "high", "moved"),
    [
        (10, 1, 99, {8, 12}),
        (5, 1, 99, {4, 6}),
        (8, 1, 9, {6, 9}),
        (9, 1, 9, {7}),  # × 1.2 would leave the range
        *((k, -9, 9, {k - 1, k + 1}) for k in range(-2, 3)),
        (0, 0, 9, {1}),
        (1, 0, 1, {0}),
        (-10, -99, 0, {-8, -12}),
    ],
)
def test_whole_numbers_by_hand(value, low, high, moved):
    rng, prior = np.random.default_rng(0), Prior("x", "uniform", low, high, whole=True)
    assert {prior.perturb(value, rng) for _ in range(50)} == moved


@pytest.mark.parametrize(("low", "high"), [(0, 3), (-4, 2), (1, 12)])
def test_perturbing_reaches_both_ends(low, high):
    rng, prior = np.random.default_rng(0), Prior("x", "uniform", low, high, whole=True)
    value, seen = low, set()
    for _ in range(2_000):
        value = prior.perturb(value, rng)
        seen.add(value)
    assert {low, high} <= seen <= set(range(low, high + 1))


def test_both_factors_are_as_likely():
    rng, prior = np.random.default_rng(0), Prior("x", "log", 1e-3, 1e3)
    ups = sum(prior.perturb(1.0, rng) > 1 for _ in range(4_000))
    assert abs(ups - 2_000) < 4 * math.sqrt(1_000)


@given(LISTS, st.integers(0, 2**32))
@settings(deadline=None)
def test_a_list_moves_to_a_neighbour(prior, seed):
    rng, last = np.random.default_rng(seed), len(prior.choices) - 1
    for i, value in enumerate(prior.choices):
        near = {prior.choices[j] for j in (i - 1, i + 1) if 0 <= j <= last}
        assert {prior.perturb(value, rng) for _ in range(50)} == near


def test_a_value_that_is_in_no_list_has_no_neighbour():
    with pytest.raises(ValueError, match="not in tuple"):
        Prior("x", "list", choices=(1, 2)).perturb(3, np.random.default_rng(0))


@pytest.mark.parametrize("kind", ["log", "uniform"])
def test_draws_cover_the_range_evenly(kind):
    """Quantiles of the draws are those of the range, of its logarithm under log."""
    rng, prior = np.random.default_rng(0), Prior("x", kind, 1e-5, 1e-1)
    share = np.linspace(0.05, 0.95, 19)
    even = 10 ** (-5 + 4 * share) if kind == "log" else 1e-5 + (1e-1 - 1e-5) * share
    found = np.quantile([prior.draw(rng) for _ in range(20_000)], share)
    near = 0.15 if kind == "log" else 0.06
    np.testing.assert_allclose(found, even, rtol=near)


@given(st.floats(1e-6, 1e3), st.floats(1.1, 1e4), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_a_range_below_zero_under_log_is_one_of_sizes(least, times, seed):
    """It draws and perturbs what the range of the sizes does, from the other end."""
    rng, below = np.random.default_rng(seed), Prior("x", "log", -least * times, -least)
    value, above = below.draw(rng), Prior("x", "log", least, least * times)
    for k in range(500):
        assert below.contains(value)
        assert above.contains(-value)
        moved = below.perturb(value, np.random.default_rng(k))
        assert moved == -above.perturb(-value, np.random.default_rng(k))
        value = moved


def test_draws_below_zero_cover_the_sizes_evenly():
    rng, prior, share = np.random.default_rng(0), Prior("x", "log", -1.0, -0.1), np.linspace(0.05, 0.95, 19)
    found = np.quantile([prior.draw(rng) for _ in range(20_000)], share)
    np.testing.assert_allclose(found, -(10**-share), rtol=0.03)
    whole = Prior("x", "log", -6, -1, whole=True)
    drawn = Counter(whole.draw(rng) for _ in range(20_000))
    for value, p in odds("log", 1, 6).items():
        assert drawn[-value] / 20_000 == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 20_000))


def test_every_agent_begins_with_its_own_draw():
    priors = {
        "learning_rate": Prior("learning_rate", "log", 1e-5, 5e-3),
        "tagged": Prior("tagged", "log", -1.0, -0.1),
        "period": Prior("period", "uniform", 5, 19, whole=True),
    }
    found = initial(priors, 500, seed=3)
    assert found == initial(priors, 500, seed=3)
    assert found[:7] == initial(priors, 7, seed=3), "whoever else there is"
    assert not any(a == b for a, b in zip(found, initial(priors, 500, seed=4), strict=True))
    for name, prior in priors.items():
        values = [own[name] for own in found]
        assert all(type(x) is float and prior.low <= x <= prior.high for x in values)
        assert len(set(values)) == (15 if prior.whole else 500)
    rates, periods = (np.array([own[name] for own in found]) for name in ("learning_rate", "period"))
    assert np.median(rates) == pytest.approx(math.sqrt(1e-5 * 5e-3), rel=0.3)
    assert abs(np.corrcoef(np.log(rates), periods)[0, 1]) < 0.15
    assert initial({}, 2, seed=0) == [{}, {}]


def odds(kind: str, low: int, high: int) -> dict[int, float]:
    """Of each whole number: the part of [low − ½, high + ½] that is nearest to it."""
    scale = math.log if kind == "log" else float
    whole = scale(high + 0.5) - scale(low - 0.5)
    return {k: (scale(k + 0.5) - scale(k - 0.5)) / whole for k in range(low, high + 1)}


@pytest.mark.parametrize("kind", ["log", "uniform"])
def test_every_whole_number_is_drawn_as_often_as_its_part(kind):
    rng, n = np.random.default_rng(0), 20_000
    drawn = Counter(Prior("x", kind, 1, 6, whole=True).draw(rng) for _ in range(n))
    for value, p in odds(kind, 1, 6).items():
        assert drawn[value] / n == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / n))


def test_every_entry_is_drawn_as_often():
    rng = np.random.default_rng(0)
    drawn = Counter(Prior("x", "list", choices=("a", "b", "c")).draw(rng) for _ in range(9_000))
    assert all(abs(n - 3_000) < 4 * math.sqrt(2_000) for n in drawn.values())


def test_what_a_prior_contains():
    real, whole, words = of("x=log:0.1:10"), of("x=uniform:1:9", int), of("x=a,b", str)
    assert all(real.contains(v) for v in (0.1, 1, 10.0))
    assert not any(real.contains(v) for v in (0.09, 10.1, math.nan, True, "1", None))
    assert [whole.contains(v) for v in (1, 9, 0, 10, 2.5, True)] == [True, True, False, False, False, False]
    assert [words.contains(v) for v in ("a", "b", "c", None)] == [True, True, False, False]


def test_numbers_at_the_end_of_the_world():
    rng = np.random.default_rng(0)
    vast, small = Prior("x", "uniform", -1.7e308, 1.7e308), Prior("x", "log", 5e-324, 1e308)
    for prior in (vast, small):
        assert all(prior.contains(prior.perturb(prior.draw(rng), rng)) for _ in range(200))


SMALL = Annotated[float, Positive.__metadata__[0]]
BAD = [
    ("learning_rate", float, f"'learning_rate' given, allowed: {FORMS}"),
    ("", float, f"'' given, allowed: {FORMS}"),
    ("learning_rate=", float, f"'learning_rate=' given, allowed: {FORMS}"),
    ("=log:1:2", float, f"'=log:1:2' given, allowed: {FORMS}"),
    ("rate=log:1:0.1", float, "LOW 1 and HIGH 0.1 given, allowed: LOW below HIGH; write rate=log:0.1:1"),
    (
        "the_rate=log:1:1.0",
        float,
        "LOW and HIGH 1 given, allowed: LOW below HIGH; for a fixed value write --the-rate 1 without --vary",
    ),
    ("rate=log:0:1", float, "LOW 0 given, allowed: above 0 under log; raise it, or write rate=uniform:0:1"),
    ("rate=log:-1:1", float, "LOW -1 given, allowed: above 0 under log; raise it, or write rate=uniform:-1:1"),
    ("rate=lgo:1:2", float, "'lgo:' given, allowed: log:LOW:HIGH or uniform:LOW:HIGH; did you mean log?"),
    ("rate=Uniform:1:2", float, "'Uniform:' given, allowed: log:LOW:HIGH or uniform:LOW:HIGH; did you mean uniform?"),
    ("rate=x:1:2", float, "'x:' given, allowed: log:LOW:HIGH or uniform:LOW:HIGH"),
    ("rate=log:1", float, "'1' given, allowed: two numbers as in rate=log:LOW:HIGH"),
    ("rate=log:1:", float, "'1:' given, allowed: two numbers as in rate=log:LOW:HIGH"),
    ("rate=uniform:1:2:3", float, "'1:2:3' given, allowed: two numbers as in rate=uniform:LOW:HIGH"),
    (
        "the_rate=0.1",
        float,
        "one entry given, allowed: two or more as in the_rate=a,b,c, or a range as in the_rate=log:LOW:HIGH; "
        "for a fixed value write --the-rate 0.1 without --vary",
    ),
    ("rate=0.1,0.2,0.10", float, "'0.10' twice given, allowed: each entry once; leave it out"),
    ("rate=0.1,,0.2", float, "an empty entry given, allowed: a value on both sides of a comma"),
    ("rate=log:a:1", float, "--rate: 'a' given, allowed: a finite number"),
    ("rate=log:1:inf", float, "--rate: 'inf' given, allowed: a finite number"),
    ("rate=uniform:nan:1", float, "--rate: 'nan' given, allowed: a finite number"),
    ("rate=uniform:0:1", SMALL, "--rate: '0' given, allowed: a number above 0, at most 1e30"),
    ("lanes=uniform:1:2.5", int, "--lanes: '2.5' given, allowed: a whole number"),
    ("lanes=1,2.5", int, "--lanes: '2.5' given, allowed: a whole number"),
    ("torso=log:a:b", str, "'a' given, allowed: a finite number; of anything else a list as in torso=a,b,c"),
    ("lstm=uniform:0:1", bool, "'0' given, allowed: a finite number; of anything else a list as in lstm=a,b,c"),
]


@pytest.mark.parametrize(("text", "hint", "words"), BAD, ids=[text or "nothing" for text, _, _ in BAD])
def test_bad_words_are_refused_in_one_line(text, hint, words):
    with pytest.raises(UserError) as caught:
        of(text, hint)
    line = str(caught.value)
    begin = f"--vary {text}: " if text.partition("=")[0] and text.partition("=")[2] else "--vary: "
    assert line == begin + words
    assert "\n" not in line


def test_the_name_comes_before_the_prior():
    assert prior_name("learning_rate=log:1:2") == "learning_rate"
    assert prior_name("kwargs=a=1,a=2") == "kwargs"
    with pytest.raises(UserError, match="--vary: 'learning_rate' given"):
        prior_name("learning_rate")

"""The rules of population based training against plain twins; priors: what --vary may say, draws, perturbations."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.errors import Count, Positive, UserError
from polyplay.population import rules
from polyplay.population.rules import (
    Choice,
    Evolution,
    Population,
    Prior,
    Standing,
    change_values,
    choose_donor,
    evolve,
    initial,
    parse_prior,
    two_sided,
    welch_test,
)
from polyplay.runs.flags import Word, check_value
from polyplay.systems import pbt


def test_welch_is_scipy_s():
    """scipy 1.17.1: ttest_ind(a, b, equal_var=False), its statistic and pvalue."""
    a = [18.994, 20.288, 22.091, 20.763, 21.142, 20.238, 20.279, 19.551, 19.719, 17.57]
    t, p = 43.29555870745567, 0.007377268639382546
    assert welch_test(a, [-36.075, -38.61]) == pytest.approx((t, p), rel=1e-9)
    assert welch_test([-36.075, -38.61], a) == pytest.approx((-t, p), rel=1e-9)
    assert welch_test([0.1] * 10, [0.1] * 9) == (0.0, 1.0), "samples that do not vary"
    assert welch_test([2.0] * 10, [1.0] * 5) == (math.inf, 0.0)


@given(st.floats(0, 50))
@settings(max_examples=20)
def test_student_s_distribution_where_it_has_a_closed_form(t):
    for freedom, p in (
        (1.0, 1 - 2 / math.pi * math.atan(t)),
        (2.0, 1 - t / math.sqrt(2 + t * t)),
        (3.0, 1 - 2 / math.pi * (math.atan(t / math.sqrt(3)) + t / math.sqrt(3) / (1 + t * t / 3))),
    ):
        assert two_sided(t, freedom) == pytest.approx(p, abs=1e-12)


FAILED = -math.inf

SCORES = st.lists(st.sampled_from([None, FAILED, 0.0, 1.0, 2.0, 3.0, 4.0]), min_size=1, max_size=16)


class Fixed:
    """A generator of random numbers that draws the k-th of anything."""

    def __init__(self, k: int):
        self.k = k

    def integers(self, n: int) -> int:
        return self.k % n


def members(scores: list[float | None], games: tuple[float, ...] = ()) -> list[Standing]:
    return [Standing(score, games) for score in scores]


def donors(rule: str, scores: list[float | None], i: int) -> set[int | None]:
    return {donor for donor, _ in choices(rule, members(scores), i)}


def choices(rule: str, standings: list[Standing], i: int) -> list[Choice]:
    """What a rule says, whichever donor is drawn."""
    return [choose_donor(rule, standings, i, Fixed(k)) for k in range(len(standings))]


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
@settings(deadline=None)
def test_truncation_is_the_twin_s(scores):
    for i in range(len(scores)):
        assert donors("truncation", scores, i) == truncated(scores, i)


@given(SCORES)
@settings(deadline=None)
def test_tournament_is_the_twin_s(scores):
    for i in range(len(scores)):
        peers = [j for j, s in enumerate(scores) if j != i and s is not None and s != FAILED]
        copied = {j if scores[i] is not None and scores[j] > scores[i] else None for j in peers}
        expected = copied if scores[i] is not None and peers else {None}
        assert donors("tournament", scores, i) == expected


@pytest.mark.parametrize("rule", ["truncation", "tournament", "ttest"])
def test_a_member_that_failed_copies_any_that_has_not(rule):
    standings = [Standing(FAILED), Standing(FAILED), Standing(1.0, (1.0,) * 10), Standing(None)]
    assert {donor for donor, _ in choices(rule, standings, 0)} == {2}
    assert choose_donor(rule, standings[:2], 0, Fixed(0))[0] is None


def one_against_one(own: list[float], other: list[float]) -> Choice:
    standings = [Standing(float(np.mean(own)), tuple(own)), Standing(float(np.mean(other)), tuple(other))]
    return choose_donor("ttest", standings, 0, Fixed(0))


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
    assert one_against_one(own, other) == (donor, why)


class Listed(Population):
    """Members in memory, of whom none can be copied that is called broken."""

    def __init__(self, *members: Standing):
        self.members = [*members]

    def standings(self) -> list[Standing]:
        return self.members

    def copy(self, receiver: int, donor: int, values: dict[str, Any]) -> None:
        if "broken" in values:
            raise UserError("it is gone")
        self.members[receiver] = Standing(None, values=values)


@pytest.mark.parametrize("rule", [*rules.EXPLOIT])
def test_any_population_evolves_by_any_rule(rule):
    worse, better = Standing(1000.0, (0.0,) * 10, {"c": 1.0}), Standing(1200.0, (8.0, 9.0) * 5, {"c": 5.0})
    population, rng = Listed(worse, better), np.random.default_rng(0)
    donor, _ = evolve(population, 0, Evolution(1, rule, "perturb", {"c": Prior("c", "uniform", 0, 9)}), rng)
    assert donor == (None if rule == "none" else 1)
    assert population.members[0].values["c"] in ([1.0] if rule == "none" else [4.0, 6.0])
    still = Evolution(1, rule, "none")
    assert evolve(population, 1, still, rng)[0] is None, "nobody is better"
    gone = Listed(worse, replace(better, values={"broken": 1}))
    said = "nothing is copied" if rule == "none" else "not copied: it is gone"
    assert evolve(gone, 0, still, rng) == (None, said)
    assert gone.members[0] is worse


def test_what_the_options_name_are_rules():
    assert {*get_args(get_type_hints(pbt.Config)["exploit"])} <= {*rules.EXPLOIT}
    assert {*get_args(get_type_hints(pbt.Config)["explore"])} <= {*rules.EXPLORE}


# Explore
PRIORS = {
    "a": Prior("a", "log", 1e-3, 1e3),
    "b": Prior("b", "list", choices=(1, 2, 3)),
    "c": Prior("c", "uniform", 0, 9),
}

VALUES: dict[str, Any] = {"a": 1.0, "b": 2, "c": 5.0, "other": "kept"}


def explored(rule: str, n: int = 2_000) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [change_values(rule, dict(VALUES), PRIORS, rng) for _ in range(n)]


def test_each_is_perturbed_by_itself_and_what_has_no_prior_stays():
    assert explored("none", 1) == [VALUES]
    drawn = Counter((found["a"], found["b"], found["c"]) for found in explored("perturb"))
    assert {found["other"] for found in explored("both", 9)} == {"kept"}
    assert set(drawn) == {(a, b, c) for a in (0.8, 1.2) for b in (1, 3) for c in (4.0, 6.0)}
    assert all(abs(k - 250) < 4 * math.sqrt(250) for k in drawn.values())


@pytest.mark.parametrize(("rule", "stays"), [("resample", {1.0}), ("both", {0.8, 1.2})])
def test_each_is_drawn_anew_by_itself_with_a_quarter(rule, stays):
    found = explored(rule)
    anew = [(f["a"] not in stays, f["c"] not in {5.0 * x for x in stays}) for f in found]
    for pair, p in {(True, True): 1 / 16, (True, False): 3 / 16, (False, True): 3 / 16, (False, False): 9 / 16}.items():
        assert anew.count(pair) / len(found) == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / len(found)))
    drawn = [math.log10(f["a"]) for f in found if f["a"] not in stays]
    assert np.quantile(drawn, [0.25, 0.5, 0.75]) == pytest.approx([-1.5, 0.0, 1.5], abs=0.3), "from the prior"


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


def within(prior: Prior, value: Any) -> bool:
    return value in prior.choices or prior.low <= value <= prior.high


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
def test_perturbations_stay_in_the_range(prior, seed):
    rng = np.random.default_rng(seed)
    value = prior.draw(rng)
    kind = type(value)
    for _ in range(200):
        assert within(prior, value)
        value = prior.perturb(value, rng)
        assert type(value) is kind
    assert within(prior, value)


@given(ranges(False), st.floats(0, 1), st.integers(0, 2**32))
@settings(deadline=None)
def test_a_number_becomes_eight_or_twelve_tenths_of_itself(prior, share, seed):
    value = min(max(prior.low + share * (prior.high - prior.low), prior.low), prior.high)
    held = {sorted((prior.low, factor * value, prior.high))[1] for factor in (0.8, 1.2)}
    rng = np.random.default_rng(seed)
    assert {prior.perturb(value, rng) for _ in range(50)} == held


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


@given(LISTS, st.integers(0, 2**32))
@settings(deadline=None, max_examples=20)
def test_a_list_moves_to_a_neighbor(prior, seed):
    rng, last = np.random.default_rng(seed), len(prior.choices) - 1
    for i, value in enumerate(prior.choices):
        near = {prior.choices[j] for j in (i - 1, i + 1) if 0 <= j <= last}
        assert {prior.perturb(value, rng) for _ in range(50)} == near


def test_every_agent_begins_with_its_own_draw():
    priors = {"rate": Prior("rate", "log", 1e-5, 5e-3), "period": Prior("period", "uniform", 5, 19, whole=True)}
    found = initial(priors, 100, seed=3)
    assert found[:7] == initial(priors, 7, seed=3), "whoever else there is"
    assert not any(a == b for a, b in zip(found, initial(priors, 100, seed=4), strict=True))
    assert len({own["rate"] for own in found}) == 100
    assert all(type(x) is float and within(priors[name], x) for own in found for name, x in own.items())
    assert initial({}, 2, seed=0) == [{}, {}]


@pytest.mark.parametrize(("kind", "scale"), [("log", math.log), ("uniform", float)])
def test_every_whole_number_is_drawn_as_often_as_its_part(kind, scale):
    """Of [low − ½, high + ½], the part that is nearest to it."""
    rng, n = np.random.default_rng(0), 5_000
    drawn = Counter(Prior("x", kind, 1, 6, whole=True).draw(rng) for _ in range(n))
    for k in range(1, 7):
        p = (scale(k + 0.5) - scale(k - 0.5)) / (scale(6.5) - scale(0.5))
        assert drawn[k] / n == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / n))


SMALL = Annotated[float, Positive.__metadata__[0]]

FIXED = "; for a fixed value write --the-rate alone"
BAD = [
    ("the_rate", float, "--vary 'the_rate': must be "),
    ("the_rate=", float, "--vary 'the_rate=': must be "),
    ("=log:1:2", float, "--vary '=log:1:2': must be "),
    ("the_rate=log:1:1.0", float, "LOW 1 must be below HIGH 1.0, and above 0 under log"),
    ("the_rate=log:0:1", float, "LOW 0 must be below HIGH 1, and above 0 under log"),
    ("the_rate=lgo:1:2", float, "--the-rate: 'lgo:1:2' given, allowed: a finite number"),
    ("the_rate=log:1", float, "'log:1' must have two values or more"),
    ("the_rate=0.1", float, "'0.1' must have two values or more"),
    ("the_rate=0.1,,0.2", float, "'0.1,,0.2' must have two values or more"),
    ("the_rate=0.1,0.2,0.10", float, "an entry appears twice"),
    ("the_rate=log:a:1", float, "--the-rate: 'a' given, allowed: a finite number"),
    ("the_rate=uniform:0:1", SMALL, "--the-rate: '0' given, allowed: a number above 0, at most 1e30"),
    ("the_rate=log:a:b", str, "'a:b' must be two finite numbers"),
    ("the_rate=uniform:0:1", bool, "'0:1' must be two finite numbers"),
]


@pytest.mark.parametrize(("text", "hint", "words"), BAD)
def test_bad_words_are_refused_in_one_line(text, hint, words):
    with pytest.raises(UserError) as caught:
        of(text, hint)
    line = str(caught.value)
    assert line.startswith(words if words.startswith("--vary") else f"--vary {text}: {words}")
    assert line.endswith((FIXED, FORMS)) or "allowed: a " in line
    assert "\n" not in line

"""Our rule on a simulated service: it finds the optimum, within the cap, rests, and notices when all has changed."""

from __future__ import annotations

import functools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.workers.autoscale.climb import HillClimb, climb, merge
from polyplay.workers.autoscale.ga3c import RateReading
from tests.services import SMALL, Noise, Service, best, known, play

ONES = {"agents": 1, "predictors": 1, "trainers": 1}
MANY = {"agents": 64, "predictors": 12, "trainers": 12}
BOUNDS = {"a": (1, 64)}


def look(rows: float, lag: float = 1.0, seconds: float = 4.0) -> RateReading:
    return RateReading(seconds, rows, rows / 5.0, lag, rows, 0.0)


def kept(decided, start):
    return next((d.new for _, d in reversed(decided) if d.kept), start)


@pytest.mark.parametrize("start", [ONES, MANY], ids=["too small", "too large"])
@pytest.mark.parametrize("seed", range(3))
def test_it_finds_the_optimum_from_bad_starts(start, seed):
    service = Service(SMALL, start, seed)
    decided = play(climb, service, start, SMALL.limits, seed, 600.0)
    assert known(SMALL, kept(decided, start))["rows"] >= 0.9 * best(SMALL)[0]


def test_without_noise_it_ends_at_a_place_that_no_neighbour_beats():
    service = Service(SMALL, ONES, 0, Noise(0.0, 0.0, outliers=0.0))
    there = kept(play(climb, service, ONES, SMALL.limits, 0, 1200.0), ONES)
    rows = known(SMALL, there)["rows"]
    assert rows >= 0.95 * best(SMALL)[0]
    for name in there:
        for step in (-1, 1):
            near = {**there, name: there[name] + step}
            if SMALL.limits[name][0] <= near[name] <= SMALL.limits[name][1]:
                assert known(SMALL, near)["rows"] < 1.02 * rows


def test_the_lag_cap_holds():
    free = Service(SMALL, ONES, 0)
    wild = known(SMALL, kept(play(climb, free, ONES, SMALL.limits, 0, 600.0), ONES))
    bound = Service(SMALL, MANY, 0)
    rule = functools.partial(climb, lag=12.0)
    tame = known(SMALL, kept(play(rule, bound, MANY, SMALL.limits, 0, 600.0), MANY))
    assert wild["lag"] > 15.0
    assert tame["lag"] <= 12.6
    assert tame["rows"] >= 0.85 * best(SMALL, lag=12.0)[0]


def test_over_the_cap_is_worse_than_any_rate_within_it():
    self = HillClimb({"a": 1}, BOUNDS, random.Random(0), 4.0, 1.0, lag=8.0)
    assert self.gain(look(1000, lag=9), look(1, lag=8)) == math.inf
    assert self.gain(look(1, lag=8), look(1000, lag=9)) == -math.inf
    assert self.gain(look(10, lag=20), look(1, lag=10)) == pytest.approx(math.log(2))
    assert self.gain(look(10, lag=1), look(20, lag=7)) == pytest.approx(math.log(2))


def script(rates, start=8, bounds=BOUNDS, count=40, **how):
    """The trials of the rule where a configuration's rate is `rates`(a)."""
    steps = climb({"a": start}, bounds, 0, **how)
    trials = [next(steps)]
    for _ in range(count):
        trials.append(steps.send(look(rates(trials[-1].config["a"]), seconds=trials[-1].measure)))
    return trials


def test_what_is_clearly_bad_is_left_after_half_a_look():
    trials = script(lambda a: 1000.0 if a == 8 else 100.0)
    tried = [t for t in trials if t.config["a"] != 8]
    assert {t.measure for t in tried} == {2.0}
    assert all(t.settle == 1.0 for t in tried)
    assert not any(t.decided.kept for t in trials if t.decided)


def test_what_is_within_noise_is_compared_a_b_a():
    wobble = iter([100, 103, 102, 100, 103, 102, 101] * 20)
    trials = script(lambda a: next(wobble), start=1)
    first = [t.config["a"] for t in trials[:8]]
    assert first[:5] == [1, 4, 4, 1, 4]


def test_twice_as_good_is_kept_at_once_and_gone_on_from():
    trials = script(lambda a: 100.0 * a, start=1, count=4)
    assert [t.config["a"] for t in trials[:4]] == [1, 4, 16, 64]


def test_a_smaller_number_wins_a_tie():
    trials = script(lambda a: 100.0, start=64, count=60)
    last = [t.decided for t in trials if t.decided and t.decided.kept][-1]
    assert last.new["a"] < 8
    assert last.why == "no worse, and smaller"


def test_one_accident_changes_nothing():
    """A look at the best accepted one that is far off is looked at again before it is believed."""
    seen = []

    def rate(a):
        seen.append(a)
        return 40.0 if seen.count(8) == 2 and a == 8 else 100.0 if a == 8 else 99.0

    assert not any(t.decided.kept for t in script(rate, bounds={"a": (8, 64)}, count=30) if t.decided)


def test_it_rests_when_nothing_is_left_and_then_hardly_tries():
    service = Service(SMALL, ONES, 1)
    decided = play(climb, service, ONES, SMALL.limits, 1, 3600.0)
    assert len([at for at, _ in decided if at < 900.0]) > 3 * len([at for at, _ in decided if at > 2700.0])


def test_it_notices_a_change_of_regime_and_searches_again():
    service = Service(SMALL, ONES, 0)
    slow = replace(SMALL, name="slow environment", env=8.0 * SMALL.env)
    steps, changed, here = climb(ONES, SMALL.limits, 0), [], ONES
    trial = next(steps)
    while service.now < 2400.0:
        if service.now > 1200.0:
            service.shape = slow
        if trial.decided and trial.decided.why == "changed":
            changed.append(service.now)
        here = trial.decided.new if trial.decided and trial.decided.kept else here
        trial = steps.send(service.look(trial.config, trial.settle, trial.measure))
    assert changed
    assert 1200.0 < changed[0] < 1330.0
    assert known(slow, here)["rows"] >= 0.9 * best(slow)[0]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), noise=st.floats(0.0, 0.2), many=st.integers(1, 3))
def test_every_search_comes_to_rest(seed, noise, many):
    """Also where nothing matters and all is noise."""
    rng = random.Random(seed)
    bounds = dict(list({"a": (1, 30), "b": (1, 8), "c": (1, 8)}.items())[:many])
    steps = climb(dict.fromkeys(bounds, 2), bounds, seed, rest=20.0)
    trial = next(steps)
    looks = 0
    while trial.measure != 20.0 and looks < 3000:
        trial = steps.send(look(100.0 * math.exp(rng.gauss(0.0, noise)), seconds=trial.measure))
        looks += 1
    assert trial.measure == 20.0, "still searching after 3000 looks"


def test_looks_are_merged_by_their_lengths():
    both = merge([look(10, seconds=1.0), look(40, lag=4.0, seconds=3.0)])
    assert (both.seconds, both.rows, both.lag) == (4.0, 32.5, 3.25)
    assert merge([look(10), look(10)], most=5.0).seconds == 5.0

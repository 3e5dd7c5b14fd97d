"""GA3C's rule as published: one number changes at a time, within its bounds, and the rule repeats itself."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.workers.autoscale import annealing, within_bounds

BOUNDS = {"agents": (1, 64), "predictors": (1, 8), "trainers": (1, 8)}
START = {"agents": 32, "predictors": 2, "trainers": 2}


def drive(steps, rates):
    """The trials of a rule that is told these trainings per second, one after another."""
    trials = [next(steps)]
    for tps in rates:
        trials.append(steps.send(tps))
    return trials


def moved(a, b):
    return {k: b[k] - a[k] for k in a if a[k] != b[k]}


def test_annealing_changes_one_number_by_one_a_minute():
    trials = drive(annealing(START, BOUNDS, 1), range(100, 300))
    assert all(t.measure == 60.0 for t in trials)
    assert trials[0].config == START
    steps = [moved(a.config, b.config) for a, b in itertools.pairwise(trials)]
    assert all(len(s) == 1 and set(s.values()) <= {1, -1} for s in steps)
    assert {name for s in steps for name in s} == set(BOUNDS)
    assert all(t.decided.kept and t.decided.why == "rose" for t in trials[2:])


def test_cold_annealing_keeps_only_what_rose():
    trials = drive(annealing(START, BOUNDS, 1, temperature=0.0), [100, 90, 95, 110, 105])
    decided = [t.decided for t in trials[2:]]
    assert [d.kept for d in decided] == [False, False, True, False]
    assert [d.before for d in decided] == [100, 100, 100, 110]
    assert all(len(moved(d.old, t.config)) == 1 for d, t in zip(decided[:2], trials[2:4], strict=True))
    assert trials[-1].decided.old == decided[2].new


def test_hot_annealing_keeps_what_fell_and_cools():
    hot = drive(annealing(START, BOUNDS, 1, temperature=1e9, cooling=1.0), range(300, 200, -1))
    assert all(t.decided.kept and t.decided.why == "annealing" for t in hot[2:])
    cooled = drive(annealing(START, BOUNDS, 1, temperature=0.5, cooling=0.9), [1000 * 0.98**k for k in range(300)])
    kept = [t.decided.why == "annealing" for t in cooled[2:]]
    assert any(kept[:10])
    assert not any(kept[200:])


def test_numbers_are_put_within_bounds():
    assert within_bounds({"a": 0, "b": 9, "c": 3}, {"a": (1, 4), "b": (1, 4), "c": (1, 4)}) == {"a": 1, "b": 4, "c": 3}


def test_a_rule_with_nothing_to_change_runs_on():
    trials = drive(annealing({"a": 3}, {"a": (3, 3)}, 0), [10] * 50)
    assert all(t.config == {"a": 3} for t in trials)


ranges = st.tuples(st.integers(1, 5), st.integers(0, 200)).map(lambda p: (p[0], p[0] + p[1]))
rates = st.lists(st.floats(0.0, 1e4), min_size=40, max_size=40)


@settings(max_examples=20, deadline=None)
@given(bounds=st.dictionaries(st.sampled_from("abcd"), ranges, min_size=1), rates=rates, seed=st.integers(0, 99))
def test_it_keeps_its_bounds_and_repeats_itself(bounds, rates, seed):
    def run():
        return drive(annealing(dict.fromkeys(bounds, 7), bounds, seed), rates)

    trials = run()
    assert trials == run()
    for trial in trials:
        assert trial.config.keys() == bounds.keys()
        assert all(low <= trial.config[n] <= high for n, (low, high) in bounds.items())
        assert trial.measure > 0.0

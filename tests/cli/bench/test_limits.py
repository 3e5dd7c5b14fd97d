"""Limits and remainders against numbers worked out by hand."""

from __future__ import annotations

import pytest

from polyplay.cli.bench.limits import (
    NAMES,
    CoreTime,
    PartCosts,
    WatchedRun,
    bottleneck,
    gain,
    rate_limit,
    removed_time,
    split_core_time,
)

COSTS = PartCosts(env=300.0, infer=100.0, learn=100.0)
TIMES = {"env": 0.5, "infer": 0.2, "learn": 0.2, "wait": 0.1}


def dearer(where: CoreTime) -> float:
    return where.dearer_env + where.dearer_infer + where.dearer_learn


def test_the_limit_is_cores_over_the_sum_of_the_parts():
    assert COSTS.total == 500.0
    assert rate_limit(2, COSTS) == 4000.0
    assert rate_limit(1, PartCosts(1e6, 0.0, 0.0)) == 1.0
    # 4 passes of 100 µs each are 400 µs of learning: 2/(300 + 100 + 400)
    assert rate_limit(2, PartCosts(300.0, 100.0, 4 * 100.0)) == 2500.0


def test_where_the_core_time_of_a_step_goes():
    # 2 cores at 2,500 steps/s: 800 µs a step. Own 1.75 cores: 700 µs, others 0.05: 20 µs, idle 80 µs.
    # 2 workers: 800 µs of wall time, 90 % of it busy: 720 µs, on 700 µs of CPU: stretched by 720/700.
    # acting 0.2 · 800 · 700/720 = 155.6 µs, learning the same: 55.6 µs dearer each; overhead 700 − 500 − 111.1 µs
    where = split_core_time(2, COSTS, WatchedRun(2500.0, 1.75, 0.05, 2, TIMES))
    assert where.whole == pytest.approx(800.0)
    assert (where.env, where.infer, where.learn) == pytest.approx((300.0, 100.0, 100.0))
    assert (where.dearer_infer, where.dearer_learn) == pytest.approx((500 / 9, 500 / 9))
    assert where.overhead == pytest.approx(200 - 1000 / 9)
    assert (where.others, where.idle) == pytest.approx((20.0, 80.0))
    assert where.of("infer") == pytest.approx(100 + 500 / 9)
    assert bottleneck(where) == "env"


def test_with_environments_in_processes_all_that_is_more_is_overhead():
    where = split_core_time(2, COSTS, WatchedRun(2500.0, 1.75, 0.05, 2, TIMES), "processes")
    assert (dearer(where), where.overhead) == pytest.approx((0.0, 200.0))
    assert where.whole == pytest.approx(800.0)


def test_environments_that_a_worker_steps_itself_are_dearer_too():
    # 0.5 · 800 · 700/720 = 388.9 µs in the run, 300 alone: 88.9 more; with acting's and learning's 55.6 that is all
    # that is left, 200 µs, and nothing is overhead
    where = split_core_time(2, COSTS, WatchedRun(2500.0, 1.75, 0.05, 2, TIMES), "inline")
    assert (where.dearer_env, where.dearer_infer) == pytest.approx((800 / 9, 500 / 9))
    assert where.overhead == pytest.approx(0.0, abs=1e-9)
    assert where.of("env") == pytest.approx(300 + 800 / 9)
    assert where.whole == pytest.approx(800.0)


def test_what_is_removed_is_a_part_as_the_run_has_it():
    full = where(env=300.0, infer=100.0, dearer_infer=50.0, learn=200.0)
    # acting: 150 µs in the run; a free network still takes 40 % of it, as it does alone; learning a tenth
    free = PartCosts(env=300.0, infer=40.0, learn=10.0)
    parts = PartCosts(env=300.0, infer=100.0, learn=100.0)
    assert removed_time(full, parts, free, ("infer", "learn")) == pytest.approx(150 * 0.6 + 200 * 0.9)
    assert removed_time(full, parts, free, ("env",)) == 0.0


def test_what_is_dearer_is_never_more_than_what_is_left():
    # own 520 µs: 20 µs more than the parts, whatever the wall time says
    where = split_core_time(2, COSTS, WatchedRun(2500.0, 1.3, 0.0, 2, {"infer": 0.5, "learn": 0.5}))
    assert dearer(where) == pytest.approx(20.0)
    assert where.overhead == pytest.approx(0.0, abs=1e-9)
    assert where.idle == pytest.approx(280.0)


def test_a_run_cheaper_than_its_parts_shortens_them():
    where = split_core_time(2, COSTS, WatchedRun(2500.0, 1.0, 0.0, 2, TIMES))  # 400 µs of CPU for parts of 500
    assert (where.env, where.infer, where.learn) == pytest.approx((240.0, 80.0, 80.0))
    assert (dearer(where), where.overhead, where.idle) == pytest.approx((0.0, 0.0, 400.0))


def test_more_cpu_than_there_is_counts_as_all_of_it():
    where = split_core_time(2, COSTS, WatchedRun(2500.0, 2.1, 0.2, 2, TIMES))
    assert where.whole == pytest.approx(800.0)
    assert (where.others, where.idle) == pytest.approx((0.0, 0.0))


def where(**us: float) -> CoreTime:
    zero = dict.fromkeys(CoreTime.__dataclass_fields__, 0.0)
    return CoreTime(**{**zero, **us})


def test_the_bottleneck_takes_most():
    for name in NAMES:
        assert bottleneck(where(**{**dict.fromkeys(NAMES, 1.0), name: 2.0})) == name
    assert bottleneck(where(env=3.0, learn=2.0, dearer_learn=1.5)) == "learn"
    assert bottleneck(where(env=3.0, others=100.0)) == "env"


def test_what_a_removal_promises():
    full = where(env=300.0, infer=100.0, learn=100.0, overhead=100.0)
    assert gain(full, 300.0) == pytest.approx(2.0)
    assert gain(full, 0.0) == 1.0
    half = where(env=300.0, infer=100.0, learn=100.0, overhead=100.0, idle=600.0)
    assert gain(half, 300.0) == pytest.approx(2.0)  # cores that were idle for half of the time stay so

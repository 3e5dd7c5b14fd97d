"""Shares of core time against numbers worked out by hand, the bottleneck, and the option to try."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from polyplay.cli import bench
from polyplay.cli.bench import NAMES, CoreTime, bottleneck, split_core_time

TIMES = {"env": 0.5, "infer": 0.2, "learn": 0.2, "wait": 0.1}


def wired(title: str = "ALE/Pong-v5", kind: str = "ale", **values: Any) -> Any:
    return SimpleNamespace(envs=SimpleNamespace(title=title), kind=kind, values=values, keywords={})


def test_a_concrete_option_that_the_page_has():
    a2c = wired(lanes=32, unroll=5, groups=1)
    assert bench.change("infer", a2c).startswith("try --lanes 64 (larger acting batches")
    assert bench.change("learn", a2c).startswith("try --unroll 10 ")
    assert bench.change("overhead", a2c).startswith("try --lanes 64 ")
    assert bench.change("idle", a2c).startswith("try --groups 2 ")
    ppo = wired(lanes=16, unroll=128, epochs=3)
    assert bench.change("learn", ppo).startswith("try --epochs 2 ")
    assert bench.change("learn", wired(epochs=1, min_batch=40)).startswith("try --min-batch 80 ")
    assert bench.change("idle", wired(actors=2, lanes=16)).startswith("try --actors 3 ")


def test_where_a_page_has_none():
    assert "more cores" in bench.change("infer", wired(workers=2, unroll=20))
    assert "no setting" in bench.change("idle", wired(workers=2))


def test_environments():
    assert "more cores" in bench.change("env", wired())
    assert "--atari baselines" in bench.change("env", wired(kind="inline"))
    assert "polyplay check CartPole-v1" in bench.change("env", wired("CartPole-v1", "processes"))


def shares(**given: float) -> CoreTime:
    return CoreTime(**{**dict.fromkeys(CoreTime.__dataclass_fields__, 0.0), **given})


def test_the_sentence_says_how_much():
    where = shares(env=0.2, learn=0.5, idle=0.3)
    assert bench.sentence(where, wired(unroll=5)).startswith("learning takes 50 % of the core time: try --unroll 10 ")


def test_the_bottleneck_takes_most_of_what_is_the_runs():
    for name in NAMES:
        assert bottleneck(shares(**{**dict.fromkeys(NAMES, 0.1), name: 0.2})) == name
    assert bottleneck(shares(env=0.1, others=0.9)) == "env"


def test_where_the_core_time_goes():
    """0.9 of the cores are the run's, others use 0.04. As many workers as cores are busy for 90 % of their time."""
    where = split_core_time(TIMES, 0.9, 0.04, 1.0, pooled=False)
    assert asdict(where) == pytest.approx(
        {"env": 0.5, "infer": 0.2, "learn": 0.2, "overhead": 0.0, "others": 0.04, "idle": 0.06}
    )


def test_what_workers_are_not_busy_with_is_overhead_or_that_of_environments_in_processes():
    """Half as many workers as cores, busy for 0.45 of all core time, of a run that used 0.9."""
    where = split_core_time(TIMES, 0.9, 0.0, 0.5, pooled=False)
    assert (where.env, where.overhead) == pytest.approx((0.25, 0.45))
    where = split_core_time(TIMES, 0.9, 0.0, 0.5, pooled=True)
    assert (where.env, where.overhead) == pytest.approx((0.7, 0.0))


def test_a_replay_is_overhead_and_more_workers_than_cores_share_these():
    where = split_core_time({"env": 0.2, "infer": 0.1, "learn": 0.3, "replay": 0.4}, 0.5, 0.0, 4.0, pooled=True)
    assert asdict(where) == pytest.approx(
        {"env": 0.1, "infer": 0.05, "learn": 0.15, "overhead": 0.2, "others": 0.0, "idle": 0.5}
    )


@pytest.mark.parametrize(("own", "others"), [(1.3, 0.2), (0.9, 0.5), (0.0, 0.0)])
def test_shares_are_of_all_the_core_time_there_is(own: float, others: float):
    assert sum(asdict(split_core_time(TIMES, own, others, 1.0, pooled=False)).values()) == pytest.approx(1.0)
    assert sum(asdict(split_core_time({"wait": 1.0}, own, others, 1.0, pooled=True)).values()) == pytest.approx(1.0)

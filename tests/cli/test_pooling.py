from __future__ import annotations

import dataclasses

import numpy as np

from polyplay.cli.plot import Curve, names_of, pool_curves, pools_of


def across(frames: list[float], minutes: list[float]) -> dict[str, np.ndarray]:
    return {"frames": np.array(frames), "minutes": np.array(minutes)}


SETTINGS = {"env": "x", "learning_rate": 0.001}
ONE = Curve("ppo", "x", SETTINGS, across([0.0, 100.0], [0.0, 1.0]), np.array([0.0, 10.0]))
TWO = Curve("ppo", "x", SETTINGS, across([50.0, 150.0], [0.0, 2.0]), np.array([20.0, 20.0]))


def test_a_pool_is_of_one_system_and_configuration():
    other = dataclasses.replace(ONE, settings={"env": "x", "learning_rate": 0.01})
    pools = pools_of([ONE, other, TWO])
    assert pools == [[ONE, TWO], [other]]
    assert names_of(pools) == ["ppo · learning rate 0.001", "ppo · learning rate 0.01"]
    elsewhere = dataclasses.replace(ONE, env="y", settings={"env": "y", "learning_rate": 0.001})
    assert names_of([[ONE], [elsewhere]]) == ["ppo · x", "ppo · y"]


def test_the_mean_is_where_all_runs_have_returns():
    frames, minutes = (pool_curves([ONE, TWO], axis, "range") for axis in ("frames", "minutes"))
    assert frames is not None
    assert minutes is not None
    assert (frames.x[0], frames.x[-1]) == (50.0, 100.0)
    assert (minutes.x[0], minutes.x[-1]) == (0.0, 1.0)
    assert (frames.mean[0], frames.mean[-1]) == (12.5, 15.0)
    assert (frames.low[0], frames.high[0]) == (5.0, 20.0)


def test_an_interval_lies_within_the_range_and_holds_the_mean():
    runs = [dataclasses.replace(ONE, returns=np.array([0.0, float(end)])) for end in (10, 12, 14, 16, 18)]
    wide, narrow = (pool_curves(runs, "frames", band) for band in ("range", "interval"))
    assert wide is not None
    assert narrow is not None
    assert wide.low[-1] < narrow.low[-1] < narrow.mean[-1] < narrow.high[-1] < wide.high[-1]
    assert np.all(narrow.low <= narrow.high)


def test_one_run_or_runs_without_a_common_part_are_no_pool():
    later = dataclasses.replace(ONE, across=across([200.0, 300.0], [0.0, 1.0]))
    assert pool_curves([ONE], "frames", "range") is None
    assert pool_curves([ONE, later], "frames", "range") is None
    assert pool_curves([ONE, later], "minutes", "range") is not None

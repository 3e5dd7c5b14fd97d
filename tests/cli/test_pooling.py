from __future__ import annotations

import dataclasses

import numpy as np

from polyplay.cli.pooling import Curve, names_of, pool_curves, pools_of

ONE = Curve("ppo", "x", {"env": "x", "learning_rate": 0.001}, [0.0, 100.0], [0.0, 1.0], [0.0, 10.0])
TWO = dataclasses.replace(ONE, frames=[50.0, 150.0], minutes=[0.0, 2.0], returns=[20.0, 20.0])


def test_a_pool_is_of_one_system_and_configuration():
    other = dataclasses.replace(ONE, settings={"env": "x", "learning_rate": 0.01})
    pools = pools_of([ONE, other, TWO])
    assert pools == [[ONE, TWO], [other]]
    assert names_of(pools) == ["ppo · learning rate 0.001", "ppo · learning rate 0.01"]
    elsewhere = dataclasses.replace(ONE, env="y", settings={"env": "y", "learning_rate": 0.001})
    assert names_of([[ONE], [elsewhere]]) == ["ppo · x", "ppo · y"]


def test_the_mean_is_where_all_runs_have_returns():
    band = pool_curves([ONE, TWO], "range")
    assert band is not None
    frames, minutes = band
    assert (frames.x[0], frames.x[-1]) == (50.0, 100.0)
    assert (minutes.x[0], minutes.x[-1]) == (0.0, 1.0)
    assert (frames.mean[0], frames.mean[-1]) == (12.5, 15.0)
    assert (frames.low[0], frames.high[0]) == (5.0, 20.0)


def test_an_interval_lies_within_the_range_and_holds_the_mean():
    runs = [dataclasses.replace(ONE, returns=[0.0, float(end)]) for end in (10, 12, 14, 16, 18)]
    wide, narrow = pool_curves(runs, "range"), pool_curves(runs, "interval")
    assert wide is not None
    assert narrow is not None
    assert wide[0].low[-1] < narrow[0].low[-1] < narrow[0].mean[-1] < narrow[0].high[-1] < wide[0].high[-1]
    assert np.all(narrow[0].low <= narrow[0].high)


def test_one_run_or_runs_without_a_common_part_are_no_pool():
    assert pool_curves([ONE], "range") is None
    assert pool_curves([ONE, dataclasses.replace(ONE, frames=[200.0, 300.0])], "range") is None

"""Which value of a schedule holds, and what hyperparameters make of it."""

from __future__ import annotations

import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.worker import Hyperparameters, HyperparameterSchedule, SchedulePoint

TOTAL = 1000.0


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 1000), min_size=1, max_size=5), st.integers(0, 1200), st.integers(0, 31))
def test_a_value_holds_from_its_point_to_the_next(places: set[int], learnt: int, parts: int) -> None:
    """Told from a list with an entry for every agent step."""
    line: list[int | None] = [None] * 1201
    points = []
    for i, at in enumerate(sorted(places)):
        line[at:] = [i] * (1201 - at)
        part = bool(parts >> i & 1)
        points.append(SchedulePoint(float(i), at / TOTAL if part else float(at), part))
    found = HyperparameterSchedule("x", tuple(points)).reached(float(learnt), TOTAL)
    assert (None if found is None else found.value) == line[learnt]


def test_hyperparameters_keep_to_their_schedules_and_others_stay() -> None:
    hyper = Hyperparameters(rate=1.0, cost=0.1)
    hyper.schedules = (HyperparameterSchedule("rate", (SchedulePoint(0.5, 0.5, True), SchedulePoint(0.2, 800, False))),)
    hyper.set("cost", 0.3)
    seen = []
    for learnt in (0.0, 499.0, 500.0, 799.0, 800.0, 2000.0, 0.0):
        held = hyper.keep_to_schedules(learnt, TOTAL)
        seen.append(hyper.rate)
        assert {name: point.value for name, point in held.items()} == ({"rate": hyper.rate} if learnt >= 500 else {})
    assert seen == [1.0, 1.0, 0.5, 0.5, 0.2, 0.2, 1.0]
    assert hyper.cost == 0.3
    assert pickle.loads(pickle.dumps(hyper.schedules)) == hyper.schedules

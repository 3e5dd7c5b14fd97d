"""GA3C's scheduler: its rule as published, its worker, and roles as dials."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.errors import UserError
from polyplay.core.worker import Adjustable, Counters, RunControl, WorkerContext
from polyplay.runs.terminal import schedule_line
from polyplay.workers.autoscale import schedule
from polyplay.workers.crew import Crew
from tests.victims import until


class World:
    """Dials that arrive `delay` seconds after they were asked, a clock that goes on by a tenth of a second a turn."""

    def __init__(
        self, rate: Callable[[dict[str, int]], float], delay: float = 0.0, seed: int = 0, **dials: tuple[int, int, int]
    ):
        """rate: trainings per second with these numbers. dials: number, least and greatest."""
        self.now, self.rate, self.delay = 0.0, rate, delay
        self.numbers = {name: n for name, (n, _, _) in dials.items()}
        self.asked = {name: (n, 0.0) for name, n in self.numbers.items()}
        self.said = list[dict[str, Any]]()
        self.ctx = WorkerContext("schedule", 0, 1, 0, seed, Counters(4), RunControl(), patience=0.0)
        self.ctx.log = lambda kind, text: self.said.append(json.loads(text))
        self.dials = [
            Adjustable(name, low, high, partial(self.get, name), partial(self.set, name))
            for name, (_, low, high) in dials.items()
        ]

    def get(self, name: str) -> int:
        asked, since = self.asked[name]
        if self.now >= since + self.delay:
            self.numbers[name] = asked
        return self.numbers[name]

    def set(self, name: str, n: int) -> None:
        if n != self.asked[name][0]:
            self.asked[name] = n, self.now

    def run(self, seconds: float, **how: float) -> list[dict[str, Any]]:
        """The decisions until then."""
        for _ in schedule(self.ctx, dials=self.dials, clock=lambda: self.now, **how):
            self.now += 0.1
            self.ctx.counters.add("updates", 0.1 * self.rate({d.name: d.get() for d in self.dials}))
            if self.now >= seconds:
                break
        return self.said


def noisy(seed: int) -> Callable[[object], float]:
    rng = random.Random(seed)
    return lambda numbers: rng.uniform(0, 100)


@settings(max_examples=20, deadline=None)
@given(
    dials=st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(1, 5), st.integers(0, 9)), min_size=1),
    seed=st.integers(0, 99),
    temperature=st.sampled_from([0.0, 0.02, 1e9]),
)
def test_one_number_changes_by_one_within_its_bounds_and_what_rose_is_kept(dials, seed, temperature):
    def decided() -> list[dict[str, Any]]:
        bounds = {name: (low, low, low + more) for name, (low, more) in dials.items()}
        return World(noisy(seed), seed=seed, **bounds).run(60.0, interval=1.0, temperature=temperature)

    found = decided()
    assert found == decided()
    assert bool(found) == any(more for _, more in dials.values())
    here, before = {name: low for name, (low, _) in dials.items()}, None
    for row in found:
        assert row["from"] == here
        assert sorted(abs(row["to"][name] - here[name]) for name in dials) == [0] * (len(dials) - 1) + [1]
        assert all(low <= row["to"][name] <= low + more for name, (low, more) in dials.items())
        assert before in (None, row["before"])
        assert row["why"] == ("rose" if row["after"] > row["before"] else "annealing" if row["kept"] else "fell")
        assert row["kept"] or temperature < 1
        here, before = (row["to"], row["after"]) if row["kept"] else (here, row["before"])


def test_what_fell_is_kept_ever_less_often():
    assert World(lambda numbers: 0.0, agents=(2, 1, 8)).run(100.0, interval=1.0) == [], "nothing was trained"
    falls = World(lambda numbers: 1000 * 0.98 ** numbers["n"], n=(1, 1, 99), seed=1)
    kept = [row["why"] == "annealing" for row in falls.run(300.0, interval=1.0, temperature=0.05, cooling=0.97)]
    assert any(kept[:10])
    assert not any(kept[200:])


@pytest.mark.parametrize("delay", [0.0, 0.5, 1e9])
def test_it_finds_the_best_number_or_goes_on_with_what_it_gets(delay):
    world = World(lambda numbers: 10.0 * numbers["agents"], delay, agents=(1, 1, 8))
    said = world.run(120.0, interval=1.0, temperature=0.0, arrive=1.0)
    if delay < 1.0:
        assert [told["to"] for told in said if told["kept"]][-1] == {"agents": 8}
        assert (said[0]["before"], said[0]["after"]) == pytest.approx((10.0, 20.0)), "counted only once it is there"
        assert not any(told["late"] for told in said)
    else:
        assert len(said) > 10
        assert said[0]["late"] == ["agents"]


def test_a_decision_is_said():
    decision = {"from": {"act": 1, "learn": 2}, "to": {"act": 2, "learn": 2}, "before": 10.0, "after": 30.0}
    decision |= {"kept": True, "why": "rose", "late": []}
    assert schedule_line(decision) == "schedule: act 1 → 2: 10 → 30, kept (rose)"
    worse = {**decision, "after": 1.0, "kept": False, "why": "fell", "late": ["act"]}
    assert schedule_line(worse) == "schedule: act 1 → 2: 10 → 1, taken back (fell); act had not arrived"


def test_who_has_to_leave_may_bring_what_it_does_to_an_end():
    left: list = []

    def drains(ctx):
        while not ctx.leaving:
            time.sleep(0.001)
            yield
        for _ in range(3):
            yield
        left.append(ctx.index)

    crew = Crew(on="thread")
    role = crew.add(drains, n=3, drain=True)
    crew.start()
    crew._seats["drains"].size.ask(1)
    crew._resize(role)
    assert crew.count(role) == 1
    until(crew, None, lambda: crew._seats["drains"].size.get() == 1)
    assert sorted(left) == [1, 2]
    crew.stop()


def test_dials_share_the_places_of_a_crew():
    crew = Crew()
    one, two = (crew.add(schedule, n=2, name=name, dials=()) for name in ("one", "two"))
    for low, high in ((0, 4), (3, 4), (1, 1), (1, 2049)):
        with pytest.raises(UserError, match=f"dial of one: {low} to {high} must include 2"):
            crew.dial(one, low, high)
    crew.dial(one, 1, 2024)
    with pytest.raises(UserError, match="30: must be at most 24; a run has at most 2048 workers"):
        crew.dial(two, 1, 30)

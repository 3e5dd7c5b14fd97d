"""GA3C's scheduler: its rule as published, its worker, and roles as dials."""

from __future__ import annotations

import functools
import json
import random
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.errors import UserError
from polyplay.core.worker import Adjustable, Counters, RunControl, WorkerContext
from polyplay.runs.session import Session
from polyplay.workers.autoscale import (
    ConfigTrial,
    Decision,
    annealing,
    decision_row,
    describe_decision,
    schedule,
)
from polyplay.workers.crew import Crew

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


def test_cold_annealing_keeps_only_what_rose():
    trials = drive(annealing(START, BOUNDS, 1, temperature=0.0), [100, 90, 95, 110, 105])
    decided = [t.decided for t in trials[2:]]
    assert {t.measure for t in trials} == {60.0}
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


def worker(said: list) -> WorkerContext:
    ctx = WorkerContext("schedule", 0, 1, 0, 0, Counters(4), RunControl(), patience=0.0)
    ctx.log = lambda kind, text: said.append((kind, json.loads(text)))
    return ctx


class World:
    """Dials that arrive `delay` seconds after they were asked, a clock that goes on by a tenth of a second a turn."""

    def __init__(self, delay: float, ctx: WorkerContext, start: int = 2):
        self.now, self.n, self.asked, self.since, self.delay, self.ctx = 0.0, start, start, 0.0, delay, ctx
        self.asks: list[int] = []
        self.dial = Adjustable("agents", 1, 8, self.get, self.set)

    def get(self) -> int:
        if self.now >= self.since + self.delay:
            self.n = self.asked
        return self.n

    def set(self, n: int) -> None:
        self.asks.append(n)
        self.asked, self.since = n, self.now

    def turn(self) -> None:
        self.now += 0.1
        self.ctx.counters.add("updates", 1.0 * self.get())


def fixed(trials, seen):
    """A rule that runs these trials, then the last one for good."""

    def rule(start, bounds, seed):
        seen.append((start, bounds, seed))
        while True:
            seen.append((yield trials.pop(0) if len(trials) > 1 else trials[0]))

    return rule


def run(world: World, rule, seconds: float, **how) -> None:
    turns = schedule(world.ctx, dials=[world.dial], rule=rule, clock=lambda: world.now, **how)
    while world.now < seconds:
        next(turns)
        world.turn()


def test_a_trial_is_asked_awaited_and_counted():
    seen: list = []
    world = World(1.0, worker([]))
    run(world, fixed([ConfigTrial({"agents": 2}, 2.0), ConfigTrial({"agents": 5}, 2.0)], seen), 12.0)
    assert seen[0] == ({"agents": 2}, {"agents": (1, 8)}, 0)
    assert seen[1] == pytest.approx(20.0)
    assert seen[2] == pytest.approx(50.0), "counted only with all five there"
    assert world.asks == [5], "numbers that stand are not asked again"


def test_a_dial_that_never_arrives_holds_nobody_up():
    said: list = []
    decided = Decision({"agents": 2}, {"agents": 5}, 10.0, 20.0, True, "better")
    trials = [
        ConfigTrial({"agents": 2}, 1.0),
        ConfigTrial({"agents": 5}, 1.0),
        ConfigTrial({"agents": 5}, 1.0, decided),
    ]
    seen: list = []
    run(World(1e9, worker(said)), fixed(trials, seen), 20.0, arrive=3.0)
    assert len(seen) > 10
    assert said[0] == ("decision", {**decision_row(decided), "late": ["agents"]})
    assert [kind for kind, _ in said[1:]] == ["decision"] * len(said[1:])
    assert said[1][1]["late"] == []


@pytest.mark.parametrize("delay", [0.0, 0.5, 1e9])
def test_the_rule_finds_the_best_number_or_lives_with_what_it_gets(delay):
    said: list = []
    world = World(delay, worker(said), start=1)
    run(world, functools.partial(annealing, interval=1.0, temperature=0.0), 120.0, arrive=1.0)
    assert said
    if delay < 1.0:
        assert [told["to"] for _, told in said if told["kept"]][-1] == {"agents": 8}
    assert all(1 <= n <= 8 for n in world.asks)


def test_a_decision_in_a_line():
    numbers = {"agents": 8, "trainers": 2}
    decided = Decision(numbers, {**numbers, "agents": 16}, 812.3, 1204.0, True, "better")
    assert describe_decision(decision_row(decided)) == "schedule: agents 8 → 16: 812.3 → 1204, kept (better)"
    worse = Decision(numbers, {**numbers, "agents": 16}, 812.3, 12.0, False, "worse")
    assert describe_decision(decision_row(worse, ["agents"])) == (
        "schedule: agents 8 → 16: 812.3 → 12, taken back (worse); agents had not arrived"
    )


def test_a_run_writes_a_decision_down_and_says_it():
    rows, lines = [], []
    decision = decision_row(Decision({"act": 1}, {"act": 2}, 10.0, 30.0, True, "better"))
    session = SimpleNamespace(
        reporter=SimpleNamespace(decision=lambda *told: rows.append(told) or told[0]),
        terminal=SimpleNamespace(note=lines.append),
        metrics=SimpleNamespace(steps=40, updates=2),
    )
    Session.log(session, "decision", json.dumps(decision))
    assert rows == [(decision, 40, 2)]
    assert lines == ["schedule: act 1 → 2: 10 → 30, kept (better)"]


# ------------------------------------------------------------------------------------------------- roles as dials
def busy(ctx):
    while True:
        ctx.counters.add("updates", 1.0)
        time.sleep(ctx.patience / 100.0)
        yield


def until(crew: Crew, true, seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        crew.poll(0.01)
    return bool(true())


def test_a_role_is_scheduled_in_one_thread():
    """Time is a number of turns here, so this is the same every time."""
    turns = iter(range(10**9))
    made, said = [0.0], list[dict]()

    def together(ctx):
        """Each of up to four brings 100 updates a turn, more are in each other's way."""
        while True:
            made[0] += 100.0 if ctx.index < 4 else -30.0
            ctx.counters.set("updates", made[0])
            yield

    crew = Crew(serial=True, log=lambda kind, text: said.append(json.loads(text)))
    role = crew.add(together, n=1)
    rule = functools.partial(annealing, interval=40.0, temperature=0.0)
    crew.add(schedule, dials=[crew.dial(role, 1, 8)], rule=rule, arrive=1e12, clock=lambda: float(next(turns)))
    crew.start()
    assert until(crew, lambda: len(said) > 12)
    crew.stop()
    assert [d["to"] for d in said if d["kept"]][-1] == {"together": 4}


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
    role.size.ask(1)
    crew._resize(role)
    assert role.n == 1
    assert until(crew, lambda: role.size.get() == 1)
    assert sorted(left) == [1, 2]
    crew.stop()


def test_hundreds_of_changes_leave_nothing_behind():
    """Seats and rows of the meter are used again; a seat that is not empty yet is waited for."""
    began: list = []

    def lives(ctx):
        began.append((ctx.index, ctx.row, ctx.incarnation))
        while True:
            time.sleep(0.001)
            yield

    crew = Crew(on="thread")
    before = set(threading.enumerate())  # some of an earlier test may still be about to end
    role = crew.add(lives, n=2)
    crew.dial(role, 1, 8)
    crew.start()
    rng = random.Random(0)
    for _ in range(300):
        role.size.ask(rng.randint(1, 8))
        crew.poll(0.001)
    role.size.ask(3)
    assert until(crew, lambda: role.size.get() == 3)
    assert until(crew, lambda: len(set(threading.enumerate()) - before) == 3), "those that left have ended"
    crew.stop()
    assert len({row for _, row, _ in began}) == len({index for index, _, _ in began}) <= 8
    assert len(set(began)) == len(began), "nobody repeats another one's past"


def test_a_process_that_leaves_is_not_lost():
    said: list = []
    crew = Crew(log=lambda kind, text: said.append(text))
    role = crew.add(busy, n=2, on_loss="replace")
    crew.start()
    assert until(crew, lambda: crew.counters.column("updates")[:2].all())
    role.size.ask(1)
    assert until(crew, lambda: role.size.get() == 1)
    role.size.ask(2)
    crew._resize(role)
    before = crew.counters.column("updates")[1]
    assert until(crew, lambda: crew.counters.column("updates")[1] > before)
    crew.stop()
    assert (said, role.lost) == ([], 0)


@pytest.mark.parametrize(("low", "high"), [(0, 4), (3, 4), (1, 1), (1, 2049)])
def test_a_dial_has_room_for_what_the_role_has(low, high):
    crew = Crew()
    role = crew.add(busy, n=2)
    with pytest.raises(UserError, match=f"dial of busy: {low} to {high} given for 2 workers"):
        crew.dial(role, low, high)


def test_dials_share_the_places_of_a_crew():
    crew = Crew()
    one, two = crew.add(busy, n=2, name="one"), crew.add(busy, n=2, name="two")
    crew.dial(one, 1, 2024)
    with pytest.raises(UserError, match="30 given, allowed: at most 24; a run has at most 2048 workers"):
        crew.dial(two, 1, 30)


def test_it_waits_until_something_was_trained():
    ctx = worker([])
    world = World(0.0, ctx)
    turns = schedule(ctx, dials=[world.dial], clock=lambda: world.now)
    for _ in range(50):
        next(turns)
        world.now += 0.1
    assert world.asks == []

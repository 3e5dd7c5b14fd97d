"""Mirrors of weights, counters and cells, driven by hand in one process: no link, no machine."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.core.errors import Closed
from polyplay.core.shared_memory import Semaphores
from polyplay.core.worker import EPISODES, Counters, Hyperparameters, HyperparameterSchedule, RunControl, SchedulePoint
from polyplay.weights.params import Params
from polyplay.workers.hosts import weight_mirrors
from polyplay.workers.hosts.mirrors import COUNTS, GAME, CellsMirror, CountersMirror, HyperparametersMirror, RemoteSeat
from polyplay.workers.hosts.weight_mirrors import ParamsMirror
from tests.workers.hosts.by_hand import Pair, Vector, forget


@pytest.fixture(autouse=True)
def _machine():
    """Each test has a machine with no twins yet."""
    forget()


class TestParams:
    def test_no_more_weights_go_out_than_a_line_carries_but_to_who_waits(self):
        params = Params(5)
        pair = Pair(ParamsMirror(params))
        pair.seat(0, end="params")
        there, each = pair.away.params, 20 / weight_mirrors.RATE  # seconds of 20 bytes
        for version, now, sent in ((0, 0.0, 0), (1, 0.5, 0), (2, 0.9, 0), (3, 1.0, 3), (4, np.inf, 4), (5, 1.9, 4)):
            params.publish(Vector([float(version)] * 5), version, version)
            pair.out(now * each)
            assert there.version == sent
        there._waiting[0] = 1
        pair.back()
        pair.out(1.9 * each)
        assert there.version == 5

    def test_who_begins_to_wait_elsewhere_wakes_the_link(self):
        params = Params(5)
        pair = Pair(ParamsMirror(params))
        pair.seat(0, end="params")
        there = pair.away.params
        bell = there._bells.relays[pair.away.relay]
        while bell.wait(0.0):
            pass
        assert not there.wait(0, 0, 0.001)
        assert bell.wait(0.0)
        assert not params._bells[1].wait(0.0)


def test_what_is_scheduled_is_its_learners_own_and_what_remains_of_the_run_comes_from_there():
    hyper = Hyperparameters(learning_rate=1.0, entropy_cost=0.1, remaining=1.0)
    hyper.schedules = (HyperparameterSchedule("entropy_cost", (SchedulePoint(0.2, 0.0, True),)),)
    pair = Pair(HyperparametersMirror(hyper))
    for side in (pair.home, pair.away):
        side.sit(RemoteSeat(0, 2, (0,), "learn"))
    pair.away.thing.keep_to_schedules(0.0, 1.0)
    pair.away.thing.set("remaining", 0.3)
    pair.home.thing.set("learning_rate", 0.5)
    pair.back()
    pair.out()
    assert pair.away.thing.all() == {"learning_rate": 0.5, "entropy_cost": 0.2, "remaining": 0.3}
    assert pair.home.thing.all() == {"learning_rate": 0.5, "entropy_cost": 0.1, "remaining": 0.3}


class TestCounters:
    def test_counts_and_new_games_come_home_once(self):
        counters = Counters(3, ("loss",))
        pair = Pair(CountersMirror(counters))
        counters.row(2).add("steps", 100)
        pair.seat(0, row=2)
        there = pair.away.counters.row(2)
        assert there.get("steps") == 100
        for i in range(100):
            there.add("steps", 8)
            there.episode(float(i), 10.0, 3)
        there.add("stamps", 1)
        pair.back()
        here = counters.row(2)
        assert here.get("steps") == 900
        assert here.get("episodes") == 100
        assert here.games[:100, 0].tolist() == list(range(100))
        there.episode(7.0, 1.0, 0)
        frames = [(part, i) for part, i, _ in pair.away.changes(np.inf)]
        assert frames == [(GAME, 2 * EPISODES + 100), (COUNTS, 2)], "the game before it is counted"

    def test_counts_that_say_a_part_is_written_name_whose(self):
        pair = Pair(CountersMirror(Counters(2)))
        pair.seat(5, row=1)
        theirs = pair.away.counters.row(1)

        def sent() -> list[str | None]:
            """What each frame is asked, once it has left."""
            return [pair.away.answers(part, i) for part, i, _ in pair.away.changes(np.inf)]

        theirs.episode(1.0, 1.0, 0)
        assert sent() == [None, None]
        theirs.set("saved", 7.0)
        assert sent() == ["act-5"]


def test_cells_go_out_when_they_change():
    control = RunControl()
    pair = Pair(CellsMirror(control, "_flags"))
    pair.out()
    assert list(pair.home.changes(0.0)) == []
    control.halt()
    pair.out()
    with pytest.raises(Closed):
        pair.away.thing.check()


def test_a_bell_of_who_waits_elsewhere_rings_the_link():
    links, bells = Semaphores(2), Semaphores(3)
    bells.relay_by(links)
    bells[1].relay(1)
    bells[1].post()
    bells[0].post()
    assert (links[1].wait(0), links[0].wait(0), bells[1].wait(0), bells[0].wait(0)) == (True, False, False, True)
    bells[1].relay(None)
    bells[1].post()
    assert bells[1].wait(0)

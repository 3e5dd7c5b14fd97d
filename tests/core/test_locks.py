"""A place is one worker's at a time, thread or process, and is free again when its holder dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from polyplay.core import shared_memory
from polyplay.core.shared_memory import NOBODY, RobustLocks, SharedBlock

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")


@pytest.fixture(params=["own", "elsewhere"])
def either(request, monkeypatch) -> Any:
    """Linux's locks, of an open file; and a process's with one for its threads, as other systems have."""
    if request.param == "elsewhere":
        monkeypatch.setattr(shared_memory, "_SET", None)
    return FORK  # whose children have the same


def test_what_one_took_no_other_gets_until_it_is_given_back(either):
    places = RobustLocks(2)
    one, two = places.join(7), places.join(8)
    assert places.holder(0) == NOBODY
    assert one.acquire(0)
    assert not two.acquire(0)
    assert two.acquire(1), "places are claimed one by one"
    assert (places.holder(0), places.holder(1)) == (7, 8)
    one.release(0)
    assert places.holder(0) == NOBODY
    assert two.acquire(0)
    assert not one.acquire(0)
    assert places.holder(0) == 8


def _count(places: RobustLocks, block: SharedBlock, who: int, times: int) -> None:
    """Each place's number one up, read and written apart; at once a second worker in it would lose some."""
    mine, numbers, inside = places.join(who), block.array(2, np.int64), block.array(2, np.int64, 16)
    done = [0, 0]
    while min(done) < times:
        for place in (0, 1):
            if done[place] < times and mine.acquire(place):
                number = int(numbers[place])
                inside[place] += 1
                time.sleep(1e-5)
                assert inside[place] == 1, "somebody else is here"
                inside[place] -= 1
                numbers[place] = number + 1
                done[place] += 1
                mine.release(place)


def test_threads_are_never_in_one_place_together(either):
    places, block = RobustLocks(2), SharedBlock(64)
    threads = [threading.Thread(target=_count, args=(places, block, i, 100)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert block.array(2, np.int64).tolist() == [300, 300]


def test_nor_are_processes(either):
    places, block = RobustLocks(2), SharedBlock(64)
    workers = [either.Process(target=_count, args=(places, block, i, 100)) for i in range(2)]
    for w in workers:
        w.start()
    _count(places, block, 2, 100)
    for w in workers:
        w.join(60)
    assert [w.exitcode for w in workers] == [0, 0]
    assert block.array(2, np.int64).tolist() == [300, 300]


def _hold(places: RobustLocks, who: int, end: Any) -> None:
    mine = places.join(who)
    end.send((mine.acquire(0), mine.acquire(1)))
    time.sleep(600)


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_who_is_killed_holds_nothing(how):
    """A real process in the middle of it; `holder` tells who it was."""
    places = RobustLocks(2)
    mine = places.join(1)
    assert mine.acquire(1)
    context = {"spawn": SPAWN, "fork": FORK}[how]
    here, there = context.Pipe()
    worker: Any = context.Process(target=_hold, args=(places, 5, there), daemon=True)
    worker.start()
    try:
        assert here.poll(60)
        assert here.recv() == (True, False), "place 1 is ours"
        assert not mine.acquire(0)
        assert places.holder(0) == 5
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        worker.join(60)
    assert places.holder(0) == 5, "the dead one is still named"
    assert mine.acquire(0)
    assert places.holder(0) == 1


def test_an_end_that_is_dropped_holds_nothing():
    places = RobustLocks(1)
    one, two = places.join(0), places.join(1)
    assert one.acquire(0)
    del one
    assert two.acquire(0)

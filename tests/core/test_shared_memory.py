"""Memory and numbers that workers share."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from polyplay.core.shared_memory import NOBODY, Layout, Ring, RobustLocks, Semaphores, SharedBlock
from polyplay.core.worker import LAGS, Counters, Hyperparameters, RunControl
from polyplay.workers.process import CloudPickled
from tests import leftovers

forkserver = multiprocessing.get_context("forkserver")


def _child(cargo, pipe):
    block, bells, hyperparameters, counters, control = cargo
    bells[0].wait(100)
    block.array(4, np.float64)[1] = 7.0
    hyperparameters.set("rate", 2.5)
    counters.row(1).add("steps", 3)
    counters.row(1).lag(np.array([0, 2, 100]))
    counters.row(1).episode(21.0, 1500, 4)
    control.save()
    bells[1].post()
    pipe.send("written")


def test_a_process_sees_the_same_memory():
    block, bells, hyperparameters, counters, control = (
        SharedBlock(4096),
        Semaphores(2),
        Hyperparameters(rate=1.0),
        Counters(2, ("loss",)),
        RunControl(),
    )
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = forkserver.Process(
        target=_child, args=(CloudPickled((block, bells, hyperparameters, counters, control)), theirs)
    )
    process.start()
    theirs.close()
    bells[0].post()
    assert ours.recv() == "written"
    assert bells[1].wait(100)
    process.join()
    assert block.array(4, np.float64).tolist() == [0.0, 7.0, 0.0, 0.0]
    assert hyperparameters.rate == 2.5
    assert counters.column("steps").tolist() == [0.0, 3.0]
    assert counters.lags[1][[0, 2, LAGS - 1]].tolist() == [1, 1, 1]
    assert counters.column("lag_max")[1] == 100
    assert counters.games[1, 0, :3].tolist() == [21.0, 1500.0, 4.0]
    assert control.saves == 1


def test_semaphore_counts_tokens_and_gives_up_in_time():
    bells = Semaphores(1)
    bells[0].post(2)
    assert bells[0].wait(0)
    assert bells[0].wait(0)
    before = time.monotonic()
    assert not bells[0].wait(0.05)
    assert time.monotonic() - before >= 0.04


def test_semaphore_wakes_a_waiting_thread():
    bells, woke = Semaphores(1), threading.Event()
    thread = threading.Thread(target=lambda: bells[0].wait(100) and woke.set())
    thread.start()
    bells[0].post()
    assert woke.wait(60)
    thread.join()


def test_ring_keeps_order_over_many_turns_and_refuses_to_overflow():
    ring, use = Ring(np.zeros(Ring.cells(3), np.int64)), np.zeros(50, np.int64)
    got = []
    for i in range(50):
        ring.put(i)
        if i % 2:
            got += [ring.take(use, 7), ring.take(use, 7)]
    assert got == list(range(50))
    assert (use == 7).all()
    assert ring.take(use, 7) is None
    for i in range(3):
        ring.put(i)
    with pytest.raises(RuntimeError, match="overflow"):
        ring.put(3)
    assert ring.peek() == [0, 1, 2]
    assert len(ring) == 3


def test_layout_keeps_fields_apart_and_aligned():
    layout = Layout()
    fields = [layout.add((3,), np.uint8), layout.add((2, 2), np.float64), layout.add(1, np.int64)]
    block = layout.block()
    arrays = [block.array(*f) for f in fields]
    for i, a in enumerate(arrays):
        a[...] = i + 1
    assert [int(a.min()) for a in arrays] == [int(a.max()) for a in arrays] == [1, 2, 3]
    assert all(f[2] % 64 == 0 for f in fields)


def test_blocks_leave_neither_files_nor_descriptors():
    before, there = len(os.listdir("/proc/self/fd")), leftovers.names()
    for _ in range(20):
        SharedBlock(1 << 16).array(8, np.uint8)[:] = 1
    assert len(os.listdir("/proc/self/fd")) == before
    assert not leftovers.since(there)


def test_knobs_name_what_there_is():
    hyperparameters = Hyperparameters(learning_rate=1e-3, entropy_cost=0.01)
    with pytest.raises(AttributeError, match="no hyperparameter 'lr'; there are: learning_rate, entropy_cost"):
        _ = hyperparameters.lr
    assert hyperparameters.all() == {"learning_rate": 1e-3, "entropy_cost": 0.01}


# A place is one worker's at a time, thread or process, and is free again when its holder dies.


SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")


def test_what_one_took_no_other_gets_until_it_is_given_back():
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


def test_threads_are_never_in_one_place_together():
    places, block = RobustLocks(2), SharedBlock(64)
    threads = [threading.Thread(target=_count, args=(places, block, i, 100)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert block.array(2, np.int64).tolist() == [300, 300]


def test_nor_are_processes():
    places, block = RobustLocks(2), SharedBlock(64)
    workers = [FORK.Process(target=_count, args=(places, block, i, 100)) for i in range(2)]
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

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

from polyplay.core.shared_memory import Ring, RobustLocks, Semaphores, SharedBlock
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


FORK = multiprocessing.get_context("fork")


def test_what_one_took_no_other_gets_until_it_is_given_back():
    block = SharedBlock(2)
    one, two = RobustLocks(block), RobustLocks(block)
    assert one.acquire(0)
    assert not two.acquire(0)
    assert two.acquire(1), "places are claimed one by one"
    one.release(0)
    assert two.acquire(0)
    assert not one.acquire(0)
    del two
    assert one.acquire(0), "an end that is dropped holds nothing"


def _count(block: SharedBlock, times: int) -> None:
    """Each place's number one up, read and written apart; at once a second worker in it would lose some."""
    mine, numbers, inside = RobustLocks(block), block.array(2, np.int64), block.array(2, np.int64, 16)
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


def test_processes_and_threads_are_never_in_one_place_together():
    block = SharedBlock(64)
    workers: list[Any] = [kind(target=_count, args=(block, 100)) for kind in (FORK.Process, threading.Thread)]
    for w in workers:
        w.start()
    _count(block, 100)
    for w in workers:
        w.join(60)
    assert workers[0].exitcode == 0
    assert block.array(2, np.int64).tolist() == [300, 300]


def _hold(block: SharedBlock, end: Any) -> None:
    mine = RobustLocks(block)
    end.send((mine.acquire(0), mine.acquire(1)))
    time.sleep(600)


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_who_is_killed_holds_nothing(how):
    """A real process in the middle of it."""
    block = SharedBlock(2)
    mine = RobustLocks(block)
    assert mine.acquire(1)
    context: Any = multiprocessing.get_context(how)
    here, there = context.Pipe()
    worker = context.Process(target=_hold, args=(block, there), daemon=True)
    worker.start()
    try:
        assert here.poll(60)
        assert here.recv() == (True, False), "place 1 is ours"
        assert not mine.acquire(0)
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        worker.join(60)
    assert mine.acquire(0)

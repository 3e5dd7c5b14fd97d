"""Memory and numbers that workers share."""

from __future__ import annotations

import multiprocessing
import os
import time

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


def test_a_ring_takes_several_with_one_token_and_gives_all_that_are_there():
    bells = Semaphores(1)
    ring, got = Ring(np.zeros(Ring.cells(5), np.int64), bells[0]), []
    for i in range(20):
        ring.put_all([3 * i, 3 * i + 1, 3 * i + 2])
        assert bells[0].wait(0)
        assert not bells[0].wait(0)
        got += ring.take_all()
    assert got == list(range(60))
    assert ring.take_all() == []
    ring.put(-1)
    with pytest.raises(RuntimeError, match="overflow"):
        ring.put_all(range(5))
    assert ring.take_all() == [-1]


def test_blocks_leave_neither_files_nor_descriptors():
    before, there = len(os.listdir("/proc/self/fd")), leftovers.names()
    for _ in range(20):
        SharedBlock(1 << 16).array(8, np.uint8)[:] = 1
    assert len(os.listdir("/proc/self/fd")) == before
    assert not leftovers.since(there)


# A place is one worker's at a time, thread or process, and is free again when its holder dies.


FORK = multiprocessing.get_context("fork")


def test_what_one_took_no_other_gets_until_it_is_given_back():
    blocks = [SharedBlock(1), SharedBlock(1)]
    one, two = RobustLocks(blocks), RobustLocks(blocks)
    assert one.acquire(0)
    assert not two.acquire(0)
    assert two.acquire(1), "places are claimed one by one"
    one.release(0)
    assert two.acquire(0)
    assert not one.acquire(0)
    del two
    assert one.acquire(0), "an end that is dropped holds nothing"

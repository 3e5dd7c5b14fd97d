"""Memory and numbers that workers share."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

import numpy as np
import pytest

from polyplay.core.shared_memory import Layout, Ring, Semaphores, SharedBlock
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


@pytest.mark.parametrize("named", [False, True])
def test_a_process_sees_the_same_memory(named):
    block, bells, hyperparameters, counters, control = (
        SharedBlock(4096),
        Semaphores(2, named),
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

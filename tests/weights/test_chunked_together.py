"""A central vector in chunks while several workers really are at it: nothing is lost, nobody is kept waiting."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np

from polyplay.weights.hogwild import Chunked
from polyplay.weights.params import param_sizes
from tests.weights.ends import FORK, PLAIN, Wide, finish, me


def _work(update: Chunked, index: int, times: int, control: Any = None) -> float:
    """`times` updates by +1·(index+1)·lr/ε; seconds that it waited for a chunk."""
    ctx = me(index, update.workers)
    vector = update.vector(ctx, Wide())
    bound: Any = update.bind(ctx, vector)
    bound.counts.begin(0, 0.0)
    while not bound.counts.ready:
        time.sleep(0.001)
    bound.counts.newest()
    for _ in range(times):
        vector.grad.fill_(-(index + 1.0))
        finish(bound(1.0, np.zeros(3)))
        bound.counts.add(2)
    return bound.waited


def _all_there(update: Chunked, times: list[int]) -> None:
    central, counters, done = update.shared, update.counters[:, :2], update.done
    assert done.tolist() == [sum(times)] * update.chunks, "every chunk had every update"
    assert counters[:, 0].tolist() == times
    want = sum((i + 1.0) * n for i, n in enumerate(times)) / 1e6
    np.testing.assert_allclose(central, want, rtol=2e-3)


def test_no_update_of_threads_is_lost():
    update = Chunked(PLAIN, *param_sizes(Wide()), 3)
    threads = [threading.Thread(target=_work, args=(update, i, 150)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads)
    _all_there(update, [150, 150, 150])


def test_no_update_of_processes_is_lost():
    update = Chunked(PLAIN, *param_sizes(Wide()), 2)
    worker = FORK.Process(target=_work, args=(update, 1, 300))
    worker.start()
    _work(update, 0, 300)
    worker.join(60)
    assert worker.exitcode == 0
    _all_there(update, [300, 300])


def _die(update: Chunked, index: int) -> None:
    """Updates until it is killed in the middle of a chunk."""
    ctx = me(index, update.workers)
    vector = update.vector(ctx, Wide())
    bound: Any = update.bind(ctx, vector)
    bound.counts.newest()
    bound.optimizers[1].step = lambda: time.sleep(600)
    vector.grad.fill_(-1.0)
    finish(bound(1.0, np.zeros(3)))


def test_a_worker_that_is_killed_in_a_chunk_keeps_it_from_nobody():
    update = Chunked(PLAIN, *param_sizes(Wide()), 2)
    _work(update, 0, 5)
    worker = FORK.Process(target=_die, args=(update, 1), daemon=True)
    worker.start()
    try:
        until = time.monotonic() + 60
        while update.locks.holder(1) != 1:
            assert time.monotonic() < until
            time.sleep(0.005)
        mine = update.locks.join(0)
        assert not mine.acquire(1)
    finally:
        os.kill(worker.pid or 0, signal.SIGKILL)
        worker.join(60)
    _work(update, 0, 5)
    counters, done = update.counters[:, :2], update.done
    assert done.tolist() == [10, 10, 10], "it was in its first chunk, number 1"
    assert counters[:, 0].tolist() == [10, 0]
    _work(update, 1, 5)  # who takes its place
    assert done.tolist() == [15] * 3

"""The training queue: bounded, first in first out, nothing lost or given twice, whoever asks and whenever it closes."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from polyplay.buffers.rollout_queue import TrainingQueue
from polyplay.core.errors import Closed
from polyplay.core.tree import Field
from polyplay.learning.loop import Chunks

ROWS = {"obs": Field((2,), "uint8"), "reward": Field((), "float32"), "first": Field((), "bool")}


def queue(agents: int = 3, capacity: int = 4, T: int = 5) -> TrainingQueue:
    made = TrainingQueue(ROWS, {"h": Field((3,), "float32")}, T, agents, capacity)
    made.patience = 0.0
    return made


def put(q: TrainingQueue, value: float, length: int) -> None:
    slot = q.slot()
    assert slot is not None
    q.rows["reward"][slot] = value
    q.state["h"][slot] = value
    q.commit(slot, length)


def test_batches_are_the_oldest_chunks_that_make_the_rows_asked_for():
    q = queue(capacity=11)
    for i, length in enumerate((5, 5, 3, 5, 1)):
        put(q, float(i), length)
    batches = Chunks(q, 11)
    take = batches.consumer()
    rows, state = next(take)
    assert rows["obs"].shape == (6, 3, 2)
    assert rows["reward"][0].tolist() == [0.0, 1.0, 2.0]
    assert state["h"][:, 0].tolist() == [0.0, 1.0, 2.0]
    assert rows["reward"].flags.c_contiguous
    assert next(take) is None, "6 transitions are left"
    batches.rows = 0
    assert next(take)[0]["reward"][0].tolist() == [3.0], "0 is one chunk"
    assert q.depth == 1


def test_a_full_queue_gives_no_slot_until_a_batch_was_taken():
    q = queue(agents=2, capacity=3)
    for i in range(3):
        put(q, float(i), 5)
    assert q.slot() is None
    take = Chunks(q, 0).consumer()
    next(take)
    assert q.slot() is not None


def test_closing_ends_every_wait():
    for wait in (TrainingQueue.slot, lambda q: q.take(100)):
        q = queue()
        for i in range(q.capacity):
            put(q, i, 1)
        q.patience = 30.0
        threading.Timer(0.05, q.close).start()
        for _ in range(2):  # now, and later
            with pytest.raises(Closed):
                wait(q)


def test_many_threads_lose_nothing_and_give_nothing_twice():
    q = queue(agents=4, capacity=8)
    q.patience = 0.01
    each, learnt, lock = 500, [], threading.Lock()
    left = threading.Event()

    def produce(p: int) -> None:
        rng = np.random.default_rng(p)
        for i in range(each):
            while (slot := q.slot()) is None:
                pass
            q.rows["reward"][slot] = p * each + i
            q.commit(slot, int(rng.integers(1, 6)))

    def consume(rows: int) -> None:
        for batch in Chunks(q, rows).consumer():
            if batch is not None:
                with lock:
                    learnt.extend(batch[0]["reward"][0].tolist())
            elif left.is_set():
                return

    producers = [threading.Thread(target=produce, args=(p,)) for p in range(4)]
    consumers = [threading.Thread(target=consume, args=(rows,)) for rows in (0, 7)]
    for t in producers + consumers:
        t.start()
    for t in producers:
        t.join()
    left.set()
    for t in consumers:
        t.join()
    rest = list(iter(lambda: q.take(0), None))
    learnt += [float(q.rows["reward"][s, 0]) for slots in rest for s in slots]
    assert sorted(learnt) == list(range(4 * each))

"""Rollouts in flight: slots, order, views, and slots of the dead."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.buffers.rollout_queue import ROWS, Collator, RolloutQueue
from polyplay.core import tree
from polyplay.core.errors import Closed
from polyplay.core.tree import Field

SPEC = {"obs": {"x": Field((2,), "float32")}, "action": Field((), "int64"), **ROWS}
STATE = {"h": Field((3,), "float32")}


def _stream(**kw) -> RolloutQueue:
    queue = RolloutQueue(SPEC, STATE, T=4, lanes=2, **kw)
    queue.patience = 0.01
    return queue


def _fill(queue: RolloutQueue, producer, number: int) -> int:
    slot = producer.slot()
    assert slot is not None
    rows = tree.at(producer.rows, slot)
    rows["obs"]["x"][:] = number
    rows["version"][:] = number
    tree.at(producer.state, slot)["h"][:] = number
    producer.commit(slot)
    return slot


def test_one_slot_is_handed_over_as_a_view():
    queue = _stream(slots=2)
    producer, taken = queue.producer(0), queue.batches(1).consumer(0)
    assert next(taken) is None
    slot = _fill(queue, producer, 5)
    rows, state = next(taken)
    assert np.shares_memory(rows["obs"]["x"], queue.rows["obs"]["x"][slot])
    assert rows["obs"]["x"].shape == (5, 2, 2)
    assert state["h"].tolist() == [[5, 5, 5]] * 2


def test_a_successor_gets_back_what_the_dead_one_held():
    queue = _stream(slots=3)
    dead, taken = queue.producer(0), queue.batches(1).consumer(0)
    _fill(queue, dead, 1)
    held = dead.slot()
    successor = queue.producer(0)
    assert next(taken) is not None  # the first slot is being read: not the successor's
    got = {successor.slot(), successor.slot()}
    assert held in got
    assert None not in got
    assert successor.slot() is None


def test_tokens_of_before_do_not_shorten_the_wait_for_a_slot():
    queue = _stream(slots=1)
    producer = queue.producer(0)
    assert producer.slot() == 0
    queue.writer_bell(0).post(3)
    queue.patience = 0.05
    before = time.monotonic()
    assert producer.slot() is None
    assert time.monotonic() - before >= 0.05
    queue.writer_bell(0).post()
    other = threading.Timer(0.01, queue.close)
    other.start()
    queue.patience = 100.0
    with pytest.raises(Closed):
        producer.slot()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.data())
def test_nothing_is_lost_or_doubled_or_out_of_order(producers, share, n, data):
    n = min(n, producers * share)
    queue = _stream(slots=producers * share, producers=producers)
    queue.patience = 0.0
    ends, taken = [queue.producer(p) for p in range(producers)], queue.batches(n).consumer(0)
    sent, got, number = {p: [] for p in range(producers)}, [], 0
    for choice in data.draw(st.lists(st.integers(0, producers), max_size=60)):
        if choice < producers:
            slot = ends[choice].slot()
            if slot is not None:
                rows = tree.at(ends[choice].rows, slot)
                rows["version"][:], rows["action"][:] = number, choice
                ends[choice].commit(slot)
                sent[choice].append(number)
                number += 1
        elif (batch := next(taken)) is not None:
            rows, _ = batch
            got += [(int(rows["action"][0, k]), int(rows["version"][0, k])) for k in range(0, 2 * n, 2)]
    for p in range(producers):
        mine = [v for who, v in got if who == p]
        assert mine == sent[p][: len(mine)]


@pytest.mark.parametrize(
    ("there", "in_turn", "turn", "chosen", "after"),
    [
        ((2, 0, 1), False, 0, [0, 2, 0], 4),  # the next one that has some
        ((2, 0, 1), False, 1, [2, 0, 0], 7),
        ((2, 0, 1), True, 0, [0], 1),  # strictly one after another: the second has none
        ((1, 1, 1), True, 2, [2, 0, 1], 5),
        ((0, 0, 0), False, 5, [], 5),
    ],
)
def test_whose_slots_are_a_batch(there, in_turn, turn, chosen, after):
    queue = _stream(slots=9, producers=3)
    for p, count in enumerate(there):
        for number in range(count):
            _fill(queue, queue.producer(p), number + 1)
    assert queue.depth == sum(there)
    assert queue.batches(3, in_turn)._choose(0, turn) == (chosen, after)


def test_where_consumers_learn_apart_each_goes_on_with_what_it_had():
    """In flight, taken and being read, of every pair, with counts that go on."""
    queue = _apart()
    end = queue.producer(0)
    for to, number in ((0, 1), (1, 2), (1, 3), (0, 4), (2, 5)):
        slot = end.slot()
        assert slot is not None
        queue.rows["version"][slot] = number
        end.commit(slot, to=to)
    for c in (0, 1):
        next(queue.batches(1).consumer(c))
    saved, flight = end.save(), end.flight()
    assert saved["taken"].tolist() == saved["reading"].tolist() == [1, 1, 0]
    other = _apart()
    new = other.producer(0)
    new.load(saved, flight)
    assert [new.made(c) for c in range(3)] == [2, 2, 1] == [end.made(c) for c in range(3)]
    assert new.committed == end.committed == 5
    assert [x.tolist() for x in new.save().values()] == [x.tolist() for x in saved.values()]
    free = 0
    while new.slot() is not None:
        free += 1
    assert free == 8 - 5, "three in flight and two that are being read"
    for c, number in ((0, 4), (1, 3), (2, 5)):
        rows, _ = next(other.batches(1).consumer(c))
        assert rows["version"][0, 0] == number


def _apart() -> RolloutQueue:
    queue = RolloutQueue(SPEC, {}, T=2, lanes=2, slots=8, producers=1, consumers=3, per_agent=True)
    queue.patience = 0.0
    return queue


def test_rollouts_of_one_agent_are_copied_as_they_come_and_their_slots_are_free_at_once():
    queue = _apart()
    end, taken, found = queue.producer(0), queue.batches(2).consumer(1), []
    for number in (3, 4, 5):
        slot = end.slot()
        queue.rows["version"][slot] = number
        end.commit(slot, to=1)
        found.append(next(taken))
    assert found[0] is found[2] is None
    assert queue.turns.tolist() == [0, 3, 0]


def test_slots_of_a_batch_that_wait_for_others_are_kept():
    queue = _apart()
    queue.rows["reward"][:] = np.arange(8)[:, None, None]
    join, other = (Collator(queue.rows, queue.state, 2, 3) for _ in range(2))
    assert join.save() == {}
    for place, slot in enumerate((5, 2)):
        join.put(place, slot)
        join.placed += 1
    other.load(tree.map(np.array, join.save()))
    other.put(other.placed, 7)
    assert other.joined[0]["reward"][0].tolist() == [5, 5, 2, 2, 7, 7]


def test_batches_can_be_ordered_by_a_log():
    queue = _stream(slots=6, producers=2)
    ends, batches = [queue.producer(p) for p in range(2)], queue.batches(2)
    log = [[1, 1], [0, 1]]
    batches.order = lambda c, turn: log[turn // 2]
    heard = []
    taken = batches.consumer(0, heard.append)
    for number in (1, 2):
        _fill(queue, ends[0], number)
    _fill(queue, ends[1], 3)
    assert next(taken) is None
    _fill(queue, ends[1], 4)
    assert next(taken)[0]["version"][0].tolist() == [3, 3, 4, 4]
    assert next(taken) is None
    _fill(queue, ends[1], 5)
    assert next(taken)[0]["version"][0].tolist() == [1, 1, 5, 5]
    assert [[s // queue.share for s in slots] for slots in heard] == log

"""Drawn batches and their priorities: each comes whole, once, and goes back to who drew it, whoever dies meanwhile."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.buffers.replay import Replay
from polyplay.buffers.replay_worker import SampleQueue
from polyplay.buffers.rollout_queue import ROWS, RolloutQueue
from polyplay.core.errors import Closed
from polyplay.core.tree import Field

SPEC: Any = {"obs": {"x": Field((3,), "float32")}, "action": Field((), "int64"), **ROWS}


def trays_of(memories: int = 2, learners: int = 1, depth: int = 2, batch: int = 4) -> SampleQueue:
    queue = RolloutQueue(SPEC, {}, T=2, lanes=1, slots=2 * memories, producers=memories, consumers=memories)
    made = SampleQueue(Replay(SPEC, 1, capacity=50, batch=batch), queue, learners, depth)
    made.patience = 0.0
    return made


def draw(number: int) -> Any:
    """As a memory's sample that consists of one number."""

    def fill(item: Any) -> None:
        item["obs"]["x"][:] = number
        item["id"][:] = number

    return fill


def test_a_batch_crosses_in_place_and_its_priorities_come_back():
    samples = trays_of(memories=1)
    filler, taker = samples.writer(0), samples.reader(0)
    batches = taker.batches()
    assert next(batches) is None
    assert list(filler.back()) == []  # all are empty at first
    filler.fill(draw(7))
    assert (samples.depth, filler.away) == (1, 1)
    tray = next(batches)
    item = samples.item(tray)
    assert item["obs"]["x"].shape == (2, 4, 3)
    assert item["id"].tolist() == [7] * 4
    assert np.shares_memory(item["obs"]["x"], samples._items["obs"]["x"])
    taker.give(tray, np.arange(4.0))
    ((ids, priority),) = filler.back()
    assert (ids.tolist(), priority.tolist()) == ([7] * 4, [0, 1, 2, 3])
    assert (samples.depth, filler.away) == (0, 0)


def test_an_item_has_what_its_replay_says():
    item = trays_of().item(0)
    assert set(item) == {"obs", "action", "version", "agent", "first", "return", "discount", "weight", "id"}
    assert (item["first"].shape, item["first"].dtype, item["id"].shape, item["id"].dtype) == (
        (2, 4),
        bool,
        (4,),
        "int64",
    )


@settings(max_examples=40, deadline=None)
@given(
    memories=st.integers(1, 3),
    learners=st.integers(1, 3),
    depth=st.integers(1, 3),
    moves=st.lists(st.tuples(st.sampled_from("ftgb"), st.integers(0, 2)), max_size=80),
)
def test_any_order_of_moves_is_that_of_plain_queues(memories, learners, depth, moves):
    samples = trays_of(memories, learners, depth)
    fillers, takers = [samples.writer(m) for m in range(memories)], [samples.reader(c) for c in range(learners)]
    batches = [t.batches() for t in takers]
    for filler in fillers:
        assert list(filler.back()) == []
    full: Any = [[deque() for _ in range(learners)] for _ in range(memories)]
    back: Any = [[deque() for _ in range(learners)] for _ in range(memories)]
    held: Any = [deque() for _ in range(learners)]
    number, away = 0, [0] * memories
    for move, who in moves:
        m, c = who % memories, who % learners
        if move == "f" and fillers[m].empty:
            number += 1
            c = fillers[m].empty[0] // depth % learners
            fillers[m].fill(draw(number))
            full[m][c].append(number)
            away[m] += 1
        elif move == "t":
            tray = next(batches[c])
            there = {m for m in range(memories) if full[m][c]}
            assert (tray is not None) == bool(there)
            if tray is not None:
                found = int(samples.item(tray)["id"][0])
                (m,) = [m for m in there if full[m][c][0] == found]
                full[m][c].popleft()
                held[c].append((m, tray, found))
        elif move == "g" and held[c]:
            m, tray, found = held[c].popleft()
            takers[c].give(tray, np.full(4, float(found)))
            back[m][c].append(found)
        elif move == "b":
            told = [(int(i[0]), float(p[0])) for i, p in fillers[m].back()]
            want = [n for ring in back[m] for n in ring]
            assert told == [(n, float(n)) for n in want]
            away[m] -= len(want)
            back[m] = [deque() for _ in range(learners)]
    for m in range(memories):
        assert fillers[m].away == away[m] <= learners * depth


def test_memories_are_taken_from_in_turn_and_one_that_has_nothing_is_passed_over():
    samples = trays_of(memories=3, depth=3)
    fillers, batches = [samples.writer(m) for m in range(3)], samples.reader(0).batches()
    for m, filler in enumerate(fillers):
        list(filler.back())
        for k in range(3 if m != 1 else 1):
            filler.fill(draw(10 * m + k))
    found = [int(samples.item(next(batches))["id"][0]) for _ in range(7)]
    assert found == [0, 10, 20, 1, 21, 2, 22]


def test_what_a_lost_memory_was_filling_is_nobodys_and_what_it_drew_is_judged_by_nobody():
    samples = trays_of(memories=1, depth=2)
    filler, taker = samples.writer(0), samples.reader(0)
    batches = taker.batches()
    list(filler.back())
    filler.fill(draw(1))
    samples.item(filler.empty[0])["id"][:2] = 99  # killed in the middle of its next one
    new = samples.writer(0, by=1)
    assert len(new.empty) == 1
    tray = next(batches)
    assert samples.item(tray)["id"].tolist() == [1] * 4
    assert next(batches) is None, "a half-filled tray is never taken"
    taker.give(tray, np.ones(4))
    assert list(new.back()) == [], "its ids belong to another memory"
    assert len(new.empty) == 2
    new.fill(draw(3))
    tray = next(batches)
    taker.give(tray, np.ones(4))
    assert [i.tolist() for i, _ in new.back()] == [[3] * 4]


def test_what_a_lost_learner_held_goes_back_unjudged():
    samples = trays_of(memories=2, learners=2, depth=1)
    fillers = [samples.writer(m) for m in range(2)]
    for filler in fillers:
        list(filler.back())
        filler.fill(draw(1))
        filler.fill(draw(2))
    batches = [samples.reader(c).batches() for c in range(2)]
    lost, others = next(batches[0]), next(batches[1])
    assert lost != others
    taker = samples.reader(0)  # in the lost one's place
    assert [len(list(f.back())) for f in fillers] == [0, 0]
    assert [f.away for f in fillers] == [1, 2]
    assert next(taker.batches()) is not None, "what was on its way is taken by the new one"
    assert samples.use[others] != 0


def test_a_checkpoint_waits_for_every_memory_and_hears_of_failures():
    samples = trays_of(memories=2)
    fillers, taker = [samples.writer(m) for m in range(2)], samples.reader(0)
    assert [samples.asked(m) for m in range(2)] == [None, None]
    waiting = taker.gather(0, 0.0)
    next(waiting)
    assert [samples.asked(m) for m in range(2)] == [0, 0]
    fillers[0].heard(12.0)
    fillers[0].answer(0)
    fillers[0].heard(5.0)
    next(waiting)
    fillers[1].answer(0, failed=True)
    assert list(waiting) == []
    assert samples.failed(0) == [1]
    assert (samples.fresh(kept=True), samples.news, samples.fresh(), samples.fresh(), samples.news) == (
        12.0,
        True,
        5.0,
        0.0,
        False,
    )


def test_waits_end_when_all_is_closed():
    samples = trays_of()
    batches = samples.reader(0).batches()
    assert next(batches) is None
    samples.close()
    with pytest.raises(Closed):
        next(batches)

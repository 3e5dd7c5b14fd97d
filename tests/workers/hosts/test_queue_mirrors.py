"""Mirrors of rollout and sample queues, driven by hand, and stacked pictures on a link."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import psutil
import pytest

from polyplay.buffers.replay_worker import SampleQueue
from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core.tree import Field
from polyplay.workers.hosts import agent
from polyplay.workers.hosts.queue_mirrors import QueueMirror, SampleMirror
from tests.buffers.test_replay_worker import draw, slots_of
from tests.workers.hosts.by_hand import Pair, carry, fill, forget, queue_of


@pytest.fixture(autouse=True)
def _machine():
    """Each test has a machine with no twins yet."""
    forget()


class TestQueue:
    @pytest.mark.parametrize("taken", ["here", "elsewhere"])
    def test_losses_at_any_time_lose_no_slot_and_learn_every_rollout_at_most_once(self, taken):
        """Workers are lost at any point of a rollout, machines with them or not; what these had not sent is gone."""
        rng, queue, numbers = random.Random(0), queue_of(producers=3, share=3), agent.TwinNumbers()
        queue.patience = 0.0
        held, open_slots, made, lost, learnt = list[tuple[int, int]](), dict[int, int](), 0, 0, list[int]()

        def open_machine(*seats: tuple[int, str]) -> Pair:
            forget()
            pair = Pair(QueueMirror(queue), numbers)
            for index, end in seats:
                pair.seat(index, end=end)
            held.append((psutil.Process().memory_info().rss, psutil.Process().num_fds()))
            return pair

        pairs = {"acts": open_machine((0, "out"), (1, "out"))}  # the third is here
        if taken == "elsewhere":
            pairs["takes"] = open_machine((0, "source"))

        def act(p: int) -> Any:
            open_slots.pop(p, None)
            return (queue if p == 2 else pairs["acts"].away.queue).producer(p)

        def take() -> Any:
            there = pairs["takes"].away.queue if taken == "elsewhere" else queue
            there.patience = 0.0
            return there.batches(1).consumer(0, wait=False)

        producers, batches = [act(p) for p in range(3)], take()
        for _ in range(8_000):
            p, what = rng.randrange(3), rng.random()
            if what < 0.3 and p not in open_slots:
                if (slot := producers[p].slot()) is not None:
                    fill(producers[p].queue, slot, made)
                    open_slots[p], made = slot, made + 1
            elif what < 0.55 and p in open_slots:
                producers[p].commit(open_slots.pop(p))
            elif what < 0.8:
                pair = rng.choice([*pairs.values()])
                rng.choice([pair.out, pair.back])()
            elif what < 0.94:
                if (batch := next(batches)) is not None:
                    assert len(set(batch[0]["obs"].ravel().tolist())) == 1, "torn"
                    learnt.append(int(batch[0]["obs"].flat[0]))
            elif what < 0.97:  # the worker alone: a new one takes its seat
                producers[p], lost = act(p), lost + 1
            elif taken == "here" or what < 0.985:
                pairs["acts"], lost = open_machine((0, "out"), (1, "out")), lost + 1
                producers[:2] = act(0), act(1)
            else:
                pairs["takes"], lost = open_machine((0, "source")), lost + 1
                batches = take()
        assert min(lost, len(learnt)) > 300
        assert len(learnt) == len(set(learnt)) or taken == "elsewhere"  # there a lost one may have learnt it already
        grown = [int(after - before) for before, after in zip(held[len(held) // 5], held[-1], strict=True)]
        assert grown[0] < 20e6, "memory grows with every machine that is lost"
        assert grown[1] < 20, "so do open files"
        for p, slot in open_slots.items():
            producers[p].commit(slot)
        for _ in range(8):
            for pair in pairs.values():
                for carried in (pair.out, pair.back):
                    carried()
                    while next(batches) is not None:
                        pairs[next(reversed(pairs))].back()
        slots = [producers[p].slot() for p in range(3) for _ in range(3)]
        assert sorted(slots) == list(range(9)), "a slot was lost"

    def test_a_checkpoint_is_asked_for_after_what_was_taken_before(self):
        queue = queue_of()
        pair = Pair(QueueMirror(queue))
        pair.seat(0)
        producer = pair.away.queue.producer(0)
        slot = producer.slot()
        fill(pair.away.queue, slot, 5)
        producer.commit(slot)
        pair.back()
        batches = queue.batches(1).consumer(0, wait=False)
        next(batches)
        frames = pair.home.changes(0.0)
        queue.ask(0, 12, last=True)  # while the link sends
        carry(frames, pair.away)
        pair.out()
        assert pair.away.queue.asked(0) == 12
        assert pair.away.queue.last(0)
        assert producer.flight() == {}
        pair.away.queue.answer(0, 12)
        pair.back()
        assert queue.late(0, 12) == [1]


def pair_of(**kinds: int) -> Pair:
    samples = slots_of(**kinds)
    samples._stream.patience = 0.0
    return Pair(SampleMirror(samples))


def there_of(pair: Pair) -> SampleQueue:
    twin: SampleQueue = pair.away.samples
    twin.patience = 0.0
    return twin


def test_losses_at_any_time_lose_no_tray_and_tear_none():
    """A memory, its machine or the learner is lost at any point; each batch is whole and judged at most once."""
    rng, samples = random.Random(0), slots_of(memories=2)
    mirror = SampleMirror(samples)
    numbers = agent.TwinNumbers()
    pair, by, judged, lost, number = Pair(mirror, numbers), 1, set[int](), 0, 0
    pair.seat(0)

    def writers() -> list[Any]:
        return [there_of(pair).writer(0, by), samples.writer(1, by)]

    filling, reader = writers(), samples.reader(0)
    batches = reader.batches()
    for _ in range(3_000):
        m, what = rng.randrange(2), rng.random()
        if what < 0.4:
            for ids, priority in filling[m].back():
                assert len(set(ids.tolist())) == 1
                assert (priority == ids).all()
                assert ids[0] not in judged
                judged.add(ids[0])
            if filling[m].empty:
                number += 1
                filling[m].fill(draw(number))
        elif what < 0.7:
            rng.choice([pair.out, pair.back])()
        elif what < 0.94:
            if (slot := next(batches)) is not None:
                ids = samples.item(slot)["id"]
                assert len(set(ids.tolist())) == 1, "torn"
                reader.give(slot, ids.astype(np.float32))
        else:
            lost, by = lost + 1, by + 1
            if rng.random() < 0.5:
                forget()
                pair = Pair(SampleMirror(samples), numbers)
                pair.seat(0)
            filling = writers()
    assert lost > 100
    assert len(judged) > 150
    for _ in range(4):
        pair.back()
        while (slot := next(batches)) is not None:
            reader.give(slot, None)
        pair.out()
        for writer in filling:
            list(writer.back())
    assert [len(writer.empty) for writer in filling] == [2, 2], "a slot was lost"


K = 4


def stacks(T: int, B: int, size: int, resets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[T, B, K, size, size]: each row continues the one before, but where a game begins, with one picture K times."""
    rows = np.zeros((T, B, K, size, size), np.uint8)
    for t in range(T):
        for b in range(B):
            new = rng.integers(0, 256, (size, size), np.uint8)
            if t == 0:
                rows[t, b] = rng.integers(0, 256, (K, size, size), np.uint8)
            elif resets[t, b]:
                rows[t, b] = new
            else:
                rows[t, b, :-1], rows[t, b, -1] = rows[t - 1, b, 1:], new
    return rows


def queue_of_pictures() -> RolloutQueue:
    rows = {"obs": Field((K, 8, 8), np.uint8), "version": Field((), np.int64), "first": Field((), np.bool_)}
    return RolloutQueue(rows, {"h": Field((2,), np.float32)}, 5, 3, 4, 1)


def test_a_rollout_of_stacks_comes_home_as_planes():
    queue, rng = queue_of_pictures(), np.random.default_rng(0)
    pair = Pair(QueueMirror(queue))
    pair.seat(0)
    there = pair.away.queue
    producer, batches = there.producer(0), queue.batches(1).consumer(0, wait=False)
    for n in range(10):
        slot = producer.slot()
        rows = stacks(6, 3, 8, rng.random((6, 3)) < 0.1, rng)
        there.rows["obs"][slot], there.rows["version"][slot], there.state["h"][slot] = rows, n, n
        producer.commit(slot)
        frames = [(part, i, [np.array(x) for x in arrays]) for part, i, arrays in pair.away.changes(0.0)]
        assert sum(x.nbytes for *_, arrays in frames for x in arrays) < 0.8 * rows.nbytes
        carry(frames, pair.home)
        batch, state = next(batches)
        assert (batch["obs"] == rows).all()
        assert (state["h"] == n).all()
        next(batches)
        pair.out()

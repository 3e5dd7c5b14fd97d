"""The mirror of a rollout queue, driven by hand: rollouts to who takes them, slots back, losses at any time."""

from __future__ import annotations

import random
from typing import Any

import psutil
import pytest

from polyplay.core.errors import Closed
from polyplay.workers.hosts import agent
from polyplay.workers.hosts.mirrors import (
    FrameError,
)
from polyplay.workers.hosts.queue_mirrors import QueueMirror
from tests.workers.hosts.by_hand import Pair, carry, fill, forget, queue_of


@pytest.fixture(autouse=True)
def _machine():
    """Each test has a machine with no twins yet."""
    forget()


class TestQueue:
    def test_a_rollout_comes_home_whole_and_its_slot_goes_back(self):
        queue = queue_of()
        pair = Pair(QueueMirror(queue))
        pair.seat(1)
        producer = pair.away.queue.producer(1)
        batches = queue.batches(1).consumer(0, wait=False)
        for number in range(20):
            slot = producer.slot()
            assert slot is not None
            fill(pair.away.queue, slot, number)
            producer.commit(slot, by=7)
            assert next(batches) is None
            pair.back()
            rows, _ = next(batches)
            assert (rows["obs"] == number).all()
            assert queue.by[slot] == 7
            pair.out()
        assert queue.made(1) == 20
        assert pair.away.queue.learnt(1) >= 19

    def test_nobody_has_more_rollouts_in_flight_than_slots(self):
        pair = Pair(QueueMirror(queue_of(share=2)))
        pair.seat(0)
        pair.away.queue.patience = 0.0
        producer = pair.away.queue.producer(0)
        for _ in range(2):
            slot = producer.slot()
            fill(pair.away.queue, slot, 0)
            producer.commit(slot)
        pair.back()
        pair.out()
        assert producer.slot() is None

    def test_thousand_losses_lose_no_slot_and_learn_every_rollout_at_most_once(self):
        """Workers are lost at any point of a rollout, their machines with them or not, frames under way or not."""
        rng, queue = random.Random(0), queue_of(producers=3, share=3)
        queue.patience = 0.0
        batches = queue.batches(1).consumer(0, wait=False)
        numbers, home = agent.TwinNumbers(), QueueMirror(queue)
        pair = Pair(home, numbers)
        learnt, made, lost, open_slots, held = [], 0, 0, dict[int, tuple[Any, int]](), list[tuple[int, int]]()
        for p in range(3):
            pair.seat(p)
        producers = {p: pair.away.queue.producer(p) for p in range(3)}
        for _ in range(20_000):
            p, what = rng.randrange(3), rng.random()
            if what < 0.35 and p not in open_slots:
                slot = producers[p].slot()
                if slot is not None:
                    fill(pair.away.queue, slot, made)
                    open_slots[p] = slot, made
                    made += 1
            elif what < 0.55 and p in open_slots:
                producers[p].commit(open_slots.pop(p)[0])
            elif what < 0.7:
                pair.back()
            elif what < 0.8:
                pair.out()
            elif what < 0.95:
                batch = next(batches)
                if batch is not None:
                    assert len(set(batch[0]["obs"].ravel().tolist())) == 1, "torn"
                    learnt.append(int(batch[0]["obs"].flat[0]))
            elif what < 0.975:  # the worker alone: a new one takes its seat
                open_slots.pop(p, None)
                lost += 1
                producers[p] = pair.away.queue.producer(p)
            else:  # the machine: what it had not sent is gone
                forget()
                home = QueueMirror(queue)
                open_slots.clear()
                lost += 1
                pair = Pair(home, numbers)
                for q in range(3):
                    pair.seat(q)
                producers = {q: pair.away.queue.producer(q) for q in range(3)}
                held.append((psutil.Process().memory_info().rss, psutil.Process().num_fds()))
        assert lost > 1000
        assert len(learnt) > 1000
        grown = [int(after - before) for before, after in zip(held[len(held) // 5], held[-1], strict=True)]
        assert grown[0] < 20e6, "memory grows with every machine that is lost"
        assert grown[1] < 20, "so do open files"
        assert len(learnt) == len(set(learnt))
        for _ in range(3):
            for p in range(3):
                if p in open_slots:
                    producers[p].commit(open_slots.pop(p)[0])
            pair.back()
            while next(batches) is not None:
                pass
            pair.out()
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

    @pytest.mark.parametrize("item", [0, 6, 8, 11, 13, 14, 100, 1 << 31])
    def test_a_frame_of_a_seat_that_is_not_there_is_refused(self, item):
        """RemoteSeat 1 is elsewhere, seat 0 is not."""
        pair = Pair(QueueMirror(queue_of()))
        pair.seat(1)
        with pytest.raises(FrameError):
            pair.home.places(item)

    def test_rings_that_cannot_be_are_refused(self):
        pair = Pair(QueueMirror(queue_of()))
        pair.seat(0)
        item = pair.home.of_pairs
        for taken, put, first in ((-1, 0, 0), (4, 0, 0), (0, 4, 0), (0, 1, 5), (0, 1, -1)):
            [state] = pair.home.places(item)
            state[:] = 0
            state[:3] = taken, put, first
            with pytest.raises(FrameError, match="cannot be"):
                pair.home.arrived(item)

    def test_a_rollout_passes_home_from_who_acts_on_one_machine_to_who_takes_it_on_another(self):
        queue, numbers = queue_of(), agent.TwinNumbers()
        acting = Pair(QueueMirror(queue), numbers)
        forget()
        taking = Pair(QueueMirror(queue), numbers)
        acting.seat(1)
        producer = acting.away.queue.producer(1)
        first = producer.slot()
        fill(acting.away.queue, first, 100)
        producer.commit(first)
        acting.back()  # it is there before its reader is
        taking.seat(0, end="source")
        batches = taking.away.queue.batches(1).consumer(0, wait=False)
        rows, _ = next(batches)
        assert (rows["obs"] == 100).all()
        for number in range(20):
            slot = producer.slot()
            fill(acting.away.queue, slot, number)
            producer.commit(slot, by=7)
            acting.back()
            taking.out()
            rows, _ = next(batches)
            assert (rows["obs"] == number).all()
            taking.back()
            acting.out()
        assert acting.away.queue.learnt(1) >= 20
        assert queue.made(1) == 21

    def test_who_takes_elsewhere_asks_for_parts_and_hears_the_answers(self):
        queue, numbers = queue_of(), agent.TwinNumbers()
        acting = Pair(QueueMirror(queue), numbers)
        forget()
        taking = Pair(QueueMirror(queue), numbers)
        acting.seat(0)
        taking.seat(0, end="source")
        there = taking.away.queue
        there.base[:] = 4, 5
        there.ask(0, 12, last=True)
        taking.back()
        acting.out()
        assert acting.away.queue.asked(0) == 12
        assert acting.away.queue.last(0)
        assert acting.away.queue.made(0) == 4
        acting.away.queue.answer(0, 12)
        frames = list(acting.away.changes(0.0))
        assert [acting.away.answers(item) for item, _ in frames] == ["act-0"]
        carry(frames, acting.home)
        queue.answer(1, 12)  # who acts here
        taking.out()
        assert there.late(0, 12) == []

    def test_nothing_crosses_between_two_who_are_on_the_same_machine(self):
        pair = Pair(QueueMirror(queue_of()))
        pair.seat(0, end="source")
        pair.seat(0)
        pair.seat(1)
        producer = pair.away.queue.producer(1)
        batches = pair.away.queue.batches(1).consumer(0, wait=False)
        for number in range(10):
            slot = producer.slot()
            fill(pair.away.queue, slot, number)
            producer.commit(slot)
            assert (next(batches)[0]["obs"] == number).all()
        assert not list(pair.away.changes(0.0))
        assert not list(pair.home.changes(0.0))

    def test_who_takes_elsewhere_is_lost_at_any_time_and_no_slot_is(self):
        """Both machines are lost at any point, what they had not sent is gone; each reader gets whole rollouts."""
        rng, queue, numbers = random.Random(1), queue_of(producers=2, share=3), agent.TwinNumbers()
        queue.patience = 0.0

        def open_machine(*seats: tuple[int, str]) -> Pair:
            forget()
            pair = Pair(QueueMirror(queue), numbers)
            for index, end in seats:
                pair.seat(index, end=end)
            return pair

        acting, taking = open_machine((0, "out")), open_machine((0, "source"))
        producers = {0: acting.away.queue.producer(0), 1: queue.producer(1)}  # one of them is here
        batches, made, got, lost = taking.away.queue.batches(1).consumer(0, wait=False), 0, 0, 0
        for _ in range(8_000):
            p, what = rng.randrange(2), rng.random()
            if what < 0.4:
                slot = producers[p].slot()
                if slot is not None:
                    fill(producers[p].queue, slot, made)
                    producers[p].commit(slot)
                    made += 1
            elif what < 0.8:
                rng.choice([acting.out, acting.back, taking.out, taking.back])()
            elif what < 0.95:
                if (batch := next(batches)) is not None:
                    assert len(set(batch[0]["obs"].ravel().tolist())) == 1, "torn"
                    got += 1
            elif what < 0.975:
                acting, lost = open_machine((0, "out")), lost + 1
                producers[0] = acting.away.queue.producer(0)
            else:
                taking, lost = open_machine((0, "source")), lost + 1
                batches = taking.away.queue.batches(1).consumer(0, wait=False)
        assert lost > 200
        assert got > 500
        for _ in range(8):
            for carried in (acting.out, acting.back, taking.out, taking.back):
                carried()
                while next(batches) is not None:
                    taking.back()
        held = [producers[p].slot() for p in range(2) for _ in range(3)]
        assert sorted(held) == list(range(6)), "a slot was lost"

    def test_closing_ends_every_wait(self):
        pair = Pair(QueueMirror(queue_of()))
        pair.seat(0)
        pair.away.close()
        with pytest.raises(Closed):
            pair.away.queue.producer(0).slot()

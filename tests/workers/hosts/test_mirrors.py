"""Mirrors of a rollout queue, of weights, counters and cells, driven by hand in one process: no link, no machine."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.common.control import Hyperparameters, RunControl
from polyplay.common.counters import EPISODES, Counters
from polyplay.common.errors import Closed
from polyplay.common.semaphores import Semaphores
from polyplay.common.tree import Field
from polyplay.weights.params import Params
from polyplay.workers.hosts import twins
from polyplay.workers.hosts.mirrors import (
    CellsMirror,
    CountersMirror,
    FrameError,
    HyperparametersMirror,
    ObjectMirror,
    RemoteSeat,
)
from polyplay.workers.hosts.params_mirror import ParamsMirror
from polyplay.workers.hosts.queue_mirror import QueueMirror

T, LANES = 3, 2
ROLES = {"out": "act", "params": "act", "source": "memory", "publish": "learn"}


class Vector:
    """The part of FlatParams that is published and pulled."""

    def __init__(self, values: list[float]):
        self.flat = torch.tensor(values)


def queue_of(producers: int = 2, share: int = 3) -> RolloutQueue:
    rows = {"obs": Field((4,), np.float32), "version": Field((), np.int64), "first": Field((), np.bool_)}
    return RolloutQueue(rows, {}, T, LANES, producers * share, producers)


@pytest.fixture(autouse=True)
def _machine():
    """Each test has a machine with no twins yet."""
    forget()


def forget() -> None:
    twins._blocks.clear()
    twins._made.clear()
    twins.relay_by(Semaphores(1))


class Pair:
    """A mirror here and its other side, with frames carried at will."""

    def __init__(self, home: ObjectMirror, numbers: twins.TwinNumbers | None = None):
        self.home = home
        data, self.found = twins.dump(home, numbers or twins.TwinNumbers())
        bells = Semaphores(4)
        for thing in self.found:
            if isinstance(thing, Semaphores):
                thing.relay_by(bells)
        for thing in self.found:
            thing._attach()
        self.away: Any = twins.load(data)
        self.away.away = True
        for side in (self.home, self.away):
            side.prepare()

    def seat(self, index: int, row: int = 0, end: str = "out") -> None:
        seat = RemoteSeat(index, row, role=ROLES[end], end=end)
        carry(self.home.begin(seat), self.away)
        for side in (self.home, self.away):
            side.sit(seat)

    def out(self, now: float = 0.0) -> None:
        carry(self.home.changes(now), self.away)

    def back(self, now: float = 0.0) -> None:
        carry(self.away.changes(now), self.home)


def carry(frames: Any, to: Any) -> None:
    for item, arrays in frames:
        data = b"".join(x.tobytes() for x in arrays)
        for place in to.places(item):
            assert place.flags.c_contiguous
            place.reshape(-1).view(np.uint8)[:] = np.frombuffer(data[: place.nbytes], np.uint8)
            data = data[place.nbytes :]
        assert not data, item
        to.arrived(item)


def fill(queue: RolloutQueue, slot: int, number: int) -> None:
    """Every cell of a rollout is its number, so a torn one is seen."""
    queue.rows["obs"][slot] = number
    queue.rows["version"][slot] = number
    queue.rows["first"][slot] = False


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
        numbers, home = twins.TwinNumbers(), QueueMirror(queue)
        pair = Pair(home, numbers)
        learnt, made, lost, open_slots = [], 0, 0, dict[int, tuple[Any, int]]()
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
        assert lost > 1000
        assert len(learnt) > 1000
        assert len(learnt) == len(set(learnt))
        for _ in range(3):
            for p in range(3):
                if p in open_slots:
                    producers[p].commit(open_slots.pop(p)[0])
            pair.back()
            while next(batches) is not None:
                pass
            pair.out()
        held = [producers[p].slot() for p in range(3) for _ in range(3)]
        assert sorted(held) == list(range(9)), "a slot was lost"

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
        queue, numbers = queue_of(), twins.TwinNumbers()
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
        queue, numbers = queue_of(), twins.TwinNumbers()
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
        rng, queue, numbers = random.Random(1), queue_of(producers=2, share=3), twins.TwinNumbers()
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


class TestParams:
    def test_the_newest_version_arrives_whole_with_its_round(self):
        params = Params(5, readers=2)
        pair = Pair(ParamsMirror(params))
        there = pair.away.params
        pair.seat(1, end="params")
        pair.out()
        assert there.round == -1
        for version in (3, 4, 9):
            params.publish(Vector([float(version)] * 5), version - 1, version)
            params.publish(Vector([version + 0.5] * 5), version, version + 1, np.array([0, version]))
            pair.out()
            into = Vector([0.0] * 5)
            assert there.wait(version + 1, 1, 0.0, learnt=version)
            assert there.pull(into) == version
            assert into.flat.tolist() == [version + 0.5] * 5

    def test_a_round_without_new_weights_costs_no_vector(self):
        params = Params(5)
        pair = Pair(ParamsMirror(params))
        pair.seat(0, end="params")
        params.publish(Vector([1.0] * 5), 1, 1)
        pair.out()
        params.publish(Vector([1.0] * 5), 1, 2)
        frames = list(pair.home.changes(0.0))
        assert len(frames) == 1
        carry(frames, pair.away)
        assert pair.away.params.round == 2

    def test_who_waits_is_woken(self):
        params = Params(5, readers=3)
        pair = Pair(ParamsMirror(params))
        pair.seat(2, end="params")
        there = pair.away.params
        there._waiting[2] = 1
        params.publish(Vector([1.0] * 5), 1, 1)
        pair.out()
        assert there._bells[2].wait(0.0)

    def test_a_publisher_elsewhere_is_read_here_and_on_a_third_machine(self):
        params, numbers = Params(5, readers=2), twins.TwinNumbers()
        learning = Pair(ParamsMirror(params), numbers)
        forget()
        acting = Pair(ParamsMirror(params), numbers)
        learning.seat(0, end="publish")
        acting.seat(1, end="params")
        there = learning.away.params
        assert not list(learning.away.changes(0.0))
        for version in (0, 3, 4):
            there.publish(Vector([float(version)] * 5), version, version, np.array([version, 2 * version]))
            learning.back()
            acting.out()
            for params_, reader in ((params, 0), (acting.away.params, 1)):
                into = Vector([-1.0] * 5)
                assert params_.wait(version, reader, 0.0, learnt=version)
                assert params_.pull(into) == version
                assert into.flat.tolist() == [float(version)] * 5
        with pytest.raises(FrameError):
            learning.away.places(1)

    def test_weights_only_go_out(self):
        pair = Pair(ParamsMirror(Params(5)))
        with pytest.raises(FrameError):
            pair.home.places(1)


def test_the_part_of_the_run_that_is_left_comes_from_a_learner_elsewhere():
    pair = Pair(HyperparametersMirror(Hyperparameters(learning_rate=1.0, left=1.0)))
    seat = RemoteSeat(0, 2, (0,), "learn")
    for side in (pair.home, pair.away):
        side.sit(seat)
    pair.away.thing.set("left", 0.3)
    pair.back()
    assert pair.home.thing.left == 0.3
    pair.home.thing.set("learning_rate", 0.5)
    pair.out()
    assert pair.away.thing.all() == {"learning_rate": 0.5, "left": 0.3}


class TestCounters:
    def test_counts_and_new_games_come_home_once(self):
        counters = Counters(3, ("loss",))
        pair = Pair(CountersMirror(counters))
        counters.row(2).add("steps", 100)
        pair.seat(0, row=2)
        there = pair.away.counters.row(2)
        assert there.get("steps") == 100
        for i in range(100):
            there.add("steps", 8)
            there.episode(float(i), 10.0, 3)
        there.stamp()
        pair.back()
        here = counters.row(2)
        assert here.get("steps") == 900
        assert here.get("episodes") == 100
        assert here.games[:100, 0].tolist() == list(range(100))
        there.episode(7.0, 1.0, 0)
        frames = [item for item, _ in pair.away.changes(np.inf)]
        assert frames == [5, 4], "one frame of games, then the counts"

    def test_more_games_than_there_is_room_for_keep_the_newest(self):
        pair = Pair(CountersMirror(Counters(1)))
        pair.seat(0)
        there = pair.away.counters.row(0)
        for i in range(EPISODES + 100):
            there.episode(float(i), 1.0, 0)
        pair.back()
        assert sorted(pair.home.counters.games[0, :, 0]) == list(map(float, range(100, EPISODES + 100)))

    def test_rows_of_workers_here_are_not_written(self):
        pair = Pair(CountersMirror(Counters(3)))
        pair.seat(0, row=1)
        for item in (0, 1, 4, 6, 999):
            with pytest.raises(FrameError):
                pair.home.places(item)


def test_cells_go_out_when_they_change():
    control = RunControl()
    pair = Pair(CellsMirror(control, "_flags"))
    pair.out()
    assert list(pair.home.changes(0.0)) == []
    control.halt()
    pair.out()
    with pytest.raises(Closed):
        pair.away.thing.check()
    with pytest.raises(FrameError):
        pair.home.places(0)


def test_a_twin_is_one_block_however_often_it_comes():
    numbers, queue = twins.TwinNumbers(), queue_of()
    first, again = (twins.load(twins.dump(queue, numbers)[0]) for _ in range(2))
    assert first.block is again.block
    assert first.block is not queue.block
    assert first.nbytes == queue.nbytes
    first.rows["obs"][0] = 5
    assert (again.rows["obs"][0] == 5).all()
    assert not queue.rows["obs"].any()


def test_a_bell_of_who_waits_elsewhere_rings_the_link():
    links, bells = Semaphores(2), Semaphores(3)
    bells.relay_by(links)
    bells[1].relay(1)
    bells[1].post()
    bells[0].post()
    assert (links[1].wait(0), links[0].wait(0), bells[1].wait(0), bells[0].wait(0)) == (True, False, False, True)
    bells[1].relay(None)
    bells[1].post()
    assert bells[1].wait(0)

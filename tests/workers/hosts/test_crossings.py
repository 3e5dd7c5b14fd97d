"""What crosses of queues, weights, parameter servers and leagues, carried by hand."""

from __future__ import annotations

import gc
import random
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.buffers.replay_worker import SampleQueue
from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core.tree import Field
from polyplay.workers.hosts import crossings, remote
from tests.buffers.test_replay_worker import draw, slots_of
from tests.workers.hosts.by_hand import Wire, fill, queue_of

# Queues of rollouts.


@pytest.mark.parametrize("taken", ["here", "elsewhere"])
def test_losses_at_any_time_lose_no_slot_and_learn_every_rollout_at_most_once(taken):
    """Workers are lost at any point of a rollout, machines with them or not; what these had not sent is gone."""
    rng, queue, numbers = random.Random(0), queue_of(producers=3, share=3), remote.TwinNumbers()
    open_slots, made, lost, learnt = dict[int, int](), 0, 0, list[int]()

    def open_machine(relay: int, *seats: tuple[str, int]) -> Wire:
        wire = Wire(queue, relay=relay, numbers=numbers)
        for end, index in seats:
            wire.seat(end, index)
        return wire

    def hold() -> tuple[int, int]:
        gc.collect()
        return psutil.Process().memory_info().rss, psutil.Process().num_fds()

    wires = {"acts": open_machine(0, ("out", 0), ("out", 1))}  # the third is here
    if taken == "elsewhere":
        wires["takes"] = open_machine(1, ("source", 0))

    def act(p: int) -> Any:
        open_slots.pop(p, None)
        return (queue if p == 2 else wires["acts"].twins[0]).producer(p)

    def take() -> Any:
        return (wires["takes"].twins[0] if taken == "elsewhere" else queue).batches(1).consumer(0, wait=False)

    producers, batches = [act(p) for p in range(3)], take()
    for step in range(8_000):
        if step == 1_600:
            held = hold()
        p, what = rng.randrange(3), rng.random()
        if what < 0.3 and p not in open_slots:
            if (slot := producers[p].slot()) is not None:
                fill(producers[p].queue, slot, made)
                open_slots[p], made = slot, made + 1
        elif what < 0.55 and p in open_slots:
            producers[p].commit(open_slots.pop(p))
        elif what < 0.8:
            wire = rng.choice([*wires.values()])
            rng.choice([wire.out, wire.back, wire.send, wire.send_back])()
        elif what < 0.94:
            if (batch := next(batches)) is not None:
                assert len(set(batch[0]["obs"].ravel().tolist())) == 1, "torn"
                learnt.append(int(batch[0]["obs"].flat[0]))
        elif what < 0.97:  # the worker alone: a new one takes its seat
            producers[p], lost = act(p), lost + 1
        elif taken == "here" or what < 0.985:
            wires["acts"], lost = open_machine(0, ("out", 0), ("out", 1)), lost + 1
            producers[:2] = act(0), act(1)
        else:
            wires["takes"], lost = open_machine(1, ("source", 0)), lost + 1
            batches = take()
    assert min(lost, len(learnt)) > 300
    assert len(learnt) == len(set(learnt)) or taken == "elsewhere"  # there a lost one may have learnt it already
    grown = [after - before for before, after in zip(held, hold(), strict=True)]
    assert grown[0] < 20e6, "memory grows with every machine that is lost"
    assert grown[1] < 20, "so do open files"
    for p, slot in open_slots.items():
        producers[p].commit(slot)
    for _ in range(8):
        for wire in wires.values():
            for carried in (wire.out, wire.back):
                carried()
                while next(batches) is not None:
                    wires[next(reversed(wires))].back()
    slots = [producers[p].slot() for p in range(3) for _ in range(3)]
    assert sorted(slots) == list(range(9)), "a slot was lost"


class Walk:
    """Two producers and a reader, who is here or on machine 1; any of them may begin anew on machine 0 or 1. Machine 0
    may be lost, once what it wrote has come home.
    """

    def __init__(self, reader_away: bool):
        self.queue, self.numbers = queue_of(2, 3), remote.TwinNumbers()
        self.wires = [self._machine(0), self._machine(1)]
        if reader_away:
            self.wires[1].seat("source")
        self.where: list[int | None] = [None, None]
        self.sides: list[Any] = [self.queue, self.queue]
        self.writers, self.made = [self.queue.producer(p) for p in range(2)], [0, 0]
        there = self.wires[1].twins[0] if reader_away else self.queue
        self.batches, self.seen = there.batches(1).consumer(0, wait=False), list[list[int]]([[], []])

    def _machine(self, relay: int) -> Wire:
        return Wire(self.queue, relay=relay, numbers=self.numbers)

    def make(self, p: int) -> bool:
        slot = self.writers[p].slot()
        if slot is None:
            return False
        fill(self.sides[p], slot, 1000 * p + self.made[p])
        self.writers[p].commit(slot)
        self.made[p] += 1
        return True

    def read(self, _: int) -> bool:
        batch = next(self.batches)
        if batch is None:
            return False
        (number,) = set(batch[0]["obs"].ravel().tolist())
        p, i = divmod(int(number), 1000)
        self.seen[p].append(i)
        return True

    def seat(self, p: int, m: int) -> None:
        """From here to a machine, or a new one in its place, which was filling a slot."""
        if self.where[p] is None:
            self.writers[p].slot()
            self.wires[m].seat("out", p, land=False)
            self.wires[m].land_away()
            self.where[p], self.sides[p] = m, self.wires[m].twins[0]
        elif self.where[p] == m:
            self.writers[p].slot()
        else:
            return
        self.writers[p] = self.sides[p].producer(p)

    def lose(self, p: int) -> None:
        self.wires[0].back()
        there = [i for i in range(2) if self.where[i] == 0]
        self.wires[0] = self._machine(0)
        for i in there:
            self.where[i] = None
            self.sides[i] = self.queue
            self.writers[i] = self.queue.producer(i)
            self.seat(i, p)

    def step(self, what: str, p: int) -> None:
        wire = self.wires[p]
        match what:
            case "make":
                self.make(p)
            case "read":
                self.read(p)
            case "send":
                wire.send()
            case "send back":
                wire.send_back()
            case "land":
                wire.land_away(2)
            case "land home":
                wire.land_home(2)
            case "seat":
                self.seat(p, 0)
            case "seat too":
                self.seat(p, 1)
            case "lose":
                self.lose(p)

    def end(self) -> None:
        for _ in range(6):
            for wire in self.wires:
                wire.both()
            while self.read(0):
                pass
        for p in range(2):
            assert self.seen[p] == list(range(self.made[p]))
            assert [self.make(p) for _ in range(4)] == [True] * 3 + [False], "a slot was lost"


WALKS = ["make", "make", "read", "send", "send back", "land", "land home", "seat", "seat too", "lose"]


@settings(max_examples=150)
@given(away=st.booleans(), moves=st.lists(st.tuples(st.sampled_from(WALKS), st.integers(0, 1)), max_size=80))
def test_a_reader_sees_every_rollout_once_and_in_order_however_lines_send_and_workers_begin_anew(away, moves):
    walk = Walk(away)
    for what, p in moves:
        walk.step(what, p)
    walk.end()


def test_a_writer_that_joins_its_reader_leaves_homes_copy_whole():
    """What the reader's machine sent before is still on its way then, and is read as from a reader."""
    queue = queue_of(producers=1)
    wire = Wire(queue)
    wire.seat("source")
    here = queue.producer(0)
    for number in range(2):
        slot = here.slot()
        fill(queue, slot, number)
        here.commit(slot)
    wire.out()
    batches = wire.twins[0].batches(1).consumer(0, wait=False)
    next(batches), next(batches)  # one of them was given back
    wire.send_back()
    wire.seat("out", 0, land=False)
    wire.land_home()
    assert (queue.depth, len(queue._empty[0].peek())) == (0, 2)


def test_a_checkpoint_is_asked_for_after_what_was_taken_before():
    queue = queue_of()
    wire = Wire(queue)
    wire.seat("out", 0)
    there = wire.twins[0]
    producer = there.producer(0)
    slot = producer.slot()
    fill(there, slot, 5)
    producer.commit(slot)
    wire.back()
    batches = queue.batches(1).consumer(0, wait=False)
    next(batches)
    frames = wire.home.news(0.0)
    wire.away.land(next(frames))
    queue.ask(0, 12, last=True)  # while the line sends
    for frame in frames:
        wire.away.land(frame)
    assert there.asked(0) is None
    wire.out()
    assert there.asked(0) == 12
    assert there.last(0)
    assert producer.flight() == {}
    there.answer(0, 12)
    wire.back()
    assert queue.late(0, 12) == [1]


# Queues of drawn batches.


def there_of(wire: Wire) -> SampleQueue:
    twin: SampleQueue = wire.twins[0]
    twin.patience = 0.0
    return twin


def test_losses_at_any_time_lose_no_tray_and_tear_none():
    """A memory, its machine or the learner is lost at any point; each batch is whole and judged at most once."""
    rng, samples, numbers = random.Random(0), slots_of(memories=2), remote.TwinNumbers()
    samples._stream.patience = 0.0
    wire, by, judged, lost, number = Wire(samples, numbers=numbers), 1, set[int](), 0, 0
    wire.seat("out", 0)

    def writers() -> list[Any]:
        return [there_of(wire).writer(0, by), samples.writer(1, by)]

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
            rng.choice([wire.out, wire.back])()
        elif what < 0.94:
            if (slot := next(batches)) is not None:
                ids = samples.item(slot)["id"]
                assert len(set(ids.tolist())) == 1, "torn"
                reader.give(slot, ids.astype(np.float32))
        else:
            lost, by = lost + 1, by + 1
            if rng.random() < 0.5:
                wire = Wire(samples, numbers=numbers)
                wire.seat("out", 0)
            filling = writers()
    assert lost > 100
    assert len(judged) > 150
    for _ in range(4):
        wire.back()
        while (slot := next(batches)) is not None:
            reader.give(slot, None)
        wire.out()
        for writer in filling:
            list(writer.back())
    assert [len(writer.empty) for writer in filling] == [2, 2], "a slot was lost"


def test_how_far_learning_is_and_what_memories_got_cross():
    samples = slots_of(memories=2)
    wire = Wire(samples)
    samples.learnt(0.7, 5)
    wire.seat("out", 1)
    there = there_of(wire)
    assert (there.left, there.version) == (0.7, 5)
    there.writer(1, 0).inserted(30.0)
    samples.writer(0, 0).inserted(4.0)
    samples.learnt(0.5, 9)
    wire.both()
    assert samples.fresh() == 34.0
    assert (there.left, there.version) == (0.5, 9)


# Stacked pictures.

K = 4


def stacks(T: int, B: int, size: int, resets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[T, B, K, size, size]: each row continues the one before, but where a game begins, with one picture K times."""
    rows = rng.integers(0, 256, (T, B, K, size, size), np.uint8)
    for t, b in np.ndindex(T, B):
        if t and resets[t, b]:
            rows[t, b] = rows[t, b, 0].copy()
        elif t:
            rows[t, b, :-1] = rows[t - 1, b, 1:]
    return rows


@given(T=st.integers(1, 6), B=st.integers(1, 4), size=st.sampled_from([3, 4]), seed=st.integers(0, 1000))
def test_stacks_that_are_packed_and_unpacked_are_the_same(T, B, size, seed):
    rng = np.random.default_rng(seed)
    resets = rng.random((T, B)) < 0.3
    rows = stacks(T, B, size, resets, rng)
    numbers = crossings.words(rows)
    whole, packed = np.zeros((T, B), np.uint8), np.empty((T * B * K, numbers.shape[-1]), numbers.dtype)
    n = crossings.pack_planes(numbers, whole, packed)
    resets[0] = True
    assert (whole == resets).all()
    assert n == resets.sum() * K + (~resets).sum()
    back = np.full_like(rows, 77)
    crossings.unpack_planes(crossings.words(back), whole, packed[:n].copy())
    assert (back == rows).all()


@pytest.mark.parametrize("whole", [False, True])
def test_a_rollout_of_pictures_comes_home_to_the_bit_and_of_stacks_only_the_planes(whole):
    fields = {"obs": Field((K, 8, 8), np.uint8), "version": Field((), np.int64), "first": Field((), np.bool_)}
    queue, rng = RolloutQueue(fields, {"h": Field((2,), np.float32)}, 5, 3, 4, 1), np.random.default_rng(0)
    wire = Wire(queue)
    wire.seat("out", 0)
    there = wire.twins[0]
    producer, batches = there.producer(0), queue.batches(1).consumer(0, wait=False)
    for n in range(10):
        slot = producer.slot()
        rows = rng.integers(0, 256, (6, 3, K, 8, 8), np.uint8)
        rows = rows if whole else stacks(6, 3, 8, rng.random((6, 3)) < 0.1, rng)
        there.rows["obs"][slot], there.rows["version"][slot], there.state["h"][slot] = rows, n, n
        producer.commit(slot)
        wire.send_back()
        sent = sum(x.nbytes for *_, arrays in wire.to_home for x in arrays)
        assert whole or sent < 0.8 * rows.nbytes
        wire.land_home()
        batch, state = next(batches)
        assert (batch["obs"] == rows).all()
        assert (state["h"] == n).all()
        next(batches)
        wire.out()

"""What crosses of queues, weights, parameter servers and leagues, carried by hand."""

from __future__ import annotations

import gc
import random
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyplay.buffers import queue_flows
from polyplay.buffers.replay_worker import SampleQueue
from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core.tree import Field
from polyplay.weights.params import Params
from polyplay.workers.hosts import remote
from tests.buffers.test_replay_worker import draw, slots_of
from tests.workers.hosts.by_hand import Vector, Wire, fill, queue_of

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
    next(batches), next(batches)  # it was given back
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


def test_a_worker_that_begins_brings_another_one_there_no_news_ahead_of_others():
    queue = queue_of()
    wire = Wire(queue)
    wire.seat("out", 0)
    there = wire.twins[0]
    producer = there.producer(0)
    slot = producer.slot()
    fill(there, slot, 5)
    producer.commit(slot)
    wire.back()
    next(queue.batches(1).consumer(0, wait=False))
    queue.ask(0, 12)
    wire.seat("out", 1)
    assert there.asked(1) == 12
    assert producer.flight() == {}


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


# Weights.


def params_of(readers: int = 1) -> Params:
    params = Params(5, readers)
    params.patience = 0.0
    return params


def publish(params: Params, version: int) -> None:
    params.publish(Vector([float(version)] * 5), version, version)


def pulled(params: Params) -> int:
    """The version of the newest weights, which are whole."""
    vector: Any = Vector([-1.0] * 5)
    version = params.pull(vector)
    assert vector.flat.tolist() == [float(version)] * 5, "torn"
    return version


def test_weights_go_out_four_times_a_rollout_or_once_a_second_and_at_once_to_who_waits():
    params = params_of(readers=8)
    wire = Wire(params)
    for i in range(8):  # one rollout of each is a rollout: two slots between two versions
        wire.seat("params", i)
    there = wire.twins[0]
    steps = [
        (0, 0.0, 0, 0),
        (1, 0.1, 1, 0),
        (2, 0.2, 2, 2),
        (3, 0.3, 3, 2),
        (4, 0.3, 4, 4),
        (5, 1.2, 4, 4),
        (6, 1.3, 4, 6),
    ]
    for version, now, landed, sent in steps:
        wire.home.landed = landed
        publish(params, version)
        wire.out(now)
        assert pulled(there) == there.round == sent
    publish(params, 7)
    wire.out(1.4)
    assert there.version == 6
    there._waiting[3] = 1
    wire.back()
    assert wire.bells[0].wait(0), "home looks again"
    wire.out(1.4)
    assert pulled(there) == 7
    there._waiting[3] = 0
    wire.back()
    publish(params, 8)
    wire.out(1.5)
    assert there.version == 7


def test_who_begins_to_wait_elsewhere_wakes_the_line():
    params = params_of()
    wire = Wire(params)
    wire.seat("params")
    there = wire.twins[0]
    while wire.bells[1].wait(0.0):
        pass
    assert not there.wait(0, 0, 0.001)
    assert wire.bells[1].wait(0.0)
    assert not params._bells[1].wait(0.0)


def test_weights_that_come_wake_who_waits_and_bring_how_many_rollouts_they_learnt_from():
    params = params_of(readers=2)
    wire = Wire(params)
    wire.seat("params", 1)
    there = wire.twins[0]
    there._waiting[1] = 1
    wire.back()
    params.publish(Vector([3.0] * 5), 3, 2, np.array([4, 6]))
    wire.out()
    assert there._bells[1].wait(0)
    assert there.wait(2, 1, 0.0, learnt=6)
    assert not there.wait(2, 1, 0.0, learnt=7)
    params.stay(slice(0, 2), np.array([7, 7]))
    wire.out()
    assert there.wait(2, 1, 0.0, learnt=7)
    assert pulled(there) == 3


def test_a_reader_that_begins_late_has_the_newest_weights_at_once():
    params = params_of(readers=2)
    publish(params, 3)
    wire = Wire(params)
    wire.seat("params", 1)
    assert pulled(wire.twins[0]) == 3


@given(moves=st.lists(st.tuples(st.sampled_from("psslbbr"), st.integers(0, 1), st.booleans()), max_size=60))
def test_weights_of_a_learner_elsewhere_are_whole_and_never_go_back_on_any_machine(moves):
    """It is on machine 0, its readers here and on machine 1: home is between."""
    params = params_of(readers=2)
    learner, actor = Wire(params, relay=0), Wire(params, relay=1)
    learner.seat("publish")
    actor.seat("params", 1)
    sides, seen, version, now = [params, actor.twins[0]], [-1, -1], 0, 0.0
    for what, i, waits in moves:
        wire, now = (learner, actor)[i], now + 0.3
        if what == "p":
            publish(learner.twins[0], version)
            version += 1
        elif what == "s":
            wire.send(now) if waits else wire.send_back(now)
        elif what == "l":
            wire.land_away(1), wire.land_home(1)
        elif what == "b":
            wire.both(now)
        elif sides[i].round >= 0:
            sides[i]._waiting[i] = waits
            new = pulled(sides[i])
            assert new >= seen[i]
            seen[i] = new
    for _ in range(2):
        now += 1.0
        learner.both(now), actor.both(now)
    if version:
        assert [pulled(side) for side in sides] == [version - 1] * 2


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
    numbers = queue_flows.words(rows)
    whole, packed = np.zeros((T, B), np.uint8), np.empty((T * B * K, numbers.shape[-1]), numbers.dtype)
    n = queue_flows.pack_planes(numbers, whole, packed)
    resets[0] = True
    assert (whole == resets).all()
    assert n == resets.sum() * K + (~resets).sum()
    back = np.full_like(rows, 77)
    queue_flows.unpack_planes(queue_flows.words(back), whole, packed[:n].copy())
    assert (back == rows).all()


@pytest.mark.parametrize("whole", [False, True])
def test_a_rollout_of_pictures_comes_home_to_the_bit_and_of_stacks_only_the_planes(whole):
    fields = {"obs": Field((K, 8, 8), "uint8"), "version": Field((), "int64"), "first": Field((), "bool")}
    queue, rng = RolloutQueue(fields, {"h": Field((2,), "float32")}, 5, 3, 4, 1), np.random.default_rng(0)
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

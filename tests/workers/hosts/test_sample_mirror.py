"""The mirror of a sample queue, driven by hand in one process: batches to learners, priorities back to memories."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from polyplay.buffers.replay_worker import SampleQueue
from polyplay.workers.hosts import agent
from polyplay.workers.hosts.mirrors import FrameError
from polyplay.workers.hosts.queue_mirrors import SampleMirror
from tests.buffers.test_replay_worker import draw, trays_of
from tests.workers.hosts.by_hand import Pair, carry, forget


@pytest.fixture(autouse=True)
def _machine():
    forget()


def pair_of(**kinds: int) -> Pair:
    samples = trays_of(**kinds)
    samples._stream.patience = 0.0
    return Pair(SampleMirror(samples))


def there_of(pair: Pair) -> SampleQueue:
    twin: SampleQueue = pair.away.samples
    twin.patience = 0.0
    return twin


def test_a_batch_comes_home_and_its_priorities_go_back_to_who_drew_it():
    pair = pair_of(memories=2)
    pair.seat(1)
    samples, writer = pair.home.samples, there_of(pair).writer(1, by=3)
    reader = samples.reader(0)
    batches = reader.batches()
    assert list(writer.back()) == []
    for number in range(10):
        writer.fill(draw(number))
        assert next(batches) is None
        pair.back()
        tray = next(batches)
        assert samples.item(tray)["id"].tolist() == [number] * 4
        assert (samples.item(tray)["obs"]["x"] == number).all()
        reader.give(tray, np.full(4, number / 2))
        pair.out()
        ((ids, priority),) = writer.back()
        assert (ids.tolist(), priority.tolist()) == ([number] * 4, [number / 2] * 4)
    assert writer.away == 0


def test_what_another_incarnation_drew_is_not_judged_by_the_next():
    pair = pair_of(memories=1)
    pair.seat(0)
    reader = pair.home.samples.reader(0)
    batches = reader.batches()
    writer = there_of(pair).writer(0, by=0)
    list(writer.back())  # all are empty at first
    writer.fill(draw(5))
    pair.back()
    reader.give(next(batches), np.ones(4))
    pair.out()
    again = pair.away.samples.writer(0, by=1)
    assert list(again.back()) == []
    assert len(again.empty) == 2


def test_what_memories_have_got_comes_and_how_far_learning_is_goes():
    pair = pair_of(memories=2)
    pair.seat(0)
    here, there = pair.home.samples, there_of(pair)
    there.writer(0).heard(40.0)
    here.writer(1).heard(2.0)
    pair.back()
    assert here.news
    assert here.fresh() == 42.0
    here.learnt(0.25, 17)
    pair.out()
    assert (there.left, there.version) == (0.25, 17)


def test_a_memory_elsewhere_is_asked_for_its_part_and_its_answer_names_it():
    pair = pair_of(memories=2)
    pair.seat(1)
    here, there = pair.home.samples, there_of(pair)
    here.ask(0, 9, last=True)
    pair.out()
    assert there.asked(1) == 9
    writer = there.writer(1)
    writer.heard(8.0)
    writer.answer(9)
    frames = [(item, [np.array(x) for x in arrays]) for item, arrays in pair.away.changes(0.0)]
    assert [pair.away.answers(item) for item, _ in frames] == [None, "act-1"]
    carry(frames, pair.home)
    assert here.late(0, 9) == [0]
    assert here.fresh(kept=True) == 8.0


def test_a_learner_elsewhere_gets_batches_of_memories_here():
    pair = pair_of(memories=2)
    pair.seat(0, end="source")
    here, there = pair.home.samples, there_of(pair)
    writers = [here.writer(m) for m in range(2)]
    reader = there.reader(0)
    batches = reader.batches()
    for number in range(10):
        for m, writer in enumerate(writers):
            assert len(list(writer.back())) == (number > 0)
            writer.fill(draw(2 * number + m))
            writer.heard(4.0)
        pair.out()
        for _ in range(2):
            tray = next(batches)
            assert set(there.item(tray)["id"].tolist()) <= {2 * number, 2 * number + 1}
            reader.give(tray, np.full(4, 0.5))
        assert there.fresh() == 8.0
        there.learnt(0.5, number)
        pair.back()
        assert here.version == number


def test_losses_at_any_time_lose_no_tray_and_tear_none():
    """A memory, its machine or the learner is lost at any point; each batch is whole and judged at most once."""
    rng, samples = random.Random(0), trays_of(memories=2)
    mirror = SampleMirror(samples)
    numbers = agent.TwinNumbers()
    pair, by, judged, lost, number = Pair(mirror, numbers), 1, set[int](), 0, 0
    pair.seat(0)

    def writers() -> list[Any]:
        return [there_of(pair).writer(0, by), samples.writer(1, by)]

    filling, reader = writers(), samples.reader(0)
    batches = reader.batches()
    for _ in range(6_000):
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
            if (tray := next(batches)) is not None:
                ids = samples.item(tray)["id"]
                assert len(set(ids.tolist())) == 1, "torn"
                reader.give(tray, ids.astype(np.float32))
        else:
            lost, by = lost + 1, by + 1
            if rng.random() < 0.5:
                forget()
                pair = Pair(SampleMirror(samples), numbers)
                pair.seat(0)
            filling = writers()
    assert lost > 200
    assert len(judged) > 300
    for _ in range(4):
        pair.back()
        while (tray := next(batches)) is not None:
            reader.give(tray, None)
        pair.out()
        for writer in filling:
            list(writer.back())
    assert [len(writer.empty) for writer in filling] == [2, 2], "a tray was lost"


@pytest.mark.parametrize("item", [0, 4, 6, 12, 15, 17, 19, 22, 99])
def test_frames_of_nobody_are_refused(item):
    pair = pair_of(memories=2)
    pair.seat(1)
    with pytest.raises(FrameError):
        pair.home.places(item)

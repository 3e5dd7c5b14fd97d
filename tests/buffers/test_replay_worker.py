"""Memories in workers of their own: what they hold, first priorities, trimming, pace, saving, what a loss costs."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.buffers import actor_checkpoint
from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.replay_buffer import ReplayBuffer
from polyplay.buffers.replay_worker import ReplayShard, SampleQueue
from polyplay.buffers.rollout_queue import ROWS as samples_ROWS
from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core import checkpoint, tree
from polyplay.core.tree import Field
from polyplay.core.worker import Counters, RunControl, WorkerContext
from tests.buffers.plain_replay import ROWS, World, live_slots

T, LANES = 5, 2
SPEC: Any = {"obs": Field((1, 2, 2), "uint8"), **ROWS, "value": Field((), "float32"), "chosen": Field((), "float32")}


class Shop:
    """A stream with an actor for each producer that plays by chance, memories, and one learner."""

    def __init__(self, memories: int = 2, actors: int = 4, slots: int = 2, **options: Any):
        self.rng = np.random.default_rng(1)
        self.queue = RolloutQueue(SPEC, {}, T, LANES, slots * actors, actors, memories)
        self.queue.patience = 0.0
        given = {"sampler": Proportional(1.0, 0.4, first="td"), "n_step": 3, "gamma": 0.9, "start": 1, **options}
        self.replay = Replay(SPEC, actors // memories * LANES, **{"capacity": 400, "batch": 8, **given})
        self.samples = SampleQueue(self.replay, self.queue)
        self.samples.patience = 0.0
        self.worlds = [World(self.rng, LANES, 0, "zeros") for _ in range(actors)]
        self.last: list[Any] = [self._rows(p, 1) for p in range(actors)]
        self.producers = [self.queue.producer(p) for p in range(actors)]
        self.reader = self.samples.reader(0)

    def _rows(self, p: int, n: int) -> dict[str, np.ndarray]:
        rows = self.worlds[p].rows(n, np.arange(LANES))
        outputs = {k: self.rng.normal(size=(n, LANES)).astype(np.float32) for k in ("value", "chosen")}
        return rows | outputs

    def play(self, p: int) -> dict[str, np.ndarray] | None:
        """A rollout of actor `p`: the rows that are to be remembered; None: there is no slot for it."""
        slot = self.producers[p].slot()
        if slot is None:
            return None
        new = self._rows(p, T)
        rows = {k: np.concatenate([self.last[p][k], new[k]]) for k in new}
        self.last[p] = {k: v[-1:] for k, v in rows.items()}
        into = tree.at(self.producers[p].rows, slot)
        for k, v in rows.items():
            into[k][:] = v
        self.producers[p].commit(slot)
        return {k: v[:-1] for k, v in rows.items()}

    def ctx(self, index: int, **more: Any) -> WorkerContext:
        warnings: list[str] = []
        given = {"role": "serve_replay", "index": index, "n": 2, "row": index, "seed": 7} | more
        ctx = WorkerContext(**given, all_counters=Counters(4), control=RunControl(), patience=0.0)
        ctx.log = lambda kind, text: warnings.append(text)
        ctx.warnings = warnings  # type: ignore[attr-defined]
        return ctx

    def shard(self, index: int, trim: int = 0, **more: Any) -> ReplayShard:
        return ReplayShard(self.ctx(index, **more), self.queue, self.samples, trim)


def priorities(buffer: ReplayBuffer) -> dict[int, float]:
    """Of all items that may be drawn, by id."""
    slots = live_slots(buffer.index)
    return dict(zip(buffer.index.id[slots].tolist(), buffer.priorities(slots).tolist(), strict=True))


def taken(shard: ReplayShard) -> int:
    """Rows that it inserted."""
    return int(shard.buffer.index.lane[0].sum())


def test_each_memory_holds_its_actors_rows_as_a_buffer_of_its_own_would():
    shop = Shop()
    shards, alone = [shop.shard(m) for m in range(2)], [shop.replay.open(7) for _ in range(2)]
    for turn in range(12):
        p = turn % 4
        alone[p % 2].add(shop.play(p), np.arange(LANES) + p // 2 * LANES)
        while shards[p % 2].queue.depth:
            shards[p % 2].step()
    for shard, buffer in zip(shards, alone, strict=True):
        assert priorities(shard.buffer) == priorities(buffer)
        assert taken(shard) == 6 * T * LANES


def test_what_is_learnt_changes_the_priorities_of_the_memory_that_drew_it():
    shop = Shop()
    shards = [shop.shard(m) for m in range(2)]
    for p in range(4):
        shop.play(p)
    for shard in shards:
        while shard.step():
            pass
    before = [priorities(s.buffer) for s in shards]
    slot = next(shop.reader.batches())
    ids = shop.samples.item(slot)["id"].tolist()
    shop.reader.give(slot, np.arange(8) + 50.0)
    for shard in shards:
        shard.update_priorities()
    assert priorities(shards[0].buffer) == pytest.approx(before[0] | dict(zip(ids, range(50, 58), strict=True)))
    assert priorities(shards[1].buffer) == before[1]


def test_a_soft_memory_is_trimmed_by_the_learners_updates_the_oldest_first():
    shop = Shop(memories=1, actors=2, capacity=48, soft=True)
    shard = shop.shard(0, trim=100)
    for world in shop.worlds:
        world.events = ("go",)
    for turn in range(12):
        shop.play(turn % 2)
        shard.step()
    index = shard.buffer.index
    assert shard.buffer.size > 48, "nothing waits for the trimming"
    ages = sorted(index.arrival[live_slots(index)].tolist())
    for updates, size in ((99, len(ages)), (100, 48), (199, 48)):
        shop.samples.learnt(0.5, updates)
        shard.update_priorities()
        assert shard.buffer.size == size
    assert sorted(index.arrival[live_slots(index)].tolist()) == ages[-48:]
    assert shard.trimmed == 1


def finish(turns: Any) -> None:
    for _ in turns:
        pass


def test_what_is_saved_goes_on_and_what_was_drawn_and_not_learnt_is_owed_again(tmp_path):
    shop = Shop(memories=2, actors=2)
    shards = [shop.shard(m, directory=tmp_path) for m in range(2)]
    for turn in range(6):
        shop.play(turn % 2)
        shards[turn % 2].step()
    for p in range(2):
        shop.queue.answer(p, 3)  # the actors have written theirs
    next(shop.reader.gather(3, 0.0))
    for shard in shards:
        assert shop.samples.asked(shard.writer.m) == 3
        finish(shard.save(3))
        assert shop.samples.asked(shard.writer.m) is None
    assert shop.samples.failed(0) == []
    sampled = shards[1].buffer.sampled
    assert shop.samples.depth == 4
    path = checkpoint.complete(tmp_path, 3, {})
    again = Shop(memories=2, actors=2)
    loaded = again.shard(1, resume=path)
    assert priorities(loaded.buffer) == priorities(shards[1].buffer)
    assert loaded.buffer.steps == shards[1].buffer.steps
    assert loaded.buffer.sampled == sampled - 2 * 8
    assert again.queue.base[1] == 3
    assert actor_checkpoint._queue_end(again.ctx(0, resume=path), 1)["taken"] == {"1": 3}


def test_actors_write_their_parts_once_their_own_memory_stands_still(tmp_path):
    """Else what is in flight then would be in the buffer, too, and come once more in a resumed run."""
    shop = Shop(memories=2, actors=2)
    shards = [shop.shard(m, directory=tmp_path) for m in range(2)]
    for p in range(2):
        shop.play(p)
    next(shop.reader.gather(3, 0.0))
    saves = [shards[0].save(3), shards[1].save(3)]
    next(saves[0])
    assert [shop.queue.asked(p) for p in range(2)] == [3, None], "buffer 1 is still at work"
    while shards[1].step():
        pass
    assert taken(shards[1]) == T * LANES
    next(saves[1])
    assert shop.queue.asked(1) == 3
    assert shop.producers[1].flight() == {}, "what it took is not in flight"


def test_a_new_memory_owes_nothing_for_what_the_lost_one_drew(tmp_path):
    shop = Shop(memories=1, actors=1, ratio=2.0)
    shard = shop.shard(0)
    for _ in range(3):
        shop.play(0)
        while shard.step():
            pass
    assert shop.samples.depth == 2
    new = shop.shard(0, incarnation=1, directory=tmp_path)
    assert new.writer.away == 0
    shop.queue.answer(0, 3)
    shop.samples.ask(0, 3)
    finish(new.save(3))
    again = Shop(memories=1, actors=1, ratio=2.0).shard(0, resume=checkpoint.complete(tmp_path, 3, {}))
    assert again.buffer.sampled == 0


def test_a_part_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    shop = Shop(memories=1, actors=1)
    shard = shop.shard(0, directory=tmp_path)
    shop.queue.answer(0, 3)
    shop.samples.ask(0, 3)

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shard.buffer, "save", full)
    finish(shard.save(3))
    assert shop.samples.failed(0) == [0]
    assert "No space left" in shard.ctx.warnings[0]  # type: ignore[attr-defined]


# Drawn batches and their priorities: each comes whole, once, and goes back to who drew it, whoever dies meanwhile.

SAMPLES_SPEC: Any = {"obs": {"x": Field((3,), "float32")}, "action": Field((), "int64"), **samples_ROWS}


def slots_of(memories: int = 2, learners: int = 1, depth: int = 2, batch: int = 4) -> SampleQueue:
    queue = RolloutQueue(SAMPLES_SPEC, {}, T=2, lanes=1, slots=2 * memories, producers=memories, consumers=memories)
    made = SampleQueue(Replay(SAMPLES_SPEC, 1, capacity=50, batch=batch), queue, learners, depth)
    made.patience = 0.0
    return made


def draw(number: int) -> Any:
    """As a memory's sample that consists of one number."""

    def fill(item: Any) -> None:
        item["obs"]["x"][:] = number
        item["id"][:] = number

    return fill


@settings(max_examples=40, deadline=None)
@given(
    memories=st.integers(1, 3),
    learners=st.integers(1, 3),
    depth=st.integers(1, 3),
    moves=st.lists(st.tuples(st.sampled_from("ftgb"), st.integers(0, 2)), max_size=80),
)
def test_any_order_of_moves_is_that_of_plain_queues(memories, learners, depth, moves):
    samples = slots_of(memories, learners, depth)
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
            slot = next(batches[c])
            there = {m for m in range(memories) if full[m][c]}
            assert (slot is not None) == bool(there)
            if slot is not None:
                found = int(samples.item(slot)["id"][0])
                (m,) = [m for m in there if full[m][c][0] == found]
                full[m][c].popleft()
                held[c].append((m, slot, found))
        elif move == "g" and held[c]:
            m, slot, found = held[c].popleft()
            takers[c].give(slot, np.full(4, float(found)))
            back[m][c].append(found)
        elif move == "b":
            told = [(int(i[0]), float(p[0])) for i, p in fillers[m].back()]
            want = [n for ring in back[m] for n in ring]
            assert told == [(n, float(n)) for n in want]
            away[m] -= len(want)
            back[m] = [deque() for _ in range(learners)]
    for m in range(memories):
        assert fillers[m].away == away[m] <= learners * depth


def test_what_a_lost_memory_was_filling_is_nobodys_and_what_it_drew_is_judged_by_nobody():
    samples = slots_of(memories=1, depth=2)
    filler, taker = samples.writer(0), samples.reader(0)
    batches = taker.batches()
    list(filler.back())
    filler.fill(draw(1))
    samples.item(filler.empty[0])["id"][:2] = 99  # killed in the middle of its next one
    new = samples.writer(0, by=1)
    assert len(new.empty) == 1
    slot = next(batches)
    assert samples.item(slot)["id"].tolist() == [1] * 4
    assert next(batches) is None, "a half-filled slot is never taken"
    taker.give(slot, np.ones(4))
    assert list(new.back()) == [], "its ids belong to another memory"
    assert len(new.empty) == 2
    new.fill(draw(3))
    slot = next(batches)
    taker.give(slot, np.ones(4))
    assert [i.tolist() for i, _ in new.back()] == [[3] * 4]


def test_what_a_lost_learner_held_goes_back_unjudged():
    samples = slots_of(memories=2, learners=2, depth=1)
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
    samples = slots_of(memories=2)
    fillers, taker = [samples.writer(m) for m in range(2)], samples.reader(0)
    assert [samples.asked(m) for m in range(2)] == [None, None]
    waiting = taker.gather(0, 0.0)
    next(waiting)
    assert [samples.asked(m) for m in range(2)] == [0, 0]
    fillers[0].inserted(12.0)
    fillers[0].answer(0)
    fillers[0].inserted(5.0)
    next(waiting)
    fillers[1].answer(0, failed=True)
    assert list(waiting) == []
    assert samples.failed(0) == [1]
    assert (samples.fresh(kept=True), samples.news) == (12.0, True)
    assert (samples.fresh(), samples.fresh(), samples.news) == (5.0, 0.0, False)

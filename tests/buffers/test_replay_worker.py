"""Memories in workers of their own: what they hold, first priorities, trimming, pace, saving, what a loss costs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from typing import Any

import numpy as np
import pytest

from polyplay.buffers import actor_checkpoint
from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.replay_worker import ReplayShard, SampleQueue, serve_replay
from polyplay.buffers.rollout_queue import READING, RolloutQueue
from polyplay.core import checkpoint, tree
from polyplay.core.errors import Closed
from polyplay.core.tree import Field
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.workers.process import CloudPickled, no_main
from tests.buffers.plain_replay import ROWS, Plain, World, live_slots

T, LANES = 5, 2
SPEC: Any = {"obs": Field((1, 2, 2), "uint8"), **ROWS, "value": Field((), "float32"), "chosen": Field((), "float32")}


class Valued(Plain):
    """The twin, with the policy's outputs at both ends of a transition."""

    def transition(self, rows, t, m):
        made = super().transition(rows, t, m)
        error = abs(made["return"] + made["discount"] * rows[t + m]["value"] - rows[t]["chosen"])
        return made | {"priority": error}


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
        ctx.say = lambda kind, text: warnings.append(text)
        ctx.warnings = warnings  # type: ignore[attr-defined]
        return ctx

    def shard(self, index: int, trim: int = 0, **more: Any) -> ReplayShard:
        return ReplayShard(self.ctx(index, **more), self.queue.batches(1), self.samples, trim)


def priorities(shard: ReplayShard) -> dict[int, float]:
    """Of all items that may be drawn, by id."""
    index = shard.buffer.index
    slots = live_slots(index)
    return dict(zip(index.ids(slots).tolist(), shard.buffer.sampler.priorities(slots).tolist(), strict=True))


def alive(shard: ReplayShard) -> set[int]:
    return set(priorities(shard))


def taken(shard: ReplayShard) -> int:
    """Rows that it inserted."""
    return int(shard.buffer.index.lane[0].sum())


def test_each_memory_holds_its_actors_rows_with_the_priorities_of_the_twin():
    shop = Shop()
    shards, twins = [shop.shard(m) for m in range(2)], [Valued(shop.replay) for _ in range(2)]
    for turn in range(12):
        p = turn % 4
        twins[p % 2].add(shop.play(p), np.arange(LANES) + p // 2 * LANES)
        while shards[p % 2].queue.depth:
            shards[p % 2].step()
    for shard, twin in zip(shards, twins, strict=True):
        items = twin.items()
        assert alive(shard) == set(items)
        assert priorities(shard) == pytest.approx({i: x["priority"] for i, x in items.items()}, rel=1e-4, abs=1e-5)
        assert taken(shard) == 6 * T * LANES


def test_what_is_learnt_changes_the_priorities_of_the_memory_that_drew_it():
    shop = Shop()
    shards = [shop.shard(m) for m in range(2)]
    for p in range(4):
        shop.play(p)
    for shard in shards:
        while shard.step():
            pass
    before = [priorities(s) for s in shards]
    tray = next(shop.reader.batches())
    ids = shop.samples.item(tray)["id"].copy()
    shop.reader.give(tray, np.arange(8) + 50.0)
    for shard in shards:
        shard.update_priorities()
    after = priorities(shards[0])
    assert {i: after[i] for i in set(ids.tolist())} == pytest.approx(
        dict(zip(ids.tolist(), range(50, 58), strict=True))
    )
    assert {i: p for i, p in after.items() if i not in ids} == {i: p for i, p in before[0].items() if i not in ids}
    assert priorities(shards[1]) == before[1]


def test_weights_of_a_shards_batch_are_those_over_all_shards():
    """Of equally many items in each, drawn from in turn, an item's chance is P/shards: (N·P)^-β, over its maximum."""
    shop, m, beta = Shop(), 2, 0.4
    shards = [shop.shard(i) for i in range(m)]
    for turn in range(8):
        shop.play(turn % 4)
        shards[turn % 2].step()
    shard = shards[0]
    size, mass = shard.buffer.index.size, sum(priorities(shard).values())
    item = shop.samples.item(0)
    shard.buffer.sample(into=item)
    chance = np.array([priorities(shard)[i] for i in item["id"].tolist()]) / mass / m
    weight = (m * size * chance) ** -beta
    assert item["weight"] == pytest.approx(weight / weight.max(), rel=1e-4)


def test_a_soft_memory_is_trimmed_by_the_learners_updates_the_oldest_first():
    shop = Shop(memories=1, actors=2, capacity=48, soft=True)
    shard = shop.shard(0, trim=100)
    for world in shop.worlds:
        world.events = ("go",)
    for turn in range(12):
        shop.play(turn % 2)
        shard.step()
    index, most = shard.buffer.index, shop.replay.rows * 4
    assert 48 < index.size <= most, "nothing waits for the trimming"
    shop.samples.learnt(0.5, 99)
    shard.update_priorities()
    assert index.size > 48
    slots = live_slots(index)
    ages = sorted(zip(index.arrival[slots].tolist(), slots.tolist(), strict=True))
    oldest = ages[len(ages) - 48][0]  # the twin: of all, sorted, the newest 48 stay
    shop.samples.learnt(0.5, 100)
    shard.update_priorities()
    assert index.size == 48
    kept = index.arrival[live_slots(index)]
    assert kept.min() == oldest
    shop.samples.learnt(0.5, 199)
    shard.update_priorities()
    assert shard.trimmed == 1


@pytest.mark.parametrize("ratio", [None, 2.0])
def test_with_a_ratio_both_sides_wait_for_each_other_and_without_none_does(ratio):
    shop = Shop(memories=1, actors=1, slots=4, ratio=ratio, start=20, batch=16)
    shard, taker = shop.shard(0), shop.reader.batches()
    played = 0
    for _ in range(40):
        played += shop.play(0) is not None
        shard.step()
    assert shop.samples.depth == 2, "as many as there are trays"
    drawn = shard.buffer.sampled // 16
    if ratio is None:
        assert (played, taken(shard)) == (40, 40 * T * LANES)
        return
    assert played < 40
    behind = (shard.buffer.limiter.steps - 20) * ratio / 16 - drawn
    assert 2 <= behind < 2 + 1 + T * LANES * ratio / 16
    learnt = 0
    for _ in range(60):
        shop.play(0)
        shard.step()
        tray = next(taker)
        if tray is not None:
            shop.reader.give(tray, np.ones(8 * 2))
            learnt += 1
    steps = shard.buffer.limiter.steps
    assert learnt > 10
    assert learnt + 2 + 3 + T * LANES * ratio / 16 >= (steps - 20) * ratio / 16 >= learnt


def test_a_lost_memory_is_replaced_by_an_empty_one_and_nobody_waits_for_it():
    shop = Shop(memories=1, actors=1, slots=2)
    shard = shop.shard(0)
    shop.play(0)
    while shard.step():
        pass
    shop.play(0)
    held = next(shard.rollouts)  # it is lost while it reads
    assert held is not None
    assert (shop.queue.use == READING).any()
    before = shop.samples.depth
    assert before
    new = shop.shard(0, incarnation=1)
    assert "starts empty" in new.ctx.warnings[0]  # type: ignore[attr-defined]
    assert new.buffer.index.size == 0
    assert shop.samples.depth == before, "what was drawn is learnt"
    assert len(shop.queue._empty[0]) == 2, "its slots went back to the actor"
    assert shop.play(0) is not None
    assert new.step()
    assert taken(new) == T * LANES


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
    assert priorities(loaded) == priorities(shards[1])
    assert loaded.buffer.limiter.steps == shards[1].buffer.limiter.steps
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


def test_the_worker_takes_turns_until_all_is_closed():
    shop = Shop(memories=1, actors=1)
    turns = serve_replay(shop.ctx(0), source=shop.queue.batches(1), out=shop.samples)
    shop.play(0)
    for _ in range(4):
        next(turns)
    assert shop.samples.depth == 2
    assert shop.samples.fresh() > 0


def work(cargo: Any, incarnation: int) -> None:
    source, samples, all_counters, control = cargo
    ctx = WorkerContext("serve_replay", 0, 1, 0, 7, all_counters, control, incarnation=incarnation)
    with contextlib.suppress(Closed):
        for _ in serve_replay(ctx, source=source, out=samples):
            ctx.turn()


def test_a_memory_that_is_killed_as_a_process_leaves_nothing_half_written():
    shop, all_counters, control = Shop(memories=1, actors=1, slots=4, start=20), Counters(1), RunControl()
    shop.queue.patience = 0.02
    known: dict[int, np.ndarray] = {}  # every row's picture, by its action, which is another one in each row

    def start(incarnation: int) -> Any:
        cargo = CloudPickled((shop.queue.batches(1), shop.samples, all_counters, control))
        with no_main():
            process = multiprocessing.get_context("spawn").Process(target=work, args=(cargo, incarnation), daemon=True)
            process.start()
        return process

    def learn(batches: int) -> None:
        until, taken = time.monotonic() + 100, 0
        while taken < batches:
            assert time.monotonic() < until
            rows = shop.play(0)
            if rows is not None:
                obs, action = (rows[k].reshape(T * LANES, *rows[k].shape[2:]) for k in ("obs", "action"))
                known.update(zip(action.tolist(), obs, strict=True))
            tray = next(samples)
            if tray is None:
                time.sleep(0.002)
                continue
            item = shop.samples.item(tray)
            for i, action in enumerate(item["action"].tolist()):
                assert np.array_equal(item["obs"][0, i], known[action])
            shop.reader.give(tray, np.ones(8))
            taken += 1

    samples = shop.reader.batches()
    process = start(0)
    try:
        learn(30)
        os.kill(process.pid, signal.SIGKILL)  # wherever it is
        process.join()
        process = start(1)
        learn(30)
        assert shop.samples.depth <= shop.samples.slots
    finally:
        control.halt()
        shop.queue.close()
        process.join(20)
    assert process.exitcode == 0

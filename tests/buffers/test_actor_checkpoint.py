"""Parts of checkpoints that actors write, and learners that wait for them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polyplay.buffers import actor_checkpoint
from polyplay.buffers.actor_checkpoint import answer_save, load_actor, lost_lanes, saved_counters, wait_for_actors
from polyplay.buffers.rollout_queue import READING, ROWS, RolloutQueue
from polyplay.core import checkpoint
from polyplay.core.checkpoint import CheckpointPart
from polyplay.core.errors import Closed
from polyplay.core.tree import Field
from polyplay.core.worker import Counters, RunControl, WorkerContext


class Shop:
    """Two actors that feed one learner or two, and what they warn of."""

    def __init__(self, directory: Path, learners: int = 1):
        self.directory, self.warnings = directory, list[str]()
        rows = {"obs": Field((2,), "float32"), **ROWS}
        self.queue = RolloutQueue(rows, {}, T=2, lanes=1, slots=4, producers=2, consumers=learners)
        self.queue.patience = 0.0
        self.ends = [self.queue.producer(p) for p in range(2)]
        self.learner = self.ctx("learn")
        self.one, self.two = (self.ctx("act", i) for i in range(2))

    def ctx(self, role: str, index: int = 0) -> WorkerContext:
        ctx = WorkerContext(role, index, 1, 0, 7, Counters(2), RunControl())
        ctx.directory, ctx.patience, ctx.log = self.directory, 0.0, lambda kind, text: self.warnings.append(text)
        return ctx

    def waiting(self, version: int, **more: Any) -> Any:
        """A learner that has begun to wait."""
        waits = wait_for_actors(self.learner, self.queue, version, **more)
        next(waits)
        return waits

    def saved(self, version: int) -> list[Any]:
        return saved_counters(checkpoint.partial(self.directory, version))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(actor_checkpoint, "SAVE_TIMEOUT", 60.0)
    return Shop(tmp_path)


def actor_of(state: Any = None, between: bool = True, late: bool = False) -> SimpleNamespace:
    games = SimpleNamespace(length=np.array([3.0, 0.0, 5.0, 2.0]), over=np.array([False, False, True, False]))
    pool = SimpleNamespace(unsaved="" if state else "of a reason")
    return SimpleNamespace(games=games, save=lambda: state, first_lane=4, pool=pool, between=between, late=lambda: late)


SAVED = actor_of({"acts": np.arange(3)})


def finish(generator: Any) -> Any:
    try:
        while True:
            next(generator)
    except StopIteration as e:
        return e.value


def test_a_part_reports_counters_and_what_is_lost(shop: Shop):
    shop.one.counters.add("steps", 40)
    shop.one.counters.episode(1.0, 5, 0)
    flight = {"0": {"rows": {"x": np.arange(2)}}}
    actor_checkpoint.save_actor(shop.one, CheckpointPart(shop.directory, 3), actor_of(), flight)
    counts = {"first_lane": 4, "lanes": 4, "steps": 40, "episodes": 1, "tasks": [], "partial": 2, "partial_steps": 5}
    assert shop.saved(3) == [{**counts, "why": "of a reason"}]
    part = checkpoint.partial(shop.directory, 3)
    said = "4 lanes restart, from seed 9: 2 partial episodes (5 agent steps) are lost, since of a reason"
    assert lost_lanes(part, 9) == said
    checkpoint.write_json(part / "workers/stream-0.json", {"taken": {"0": 1}, "lost": []})
    shop.one.resume = checkpoint.complete(shop.directory, 3, {})
    assert load_actor(shop.one, consumers=1)["flight"]["0"]["rows"]["x"].tolist() == [0, 1]
    shop.one.incarnation = 1001  # a replacement begins anew
    assert load_actor(shop.one, consumers=1) == {}


def test_a_learner_waits_for_its_actors_and_goes_without_those_that_do_not_answer(shop: Shop, monkeypatch):
    waits = shop.waiting(5)
    assert answer_save(shop.one, SAVED, shop.ends[0])
    assert not answer_save(shop.one, SAVED, shop.ends[0]), "once"
    assert not answer_save(shop.two, actor_of(between=False), shop.ends[1])
    next(waits)
    assert shop.queue.late(0, 5) == [1]
    monkeypatch.setattr(actor_checkpoint, "SAVE_TIMEOUT", 0.0)
    assert finish(wait_for_actors(shop.learner, shop.queue, 5)) == [1]
    assert "without what actors 1 do" in shop.warnings[0]
    answer_save(shop.two, actor_of(), shop.ends[1])  # too late
    assert len(shop.saved(5)) == 1
    actor_checkpoint.save_queue_end(shop.learner, CheckpointPart(shop.directory, 5), shop.queue, [1])
    shop.one.resume = shop.two.resume = checkpoint.complete(shop.directory, 5, {})
    assert load_actor(shop.two, consumers=1) == {}
    assert actor_checkpoint.rollouts_learnt(shop.one, shop.queue) == [0, 0]


def test_an_actor_whose_rollout_outlasts_the_run_is_not_waited_for(shop: Shop):
    waits = shop.waiting(5)
    answer_save(shop.one, SAVED, shop.ends[0])
    late = actor_of(between=False, late=True)
    assert [answer_save(shop.two, late, shop.ends[1]) for _ in range(2)] == [True, False]
    assert finish(waits) == [1]
    assert len(shop.saved(5)) == 1


def test_an_actor_rests_once_it_has_written_its_part_of_the_last_checkpoint(shop: Shop):
    waits = shop.waiting(5, last=True)
    assert list(actor_checkpoint.rest_at_end(shop.one, shop.ends[0])) == [], "its part comes first"
    for ctx, end in zip((shop.one, shop.two), shop.ends, strict=True):
        assert answer_save(ctx, SAVED, end)
    assert finish(waits) == []
    resting = actor_checkpoint.rest_at_end(shop.one, shop.ends[0])
    for _ in range(3):
        next(resting)
    shop.queue.close()
    with pytest.raises(Closed):
        next(resting)


def test_a_resumed_actor_lacks_what_was_being_read_only_where_all_take_turns(shop: Shop):
    shop.queue.turns[0] = 5
    shop.queue._empty[0].take(shop.queue.use, READING)
    ctx = shop.learner
    actor_checkpoint.save_queue_end(ctx, CheckpointPart(shop.directory, 5), shop.queue, [])
    CheckpointPart(shop.directory, 6).json("workers/stream-0", {"taken": {"0": 3, "1": 4}, "lost": []})  # of before
    for version, read, turn in ((5, 1, 5), (6, 0, 7)):
        ctx.resume = checkpoint.complete(shop.directory, version, {})
        assert actor_checkpoint.slots_read(ctx, shop.queue) == read
        assert actor_checkpoint.saved_turn(ctx, shop.queue) == turn
    ctx.resume, ctx.patience = checkpoint.everything(shop.directory)[0], 0.1
    assert actor_checkpoint.slots_read(ctx, shop.queue) == 0


def test_an_actor_that_cannot_write_is_left_out(shop: Shop):
    (shop.directory / "checkpoints").write_text("in the way")
    waits = shop.waiting(2)
    for ctx, end in zip((shop.one, shop.two), shop.ends, strict=True):
        answer_save(ctx, actor_of(), end)
    assert finish(waits) == [0, 1]
    assert "without what actor 0 does" in shop.warnings[0]


def test_actors_that_were_not_saved_are_named(tmp_path: Path):
    (tmp_path / "workers").mkdir()
    report = {"lanes": 8, "partial": 3, "partial_steps": 1234, "why": ""}
    (tmp_path / "workers/act-0.json").write_text(json.dumps(report))
    lost = "lanes of actors 1 restart, from seed 7: their state was not saved"
    for names, said in (([], ""), ([1], lost)):
        (tmp_path / "workers/stream-0.json").write_text(json.dumps({"taken": {"0": 3, "1": 3}, "lost": names}))
        assert lost_lanes(tmp_path, 7) == said
    (tmp_path / "workers/act-0.json").unlink()
    assert "all lanes restart, from seed 7" in lost_lanes(tmp_path, 7)


def test_who_goes_without_an_actor_leaves_others_theirs(tmp_path: Path, monkeypatch):
    shop = Shop(tmp_path, learners=2)
    one, two = (shop.ctx("serve_replay", i) for i in range(2))
    waits = wait_for_actors(two, shop.queue, 5)
    next(waits)
    monkeypatch.setattr(actor_checkpoint, "SAVE_TIMEOUT", 0.0)
    assert finish(wait_for_actors(one, shop.queue, 5)) == [0]
    assert [shop.queue.asked(p) for p in range(2)] == [None, 5]
    answer_save(shop.two, SAVED, shop.ends[1])
    assert finish(waits) == []

"""Parts of checkpoints that actors write, and learners that wait for them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from polyplay.buffers import actor_checkpoint
from polyplay.buffers.rollout_queue import READING, ROWS, RolloutQueue
from polyplay.core import checkpoint
from polyplay.core.errors import Closed
from polyplay.core.tree import Field
from polyplay.core.worker import Counters, RunControl, WorkerContext

SPEC = {"obs": Field((2,), "float32"), **ROWS}


def context_of(tmp_path, **kw) -> tuple[WorkerContext, list]:
    warnings: list = []
    ctx = WorkerContext(
        **{"role": "act", "index": 0, "n": 1, "row": 0, "seed": 7} | kw, all_counters=Counters(2), control=RunControl()
    )
    ctx.directory, ctx.patience, ctx.log = tmp_path, 0.0, lambda kind, text: warnings.append(text)
    return ctx, warnings


def actor_of(state, between: bool = True, late: bool = False) -> SimpleNamespace:
    games = SimpleNamespace(length=np.array([3.0, 0.0, 5.0, 2.0]), over=np.array([False, False, True, False]))
    pool = SimpleNamespace(unsaved="" if state else "of a reason")
    more = {"between": between, "late": lambda: late}
    return SimpleNamespace(games=games, save=lambda: state, first_lane=4, pool=pool, **more)


def queue_of(producers: int = 2) -> RolloutQueue:
    queue = RolloutQueue(SPEC, {}, T=2, lanes=1, slots=2 * producers, producers=producers)
    queue.patience = 0.0
    return queue


def finish(generator):
    try:
        while True:
            next(generator)
    except StopIteration as e:
        return e.value


def test_a_part_reports_counters_and_what_is_lost(tmp_path):
    ctx, _ = context_of(tmp_path)
    ctx.counters.add("steps", 40)
    ctx.counters.episode(1.0, 5, 0)
    actor_checkpoint.save_actor(
        ctx, checkpoint.CheckpointPart(tmp_path, 3), actor_of(None), {"0": {"rows": {"x": np.arange(2)}}}
    )
    (report,) = actor_checkpoint.saved_counters(checkpoint.partial(tmp_path, 3))
    counts = {"first_lane": 4, "lanes": 4, "steps": 40, "episodes": 1, "partial": 2, "partial_steps": 5}
    assert report == {**counts, "why": "of a reason"}
    line = actor_checkpoint.lost_lanes(checkpoint.partial(tmp_path, 3), 9)
    assert line == "4 lanes begin anew, from seed 9: 2 partial episodes (5 agent steps) are lost, since of a reason"
    checkpoint.write_json(checkpoint.partial(tmp_path, 3) / "workers/stream-0.json", {"taken": {"0": 1}, "lost": []})
    ctx.resume = checkpoint.complete(tmp_path, 3, {})
    assert actor_checkpoint.load_actor(ctx, consumers=1)["flight"]["0"]["rows"]["x"].tolist() == [0, 1]
    ctx.incarnation = 1001  # a replacement begins anew
    assert actor_checkpoint.load_actor(ctx, consumers=1) == {}


def test_a_learner_waits_for_its_actors_and_goes_without_those_that_do_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(actor_checkpoint, "SAVE_TIMEOUT", 60.0)
    queue = queue_of()
    ends = [queue.producer(p) for p in range(2)]
    ctx, warnings = context_of(tmp_path, role="learn")
    one, two = (context_of(tmp_path, index=i)[0] for i in range(2))
    waiting = actor_checkpoint.wait_for_actors(ctx, queue, 5)
    next(waiting)
    assert actor_checkpoint.answer_save(one, actor_of({"acts": np.arange(3)}), ends[0])
    assert not actor_checkpoint.answer_save(one, actor_of({"acts": np.arange(3)}), ends[0]), "once"
    assert not actor_checkpoint.answer_save(two, actor_of(None, between=False), ends[1])
    next(waiting)
    assert queue.late(0, 5) == [1]
    monkeypatch.setattr(actor_checkpoint, "SAVE_TIMEOUT", 0.0)
    assert finish(actor_checkpoint.wait_for_actors(ctx, queue, 5)) == [1]
    assert "without what actors 1 do" in warnings[0]
    actor_checkpoint.answer_save(two, actor_of(None), ends[1])  # too late
    assert len(actor_checkpoint.saved_counters(checkpoint.partial(tmp_path, 5))) == 1
    actor_checkpoint.save_queue_end(ctx, checkpoint.CheckpointPart(tmp_path, 5), queue, [1])
    one.resume = two.resume = checkpoint.complete(tmp_path, 5, {})
    assert actor_checkpoint.load_actor(two, consumers=1) == {}
    assert actor_checkpoint.rollouts_learnt(one, queue) == [0, 0]


def test_an_actor_whose_rollout_outlasts_the_run_is_not_waited_for(tmp_path):
    queue = queue_of()
    ends = [queue.producer(p) for p in range(2)]
    ctx, _ = context_of(tmp_path, role="learn")
    one, two = (context_of(tmp_path, index=i)[0] for i in range(2))
    waiting = actor_checkpoint.wait_for_actors(ctx, queue, 5)
    next(waiting)
    actor_checkpoint.answer_save(one, actor_of({"acts": np.arange(3)}), ends[0])
    assert actor_checkpoint.answer_save(two, actor_of({}, between=False, late=True), ends[1])
    assert not actor_checkpoint.answer_save(two, actor_of({}, between=False, late=True), ends[1]), "once"
    assert finish(waiting) == [1]
    assert len(actor_checkpoint.saved_counters(checkpoint.partial(tmp_path, 5))) == 1


def test_an_actor_rests_once_it_has_written_its_part_of_the_last_checkpoint(tmp_path):
    queue = queue_of()
    ends = [queue.producer(p) for p in range(2)]
    one, two = (context_of(tmp_path, index=i)[0] for i in range(2))
    waiting = actor_checkpoint.wait_for_actors(context_of(tmp_path, role="learn")[0], queue, 5, last=True)
    next(waiting)
    assert list(actor_checkpoint.rest_at_end(one, ends[0])) == [], "its part comes first"
    for ctx, end in zip((one, two), ends, strict=True):
        assert actor_checkpoint.answer_save(ctx, actor_of({"acts": np.arange(3)}), end)
    assert finish(waiting) == []
    resting = actor_checkpoint.rest_at_end(one, ends[0])
    for _ in range(3):
        next(resting)
    queue.close()
    with pytest.raises(Closed):
        next(resting)


def test_a_resumed_actor_lacks_what_was_being_read_only_where_all_take_turns(tmp_path):
    queue = queue_of(1)
    queue.turns[0] = 5
    queue._empty[0].take(queue.use, READING)
    ctx, _ = context_of(tmp_path, role="learn")
    actor_checkpoint.save_queue_end(ctx, checkpoint.CheckpointPart(tmp_path, 5), queue, [])
    ctx.resume = checkpoint.complete(tmp_path, 5, {})
    assert (actor_checkpoint.slots_read(ctx, queue), actor_checkpoint.saved_turn(ctx, queue)) == (1, 5)
    ctx.patience = 0.1
    assert actor_checkpoint.slots_read(ctx, queue) == 0


def test_a_checkpoint_without_turns_loads(tmp_path):
    queue, (ctx, _) = queue_of(2), context_of(tmp_path, role="learn")
    before = {"taken": {"0": 3, "1": 4}, "lost": []}
    checkpoint.CheckpointPart(tmp_path, 5).json("workers/stream-0", before)
    ctx.resume = checkpoint.complete(tmp_path, 5, {})
    assert (actor_checkpoint.slots_read(ctx, queue), actor_checkpoint.saved_turn(ctx, queue)) == (0, 7)


def test_an_actor_that_cannot_write_is_left_out(tmp_path):
    (tmp_path / "checkpoints").write_text("in the way")
    queue = queue_of(1)
    end, (ctx, warnings) = queue.producer(0), context_of(tmp_path)
    waiting = actor_checkpoint.wait_for_actors(context_of(tmp_path)[0], queue, 2)
    next(waiting)
    actor_checkpoint.answer_save(ctx, actor_of(None), end)
    assert finish(waiting) == [0]
    assert "without what actor 0 does" in warnings[0]


def test_actors_that_were_not_saved_are_named(tmp_path):
    (tmp_path / "workers").mkdir()
    report = {"lanes": 8, "partial": 3, "partial_steps": 1234, "why": ""}
    (tmp_path / "workers/act-0.json").write_text(json.dumps(report))
    (tmp_path / "workers/stream-0.json").write_text(json.dumps({"taken": {"0": 3, "1": 3}, "lost": []}))
    assert actor_checkpoint.lost_lanes(tmp_path, 7) == ""
    (tmp_path / "workers/stream-0.json").write_text(json.dumps({"taken": {"0": 3, "1": 3}, "lost": [1]}))
    assert (
        actor_checkpoint.lost_lanes(tmp_path, 7)
        == "lanes of actors 1 begin anew, from seed 7: what they did was not saved"
    )
    (tmp_path / "workers/act-0.json").unlink()
    assert "all lanes begin anew, from seed 7" in actor_checkpoint.lost_lanes(tmp_path, 7)


def test_who_goes_without_an_actor_leaves_others_theirs(tmp_path, monkeypatch):
    queue = RolloutQueue(SPEC, {}, T=2, lanes=1, slots=4, producers=2, consumers=2)
    ends = [queue.producer(p) for p in range(2)]
    one, two = (context_of(tmp_path, role="serve_replay", index=i, n=2)[0] for i in range(2))
    monkeypatch.setattr(actor_checkpoint, "SAVE_TIMEOUT", 60.0)
    waiting = actor_checkpoint.wait_for_actors(two, queue, 5)
    next(waiting)
    monkeypatch.setattr(actor_checkpoint, "SAVE_TIMEOUT", 0.0)
    assert finish(actor_checkpoint.wait_for_actors(one, queue, 5)) == [0]
    assert [queue.asked(p) for p in range(2)] == [None, 5]
    actor_checkpoint.answer_save(context_of(tmp_path, index=1)[0], actor_of({"acts": np.arange(3)}), ends[1])
    assert finish(waiting) == []

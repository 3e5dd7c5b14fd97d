"""Parts of checkpoints that actors write, and learners that wait for them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np

from polyplay.buffers import actor_checkpoint
from polyplay.buffers.rollout_queue import ROWS, Stream
from polyplay.common import checkpoint
from polyplay.common.context import Me
from polyplay.common.control import Control
from polyplay.common.counters import Meter
from polyplay.common.tree import Field

SPEC = {"obs": Field((2,), "float32"), **ROWS}


def me_of(tmp_path, **kw) -> tuple[Me, list]:
    heard: list = []
    me = Me(**{"role": "act", "index": 0, "n": 1, "row": 0, "seed": 7} | kw, meters=Meter(2), control=Control())
    me.directory, me.patience, me.say = tmp_path, 0.0, lambda kind, text: heard.append(text)
    return me, heard


def actor_of(state, between: bool = True) -> SimpleNamespace:
    games = SimpleNamespace(length=np.array([3.0, 0.0, 5.0, 2.0]), over=np.array([False, False, True, False]))
    pool = SimpleNamespace(unsaved="" if state else "of a reason")
    return SimpleNamespace(games=games, save=lambda: state, between=between, first_lane=4, pool=pool)


def stream_of(producers: int = 2) -> Stream:
    stream = Stream(SPEC, {}, T=2, lanes=1, slots=2 * producers, producers=producers)
    stream.patience = 0.0
    return stream


def finish(generator):
    try:
        while True:
            next(generator)
    except StopIteration as e:
        return e.value


def test_a_part_says_what_is_lost_and_what_was_counted(tmp_path):
    me, _ = me_of(tmp_path)
    me.meter.add("steps", 40)
    me.meter.episode(1.0, 5, 0)
    actor_checkpoint.write(me, checkpoint.Part(tmp_path, 3), actor_of(None), {"0": {"rows": {"x": np.arange(2)}}})
    (told,) = actor_checkpoint.told(checkpoint.partial(tmp_path, 3))
    assert told == {
        "first_lane": 4,
        "lanes": 4,
        "steps": 40,
        "episodes": 1,
        "partial": 2,
        "partial_steps": 5,
        "why": "of a reason",
    }
    said = actor_checkpoint.lost(checkpoint.partial(tmp_path, 3), 9)
    assert said == "4 lanes begin anew, from seed 9: 2 partial episodes (5 agent steps) are lost, since of a reason"
    checkpoint.write_json(checkpoint.partial(tmp_path, 3) / "workers/stream-0.json", {"taken": {"0": 1}, "lost": []})
    me.resume = checkpoint.complete(tmp_path, 3, {})
    assert actor_checkpoint.read(me, consumers=1)["flight"]["0"]["rows"]["x"].tolist() == [0, 1]
    me.incarnation = 1001  # a replacement begins anew
    assert actor_checkpoint.read(me, consumers=1) == {}


def test_a_learner_waits_for_its_actors_and_goes_without_those_that_do_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(actor_checkpoint, "HOLD", 60.0)
    stream = stream_of()
    ends = [stream.producer(p) for p in range(2)]
    me, heard = me_of(tmp_path, role="learn")
    one, two = (me_of(tmp_path, index=i)[0] for i in range(2))
    waiting = actor_checkpoint.gather(me, stream, 5)
    next(waiting)
    actor_checkpoint.answer(one, actor_of({"acts": np.arange(3)}), ends[0])
    actor_checkpoint.answer(two, actor_of(None, between=False), ends[1])
    next(waiting)
    assert stream.late(0, 5) == [1]
    monkeypatch.setattr(actor_checkpoint, "HOLD", 0.0)
    assert finish(actor_checkpoint.gather(me, stream, 5)) == [1]
    assert "without what actors 1 do" in heard[0]
    actor_checkpoint.answer(two, actor_of(None), ends[1])  # too late
    assert len(actor_checkpoint.told(checkpoint.partial(tmp_path, 5))) == 1
    actor_checkpoint.flow(me, checkpoint.Part(tmp_path, 5), stream, [1])
    one.resume = two.resume = checkpoint.complete(tmp_path, 5, {})
    assert actor_checkpoint.read(two, consumers=1) == {}
    assert actor_checkpoint.taken(one, stream, batches=5, n=1) == [0, 0]


def test_an_actor_that_cannot_write_is_left_out(tmp_path):
    (tmp_path / "checkpoints").write_text("in the way")
    stream = stream_of(1)
    end, (me, heard) = stream.producer(0), me_of(tmp_path)
    waiting = actor_checkpoint.gather(me_of(tmp_path)[0], stream, 2)
    next(waiting)
    actor_checkpoint.answer(me, actor_of(None), end)
    assert finish(waiting) == [0]
    assert "without what actor 0 does" in heard[0]


def test_what_was_taken_in_a_run_of_an_early_version_is_guessed_by_rounds(tmp_path):
    me, _ = me_of(tmp_path)
    assert actor_checkpoint.taken(me, stream_of(2), batches=10, n=2) == [10, 10]


def test_actors_that_were_not_saved_are_named(tmp_path):
    (tmp_path / "workers").mkdir()
    told = {"lanes": 8, "partial": 3, "partial_steps": 1234, "why": ""}
    (tmp_path / "workers/act-0.json").write_text(json.dumps(told))
    (tmp_path / "workers/stream-0.json").write_text(json.dumps({"taken": {"0": 3, "1": 3}, "lost": []}))
    assert actor_checkpoint.lost(tmp_path, 7) == ""
    (tmp_path / "workers/stream-0.json").write_text(json.dumps({"taken": {"0": 3, "1": 3}, "lost": [1]}))
    assert (
        actor_checkpoint.lost(tmp_path, 7) == "lanes of actors 1 begin anew, from seed 7: what they did was not saved"
    )
    (tmp_path / "workers/act-0.json").unlink()
    assert "all lanes begin anew, from seed 7" in actor_checkpoint.lost(tmp_path, 7)


def test_who_goes_without_an_actor_leaves_others_theirs(tmp_path, monkeypatch):
    stream = Stream(SPEC, {}, T=2, lanes=1, slots=4, producers=2, consumers=2)
    ends = [stream.producer(p) for p in range(2)]
    one, two = (me_of(tmp_path, role="remember", index=i, n=2)[0] for i in range(2))
    monkeypatch.setattr(actor_checkpoint, "HOLD", 60.0)
    waiting = actor_checkpoint.gather(two, stream, 5)
    next(waiting)
    monkeypatch.setattr(actor_checkpoint, "HOLD", 0.0)
    assert finish(actor_checkpoint.gather(one, stream, 5)) == [0]
    assert [end.asked() for end in ends] == [None, 5]
    actor_checkpoint.answer(me_of(tmp_path, index=1)[0], actor_of({"acts": np.arange(3)}), ends[1])
    assert finish(waiting) == []

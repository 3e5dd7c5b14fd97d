"""The learning loop, written once: batches come from a source, weights go out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from polyplay.buffers.rollout_queue import Batches
from polyplay.buffers.sample_queue import Trays
from polyplay.buffers.training_queue import Gather
from polyplay.common.context import Me
from polyplay.learning.learner import Learner
from polyplay.learning.sources import Drawn, _FromQueue, _FromReplay, _FromStream, _FromTrays
from polyplay.learning.spec import Task
from polyplay.weights.params import Params


def _feed(me: Me, learner: Learner, source: Any, params: Params | None, round_slots: int) -> Any:
    if isinstance(source, Gather):
        return _FromQueue(me, learner, source)
    if isinstance(source, Trays):
        return _FromTrays(me, learner, source, params)
    assert params is not None
    if isinstance(source, Drawn):
        return _FromReplay(me, learner, source, params, round_slots)
    return _FromStream(me, learner, source, params, round_slots)


def learn(
    me: Me, *, source: Batches | Gather | Drawn | Trays, task: Task, params: Params | None = None, round_slots: int = 1
) -> Iterator[None]:
    """Take batches, update, and for a Stream publish. `round_slots`: slots that all its actors fill in one round."""
    learner = Learner(me, task)
    feed = _feed(me, learner, source, params, round_slots)
    yield  # actors begin with these weights, also where all take turns
    before = time.perf_counter()
    for batch in feed.batches():
        me.meter.add("wait", time.perf_counter() - before)
        me.meter.stamp()
        if batch is not None:
            yield from feed.step(batch)
        ends = learner.done or (batch is None and me.control.finishing and feed.alone)
        if ends or learner.saving:
            yield from feed.save()
        if ends or me.leaving:
            return
        yield
        before = time.perf_counter()

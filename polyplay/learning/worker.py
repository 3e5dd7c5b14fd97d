"""The learning loop, written once: batches come from a source, weights go out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from polyplay.buffers.rollout_queue import RolloutBatches
from polyplay.buffers.sample_queue import SampleQueue
from polyplay.buffers.training_queue import TrainingBatches
from polyplay.common.context import WorkerContext
from polyplay.learning.learner import Learner
from polyplay.learning.sources import ReplayOfRollouts, ReplaySource, RolloutSource, SampleSource, TrainingSource
from polyplay.learning.spec import LearnerSpec
from polyplay.weights.params import Params


def _feed(ctx: WorkerContext, learner: Learner, source: Any, params: Params | None, round_slots: int) -> Any:
    if isinstance(source, TrainingBatches):
        return TrainingSource(ctx, learner, source)
    if isinstance(source, SampleQueue):
        return SampleSource(ctx, learner, source, params)
    assert params is not None
    if isinstance(source, ReplayOfRollouts):
        return ReplaySource(ctx, learner, source, params, round_slots)
    return RolloutSource(ctx, learner, source, params, round_slots)


def learn(
    ctx: WorkerContext,
    *,
    source: RolloutBatches | TrainingBatches | ReplayOfRollouts | SampleQueue,
    spec: LearnerSpec,
    params: Params | None = None,
    round_slots: int = 1,
) -> Iterator[None]:
    """Take batches, update, and for a RolloutQueue publish. `round_slots`: slots that all its actors fill in one
    round.
    """
    learner = Learner(ctx, spec)
    feed = _feed(ctx, learner, source, params, round_slots)
    yield  # actors begin with these weights, also where all take turns
    before = time.perf_counter()
    for batch in feed.batches():
        ctx.counters.add("wait", time.perf_counter() - before)
        ctx.counters.stamp()
        if batch is not None:
            yield from feed.step(batch)
        ends = learner.done or (batch is None and ctx.control.finishing and feed.alone)
        if ends or learner.saving:
            yield from feed.save()
        if ends or ctx.leaving:
            return
        yield
        before = time.perf_counter()

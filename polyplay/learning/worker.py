"""The learning loop, written once: batches come from a source, weights go out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from polyplay.common.context import WorkerContext
from polyplay.common.edges import Source
from polyplay.common.errors import Leaving
from polyplay.learning.learner import Learner
from polyplay.learning.sources import OpenSource, open_source
from polyplay.learning.spec import LearnerSpec
from polyplay.weights.params import Params


def learn(ctx: WorkerContext, *, source: Source, spec: LearnerSpec, params: Params | None = None) -> Iterator[None]:
    """Take batches from a source (see open_source), update, and publish the weights where others hold copies."""
    learner = Learner(ctx, spec)
    yield from learn_from(open_source(source, ctx, learner, params), ctx, learner)


def learn_from(feed: OpenSource[Any], ctx: WorkerContext, learner: Learner) -> Iterator[None]:
    """The loop. Weights are saved as of the last update where the run ends and others' rollouts take too long."""
    try:
        yield from _learn_until_end(feed, ctx, learner)
    except Leaving:
        learner.done = True
        yield from feed.save()


def _learn_until_end(feed: OpenSource[Any], ctx: WorkerContext, learner: Learner) -> Iterator[None]:
    yield  # actors begin with these weights, also where all take turns
    before = time.perf_counter()
    for batch in feed.batches():
        ctx.counters.add("wait", time.perf_counter() - before)
        ctx.counters.stamp()
        if batch is not None:
            yield from feed.step(batch)
        elif learner.spec.among is not None:
            learner.heed()
        elif not feed.alone and ctx.late():
            yield from learner.leave()
        ends = learner.done or (batch is None and ctx.control.finishing and feed.alone)
        learner.done = ends
        if ends or learner.saving:
            yield from feed.save()
        if ends or ctx.leaving:
            return
        yield
        before = time.perf_counter()

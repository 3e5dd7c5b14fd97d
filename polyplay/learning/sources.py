"""The learning loop, written once, and where batches come from: a RolloutQueue, a training queue, the learner's own
replay of a RolloutQueue, or replays in workers of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from polyplay.buffers import actor_checkpoint, delivery_log
from polyplay.buffers.replay import Replay
from polyplay.buffers.rollout_queue import UNWRITTEN, RolloutBatches, RolloutQueue
from polyplay.buffers.sample_queue import SampleQueue
from polyplay.buffers.training_queue import TrainingBatches
from polyplay.common.checkpoint import CheckpointPart
from polyplay.common.context import WorkerContext
from polyplay.common.edges import Source
from polyplay.common.tree import Batch
from polyplay.learning.collate import collator_for
from polyplay.learning.learner import Learner, WritePart
from polyplay.learning.replay_learner import ReplayLearner
from polyplay.nets.device import page_lock
from polyplay.weights.params import Params

B = TypeVar("B")
Rollout = tuple[Batch, Batch]  # rows [T+1, B], and the state before row 0
Nothing = tuple[()]


@dataclass(frozen=True)
class ReplayOfRollouts:
    """What crosses into a learner with a replay of its own: its actors' queue, and the replay."""

    queue: RolloutQueue
    replay: Replay
    n: int = 1  # slots taken at once

    @property
    def edge(self) -> RolloutQueue:
        return self.queue

    @property
    def held_replay(self) -> Replay:
        return self.replay

    def describe(self) -> list[str]:
        return []


class RolloutSource:
    """The learner's end of a RolloutQueue, whose actors hold copies of its weights."""

    def __init__(self, source: RolloutBatches | ReplayOfRollouts, ctx: WorkerContext, learner: Learner, params: Params):
        self.ctx, self.learner, self.source, self.params = ctx, learner, source, params
        self.queue, self.first = source.queue, ctx.index == 0
        self.alone = self.queue.consumers == 1
        passes = learner.spec.passes
        self.each = 1 if passes is None else passes.updates  # from one batch
        taken = actor_checkpoint.rollouts_learnt(ctx, self.queue)
        self.slots = sum(taken)
        self.queue.turns[ctx.index] = actor_checkpoint.saved_turn(ctx, self.queue)
        if self.first:
            self.queue.base[:] = taken
            self.publish()

    def publish(self) -> None:
        rounds = self.slots // (self.queue.producers * self.queue.groups)
        self.params.publish(self.learner.vector, self.learner.version, rounds)

    def batches(self) -> Iterator[Rollout | None]:
        ctx, spec, queue = self.ctx, self.learner.spec, self.queue
        assert isinstance(self.source, RolloutBatches)
        length = spec.total if spec.anneal == "linear" else 0.0
        log = delivery_log.log_writer(ctx, queue, self.learner.version, torch.get_num_threads(), length, self.each)
        join = collator_for(queue, self.source.n, self.learner.device)
        return self.source.consumer(ctx.index, log, join)

    def step(self, batch: Rollout) -> Iterator[None]:
        self.learner.counts.newest()  # where others change the weights too
        yield from self.learner.step(*batch)
        assert UNWRITTEN not in batch[0]["version"]
        self.slots += self.source.n * self.queue.consumers
        if self.first:
            self.publish()
            self.ctx.counters.depth(self.queue.depth)

    def save(self, more: WritePart | None = None) -> Iterator[None]:
        """The learner with what its actors have and what is in flight. Nothing to do where that was done, or where the
        checkpoint that the run goes on from has more.
        """
        if self.learner.saved == self.learner.version:
            return
        self.learner.marks.wait(self.learner.version)
        lost = yield from actor_checkpoint.wait_for_actors(
            self.ctx, self.queue, self.learner.version, self.learner.done
        )
        if lost and more is None and self.ctx.resume is not None and self.learner.version == self.learner.counts.begun:
            return

        def write(part: CheckpointPart) -> None:
            actor_checkpoint.save_queue_end(self.ctx, part, self.queue, lost)
            if more is not None:
                more(part)

        self.learner.save(write)


class ReplaySource:
    """The end of a RolloutQueue whose rollouts go into a replay. As many updates as its ratio asks for; actors wait
    while more are due, and the learner waits while none is.
    """

    alone = True

    def __init__(self, source: ReplayOfRollouts, ctx: WorkerContext, learner: Learner, params: Params):
        self.rollouts = RolloutSource(source, ctx, learner, params)
        self.ctx, self.learner, self.queue = ctx, learner, source.queue
        self.replay_learner = ReplayLearner(ctx, learner, source.replay)
        self.actor = 0  # whose rollout was taken last
        if self.queue.consumers > 1:
            raise ValueError("one learner draws from one replay")

    def batches(self) -> Iterator[Rollout | Nothing | None]:
        """Rollouts to insert; (): draw; None: nothing came for a while."""
        rollouts = self.queue.batches(1).consumer(self.ctx.index, log=self._note)
        while True:
            yield () if self.replay_learner.buffer.due else next(rollouts)

    def _note(self, slots: list[int]) -> None:
        self.actor = slots[0] // self.queue.share

    def step(self, batch: Rollout | Nothing) -> Iterator[None]:
        if batch:
            rows, state = batch
            steps = self.replay_learner.insert(rows, state, self.actor * self.queue.lanes)
            self.rollouts.slots += 1
            self.ctx.counters.depth(self.queue.depth)
            yield from self.learner.rest(steps)
        else:
            yield from self.replay_learner.update()
            self.rollouts.publish()

    def save(self) -> Iterator[None]:
        yield from self.rollouts.save(self.replay_learner.save)


class SampleSource:
    """A learner's end of replays that are workers of their own; learner 0 reports to them for all.

    Learners that average gradients rest and end together, and so only with an update. Of those that don't wait for each
    other (a parameter server's) every one sees by itself that the run is over, also where no batch comes.
    """

    def __init__(self, source: SampleQueue, ctx: WorkerContext, learner: Learner, params: Params | None):
        self.ctx, self.learner, self.samples, self.params = ctx, learner, source, params
        self.reader, self.first = source.reader(ctx.index), ctx.index == 0
        self.alone = source.learners == 1 or learner.spec.update.apart
        learner.extra_parts = None  # without its replays the checkpoint before is worth more
        page_lock(source.block, learner.device)
        if self.first:
            self._publish()

    def _publish(self) -> None:
        learner = self.learner
        self.samples.learnt(learner.remaining(), learner.version)
        if self.params is not None:
            self.params.publish(learner.vector, learner.version, learner.version)

    def batches(self) -> Iterator[int | Nothing | None]:
        """Slots; (): none came for a while, but learner 0 has agent steps to count; None: nothing came."""
        for slot in self.reader.batches():
            idle = slot is None and self.alone and (not self.first or self.samples.news)
            yield () if idle else slot

    def step(self, slot: int | Nothing) -> Iterator[None]:
        learner, steps = self.learner, self.samples.fresh() if self.first else 0.0
        if isinstance(slot, tuple):
            yield from learner.rest(steps)
            return
        item = self.samples.item(slot)
        yield from learner.step_on_sample(item, steps, observe=True)  # replay workers have no network
        self.reader.give(slot, learner.priorities())
        if self.first:
            self._publish()
            self.ctx.counters.depth(self.samples.depth)

    def save(self) -> Iterator[None]:
        """The learner with its replays, their actors and what is in flight. Nothing to do where that was done."""
        learner = self.learner
        if learner.saved == learner.counts.newest():
            return
        if not self.first or self.ctx.directory is None:
            learner.save()
            return
        learner.marks.wait(learner.counts.newest())
        with learner.still():  # what replays write fits the weights, whoever else learns
            yield from self._save(learner.counts.newest())

    def _save(self, version: int) -> Iterator[None]:
        learner = self.learner
        yield from self.reader.gather(version, min(self.ctx.patience, 0.005), learner.done)
        if self.alone:
            yield from learner.rest(self.samples.fresh(kept=True))

        def more(part: CheckpointPart) -> None:
            if failed := self.samples.failed(0):
                raise OSError(f"memories {', '.join(map(str, failed))} could not write their parts")

        learner.save(more, version)


class TrainingSource:
    """A trainer's end of a training queue: those who act use the weights themselves, and have nothing to save."""

    alone = True

    def __init__(self, source: TrainingBatches, ctx: WorkerContext, learner: Learner, params: None):
        self.ctx, self.learner, self.source = ctx, learner, source

    def batches(self) -> Iterator[Rollout | None]:
        return self.source.consumer()

    def step(self, batch: Rollout) -> Iterator[None]:
        yield from self.learner.step(*batch)
        self.ctx.counters.served(int(np.count_nonzero(~batch[0]["first"][1:])))
        self.ctx.counters.depth(self.source.queue.depth)

    def save(self) -> Iterator[None]:
        if self.learner.saved != self.learner.version:
            self.learner.save()
        yield from ()  # no turn: where all take turns, saving changes no order


class OpenSource(Protocol[B]):
    """A learner's end of its source. `alone`: no other learner has to agree that the run ends."""

    alone: bool

    def batches(self) -> Iterator[B | None]: ...  # None: nothing came for a while
    def step(self, batch: B, /) -> Iterator[None]: ...
    def save(self) -> Iterator[None]: ...


@singledispatch
def open_source(source: Source, ctx: WorkerContext, learner: Learner, params: Params | None) -> OpenSource[Any]:
    """A learner's end of what its role takes from. Other kinds of sources register theirs here."""
    raise TypeError(f"no learner takes from a {type(source).__name__}")


open_source.register(RolloutBatches)(RolloutSource)
open_source.register(ReplayOfRollouts)(ReplaySource)
open_source.register(SampleQueue)(SampleSource)
open_source.register(TrainingBatches)(TrainingSource)

"""The learning loop, written once, and where batches come from: a Stream, a training queue, the learner's own replay of
a Stream, or memories in workers of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from polyplay.buffers import actor_checkpoint, delivery_log
from polyplay.buffers.replay import Replay
from polyplay.buffers.rollout_queue import UNWRITTEN, Batches, Stream
from polyplay.buffers.sample_queue import Trays
from polyplay.buffers.training_queue import Gather
from polyplay.common.checkpoint import Part
from polyplay.common.context import Me
from polyplay.common.tree import Batch
from polyplay.learning.collate import joiner
from polyplay.learning.learner import Learner
from polyplay.learning.replay_learner import Rehearsal
from polyplay.nets.device import page_lock
from polyplay.weights.params import Params


@dataclass(frozen=True)
class Drawn:
    """What crosses into a learner that keeps what its actors do: their stream, and the replay it is drawn from."""

    stream: Stream
    replay: Replay
    n: int = 1  # slots taken at once

    def close(self) -> None:
        self.stream.close()


class _FromStream:
    """The learner's end of a Stream, whose actors hold copies of its weights."""

    def __init__(self, me: Me, learner: Learner, source: Batches | Drawn, params: Params, round_slots: int):
        self.me, self.learner, self.source, self.params = me, learner, source, params
        self.stream, self.round_slots, self.chief = source.stream, round_slots, me.index == 0
        self.alone = self.stream.consumers == 1
        passes = learner.task.passes
        self.each = 1 if passes is None else passes.updates  # from one batch
        self.taken = actor_checkpoint.taken(me, self.stream, learner.version // self.each, source.n)
        self.slots = sum(self.taken)
        if self.chief:
            self.stream.base[:] = self.taken
            self.publish()

    def publish(self) -> None:
        self.params.publish(self.learner.vector, self.learner.version, self.slots // self.round_slots)

    def batches(self) -> Iterator[Any]:
        me, task, stream = self.me, self.learner.task, self.stream
        assert isinstance(self.source, Batches)
        length = task.total if task.anneal == "linear" else 0.0
        log = delivery_log.writer(me, stream, self.learner.version, torch.get_num_threads(), length, self.each)
        join = joiner(stream, self.source.n, self.learner.device)
        return self.source.consumer(me.index, sum(self.taken[me.index :: stream.consumers]), log, join)

    def step(self, batch: tuple[Batch, Batch]) -> Iterator[None]:
        self.learner.counts.newest()  # where others change the weights too
        yield from self.learner.step(*batch)
        assert UNWRITTEN not in batch[0]["version"]
        self.slots += self.source.n * self.stream.consumers
        if self.chief:
            self.publish()
            self.tell()

    def tell(self) -> None:
        self.me.meter.add("depth_sum", self.stream.depth)
        self.me.meter.add("depth_count", 1)

    def save(self, more: Callable[[Part], None] = lambda part: None) -> Iterator[None]:
        """The learner with what its actors hold and what is in flight. Nothing to do where that was done."""
        if self.learner.saved == self.learner.version:
            return
        lost = yield from actor_checkpoint.gather(self.me, self.stream, self.learner.version)

        def write(part: Part) -> None:
            actor_checkpoint.flow(self.me, part, self.stream, lost)
            more(part)

        self.learner.save(write)


class _FromReplay:
    """The end of a Stream where everything is kept, and drawn again and again. As many updates as the replay's ratio
    asks for; actors wait while more is owed, and the learner waits while nothing is.
    """

    alone = True

    def __init__(self, me: Me, learner: Learner, source: Drawn, params: Params, round_slots: int):
        self.flow = _FromStream(me, learner, source, params, round_slots)
        self.me, self.learner, self.stream = me, learner, source.stream
        self.rehearsal = Rehearsal(me, learner, source.replay)
        self.actor = 0  # whose rollout was taken last
        if self.stream.consumers > 1:
            raise ValueError("one learner draws from one replay")

    def batches(self) -> Iterator[Any]:
        """Rollouts to keep; (): draw; None: nothing came for a while."""
        rollouts = self.stream.batches(1).consumer(self.me.index, log=self._note)
        while True:
            yield () if self.rehearsal.memory.due else next(rollouts)

    def _note(self, slots: list[int]) -> None:
        self.actor = slots[0] // self.stream.share

    def step(self, batch: tuple[Batch, Batch] | tuple[()]) -> Iterator[None]:
        if batch:
            rows, state = batch
            fresh = self.rehearsal.remember(rows, state, self.actor * self.stream.lanes)
            self.flow.slots += 1
            self.flow.tell()
            yield from self.learner.rest(fresh)
        else:
            yield from self.rehearsal.update(0.0)
            self.flow.publish()

    def save(self) -> Iterator[None]:
        yield from self.flow.save(self.rehearsal.save)


class _FromTrays:
    """A learner's end of memories that are workers of their own; learner 0 speaks with them for all.

    Learners that average gradients rest and end together, and so only with an update. Of those that don't wait for each
    other (a parameter server's) every one sees by itself that the run is over, also where no tray comes.
    """

    def __init__(self, me: Me, learner: Learner, source: Trays, params: Params | None):
        self.me, self.learner, self.trays, self.params = me, learner, source, params
        self.taker, self.chief = source.taker(me.index), me.index == 0
        self.alone = source.learners == 1 or learner.task.update.apart
        page_lock(source.block, learner.device)
        if self.chief:
            self._tell()

    def _tell(self) -> None:
        learner = self.learner
        self.trays.learnt(learner.left(), learner.version)
        if self.params is not None:
            self.params.publish(learner.vector, learner.version, learner.version)

    def batches(self) -> Iterator[Any]:
        """Trays; (): no tray came for a while, but learner 0 has agent steps to count; None: nothing came."""
        for tray in self.taker.batches():
            idle = tray is None and self.alone and (not self.chief or self.trays.news)
            yield () if idle else tray

    def step(self, tray: int | tuple[()]) -> Iterator[None]:
        learner, fresh = self.learner, self.trays.fresh() if self.chief else 0.0
        if isinstance(tray, tuple):
            yield from learner.rest(fresh)
            return
        item = self.trays.item(tray)
        yield from learner.revise(item, fresh, observe=True)  # the memories have no network that could
        self.taker.give(tray, learner.judged())
        if self.chief:
            self._tell()
            self.me.meter.add("depth_sum", self.trays.waiting)
            self.me.meter.add("depth_count", 1)

    def save(self) -> Iterator[None]:
        """The learner with its memories, their actors and what is in flight. Nothing to do where that was done."""
        learner = self.learner
        if learner.saved == learner.counts.newest():
            return
        if not self.chief or self.me.directory is None:
            learner.save()
            return
        with learner.still():  # what memories write fits the weights, whoever else learns
            yield from self._save(learner.counts.newest())

    def _save(self, version: int) -> Iterator[None]:
        learner = self.learner
        yield from self.taker.gather(version, min(self.me.patience, 0.005))
        if self.alone:
            yield from learner.rest(self.trays.fresh(kept=True))

        def more(part: Part) -> None:
            if failed := self.trays.failed():
                raise OSError(f"memories {', '.join(map(str, failed))} could not write their parts")

        learner.save(more, version)


class _FromQueue:
    """A trainer's end of a training queue: those who act use the weights themselves, and hold nothing worth keeping."""

    alone = True

    def __init__(self, me: Me, learner: Learner, source: Gather):
        self.me, self.learner, self.source = me, learner, source

    def batches(self) -> Iterator[Any]:
        return self.source.consumer()

    def step(self, batch: tuple[Batch, Batch]) -> Iterator[None]:
        yield from self.learner.step(*batch)
        self.me.meter.served(int(np.count_nonzero(~batch[0]["first"][1:])))
        self.me.meter.add("depth_sum", self.source.stream.depth)
        self.me.meter.add("depth_count", 1)

    def save(self) -> Iterator[None]:
        if self.learner.saved != self.learner.version:
            self.learner.save()
        yield

"""The learning loop, where batches come from, and acting and learning in one loop.

The learning loop, written once, and where batches come from: a RolloutQueue, a training queue, the learner's own
replay of a RolloutQueue, or replays in workers of their own.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from polyplay.acting.actor import Actor, LanePlayer, TapeRecorder
from polyplay.acting.predictor import LaneTable, Predictor
from polyplay.acting.rows import Exploration, policy_from_cpu, pool_to_device
from polyplay.acting.worker import open_pool, report_faults
from polyplay.buffers import actor_checkpoint, delivery_log, replay_worker
from polyplay.buffers.replay import Replay
from polyplay.buffers.replay_worker import SampleQueue
from polyplay.buffers.rollout_queue import UNWRITTEN, RolloutBatches, RolloutQueue, RolloutSlots, rows_of
from polyplay.buffers.training_queue import TrainingBatches, TrainingQueue
from polyplay.core import tree
from polyplay.core.checkpoint import CheckpointPart, open_checkpoint
from polyplay.core.errors import Leaving
from polyplay.core.tree import Batch, Spec
from polyplay.core.worker import Source, WorkerContext, seed_of
from polyplay.envs.pool import Envs
from polyplay.learning.learner import Learner, LearnerSpec, collator_for
from polyplay.nets.device import page_lock
from polyplay.nets.policy import Policy
from polyplay.weights.params import Params

# Learning from a replay: insert rollouts, then make as many updates as the replay's ratio asks for.


class ReplayLearner:
    """A learner's own replay. It makes the updates that are due (replay.rate_limiter) before more is inserted."""

    def __init__(self, ctx: WorkerContext, learner: Learner, replay: Replay):
        self.ctx, self.learner, self.replay = ctx, learner, replay
        self.buffer = replay.open(seed_of(ctx.seed, ctx.incarnation % 1000) + ctx.index)
        self.updates = 0
        self.ahead: Batch | None = None  # the next update's sample, drawn before the steps that make it due
        # where others change the weights meanwhile, each update begins with the newest
        self.divided = learner.divide(replay.batch) is not None and not learner.spec.update.asynchronous
        if not learner.spec.update.asynchronous:
            learner.checkpoints.more = self.save
        replicas = learner.spec.update.replicas
        if ctx.resume is not None and replay_worker.restore_replay(ctx, self.buffer, replicas):
            found, name = open_checkpoint(ctx.resume), replay_worker.replay_folder(ctx)
            saved = found.json(f"{name}/replay_learner")
            self.updates = int(saved["updates"])
            if saved.get("ahead"):
                self.ahead = tree.nest(found.arrays(f"{name}/ahead"))
                learner.begin(self.ahead)

    def insert(self, rows: Batch, state: Batch, lane: int = 0) -> float:
        """See ReplayBuffer.add_rollout."""
        with self.ctx.counters.timed("replay"):
            self.learner.observe({"obs": rows["obs"]})
            return self.buffer.add_rollout(rows, state, lane)

    def draw_ahead(self, steps: int) -> None:
        """Draw the next sample and begin with it, if so many agent steps make an update due: other threads pass it
        through the target network while this one acts.
        """
        limiter = self.buffer.limiter
        credit = limiter.credit(self.buffer.sampled) + steps * (limiter.ratio or 0.0)
        if self.divided and self.ahead is None and self.buffer.ready and credit >= limiter.batch:
            self.ahead = self._draw()
            self.learner.begin(self.ahead)

    def _draw(self) -> Batch:
        with self.ctx.counters.timed("replay"):
            return self.buffer.sample(replay_worker.importance_exponent(self.replay, self.learner.remaining()))

    def _due(self) -> int:
        """Updates that may be made now."""
        drawn = 0 if self.ahead is None else self.replay.batch
        return self.buffer.limiter.due(self.buffer.sampled - drawn) if self.buffer.ready else 0

    def update(self) -> Iterator[None]:
        """One update."""
        item = self._draw() if self.ahead is None else self.ahead
        self.ahead = None
        yield from self.learner.step_on_sample(item)
        priority = self.learner.priorities()
        if priority is not None:
            with self.ctx.counters.timed("replay"):
                self.buffer.update_priorities(item["id"], priority)
        self.updates += 1
        if self.updates % replay_worker.REPORT == 0:
            replay_worker.report_replay(self.ctx, self.buffer)

    def step(self, rows: Batch, state: Batch) -> Iterator[None]:
        """Insert a rollout, count its agent steps, and make the updates that are due."""
        limiter, before = self.buffer.limiter, self.buffer.limiter.steps
        limiter.steps = before + (yield from self.learner.count_only(self.insert(rows, state)))
        for _ in range(self._due()):
            yield from self.update()

    # ------------------------------------------------------------------------------------------------ saving

    def save(self, part: CheckpointPart) -> None:
        """Raises OSError."""
        name = replay_worker.replay_folder(self.ctx)
        self.buffer.save(part.folder(name))
        part.json(f"{name}/replay_learner", {"updates": self.updates, "ahead": self.ahead is not None})
        if self.ahead is not None:
            part.arrays(f"{name}/ahead", {path: np.ascontiguousarray(x) for path, x in tree.leaves(self.ahead)})


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


class OpenSource(ABC):
    """A learner's end of its source. `alone`: no other learner has to agree that the run ends."""

    alone = True

    def __init__(self, source: Any, ctx: WorkerContext, learner: Learner, params: Any):
        self.source, self.ctx, self.learner, self.params = source, ctx, learner, params
        self.first = ctx.index == 0

    @abstractmethod
    def batches(self) -> Iterator[Any]:
        """What there is to do, one after the other; None: nothing came for a while."""

    @abstractmethod
    def step(self, batch: Any, /) -> Iterator[None]:
        """Do it."""

    def save(self) -> Iterator[None]:
        """The learner with what else is its own. Nothing to do where that was done."""
        if self.learner.checkpoints.last != self.learner.version:
            self.learner.checkpoints.save()
        yield from ()  # no turn: where all take turns, saving changes no order


class RolloutSource(OpenSource):
    """The learner's end of a RolloutQueue, whose actors hold copies of its weights."""

    def __init__(self, source: RolloutBatches | ReplayOfRollouts, ctx: WorkerContext, learner: Learner, params: Params):
        super().__init__(source, ctx, learner, params)
        self.queue = source.queue
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

    def batches(self) -> Iterator[Any]:
        ctx, spec, queue = self.ctx, self.learner.spec, self.queue
        length = spec.total if spec.anneal == "linear" else 0.0
        log = delivery_log.log_writer(ctx, queue, self.learner.version, torch.get_num_threads(), length, self.each)
        join = collator_for(queue, self.source.n, self.learner.device)
        return self.source.consumer(ctx.index, log, join)

    def step(self, batch: Rollout) -> Iterator[None]:
        self.learner.update.refresh()  # where others change the weights too
        yield from self.learner.step(*batch)
        assert UNWRITTEN not in batch[0]["version"]
        self.slots += self.source.n * self.queue.consumers
        if self.first:
            self.publish()
            self.ctx.counters.depth(self.queue.depth)

    def save(self) -> Iterator[None]:
        """The learner with what its actors have and what is in flight. Nothing to do where that was done, or where the
        checkpoint that the run goes on from has more.
        """
        if self.learner.checkpoints.last == self.learner.version:
            return
        self.learner.checkpoints.marks.wait(self.learner.version)
        lost = yield from actor_checkpoint.wait_for_actors(
            self.ctx, self.queue, self.learner.version, self.learner.done
        )
        if lost and self.ctx.resume is not None and self.learner.version == self.learner.update.counts.begun:
            return
        if lost and self.alone and self.learner.done:
            actors = ", ".join(map(str, lost))
            self.ctx.log("caution", f"lanes begin anew when the run is resumed: no state of actors {actors}")
        self.learner.checkpoints.save(lambda part: actor_checkpoint.save_queue_end(self.ctx, part, self.queue, lost))


class ReplaySource(RolloutSource):
    """The end of a RolloutQueue whose rollouts go into a replay. As many updates as its ratio asks for; actors wait
    while more are due, and the learner waits while none is.
    """

    def __init__(self, source: ReplayOfRollouts, ctx: WorkerContext, learner: Learner, params: Params):
        super().__init__(source, ctx, learner, params)
        self.replay_learner = ReplayLearner(ctx, learner, source.replay)
        self.actor = 0  # whose rollout was taken last

    def batches(self) -> Iterator[Rollout | Nothing | None]:
        """Rollouts to insert; (): draw; None: nothing came for a while."""
        rollouts = self.queue.batches(1).consumer(self.ctx.index, log=self._note)
        while True:
            yield () if self.replay_learner.buffer.due else next(rollouts)

    def _note(self, slots: list[int]) -> None:
        self.actor = slots[0] // self.queue.share

    def step(self, batch: Rollout | Nothing) -> Iterator[None]:
        if batch:
            steps = self.replay_learner.insert(*batch, self.actor * self.queue.lanes)
            self.slots += 1
            self.ctx.counters.depth(self.queue.depth)
            yield from self.learner.count_only(steps)
        else:
            yield from self.replay_learner.update()
            self.publish()


class SampleSource(OpenSource):
    """A learner's end of replays that are workers of their own; learner 0 reports to them for all.

    Learners that average gradients rest and end together, and so only with an update. Of those that don't wait for each
    other (a parameter server's) every one sees by itself that the run is over, also where no batch comes.
    """

    def __init__(self, source: SampleQueue, ctx: WorkerContext, learner: Learner, params: Params | None):
        super().__init__(source, ctx, learner, params)
        self.samples, self.reader = source, source.reader(ctx.index)
        self.alone = source.learners == 1 or learner.spec.update.asynchronous
        learner.checkpoints.more = None  # without its replays the checkpoint before is worth more
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
            yield from learner.count_only(steps)
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
        if learner.checkpoints.last == learner.update.refresh():
            return
        if not self.first or self.ctx.directory is None:
            learner.checkpoints.save()
            return

        def more(part: CheckpointPart) -> None:
            if failed := self.samples.failed(0):
                raise OSError(f"memories {', '.join(map(str, failed))} could not write their parts")

        learner.checkpoints.marks.wait(learner.update.refresh())
        with learner.checkpoints.writers_paused():  # what replays write fits the weights, whoever else learns
            version = learner.update.refresh()
            yield from self.reader.gather(version, min(self.ctx.patience, 0.005), learner.done)
            if self.alone:
                yield from learner.count_only(self.samples.fresh(kept=True))
            learner.checkpoints.save(more, version)


class TrainingSource(OpenSource):
    """A trainer's end of a training queue: those who act use the weights themselves, and have nothing to save."""

    def batches(self) -> Iterator[Rollout | None]:
        return self.source.consumer()

    def step(self, batch: Rollout) -> Iterator[None]:
        yield from self.learner.step(*batch)
        self.ctx.counters.served(int(np.count_nonzero(~batch[0]["first"][1:])))
        self.ctx.counters.depth(self.source.queue.depth)


SOURCES: dict[type, type[OpenSource]] = {
    RolloutBatches: RolloutSource,
    ReplayOfRollouts: ReplaySource,
    SampleQueue: SampleSource,
    TrainingBatches: TrainingSource,
}


# The learning loop, written once: batches come from a source, weights go out.


def learn(ctx: WorkerContext, *, source: Source, spec: LearnerSpec, params: Params | None = None) -> Iterator[None]:
    """Take batches from a source (see SOURCES), update, and publish the weights where others hold copies."""
    learner = Learner(ctx, spec)
    yield from learn_from(SOURCES[type(source)](source, ctx, learner, params), ctx, learner)


def learn_from(feed: OpenSource, ctx: WorkerContext, learner: Learner) -> Iterator[None]:
    """The loop. Weights are saved as of the last update where the run ends and others' rollouts take too long."""
    try:
        yield  # actors begin with these weights, also where all take turns
        before = time.perf_counter()
        for batch in feed.batches():
            ctx.counters.add("wait", time.perf_counter() - before)
            ctx.counters.stamp()
            if batch is not None:
                yield from feed.step(batch)
            elif learner.spec.population is not None:
                learner.read_control()
            elif not feed.alone and ctx.late():
                yield from learner.leave()
            ends = learner.done or (batch is None and ctx.control.finishing and feed.alone)
            learner.done = ends
            if ends or learner.checkpoints.due:
                yield from feed.save()
            if ends or ctx.leaving:
                return
            yield
            before = time.perf_counter()
    except Leaving:
        learner.done = True
        yield from feed.save()


# Act and learn in one loop with the same weights.


def replica(
    ctx: WorkerContext,
    *,
    envs: Envs,
    T: int,
    spec: LearnerSpec,
    replay: Replay | None = None,
    explore: Exploration | None = None,
) -> Iterator[None]:
    """Act, and learn from each rollout before the next: lag 0, but for what others changed meanwhile where replicas
    don't wait for each other. replay: rollouts go into it, and batches drawn from it are learnt from (DQN).
    """
    learner = Learner(ctx, spec)
    replay_learner = None if replay is None else ReplayLearner(ctx, learner, replay)
    saved = actor_checkpoint.load_actor(ctx)
    pool = open_pool(ctx, envs, saved)
    try:
        slots_of = RolloutSlots(*_rows(learner, envs), T, envs.lanes // envs.groups, envs.groups)
        policy = policy_from_cpu(learner.policy)
        place = learner.device if replay is None else torch.device("cpu")  # a replay is in the machine's own memory
        pool = pool_to_device(pool, slots_of, place)
        collate = collator_for(slots_of, envs.groups, place)
        recorder = None
        if ctx.reuse and spec.stored_bootstrap and getattr(learner.policy, "recalls", False):
            recorder = TapeRecorder(policy, envs.groups, T)
            policy = cast("Policy", recorder)
        actor = Actor(ctx, pool, [LanePlayer(policy, slots_of)], ctx.index * envs.lanes)
        actor.explore, actor.bootstrap = explore, replay is None  # a replay keeps no last rows
        steps = T * envs.lanes
        if "pool" in saved:
            actor.load(saved)
        elif explore is not None:  # ε is where the run is
            actor.acts[:] = int(learner.learnt) // explore.lanes

        if replay_learner is not None:
            replay_learner.draw_ahead(steps)
        for slots in actor.rollouts(lambda k: learner.update.refresh()):
            if slots is not None:
                rows, state = collate(slots)
                if replay_learner is not None:
                    yield from replay_learner.step(rows, state)
                else:
                    yield from learner.step(rows, state, recorder.take() if recorder else None)
                collate.done()
                report_faults(ctx, pool)
                if learner.checkpoints.due or learner.done:  # apart: the other workers' lanes are in mid-rollout now
                    lanes = not spec.update.asynchronous
                    learner.checkpoints.save(
                        (lambda part: actor_checkpoint.save_actor(ctx, part, actor, {})) if lanes else None
                    )
                if learner.done:
                    return
                if replay_learner is not None:
                    replay_learner.draw_ahead(steps)
            elif actor.late():
                yield from learner.leave()
            yield
    except Leaving:
        save_leaving(learner, replay_learner)
    finally:
        pool.close()


def save_leaving(learner: Learner, replay_learner: ReplayLearner | None = None) -> None:
    """Save as of the last update, without lanes, which are in the middle of a rollout. Nothing to do where the last
    checkpoint has that, and lanes too.
    """
    more = replay_learner is not None and not learner.spec.update.asynchronous
    if more or learner.update.refresh() not in (learner.checkpoints.last, learner.update.counts.begun):
        learner.checkpoints.save()


def _rows(learner: Learner, envs: Envs) -> tuple[Spec, Spec]:
    """What a row holds, and the state before a rollout."""
    return rows_of(envs.spec, learner.policy.spec()), learner.policy.state_spec()


def episodic_replica(ctx: WorkerContext, *, envs: Envs, T: int, spec: LearnerSpec) -> Iterator[None]:
    """One lane, or match, that acts and learns: a rollout ends after T steps or with an episode (A3C's workers)."""
    learner = Learner(ctx, spec)
    slots = TrainingQueue(*_rows(learner, envs), T, envs.lanes, envs.lanes)
    slots.patience = ctx.patience
    table = LaneTable(envs, slots, ctx.index * envs.lanes).open(ctx, learner.policy)
    predictor = Predictor(ctx, table, learner.policy, learner.update.refresh)
    try:
        for chunks in predictor.chunks(renew=learner.update.refresh):
            full = [slot for slot, length in chunks if length]
            if full:
                yield from learner.step(*slots.batch(full))
            for slot, _ in chunks:
                slots.commit(slot, 0)  # empty again
            if full:
                report_faults(ctx, table.pool)
                if learner.checkpoints.due or learner.done:
                    learner.checkpoints.save()
                if learner.done:
                    return
            elif ctx.late():
                yield from learner.leave()
            yield
    except Leaving:
        save_leaving(learner)
    finally:
        table.close()

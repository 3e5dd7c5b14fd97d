"""The learning loop, and the sources of its batches.

A `Source` describes where a learner's batches come from. A `Feed` is a source that one worker has opened. There are
four kinds of sources: the learner's own rollouts, a queue of other workers' rollouts or chunks (rows of one lane), a
replay buffer in the learner, and separate replay workers.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from polyplay.acting.actor import Actor, Exploration, LanePlayer, TapeRecorder, player_from_cpu, report_faults
from polyplay.acting.predictor import LaneTable, Predictor
from polyplay.acting.worker import open_pool
from polyplay.buffers import TrainingQueue, actor_checkpoint, delivery_log, replay_worker
from polyplay.buffers.league import League
from polyplay.buffers.replay import Replay
from polyplay.buffers.replay_worker import SampleQueue
from polyplay.buffers.rollout_queue import (
    UNWRITTEN,
    PolicyLike,
    QueueBatches,
    RolloutBatches,
    RolloutQueue,
    RolloutSlots,
    rows_of,
)
from polyplay.core import checkpoint, tree
from polyplay.core.checkpoint import CheckpointPart
from polyplay.core.errors import Leaving, UserError
from polyplay.core.tree import Batch, Spec
from polyplay.core.worker import Edge, Holder, WorkerContext, seed_of
from polyplay.envs.pool import Envs
from polyplay.learning.learner import Learner, LearnerSpec, Minibatches, Runner, collator_for
from polyplay.learning.losses import ActorCriticLoss
from polyplay.learning.runners import compile_updates
from polyplay.learning.threads import divide
from polyplay.learning.unreal import WithAuxiliary, specs_of
from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.device import page_lock, to_host
from polyplay.nets.factory import NetworkFactory, build_network
from polyplay.nets.policy import Policy
from polyplay.weights.params import FlatParams, Params

# The loop, and what it needs from a source of batches.


REST = 0.001  # seconds between checks, if several agents wait for rollouts
Rollout = tuple[Batch, Batch]  # rows [T+1, B], and the recurrent state before row 0
Nothing = tuple[()]


class Source(ABC, Holder):
    """Describes where a learner's batches come from. The description is sent to workers as a pickle. It also serves to
    plan the run, to estimate memory, and to draw the diagram of the system. Raises TypeError if a subclass does not
    define `shape` or `open`.
    """

    edge: Edge | None = None  # queue that other workers fill; None: the learner acts itself
    envs: Envs | None = None  # environments in which the learner acts itself; None: the learner does not act
    steps: int = 0  # agent steps per lane in a rollout, if the learner acts itself
    n: int = 0  # slots of a queue taken at once
    replay: Replay | None = None  # replay from which batches are drawn, in this worker or another
    replayable: bool = False  # whether Replayed may store these rollouts: one learner gets them, one at a time
    holds_replay: bool = False  # whether the replay is in the learner's memory
    league: League | None = None  # league to which the learner's past agents are posted
    agents: int = 0  # number of agents with separate learners and counters; 0: one agent, with the worker's
    initial: Sequence[Mapping[str, float]] = ()  # each agent's hyperparameters that differ from the spec's

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Shape of an update's batch: [rows, lanes], or with a replay [rows of an item, items]."""

    @abstractmethod
    def open(self, ctx: WorkerContext, learner: Learner, params: Any, replayed: bool = False) -> Feed:
        """Open the source in one worker.

        `params`: the object in which the learner publishes its weights, or None.
        `replayed`: whether the rollouts are only stored in a replay buffer.
        """

    def holds(self) -> Mapping[str, Any]:
        """See Holder.holds."""
        return {"source": self.edge, "posts": self.league, "envs": self.envs, "replay": self.replay}

    def nbytes(self, policy: PolicyLike) -> float:
        """Return how many bytes of memory each worker needs for its own rollouts and batches."""
        return 0.0

    def describe(self) -> list[str]:
        """Return the lines about this source in the diagram of the system."""
        return []


class Feed(ABC):
    """A Source that one worker has opened. The learning loop calls `learn` and then `finish` with every item. If a
    checkpoint is due, the loop calls `save` as soon as `between` is True after an item, or when a rollout was dropped.
    When the loop ends, it calls `close`.
    """

    alone: bool = True  # whether this learner ends the run without asking other learners
    blocking: bool = True  # whether this learner waits for other workers, which then start first
    between: bool = True  # whether the run may be saved, or may end, after the latest item
    lane: int = 0  # number of the latest rollout's first lane in a replay

    def __init__(self, ctx: WorkerContext, learner: Learner):
        self.ctx, self.learner = ctx, learner

    @abstractmethod
    def items(self) -> Iterator[Any]:
        """Yield the items to learn from in order, and None if no item came for a while."""

    def learn(self, item: Any) -> Iterator[None]:
        """Make an update from an item, or only count its agent steps. The base class learns from a Rollout."""
        rows, state = item
        return self.learner.step(rows, state)

    def finish(self, item: Any) -> None:  # noqa: B027
        """Free the queue's slots that hold the item. Publish the weights if other workers have copies."""

    def publish(self) -> None:  # noqa: B027
        """Publish the weights if other workers have copies of them. ReplayFeed calls this after each update."""

    def late(self) -> bool:
        """Return whether the run ends now, without waiting for the next item."""
        return not self.alone and self.ctx.late()

    def save(self, dropped: bool = False) -> Iterator[None]:
        """Save the learner and this feed's state in a checkpoint, unless this update is already saved. `dropped`:
        whether an unfinished rollout was dropped at the end of the run.
        """
        if self.learner.checkpoints.last != self.learner.version:
            self.learner.checkpoints.save()
        yield from ()  # yields nothing: if workers take turns, saving must not change their order

    def close(self) -> None:  # noqa: B027
        """Release all resources."""


def learn(ctx: WorkerContext, *, source: Source, spec: LearnerSpec, publish: Any = None) -> Iterator[None]:
    """Take batches from a source, make updates, and publish the weights to workers that have copies. When the run ends,
    do not wait for a slow rollout: drop it, and save the last update.
    """
    learner = Learner(ctx, spec)
    feed = source.open(ctx, learner, publish)
    if not isinstance(feed, Feed):
        given = f"{type(source).__name__}.open gave {type(feed).__name__}"
        raise UserError(f"{given}; it must return a polyplay.learning.Feed")
    compile_updates(learner)
    try:
        if feed.blocking:
            yield  # so that actors start with these weights, even where workers take turns
        before = time.perf_counter()
        for item in feed.items():
            if feed.blocking:
                ctx.counters.add("wait", time.perf_counter() - before)
                ctx.turn()
            if item is not None:
                yield from feed.learn(item)
                feed.finish(item)
            elif feed.late():
                ctx.log("caution", "a slow rollout is dropped: its lanes restart when the run is resumed")
                yield from learner.update.agree(learner.sums(leaving=1.0))
                raise Leaving
            if not feed.between:
                before = time.perf_counter()
                continue
            ends = learner.done or (item is None and ctx.control.finishing and feed.alone)
            learner.done = ends
            if ends or learner.checkpoints.agreed > learner.checkpoints.made:
                yield from feed.save()
            if ends or ctx.leaving:
                return
            yield
            before = time.perf_counter()
    except Leaving:
        learner.done = True
        yield from feed.save(dropped=True)
    finally:
        feed.close()
        learner.close()


# A user's own loss is tried on made-up rows, so that errors show before any worker starts.


def try_loss(source: Source, spec: LearnerSpec) -> None:
    """Call a user's loss once on made-up data, so that errors show before any worker starts. The data are rows of two
    lanes, or two items of a replay.

    Raises UserError if the loss reads an unknown name, returns no LossOutput, or returns a loss that is not finite, or
    if the spec has both a replay and passes. All other exceptions are ignored here, because a worker will report them.
    """
    if spec.passes is not None and source.replay is not None:
        raise UserError("LearnerSpec: passes given with a replay, but need a source of rollouts, such as Inline")
    own = spec.loss.loss if isinstance(spec.loss, WithAuxiliary) else spec.loss
    if isinstance(own, ActorCriticLoss) and isinstance(spec.policy, NetworkFactory) and spec.policy.own:
        spec.policy.check_unroll()
    if type(own).__module__.startswith("polyplay."):
        return
    policy = build_network(spec.policy, 0)
    try:
        loss, batch = copy.deepcopy(spec.loss), _example(source, policy)
        if batch is None:
            return
        run = Runner(policy, policy if any(part.vectors for part in spec.parts) else None, loss, FlatParams(policy))
        run.hyper = _Known("hyperparameter", spec.hyperparameters.all())
        state = batch.get("state", policy.initial(2))
        if spec.passes is not None:
            parts = Minibatches(batch, state, loss.prepare(batch), batch["version"].numpy(), loss.whole)
            batch, state = parts.take(parts.places)
        scored = run(_Known("field of a batch", batch), state, 0)
    except UserError:
        raise
    except Exception:
        return
    if not scored.loss.isfinite():
        where = f"LearnerSpec.loss: class {type(own).__name__}: __call__ gave {float(scored.loss)}"
        raise UserError(f"{where} for a batch of made-up rows with numbers from 0 to 1; it must be finite")


class _Missing(UserError, KeyError):
    """A loss reads an input by a name that does not exist."""

    __str__ = Exception.__str__  # KeyError.__str__ adds quotes


class _Known(dict[str, Any]):
    """Inputs of a loss by name. An unknown name raises _Missing. `kind`: word for an input in the error message."""

    def __init__(self, kind: str, values: Mapping[str, Any]):
        super().__init__(values)
        self.kind = kind

    def __missing__(self, name: str) -> Any:
        raise _Missing(f"LearnerSpec.loss: there is no {self.kind} {name!r}; use one of {', '.join(self)}")


def _example(source: Source, policy: Policy) -> Batch | None:
    """Return a made-up batch of the source, or None if a user wrote the source. The batch has three rows of two lanes,
    or two items of a replay. Floats are from 0 to 1, other numbers are 0, and every action is legal. If possible, all
    rows hold the policy's outputs for the first row.
    """
    if source.replay is not None:
        fields = replace(source.replay, batch=2).drawn()
    elif source.envs is not None:
        fields = tree.widen(rows_of(source.envs.spec, policy.spec()), (3, 2))
    elif isinstance(queue := source.edge, RolloutQueue | TrainingQueue):
        fields = tree.widen(specs_of(queue.rows, 2 if isinstance(queue, TrainingQueue) else 3), (3, 2))
    else:
        return None
    draw = torch.Generator().manual_seed(0)
    batch: Batch = tree.map(torch.from_numpy, tree.zeros(fields))
    for path, x in tree.leaves(batch):
        if x.is_floating_point():
            x.uniform_(generator=draw)
        elif path.partition("/")[0] == "mask":
            x.fill_(1)
    with contextlib.suppress(Exception), torch.no_grad():  # the network may fail on such rows
        row: Batch = {k: tree.at(batch[k], 0) for k in ("obs", "mask", "events") if k in batch}
        row |= {"reward": torch.zeros(2), "first": torch.zeros(2, dtype=torch.bool)}
        row["noise"] = torch.rand((2, policy.noise), generator=draw)
        tree.write(batch, ..., {k: x for k, x in policy.act(row, policy.initial(2))[0].items() if k in batch})
    return batch


# Act and learn in one loop with the same weights.


@dataclass(frozen=True)
class Inline(Source):
    """Rollouts that the learner plays itself, one at a time. The policy lag is 0, because the learner acts with the
    weights that it updates. Only asynchronous learners can change each other's weights during a rollout.
    """

    envs: Envs = field()
    steps: int = field()  # agent steps per lane in a rollout
    explore: Exploration | None = None
    episodes: bool = False  # whether a rollout also ends with an episode (A3C: one lane or match per worker)

    def __post_init__(self) -> None:
        if self.episodes and self.explore is not None:
            raise UserError("Inline: explore given with episodes=True: remove one of them")
        if not isinstance(self.explore, Exploration | None):
            raise UserError(f"Inline: explore={self.explore!r} given, allowed: an Exploration, such as LinearEpsilon")

    @property
    def replayable(self) -> bool:  # type: ignore[override]
        return not self.episodes

    @property
    def shape(self) -> tuple[int, int]:
        return self.steps, self.envs.lanes

    def open(self, ctx: WorkerContext, learner: Learner, params: Any, replayed: bool = False) -> Feed:
        return EpisodeFeed(self, ctx, learner) if self.episodes else InlineFeed(self, ctx, learner, replayed)

    def nbytes(self, policy: PolicyLike) -> float:
        groups, row = self.envs.groups, tree.nbytes(rows_of(self.envs.spec, policy.spec()))
        slot = (self.steps + 1) * self.envs.lanes // groups * row
        return float(groups * slot * (2 if groups > 1 else 1))

    def describe(self) -> list[str]:
        return [] if self.explore is None else [self.explore.label()]


class ActingFeed(Feed):
    """Feed of a learner that acts itself (Inline). Learners that average gradients all end after the same rollout."""

    alone, blocking = False, False

    def __init__(self, ctx: WorkerContext, learner: Learner, replayed: bool = False):
        super().__init__(ctx, learner)
        self.replayed = replayed

    def write(self, part: CheckpointPart) -> None:
        """Write the state of the learner's lanes (parallel environments) into a checkpoint. Raises OSError."""

    def save(self, dropped: bool = False) -> Iterator[None]:
        """Save the learner. Save its environments too, unless learners are asynchronous or a rollout was dropped. After
        a dropped rollout, save only if the last update is not saved yet, or if the learner has a replay.
        """
        learner, apart = self.learner, self.learner.spec.update.asynchronous
        more, done = self.replayed and not apart, (learner.checkpoints.last, learner.update.counts.begun)
        if not dropped or more or learner.update.refresh() not in done:
            learner.checkpoints.save(None if apart or dropped else self.write)
        yield from ()


class InlineFeed(ActingFeed):
    """Feed of a learner that acts in all its lanes (parallel environments) at the same time."""

    def __init__(self, source: Inline, ctx: WorkerContext, learner: Learner, replayed: bool):
        super().__init__(ctx, learner, replayed)
        envs, explore, saved = source.envs, source.explore, actor_checkpoint.load_actor(ctx)
        self.pool = open_pool(ctx, envs, saved)
        try:
            slots = RolloutSlots(*_rows(learner, envs), source.steps, envs.lanes // envs.groups, envs.groups)
            # a replay is in main memory
            policy, place = learner.policy, torch.device("cpu") if replayed else learner.device
            self.recorder: TapeRecorder | None = None
            reuses = ctx.control.reuse and learner.spec.loss.recalls and ctx.control.compile != "on"
            if reuses and isinstance(policy, ActorCritic) and policy.recalls:
                self.recorder = TapeRecorder(policy, envs.groups, source.steps)
            player = player_from_cpu(self.recorder or policy, learner.device, ctx.control.compile)
            self.actor = Actor(ctx, self.pool, [LanePlayer(player, slots)], ctx.index * envs.lanes)
            self.actor.move_rows(place)
            self.collate = collator_for(slots, envs.groups, place)
            self.actor.explore, self.actor.bootstrap = explore, not replayed  # a replay needs no values of last rows
            if "pool" in saved:
                self.actor.load(saved)
            elif explore is not None:  # ε continues from the run's progress
                self.actor.acts[:] = int(learner.learnt) // explore.lanes
        except BaseException:
            self.pool.close()
            raise

    def items(self) -> Iterator[Rollout | None]:
        for slots in self.actor.rollouts(lambda k: self.learner.update.refresh()):
            yield None if slots is None else self.collate(slots)

    def learn(self, item: Rollout) -> Iterator[None]:
        tape = self.recorder.take() if self.recorder else None
        return self.learner.step(*item, tape)

    def finish(self, item: Rollout) -> None:
        self.collate.done()

    def late(self) -> bool:
        return self.actor.late()

    def write(self, part: CheckpointPart) -> None:
        actor_checkpoint.save_actor(self.ctx, part, self.actor, {})

    def close(self) -> None:
        self.pool.close()


class EpisodeFeed(ActingFeed):
    """Feed of a learner with one lane or match. A rollout ends with an episode, or when it is full."""

    def __init__(self, source: Inline, ctx: WorkerContext, learner: Learner):
        super().__init__(ctx, learner)
        lanes, update = source.envs.lanes, learner.update
        self.slots = TrainingQueue(*_rows(learner, source.envs), source.steps, lanes, lanes)
        self.slots.patience = ctx.patience
        player = player_from_cpu(learner.policy, learner.device, ctx.control.compile)
        self.table = LaneTable(source.envs, self.slots, ctx.index * lanes).open(ctx, player)
        self.predictor = Predictor(ctx, self.table, player, update.refresh)

    def items(self) -> Iterator[Rollout | None]:
        for chunks in self.predictor.chunks(renew=self.learner.update.refresh):
            full = [slot for slot, length in chunks if length]
            yield self.slots.batch(full) if full else None
            for slot, _ in chunks:
                self.slots.commit(slot, 0)  # mark the slot as empty

    def finish(self, item: Rollout) -> None:
        report_faults(self.ctx, self.table.pool)

    def close(self) -> None:
        self.table.close()


def _rows(learner: Learner, envs: Envs) -> tuple[Spec, Spec]:
    return rows_of(envs.spec, learner.policy.spec()), learner.policy.state_spec()


# Rollouts, or chunks, of other workers.


class Rollouts(RolloutBatches, Source):
    """Source of batches of `n` rollouts from a RolloutQueue, which is filled by actors with copies of the weights. If
    `in_turn`, rollouts are taken equally often from each actor.
    """

    @property
    def replayable(self) -> bool:  # type: ignore[override]
        return self.n == 1 and self.queue.consumers == 1

    def open(self, ctx: WorkerContext, learner: Learner, params: Any, replayed: bool = False) -> Feed:
        return RolloutFeed(self, ctx, learner, params, replayed)


class RolloutFeed(Feed):
    """A learner's connection to a RolloutQueue. The learner saves only after its actors have written their parts."""

    def __init__(self, source: Rollouts, ctx: WorkerContext, learner: Learner, params: Params, replayed: bool):
        super().__init__(ctx, learner)
        self.source, self.queue, self.params, self.replayed = source, source.queue, params, replayed
        self.first, self.alone = ctx.index == 0, self.queue.consumers == 1
        taken = actor_checkpoint.rollouts_learnt(ctx, self.queue)
        self.slots = sum(taken)
        self.queue.turns[ctx.index] = actor_checkpoint.saved_turn(ctx, self.queue)
        if self.first:
            self.queue.base[:] = taken
            self.publish()

    def publish(self) -> None:
        rounds = self.slots // (self.queue.producers * self.queue.groups)
        self.params.publish(self.learner.update.vector, self.learner.version, rounds)

    def items(self) -> Iterator[Rollout | None]:
        ctx, spec, queue = self.ctx, self.learner.spec, self.queue
        if self.replayed:
            return self.source.consumer(ctx.index, self._note_lane)
        length, each = spec.total * spec.hyperparameters.falls, spec.passes.updates if spec.passes else 1
        log = delivery_log.log_writer(ctx, queue, self.learner.version, torch.get_num_threads(), length, each)
        return self.source.consumer(ctx.index, log, collator_for(queue, self.source.n, self.learner.device))

    def _note_lane(self, slots: list[int]) -> None:
        """Store the number of the first lane of the actor that made the rollout."""
        self.lane = slots[0] // self.queue.share * self.queue.lanes

    def learn(self, item: Rollout) -> Iterator[None]:
        self.learner.update.refresh()  # takes the changes that other workers made
        yield from self.learner.step(*item)
        assert UNWRITTEN not in item[0]["version"]

    def finish(self, item: Rollout) -> None:
        self.slots += self.source.n * self.queue.consumers
        if self.first:
            if not self.replayed:
                self.publish()
            self.ctx.counters.depth(self.queue.depth)

    def save(self, dropped: bool = False) -> Iterator[None]:
        """Save the learner, the state of its actors, and the rollouts in the queue. Do nothing if this update is
        already saved, or if the run resumed from this update and now lacks an actor's state.
        """
        if self.learner.checkpoints.last == self.learner.version:
            return
        self.learner.checkpoints.wait_taken(self.learner.version)
        lost = yield from actor_checkpoint.wait_for_actors(
            self.ctx, self.queue, self.learner.version, self.learner.done
        )
        if lost and self.ctx.resume is not None and self.learner.version == self.learner.update.counts.begun:
            return
        if lost and self.alone and self.learner.done:
            actors = ", ".join(map(str, lost))
            self.ctx.log("caution", f"lanes restart when the run is resumed: no state of actors {actors}")
        self.learner.checkpoints.save(lambda part: actor_checkpoint.save_queue_end(self.ctx, part, self.queue, lost))


class Chunks(QueueBatches, Source):
    """Source of batches of chunks (rows of one lane) from a TrainingQueue. A batch has as many chunks as `rows`
    transitions need, but at least one. `rows` may change during the run. Acting uses the learner's weights directly.
    Raises UserError if `rows` may need more chunks than the queue holds.
    """

    queue: TrainingQueue

    def __init__(self, queue: TrainingQueue, rows: int):
        self.queue, self.rows = queue, rows
        if rows > queue.capacity:
            raise UserError(f"--min-batch {rows} may need more than --queue {queue.capacity} chunks: raise --queue")

    @property
    def n(self) -> int:  # type: ignore[override]
        """Number of chunks in a batch, if each chunk has T transitions."""
        return max(1, -(-self.rows // self.queue.T))

    def describe(self) -> list[str]:
        return [f"batch   at least {self.rows} transitions" if self.rows else "batch   one chunk"]

    def consumer(self) -> Iterator[Rollout | None]:
        """Yield the rows [T+1, n, …] and state [n, …] of n chunks, or None if none came for a while. Raises Closed."""
        queue = self.queue
        while True:
            slots = queue.take(self.rows)
            if slots is None:
                yield None
                continue
            batch = queue.batch(slots)
            queue.give_back(slots)  # `batch` is a copy
            yield batch

    def open(self, ctx: WorkerContext, learner: Learner, params: Any, replayed: bool = False) -> Feed:
        return ChunkFeed(self, ctx, learner)


class ChunkFeed(Feed):
    """A trainer's connection to a TrainingQueue."""

    def __init__(self, source: Chunks, ctx: WorkerContext, learner: Learner):
        super().__init__(ctx, learner)
        self.source = source

    def items(self) -> Iterator[Rollout | None]:
        return self.source.consumer()

    def finish(self, item: Rollout) -> None:
        self.ctx.counters.served(int(np.count_nonzero(~item[0]["first"][1:])))
        self.ctx.counters.depth(self.source.queue.depth)


# Batches drawn from a replay of another source's rollouts.


class Replayed(Source):
    """Stores another source's rollouts in a replay buffer of the learner, and draws batches from it. The learner makes
    all updates that are due (ReplayBuffer.due) before it inserts a rollout. Raises UserError if the rollouts of the
    other source cannot be stored.
    """

    replay: Replay
    holds_replay = True

    def __init__(self, source: Source, replay: Replay):
        if not source.replayable:
            allowed = "Inline without episodes, or Rollouts of one slot for one learner"
            raise UserError(f"Replayed: {type(source).__name__} given, allowed: {allowed}")
        self.source, self.edge, self.envs, self.steps, self.n = source, source.edge, source.envs, source.steps, source.n
        self.replay, self.league = replay, source.league

    @property
    def shape(self) -> tuple[int, int]:
        return max(self.replay.sequence, 1), self.replay.batch

    def open(self, ctx: WorkerContext, learner: Learner, params: Any, replayed: bool = False) -> Feed:
        return ReplayFeed(self, ctx, learner, params)

    def nbytes(self, policy: PolicyLike) -> float:
        return self.source.nbytes(policy)

    def describe(self) -> list[str]:
        return self.source.describe() if self.edge is None else []  # a queue's rollouts are not batches here


class ReplayFeed(Feed):
    """Feed of a Replayed source. An item is a rollout to insert, or () for an update from the replay buffer.

    Actors in other workers wait while updates are due, so the run can be saved after any item. A learner that acts
    itself is saved only when no update is due.
    """

    def __init__(self, source: Replayed, ctx: WorkerContext, learner: Learner, params: Any):
        super().__init__(ctx, learner)
        self.replay, apart = source.replay, learner.spec.update.asynchronous
        self.buffer = self.replay.open(seed_of(ctx.seed, ctx.incarnation % 1000) + ctx.index)
        self.updates, self.steps = 0, math.prod(source.source.shape)  # updates so far; most agent steps of a rollout
        self.least = self.steps - source.source.shape[1]  # agent steps of a rollout if one game ends in every lane
        self.ahead = list[Batch]()  # samples for next updates, drawn before the updates are due
        self.begun = 0  # number of samples in `ahead` that other threads have started on
        divide(learner, self.replay.batch)
        if not apart:
            learner.checkpoints.more = self.write
        replicas = learner.spec.update.replicas
        if ctx.resume is not None and replay_worker.restore_replay(ctx, self.buffer, replicas):
            found, name = checkpoint.open_checkpoint(ctx.resume), replay_worker.replay_folder(ctx)
            saved = found.json(f"{name}/replay_learner")
            self.updates = int(saved["updates"])
            self.ahead = [tree.nest(found.arrays(f"{name}/ahead{k or ''}")) for k in range(int(saved["ahead"]))]
            if self.ahead:
                learner.begin(self.ahead)
                self.begun = len(self.ahead)
        self.feed = source.source.open(ctx, learner, params, replayed=True)
        self.alone, self.blocking = self.feed.alone, self.feed.blocking
        # if other workers change the weights too, each update must begin with the newest weights
        self.draws_ahead = not apart and not self.blocking
        due = (self.replay.ratio or math.inf) * self.steps / self.replay.batch  # updates that a rollout makes due
        learner.run.acts = self.draws_ahead and due <= 1.0

    def items(self) -> Iterator[Rollout | Nothing | None]:
        """Yield rollouts to insert, and () for each update that is due. If other threads can compute updates during a
        rollout, draw the samples for these updates before the rollout.
        """
        rollouts, learner = self.feed.items(), self.learner
        while True:
            if self.buffer.due(int(not self.ahead)):
                yield ()
                continue
            if self.draws_ahead and learner.run.begins and not self.begun and (self.ahead or self._due_soon()):
                with self.ctx.counters.timed("replay"):
                    self._draw_ahead(learner.begins if self.replay.sampler is None else 1)
                learner.begin(self.ahead)
                self.begun = len(self.ahead)
            yield next(rollouts)

    def _due_soon(self) -> bool:
        return self.buffer.due(coming=self.steps)

    def _draw_ahead(self, most: int) -> None:
        """Draw samples in advance for at most `most` updates. Draw at least one sample. Draw more only if the next
        rollout is certain to make these updates due.
        """
        while not self.ahead or (len(self.ahead) < most and self.buffer.due(coming=self.least)):
            sample = self.buffer.sample(self.learner.remaining)
            self.ahead.append(tree.map(np.copy, sample) if self.learner.run.begins > 1 else sample)

    def learn(self, item: Rollout | Nothing) -> Iterator[None]:
        """Insert a rollout and count its agent steps, or make an update if the item is (). Synchronous learners count
        the mean of their agent steps, so that the same number of updates becomes due in each learner.
        """
        buffer, learner, counters = self.buffer, self.learner, self.ctx.counters
        if item:
            rows, state = item
            before, lanes = buffer.steps, slice(self.feed.lane, self.feed.lane + rows["first"].shape[1])
            with counters.timed("replay"):
                learner.observe({"obs": rows["obs"]})
                steps = buffer.add(rows, lanes, state, overlap=True)
            buffer.steps = before + (yield from learner.count_only(steps))
        else:
            with counters.timed("replay"):
                sample = self.ahead.pop(0) if self.ahead else buffer.sample(learner.remaining)
                self.begun = max(self.begun - 1, 0)
                if learner.run.begun and not self.ahead and self.replay.sampler is None and self._due_soon():
                    self._draw_ahead(1)  # while other threads compute this update
                    learner.run.draw_noise(self.ahead[0], learner.version + 1)
            priority = yield from learner.step_on_sample(sample)
            if priority is not None and self.replay.sampler is not None:
                with counters.timed("replay"):
                    buffer.update_priorities(sample["id"], to_host(priority))
            self.updates += 1
            if self.updates % replay_worker.REPORT == 0:
                replay_worker.report_replay(self.ctx, buffer)
        self.between = self.blocking or not buffer.due(int(not self.ahead))

    def finish(self, item: Rollout | Nothing) -> None:
        if item:
            self.feed.finish(item)
        elif self.blocking:
            self.feed.publish()

    def late(self) -> bool:
        return self.feed.late()

    def save(self, dropped: bool = False) -> Iterator[None]:
        return self.feed.save(dropped)

    def close(self) -> None:
        self.feed.close()

    def write(self, part: CheckpointPart) -> None:
        """Write the replay buffer into a checkpoint. Raises OSError."""
        name = replay_worker.replay_folder(self.ctx)
        self.buffer.save(part.folder(name))
        part.json(f"{name}/replay_learner", {"updates": self.updates, "ahead": len(self.ahead)})
        for k, sample in enumerate(self.ahead):
            part.arrays(f"{name}/ahead{k or ''}", {path: np.ascontiguousarray(x) for path, x in tree.leaves(sample)})


# Replays in separate workers.


class Samples(Source):
    """Source of batches that replay workers draw into a queue. Learners return new priorities in the queue's slots."""

    replay: Replay

    def __init__(self, queue: SampleQueue):
        self.queue = self.edge = queue
        self.replay = queue.replay

    @property
    def shape(self) -> tuple[int, int]:
        return max(self.replay.sequence, 1), self.replay.batch

    def open(self, ctx: WorkerContext, learner: Learner, params: Params | None, replayed: bool = False) -> Feed:
        return SampleFeed(self.queue, ctx, learner, params)

    def describe(self) -> list[str]:
        return self.queue.describe()


class SampleFeed(Feed):
    """A learner's connection to a SampleQueue, which replay workers fill. Learner 0 reports to the replay workers.

    Learners that average gradients pause and end together, and only after an update. An asynchronous learner (with a
    parameter server) ends separately, even if no batch comes.
    """

    def __init__(self, samples: SampleQueue, ctx: WorkerContext, learner: Learner, params: Params | None):
        super().__init__(ctx, learner)
        self.samples, self.reader, self.params = samples, samples.reader(ctx.index), params
        self.first = ctx.index == 0
        self.alone = samples.learners == 1 or learner.spec.update.asynchronous
        self.priority: np.ndarray | None = None  # new priorities of the last update's items
        divide(learner, samples.replay.batch)
        learner.checkpoints.more = None  # a failed run saves nothing: replays would be missing
        page_lock(samples.block, learner.device)
        if self.first:
            self.publish()

    def publish(self) -> None:
        learner = self.learner
        self.samples.learnt(learner.remaining, learner.version)
        if self.params is not None:
            self.params.publish(learner.update.vector, learner.version, learner.version)

    def items(self) -> Iterator[int | Nothing | None]:
        """Yield slots of the queue, each with one batch. If no slot comes for a while, yield () if this learner may end
        separately, else None. Learner 0 yields () only if it has agent steps to count.
        """
        for slot in self.reader.batches():
            idle = slot is None and self.alone and (not self.first or self.samples.news)
            yield () if idle else slot

    def learn(self, item: int | Nothing) -> Iterator[None]:
        learner, steps = self.learner, self.samples.fresh() if self.first else 0.0
        if isinstance(item, tuple):
            yield from learner.count_only(steps)
        else:  # observe=True: replay workers have no network
            priority = yield from learner.step_on_sample(self.samples.item(item), steps, observe=True)
            self.priority = None if priority is None else to_host(priority)

    def finish(self, item: int | Nothing) -> None:
        if isinstance(item, tuple):
            return
        self.reader.give(item, self.priority)
        if self.first:
            self.publish()
            self.ctx.counters.depth(self.samples.depth)

    def save(self, dropped: bool = False) -> Iterator[None]:
        """Save the learner, and the replays, actors and batches in the queue, unless this update is already saved."""
        learner = self.learner
        if learner.checkpoints.last == learner.update.refresh():
            return
        if not self.first or self.ctx.directory is None:
            learner.checkpoints.save()
            return

        def more(part: CheckpointPart) -> None:
            if failed := self.samples.failed(0):
                raise OSError(f"replay workers {', '.join(map(str, failed))} could not write their parts")

        learner.checkpoints.wait_taken(learner.update.refresh())
        with learner.checkpoints.writers_paused():  # so that the replays' parts match the weights
            version = learner.update.refresh()
            yield from self.reader.gather(version, min(self.ctx.patience, 0.005), learner.done)
            if self.alone:
                yield from learner.count_only(self.samples.fresh(kept=True))
            learner.checkpoints.save(more, version)

"""A replay in a worker of its own: stores the rollouts of its share of the actors, has drawn batches ready for the
learners, and takes new priorities from them. Imports no torch.

A lost one is replaced by an empty one, which begins to sample once it has `start` rows; the other replays, and the
batches that the lost one had handed out, are learnt from meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from polyplay.buffers import actor_checkpoint, replay_store
from polyplay.buffers.rollout_queue import RolloutBatches
from polyplay.buffers.sample_queue import SampleQueue
from polyplay.common.checkpoint import CheckpointPart
from polyplay.common.context import WorkerContext, seed_of
from polyplay.common.files import refusal_text


class ReplayShard:
    """One replay of several: its share of the actors, its part of the capacity, its own rate limiter."""

    def __init__(self, ctx: WorkerContext, source: RolloutBatches, samples: SampleQueue, trim: int):
        self.ctx, self.queue, self.samples, self.trim = ctx, source.queue, samples, trim
        self.buffer = samples.replay.open(seed_of(ctx.seed, ctx.incarnation) + ctx.index, batches=False)
        self.writer = samples.writer(ctx.index, ctx.incarnation)
        self.lane, self.drawn, self.trimmed = 0, 0, 0
        if ctx.incarnation % 1000:
            self.queue.reclaim(ctx.index)
            ctx.say("warning", f"{ctx.role} {ctx.index}: starts empty; the rows of the lost replay are gone")
        elif ctx.resume is not None:
            replay_store.restore_replay(ctx, self.buffer)
            learnt = actor_checkpoint.rollouts_learnt(ctx, self.queue)
            own = slice(ctx.index, None, self.queue.consumers)
            self.queue.base[own] = learnt[own]
            self.queue.turns[ctx.index] = actor_checkpoint.saved_turn(ctx, self.queue)
        self.rollouts = source.consumer(ctx.index, log=self._set_lane, wait=False)

    def _set_lane(self, slots: list[int]) -> None:
        """The first lane of the next slot's producer: its number among this shard's, times the lanes of each."""
        self.lane = slots[0] // self.queue.share // self.queue.consumers * self.queue.lanes

    def step(self) -> bool:
        """Take priorities, draw a batch, insert a rollout, whichever of these there is; False: none of them."""
        with self.ctx.counters.timed("replay"):
            busy = self.update_priorities()
            if self.writer.empty and self.buffer.due:
                beta = replay_store.importance_exponent(self.buffer.replay, self.samples.left)
                self.writer.fill(lambda tray: self.buffer.sample(beta, tray))
                busy, self.drawn = True, self.drawn + 1
                if self.drawn % replay_store.REPORT == 0:
                    replay_store.report_replay(self.ctx, self.buffer)
            taken = next(self.rollouts) if self.buffer.room else None
            if taken is not None:
                self.writer.heard(self.buffer.add_rollout(*taken, lane=self.lane))
            return busy or taken is not None

    def update_priorities(self) -> bool:
        """Take the learners' priorities, and every `trim` updates drop what exceeds the capacity; whether any came."""
        busy = False
        for ids, priority in self.writer.back():
            self.buffer.update_priorities(ids, priority)
            busy = True
        if self.trim and self.samples.version // self.trim > self.trimmed:
            self.trimmed = self.samples.version // self.trim
            self.buffer.trim()
        return busy

    def wait(self) -> None:
        """Until there is something to do, a while at most."""
        with self.ctx.counters.timed("wait"):
            self.queue.bell(self.ctx.index).wait(self.queue.patience)

    # ------------------------------------------------------------------------------------------------ saving

    def save(self, version: int) -> Iterator[None]:
        """Wait until this replay's actors have written their parts, then write its own."""
        ctx, failed = self.ctx, False
        self.update_priorities()
        lost = yield from actor_checkpoint.wait_for_actors(ctx, self.queue, version, self.samples.last(self.writer.m))
        if ctx.directory is not None:
            try:
                self._write(CheckpointPart(ctx.directory, version), lost)
            except OSError as e:
                failed = True
                ctx.say("warning", f"checkpoint of update {version}: {ctx.role} {ctx.index}: {refusal_text(e)}")
        self.writer.answer(version, failed)

    def _write(self, part: CheckpointPart, lost: list[int]) -> None:
        from polyplay.buffers.replay.row_kernels import SAMPLED

        counts, away = self.buffer.index.counts, self.writer.away * self.buffer.replay.batch
        counts[SAMPLED] -= away  # what was drawn and not learnt from is owed again
        try:
            self.buffer.save(part.folder(replay_store.replay_folder(self.ctx)))
        finally:
            counts[SAMPLED] += away
        actor_checkpoint.save_queue_end(self.ctx, part, self.queue, lost)


def serve_replay(ctx: WorkerContext, *, source: RolloutBatches, out: SampleQueue, trim: int = 0) -> Iterator[None]:
    """Store what comes through `source`, a share of a RolloutQueue's actors, and fill `out` with batches drawn from it.

    trim: updates of the learner between two times that a soft replay is cut to its capacity; 0: never.
    """
    shard = ReplayShard(ctx, source, out, trim)
    while True:
        busy = shard.step()
        version = out.asked(ctx.index)
        if version is not None:
            yield from shard.save(version)
        elif not busy:
            shard.wait()
        yield

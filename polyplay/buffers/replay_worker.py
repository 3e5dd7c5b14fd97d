"""A memory in a worker of its own: takes what its share of the actors do, keeps drawn batches ready for the learners,
and hears from them how surprising these were. Imports no torch.

A memory that is lost is replaced by an empty one, which fills from its start on; what the other memories hold, and the
batches that the lost one had handed out, are learnt from meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from polyplay.buffers import actor_checkpoint
from polyplay.buffers.replay.row_kernels import SAMPLED
from polyplay.buffers.replay_store import (
    REPORT,
    importance_exponent,
    insert_rollout,
    replay_folder,
    report_replay,
    restore_replay,
)
from polyplay.buffers.rollout_queue import RolloutBatches
from polyplay.buffers.sample_queue import SampleQueue
from polyplay.common.checkpoint import CheckpointPart
from polyplay.common.context import WorkerContext, seed_of


class ReplayShard:
    """One memory of several: its share of the actors, its part of the capacity, its own pace."""

    def __init__(self, ctx: WorkerContext, source: RolloutBatches, samples: SampleQueue, trim: int):
        self.ctx, self.queue, self.samples, self.trim = ctx, source.queue, samples, trim
        self.memory = samples.replay.open(seed_of(ctx.seed, ctx.incarnation) + ctx.index, batches=False)
        self.writer = samples.writer(ctx.index, ctx.incarnation)
        self.lane, self.drawn, self.trimmed = 0, 0, 0
        if ctx.incarnation % 1000:
            self.queue.reclaim(ctx.index)
            ctx.say("warning", f"{ctx.role} {ctx.index}: begins empty, what the lost one remembered is gone")
        elif ctx.resume is not None:
            self._load()
        self.rollouts = source.consumer(ctx.index, log=self._note, wait=False)

    def _note(self, slots: list[int]) -> None:
        """The producer of the slot that comes next is one of ours: its number among them, times the lanes of each."""
        self.lane = slots[0] // self.queue.share // self.queue.consumers * self.queue.lanes

    def work(self) -> bool:
        """Hear what came back, draw a batch, remember a rollout, whichever of these there is; False: none of them."""
        before = time.perf_counter()
        busy = self.judge()
        if self.writer.empty and self.memory.due:
            self.writer.fill(
                lambda item: self.memory.sample(importance_exponent(self.memory.replay, self.samples.left), item)
            )
            busy, self.drawn = True, self.drawn + 1
            if self.drawn % REPORT == 0:
                report_replay(self.ctx, self.memory)
        taken = next(self.rollouts) if self.memory.room else None
        if taken is not None:
            self.writer.heard(insert_rollout(self.memory, *taken, lane=self.lane))
            busy = True
        self.ctx.counters.add("replay", time.perf_counter() - before)
        return busy

    def judge(self) -> bool:
        """Learners' priorities, and every `trim` updates the end of what is beyond the capacity; whether any came."""
        busy = False
        for ids, priority in self.writer.back():
            self.memory.feedback(ids, priority)
            busy = True
        if self.trim and self.samples.version // self.trim > self.trimmed:
            self.trimmed = self.samples.version // self.trim
            self.memory.trim()
        return busy

    def rest(self) -> None:
        """Until there is something to do, a while at most."""
        before = time.perf_counter()
        self.queue.bell(self.ctx.index).wait(self.queue.patience)
        self.ctx.counters.add("wait", time.perf_counter() - before)

    # ------------------------------------------------------------------------------------------------ saving

    def save(self, version: int) -> Iterator[None]:
        """Stand still until this memory's actors have written their parts, then write its own."""
        ctx, failed = self.ctx, False
        self.judge()
        lost = yield from actor_checkpoint.wait_for_actors(ctx, self.queue, version)
        if ctx.directory is not None:
            try:
                self._write(CheckpointPart(ctx.directory, version), lost)
            except OSError as e:
                failed = True
                ctx.say("warning", f"checkpoint of update {version}: {ctx.role} {ctx.index}: {e.strerror or e}")
        self.writer.answer(version, failed)

    def _write(self, part: CheckpointPart, lost: list[int]) -> None:
        counts, away = self.memory.ledger.counts, self.writer.away * self.memory.replay.batch
        counts[SAMPLED] -= away  # what was drawn and not learnt from is owed again
        try:
            self.memory.save(part.folder(replay_folder(self.ctx)))
        finally:
            counts[SAMPLED] += away
        actor_checkpoint.save_queue_end(self.ctx, part, self.queue, lost)

    def _load(self) -> None:
        restore_replay(self.ctx, self.memory)
        taken, mine = (
            actor_checkpoint.rollouts_learnt(self.ctx, self.queue, 0, 1),
            slice(self.ctx.index, None, self.queue.consumers),
        )
        self.queue.base[mine] = taken[mine]


def serve_replay(ctx: WorkerContext, *, source: RolloutBatches, out: SampleQueue, trim: int = 0) -> Iterator[None]:
    """Keep what comes through `source`, a share of a RolloutQueue's actors, and fill trays from it.

    trim: updates of the learner between two times that a soft memory is cut to its capacity; 0: never.
    """
    shard = ReplayShard(ctx, source, out, trim)
    while True:
        busy = shard.work()
        version = shard.writer.asked()
        if version is not None:
            yield from shard.save(version)
        elif not busy:
            shard.rest()
        yield

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
from polyplay.buffers.replay_store import REPORT, beta, folder, keep, restore, tell
from polyplay.buffers.rollout_queue import Batches
from polyplay.buffers.sample_queue import Trays
from polyplay.common.checkpoint import Part
from polyplay.common.context import Me, keyed


class Shard:
    """One memory of several: its share of the actors, its part of the capacity, its own pace."""

    def __init__(self, me: Me, source: Batches, trays: Trays, trim: int):
        self.me, self.stream, self.trays, self.trim = me, source.stream, trays, trim
        self.memory = trays.replay.open(keyed(me.seed, me.incarnation) + me.index, batches=False)
        self.filler = trays.filler(me.index, me.incarnation)
        self.lane, self.drawn, self.trimmed = 0, 0, 0
        if me.incarnation % 1000:
            self.stream.reclaim(me.index)
            me.say("warning", f"{me.role} {me.index}: begins empty, what the lost one remembered is gone")
        elif me.resume is not None:
            self._load()
        self.rollouts = source.consumer(me.index, log=self._note, wait=False)

    def _note(self, slots: list[int]) -> None:
        """The producer of the slot that comes next is one of ours: its number among them, times the lanes of each."""
        self.lane = slots[0] // self.stream.share // self.stream.consumers * self.stream.lanes

    def work(self) -> bool:
        """Hear what came back, draw a batch, remember a rollout, whichever of these there is; False: none of them."""
        before = time.perf_counter()
        busy = self.judge()
        if self.filler.empty and self.memory.due:
            self.filler.fill(lambda item: self.memory.sample(beta(self.memory.replay, self.trays.left), item))
            busy, self.drawn = True, self.drawn + 1
            if self.drawn % REPORT == 0:
                tell(self.me, self.memory)
        taken = next(self.rollouts) if self.memory.room else None
        if taken is not None:
            self.filler.heard(keep(self.memory, *taken, lane=self.lane))
            busy = True
        self.me.meter.add("replay", time.perf_counter() - before)
        return busy

    def judge(self) -> bool:
        """Learners' priorities, and every `trim` updates the end of what is beyond the capacity; whether any came."""
        busy = False
        for ids, priority in self.filler.back():
            self.memory.feedback(ids, priority)
            busy = True
        if self.trim and self.trays.version // self.trim > self.trimmed:
            self.trimmed = self.trays.version // self.trim
            self.memory.trim()
        return busy

    def rest(self) -> None:
        """Until there is something to do, a while at most."""
        before = time.perf_counter()
        self.stream.bell(self.me.index).wait(self.stream.patience)
        self.me.meter.add("wait", time.perf_counter() - before)

    # ------------------------------------------------------------------------------------------------ saving

    def save(self, version: int) -> Iterator[None]:
        """Stand still until this memory's actors have written their parts, then write its own."""
        me, failed = self.me, False
        self.judge()
        lost = yield from actor_checkpoint.gather(me, self.stream, version)
        if me.directory is not None:
            try:
                self._write(Part(me.directory, version), lost)
            except OSError as e:
                failed = True
                me.say("warning", f"checkpoint of update {version}: {me.role} {me.index}: {e.strerror or e}")
        self.filler.answer(version, failed)

    def _write(self, part: Part, lost: list[int]) -> None:
        counts, away = self.memory.ledger.counts, self.filler.away * self.memory.replay.batch
        counts[SAMPLED] -= away  # what was drawn and not learnt from is owed again
        try:
            self.memory.save(part.folder(folder(self.me)))
        finally:
            counts[SAMPLED] += away
        actor_checkpoint.flow(self.me, part, self.stream, lost)

    def _load(self) -> None:
        restore(self.me, self.memory)
        taken, mine = (
            actor_checkpoint.taken(self.me, self.stream, 0, 1),
            slice(self.me.index, None, self.stream.consumers),
        )
        self.stream.base[mine] = taken[mine]


def remember(me: Me, *, source: Batches, out: Trays, trim: int = 0) -> Iterator[None]:
    """Keep what comes through `source`, a share of a Stream's actors, and fill trays from it.

    trim: updates of the learner between two times that a soft memory is cut to its capacity; 0: never.
    """
    shard = Shard(me, source, out, trim)
    while True:
        busy = shard.work()
        version = shard.filler.asked()
        if version is not None:
            yield from shard.save(version)
        elif not busy:
            shard.rest()
        yield

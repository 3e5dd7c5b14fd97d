"""Batches for learners of several agents, each from the rollouts that were committed to it. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from polyplay.buffers.queue_base import READING
from polyplay.buffers.rollout_queue import Collator, RolloutQueue
from polyplay.common.tree import Batch


@dataclass(frozen=True)
class AgentBatches:
    """What crosses into the learner of an agent: a queue whose consumers learn apart, and the slots of a batch.

    A rollout is copied into the batch as soon as it is there, and its slot is free again. So batches that wait for more
    keep no actor from going on, and the memory in flight does not grow with the number of agents.
    """

    queue: RolloutQueue
    n: int
    wait: bool = True  # for a while, before it answers None

    @property
    def edge(self) -> RolloutQueue:
        return self.queue

    @property
    def joined_nbytes(self) -> float:
        """Bytes of a batch that is put together from several slots."""
        return self.queue.nbytes / self.queue.slots * self.n if self.n > 1 else 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """[T, B] of a batch."""
        return self.queue.T, self.n * self.queue.lanes

    def describe(self) -> list[str]:
        return [f"batch   {self.n} slots × {self.queue.lanes} lanes × {self.queue.T} steps, of one agent"]

    def consumer(self, agent: int, join: Collator) -> Iterator[tuple[Batch, Batch] | None]:
        """Yield (rows [T+1, n·lanes, …], state [n·lanes, …]) of an agent, or None when nothing came for a while. Raises
        Closed. The arrays are good until the next batch is asked for.
        """
        queue, bell = self.queue, self.queue.bell(agent)
        queue.reclaim(agent)
        while True:
            queue.check()
            if (slot := self._take(agent)) is None:
                if not (self.wait and bell.wait(queue.patience)):
                    yield None
                continue
            bell.wait(0)
            if self.n == 1:
                yield join([slot])
                join.done()
                queue.give_back(agent, slot)
                continue
            join.put(join.placed, slot)
            join.done()
            queue.give_back(agent, slot)
            join.placed = (join.placed + 1) % self.n
            if not join.placed:
                yield join.joined

    def ready(self, agent: int) -> bool:
        """Whether a rollout of it waits."""
        ends = self.queue.ends[agent :: self.queue.consumers]
        return bool((ends[:, 1] > ends[:, 0]).any())

    def _take(self, agent: int) -> int | None:
        """The next slot, of producers in turn that have one."""
        queue = self.queue
        ends = queue.ends[agent :: queue.consumers]
        ready = np.flatnonzero(ends[:, 1] > ends[:, 0])
        if not len(ready):
            return None
        turn = int(queue.turns[agent]) % queue.producers
        p = int(ready[np.searchsorted(ready, turn) % len(ready)])
        queue.turns[agent] = p + 1
        return queue._full[p * queue.consumers + agent].take(queue.use, READING + agent)

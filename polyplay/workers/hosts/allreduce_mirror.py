"""Replicas on several machines: what each brings to a meeting goes to all others, before the number of its turn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from polyplay.common.shared_memory import memory_barrier
from polyplay.weights.allreduce import GRADIENT, WEIGHTS, AllReduce
from polyplay.workers.hosts.mirrors import Frame, FrameError, ObjectMirror, RemoteSeat


class AllReduceMirror(ObjectMirror):
    """Both ways: of a replica's gradient the parts that replicas there average, its part of the weights and of the
    optimiser's statistics, and its sums. They add up as on one machine, in the same order.

    A replica arrives at turn k + 2 only after all have seen it at k. So what it wrote for turn k stays until it was
    sent, and at most two of its turns are to be sent.

    Items, by replica: two of its turns; then its gradient; then its part.
    """

    def __init__(self, reduce: AllReduce):
        self.reduce, n = reduce, reduce.replicas
        self.group: tuple[int, ...] = ()  # those that are away
        self._turns = [0] * n  # sent
        self._head, self._sums = np.zeros(2, np.int64), np.zeros(reduce.sums.shape[-1])
        self.of_gradients, self.of_parts = 2 * n, 3 * n

    def sit(self, seat: RemoteSeat) -> None:
        """All of a machine's replicas with the first: it is known from then on who needs what."""
        if not self.group:
            self.group = seat.group
            for rank in range(self.reduce.replicas):
                if self.away or rank in self.group:  # those of a third machine have another link
                    self.reduce._bells[rank].relay(None if (rank in self.group) == self.away else self.relay)

    def _on_side(self, away: bool) -> list[int]:
        return [rank for rank in range(self.reduce.replicas) if (rank in self.group) == away]

    def changes(self, now: float) -> Iterator[Frame]:
        reduce = self.reduce
        for rank in self._on_side(self.away) if self.group else ():
            turn = int(reduce.arrived[rank, 0])
            memory_barrier()
            for k in range(self._turns[rank] + 1, turn + 1):
                brings = int(reduce.arrived[rank, 1 + k % 2])
                if brings == GRADIENT:
                    yield self.of_gradients + rank, self._gradient(rank, not self.away)
                elif brings == WEIGHTS:
                    yield self.of_parts + rank, self._part(rank)
                self._turns[rank] = k
                yield 2 * rank + k % 2, [np.array([k, brings]), reduce.sums[k % 2, rank]]

    def _gradient(self, rank: int, away: bool) -> list[np.ndarray]:
        """What one side's replicas average of this replica's gradient, and the buffers, which each averages."""
        reduce, row = self.reduce, self.reduce.gradients[rank]
        parts = [row[reduce.part(other)] for other in self._on_side(away)]
        return [part for part in (*parts, row[reduce.weights :]) if part.size]

    def _part(self, rank: int) -> list[np.ndarray]:
        return [part for row in self.reduce.state if (part := row[self.reduce.part(rank)]).size]

    def places(self, item: int) -> list[np.ndarray]:
        rank = item // 2 if item < self.of_gradients else item % self.reduce.replicas
        if item >= self.of_parts + self.reduce.replicas or rank not in self._on_side(not self.away) or not self.group:
            raise FrameError(f"item {item} of replicas")
        if item < self.of_gradients:
            return [self._head, self._sums]
        return self._gradient(rank, self.away) if item < self.of_parts else self._part(rank)

    def arrived(self, item: int) -> None:
        if item >= self.of_gradients:
            return
        reduce, rank, (turn, brings) = self.reduce, item // 2, self._head.tolist()
        if turn != reduce.arrived[rank, 0] + 1 or turn % 2 != item % 2 or brings not in range(3):
            raise FrameError(f"turn {turn} of replica {rank} after {reduce.arrived[rank, 0]}")
        reduce.sums[turn % 2, rank], reduce.arrived[rank, 1 + turn % 2] = self._sums, brings
        memory_barrier()
        reduce.arrived[rank, 0] = turn
        memory_barrier()
        for other in range(reduce.replicas):
            if (other in self.group) == self.away:
                reduce._bells[other].post()

    def close(self) -> None:
        self.reduce.close()

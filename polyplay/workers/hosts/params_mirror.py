"""Weights go to where they are read: of the versions that were published, the newest when the link has time for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from polyplay.common.shared_memory import memory_barrier
from polyplay.weights.params import _ROUND, _VERSION, Params
from polyplay.workers.hosts.mirrors import Frame, FrameError, ObjectMirror, RemoteSeat

NEWS, VECTOR = 0, 1


class ParamsMirror(ObjectMirror):
    """From the publisher's side: version, round and rollouts learnt from, and then that version's vector where it is
    another. Home passes on what it got from a publisher elsewhere.
    """

    last = True  # a learner that goes on writes first how far it was

    def __init__(self, params: Params):
        self.params = params
        self._news = np.full(2 + len(params._learnt), -1, np.int64)  # sent, or received
        self._vector = np.zeros(0, np.float32)
        self._readers, self._publishes = set[int](), False  # who is away
        self._version = -1  # of the vector that was sent, or is here

    def sit(self, seat: RemoteSeat) -> None:
        params = self.params
        if seat.end == "publish":
            self._publishes = True
        else:
            self._readers.add(seat.index)
        if self.away and self._version < 0:  # no weights have come or were published yet
            params._head[_ROUND] = -1
        across = [i for i in range(len(params._waiting)) if (i in self._readers) != self.away]
        if self._sends and across:  # one of them wakes the link for all
            params._bells[across[0]].relay(self.relay)
            params._waiting[across[0]] = 1

    @property
    def _sends(self) -> bool:
        return self._publishes if self.away else bool(self._readers and not self._publishes)

    def changes(self, now: float) -> Iterator[Frame]:
        params = self.params
        if not self._sends or params.round < 0:
            return
        learnt = np.array(params._learnt)  # in the order opposite to that in which they are written
        memory_barrier()
        rounds = params.round
        memory_barrier()
        news = np.concatenate([[params.version, rounds], learnt])
        if (news == self._news).all():
            return
        self._news = news
        memory_barrier()
        if not self._vector.size:
            self._vector = np.zeros(params.size, np.float32)
        if fresh := self._version != news[0]:  # a later one than that may be there by now
            news = news.copy()
            news[0] = self._version = params._newest.read(torch.from_numpy(self._vector), params.check)
        yield NEWS, [news]
        if fresh:
            yield VECTOR, [self._vector]

    def places(self, item: int) -> list[np.ndarray]:
        params = self.params
        if self._publishes == self.away or item not in (NEWS, VECTOR):
            raise FrameError(f"item {item} of weights")
        if item == NEWS:
            return [self._news]
        params._newest.begin(int(self._news[0]))
        return [params._copies[1 - params._newest.active]]

    def arrived(self, item: int) -> None:
        params, version = self.params, int(self._news[0])
        if item == VECTOR:
            params._newest.end(version)
            self._version = version
        elif self._version != version:
            return  # its vector comes next
        params._head[_VERSION], params._head[_ROUND] = version, self._news[1]
        params._learnt[:] = self._news[2:]
        memory_barrier()
        for i in np.flatnonzero(params._waiting):
            params._bells[int(i)].post()

    def close(self) -> None:
        self.params.close()

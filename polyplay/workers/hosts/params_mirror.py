"""Weights go to where they are read: of the versions that were published, the newest when the link has time for it,
and no more of them than their readers have use for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np
import torch

from polyplay.common.shared_memory import memory_barrier
from polyplay.weights.params import _ROUND, _VERSION, Params
from polyplay.workers.hosts.mirrors import Frame, FrameError, ObjectMirror, RemoteSeat

NEWS, VECTOR, READS = 0, 1, 2
OFTEN = 4  # versions that go to a machine from one time that weights are read there to the next, where none waits
RARELY = 1.0  # seconds between two at most


class ParamsMirror(ObjectMirror):
    """From the publisher's side: version, round and rollouts learnt from, and then that version's vector where it is
    another. Home passes on what it got from a publisher elsewhere. From the readers': how often they have read, and
    whether one waits. What is read every few seconds is not sent 20 times a second: it could fill a line.
    """

    last = True  # a learner that goes on writes first how far it was

    def __init__(self, params: Params):
        self.params = params
        self._news = np.full(2 + len(params._learnt), -1, np.int64)  # sent, or received
        self._vector = np.zeros(0, np.float32)
        self._readers, self._publishes = set[int](), False  # who is away
        self._version = -1  # of the vector that was sent, or is here
        # where they are read: how many times so far, and whether somebody waits; that as it arrives
        self._reads, self._news_of_reads = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self._read_at = self._sent_at = self._between = 0.0  # when; seconds from one reading to the next

    def sit(self, seat: RemoteSeat) -> None:
        params = self.params
        if seat.end == "publish":
            self._publishes = True
        else:
            self._readers.add(seat.index)
        if self.away and self._version < 0:  # no weights have come or were published yet
            params._head[_ROUND] = -1
        if self._sends and (across := self._across()):  # one of them wakes the link for all
            params._bells[across[0]].relay(self.relay)
            params._waiting[across[0]] = 1
        if self._asks:
            params._bells[params.readers].relay(self.relay)

    def _across(self) -> list[int]:
        """Readers on the other side."""
        return [i for i in range(len(self.params._waiting)) if (i in self._readers) != self.away]

    @property
    def _asks(self) -> bool:
        """Whether it is on the readers' side of a link that weights go out by."""
        return self.away and bool(self._readers) and not self._publishes

    @property
    def _sends(self) -> bool:
        return self._publishes if self.away else bool(self._readers and not self._publishes)

    def changes(self, now: float) -> Iterator[Frame]:
        params = self.params
        if self._asks:
            mine = sorted(self._readers)
            reads = np.array([params._reads[mine].sum(), params._waiting[mine].any()])
            if (reads != self._reads).any():
                self._reads = reads
                yield READS, [reads]
        if not self._sends or params.round < 0 or not self._is_due(now):
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
        self._sent_at = self._sent_at if math.isinf(now) else now
        yield NEWS, [news]
        if fresh:
            yield VECTOR, [self._vector]

    def _is_due(self, now: float) -> bool:
        """Whether another version is of use there."""
        return bool(self.away or self._reads[1]) or now - self._sent_at >= min(self._between / OFTEN, RARELY)

    def places(self, item: int) -> list[np.ndarray]:
        params = self.params
        if item == READS and not self.away:
            return [self._news_of_reads]
        if self._publishes == self.away or item not in (NEWS, VECTOR):
            raise FrameError(f"item {item} of weights")
        if item == NEWS:
            return [self._news]
        params._newest.begin(int(self._news[0]))
        return [params._copies[1 - params._newest.active]]

    def arrived(self, item: int) -> None:
        if item == READS:
            self._were_read()
            return
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

    def _were_read(self) -> None:
        now, n = time.monotonic(), int(self._news_of_reads[0] - self._reads[0])
        if n > 0:
            if self._read_at:
                self._between += ((now - self._read_at) / n - self._between) / OFTEN
            self._read_at = now
        self._reads = self._news_of_reads.copy()
        if self._reads[1] and (across := self._across()):
            self.params._bells[across[0]].post()  # a version that was left out may be there

    def close(self) -> None:
        self.params.close()

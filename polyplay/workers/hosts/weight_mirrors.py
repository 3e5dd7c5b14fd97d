"""Mirrors of weights: params, AllReduce, parameter server.

Of a learner and a shard of a parameter server on the same side nothing crosses but counts. Of others the learner's
slice of a gradient crosses, before the mark that says that it is written; back come the shard's part and then the mark
that it was taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from enum import IntEnum, auto

import numpy as np
import torch

from polyplay.core.shared_memory import memory_barrier
from polyplay.weights.parameter_server import APPLIED, BASE, HELD, HOLD, TAKEN, VERSION, WRITTEN, ParameterServer
from polyplay.weights.params import _ROUND, _VERSION, Params
from polyplay.weights.update import GRADIENT, READY, WEIGHTS, AllReduce
from polyplay.workers.hosts.mirrors import Frame, FrameError, ObjectMirror, RemoteSeat

# Weights go to where they are read: of the versions that were published, the newest when the link has time for it,
# and no more of them than their readers have use for.


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


# Replicas on several machines: what each brings to a meeting goes to all others, before the number of its turn.


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


_CELLS = slice(APPLIED, HELD + 1)  # of a shard
_MARKS = slice(WRITTEN, BASE + 1)  # of a slot


class _Kind(IntEnum):
    """Of frames: one of each of the first two, then of each shard, of each learner, of each slot."""

    THERE, HEAD, SHARD, VERSION, PART, STATISTICS, LEARNER, SEAT, SLICE = (auto() for _ in range(9))


class ServerMirror(ObjectMirror):
    """Each side sends what its own workers write: learners their slices and counts, and learner 0 the header and what a
    shard begins with; shards their parts, marks and counts, and their statistics while learner 0 has them stand still.
    What is on no machine of this link is home's: home has it from another link.
    """

    def __init__(self, server: ParameterServer):
        self.server, n, each = server, server.shards, server.workers
        counts = [1, 1, n, n, n, n, each, each, each * n]
        self._items = np.cumsum([0, *counts]).tolist()  # the first of each kind
        self.readers = False  # whether somebody away wants parts
        self.learners, self.shards = frozenset[int](), frozenset[int]()  # that are away
        self._seated = frozenset[int]()  # learners that are, or were
        self._versions, self._held = np.full(n, -1), np.zeros(n, np.int64)  # of parts: sent, or received; answered
        self._begun = frozenset[int]()  # shards that the other side has the first weights of
        self._written = np.zeros((each, n), np.int64)  # what the other side knows
        self._there, self._head = np.zeros(each, np.int64), np.zeros_like(server.head)
        self._version, self._slice = np.zeros(1, np.int64), [np.zeros(2, np.int64), np.zeros(1)]
        self._shard, self._learner, self._seat = (
            [*map(np.zeros_like, cells)] for cells in (self._of_shard(0), self._of_learner(0), self._of_seat(0))
        )

    def _item(self, kind: _Kind, i: int = 0) -> int:
        return self._items[kind - 1] + i

    def _kind(self, item: int) -> tuple[_Kind, int]:
        if not 0 <= item < self._items[-1]:
            raise FrameError(f"item {item} of a parameter server")
        kind = _Kind(int(np.searchsorted(self._items, item, "right")))
        return kind, item - self._item(kind)

    def _learns(self, w: int) -> bool:
        """Whether learner `w` is on this side."""
        return (w in self.learners) == self.away

    def _serves(self, k: int) -> bool:
        return (k in self.shards) == self.away

    def _of_shard(self, k: int) -> list[np.ndarray]:
        server = self.server
        return [server.shard[k, _CELLS], server.lags[k], server.slot[:, k, TAKEN]]

    def _of_learner(self, w: int) -> list[np.ndarray]:
        return [self.server.counters[w], self.server.slot[w, :, _MARKS]]

    def _of_seat(self, w: int) -> list[np.ndarray]:
        return [self.server.counters[w], self.server.slot[w]]

    def _statistics(self, k: int) -> list[np.ndarray]:
        part = self.server.parts[k]
        return [row[part.start : min(part.stop, self.server.weights)] for row in self.server.statistics]

    # ---- a seat

    def prepare(self) -> None:
        server = self.server
        for k in range(server.shards if self.away else 0):
            server.bell(k).relay(self.relay)
        for w in range(server.workers if self.away else 0):
            server.reply(w).relay(self.relay)

    def begin(self, seat: RemoteSeat) -> Iterator[Frame]:
        """All that is here; a shard is waited for by who has all stand still from now on."""
        if seat.end == "server":
            self.sit(seat)
        self.readers |= seat.end != "server"
        yield from self.changes(0.0)
        if seat.end == "update":
            yield self._item(_Kind.SEAT, seat.index), [np.array(x) for x in self._of_seat(seat.index)]

    def sit(self, seat: RemoteSeat) -> None:
        server, i, to = self.server, seat.index, None if self.away else self.relay
        if seat.end == "server":
            server.bell(i).relay(to)
            self.shards |= {i}
            memory_barrier()
            return
        self.readers = True
        if seat.end == "update":
            if self.away:
                self._written[i] = server.slot[i, :, WRITTEN]
            server.reply(i).relay(to)
            self._seated |= {i}
            self.learners |= {i}
            self.sent.pop(self._item(_Kind.THERE), None)

    # ---- this side's changes

    def changes(self, now: float) -> Iterator[Frame]:
        if not self.away:
            yield from self._moved()
        if not (self.readers or self.shards):
            return
        server = self.server
        head = np.array(server.head)
        memory_barrier()
        still = self._still(int(head[HOLD]))
        learners = {w: [*map(np.array, self._of_learner(w))] for w in range(server.workers) if self._learns(w)}
        shards = {k: [*map(np.array, self._of_shard(k))] for k in range(server.shards) if self._serves(k)}
        memory_barrier()
        for w, (_, marks) in learners.items():
            yield from self._slices(w, marks)
        if head[READY]:
            yield from self._weights(still)
        for k, cells in shards.items() if head[READY] and (self.away or self.learners) else ():
            cells[0][HELD - APPLIED] = self._held[k]
            yield from self.if_new(self._item(_Kind.SHARD, k), cells)
        for w, cells in learners.items() if self.away or self.readers else ():
            yield from self.if_new(self._item(_Kind.LEARNER, w), cells[: 1 + self.away])
        if self._learns(0):
            yield from self.if_new(self._item(_Kind.HEAD), [head])

    def _moved(self) -> Iterator[Frame]:
        """A learner that was lost there may have been replaced on another machine."""
        there = [w for w in self._seated if self.server.reply(w).relayed == self.relay]
        self.learners = frozenset(there)
        if self._seated:
            yield from self.if_new(self._item(_Kind.THERE), [np.isin(range(self.server.workers), there).astype(int)])

    def _still(self, number: int) -> list[int]:
        """Shards of this side that stand still, where learner 0 wants that and has not heard it yet."""
        if number % 2 == 0 or self._learns(0):
            return []
        held = self.server.held(number)
        memory_barrier()
        still = [k for k in range(self.server.shards) if held[k] and self._serves(k) and self._held[k] != number]
        self._held[still] = number
        return still

    def _slices(self, w: int, marks: np.ndarray) -> Iterator[Frame]:
        server = self.server
        for k in np.flatnonzero(marks[:, WRITTEN] != self._written[w]).tolist():
            if not self._serves(k):
                self._written[w, k] = marks[k, WRITTEN]
                item = self._item(_Kind.SLICE, w * server.shards + k)
                yield item, [server.gradient[w, server.parts[k]], marks[k], np.array([server.rate[w, k]])]

    def _weights(self, still: list[int]) -> Iterator[Frame]:
        """What shards there begin with, and parts of those here that are new, or stand still."""
        server = self.server
        for k in range(server.shards):
            fresh = not self._serves(k) and self._learns(0) and k not in self._begun
            if fresh:
                self._begun |= {k}
            if fresh or k in still:
                yield self._item(_Kind.STATISTICS, k), self._statistics(k)
            wanted = self._serves(k) and (self.away or self.readers)
            if fresh or (wanted and server.shard[k, VERSION] != self._versions[k]):
                part = torch.empty(server.parts[k].stop - server.parts[k].start)
                self._versions[k] = server.newest[k].read(part, server.check)
                yield self._item(_Kind.VERSION, k), [self._versions[k : k + 1]]
                yield self._item(_Kind.PART, k), [part.numpy()]

    # ---- the other side's

    def places(self, item: int) -> list[np.ndarray]:
        kind, i = self._kind(item)
        if not self._may_come(kind, i):
            raise FrameError(f"{kind.name} {i} of a parameter server")
        small = {_Kind.THERE: [self._there], _Kind.HEAD: [self._head], _Kind.VERSION: [self._version]}
        learner = self._learner[: 2 - self.away]  # marks only come home: away a shard that begins would obey them
        small |= {_Kind.SHARD: self._shard, _Kind.LEARNER: learner, _Kind.SEAT: self._seat}
        if kind in small:
            return small[kind]
        server = self.server
        if kind is _Kind.STATISTICS:
            return self._statistics(i)
        if kind is _Kind.SLICE:
            w, k = divmod(i, server.shards)
            return [server.gradient[w, server.parts[k]], *self._slice]
        server.newest[i].begin(int(self._version[0]))
        return [server.copies[1 - server.newest[i].active, server.parts[i]]]

    def _may_come(self, kind: _Kind, i: int) -> bool:
        """Whether the other side writes that. What a learner says may be under way while it or a shard moves."""
        if kind in (_Kind.THERE, _Kind.SEAT):
            return self.away
        if kind is _Kind.HEAD:
            return not self._learns(0)
        if kind is _Kind.LEARNER:
            return self.away or i in self._seated
        if kind is _Kind.SLICE:
            w, k = divmod(i, self.server.shards)
            return not self._learns(w) and bool(self.server.slot[w, k, WRITTEN] == self.server.slot[w, k, TAKEN])
        first = not self.server.ready and not self._learns(0)
        return not self._serves(i) or (first and kind is not _Kind.SHARD)

    def arrived(self, item: int) -> None:
        kind, i = self._kind(item)
        match kind:
            case _Kind.THERE:
                self.learners &= frozenset(np.flatnonzero(self._there).tolist())
            case _Kind.HEAD:
                self._head_arrived()
            case _Kind.SHARD:
                self._shard_arrived(i)
            case _Kind.PART:
                self._part_arrived(i, int(self._version[0]))
            case _Kind.LEARNER if not self._learns(i):
                self._learner_arrived(i)
            case _Kind.SEAT:
                elsewhere = [k for k in range(self.server.shards) if not self._serves(k)]
                self.server.counters[i], self.server.slot[i, elsewhere] = self._seat[0], self._seat[1][elsewhere]
            case _Kind.SLICE:
                self._slice_arrived(*divmod(i, self.server.shards))

    def _head_arrived(self) -> None:
        if self._head[READY]:
            self._begun = frozenset(range(self.server.shards))
        memory_barrier()
        self.server.head[:] = self._head
        memory_barrier()
        self.server.ring()

    def _shard_arrived(self, k: int) -> None:
        server, places, (cells, lags, taken) = self.server, self._of_shard(k), self._shard
        news = {*np.flatnonzero(places[2] != taken).tolist(), *([0] if places[0][-1] != cells[-1] else [])}
        memory_barrier()
        places[0][:], places[1][:], places[2][:] = cells, lags, taken
        memory_barrier()
        for w in sorted(news):
            if self._learns(w):
                server.reply(w).post()

    def _part_arrived(self, k: int, version: int) -> None:
        self.server.newest[k].end(version)
        self._versions[k] = version
        memory_barrier()
        self.server.shard[k, VERSION] = version

    def _learner_arrived(self, w: int) -> None:
        counters, marks = self._learner
        self.server.counters[w] = counters
        for k in self.shards if not self.away else ():  # to whom its slices did not cross, but would if it moved
            self._written[w, k] = marks[k, WRITTEN]
            self.server.slot[w, k, _MARKS] = marks[k]

    def _slice_arrived(self, w: int, k: int) -> None:
        server, (mark, rate) = self.server, self._slice
        marks, (written, base) = server.slot[w, k], mark.tolist()
        if written != marks[WRITTEN] + 1:
            raise FrameError(f"slice {written} of learner {w} after {marks[WRITTEN]}")
        self._written[w, k] = written
        marks[BASE], server.rate[w, k] = base, rate[0]
        memory_barrier()
        marks[WRITTEN] = written
        server.bell(k).post()

    def close(self) -> None:
        self.server.close()

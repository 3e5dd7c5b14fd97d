"""Mirrors of weights: params, AllReduce, parameter server.

Of a learner and a shard of a parameter server on the same side nothing crosses but counts. Of others the learner's
slice of a gradient crosses, before the mark that says that it is written; back come the shard's part and then the mark
that it was taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import IntEnum, auto

import numpy as np
import torch

from polyplay.core.shared_memory import memory_barrier
from polyplay.weights import parameter_server as servers
from polyplay.weights import update
from polyplay.weights.parameter_server import ParameterServer
from polyplay.weights.params import Params
from polyplay.weights.update import AllReduce
from polyplay.workers.hosts.mirrors import Frame, MachineCopy, RemoteSeat

# Weights go to where they are read: of the versions that were published, the newest when the link has time for it,
# and no more of them than a line can easily carry.


NEWS, VECTOR, WAITING = range(3)
RATE = 50e6  # bytes a second of weights that go to a machine where no reader waits for them


class ParamsMirror(MachineCopy):
    """From the publisher's side: version, round and rollouts learnt from, and then that version's vector where it is
    another. Home passes on what it got from a publisher elsewhere. From the readers': whether one waits. Then the next
    version goes at once; else versions take a part of the line.
    """

    last = True  # a learner that goes on writes first how far it was

    def __init__(self, params: Params):
        self.params = params
        self._news = np.full(2 + len(params._learnt), -1, np.int64)  # sent, or received
        self._vector = np.zeros(0, np.float32)
        self._readers, self._publishes = set[int](), False  # who is away
        self._version = -1  # of the vector that was sent, or is here
        self._waiting = np.zeros(1, np.int64)  # whether a reader elsewhere does
        self._next = -math.inf  # when another version may go out

    def sit(self, seat: RemoteSeat) -> None:
        params = self.params
        if seat.end == "publish":
            self._publishes = True
        else:
            self._readers.add(seat.index)
        if self.away and self._version < 0:  # no weights have come or were published yet
            params.announce(params.version, -1)
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
            yield from self.if_new(WAITING, 0, [np.array([params._waiting[sorted(self._readers)].any()], np.int64)])
        if not self._sends or params.round < 0 or not (self.away or self._waiting[0] or now >= self._next):
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
            if math.isfinite(now):
                self._next = now + self._vector.nbytes / RATE
        yield NEWS, 0, [news]
        if fresh:
            yield VECTOR, 0, [self._vector]

    def places(self, part: int, i: int) -> list[np.ndarray]:
        params = self.params
        if part != VECTOR:
            return [self._waiting if part == WAITING else self._news]
        params._newest.begin(int(self._news[0]))
        return [params._copies[1 - params._newest.active]]

    def arrived(self, part: int, i: int) -> None:
        params, version = self.params, int(self._news[0])
        if part == WAITING:
            if self._waiting[0] and (across := self._across()):
                params._bells[across[0]].post()  # a version that was left out may be there
            return
        if part == VECTOR:
            params._newest.end(version)
            self._version = version
        elif self._version != version:
            return  # its vector comes next
        params.announce(version, int(self._news[1]), self._news[2:])

    def close(self) -> None:
        self.params.close()


# Replicas on several machines: what each brings to a meeting goes to all others, before the number of its turn.


TURN = 0  # a part, as GRADIENT and WEIGHTS


class AllReduceMirror(MachineCopy):
    """Both ways: of a replica's gradient the parts that replicas there average, its part of the weights and of the
    optimizer's statistics, and its sums. They add up as on one machine, in the same order.

    A replica arrives at turn k + 2 only after all have seen it at k. So what it wrote for turn k stays until it was
    sent, and at most two of its turns are to be sent.

    Parts, by replica: its gradient, or its part of the weights; then its turn.
    """

    def __init__(self, reduce: AllReduce):
        self.reduce, n = reduce, reduce.replicas
        self.group: tuple[int, ...] = ()  # those that are away
        self._turns = [0] * n  # sent
        self._head, self._sums = np.zeros(2, np.int64), np.zeros(reduce.sums.shape[-1])

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
                if brings == update.GRADIENT:
                    yield update.GRADIENT, rank, self._gradient(rank, not self.away)
                elif brings == update.WEIGHTS:
                    yield update.WEIGHTS, rank, self._part(rank)
                self._turns[rank] = k
                yield TURN, rank, [np.array([k, brings]), reduce.sums[k % 2, rank]]

    def _gradient(self, rank: int, away: bool) -> list[np.ndarray]:
        """What one side's replicas average of this replica's gradient, and the buffers, which each averages."""
        reduce, row = self.reduce, self.reduce.gradients[rank]
        parts = [row[reduce.part(other)] for other in self._on_side(away)]
        return [part for part in (*parts, row[reduce.weights :]) if part.size]

    def _part(self, rank: int) -> list[np.ndarray]:
        return [part for row in self.reduce.state if (part := row[self.reduce.part(rank)]).size]

    def places(self, part: int, i: int) -> list[np.ndarray]:
        if part == update.GRADIENT:
            return self._gradient(i, self.away)
        return self._part(i) if part == update.WEIGHTS else [self._head, self._sums]

    def arrived(self, part: int, i: int) -> None:
        if part != TURN:
            return
        reduce, (turn, brings) = self.reduce, self._head.tolist()
        reduce.sums[turn % 2, i], reduce.arrived[i, 1 + turn % 2] = self._sums, brings
        memory_barrier()
        reduce.arrived[i, 0] = turn
        memory_barrier()
        for other in range(reduce.replicas):
            if (other in self.group) == self.away:
                reduce._bells[other].post()

    def close(self) -> None:
        self.reduce.close()


_CELLS = slice(servers.APPLIED, servers.HELD + 1)  # of a shard
_MARKS = slice(servers.WRITTEN, servers.BASE + 1)  # of a slot


class _Kind(IntEnum):
    """Of frames: one of each of the first two, then of each shard, of each learner, of each slot."""

    THERE, HEAD, SHARD, VERSION, PART, STATISTICS, LEARNER, SEAT, SLICE = (auto() for _ in range(9))


class ServerMirror(MachineCopy):
    """Each side sends what its own workers write: learners their slices and counts, and learner 0 the header and what a
    shard begins with; shards their parts, marks and counts, and their statistics while learner 0 has them stand still.
    What is on no machine of this link is home's: home has it from another link.
    """

    def __init__(self, server: ParameterServer):
        self.server, n, each = server, server.shards, server.workers
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

    def _learns(self, w: int) -> bool:
        """Whether learner `w` is on this side."""
        return (w in self.learners) == self.away

    def _serves(self, k: int) -> bool:
        return (k in self.shards) == self.away

    def _of_shard(self, k: int) -> list[np.ndarray]:
        server = self.server
        return [server.shard[k, _CELLS], server.lags[k], server.slot[:, k, servers.TAKEN]]

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
            yield _Kind.SEAT, seat.index, [np.array(x) for x in self._of_seat(seat.index)]

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
                self._written[i] = server.slot[i, :, servers.WRITTEN]
            server.reply(i).relay(to)
            self._seated |= {i}
            self.learners |= {i}
            self.sent.pop((_Kind.THERE, 0), None)

    # ---- this side's changes

    def changes(self, now: float) -> Iterator[Frame]:
        if not self.away:
            yield from self._moved()
        if not (self.readers or self.shards):
            return
        server = self.server
        head = np.array(server.head)
        memory_barrier()
        still = self._still(int(head[servers.HOLD]))
        learners = {w: [*map(np.array, self._of_learner(w))] for w in range(server.workers) if self._learns(w)}
        shards = {k: [*map(np.array, self._of_shard(k))] for k in range(server.shards) if self._serves(k)}
        memory_barrier()
        for w, (_, marks) in learners.items():
            yield from self._slices(w, marks)
        if head[update.READY]:
            yield from self._weights(still)
        for k, cells in shards.items() if head[update.READY] and (self.away or self.learners) else ():
            cells[0][servers.HELD - servers.APPLIED] = self._held[k]
            yield from self.if_new(_Kind.SHARD, k, cells)
        for w, cells in learners.items() if self.away or self.readers else ():
            yield from self.if_new(_Kind.LEARNER, w, cells[: 1 + self.away])
        if self._learns(0):
            yield from self.if_new(_Kind.HEAD, 0, [head])

    def _moved(self) -> Iterator[Frame]:
        """A learner that was lost there may have been replaced on another machine."""
        there = [w for w in self._seated if self.server.reply(w).relayed == self.relay]
        self.learners = frozenset(there)
        if self._seated:
            yield from self.if_new(_Kind.THERE, 0, [np.isin(range(self.server.workers), there).astype(int)])

    def _still(self, number: int) -> list[int]:
        """Shards of this side that stand still, where learner 0 wants that and does not know it yet."""
        if number % 2 == 0 or self._learns(0):
            return []
        held = self.server.held(number)
        memory_barrier()
        still = [k for k in range(self.server.shards) if held[k] and self._serves(k) and self._held[k] != number]
        self._held[still] = number
        return still

    def _slices(self, w: int, marks: np.ndarray) -> Iterator[Frame]:
        server = self.server
        for k in np.flatnonzero(marks[:, servers.WRITTEN] != self._written[w]).tolist():
            if not self._serves(k):
                self._written[w, k] = marks[k, servers.WRITTEN]
                slice_ = [server.gradient[w, server.parts[k]], marks[k], np.array([server.rate[w, k]])]
                yield _Kind.SLICE, w * server.shards + k, slice_

    def _weights(self, still: list[int]) -> Iterator[Frame]:
        """What shards there begin with, and parts of those here that are new, or stand still."""
        server = self.server
        for k in range(server.shards):
            fresh = not self._serves(k) and self._learns(0) and k not in self._begun
            if fresh:
                self._begun |= {k}
            if fresh or k in still:
                yield _Kind.STATISTICS, k, self._statistics(k)
            wanted = self._serves(k) and (self.away or self.readers)
            if fresh or (wanted and server.shard[k, servers.VERSION] != self._versions[k]):
                part = torch.empty(server.parts[k].stop - server.parts[k].start)
                self._versions[k] = server.newest[k].read(part, server.check)
                yield _Kind.VERSION, k, [self._versions[k : k + 1]]
                yield _Kind.PART, k, [part.numpy()]

    # ---- the other side's

    def places(self, part: int, i: int) -> list[np.ndarray]:
        server = self.server
        match part:
            case _Kind.SLICE:
                w, k = divmod(i, server.shards)
                return [server.gradient[w, server.parts[k]], *self._slice]
            case _Kind.PART:
                server.newest[i].begin(int(self._version[0]))
                return [server.copies[1 - server.newest[i].active, server.parts[i]]]
            case _Kind.STATISTICS:
                return self._statistics(i)
            case _Kind.LEARNER:  # marks only come home: away a shard that begins would obey them
                return self._learner[: 2 - self.away]
        small = {_Kind.THERE: [self._there], _Kind.HEAD: [self._head], _Kind.VERSION: [self._version]}
        return {**small, _Kind.SHARD: self._shard, _Kind.SEAT: self._seat}[_Kind(part)]

    def arrived(self, part: int, i: int) -> None:
        match part:
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
        if self._head[update.READY]:
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
        self.server.shard[k, servers.VERSION] = version

    def _learner_arrived(self, w: int) -> None:
        counters, marks = self._learner
        self.server.counters[w] = counters
        for k in self.shards if not self.away else ():  # to whom its slices did not cross, but would if it moved
            self._written[w, k] = marks[k, servers.WRITTEN]
            self.server.slot[w, k, _MARKS] = marks[k]

    def _slice_arrived(self, w: int, k: int) -> None:
        server, (mark, rate) = self.server, self._slice
        marks, (written, base) = server.slot[w, k], mark.tolist()
        self._written[w, k] = written
        marks[servers.BASE], server.rate[w, k] = base, rate[0]
        memory_barrier()
        marks[servers.WRITTEN] = written
        server.bell(k).post()

    def close(self) -> None:
        self.server.close()

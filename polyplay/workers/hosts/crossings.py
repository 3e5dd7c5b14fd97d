"""The flows of queues, weights, parameter servers and leagues.

A pair of a writer and a reader of a queue crosses a line where one of the two is at its other side. Of such a pair what
the writer put into slots goes to the reader's side, what the reader left in them comes back, and the numbers of slots
go both ways. Weights go to where they are read: of the versions that were published the newest, at once where a reader
waits, else at most four times in a rollout. Of a parameter server a learner's slice of a gradient goes to the shard,
and the shard's part comes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from polyplay.buffers.league import PAST, RESULTS, League
from polyplay.buffers.replay_worker import SampleQueue
from polyplay.buffers.rollout_queue import FILLING, READING, RolloutQueue, SharedQueue
from polyplay.core import checkpoint, tree
from polyplay.core.compiled import cached_njit
from polyplay.core.errors import UserError
from polyplay.core.shared_memory import Ring, SharedObject, memory_barrier
from polyplay.weights import parameter_server as servers
from polyplay.weights.parameter_server import ParameterServer
from polyplay.weights.params import AgentParams, AgentSnapshot, Params
from polyplay.weights.update import AllReduce
from polyplay.workers.hosts import flows as parts
from polyplay.workers.hosts.flows import ANY, EVERYONE, MAIN, Answer, Cells, Crossing, End, Flow, Piece, common_crossing


def crossing_of(thing: SharedObject, holder: str = "the run") -> Crossing:
    """What crosses of an object. holder: a role. Raises UserError: it does not cross machines."""
    if (common := common_crossing(thing)) is not None:
        return common
    for kind, found in KINDS.items():
        if isinstance(thing, kind):
            return found(thing)
    what = f"{holder} shares a {type(thing).__name__} with others"
    raise UserError(f"--hosts: {what}, which does not cross machines; leave --hosts out")


# Stacked pictures on their way to another machine: of a row that continues the one before only the newest plane. Exact
# to the bit: what a row has of the row before is compared, not assumed.


def words(pictures: np.ndarray) -> np.ndarray:
    """The same memory as [..., k, n] numbers of eight bytes where a plane divides so, for speed."""
    flat = pictures.reshape(*pictures.shape[:-2], -1)
    return flat.view(np.uint64) if flat.shape[-1] % 8 == 0 else flat


@cached_njit()
def pack_planes(rows: np.ndarray, whole: np.ndarray, planes: np.ndarray) -> int:
    """rows [T, B, k, n] → whole uint8 [T, B], 1 where a row does not continue the one before, and planes [≤ T·B·k, n]:
    all k of such a row, else the newest. Returns how many planes.
    """
    T, B, k, n = rows.shape
    at = 0
    for t in range(T):
        for b in range(B):
            differs = t == 0
            for i in range(k - 1):
                if differs:
                    break
                for j in range(n):
                    if rows[t, b, i, j] != rows[t - 1, b, i + 1, j]:
                        differs = True
                        break
            whole[t, b] = differs
            for i in range(0 if differs else k - 1, k):
                planes[at] = rows[t, b, i]
                at += 1
    return at


@cached_njit()
def unpack_planes(rows: np.ndarray, whole: np.ndarray, planes: np.ndarray) -> None:
    """The inverse; whole[0] is all 1."""
    T, B, k, _ = rows.shape
    at = 0
    for t in range(T):
        for b in range(B):
            first = 0 if whole[t, b] else k - 1
            for i in range(first):
                rows[t, b, i] = rows[t - 1, b, i + 1]
            for i in range(first, k):
                rows[t, b, i] = planes[at]
                at += 1


# What is in the slots of a queue.


class RolloutContent:
    """Rows and who acted them; of stacked pictures first a mask and all but these, and then their planes."""

    def __init__(self, queue: RolloutQueue):
        self.queue = queue
        leaves = list(tree.leaves({"rows": queue.rows, "state": queue.state}))
        # [slots, T+1, lanes, k, height, width] of bytes: pictures that may be stacks of planes
        stacked = [x for _, x in leaves if x.dtype == np.uint8 and x.ndim == 6 and x.shape[3] > 1][:1]
        self.pictures = words(stacked[0]) if stacked else None
        self.leaves = [x for _, x in leaves if not stacked or x is not stacked[0]]
        if self.pictures is not None:
            T, B, k, n = self.pictures.shape[1:]
            self._whole, self._planes = np.ones((T, B), np.uint8), np.empty((T * B * k, n), self.pictures.dtype)
            few = self.pictures[0, :1, :1].copy()
            pack_planes(few, self._whole, self._planes)  # compiles
            unpack_planes(few, self._whole, self._planes)

    def cells(self, slots: slice) -> list[np.ndarray]:
        """What a pair begins with."""
        return [self.queue.marks[slots], self.queue.by[slots]]

    def _places(self, slot: int) -> list[np.ndarray]:
        return [self.queue.by[slot : slot + 1], *(x[slot] for x in self.leaves)]

    def pieces(self, slot: int) -> Iterator[Piece]:
        """What its writer put there."""
        packed = []
        if self.pictures is not None:
            n = pack_planes(self.pictures[slot], self._whole, self._planes)
            packed = [self._whole, self._planes[:n]]
        yield parts.SLOT, slot, [*self._places(slot), *packed]

    def returned(self, slot: int) -> Iterator[Piece]:
        """What its reader left there: nothing."""
        yield from ()

    def land(self, part: int, slot: int, arrays: list[np.ndarray]) -> None:
        for place, x in zip(self._places(slot), arrays, strict=False):
            place[...] = x
        if self.pictures is not None:
            unpack_planes(self.pictures[slot], *arrays[-2:])


class SampleContent:
    """A batch and its marks; it comes back with priorities, and whether it was scored."""

    def __init__(self, samples: SampleQueue):
        self.samples = samples
        self.leaves = [x for _, x in tree.leaves(samples._items)]

    def cells(self, slots: slice) -> list[np.ndarray]:
        return [self.samples.marks[slots]]

    def _places(self, part: int, slot: int) -> list[np.ndarray]:
        if part == parts.BACK:
            return [self.samples.priority[slot], self.samples.marks[slot, 2:3]]
        return [*(x[slot] for x in self.leaves), self.samples.marks[slot, 1:3]]

    def pieces(self, slot: int) -> Iterator[Piece]:
        yield parts.SLOT, slot, self._places(parts.SLOT, slot)

    def returned(self, slot: int) -> Iterator[Piece]:
        yield parts.BACK, slot, self._places(parts.BACK, slot)

    def land(self, part: int, slot: int, arrays: list[np.ndarray]) -> None:
        for place, x in zip(self._places(part, slot), arrays, strict=True):
            place[...] = x


class Pair(Flow):
    """A writer and a reader of a queue, and the rings of numbers between them. Token: numbers taken and put here."""

    both = True

    def __init__(self, queue: SharedQueue, i: int, writer: End, reader: End, slots: RolloutContent | SampleContent):
        super().__init__(writer, [reader])
        self.queue, self.i, self.slots = queue, i, slots
        self._holder = READING + (queue.each > 1) * reader.i

    def _rings(self, gives: bool) -> tuple[Ring, Ring]:
        """That this side writes, and that it reads."""
        full, empty = self.queue._full[self.i], self.queue._empty[self.i]
        return (full, empty) if gives else (empty, full)

    def token(self, gives: bool) -> tuple[int, int]:
        """The end of what is written here first: what another slot's way home needs is read after it."""
        written, read = self._rings(gives)
        put = int(written._tail[0])
        memory_barrier()
        return int(read._head[0]), put

    def pieces(self, old: tuple[int, int] | None, new: tuple[int, int], gives: bool) -> Iterator[Piece]:
        assert old is not None
        written, _ = self._rings(gives)
        for number in range(old[1], new[1]):
            slot = int(written._ring[number % self.queue.share])
            yield from self.slots.pieces(slot) if gives else self.slots.returned(slot)
        yield parts.RINGS, 0, [np.concatenate([new, written._ring])]

    def begin(self, gives: bool, token: tuple[int, int]) -> Iterator[Piece]:
        """Who is here goes on meanwhile: it takes, then puts."""
        queue, (taken, put) = self.queue, token
        empty, full = np.array(queue._rings[0, self.i]), np.array(queue._rings[1, self.i])
        mine, theirs = (full, empty) if gives else (empty, full)
        mine[8], theirs[0] = put, taken
        owner = self.i // queue.each
        cells = self.slots.cells(slice(owner * queue.share, (owner + 1) * queue.share))
        cells = [np.array(x) for x in cells]
        for number in range(full[0], full[8]):
            yield from self.slots.pieces(int(full[16 + number % queue.share]))
        yield parts.PAIR, owner, [empty, full, *cells]

    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        queue = self.queue
        if part == parts.RINGS:
            self._replay(arrays[0], gives)
        elif part == parts.PAIR:
            places = self.slots.cells(slice(i * queue.share, (i + 1) * queue.share))
            for place, x in zip([queue._rings[0, self.i], queue._rings[1, self.i], *places], arrays, strict=True):
                place[...] = x
        else:
            self.traffic.landed += part == parts.SLOT
            self.slots.land(part, i, arrays)

    def _replay(self, numbers: np.ndarray, gives: bool) -> None:
        """Take and put here what was taken and put there."""
        (taken, put), ring = numbers[:2].tolist(), numbers[2:]
        read, written = self._rings(gives)  # by the other side
        memory_barrier()
        for _ in range(taken - int(read._head[0])):
            read.take(self.queue.use, self._holder if gives else FILLING)
        for number in range(int(written._tail[0]), put):
            written.put(int(ring[number % self.queue.share]))


def _queue_flows(queue: SharedQueue, per: int, slots: RolloutContent | SampleContent) -> list[Flow]:
    """Pairs, then answers, then what is asked. per: pairs of each writer."""
    pairs = [(End("out", i // per), End("source", i % queue.readers)) for i in range(len(queue._full))]
    flows: list[Flow] = [Pair(queue, i, *ends, slots) for i, ends in enumerate(pairs)]
    asks = len(queue._asked)
    for w in range(len(queue.answered)):
        flows.append(Answer(End("out", w), [End("source", w % asks)], [queue.answered[w : w + 1]]))
    for r in range(asks):
        readers = [End("out", w) for w in range(r, len(queue.answered), asks)]
        cells = [queue._last[r : r + 1], queue._asked[r : r + 1]]
        if isinstance(queue, RolloutQueue):  # rollouts learnt before this run, of each of its producers
            cells = [*(queue.base[p : p + 1] for p in range(r, queue.producers, queue.consumers)), *cells]
            flows.append(Cells(End("source", r), (), [queue.turns[r : r + 1]]))
        flows.append(Cells(End("source", r), readers, cells))
    return flows


def _rollouts(queue: RolloutQueue) -> Crossing:
    flows = _queue_flows(queue, queue.each, RolloutContent(queue))
    bells = [(queue._bells[c], End("source", c)) for c in range(queue.consumers)]
    bells += [(queue.writer_bell(p * queue.each), End("out", p)) for p in range(queue.producers)]
    return Crossing(flows, bells, queue.close)


def _samples(samples: SampleQueue) -> Crossing:
    """The bells of memories are those of their stream."""
    memories = [End("out", m) for m in range(samples.replay_workers)]
    learners = [End("source", c) for c in range(samples.learners)]
    flows: list[Flow] = [Cells(learners[0], memories, [samples._learning])]  # learner 0 writes for all
    flows += [Cells(end, learners[:1], [samples._remembering[end.i]]) for end in memories]
    flows += _queue_flows(samples, samples.learners, SampleContent(samples))
    bells = [(samples._bells[end.i], end) for end in learners]
    bells += [(samples._stream.bell(end.i), end) for end in memories]
    return Crossing(flows, bells, samples.close)


# Weights.


OFTEN, SELDOM = (
    4,
    1.0,
)  # versions that go to a machine in the time of a rollout at most, and seconds between two at most


class Weights(Flow):
    """From the publisher's side: version, round and rollouts learnt from, with that version's vector where it is
    another; a judge's champion goes along as files. From the readers' side: whether one waits.
    """

    both = True

    def __init__(self, params: Params, publisher: End):
        super().__init__(publisher, [End("params", i) for i in range(params.readers)])
        self.params = params
        self._version = -1  # of the vector that was sent, or is here
        self._waiting, self._last = False, (params.version, -1, b"")
        self._sent = -math.inf, 0  # when, and slots that had come then
        self._vector = torch.empty(params.size)

    def activate(self, gives: bool) -> None:
        """One of the readers wakes the line for all; so does who begins to wait."""
        if not gives:
            self.params._bells[self.params.readers].relay(self.traffic.relay)
        elif across := self._readers(not self.traffic.away):
            self.params._waiting[across[0]] = 1

    def _readers(self, away: bool) -> list[int]:
        """Those on the other machine, or those that are not."""
        seats, thing = self.traffic.seats, self.thing
        return [end.i for end in self.readers if ((thing, end) in seats) == away]

    def token(self, gives: bool) -> Any:
        params = self.params
        if not gives:
            return bool(params._waiting[self._readers(self.traffic.away)].any())
        if params.round >= 0 and self._due():
            learnt = params._learnt.tobytes()  # in the order opposite to that in which they are written
            memory_barrier()
            rounds = params.round
            memory_barrier()
            if (news := (params.version, rounds, learnt)) != self._last:
                self._last, self._sent = news, (self.traffic.now, self.traffic.landed)
        return self._last

    def _due(self) -> bool:
        """Whether another version may go out."""
        when, landed = self._sent
        if self.traffic.away or self._waiting or self.traffic.now >= when + SELDOM:
            return True
        return self.traffic.landed >= landed + len(self._readers(True)) / OFTEN

    def pieces(self, old: Any, new: Any, gives: bool) -> Iterator[Piece]:
        if not gives:
            yield parts.WAITING, 0, [np.array([new])]
            return
        params, (version, rounds, learnt) = self.params, new
        if self.traffic.away:
            yield from self.traffic.files("checkpoints/champion-*/*/*/*", keep=True)
            yield from self.traffic.files("checkpoints/champion-*/manifest.json", keep=True)
        vector = []
        if rounds >= 0 and self._version != version:
            vector = [self._vector.numpy()]
            version = self._version = params._newest.read(self._vector, params.check)  # perhaps a later one
        news = np.concatenate([[version, rounds], np.frombuffer(learnt, np.int64)])
        yield parts.VECTOR, 0, [news.astype(np.int64), *vector]

    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        params = self.params
        if part == parts.WAITING:
            self._waiting = bool(arrays[0][0])
            if self._waiting and (across := self._readers(not self.traffic.away)):
                params._bells[across[0]].post()  # a version that was left out may be there
            return
        version, rounds = arrays[0][:2].tolist()
        if len(arrays) > 1:
            params._newest.write(torch.from_numpy(arrays[1]), version)
            self._version = version
        params.announce(version, rounds, arrays[0][2:] if arrays[0].size > 2 else None)


def _weights(params: Params) -> Crossing:
    bells = [(params._bells[i], End("params", i)) for i in range(params.readers)]
    return Crossing([Weights(params, End("publish", 0))], bells, params.close)


def _agents(agents: AgentParams) -> Crossing:
    """Those of each agent; learners are on the main machine."""
    each = [_weights(params) for params in agents.each]
    flows = [Weights(params, MAIN) for params in agents.each]
    return Crossing(flows, [bell for crossing in each for bell in crossing.bells], agents.close)


# A parameter server: learners and shards anywhere.

_COUNTS = slice(servers.APPLIED, servers.LAG_MAX + 1)  # cells of a shard


class Slice(Cells):
    """A learner's slice of a gradient for a shard. The mark comes last."""

    def __init__(self, server: ParameterServer, w: int, k: int):
        marks = server.slot[w, k]
        views = [server.rate[w, k : k + 1], marks[servers.BASE : servers.BASE + 1], marks[: servers.BASE]]
        super().__init__(End("update", w), [End("server", k)], views, [server.bell(k)])
        self.gradient = server.gradient[w, server.parts[k]]

    def pieces(self, old: bytes | None, new: bytes, gives: bool) -> Iterator[Piece]:
        yield parts.MARK, 0, [np.frombuffer(new, np.uint8), self.gradient]

    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        self.gradient[:] = arrays[1]
        super().land(part, i, arrays, gives)


class ServerPart(Flow):
    """A shard's part of the weights, of its newest version."""

    def __init__(self, server: ParameterServer, k: int):
        super().__init__(End("server", k), [End("update", ANY), End("params", ANY)])
        self.server, self.k, self.cells = server, k, server.shard[k]
        part = server.parts[k]
        self.statistics = server.statistics[:, part.start : min(part.stop, server.weights)]

    def token(self, gives: bool) -> int:
        return int(self.cells[servers.VERSION]) if self.server.counts.ready else -1

    def pieces(self, old: Any, new: int, gives: bool) -> Iterator[Piece]:
        if self.server.counts.ready:
            part = self.server.parts[self.k]
            vector = torch.empty(part.stop - part.start)
            version = self.server.newest[self.k].read(vector, self.server.check)
            yield parts.VECTOR, version, [vector.numpy()]

    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        self.server.newest[self.k].write(torch.from_numpy(arrays[0]), i)
        memory_barrier()
        self.cells[servers.VERSION] = i


class First(ServerPart):
    """What a shard begins with, by learner 0: its part, and the optimizer's statistics of it."""

    def __init__(self, server: ParameterServer, k: int):
        super().__init__(server, k)
        self.writer, self.readers = End("update", 0), (End("server", k),)

    def token(self, gives: bool) -> int:
        return int(self.server.counts.ready)

    def pieces(self, old: Any, new: int, gives: bool) -> Iterator[Piece]:
        if new > 0:
            yield parts.MARK, new, [self.statistics]
            yield from super().pieces(old, new, gives)

    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        if part == parts.VECTOR:
            super().land(part, i, arrays, gives)
        else:
            self.statistics[:] = arrays[0]


class Held(First):
    """The same from a shard that stands still, as learner 0 wants for a checkpoint; then the number of that wish."""

    def __init__(self, server: ParameterServer, k: int):
        super().__init__(server, k)
        self.writer, self.readers = End("server", k), (End("update", 0),)
        self._last = 0

    def token(self, gives: bool) -> int:
        number = int(self.server.head[servers.HOLD])
        memory_barrier()
        if number % 2 and self.server.held(number)[self.k]:  # on this machine, or where home has heard so
            self._last = number
        return self._last

    def begin(self, gives: bool, token: int) -> Iterator[Piece]:
        yield from ()

    def pieces(self, old: Any, new: int, gives: bool) -> Iterator[Piece]:
        yield from super().pieces(old, new, gives)
        yield parts.WAITING, new, []

    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        if part == parts.WAITING:
            memory_barrier()
            self.cells[servers.HELD] = i
            self.server.reply(0).post()
        else:
            super().land(part, i, arrays, gives)


class Head(Cells):
    """What learner 0 says to all: the first weights are there, shards are to stand still."""

    def __init__(self, server: ParameterServer):
        super().__init__(End("update", 0), [EVERYONE], [server.head])
        self.server = server

    def ring(self) -> None:
        memory_barrier()
        self.server.ring()


def _server(server: ParameterServer) -> Crossing:
    """The head last: shards obey it, and begin with what came before."""
    learners, shards = range(server.workers), range(server.shards)
    flows: list[Flow] = []
    for k in shards:
        for w in learners:
            taken = server.slot[w, k, servers.TAKEN : servers.TAKEN + 1]
            flows += [Slice(server, w, k), Cells(End("server", k), [End("update", w)], [taken], [server.reply(w)])]
        flows.append(Cells(End("server", k), [EVERYONE], [server.shard[k, _COUNTS], server.lags[k]]))
        flows += [First(server, k), ServerPart(server, k), Held(server, k)]
    flows += [Cells(End("update", w), [EVERYONE], [server.counters[w]]) for w in learners]
    bells = [(server.bell(k), End("server", k)) for k in shards]
    bells += [(server.reply(w), End("update", w)) for w in learners]
    return Crossing([*flows, Head(server)], bells, server.close)


# A league.


class Reports(Cells):
    """An actor's results of matches."""

    def __init__(self, league: League, a: int):
        self.rows = [league._draws[a], league._players[a], league._outcomes[a]]
        # who sees a draw acknowledged has all that was reported before
        cells = [league.lost[a : a + 1], league.reported[a : a + 1], league.acknowledged[a : a + 1]]
        super().__init__(End("league", a), [MAIN], cells, [league._bells[0]])

    def pieces(self, old: bytes | None, new: bytes, gives: bool) -> Iterator[Piece]:
        rows = []
        if old is not None:
            begun, until = (int(self.split(data)[1][0]) for data in (old, new))
            rows = [np.array([begun]), *(x[np.arange(begun, until) % RESULTS] for x in self.rows)]
        yield parts.MARK, 0, [np.frombuffer(new, np.uint8), *rows]

    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        if len(arrays) > 1:
            at = (int(arrays[1][0]) + np.arange(len(arrays[2]))) % RESULTS
            for rows, x in zip(self.rows, arrays[2:], strict=True):
                rows[at] = x
        super().land(part, i, arrays, gives)


class Table(Cells):
    """Who sits at an actor's table; the files of past agents among them go first."""

    def __init__(self, league: League, a: int):
        cells = [league.taken[a : a + 1], league._tables[a], league.drawn[a : a + 1]]
        super().__init__(MAIN, [End("league", a)], cells, [league._bells[1 + a]])
        self.league = league

    def pieces(self, old: bytes | None, new: bytes, gives: bool) -> Iterator[Piece]:
        for player in {*self.split(new)[1].ravel().tolist()}:
            who = self.league.identity(player)
            if who.kind == PAST and self.traffic.root is not None:
                path = checkpoint.self_path(self.traffic.root, who.agent, who.version)
                yield from self.traffic.files(str(path.relative_to(self.traffic.root)), keep=True)
        yield from super().pieces(old, new, gives)


def _league(league: League) -> Crossing:
    """Tables last: who is at one is known then."""
    who = Cells(MAIN, [EVERYONE], [league.agent, league.version, league.kind])
    flows: list[Flow] = [who, *(Reports(league, a) for a in range(league.actors))]
    flows += [Table(league, a) for a in range(league.actors)]
    bells = [(league._bells[1 + a], End("league", a)) for a in range(league.actors)]
    return Crossing(flows, [(league._bells[0], End("rates", 0)), *bells], league.close)


KINDS: dict[type, Callable[[Any], Crossing]] = {
    RolloutQueue: _rollouts,
    SampleQueue: _samples,
    Params: _weights,
    AgentParams: _agents,
    AgentSnapshot: lambda _: Crossing([]),
    AllReduce: lambda _: Crossing([]),  # replicas meet by torch.distributed
    ParameterServer: _server,
    League: _league,
}

"""Mirrors of rollout and sample queues.

What the mirrors of queues have in common: slots, the rings of their numbers, and asking for a checkpoint's parts.

A pair of a writer and a reader crosses a link where one of the two is at its other side. Of such a pair what the writer
put into slots goes to the reader's side, what the reader left in them comes back, and the numbers go both ways.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import numpy as np

from polyplay.buffers import rollout_queue
from polyplay.buffers.replay_worker import SampleQueue
from polyplay.core import tree
from polyplay.core.compiled import cached_njit
from polyplay.core.shared_memory import Ring, memory_barrier
from polyplay.workers.hosts.mirrors import Frame, MachineCopy, RemoteSeat

SLOT, RINGS, PAIR, WRITER, READER, ASK, ANSWER, PLANES, BACK, LEARNING, INSERTED = range(11)  # parts

# Stacked pictures on their way to another machine: of a row that continues the one before only the newest plane.
#
# Exact to the bit: what a row has of the row before is compared, not assumed. Imports no torch.


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


class SharedQueueMirror(MachineCopy):
    """per: pairs of each writer.

    Parts: a slot's content; a pair's rings; what a pair begins with; what a writer and what a reader begins with; what
    a reader asks; what a writer answers; then those of a kind of queue.
    """

    def __init__(self, queue: rollout_queue.SharedQueue, per: int):
        self._queue, self.per = queue, per
        self.writers, self.readers = dict[int, str](), dict[int, str]()  # names of those who are away, by number
        self._pairs, self._asking, self._answering = list[int](), list[int](), list[int]()  # that this side tells of
        self._gives: dict[int, bool] = {}  # by pair that crosses, or did: whether this side has the writer
        self._sent: dict[int, tuple[int, int]] = {}  # by pair: numbers taken and put here that the other side knows
        self._state, self._answer, self._ask = (np.zeros(n, np.int64) for n in (2 + queue.share, 1, 2))

    # ---- of a kind of queue

    @abstractmethod
    def _content(self, slot: int) -> Iterator[Frame]:
        """What its writer put there."""

    def _returned(self, slot: int) -> Iterator[Frame]:
        """What its reader left there."""
        yield from ()

    @abstractmethod
    def _slot_places(self, slot: int) -> list[np.ndarray]:
        """Where a slot's content goes."""

    def _slot_cells(self, slots: slice) -> list[np.ndarray]:
        """Of slots, what a pair begins with."""
        return [self._queue.marks[slots]]

    def _writer_cells(self, w: int) -> list[np.ndarray]:
        """What a writer begins with."""
        return [self._queue.answered[w : w + 1]]

    @abstractmethod
    def _reader_cells(self, r: int) -> list[np.ndarray]: ...

    def _asker_cells(self, r: int) -> list[np.ndarray]:
        """What a reader tells its writers besides what it asks: copied there as they are."""
        return []

    # ---- who is where

    def _writer(self, pair: int) -> int:
        return pair // self.per

    def _reader(self, pair: int) -> int:
        return pair % self._queue.readers

    def _slots_of(self, pair: int) -> slice:
        owner = pair // self._queue.each
        return slice(owner * self._queue.share, (owner + 1) * self._queue.share)

    def _pairs_of(self, seat: RemoteSeat) -> list[int]:
        of = self._writer if seat.end == "out" else self._reader
        return [i for i in range(len(self._queue._full)) if of(i) == seat.index]

    def begin(self, seat: RemoteSeat) -> Iterator[Frame]:
        """Pairs whose other end is there too have everything there: what they lack now is what was not sent yet."""
        if seat.end not in ("out", "source"):
            return
        writes, there = seat.end == "out", True
        for i in self._pairs_of(seat):
            if i in self._pairs:
                yield from self._pair(i)
            else:
                there = False
                yield from self._begin_pair(i, gives=not writes)
        if writes and not there:  # else it has them from its reader
            yield WRITER, seat.index, [np.array(x) for x in self._writer_cells(seat.index)]
        elif not writes:
            yield READER, seat.index, [np.array(x) for x in self._reader_cells(seat.index)]

    def _begin_pair(self, i: int, gives: bool) -> Iterator[Frame]:
        """Who is here goes on meanwhile: it takes, then puts; so the end of what it puts is read first."""
        queue = self._queue
        written, read = self._rings(i, gives)
        put = int(written._tail[0])
        memory_barrier()
        taken = int(read._head[0])
        empty, full = np.array(queue._rings[0, i]), np.array(queue._rings[1, i])
        mine, theirs = (full, empty) if gives else (empty, full)
        mine[8], theirs[0] = put, taken
        self._sent[i] = taken, put
        cells = [np.array(x) for x in self._slot_cells(self._slots_of(i))]
        for number in range(full[0], full[8]):
            yield from self._content(int(full[16 + number % queue.share]))
        yield PAIR, i, [empty, full, *cells]

    def _rings(self, i: int, gives: bool) -> tuple[Ring, Ring]:
        """That this side writes, and that it reads."""
        full, empty = self._queue._full[i], self._queue._empty[i]
        return (full, empty) if gives else (empty, full)

    def sit(self, seat: RemoteSeat) -> None:
        queue = self._queue
        if seat.end in ("out", "source"):
            (self.writers if seat.end == "out" else self.readers)[seat.index] = seat.name
        for i in range(len(queue._full)):
            writes, reads = self._writer(i) in self.writers, self._reader(i) in self.readers
            if writes != reads:
                self._gives[i] = gives = writes == self.away
                written, read = self._rings(i, gives)
                self._sent.setdefault(i, (int(read._head[0]), int(written._tail[0])))
        self._pairs = [i for i in self._gives if (self._writer(i) in self.writers) != (self._reader(i) in self.readers)]
        askers = {w: w % len(queue._asked) for w in range(len(queue.answered))}
        parted = {w: r for w, r in askers.items() if (w in self.writers) != (r in self.readers)}
        self._asking = sorted({r for r in parted.values() if (r in self.readers) == self.away})
        self._answering = [w for w in parted if (w in self.writers) == self.away]
        if self.away and seat.end == "out":
            self.sent[ANSWER, seat.index] = queue.answered[seat.index : seat.index + 1].tobytes()
        self._wire()

    def _wire(self) -> None:
        """Bells of who is at the other side ring the link."""
        queue = self._queue
        bells = [(queue._bells[r], r in self.readers) for r in range(queue.readers)]
        bells += [(queue.writer_bell(w * self.per), w in self.writers) for w in range(len(queue._full) // self.per)]
        for bell, is_away in bells:
            if self.away or is_away:  # others of home's may have another link
                bell.relay(None if is_away == self.away else self.relay)

    # ---- this side's changes

    def changes(self, now: float) -> Iterator[Frame]:
        """What was asked or answered is read first and sent last: it is about the slots before it."""
        queue = self._queue
        asked = {r: self._asks_of(r) for r in self._asking}
        answered = {w: np.array(queue.answered[w : w + 1]) for w in self._answering}
        memory_barrier()
        yield from self._more_changes()
        for i in self._pairs:
            yield from self._pair(i)
        for w, answer in answered.items():
            yield from self.if_new(ANSWER, w, [answer])
        for r, cells in asked.items():
            yield from self.if_new(ASK, r, cells)

    def _more_changes(self) -> Iterator[Frame]:
        yield from ()

    def _asks_of(self, r: int) -> list[np.ndarray]:
        queue = self._queue
        return [np.array([queue._last[r], queue._asked[r]]), *map(np.array, self._asker_cells(r))]

    def _pair(self, i: int) -> Iterator[Frame]:
        """The end of what is written here first: what another slot's way home needs is read after it."""
        written, read = self._rings(i, self._gives[i])
        put = int(written._tail[0])
        memory_barrier()
        taken = int(read._head[0])
        if (taken, put) == self._sent[i]:
            return
        for number in range(self._sent[i][1], put):
            slot = int(written._ring[number % self._queue.share])
            yield from self._content(slot) if self._gives[i] else self._returned(slot)
        self._sent[i] = taken, put
        yield RINGS, i, [np.concatenate([[taken, put], written._ring])]

    # ---- the other side's

    def places(self, part: int, i: int) -> list[np.ndarray]:
        queue = self._queue
        if part == SLOT:
            return self._slot_places(i)
        if part == PAIR:
            return [queue._rings[0, i], queue._rings[1, i], *self._slot_cells(self._slots_of(i))]
        if part in (WRITER, READER):
            return self._writer_cells(i) if part == WRITER else self._reader_cells(i)
        if part == ASK:
            return [self._ask, *self._asker_cells(i)]
        return [self._state if part == RINGS else self._answer]

    def arrived(self, part: int, i: int) -> None:
        queue = self._queue
        if part == RINGS:
            self._replay(i)
        elif part == ASK:
            queue._last[i], queue._asked[i] = self._ask
        elif part == ANSWER:
            queue.answered[i] = self._answer[0]

    def _replay(self, i: int) -> None:
        """Take and put here what was taken and put there."""
        queue, (taken, put), numbers = self._queue, self._state[:2].tolist(), self._state[2:]
        read, written = self._rings(i, self._gives[i])  # by the other side
        holder = rollout_queue.READING + (queue.each > 1) * self._reader(i) if self._gives[i] else rollout_queue.FILLING
        for _ in range(taken - int(read._head[0])):
            read.take(queue.use, holder)
        for number in range(int(written._tail[0]), put):
            written.put(int(numbers[number % queue.share]))

    def answers(self, part: int, i: int) -> str | None:
        return self.writers.get(i) if part == ANSWER else None

    def close(self) -> None:
        self._queue.close()


# Rollouts go from who acts to who takes them, and numbers of empty slots go back. Imports no torch.


class QueueMirror(SharedQueueMirror):
    """A slot's content is its rows; of stacked pictures first a mask and all but these, and then their planes."""

    def __init__(self, queue: rollout_queue.RolloutQueue):
        super().__init__(queue, per=queue.each)
        self.queue = queue
        self._picture = next((path for path, x in self._leaves() if _stacked(x)), None)

    def prepare(self) -> None:
        """Buffers for pictures, one to send from and one to receive into; and compile."""
        if self._picture is None:
            return
        rows = words(dict(self._leaves())[self._picture][0])
        T, B, k, n = rows.shape
        self._whole, self._whole_there = np.ones((T, B), np.uint8), np.ones((T, B), np.uint8)
        self._planes, self._planes_there = np.empty((T * B * k, n), rows.dtype), np.empty((T * B * k, n), rows.dtype)
        few = rows[:1, :1].copy()
        pack_planes(few, self._whole, self._planes)
        unpack_planes(few, self._whole, self._planes)

    def _leaves(self) -> list[tuple[str, np.ndarray]]:
        return list(tree.leaves({"rows": self.queue.rows, "state": self.queue.state}))

    def _slot_cells(self, slots: slice) -> list[np.ndarray]:
        return [*super()._slot_cells(slots), self.queue.by[slots]]

    def _writer_cells(self, w: int) -> list[np.ndarray]:
        return [*super()._writer_cells(w), self.queue.base[w : w + 1]]

    def _reader_cells(self, r: int) -> list[np.ndarray]:
        return [*self._asker_cells(r), self.queue.turns[r : r + 1]]

    def _asker_cells(self, r: int) -> list[np.ndarray]:
        """Rollouts learnt before this run, of each of its producers."""
        return [self.queue.base[p : p + 1] for p in range(r, self.queue.producers, self.queue.consumers)]

    def _content(self, slot: int) -> Iterator[Frame]:
        if self._picture is None:
            yield SLOT, slot, self._others(slot)
            return
        n = pack_planes(self._pictures(slot), self._whole, self._planes)
        yield SLOT, slot, [self._whole, *self._others(slot)]
        yield PLANES, slot, [self._planes[:n]]

    def _slot_places(self, slot: int) -> list[np.ndarray]:
        return self._others(slot) if self._picture is None else [self._whole_there, *self._others(slot)]

    def _others(self, slot: int) -> list[np.ndarray]:
        """Of a slot, without stacked pictures."""
        leaves = [x[slot] for path, x in self._leaves() if path != self._picture]
        return [*leaves, self.queue.by[slot : slot + 1]]

    def _pictures(self, slot: int) -> np.ndarray:
        assert self._picture is not None
        return words(dict(self._leaves())[self._picture][slot])

    def places(self, part: int, i: int) -> list[np.ndarray]:
        if part != PLANES:
            return super().places(part, i)
        whole = int(self._whole_there.sum())  # which came before
        return [self._planes_there[: whole * self._pictures(i).shape[-2] + self._whole_there.size - whole]]

    def arrived(self, part: int, i: int) -> None:
        if part == PLANES:
            unpack_planes(self._pictures(i), self._whole_there, self._planes_there)
        else:
            super().arrived(part, i)


def _stacked(array: np.ndarray) -> bool:
    """[slots, T+1, lanes, k, height, width] of bytes: pictures that may be stacks of planes."""
    return array.dtype == np.uint8 and array.ndim == 6 and array.shape[3] > 1


# Drawn batches go from memories to learners, and priorities come back. Imports no torch.


class SampleMirror(SharedQueueMirror):
    """A slot's content is its batch and its marks; it comes back with priorities, and whether it was scored.

    Parts of its own: what comes back; how far learning is; what memories have got.
    """

    def __init__(self, samples: SampleQueue):
        super().__init__(samples, per=samples.learners)
        self.samples = samples

    def _slot_places(self, slot: int) -> list[np.ndarray]:
        batch = [x[slot] for _, x in tree.leaves(self.samples._items)]
        return [*batch, self.samples.marks[slot, 1:3]]

    def _content(self, slot: int) -> Iterator[Frame]:
        yield SLOT, slot, self._slot_places(slot)

    def _back(self, slot: int) -> list[np.ndarray]:
        return [self.samples.priority[slot], self.samples.marks[slot, 2:3]]

    def _returned(self, slot: int) -> Iterator[Frame]:
        yield BACK, slot, self._back(slot)

    def _writer_cells(self, w: int) -> list[np.ndarray]:
        return [*super()._writer_cells(w), self.samples._remembering[w]]

    def _reader_cells(self, r: int) -> list[np.ndarray]:
        return [self.samples._learning]

    def sit(self, seat: RemoteSeat) -> None:
        super().sit(seat)
        if self.away and seat.end == "out":
            self.sent[INSERTED, seat.index] = self.samples._remembering[seat.index].tobytes()

    def _more_changes(self) -> Iterator[Frame]:
        samples = self.samples
        if self._pairs and (0 in self.readers) == self.away:  # learner 0 writes for all
            yield from self.if_new(LEARNING, 0, [np.array(samples._learning)])
        for m in range(samples.replay_workers) if self._pairs else ():
            if (m in self.writers) == self.away:
                yield from self.if_new(INSERTED, m, [np.array(samples._remembering[m])])

    def places(self, part: int, i: int) -> list[np.ndarray]:
        if part == BACK:
            return self._back(i)
        if part == LEARNING:
            return [self.samples._learning]
        return [self.samples._remembering[i]] if part == INSERTED else super().places(part, i)

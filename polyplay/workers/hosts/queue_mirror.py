"""Rollouts come home from another machine, and numbers of empty slots go out to it. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from polyplay.buffers.queue_base import FILLING, READING
from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.common import tree
from polyplay.common.ring import Ring
from polyplay.common.shared_memory import memory_barrier
from polyplay.workers.hosts import planes
from polyplay.workers.hosts.mirrors import Frame, FrameError, ObjectMirror, RemoteSeat


class QueueMirror(ObjectMirror):
    """Rollouts come home; numbers of empty slots, and what learners ask for, go out.

    Items: a slot's rows; then a pair of rings; then what a seat begins with; then what is asked; then a seat's answer;
    then, where there are stacked pictures, instead of a slot's rows all but these, and then their planes.
    """

    def __init__(self, queue: RolloutQueue):
        self.queue = queue
        pairs, share = len(queue._full), queue.share
        self._sent: dict[int, tuple[int, int]] = {}  # by pair: numbers taken and put here that the other side knows
        self._state = np.zeros(2 + share, np.int64)
        self.seats: dict[int, str] = {}  # names, by number
        self._asked, self._answered = b"", dict[int, int]()
        self._answer = np.zeros(1, np.int64)
        self.of_pairs = queue.slots
        self.of_seats = self.of_pairs + pairs
        self.of_asked = self.of_seats + queue.producers
        self.of_answers = self.of_asked + 1
        self.of_rest = self.of_answers + queue.producers
        self.of_planes = self.of_rest + queue.slots
        self._picture = next((path for path, x in self._leaves() if _stacked(x)), None)
        self._arriving = -1  # the slot whose planes come next

    def prepare(self) -> None:
        """Buffers for pictures, one to send from and one to receive into; and compile."""
        if self._picture is None:
            return
        rows = planes.words(dict(self._leaves())[self._picture][0])
        T, B, k, n = rows.shape
        self._whole, self._whole_there = np.ones((T, B), np.uint8), np.ones((T, B), np.uint8)
        self._planes, self._planes_there = np.empty((T * B * k, n), rows.dtype), np.empty((T * B * k, n), rows.dtype)
        few = rows[:1, :1].copy()
        planes.pack_planes(few, self._whole, self._planes)
        planes.unpack_planes(few, self._whole, self._planes)

    def _leaves(self) -> list[tuple[str, np.ndarray]]:
        return list(tree.leaves({"rows": self.queue.rows, "state": self.queue.state}))

    # ---- a seat

    def _own(self, p: int) -> slice:
        return slice(p * self.queue.share, (p + 1) * self.queue.share)

    def _seat_cells(self, p: int) -> list[np.ndarray]:
        queue, pairs, own = self.queue, self.queue.pairs(p), self._own(p)
        cells = [queue._rings[0, pairs], queue._rings[1, pairs], queue.marks[own], queue.by[own], queue.base[p : p + 1]]
        return [*cells, queue.answered[p : p + 1]]

    def begin(self, seat: RemoteSeat) -> Iterator[Frame]:
        queue, p = self.queue, seat.index
        pairs = range(len(queue._full))[queue.pairs(p)]
        put = [int(queue._empty[i]._tail[0]) for i in pairs]
        cells = [np.array(x) for x in self._seat_cells(p)]  # the reader goes on meanwhile: it takes, then puts
        cells[2] = np.array(queue.marks[self._own(p)])
        cells[0][:, 8] = put
        for i, full in zip(pairs, cells[1], strict=True):
            self._sent[i] = int(full[0]), put[i - pairs.start]
            for number in range(full[0], full[8]):
                slot = int(full[16 + number % queue.share])
                yield from self._rollout(slot)
        yield self.of_seats + p, cells

    def sit(self, seat: RemoteSeat) -> None:
        queue, p = self.queue, seat.index
        bell = queue.writer_bell(queue.pairs(p).start)
        if self.away:
            bell.relay(None)
            for c in range(queue.consumers):
                queue.bell(c).relay(self.relay)
            self._answered[p] = int(queue.answered[p])
            for i in range(len(queue._full))[queue.pairs(p)]:
                self._sent.setdefault(i, (int(queue._empty[i]._head[0]), int(queue._full[i]._tail[0])))
        else:
            bell.relay(self.relay)
        self.seats[p] = seat.name

    def _rollout(self, slot: int) -> Iterator[Frame]:
        if self._picture is None:
            yield slot, self._rows(slot)
            return
        n = planes.pack_planes(self._pictures(slot), self._whole, self._planes)
        yield self.of_rest + slot, [self._whole, *self._rows(slot)]
        yield self.of_planes + slot, [self._planes[:n]]

    def _rows(self, slot: int) -> list[np.ndarray]:
        """Of a slot, without stacked pictures."""
        leaves = [x[slot] for path, x in self._leaves() if path != self._picture]
        return [*leaves, self.queue.by[slot : slot + 1]]

    def _pictures(self, slot: int) -> np.ndarray:
        assert self._picture is not None
        return planes.words(dict(self._leaves())[self._picture][slot])

    # ---- this side's changes

    def changes(self, now: float) -> Iterator[Frame]:
        """What was asked or answered is read first and sent last: it is about the rollouts before it."""
        queue = self.queue
        asked = np.concatenate([queue._last, queue._asked, queue.base])
        answered = {p: int(queue.answered[p]) for p in self.seats}
        memory_barrier()
        for p in answered:
            for i in range(len(queue._full))[queue.pairs(p)]:
                yield from self._pair(i)
            if self.away and self._answered[p] != answered[p]:
                self._answered[p] = answered[p]
                yield self.of_answers + p, [np.array([answered[p]])]
        if not self.away and asked.tobytes() != self._asked:
            self._asked = asked.tobytes()
            yield self.of_asked, [asked]

    def _pair(self, i: int) -> Iterator[Frame]:
        """The end of what is written here first: what another slot's way home needs is read after it."""
        queue = self.queue
        written, read = (queue._full[i], queue._empty[i]) if self.away else (queue._empty[i], queue._full[i])
        put = int(written._tail[0])
        memory_barrier()
        taken = int(read._head[0])
        if (taken, put) == self._sent[i]:
            return
        if self.away:
            for number in range(self._sent[i][1], put):
                slot = int(written._ring[number % queue.share])
                yield from self._rollout(slot)
        self._sent[i] = taken, put
        yield self.of_pairs + i, [np.concatenate([[taken, put], written._ring])]

    # ---- the other side's

    def places(self, item: int) -> list[np.ndarray]:
        queue = self.queue
        if 0 <= item < self.of_pairs and self._picture is None:
            return self._rows(self._slot(item))
        if item >= self.of_rest and self._picture is not None:
            return self._places_of_pictures(item)
        if item < self.of_pairs:
            raise FrameError(f"slot {item} without its pictures")
        if item < self.of_seats:
            if (item - self.of_pairs) // queue.each not in self.seats:
                raise FrameError(f"rings {item - self.of_pairs} belong to nobody there")
            return [self._state]
        if item < self.of_asked and self.away:
            return self._seat_cells(item - self.of_seats)
        if item == self.of_asked and self.away:
            return [queue._last, queue._asked, queue.base]
        if item - self.of_answers in self.seats and not self.away:
            return [self._answer]
        raise FrameError(f"item {item} of rollouts")

    def _slot(self, slot: int) -> int:
        if slot >= self.queue.slots or (not self.away and slot // self.queue.share not in self.seats):
            raise FrameError(f"slot {slot} belongs to nobody there")
        return slot

    def _places_of_pictures(self, item: int) -> list[np.ndarray]:
        if item < self.of_planes:
            return [self._whole_there, *self._rows(self._slot(item - self.of_rest))]
        if item - self.of_planes != self._arriving:
            raise FrameError(f"planes of slot {item - self.of_planes} without its rows")
        return [self._planes_there[: self._count]]

    def _pictures_arrived(self, item: int) -> None:
        if item >= self.of_planes:
            planes.unpack_planes(self._pictures(self._arriving), self._whole_there, self._planes_there)
            self._arriving = -1
            return
        self._arriving = item - self.of_rest
        try:
            self._count = planes.count(self._whole_there, self._pictures(0).shape[-2])
        except ValueError as e:
            raise FrameError(str(e)) from None

    def arrived(self, item: int) -> None:
        queue = self.queue
        if item >= self.of_rest:
            self._pictures_arrived(item)
        elif self.of_pairs <= item < self.of_seats:
            i = item - self.of_pairs
            if self.away:
                self._replay(i, queue._full[i], READING + (queue.each > 1) * (i % queue.consumers), queue._empty[i])
            else:
                self._replay(i, queue._empty[i], FILLING, queue._full[i])
        elif item >= self.of_answers:
            queue.answered[item - self.of_answers] = self._answer[0]

    def _replay(self, i: int, read: Ring, holder: int, written: Ring) -> None:
        """Take and put here what was taken and put there."""
        queue, (taken, put), numbers = self.queue, self._state[:2].tolist(), self._state[2:]
        own = self._own(i // queue.each)
        more, new = taken - int(read._head[0]), put - int(written._tail[0])
        if not (0 <= more <= len(read) and 0 <= new <= queue.share):
            raise FrameError(f"rings {i}: {taken} taken and {put} put cannot be")
        for _ in range(more):
            read.take(queue.use, holder)
        for number in range(put - new, put):
            slot = int(numbers[number % queue.share])
            if not own.start <= slot < own.stop or len(written) >= queue.share:
                raise FrameError(f"rings {i}: slot {slot} cannot be there")
            written.put(slot)

    def answers(self, item: int) -> str | None:
        return self.seats[item - self.of_answers] if self.of_answers <= item < self.of_rest else None

    def close(self) -> None:
        self.queue.close()


def _stacked(array: np.ndarray) -> bool:
    """[slots, T+1, lanes, k, height, width] of bytes: pictures that may be stacks of planes."""
    return array.dtype == np.uint8 and array.ndim == 6 and array.shape[3] > 1

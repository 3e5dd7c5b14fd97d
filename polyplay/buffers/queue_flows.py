"""Flows that copy queues between two machines. Imports no torch.

A pair is one writer and one reader of a queue. If they are on different machines, full slots are sent to the reader's
machine, and the reader's results are sent back.

In stacked images, most planes repeat those of the row before. Such planes are not sent, and the receiver restores them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from polyplay.buffers.rollout_queue import FILLING, READING, RolloutQueue, SharedQueue
from polyplay.core import tree
from polyplay.core.compiled import cached_njit
from polyplay.core.flows import BACK, PAIR, RINGS, SLOT, Answer, Cells, End, Flow, Piece
from polyplay.core.shared_memory import Ring, memory_barrier


def words(pictures: np.ndarray) -> np.ndarray:
    """View stacks of k image planes as [..., k, n], where n counts 8-byte words if possible, else bytes."""
    flat = pictures.reshape(*pictures.shape[:-2], -1)
    return flat.view(np.uint64) if flat.shape[-1] % 8 == 0 else flat


@cached_njit()
def pack_planes(rows: np.ndarray, whole: np.ndarray, planes: np.ndarray) -> int:
    """Pack stacks of image planes in rows [T, B, k, n] for sending. Return the number of packed planes.
    `whole`: uint8 [T, B], set to 1 for each row whose stack does not continue the stack of the row before, else to 0.
    `planes`: array [≤ T·B·k, n] for the packed planes: all k planes of rows with 1, the newest plane of other rows.
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
    """Restore `rows` from the arrays that `pack_planes` wrote. All of whole[0] must be 1."""
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


class SlotContent(Protocol):
    """Gives flows between machines access to the arrays in the slots of a queue."""

    def cells(self, slots: slice) -> list[np.ndarray]:
        """Return small arrays of these slots, such as marks. They are sent once, when a flow starts."""

    def put(self, slot: int) -> list[np.ndarray]:
        """Return the arrays of a slot that the slot's writer has filled."""

    def left(self, slot: int) -> list[np.ndarray]:
        """Return the arrays of a slot that the slot's reader has written, such as new priorities."""

    def land(self, part: int, slot: int, arrays: list[np.ndarray]) -> None:
        """Write received arrays into a slot. `part`: SLOT for arrays of the writer, BACK for arrays of the reader."""


class RolloutContent:
    """Access to the slots of a RolloutQueue. Stacks of images are sent as packed by `pack_planes`."""

    def __init__(self, queue: RolloutQueue):
        self.queue = queue
        leaves = list(tree.leaves({"rows": queue.rows, "state": queue.state}))
        # [slots, T+1, lanes, k, height, width] of bytes: images that may be stacks of planes
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
        return [self.queue.marks[slots], self.queue.by[slots]]

    def _places(self, slot: int) -> list[np.ndarray]:
        return [self.queue.by[slot : slot + 1], *(x[slot] for x in self.leaves)]

    def put(self, slot: int) -> list[np.ndarray]:
        if self.pictures is None:
            return self._places(slot)
        n = pack_planes(self.pictures[slot], self._whole, self._planes)
        return [*self._places(slot), self._whole, self._planes[:n]]

    def left(self, slot: int) -> list[np.ndarray]:
        return []

    def land(self, part: int, slot: int, arrays: list[np.ndarray]) -> None:
        for place, x in zip(self._places(slot), arrays, strict=False):
            place[...] = x
        if self.pictures is not None:
            unpack_planes(self.pictures[slot], *arrays[-2:])


class Pair(Flow):
    """Flow of slots between a writer and a reader on different machines. Each side takes slot numbers from one ring
    buffer, and puts slot numbers into another. The token has the counts of numbers that this side took and put.
    """

    both = True
    _looked, _last = (True, -1, -1), (-1, -1)

    def __init__(self, queue: SharedQueue, i: int, writer: End, reader: End, slots: SlotContent):
        super().__init__(writer, [reader])
        self.queue, self.i, self.slots = queue, i, slots
        self._asks = reader.i % len(queue._asked)
        self._holder = READING + (queue.each > 1) * reader.i

    def _rings(self, gives: bool) -> tuple[Ring, Ring]:
        """Return the ring that this side writes and the ring that this side reads."""
        full, empty = self.queue._full[self.i], self.queue._empty[self.i]
        return (full, empty) if gives else (empty, full)

    def token(self, gives: bool) -> tuple[int, int]:
        """Return how many slot numbers this side took and put."""
        written, read = self._rings(gives)
        look = gives, int(written._tail[0]), int(self.queue._asked[self._asks])
        # a new count of taken numbers is sent with the next put or request: the other side does not need it earlier
        if look != self._looked:
            memory_barrier()
            self._looked, self._last = look, (int(read._head[0]), look[1])
        return self._last

    def pieces(self, old: tuple[int, int] | None, new: tuple[int, int], gives: bool) -> Iterator[Piece]:
        assert old is not None
        written, _ = self._rings(gives)
        for number in range(old[1], new[1]):
            slot = int(written._ring[number % self.queue.share])
            if arrays := self.slots.put(slot) if gives else self.slots.left(slot):
                yield SLOT if gives else BACK, slot, arrays
        yield RINGS, 0, [np.concatenate([new, written._ring])]

    def begin(self, gives: bool, token: tuple[int, int]) -> Iterator[Piece]:
        """Yield the full slots, then the ring buffers. `token` is the state of the ring buffers to send."""
        queue, (taken, put) = self.queue, token
        empty, full = np.array(queue._rings[0, self.i]), np.array(queue._rings[1, self.i])
        mine, theirs = (full, empty) if gives else (empty, full)
        mine[8], theirs[0] = put, taken
        owner = self.i // queue.each
        cells = [np.array(x) for x in self.slots.cells(self._own(owner))]
        for number in range(full[0], full[8]):
            slot = int(full[16 + number % queue.share])
            yield SLOT, slot, self.slots.put(slot)
        yield PAIR, owner, [empty, full, *cells]

    def _own(self, owner: int) -> slice:
        return slice(owner * self.queue.share, (owner + 1) * self.queue.share)

    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        if part == RINGS:
            self._replay(arrays[0], gives)
        elif part == PAIR:
            places = [*self.queue._rings[:, self.i], *self.slots.cells(self._own(i))]
            for place, x in zip(places, arrays, strict=True):
                place[...] = x
        else:
            self.traffic.landed += part == SLOT
            self.slots.land(part, i, arrays)

    def _replay(self, numbers: np.ndarray, gives: bool) -> None:
        """Apply the other side's takes and puts to the ring buffers on this side."""
        (taken, put), ring = numbers[:2].tolist(), numbers[2:]
        read, written = self._rings(gives)  # as the other side sees them
        memory_barrier()
        for _ in range(taken - int(read._head[0])):
            read.take(self.queue.use, self._holder if gives else FILLING)
        for number in range(int(written._tail[0]), put):
            written.put(int(ring[number % self.queue.share]))


def queue_flows(queue: SharedQueue, per: int, slots: SlotContent) -> list[Flow]:
    """Return the flows of a queue: one for each pair of a writer and a reader, and one for each writer's answers to
    checkpoint requests. `per`: number of pairs per writer.
    """
    pairs = [(End("out", i // per), End("source", i % queue.readers)) for i in range(len(queue._full))]
    flows: list[Flow] = [Pair(queue, i, *ends, slots) for i, ends in enumerate(pairs)]
    asks = len(queue._asked)
    answers = enumerate(queue.answered.reshape(-1, 1))
    return flows + [Answer(End("out", w), [End("source", w % asks)], [cell]) for w, cell in answers]


def asking(queue: SharedQueue, r: int, *first: np.ndarray) -> Cells:
    """Return the flow that sends reader `r`'s checkpoint requests to its writers, after the arrays `first`."""
    asks = len(queue._asked)
    writers = [End("out", w) for w in range(r, len(queue.answered), asks)]
    return Cells(End("source", r), writers, [*first, queue._last[r : r + 1], queue._asked[r : r + 1]])

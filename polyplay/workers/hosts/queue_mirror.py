"""Rollouts go from who acts to who takes them, and numbers of empty slots go back. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.common import tree
from polyplay.workers.hosts import planes
from polyplay.workers.hosts.mirrors import Frame, FrameError
from polyplay.workers.hosts.shared_queue_mirror import SharedQueueMirror


class QueueMirror(SharedQueueMirror):
    """A slot's content is its rows; where there are stacked pictures all but these, and then their planes.

    Items of its own: what of a slot is no picture; then planes.
    """

    def __init__(self, queue: RolloutQueue):
        super().__init__(queue, per=queue.each)
        self.queue = queue
        self.of_planes = self.of_more + queue.slots
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
            yield slot, self._slot_places(slot)
            return
        n = planes.pack_planes(self._pictures(slot), self._whole, self._planes)
        yield self.of_more + slot, [self._whole, *self._rest(slot)]
        yield self.of_planes + slot, [self._planes[:n]]

    def _slot_places(self, slot: int) -> list[np.ndarray]:
        if self._picture is not None:
            raise FrameError(f"slot {slot} without its pictures")
        return self._rest(slot)

    def _rest(self, slot: int) -> list[np.ndarray]:
        """Of a slot, without stacked pictures."""
        leaves = [x[slot] for path, x in self._leaves() if path != self._picture]
        return [*leaves, self.queue.by[slot : slot + 1]]

    def _pictures(self, slot: int) -> np.ndarray:
        assert self._picture is not None
        return planes.words(dict(self._leaves())[self._picture][slot])

    def places(self, item: int) -> list[np.ndarray]:
        if item < self.of_more or self._picture is None:
            return super().places(item)
        if item < self.of_planes:
            return [self._whole_there, *self._rest(self._slot(item - self.of_more))]
        if item - self.of_planes != self._arriving:
            raise FrameError(f"planes of slot {item - self.of_planes} without its rows")
        return [self._planes_there[: self._count]]

    def arrived(self, item: int) -> None:
        if item < self.of_more:
            super().arrived(item)
        elif item < self.of_planes:
            self._arriving = item - self.of_more
            try:
                self._count = planes.count(self._whole_there, self._pictures(0).shape[-2])
            except ValueError as e:
                raise FrameError(str(e)) from None
        else:
            planes.unpack_planes(self._pictures(self._arriving), self._whole_there, self._planes_there)
            self._arriving = -1


def _stacked(array: np.ndarray) -> bool:
    """[slots, T+1, lanes, k, height, width] of bytes: pictures that may be stacks of planes."""
    return array.dtype == np.uint8 and array.ndim == 6 and array.shape[3] > 1

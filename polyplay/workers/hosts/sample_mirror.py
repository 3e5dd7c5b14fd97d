"""Drawn batches go from memories to learners, and priorities come back. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from polyplay.buffers.sample_queue import SampleQueue
from polyplay.common import tree
from polyplay.workers.hosts.mirrors import Frame, FrameError, RemoteSeat
from polyplay.workers.hosts.shared_queue_mirror import SharedQueueMirror


class SampleMirror(SharedQueueMirror):
    """A tray's content is its batch and its marks; it comes back with priorities, and whether it was judged.

    Items of its own: what comes back; how far learning is; what memories have got.
    """

    def __init__(self, samples: SampleQueue):
        super().__init__(samples, per=samples.learners)
        self.samples = samples
        self.of_learning = self.of_more + samples.slots
        self.of_memories = self.of_learning + 1
        self._cells = dict[int, bytes]()  # sent, by item

    def _slot_places(self, slot: int) -> list[np.ndarray]:
        batch = [x[slot] for _, x in tree.leaves(self.samples._items)]
        return [*batch, self.samples.marks[slot, 1:3]]

    def _content(self, slot: int) -> Iterator[Frame]:
        yield slot, self._slot_places(slot)

    def _back(self, slot: int) -> list[np.ndarray]:
        return [self.samples.priority[slot], self.samples.marks[slot, 2:3]]

    def _returned(self, slot: int) -> Iterator[Frame]:
        yield self.of_more + slot, self._back(slot)

    def _writer_cells(self, w: int) -> list[np.ndarray]:
        return [*super()._writer_cells(w), self.samples._remembering[w]]

    def _reader_cells(self, r: int) -> list[np.ndarray]:
        return [self.samples._learning]

    def sit(self, seat: RemoteSeat) -> None:
        super().sit(seat)
        if self.away and seat.end == "out":
            self._cells[self.of_memories + seat.index] = self.samples._remembering[seat.index].tobytes()

    def _told(self) -> dict[int, np.ndarray]:
        """Cells that this side writes, by item."""
        samples = self.samples
        first = (0 in self.readers) == self.away  # learner 0 writes for all
        told = {self.of_learning: samples._learning} if first else {}
        own = [m for m in range(samples.memories) if (m in self.writers) == self.away]
        return told | {self.of_memories + m: samples._remembering[m] for m in own}

    def _more_changes(self) -> Iterator[Frame]:
        if not self._pairs:
            return
        for item, cells in self._told().items():
            copy = np.array(cells)
            if (whole := copy.tobytes()) != self._cells.get(item):
                self._cells[item] = whole
                yield item, [copy]

    def places(self, item: int) -> list[np.ndarray]:
        samples = self.samples
        if item < self.of_more:
            return super().places(item)
        if item < self.of_learning:
            pair = (item - self.of_more) // samples.share
            if self._gives.get(pair):
                return self._back(item - self.of_more)
        elif item == self.of_learning and (0 in self.readers) != self.away:
            return [samples._learning]
        elif item - self.of_memories < samples.memories and (item - self.of_memories in self.writers) != self.away:
            return [samples._remembering[item - self.of_memories]]
        raise FrameError(f"item {item} of samples")

"""Batches on their way from memories to learners, and priorities on their way back: trays in shared memory.

A tray is one drawn batch. A memory fills it, a learner learns from it where it lies, writes the priorities that its
items have now beside them and gives it back; so they come to the memory that drew it, and there is never more under way
than there are trays. Every pair of a memory and a learner has `depth` of them and two rings of their numbers, each
with one writer and one reader, so that whoever is killed leaves no lock: a number goes into a ring only when its tray
is whole, and what a dead one held is in no ring and bears its mark. Imports no torch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from polyplay.buffers.queue_base import FILLING, READING, SharedQueue
from polyplay.buffers.replay import Replay
from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.common import tree
from polyplay.common.semaphores import Semaphore
from polyplay.common.shared_memory import LINE
from polyplay.common.tree import Batch

# marks of a tray: which incarnation of its memory drew it, + 1, and whether a learner has judged it
_BY, _JUDGED = 1, 2
# cells that a learner writes for all memories
_LEFT, _VERSION, _COUNTED = 0, 1, 2
# and each memory for the learners
_FRESH, _KEPT = 0, 1


class SampleQueue(SharedQueue):
    """Between the `stream`'s consumers, memories that are each as `replay` says, and `learners`."""

    memory: ClassVar[str] = "replay"
    priority: np.ndarray
    _items: Batch
    _learning: np.ndarray
    _remembering: np.ndarray

    def __init__(self, replay: Replay, queue: RolloutQueue, learners: int = 1, depth: int = 2):
        self.replay, self.memories, self.learners = replay, queue.consumers, learners
        self._stream, pairs = queue, self.memories * learners  # of each memory's learners, one memory after another
        n = pairs * depth
        fields = {
            "_items": tree.widen(replay.drawn(), (n,)),
            "priority": ((n, replay.batch), np.float32),
            "_learning": (LINE // 8, np.float64),
            "_remembering": ((self.memories, LINE // 8), np.float64),
        }
        super().__init__(fields, n, pairs, learners, (1, self.memories))
        self._learning[_LEFT] = 1.0

    @property
    def edge(self) -> SampleQueue:
        return self

    def describe(self) -> list[str]:
        return [f"batch   {self.replay.items}, {self.share} ready from each"]

    def label(self) -> str:
        back = ", and priorities back" if self.replay.prioritized else ""
        return f"SampleQueue: {self.slots} batches of {self.replay.batch}{back}"

    def writer_bell(self, i: int) -> Semaphore:
        return self._stream.bell(i // self.learners)

    def item(self, tray: int) -> Batch:
        """The batch in a tray, as `ReplayBuffer.sample` gives it; its arrays are the tray's own."""
        return tree.at(self._items, tray)

    def writer(self, m: int, by: int = 0) -> SampleWriter:
        """The end of memory `m`, of its incarnation `by`."""
        return SampleWriter(self, m, by)

    def reader(self, c: int) -> SampleReader:
        """The end of learner `c`."""
        return SampleReader(self, c)

    # ------------------------------------------------------------------------------------ how far learning is

    left = property(lambda self: float(self._learning[_LEFT]))  # the part of the run that is left
    version = property(lambda self: int(self._learning[_VERSION]))  # updates

    def learnt(self, left: float, version: int) -> None:
        """Learner 0 tells the memories how far it is."""
        self._learning[_LEFT], self._learning[_VERSION] = left, version

    @property
    def news(self) -> bool:
        """Whether agent steps came since learner 0 counted them last."""
        return bool(self._remembering[:, _FRESH].sum() > self._learning[_COUNTED])

    def fresh(self, kept: bool = False) -> float:
        """Agent steps that memories got since this was asked last; kept: only those that they saved. For learner 0."""
        total = self._remembering[:, _KEPT if kept else _FRESH].sum()
        new = max(0.0, float(total - self._learning[_COUNTED]))
        self._learning[_COUNTED] += new
        return new


class SampleWriter:
    """A memory's end. One that takes a lost one's place has the trays that it was filling."""

    def __init__(self, samples: SampleQueue, m: int, by: int):
        self.samples, self.m, self.mark = samples, m, by + 1
        self.bell, self.cells = samples._stream.bell(m), samples._remembering[m]
        self.pairs = slice(m * samples.learners, (m + 1) * samples.learners)
        self.empty = deque(samples.held(self.pairs, FILLING))

    def back(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(ids, priorities) of trays that came back, but for those that an earlier incarnation drew."""
        marks = self.samples.marks
        for ring in self.samples._empty[self.pairs]:
            while (tray := ring.take(self.samples.use, FILLING)) is not None:
                self.bell.wait(0)  # its token
                self.empty.append(tray)
                if marks[tray, _JUDGED] and marks[tray, _BY] == self.mark:
                    yield self.samples.item(tray)["id"], self.samples.priority[tray]

    @property
    def away(self) -> int:
        """Trays that this end filled, its predecessors not, and that are not back yet."""
        mine = self.samples.marks[:, _BY].reshape(-1, self.samples.share)[self.pairs] == self.mark
        return int(mine.sum()) - sum(bool(self.samples.marks[t, _BY] == self.mark) for t in self.empty)

    def fill(self, draw: Callable[[Batch], Any]) -> None:
        """Have the tray that came back first filled by draw(item), and hand it to its learner."""
        tray = self.empty[0]
        self.samples.marks[tray, _JUDGED] = 0
        draw(self.samples.item(tray))
        self.samples.marks[tray, _BY] = self.mark
        self.empty.popleft()
        self.samples._full[tray // self.samples.share].put(tray)

    def heard(self, steps: float) -> None:
        """So many agent steps more were remembered."""
        self.cells[_FRESH] += steps

    def answer(self, version: int, failed: bool = False) -> None:
        self.cells[_KEPT] = self.cells[_FRESH]
        self.samples.answer(self.m, version, failed)


class SampleReader:
    """A learner's end. One that takes a lost one's place gives back, unjudged, what that one held."""

    def __init__(self, samples: SampleQueue, c: int):
        self.samples, self.c, self.bell, self.turn = samples, c, samples._bells[c], c
        for tray in samples.held(slice(c, None, samples.learners), READING):
            self.give(tray, None)

    def batches(self) -> Iterator[int | None]:
        """Trays, of the memories in turn as far as they have some; None: nothing came for a while. Raises Closed."""
        samples = self.samples
        while True:
            samples.check()
            for m in (i % samples.memories for i in range(self.turn, self.turn + samples.memories)):
                ring = samples._full[m * samples.learners + self.c]
                if (tray := ring.take(samples.use, READING)) is not None:
                    self.turn = m + 1
                    self.bell.wait(0)
                    yield tray
                    break
            else:
                if not self.bell.wait(samples.patience):
                    yield None

    def give(self, tray: int, priority: np.ndarray | None) -> None:
        """Give a tray back, with new priorities [B] of what is in it if there are some."""
        samples = self.samples
        if priority is not None:
            samples.priority[tray] = priority
        samples.marks[tray, _JUDGED] = priority is not None
        samples._empty[tray // samples.share].put(tray)

    def gather(self, version: int, patience: float, last: bool = False) -> Iterator[None]:
        """Wait until every memory has written its part for `version`: as long as that takes. last: of this run."""
        self.samples.ask(0, version, last)
        for m in range(self.samples.memories):
            self.samples._stream.bell(m).post()
        while self.samples.late(0, version):
            self.samples.check()
            time.sleep(patience)
            yield

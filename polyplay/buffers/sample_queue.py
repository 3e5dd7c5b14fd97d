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

from polyplay.buffers.replay import Replay
from polyplay.buffers.rollout_queue import FILLING, READING, RolloutQueue
from polyplay.common import tree
from polyplay.common.edges import Arrow
from polyplay.common.errors import Closed
from polyplay.common.ring import Ring
from polyplay.common.semaphores import Semaphores
from polyplay.common.shared_memory import LINE, Layout
from polyplay.common.tree import Batch

# of a tray: who holds it (written before its number leaves a ring), which incarnation of its memory drew it, + 1, and
# whether a learner has judged it
_HOLDER, _BY, _JUDGED = 0, 1, 2
# cells that a learner writes for all memories
_LEFT, _VERSION, _COUNTED, _ASKED = 0, 1, 2, 3
# and each memory for the learners
_FRESH, _KEPT, _ANSWERED = 0, 1, 2


class SampleQueue:
    """Between the `stream`'s consumers, memories that are each as `replay` says, and `learners`."""

    memory: ClassVar[str] = "replay"

    def __init__(self, replay: Replay, queue: RolloutQueue, learners: int = 1, depth: int = 2):
        self.replay, self.memories, self.learners, self.depth = replay, queue.consumers, learners, depth
        n = self.n = self.memories * learners * depth
        layout = Layout()
        self._fields = {
            "items": tree.map(lambda f: layout.add((n, *f.shape), f.dtype), replay.drawn()),
            "priority": layout.add((n, replay.batch), np.float32),
            "marks": layout.add((n, LINE // 8), np.int64),
            "rings": layout.add((2, self.memories, learners, -(-Ring.cells(depth) // 8) * 8), np.int64),
            "learning": layout.add(LINE // 8, np.float64),
            "remembering": layout.add((self.memories, LINE // 8), np.float64),
            "closed": layout.add(LINE // 8, np.int64),
        }
        self.block = layout.block()
        self._bells = Semaphores(learners)
        self._stream = queue  # for the bells of its consumers
        self.patience = 0.1  # seconds a wait lasts before it answers "nothing yet"; 0 when all run in one thread
        self._attach()
        self._learning[_LEFT] = 1.0
        for t in range(n):
            self._empty[t // (learners * depth)][t // depth % learners].put(t)

    @property
    def edge(self) -> SampleQueue:
        return self

    @property
    def nbytes(self) -> int:
        return self.block.nbytes

    def describe(self) -> list[str]:
        return [f"batch   {self.replay.items}, {self.depth} ready from each"]

    def label(self) -> str:
        back = ", and priorities back" if self.replay.prioritized else ""
        return f"SampleQueue: {self.n} batches of {self.replay.batch}{back}"

    def arrows(self) -> list[Arrow]:
        return [Arrow(self.label(), ("out",), ("source",))]

    def _attach(self) -> None:
        def array(field: Any) -> np.ndarray:
            return self.block.array(*field)

        self._items = tree.map(array, self._fields["items"])
        self.priority, self.marks = array(self._fields["priority"]), array(self._fields["marks"])
        self._learning, self._remembering = array(self._fields["learning"]), array(self._fields["remembering"])
        self._closed = array(self._fields["closed"])
        cells = array(self._fields["rings"])[..., : Ring.cells(self.depth)]
        self._empty, self._full = (
            [[Ring(cells[k, m, i]) for i in range(self.learners)] for m in range(self.memories)] for k in (0, 1)
        )

    def item(self, tray: int) -> Batch:
        """The batch in a tray, as `Memory.sample` gives it; its arrays are the tray's own."""
        return tree.map(lambda x: x[tray], self._items)

    def writer(self, m: int, by: int = 0) -> SampleWriter:
        """The end of memory `m`, of its incarnation `by`."""
        return SampleWriter(self, m, by)

    def reader(self, c: int) -> SampleReader:
        """The end of learner `c`."""
        return SampleReader(self, c)

    @property
    def waiting(self) -> int:
        """Whole batches that no learner has taken yet."""
        return sum(len(ring) for rings in self._full for ring in rings)

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

    # ------------------------------------------------------------------------------------------ checkpoints

    def ask(self, version: int) -> None:
        """Have every memory write its part of the checkpoint of update `version`."""
        self._learning[_ASKED] = version + 1
        for m in range(self.memories):
            self._stream.bell(m).post()

    def late(self, version: int) -> bool:
        """Whether a memory has not answered that yet."""
        return bool((np.abs(self._remembering[:, _ANSWERED]) < version + 1).any())

    def failed(self) -> list[int]:
        """Memories that could not write the last part that they were asked for."""
        return np.flatnonzero(self._remembering[:, _ANSWERED] < 0).tolist()

    # ---------------------------------------------------------------------------------------------- the end

    def close(self) -> None:
        """Every wait, now and later, raises Closed."""
        self._closed[0] = 1
        for c in range(self.learners):
            self._bells[c].post()

    def check(self) -> None:
        if self._closed[0]:
            raise Closed

    def __getstate__(self) -> dict:
        names = ("replay", "memories", "learners", "depth", "n", "patience", "block", "_fields", "_bells", "_stream")
        return {k: self.__dict__[k] for k in names}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._attach()


class SampleWriter:
    """A memory's end. One that takes a lost one's place has the trays that it was filling."""

    def __init__(self, samples: SampleQueue, m: int, by: int):
        self.samples, self.m, self.mark = samples, m, by + 1
        self.bell, self.cells = samples._stream.bell(m), samples._remembering[m]
        known = {t for i in range(samples.learners) for r in (samples._empty, samples._full) for t in r[m][i].peek()}
        each = samples.learners * samples.depth
        lost = [t for t in range(m * each, (m + 1) * each) if t not in known and samples.marks[t, _HOLDER] == FILLING]
        self.empty = deque(lost)

    def back(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(ids, priorities) of trays that came back, but for those that an earlier incarnation drew."""
        marks = self.samples.marks
        for ring in self.samples._empty[self.m]:
            while (tray := ring.take(marks[:, _HOLDER], FILLING)) is not None:
                self.bell.wait(0)  # its token
                self.empty.append(tray)
                if marks[tray, _JUDGED] and marks[tray, _BY] == self.mark:
                    yield self.samples.item(tray)["id"], self.samples.priority[tray]

    @property
    def away(self) -> int:
        """Trays that this end filled, its predecessors not, and that are not back yet."""
        each = self.samples.learners * self.samples.depth
        mine = self.samples.marks[self.m * each : (self.m + 1) * each, _BY] == self.mark
        return int(mine.sum()) - sum(bool(mine[t % each]) for t in self.empty)

    def fill(self, draw: Callable[[Batch], Any]) -> None:
        """Have the tray that came back first filled by draw(item), and hand it to its learner."""
        tray = self.empty[0]
        self.samples.marks[tray, _JUDGED] = 0
        draw(self.samples.item(tray))
        self.samples.marks[tray, _BY] = self.mark
        self.empty.popleft()
        c = tray // self.samples.depth % self.samples.learners
        self.samples._full[self.m][c].put(tray)
        self.samples._bells[c].post()

    def heard(self, steps: float) -> None:
        """So many agent steps more were remembered."""
        self.cells[_FRESH] += steps

    def asked(self) -> int | None:
        """The update whose checkpoint waits for this memory's part; None: no such."""
        wanted = int(self.samples._learning[_ASKED])
        return wanted - 1 if wanted > abs(self.cells[_ANSWERED]) else None

    def answer(self, version: int, failed: bool = False) -> None:
        self.cells[_KEPT] = self.cells[_FRESH]
        self.cells[_ANSWERED] = -(version + 1) if failed else version + 1


class SampleReader:
    """A learner's end. One that takes a lost one's place gives back, unjudged, what that one held."""

    def __init__(self, samples: SampleQueue, c: int):
        self.samples, self.c, self.bell, self.turn = samples, c, samples._bells[c], c
        for m in range(samples.memories):
            known = {*samples._empty[m][c].peek(), *samples._full[m][c].peek()}
            begin = (m * samples.learners + c) * samples.depth
            for t in range(begin, begin + samples.depth):
                if t not in known and samples.marks[t, _HOLDER] == READING:
                    self.give(t, None)

    def batches(self) -> Iterator[int | None]:
        """Trays, of the memories in turn as far as they have some; None: nothing came for a while. Raises Closed."""
        while True:
            self.samples.check()
            tray = self._next()
            if tray is not None:
                self.bell.wait(0)
                yield tray
            elif not self.bell.wait(self.samples.patience):
                yield None

    def _next(self) -> int | None:
        for k in range(self.samples.memories):
            m = (self.turn + k) % self.samples.memories
            tray = self.samples._full[m][self.c].take(self.samples.marks[:, _HOLDER], READING)
            if tray is not None:
                self.turn = m + 1
                return tray
        return None

    def give(self, tray: int, priority: np.ndarray | None) -> None:
        """Give a tray back, with new priorities [B] of what is in it if there are some."""
        samples = self.samples
        if priority is not None:
            samples.priority[tray] = priority
        samples.marks[tray, _JUDGED] = priority is not None
        m = tray // (samples.learners * samples.depth)
        samples._empty[m][self.c].put(tray)
        samples._stream.bell(m).post()

    def gather(self, version: int, patience: float) -> Iterator[None]:
        """Wait until every memory has written its part for `version`: as long as that takes."""
        self.samples.ask(version)
        while self.samples.late(version):
            self.samples.check()
            time.sleep(patience)
            yield

"""What the queues between acting and learning have in common. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import numpy as np

from polyplay.common.edges import Arrow
from polyplay.common.errors import Closed
from polyplay.common.ring import Ring
from polyplay.common.semaphores import Semaphore, Semaphores
from polyplay.common.shared_memory import LINE, SharedObject
from polyplay.common.tree import Spec

if TYPE_CHECKING:
    from polyplay.buffers.rollout_queue import RolloutQueue
    from polyplay.buffers.training_queue import TrainingQueue

# Who holds a slot: written by the holder *before* it takes the number out of a ring, so a slot that is FILLING and in
# no ring was in the hands of a writer that died.
FILLING, READING = 1, 2


class Queue(ABC):
    """What the crew and the diagram see: an Edge that one role has as `out` and another as `source`."""

    memory: ClassVar[str] = "rollouts"
    patience = 0.1  # seconds a wait lasts before it answers "nothing yet"; 0 when all run in one thread

    @abstractmethod
    def label(self) -> str: ...

    def arrows(self) -> list[Arrow]:
        return [Arrow(self.label(), ("out",), ("source",))]


class SharedQueue(Queue, SharedObject):
    """Slots between processes, in one block of memory. Every pair of a writer and a reader has two rings of their
    numbers, of the empty and of the full ones: so every ring has one writer and one reader, and whoever is killed
    leaves no lock. Pair i's reader is i mod `readers`. `share`: slots of each owner, which has `each` pairs that follow
    one another.

    A reader may ask its writers for their parts of a checkpoint: writer i answers reader i mod those that ask.
    """

    LOCAL = ("use", "_empty", "_full", "ends")
    marks: np.ndarray
    answered: np.ndarray
    _rings: np.ndarray
    _asked: np.ndarray
    _last: np.ndarray
    _closed: np.ndarray

    def __init__(
        self,
        fields: Spec,
        slots: int,
        pairs: int,
        readers: int,
        asks: tuple[int, int],
        more_bells: int = 0,
        each: int = 1,
    ):
        """asks: how many ask for parts, and how many answer. more_bells: than one for each reader."""
        self.slots, self.share, self.readers, self.each = slots, slots * each // pairs, readers, each
        self._bells = Semaphores(readers + more_bells)
        super().__init__(
            **fields,
            marks=((slots, LINE // 8), np.int64),
            _rings=((2, pairs, -(-Ring.cells(self.share) // 8) * 8), np.int64),
            _asked=(asks[0], np.int64),
            _last=(asks[0], np.int64),
            answered=(asks[1], np.int64),
            _closed=(LINE // 8, np.int64),
        )
        for slot in range(slots):
            self._empty[slot // self.share * self.each].put(slot)

    def _attach(self) -> None:
        super()._attach()
        self.use = self.marks[:, 0]  # who holds a slot
        empty, full = self._rings[..., : Ring.cells(self.share)]
        self._empty = [Ring(cells, self.writer_bell(i)) for i, cells in enumerate(empty)]
        self._full = [Ring(cells, self._bells[i % self.readers]) for i, cells in enumerate(full)]
        self.ends = full[:, 0:16:8]  # [pairs, 2] head and tail of each full ring

    @abstractmethod
    def writer_bell(self, i: int) -> Semaphore:
        """Of the writer of pair `i`: it gets a token for every slot that is empty again."""

    @property
    def depth(self) -> int:
        """Full slots that no reader has taken yet."""
        return int((self.ends[:, 1] - self.ends[:, 0]).sum())

    def held(self, pairs: slice, holder: int) -> list[int]:
        """Slots of these pairs that are in no ring and that such a holder took last."""
        known = {slot for ring in self._empty[pairs] + self._full[pairs] for slot in ring.peek()}
        owners = sorted({i // self.each for i in range(len(self._full))[pairs]})
        own = np.arange(self.slots).reshape(-1, self.share)[owners].ravel().tolist()
        return [s for s in own if s not in known and self.use[s] == holder]

    def ask(self, c: int, version: int, last: bool = False) -> None:
        """Have those that answer `c` write their parts of update `version`'s checkpoint; -1: not any longer. last: what
        they would do after that is for nobody.
        """
        self._last[c] = last
        self._asked[c] = version + 1

    def asked(self, i: int) -> int | None:
        """The update whose checkpoint waits for the part of writer `i`; None: no such."""
        wanted = int(self._asked[i % len(self._asked)])
        return wanted - 1 if wanted > abs(self.answered[i]) else None

    def last(self, i: int) -> bool:
        """Whether the checkpoint that writer `i` was asked for is the run's last."""
        return bool(self._last[i % len(self._last)])

    def answer(self, i: int, version: int, failed: bool = False) -> None:
        self.answered[i] = -(version + 1) if failed else version + 1

    def late(self, c: int, version: int) -> list[int]:
        """Those that have not answered `c` that yet."""
        return [i for i in self._answering(c) if abs(self.answered[i]) < version + 1]

    def failed(self, c: int) -> list[int]:
        """Those that could not write the last part that `c` asked them for."""
        return [i for i in self._answering(c) if self.answered[i] < 0]

    def _answering(self, c: int) -> range:
        return range(c, len(self.answered), len(self._asked))

    def close(self) -> None:
        """Every wait, now and later, raises Closed."""
        self._closed[0] = 1
        for i in range(self._bells.n):
            self._bells[i].post()

    def check(self) -> None:
        if self._closed[0]:
            raise Closed


Q = TypeVar("Q", bound="RolloutQueue | TrainingQueue")


class QueueBatches(Generic[Q]):
    """The learning end of a queue: batches of `n` of its slots."""

    n: int

    def __init__(self, queue: Q):
        self.queue = self.edge = queue

    @property
    def joined_nbytes(self) -> float:
        """Bytes of a batch that is put together from several slots."""
        return self.queue.nbytes / self.queue.slots * self.n if self.n > 1 else 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """[T, B] of a batch."""
        return self.queue.T, self.n * self.queue.lanes

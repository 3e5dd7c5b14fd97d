"""What the queues between acting and learning have in common. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np

from polyplay.common import tree
from polyplay.common.edges import Arrow
from polyplay.common.errors import Closed
from polyplay.common.ring import Ring
from polyplay.common.semaphores import Semaphores
from polyplay.common.shared_memory import Layout, SharedObject
from polyplay.common.tree import Spec

# Who holds a slot: written by the holder *before* it takes the number out of a ring, so a slot that is FILLING and in
# no ring was in the hands of an actor that died.
FILLING, READING = 1, 2


def slots_held(slots: Iterable[int], rings: Iterable[Ring], holders: np.ndarray, holder: int) -> list[int]:
    """Those of `slots` that are in none of these rings and that this holder took last."""
    known = {number for ring in rings for number in ring.peek()}
    return [s for s in slots if s not in known and holders[s] == holder]


class Queue(ABC):
    """What the crew and the diagram see: an Edge that one role has as `out` and another as `source`."""

    memory: ClassVar[str] = "rollouts"
    patience = 0.1  # seconds a wait lasts before it answers "nothing yet"; 0 when all run in one thread

    @abstractmethod
    def label(self) -> str: ...

    def arrows(self) -> list[Arrow]:
        return [Arrow(self.label(), ("out",), ("source",))]


class SharedQueue(Queue, SharedObject):
    """A queue between processes: arrays in one block, and `bells` semaphores. Whatever `_attach` makes of the arrays it
    makes anew in each process.
    """

    def __init__(self, fields: Spec, bells: int):
        layout = Layout()
        self._places = tree.map(lambda f: layout.add(*f), fields)
        self.block, self._bells = layout.block(), Semaphores(bells)
        travels = set(self.__dict__)
        self._attach()
        self.LOCAL = (*(self.__dict__.keys() - travels),)

    def _attach(self) -> None:
        self.arrays = tree.map(lambda place: self.block.array(*place), self._places)

    @property
    def nbytes(self) -> int:
        return self.block.nbytes

    def close(self) -> None:
        """Every wait, now and later, raises Closed."""
        self.arrays["closed"][0] = 1
        for i in range(self._bells.n):
            self._bells[i].post()

    def check(self) -> None:
        if self.arrays["closed"][0]:
            raise Closed


class HasSlots(Protocol):
    T: int
    lanes: int  # of a slot
    slots: int

    @property
    def nbytes(self) -> int: ...


Q = TypeVar("Q", bound=HasSlots)


class QueueBatches(Generic[Q]):
    """The learning end of a queue: batches of `n` of its slots."""

    n: int

    def __init__(self, queue: Q):
        self.queue = queue

    @property
    def edge(self) -> Q:
        return self.queue

    @property
    def joined_nbytes(self) -> float:
        """Bytes of a batch that is put together from several slots."""
        return self.queue.nbytes / self.queue.slots * self.n if self.n > 1 else 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """[T, B] of a batch."""
        return self.queue.T, self.n * self.queue.lanes

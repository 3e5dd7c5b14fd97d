"""Flows, which copy shared objects between two machines. Imports no torch.

Each machine has its own copy of a shared object, such as a queue. A flow sends the data of one writer to some readers.
If a reader is on the other machine, the data goes over the connection between the machines, called the line. The
writer's machine sends the changes of its copy, and then the number that announces them, such as the length of a queue.
The reader's machine writes them into its copy, and wakes the workers that wait for them. Each array element has only
one writer at a time. Each class of shared objects lists its flows in SharedObject.crossing.
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from polyplay.core.shared_memory import Semaphore, memory_barrier

Piece = tuple[int, int, list[np.ndarray]]  # kind of the piece, number of the item, arrays
MARK, FILE, SLOT, BACK, RINGS, PAIR, VECTOR, WAITING = range(8)  # kinds of pieces
COUNTING = 0.25  # seconds between two copies of a worker's counters


class End(NamedTuple):
    """Worker that writes or reads a flow. `name` is its argument that has the shared object, or a name in EVERYWHERE.
    `i` is its number in its role, or its row of counters if `name` is "row".
    """

    name: str
    i: int


MAIN = End("main", 0)  # the main process
EVERYONE = End("everyone", 0)  # a reader on every machine
ANY = -1  # as `i` of a reader: all readers of this name
EVERYWHERE = ("row", "learner", "judge")


class Side(Protocol):
    """One end of the connection between two machines."""

    away: bool  # whether this end is on the other machine, not on the main machine
    now: float
    relay: int  # number of the line; a post of its semaphore wakes this side
    landed: int  # number of slots received so far

    @property
    def seats(self) -> Collection[tuple[int, End]]:
        """Pairs (number of a shared object, worker that uses it) of all workers outside the main machine."""

    def parts(self, thing: int, end: End) -> Iterator[Piece]:
        """Yield the messages with a worker's part of a checkpoint."""

    def failed(self, thing: int, end: End) -> bool:
        """Tell whether this machine failed to write a worker's part of a checkpoint since the last call."""

    def files(self, pattern: str, keep: bool = False) -> Iterator[Piece]:
        """Yield the messages with the files that match `pattern`, and delete the files unless `keep` is true."""


class Flow(ABC):
    """Flow of data from one writer to some readers. Without readers, the data is only sent when a worker starts.

    A token stands for a state of the data. When the token changes, the flow has new data to send. If `both` is true,
    the readers write the data too.
    """

    both = False
    traffic: Side
    thing = number = 0

    def __init__(self, writer: End, readers: Sequence[End]):
        self.writer, self.readers = writer, tuple(readers)

    @abstractmethod
    def token(self, gives: bool) -> Any:
        """Return a token of the data's current state. `gives`: whether the writer is on this machine."""

    @abstractmethod
    def pieces(self, old: Any, new: Any, gives: bool) -> Iterator[Piece]:
        """Yield messages with all changes of the data since the token `old`. If `old` is None, yield all data."""

    @abstractmethod
    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        """Write a message from the other machine into this machine's copy. `gives`: see `token`."""

    def begin(self, gives: bool, token: Any) -> Iterator[Piece]:
        """Yield the messages that a worker needs when it starts on the other machine. `gives`: whether the writer is on
        this machine. `token`: the data's current state.
        """
        yield from self.pieces(None, token if gives else self.token(True), True)

    def activate(self, gives: bool) -> None:  # noqa: B027 - most flows need nothing
        """Prepare this machine before it sends data."""


class Cells(Flow):
    """Flow of small arrays, called cells, which are always sent whole. The receiver writes the last cell after all
    others, because readers look at it first. Then it wakes the readers by the semaphores `bells`.

    `whole`: large arrays that are sent with each change.
    `log`: ring buffers. Only their new rows are sent.
    `counted`: function of the cells that returns how many rows were written to `log` so far.
    `every`: seconds between two reads of the cells.
    """

    every = 0.0
    _next, _last = 0.0, b""

    def __init__(
        self,
        writer: End,
        readers: Sequence[End],
        cells: Sequence[np.ndarray],
        bells: Sequence[Semaphore] = (),
        whole: Sequence[np.ndarray] = (),
        log: Sequence[np.ndarray] = (),
        counted: Callable[[list[np.ndarray]], Any] = lambda cells: 0,
    ):
        super().__init__(writer, readers)
        self.cells, self.bells, self.whole, self.log, self.counted = cells, bells, whole, log, counted

    def token(self, gives: bool) -> bytes:
        """Return the bytes of all cells."""
        if not self.every or not self._last or self.traffic.now >= self._next:
            found = []
            for x in reversed(self.cells):  # the last one first: the others then contain what it announces
                found.append(x.tobytes())
                memory_barrier()
            self._next, self._last = time.monotonic() + self.every, b"".join(reversed(found))
        return self._last

    def pieces(self, old: bytes | None, new: bytes, gives: bool) -> Iterator[Piece]:
        arrays = [*self.whole]
        if self.log and old is not None:
            begun, until = (int(self.counted(self.split(data))) for data in (old, new))
            rows = np.arange(max(begun, until - len(self.log[0])), until) % len(self.log[0])
            arrays += [rows, *(x[rows] for x in self.log)]
        yield MARK, 0, [np.frombuffer(new, np.uint8), *arrays]

    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        data, *more = arrays
        for place, x in zip(self.whole, more, strict=False):
            place[...] = x
        for place, x in zip(self.log, more[len(self.whole) + 1 :], strict=False):
            place[more[len(self.whole)]] = x
        self.write(self.split(data.tobytes()))
        memory_barrier()
        for bell in self.bells:
            bell.post()

    def write(self, cells: list[np.ndarray]) -> None:
        for place, numbers in zip(self.cells, cells, strict=True):
            memory_barrier()
            place[...] = numbers

    def split(self, data: bytes) -> list[np.ndarray]:
        """Split the bytes of a token into arrays with the shapes of the cells."""
        ends = np.cumsum([0, *(x.nbytes for x in self.cells)]).tolist()
        parts = [data[a:b] for a, b in itertools.pairwise(ends)]
        return [np.frombuffer(x, v.dtype).reshape(v.shape) for x, v in zip(parts, self.cells, strict=True)]


class Answer(Cells):
    """Flow of a worker's answer to a request to save: first its part of a checkpoint, then the checkpoint's number."""

    def pieces(self, old: bytes | None, new: bytes, gives: bool) -> Iterator[Piece]:
        if old is not None:
            yield from self.traffic.parts(self.thing, self.writer)
        yield from super().pieces(old, new, gives)

    def write(self, cells: list[np.ndarray]) -> None:
        failed = self.traffic.failed(self.thing, self.writer)
        self.cells[0][...] = -abs(cells[0]) if failed else cells[0]


class Crossing(NamedTuple):
    """Flows of a shared object in sending order. `bells`: pairs (semaphore, worker that waits for it)."""

    flows: Sequence[Flow] = ()
    bells: Sequence[tuple[Semaphore, End]] = ()
    close: Callable[[], None] = lambda: None

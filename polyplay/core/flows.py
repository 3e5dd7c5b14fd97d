"""Flows, which copy shared objects between two machines. Imports no torch.

Each machine has its own copy of a shared object, such as a queue. At any time, each array element of the object has
only one writer. A flow sends the data of one writer to some readers. If a reader is on the other machine, the data goes
over the line (connection) between the machines. The writer's machine looks for changes and sends them, and then sends
the number that announces them. The reader's machine writes the changes into its copy, and posts the semaphores
("bells") of workers that wait for the object. Each class of shared objects lists its flows in SharedObject.crossing.
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
    """Worker that writes or reads a flow. name: the worker's argument that holds the shared object. The names in
    EVERYWHERE fit every object. i: the worker's number in its role or, for the name `row`, its row of counters.
    """

    name: str
    i: int


MAIN = End("main", 0)  # the main process
EVERYONE = End("everyone", 0)  # a reader on every machine
ANY = -1  # as `i` of a reader: all readers of this name
EVERYWHERE = ("row", "learner", "judge")


class Side(Protocol):
    """One end of the line (connection) between two machines, as flows use it."""

    away: bool  # whether this end is on the other machine, not on the main machine
    now: float
    relay: int  # number of the line; a post of its semaphore wakes this side
    landed: int  # number of slots received so far

    @property
    def seats(self) -> Collection[tuple[int, End]]:
        """Workers outside the main machine, as pairs (number of a shared object, worker)."""

    def parts(self, thing: int, end: End) -> Iterator[Piece]:
        """Yield the pieces of a worker's part of a checkpoint."""

    def failed(self, thing: int, end: End) -> bool:
        """Tell whether this machine could not write a worker's part of a checkpoint. A failure is reported once."""

    def files(self, pattern: str, keep: bool = False) -> Iterator[Piece]:
        """Yield the pieces of this machine's files that match `pattern`, and delete the files unless `keep` is true."""


class Flow(ABC):
    """Flow of data from one writer to some readers. Without readers, the data is sent only when a worker starts.

    A token identifies a state of the data. If the token has changed, there is new data to send. If `both` is true,
    readers write the data too.
    """

    both = False
    traffic: Side
    thing = number = 0

    def __init__(self, writer: End, readers: Sequence[End]):
        self.writer, self.readers = writer, tuple(readers)

    @abstractmethod
    def token(self, gives: bool) -> Any:
        """Return the token of the data's state on this machine. gives: whether the writer is here."""

    @abstractmethod
    def pieces(self, old: Any, new: Any, gives: bool) -> Iterator[Piece]:
        """Yield the changes of the data between the tokens `old` and `new`, or all data if `old` is None."""

    @abstractmethod
    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        """Write a piece that the other machine sent to this machine's copy. gives: whether the writer is here."""

    def begin(self, gives: bool, token: Any) -> Iterator[Piece]:
        """Yield the pieces that a worker needs when it starts on the other machine. gives: whether the writer is on
        this machine and continues to write. token: the present state of the data. Changes after `token` are sent later.
        """
        yield from self.pieces(None, token if gives else self.token(True), True)

    def activate(self, gives: bool) -> None:  # noqa: B027 - most flows need nothing
        """Prepare this machine before it sends data."""


class Cells(Flow):
    """Flow of small arrays (`cells`), which are sent whole. The receiver writes the last array after the other arrays,
    because the last one announces them, and then posts `bells`.

    whole: large arrays that are sent with each change.
    log: ring buffers, of which only new rows are sent.
    counted: function that computes the number of rows written to the log so far from the cells.
    every: seconds between two reads of the cells.
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
        """Return the bytes of all cells. Read the last array first, so that the other arrays contain all writes that
        the last array announces.
        """
        if not self.every or not self._last or self.traffic.now >= self._next:
            found = []
            for x in reversed(self.cells):
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
        """Convert the bytes of a token to arrays with the shapes of the cells."""
        ends = np.cumsum([0, *(x.nbytes for x in self.cells)]).tolist()
        parts = [data[a:b] for a, b in itertools.pairwise(ends)]
        return [np.frombuffer(x, v.dtype).reshape(v.shape) for x, v in zip(parts, self.cells, strict=True)]


class Answer(Cells):
    """Flow of the number of the last checkpoint for which a worker wrote its part. The part is sent first."""

    def pieces(self, old: bytes | None, new: bytes, gives: bool) -> Iterator[Piece]:
        if old is not None:
            yield from self.traffic.parts(self.thing, self.writer)
        yield from super().pieces(old, new, gives)

    def write(self, cells: list[np.ndarray]) -> None:
        failed = self.traffic.failed(self.thing, self.writer)
        self.cells[0][...] = -abs(cells[0]) if failed else cells[0]


class Crossing(NamedTuple):
    """Flows of a shared object, in sending order, and pairs of a semaphore and the worker that waits for it."""

    flows: Sequence[Flow] = ()
    bells: Sequence[tuple[Semaphore, End]] = ()
    close: Callable[[], None] = lambda: None

"""Flows of shared objects between two machines. Imports no torch.

Every cell of a shared object has one writer at a time. A flow is one writer's data for some readers. If a reader is on
the other machine, the flow is sent over the line (connection) between the two. The writer's side polls the flow and
sends changes: data first, then the number that announces the data. The other side writes the changes into its copy of
the object and rings the bells there. Each class of shared objects declares its own flows (SharedObject.crossing).
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from polyplay.core.shared_memory import Semaphore, memory_barrier

Piece = tuple[int, int, list[np.ndarray]]  # part, number of the item, arrays
MARK, FILE, SLOT, BACK, RINGS, PAIR, VECTOR, WAITING = range(8)  # parts
COUNTING = 0.25  # seconds between two copies of a worker's counters


class End(NamedTuple):
    """A worker, as flows identify it: the name of its argument that holds the object, and its number. Three other
    names exist for every object: `row` (its number is a row of the counters), `learner` and `judge`.
    """

    name: str
    i: int


MAIN = End("main", 0)  # the main process
EVERYONE = End("everyone", 0)  # a reader on every machine
ANY = -1  # as a reader's number: all readers of this name
EVERYWHERE = ("row", "learner", "judge")


class Side(Protocol):
    """One end of a line between two machines, as flows use it."""

    away: bool  # whether this is the other machine's end, not the main machine's
    now: float
    relay: int  # number of the line whose bell rings for this side
    landed: int  # slots received

    @property
    def seats(self) -> Collection[tuple[int, End]]:
        """Workers on the machine that is not the main one, as (number of the object, worker)."""

    def parts(self, thing: int, end: End) -> Iterator[Piece]:
        """Yield the pieces of a worker's part of a checkpoint."""

    def failed(self, thing: int, end: End) -> bool:
        """Tell whether a worker's part could not be written here, and forget it."""

    def files(self, pattern: str, keep: bool = False) -> Iterator[Piece]:
        """Yield files of this side's folder in pieces. keep: do not delete the files here."""


class Flow(ABC):
    """Data of one writer for some readers. Without readers, only a starting worker gets the data. both: whether readers
    write too. A token identifies a state of the data: if the token changes, there is new data to send.
    """

    both = False
    traffic: Side
    thing = number = 0

    def __init__(self, writer: End, readers: Sequence[End]):
        self.writer, self.readers = writer, tuple(readers)

    @abstractmethod
    def token(self, gives: bool) -> Any:
        """Return the token of this side's state. gives: whether the writer is on this side."""

    @abstractmethod
    def pieces(self, old: Any, new: Any, gives: bool) -> Iterator[Piece]:
        """Yield the changes since the old token. None: everything."""

    @abstractmethod
    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        """Write a piece from the other side. gives: whether the writer is on this side."""

    def begin(self, gives: bool, token: Any) -> Iterator[Piece]:
        """Yield the pieces that a worker needs when it starts on the other side. gives: whether the writer is here and
        continues to write. token: this side's token; newer changes are sent later.
        """
        yield from self.pieces(None, token if gives else self.token(True), True)

    def activate(self, gives: bool) -> None:  # noqa: B027 - most need nothing
        """Prepare for sending, before it starts."""


class Cells(Flow):
    """Small arrays, sent whole. The last is written after the others; then the bells ring.

    whole: large arrays that are sent with each change. log: ring buffers; only their new rows are sent. counted(cells):
    number of rows written so far. every: seconds between two reads of the cells.
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
        """Return the cells' bytes. The last array is read first, so the others have all writes that it announces."""
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
        """Return the arrays in a token."""
        ends = np.cumsum([0, *(x.nbytes for x in self.cells)]).tolist()
        parts = [data[a:b] for a, b in itertools.pairwise(ends)]
        return [np.frombuffer(x, v.dtype).reshape(v.shape) for x, v in zip(parts, self.cells, strict=True)]


class Answer(Cells):
    """Number of the last checkpoint for which a worker has written its part. The part is sent first."""

    def pieces(self, old: bytes | None, new: bytes, gives: bool) -> Iterator[Piece]:
        if old is not None:
            yield from self.traffic.parts(self.thing, self.writer)
        yield from super().pieces(old, new, gives)

    def write(self, cells: list[np.ndarray]) -> None:
        failed = self.traffic.failed(self.thing, self.writer)
        self.cells[0][...] = -abs(cells[0]) if failed else cells[0]


class Crossing(NamedTuple):
    """An object's flows, in sending order, and its bells, each with the worker that waits on it."""

    flows: Sequence[Flow] = ()
    bells: Sequence[tuple[Semaphore, End]] = ()
    close: Callable[[], None] = lambda: None

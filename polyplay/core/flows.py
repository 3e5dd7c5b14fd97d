"""Flows: what of a shared object crosses between two machines. Imports no torch.

Every cell of a shared object has one writer at a time. A flow is what one writer writes for some readers: it crosses a
line where the writer is on one side and a reader on the other. The writer's side looks whether the flow has changed and
sends what is new, data before the number that says that they are there. The other side writes the same into its twin of
the object, and rings the bells there. Each class of shared objects declares its own flows (SharedObject.crossing).
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from polyplay.core.shared_memory import Semaphore, memory_barrier

Piece = tuple[int, int, list[np.ndarray]]  # part, number of what it is, arrays
MARK, FILE, SLOT, BACK, RINGS, PAIR, VECTOR, WAITING = range(8)  # parts
COUNTING = 0.25  # seconds between two copies of a worker's counters


class End(NamedTuple):
    """A worker as a flow knows it: the name of the argument that holds the object, and the worker's number. Of every
    object there are besides `row` (of the counters), `learner` and `judge`, of workers that are these.
    """

    name: str
    i: int


MAIN = End("main", 0)  # the main process
EVERYONE = End("everyone", 0)  # a reader on every machine
ANY = -1  # as a reader's number: all that there are
EVERYWHERE = ("row", "learner", "judge")


class Side(Protocol):
    """One end of a line, as a flow sees it."""

    away: bool  # the other machine's end, not the main machine's
    now: float
    relay: int  # the number of the line, whose bell rings for this side
    landed: int  # slots that have come

    @property
    def seats(self) -> Collection[tuple[int, End]]:
        """Ends that are on the other machine, by the number of the object."""

    def parts(self, thing: int, end: End) -> Iterator[Piece]:
        """The part of a checkpoint that a worker has written."""

    def failed(self, thing: int, end: End) -> bool:
        """Whether a worker's part could not be written here; once."""

    def files(self, pattern: str, keep: bool = False) -> Iterator[Piece]:
        """Files of this side's folder, in pieces. keep: they stay here."""


class Flow(ABC):
    """writer, readers: their ends; without readers only a worker that begins gets it. both: reader and writer both
    write. A token tells what was written: another one, and there is something to send.
    """

    both = False
    traffic: Side
    thing = number = 0

    def __init__(self, writer: End, readers: Sequence[End]):
        self.writer, self.readers = writer, tuple(readers)

    @abstractmethod
    def token(self, gives: bool) -> Any:
        """What was written on this side so far. gives: this is the writer's side."""

    @abstractmethod
    def pieces(self, old: Any, new: Any, gives: bool) -> Iterator[Piece]:
        """What was written since the old token; None: all."""

    @abstractmethod
    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        """Write what came from the other side. gives: this is the writer's side."""

    def begin(self, gives: bool, token: Any) -> Iterator[Piece]:
        """What a worker that begins over there has to know. gives: the writer is here, and goes on. token: of this
        side; what is newer is sent later.
        """
        yield from self.pieces(None, token if gives else self.token(True), True)

    def activate(self, gives: bool) -> None:  # noqa: B027 - most need nothing
        """It crosses from now on."""


class Cells(Flow):
    """Small arrays, whole. The last is written after the others. bells: ring once they are there.

    whole: large arrays, which go along. log: arrays of the last rows of something, of which the new ones go along;
    counted(cells): how many rows there were so far. every: seconds between two copies of the cells.
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
        """The last is read first: who sees it has what was written before."""
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
        """The arrays in a token."""
        ends = np.cumsum([0, *(x.nbytes for x in self.cells)]).tolist()
        parts = [data[a:b] for a, b in itertools.pairwise(ends)]
        return [np.frombuffer(x, v.dtype).reshape(v.shape) for x, v in zip(parts, self.cells, strict=True)]


class Answer(Cells):
    """The number of the checkpoint of which a worker has written its part: that part goes first."""

    def pieces(self, old: bytes | None, new: bytes, gives: bool) -> Iterator[Piece]:
        if old is not None:
            yield from self.traffic.parts(self.thing, self.writer)
        yield from super().pieces(old, new, gives)

    def write(self, cells: list[np.ndarray]) -> None:
        failed = self.traffic.failed(self.thing, self.writer)
        self.cells[0][...] = -abs(cells[0]) if failed else cells[0]


class Crossing(NamedTuple):
    """What of an object crosses: its flows, in the order in which they are sent, and its bells by who waits there."""

    flows: Sequence[Flow] = ()
    bells: Sequence[tuple[Semaphore, End]] = ()
    close: Callable[[], None] = lambda: None

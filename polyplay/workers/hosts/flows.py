"""What crosses between two machines of the objects that their workers share, declared as flows. Imports no torch.

Every cell of a shared object has one writer at a time. A flow is what one writer writes for some readers: it crosses a
line where the writer is on one side and a reader on the other. The writer's side looks whether the flow has changed and
sends what is new, data before the number that says that they are there; the other side writes the same into its twin
of the object, and rings the bells there. The main process's machine has a line to each other one, and passes on what
comes from one for readers on another.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyplay.core.shared_memory import Semaphore, SharedObject, memory_barrier
from polyplay.core.worker import EPISODES, Counters, Hyperparameters, RunControl

Frame = tuple[int, int, int, list[np.ndarray]]  # number of the flow, part, number of what it is, arrays
Piece = tuple[int, int, list[np.ndarray]]  # the same within a flow
MARK, FILE, SLOT, BACK, RINGS, PAIR, GAMES, VECTOR, WAITING = range(9)  # parts
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


@dataclass(frozen=True)
class RemoteSeat:
    """A worker on another machine. held: (number of a shared object, end) of what it holds."""

    role: str
    index: int
    row: int
    held: tuple[tuple[int, str], ...] = ()
    kinds: tuple[str, ...] = ()  # of EVERYWHERE, besides row

    @property
    def name(self) -> str:
        """As files of a checkpoint have it."""
        return f"{self.role}-{self.index}"

    def keys(self) -> set[tuple[int, End]]:
        """Its ends, by objects."""
        own = {(thing, End(end, self.index)) for thing, end in self.held}
        return own | {(-1, End("row", self.row))} | {(-1, End(kind, self.index)) for kind in self.kinds}


class Flow(ABC):
    """writer, readers: their ends; without readers only a worker that begins gets it. both: reader and writer both
    write. A token tells what was written: another one, and there is something to send.
    """

    both = False
    traffic: Traffic
    thing = number = 0

    def __init__(self, writer: End, readers: Sequence[End], bells: Sequence[Semaphore] = ()):
        self.writer, self.readers, self.bells = writer, tuple(readers), bells

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

    def ring(self) -> None:
        memory_barrier()
        for bell in self.bells:
            bell.post()


class Cells(Flow):
    """Small arrays, whole. The last is written after the others. every: seconds between two copies of them."""

    every = 0.0
    _next, _last = 0.0, b""

    def __init__(
        self, writer: End, readers: Sequence[End], views: Sequence[np.ndarray], bells: Sequence[Semaphore] = ()
    ):
        super().__init__(writer, readers, bells)
        self.views = views

    def token(self, gives: bool) -> bytes:
        """The last is read first: who sees it has what was written before."""
        if not self.every or not self._last or self.traffic.now >= self._next:
            found = []
            for view in reversed(self.views):
                found.append(view.tobytes())
                memory_barrier()
            self._next, self._last = time.monotonic() + self.every, b"".join(reversed(found))
        return self._last

    def pieces(self, old: bytes | None, new: bytes, gives: bool) -> Iterator[Piece]:
        yield MARK, 0, [np.frombuffer(new, np.uint8)]

    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        self.write(arrays[0].tobytes())
        self.ring()

    def write(self, data: bytes) -> None:
        for view, numbers in zip(self.views, self.split(data), strict=True):
            memory_barrier()
            view[...] = numbers

    def split(self, data: bytes) -> list[np.ndarray]:
        """The arrays in a token."""
        ends = np.cumsum([0, *(view.nbytes for view in self.views)]).tolist()
        parts = [data[a:b] for a, b in itertools.pairwise(ends)]
        return [np.frombuffer(x, v.dtype).reshape(v.shape) for x, v in zip(parts, self.views, strict=True)]


class Answer(Cells):
    """The number of the checkpoint of which a worker has written its part: that part goes first."""

    def pieces(self, old: bytes | None, new: bytes, gives: bool) -> Iterator[Piece]:
        if old is not None:
            yield from self.traffic.parts(self.thing, self.writer)
        yield from super().pieces(old, new, gives)

    def write(self, data: bytes) -> None:
        (value,) = self.split(data)
        failed = self.traffic.failed(self.thing, self.writer)
        self.views[0][...] = -abs(value) if failed else value


class CounterFlow(Cells):
    """A worker's row of the counters, and its new games; a learner's counters say which part it has written."""

    every = COUNTING

    def __init__(self, counters: Counters, row: int):
        cells = [counters.values[row], counters.lags[row], counters.sizes[row], counters.metrics[row]]
        super().__init__(End("row", row), [MAIN], cells)
        self.columns, self.games = counters.columns, counters.games[row]

    def _column(self, data: bytes, name: str) -> float:
        return float(self.split(data)[0][self.columns[name]])

    def pieces(self, old: bytes | None, new: bytes, gives: bool) -> Iterator[Piece]:
        if old is not None:
            begun, until = (int(self._column(data, "episodes")) for data in (old, new))
            first = max(begun, until - EPISODES)
            if until > first:
                yield GAMES, first, [self.games[np.arange(first, until) % EPISODES]]
            if self._column(old, "saved") != self._column(new, "saved"):
                yield from self.traffic.parts(-1, self.writer)
        yield from super().pieces(old, new, gives)

    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        if part == GAMES:
            self.games[np.arange(i, i + len(arrays[0])) % EPISODES] = arrays[0]
        else:
            super().land(part, i, arrays, gives)

    def write(self, data: bytes) -> None:
        values, stamps, saved = self.views[0], self.columns["stamps"], self.columns["saved"]
        theirs = self.split(data)[0].copy()
        # that machine has another clock
        theirs[0] = values[0] if theirs[stamps] == values[stamps] else time.monotonic()
        if self.traffic.failed(-1, self.writer):
            theirs[saved] = -abs(theirs[saved])
        super().write(theirs.tobytes() + data[theirs.nbytes :])


class Progress(Cells):
    """What all workers have counted, for one that reads that: home to its machine, but for the rows of that one."""

    every = COUNTING

    def __init__(self, counters: Counters):
        super().__init__(MAIN, [End("judge", ANY)], [counters.values])

    def write(self, data: bytes) -> None:
        own = [end.i for thing, end in self.traffic.seats if end.name == "row"]
        others = np.setdiff1d(np.arange(len(self.views[0])), own)
        self.views[0][others] = self.split(data)[0][others]


class Values(Cells):
    """Hyperparameters; but learners set themselves what is scheduled, and `remaining`, of the run."""

    def __init__(self, hyper: Hyperparameters):
        super().__init__(MAIN, [EVERYONE], [hyper._values])
        scheduled = {"remaining", *(schedule.name for schedule in hyper.schedules)}
        self._given = np.array([name not in scheduled for name in hyper.configured], bool)

    def write(self, data: bytes) -> None:
        learns = any(end.name == "learner" for _, end in self.traffic.seats)
        given = self._given if learns else np.ones_like(self._given)
        self.views[0][given] = self.split(data)[0][given]


class Traffic:
    """One end of a line: all flows of the objects that cross it. away: the other machine's end. relay: the number of
    the line, whose bell rings for this side. root: where files are.
    """

    def __init__(self, crossings: Sequence[Crossing], away: bool, relay: int, root: Path | None):
        self.away, self.relay, self.root, self.now, self.crossings = away, relay, root, 0.0, crossings
        self.flows = [flow for crossing in self.crossings for flow in crossing.flows]
        for i, crossing in enumerate(self.crossings):
            for flow in crossing.flows:
                flow.traffic, flow.thing = self, i
        for number, flow in enumerate(self.flows):
            flow.number = number
        self.seats: set[tuple[int, End]] = set()  # ends that are on the other machine
        self.names: dict[tuple[int, End], str] = {}  # of workers, as files have them
        self.active: list[tuple[Flow, bool]] = []  # flows that this side sends, and whether as the writer
        self.gave: dict[int, bool] = {}  # by flow that crosses, or did: whether the writer was on this side
        self.known: dict[int, Any] = {}  # tokens that the other side has
        self.unwritten: dict[str, str] = {}  # parts of checkpoints that could not be written here, and why
        self.landed = 0  # slots
        self._copied: set[str] = set()  # files that stay here and are there

    def _there(self, flow: Flow, end: End) -> bool:
        """Whether an end is on the other machine."""
        return self._holds(self.seats, flow, end)

    @staticmethod
    def _holds(keys: set[tuple[int, End]], flow: Flow, end: End) -> bool:
        thing = -1 if end.name in EVERYWHERE else flow.thing
        if end.i == ANY:
            return any(i == thing and other.name == end.name for i, other in keys)
        return (thing, end) in keys

    def _sides(self, flow: Flow) -> tuple[bool, bool, bool]:
        """Whether the writer is on the other machine; some reader is; some reader is not."""
        there = [(self._there(flow, end), end.i == ANY) for end in flow.readers if end != EVERYONE]
        everyone = EVERYONE in flow.readers
        some = everyone or any(is_there for is_there, _ in there)
        elsewhere = everyone or any(several or not is_there for is_there, several in there)
        return self._there(flow, flow.writer), some, elsewhere

    def gives(self, flow: Flow) -> bool:
        """Whether the writer is on this side."""
        return self._there(flow, flow.writer) == self.away

    def _sends(self, flow: Flow) -> bool:
        writer, there, elsewhere = self._sides(flow)
        if flow.both:
            return elsewhere if writer else there
        return elsewhere and writer if self.away else there and not writer

    def begin(self, seat: RemoteSeat) -> Iterator[Frame]:
        """home: a worker will begin over there; what is here of all that it writes, and reads, with all news."""
        keys, sending, found = seat.keys(), {flow.number: gives for flow, gives in self.active}, []
        for flow in reversed(self.flows):
            first = not self.seats and EVERYONE in flow.readers
            writes = self._holds(keys, flow, flow.writer)
            reads = first or any(self._holds(keys, flow, end) for end in flow.readers)
            # where both are there they have all from each other
            if flow.number in sending or writes or (reads and not self._there(flow, flow.writer)):
                gives = sending.get(flow.number, not writes)
                found.append((flow, gives, flow.token(gives)))
                memory_barrier()
        for flow, gives, token in reversed(found):
            if flow.number in sending:
                yield from self._changed(flow, gives, token)
            else:
                self.known[flow.number] = token
                for piece in flow.begin(gives, token):
                    yield flow.number, *piece

    def sit(self, seat: RemoteSeat) -> None:
        """Both sides: from now on that worker is away."""
        self.seats = self.seats | seat.keys()
        self.names |= dict.fromkeys(seat.keys(), seat.name)
        active = [(flow, self.gives(flow)) for flow in self.flows if self._sends(flow)]
        before = {flow.number for flow, _ in self.active}
        for flow, gives in active:
            if flow.number not in before and (self.away or flow.number not in self.known):
                self.known[flow.number] = flow.token(gives)
            if flow.number not in before:
                flow.activate(gives)
        self.gave |= {flow.number: gives for flow, gives in active}
        self.active = active
        for thing, crossing in enumerate(self.crossings):
            for bell, end in crossing.bells:
                there = (thing, end) in self.seats
                if self.away or there:  # others of home's may have another line
                    bell.relay(None if there == self.away else self.relay)

    def news(self, now: float) -> Iterator[Frame]:
        """What was written on this side since the last call: tokens are read in the order opposite to that in which
        flows are sent, so that whoever sees one has what was written before it.
        """
        self.now = now
        found = []
        for flow, gives in reversed(self.active):
            found.append((flow, gives, flow.token(gives)))
            memory_barrier()
        for flow, gives, token in reversed(found):
            yield from self._changed(flow, gives, token)

    def _changed(self, flow: Flow, gives: bool, token: Any) -> Iterator[Frame]:
        if token != (old := self.known.get(flow.number)):
            for piece in flow.pieces(old, token, gives):
                yield flow.number, *piece
            self.known[flow.number] = token

    def land(self, frame: Frame) -> None:
        """A frame that came."""
        number, part, i, arrays = frame
        if part == FILE:
            self._write(i, arrays)
        else:
            flow = self.flows[number]
            # what a reader sent before its writer was there too may have been on its way
            flow.land(part, i, arrays, self.gave.get(number, self.gives(flow)))

    def close(self) -> None:
        """away: end every wait."""
        for crossing in self.crossings:
            crossing.close()

    # ---- files

    def parts(self, thing: int, end: End) -> Iterator[Piece]:
        """The part of a checkpoint that a worker has written. Others that are whole go along: those of actors whose
        memory is here, which has their answers.
        """
        if not self.away:  # of an answer that is passed on: they stay at home
            return
        name = self.names.get((thing, end), "")
        for where in ("workers/[a-z]*", "agents/*/[a-z]*", f"replay/{name}/[0-9a-z]*"):
            yield from self.files(f"checkpoints/.partial-*/{where}", name)

    def files(self, pattern: str, name: str = "", keep: bool = False) -> Iterator[Piece]:
        """Files of this side, in pieces. They go: whose they are. keep: they stay here."""
        root = self.root or Path()
        for path in sorted(root.glob(pattern)) if self.root is not None else ():
            there = str(path.relative_to(root))
            if path.is_file() and ACCEPTED.fullmatch(there) and there not in self._copied:
                yield from file_pieces(path, there, name)
                if keep:
                    self._copied.add(there)
                else:
                    path.unlink(missing_ok=True)

    def _write(self, i: int, arrays: list[np.ndarray]) -> None:
        """A piece of a file. What can't be written at home is left out, and its owner's answer says so; elsewhere it is
        needed.
        """
        name, owner = (bytes(x).decode() for x in arrays[:2])
        if self.root is None or not ACCEPTED.fullmatch(name):
            raise ValueError(f"a file named {name!r}")
        path = self.root / name
        temporary = path.with_name(f".{path.name}.line")
        try:
            if i == FIRST and not _is_late(self.root, name):
                temporary.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_bytes(arrays[2].data)
            elif i == LAST:
                os.replace(temporary, path)
            else:
                with open(temporary, "r+b") as file:
                    file.seek(0, os.SEEK_END)
                    file.write(arrays[2].data)
        except FileNotFoundError:  # the checkpoint was made meanwhile, without this part, or it was not written
            pass
        except OSError as e:
            temporary.unlink(missing_ok=True)
            if self.away:
                raise
            why = f"{name} could not be written: {e.strerror or e}"
            self.unwritten |= dict.fromkeys((owner, Path(name).stem), why)  # who sends it, and whose it is
            self.warn(why)

    warn: Callable[[str], None] = staticmethod(lambda text: None)  # is told of a file that could not be written

    def failed(self, thing: int, end: End) -> bool:
        """Whether a worker's part could not be written here; once."""
        return not self.away and self.unwritten.pop(self.names.get((thing, end), ""), None) is not None


_WORKERS = r"workers/[a-z_]+-\d+\.(safetensors|json)|replay/[a-z_]+-\d+/\w[\w.-]*\.(safetensors|json)"
_WEIGHTS = r"agents/\d+/[a-z]+\.(safetensors|json)"
ACCEPTED = re.compile(
    rf"checkpoints/\.partial-\d{{12}}/({_WORKERS}|{_WEIGHTS})|resume/({_WORKERS}|{_WEIGHTS}|replay/[\w-]+/replay\.json)"
    rf"|checkpoints/champion-[\w-]+/({_WEIGHTS}|manifest\.json)|past_agents/\d+-\d+\.safetensors"
    r"|resume/workers/stream-\d+\.json|resume/manifest\.json|not-finite-[\d-]+\.safetensors",
    re.ASCII,
)
ACTORS = re.compile(r"checkpoints/\.partial-(\d{12})/workers/(?!replica-)")
CHUNK = 1 << 20  # bytes of a file at once
FIRST, MORE, LAST = range(3)  # pieces of a file


def file_pieces(path: Path, name: str, owner: str = "") -> Iterator[Piece]:
    """A file, by its name over there."""
    about, i = [np.frombuffer(text.encode(), np.uint8) for text in (name, owner)], FIRST
    with open(path, "rb") as file:
        while (data := file.read(CHUNK)) or i == FIRST:
            yield FILE, i, [*about, np.frombuffer(data, np.uint8)]
            i = MORE
    yield FILE, LAST, about


def _is_late(root: Path, name: str) -> bool:
    """Whether the checkpoint was made without this part. Only actors' parts are not waited for; the checkpoint of the
    beginning has none, and update 0 may be saved again.
    """
    found = ACTORS.match(name)
    made = (root / "checkpoints").glob(f"{found[1]}*") if found else ()
    return any(not path.name.endswith("-steps-0") for path in made)


class Crossing(NamedTuple):
    """What of an object crosses: its flows, in the order in which they are sent, and its bells by who waits there."""

    flows: Sequence[Flow]
    bells: Sequence[tuple[Semaphore, End]] = ()
    close: Callable[[], None] = lambda: None


def common_crossing(thing: SharedObject) -> Crossing | None:
    """Of what every worker has; None: it is something else."""
    if isinstance(thing, RunControl):
        return Crossing([Cells(MAIN, [EVERYONE], [thing._flags, thing.dismissed])])
    if isinstance(thing, Hyperparameters):
        flows: list[Flow] = [Values(thing)]
        if "remaining" in thing.configured:
            at = thing._names["remaining"]
            flows.append(Cells(End("learner", 0), [MAIN], [thing._values[at : at + 1]]))
        return Crossing(flows)
    if isinstance(thing, Counters):
        return Crossing([*(CounterFlow(thing, row) for row in range(thing.workers)), Progress(thing)])
    return None

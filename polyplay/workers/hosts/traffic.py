"""Traffic of a line (connection between the main machine and another machine): files, and the data of flows.

A flow carries one writer's data to its readers. If writer and readers are on two other machines, the main machine
forwards the data. This module imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyplay.core import platform
from polyplay.core.flows import ANY, EVERYONE, EVERYWHERE, FILE, Crossing, End, Flow, Piece
from polyplay.core.shared_memory import SharedObject, memory_barrier

Frame = tuple[int, int, int, list[np.ndarray]]  # number of a flow, and a Piece of the flow's data


@dataclass(frozen=True)
class RemoteSeat:
    """A worker on another machine. `held`: its shared objects, as pairs (number of the object, argument's name)."""

    role: str
    index: int
    row: int
    held: tuple[tuple[int, str], ...] = ()
    kinds: tuple[str, ...] = ()  # further names of the worker in flows: learner, judge

    @property
    def name(self) -> str:
        """Return the worker's name in the file names of checkpoints."""
        return f"{self.role}-{self.index}"

    def keys(self) -> set[tuple[int, End]]:
        """Return the worker's names in flows, as (number of a shared object, End). Number -1 stands for all objects."""
        own = {(thing, End(end, self.index)) for thing, end in self.held}
        return own | {(-1, End("row", self.row))} | {(-1, End(kind, self.index)) for kind in self.kinds}


class Traffic:
    """One end of a line (connection of two machines), with the flows of all shared objects.

    `away`: whether this end is on the other machine. False: the end is on the main machine.
    `relay`: number of the line's bell (semaphore), which wakes this end.
    `root`: folder of files.
    `warn`: function that is called if a file can't be written.
    """

    def __init__(
        self,
        things: Sequence[SharedObject],
        away: bool,
        relay: int,
        root: Path | None,
        warn: Callable[[str], None] = lambda text: None,
    ):
        self.away, self.relay, self.root, self.warn, self.now, self.landed = away, relay, root, warn, 0.0, 0
        self.crossings = [thing.crossing() or Crossing() for thing in things]
        self.flows = [flow for crossing in self.crossings for flow in crossing.flows]
        for i, crossing in enumerate(self.crossings):
            for flow in crossing.flows:
                flow.traffic, flow.thing = self, i
        for number, flow in enumerate(self.flows):
            flow.number = number
        self.seats: dict[tuple[int, End], str] = {}  # workers on the other machine (not the main one); their names
        self.active: list[tuple[Flow, bool]] = []  # flows that this side sends; whether the flow's writer is here
        self.gave: dict[int, bool] = {}  # number of a flow → whether the writer was here when the flow last crossed
        self.known: dict[int, Any] = {}  # number of a flow → token of the state that the other side has
        self.unwritten = set[str]()  # workers whose part of a checkpoint could not be written here
        self._copied = set[str]()  # names of files that were sent and kept here

    def _there(self, flow: Flow, end: End, seats: Collection[tuple[int, End]] | None = None) -> bool:
        """Tell whether `end` is in `seats`, by default the workers on the other machine."""
        seats, thing = self.seats if seats is None else seats, -1 if end.name in EVERYWHERE else flow.thing
        if end.i == ANY:
            return any(i == thing and other.name == end.name for i, other in seats)
        return (thing, end) in seats

    def gives(self, flow: Flow) -> bool:
        """Tell whether the writer of a flow is on this side of the line."""
        return self._there(flow, flow.writer) == self.away

    def _sends(self, flow: Flow) -> bool:
        everyone, writer = EVERYONE in flow.readers, self._there(flow, flow.writer)
        there = everyone or any(self._there(flow, end) for end in flow.readers)
        elsewhere = everyone or any(end.i == ANY or not self._there(flow, end) for end in flow.readers)
        if flow.both:
            return elsewhere if writer else there
        return elsewhere and writer if self.away else there and not writer

    def begin(self, seat: RemoteSeat) -> Iterator[Frame]:
        """Yield the data that a worker on the other machine needs to start, and other new data. Main machine only."""
        keys, sending, found = seat.keys(), {flow.number: gives for flow, gives in self.active}, []
        for flow in reversed(self.flows):
            writes = self._there(flow, flow.writer, keys)
            reads = not self.seats and EVERYONE in flow.readers
            reads = reads or any(self._there(flow, end, keys) for end in flow.readers)
            # if reader and writer are both on the other machine, the reader gets all data there
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
        """Record that a worker is on the other machine. Both ends of the line call this method."""
        self.seats = self.seats | dict.fromkeys(seat.keys(), seat.name)
        active = [(flow, self.gives(flow)) for flow in self.flows if self._sends(flow)]
        before = {flow.number for flow, _ in self.active}
        for flow, gives in active:
            if flow.number not in before:
                if self.away or flow.number not in self.known:
                    self.known[flow.number] = flow.token(gives)
                flow.activate(gives)
        self.gave |= {flow.number: gives for flow, gives in active}
        self.active = active
        for thing, crossing in enumerate(self.crossings):
            for bell, end in crossing.bells:
                there = (thing, end) in self.seats
                if self.away or there:  # on the main machine, the bell of another worker may belong to another line
                    bell.relay(None if there == self.away else self.relay)

    def news(self, now: float) -> Iterator[Frame]:
        """Yield the changes on this side since the last call. `now`: the time, for flows that send at a low rate."""
        self.now = now
        found = []
        # read states in reverse order of sending, so that a reader of a change has all earlier changes of other flows
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
        """Write received data to its shared object, or to its file."""
        number, part, i, arrays = frame
        if part == FILE:
            self._write(i, arrays)
        else:
            flow = self.flows[number]
            # the other side may have sent this before the flow's writer moved there
            flow.land(part, i, arrays, self.gave.get(number, self.gives(flow)))

    def close(self) -> None:
        """End all waits for data on this machine. The main machine does not call this method."""
        for crossing in self.crossings:
            crossing.close()

    # ---- files

    def parts(self, thing: int, end: End) -> Iterator[Piece]:
        """Yield a worker's part of a checkpoint. For a replay worker, add the complete parts of its actors."""
        if self.away:  # the main machine sends no parts: it has these files already
            name = self.seats.get((thing, end), "")
            for where in ("workers/[a-z]*", "agents/*/[a-z]*", f"replay/{name}/[0-9a-z]*"):
                yield from self.files(f"checkpoints/.partial-*/{where}", name=name)

    def files(self, pattern: str, keep: bool = False, name: str = "") -> Iterator[Piece]:
        """Yield the files that match `pattern`, in pieces. Then delete the files.
        `keep`: send each file only once, instead of deleting it. `name`: the worker that owns the files.
        """
        for path in sorted(self.root.glob(pattern)) if self.root is not None else ():
            there = str(path.relative_to(self.root or ""))
            if path.is_file() and ACCEPTED.fullmatch(there) and there not in self._copied:
                yield from file_pieces(path, there, name)
                if keep:
                    self._copied.add(there)
                else:
                    path.unlink(missing_ok=True)

    def _write(self, at: int, arrays: list[np.ndarray]) -> None:
        """Write a piece of a file. If this fails on the main machine, warn and mark the checkpoint part as failed."""
        name, owner = (bytes(x).decode() for x in arrays[:2])
        if self.root is None or not ACCEPTED.fullmatch(name):
            raise ValueError(f"a file named {name!r}")
        path = self.root / name
        temporary = path.with_name(f".{path.name}.line")
        try:
            if at == WHOLE:
                platform.replace(temporary, path)
            elif at or not _is_late(self.root, name):
                if not at:
                    temporary.parent.mkdir(parents=True, exist_ok=True)
                with open(temporary, "r+b" if at else "wb") as file:
                    file.seek(at)
                    file.write(arrays[2].data)
        except FileNotFoundError:  # the checkpoint was completed without this part, or an earlier piece was not written
            pass
        except OSError as e:
            temporary.unlink(missing_ok=True)
            if self.away:  # workers here need every file
                raise
            self.unwritten |= {owner, Path(name).stem}  # sender of the file, and worker in the file's name
            self.warn(f"{name} could not be written: {e.strerror or e}")

    def failed(self, thing: int, end: End) -> bool:
        """Tell whether a worker's checkpoint part could not be written here, since the last call for this worker."""
        failed = not self.away and (name := self.seats.get((thing, end))) in self.unwritten
        if failed:
            self.unwritten.discard(name)
        return failed


_WORKERS = r"workers/[a-z_]+-\d+\.(safetensors|json)|replay/[a-z_]+-\d+/\w[\w.-]*\.(safetensors|json)"
_WEIGHTS = r"agents/\d+/[a-z]+\.(safetensors|json)"
ACCEPTED = re.compile(
    rf"checkpoints/\.partial-\d{{12}}/({_WORKERS}|{_WEIGHTS})|resume/({_WORKERS}|{_WEIGHTS}|replay/[\w-]+/replay\.json)"
    rf"|checkpoints/champion-[\w-]+/({_WEIGHTS}|manifest\.json)|past_agents/\d+-\d+\.safetensors"
    r"|resume/workers/stream-\d+\.json|resume/manifest\.json|not-finite-[\d-]+\.safetensors",
    re.ASCII,
)
ACTORS = re.compile(r"checkpoints/\.partial-(\d{12})/workers/(?!replica-)")
CHUNK = 1 << 20  # bytes of a piece of a file
WHOLE = -1  # offset of the last piece, which has no data and completes the file


def file_pieces(path: Path, name: str, owner: str = "") -> Iterator[Piece]:
    """Yield a file in pieces. `name`: the file's name on the other side. `owner`: the worker that has the file."""
    about = [np.frombuffer(text.encode(), np.uint8) for text in (name, owner)]
    for at in range(0, max(1, path.stat().st_size), CHUNK):
        yield FILE, at, [*about, np.fromfile(path, np.uint8, CHUNK, offset=at)]
    yield FILE, WHOLE, about


def _is_late(root: Path, name: str) -> bool:
    """Tell whether a file belongs to a checkpoint that is already complete. Only files of actors can be late."""
    found = ACTORS.match(name)
    made = (root / "checkpoints").glob(f"{found[1]}*") if found else ()
    # a checkpoint after 0 steps has no files of actors, and may be saved again
    return any(not path.name.endswith("-steps-0") for path in made)

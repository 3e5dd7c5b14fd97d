"""Traffic of a line: the flows of shared objects that cross it, and files. Imports no torch.

The main machine has a line to each other machine, and forwards data from one machine to readers on another.
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

Frame = tuple[int, int, int, list[np.ndarray]]  # number of the flow, and a piece of it


@dataclass(frozen=True)
class RemoteSeat:
    """Worker on another machine. held: (number, end) of each shared object that the worker holds."""

    role: str
    index: int
    row: int
    held: tuple[tuple[int, str], ...] = ()
    kinds: tuple[str, ...] = ()  # of EVERYWHERE, besides row

    @property
    def name(self) -> str:
        """Return the worker's name in files of a checkpoint."""
        return f"{self.role}-{self.index}"

    def keys(self) -> set[tuple[int, End]]:
        """Return the worker's ends, each with the number of its object."""
        own = {(thing, End(end, self.index)) for thing, end in self.held}
        return own | {(-1, End("row", self.row))} | {(-1, End(kind, self.index)) for kind in self.kinds}


class Traffic:
    """End of a line, with all flows of the objects that cross it. away: this end is on the other machine. relay: number
    of the line, whose bell rings for this side. root: folder of files. warn: called if a file can't be written.
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
        self.seats: dict[tuple[int, End], str] = {}  # ends on the other machine, and their workers' names
        self.active: list[tuple[Flow, bool]] = []  # flows that this side sends, and whether the writer is here
        self.gave: dict[int, bool] = {}  # number of a flow that crosses, or once did → whether its writer was here
        self.known: dict[int, Any] = {}  # tokens that the other side has
        self.unwritten = set[str]()  # workers whose part of a checkpoint could not be written here
        self._copied = set[str]()  # files that were sent but stay here

    def _there(self, flow: Flow, end: End, seats: Collection[tuple[int, End]] | None = None) -> bool:
        """Tell whether an end is on the other machine or, if `seats` are given, is one of these."""
        seats, thing = self.seats if seats is None else seats, -1 if end.name in EVERYWHERE else flow.thing
        if end.i == ANY:
            return any(i == thing and other.name == end.name for i, other in seats)
        return (thing, end) in seats

    def gives(self, flow: Flow) -> bool:
        """Tell whether the writer is on this side."""
        return self._there(flow, flow.writer) == self.away

    def _sends(self, flow: Flow) -> bool:
        everyone, writer = EVERYONE in flow.readers, self._there(flow, flow.writer)
        there = everyone or any(self._there(flow, end) for end in flow.readers)
        elsewhere = everyone or any(end.i == ANY or not self._there(flow, end) for end in flow.readers)
        if flow.both:
            return elsewhere if writer else there
        return elsewhere and writer if self.away else there and not writer

    def begin(self, seat: RemoteSeat) -> Iterator[Frame]:
        """Yield the flows that a worker on the other machine needs to start, and all other changes. Only at home."""
        keys, sending, found = seat.keys(), {flow.number: gives for flow, gives in self.active}, []
        for flow in reversed(self.flows):
            writes = self._there(flow, flow.writer, keys)
            reads = not self.seats and EVERYONE in flow.readers
            reads = reads or any(self._there(flow, end, keys) for end in flow.readers)
            # two ends on the other machine get all data from each other
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
        """Note on both sides that a worker is on the other machine."""
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
                if self.away or there:  # at home, another bell may belong to another line
                    bell.relay(None if there == self.away else self.relay)

    def news(self, now: float) -> Iterator[Frame]:
        """Yield this side's changes since the last call. Tokens are read in the reverse order of sending. So a reader
        of one flow has all earlier writes to other flows.
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
        """Write a received frame."""
        number, part, i, arrays = frame
        if part == FILE:
            self._write(i, arrays)
        else:
            flow = self.flows[number]
            # a reader may have sent this frame before the flow's writer moved there
            flow.land(part, i, arrays, self.gave.get(number, self.gives(flow)))

    def close(self) -> None:
        """End every wait on this machine, the other one."""
        for crossing in self.crossings:
            crossing.close()

    # ---- files

    def parts(self, thing: int, end: End) -> Iterator[Piece]:
        """Yield a worker's part of a checkpoint, with the complete parts of actors that answer a replay worker here."""
        if self.away:  # a forwarded answer has no parts: these are at home already
            name = self.seats.get((thing, end), "")
            for where in ("workers/[a-z]*", "agents/*/[a-z]*", f"replay/{name}/[0-9a-z]*"):
                yield from self.files(f"checkpoints/.partial-*/{where}", name=name)

    def files(self, pattern: str, keep: bool = False, name: str = "") -> Iterator[Piece]:
        """Yield files of this side in pieces. keep: send files once, and keep them. name: of the files' worker."""
        for path in sorted(self.root.glob(pattern)) if self.root is not None else ():
            there = str(path.relative_to(self.root or ""))
            if path.is_file() and ACCEPTED.fullmatch(there) and there not in self._copied:
                yield from file_pieces(path, there, name)
                if keep:
                    self._copied.add(there)
                else:
                    path.unlink(missing_ok=True)

    def _write(self, at: int, arrays: list[np.ndarray]) -> None:
        """Write a piece of a file. If the main machine can't write it, the answer to its owner reports a failed part.
        Another machine needs every file, so it raises OSError.
        """
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
        except FileNotFoundError:  # the checkpoint was completed without this part, or the piece was not written
            pass
        except OSError as e:
            temporary.unlink(missing_ok=True)
            if self.away:
                raise
            self.unwritten |= {owner, Path(name).stem}  # the sender, and the owner
            self.warn(f"{name} could not be written: {e.strerror or e}")

    def failed(self, thing: int, end: End) -> bool:
        """Tell whether a worker's part could not be written here; True only once."""
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
CHUNK = 1 << 20  # bytes of a file at once
WHOLE = -1  # as the offset of a piece: the file is complete


def file_pieces(path: Path, name: str, owner: str = "") -> Iterator[Piece]:
    """Yield a file in pieces, with its name on the other side."""
    about = [np.frombuffer(text.encode(), np.uint8) for text in (name, owner)]
    for at in range(0, max(1, path.stat().st_size), CHUNK):
        yield FILE, at, [*about, np.fromfile(path, np.uint8, CHUNK, offset=at)]
    yield FILE, WHOLE, about


def _is_late(root: Path, name: str) -> bool:
    """Tell whether the checkpoint was completed without this part. Only actors' parts can be late. The initial
    checkpoint has no such parts; it does not count, because update 0 may be saved again.
    """
    found = ACTORS.match(name)
    made = (root / "checkpoints").glob(f"{found[1]}*") if found else ()
    return any(not path.name.endswith("-steps-0") for path in made)

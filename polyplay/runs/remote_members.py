"""Train members of a population on other machines. Each machine gets a copy of the member's run directory, and sends
back the changes.

The directory on the main machine is authoritative: every session starts from the newest checkpoint in this directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from polyplay.core import checkpoint, machine, platform
from polyplay.core.errors import UserError, WorkerLost
from polyplay.core.files import Row, write_json
from polyplay.runs import directory as run_files
from polyplay.runs import load
from polyplay.runs.options import RunOptions
from polyplay.runs.session import RunSegment
from polyplay.workers.hosts.cluster import Cluster, MachineInfo, RayActor, needed_versions

if TYPE_CHECKING:
    from polyplay.runs.population import MemberRunner

# A directory is sent in pieces: bytes at an offset of a file. Of a growing log only the new end is sent. Other files
# are sent whole and renamed on arrival.


# (name, offset, bytes, name to rename the file to after its last piece); offset -1: bytes are a checkpoint's manifest
Piece = tuple[str, int, np.ndarray, str]
PIECE = 4 << 20  # bytes per piece, and per remote call
TAIL = 64  # bytes at the old end of a file; if they changed, the file was rewritten
SAVED = "checkpoints"


class DirectoryChanges:
    """Finds the changes in a run's directory since the last call of `pieces`. known: checkpoints that are not sent."""

    def __init__(self, directory: Path, known: Iterable[Path] = ()):
        self.directory = directory
        self.known: dict[str, Any] = {path.name: path.stat().st_ino for path in known}
        self.saved = bool(checkpoint.everything(directory))  # logs are not sent before a checkpoint

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of changed files, then the pieces of new checkpoints."""
        saved = sorted(
            p for p in (self.directory / SAVED).glob("[!.]*") if p.is_dir() and not p.match(f"{checkpoint.UNUSED}*")
        )
        for path in _plain_files(self.directory):
            if self.saved or path.suffix != ".jsonl":
                with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                    yield from self._file(file, str(path.relative_to(self.directory)))
        for found in saved:
            with contextlib.suppress(FileNotFoundError, ValueError):  # the run removed an old checkpoint
                if self.known.get(found.name) != (mark := found.stat().st_ino):
                    self.known[found.name] = mark
                    yield from _checkpoint(found)
                    self.saved = True

    def _file(self, file: BinaryIO, name: str) -> Iterator[Piece]:
        fd, found = file.fileno(), os.fstat(file.fileno())
        size, mark = found.st_size, (found.st_ino, found.st_mtime_ns, found.st_size)
        before, begin, tail = self.known.get(name, ((), 0, b""))
        if mark == before:
            return
        grows = name.endswith(".jsonl") or "tfevents" in name
        if not grows or size < begin or platform.pread(fd, len(tail), begin - len(tail)) != tail:
            begin = 0
        self.known[name] = mark, size, platform.pread(fd, min(TAIL, size), max(0, size - TAIL))
        yield from _read(fd, begin, size, *((name, "") if begin else (f".coming-{name.replace('/', '-')}", name)))


def _plain_files(directory: Path) -> list[Path]:
    found = list[Path]()
    for root, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if name != SAVED and not name.startswith(".")]
        found += [Path(root, name) for name in names if not name.startswith(".")]
    return sorted(found)


def _checkpoint(found: Path) -> Iterator[Piece]:
    """Yield the pieces of a checkpoint."""
    # The run may remove the checkpoint at any time, so all files are opened first.
    about, root = checkpoint.manifest(found), f"{SAVED}/.partial-{found.name}"
    with contextlib.ExitStack() as opened:
        files = {name: opened.enter_context((found / name).open("rb")) for name in about["files"]}
        for name, file in files.items():
            yield from _read(file.fileno(), 0, os.fstat(file.fileno()).st_size, f"{root}/{name}", "")
    yield root, -1, np.frombuffer(json.dumps(about).encode(), np.uint8), f"{SAVED}/{found.name}"


def _read(fd: int, begin: int, end: int, name: str, final: str) -> Iterator[Piece]:
    for at in range(begin, max(end, begin + 1), PIECE):
        data = np.frombuffer(platform.pread(fd, min(PIECE, end - at), at), np.uint8)
        yield name, at, data, final if at + PIECE >= end else ""


def take_pieces(pieces: Iterator[Piece]) -> list[Piece]:
    """Return the next pieces for one remote call. They have at least PIECE bytes in total, unless fewer are left."""
    found, size = list[Piece](), 0
    for piece in pieces:
        found.append(piece)
        size += len(piece[2])
        if size >= PIECE:
            break
    return found


def put_piece(directory: Path, piece: Piece) -> None:
    """Write a piece that another machine sent into this machine's copy of the directory. Raises OSError."""
    name, offset, data, final = piece
    path = directory / name
    if offset < 0:
        return _put_checkpoint(path, directory / final, json.loads(data.tobytes()))
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(data.data)
        file.truncate()
        if name.startswith(SAVED):
            os.fsync(file.fileno())
    if final:
        (directory / final).parent.mkdir(parents=True, exist_ok=True)
        platform.replace(path, directory / final)


def _put_checkpoint(root: Path, final: Path, about: Row) -> None:
    root.mkdir(parents=True, exist_ok=True)  # absent if the checkpoint has no files
    checkpoint.finish(root, final, about["update"], about["counters"])
    if checkpoint.manifest(final)["files"] != about["files"]:
        shutil.rmtree(final)
        raise OSError(f"{final} arrived damaged")


# ------------------------------------------------------------------------------------------ on the other machine

SILENT = 60.0  # seconds without a poll by the main machine after which a session ends
# command that removes a folder once the process that holds the pipe has ended in any way; workers may still write files
SWEEP = 'trap "" HUP INT TERM; read x; for i in 1 2 3; do sleep 0.5; rm -rf "$0"; done'


class MemberActor:
    """Ray actor (remote process) that runs sessions of members one by one, in a temporary folder."""

    def __init__(self) -> None:
        import torch  # noqa: F401 - takes seconds, in which the actor cannot answer calls

        self.root = Path(tempfile.mkdtemp(prefix="polyplay-member-"))
        words = ["setsid", "--fork", "sh", "-c", SWEEP, str(self.root)]  # setsid: it outlives this process
        self.sweeper = subprocess.Popen(words, stdin=subprocess.PIPE)

    def versions(self) -> dict[str, str]:
        return needed_versions()

    def give(self, name: str, pieces: list[Piece]) -> None:
        """Write pieces of a member's directory. name: path of this directory relative to the population's directory."""
        for piece in pieces:
            put_piece(self.root / name, piece)

    def begin(self, name: str, runner: MemberRunner, m: Row, until: int, share: tuple[int, int]) -> None:
        """Start a session. All its pieces have arrived. share: (index of its share of the cores, cores per share)."""
        self.directory = self.root / name
        (saved := self.directory / SAVED).mkdir(parents=True, exist_ok=True)
        self.changes = DirectoryChanges(self.directory, saved.iterdir())
        deque(self.changes.pieces(), maxlen=0)  # the main machine already has these
        self.coming: Iterator[Piece] = iter(())
        self.said, self.ended = list[tuple[str, str]](), ("", "")
        self.why, self.heard = "", time.monotonic()
        given = replace(runner, directory=self.root), m, until, share
        self.thread = threading.Thread(target=self._run, args=given, daemon=True)
        self.thread.start()

    def _run(self, runner: MemberRunner, m: Row, until: int, share: tuple[int, int]) -> None:
        shares = max(1, machine.cores() // share[1])
        machine.take_share(share[0] % shares, shares)
        try:
            session = runner(m, until, self._stopping, lambda kind, text: self.said.append((kind, text)))
            self.ended = session.ended, session.why
        except UserError as e:
            self.ended = "user", str(e)
        except BaseException as e:
            self.ended = "lost", str(e) or type(e).__name__

    def _stopping(self) -> str:
        silent = time.monotonic() - self.heard > SILENT
        return self.why or "the main machine stopped polling" * silent

    def poll(self, why: str) -> tuple[list[Piece], list[tuple[str, str]], tuple[str, str]]:
        """Return (pieces of changed files, messages, (how the session ended, why)). The last pair is ("", "") until the
        session has ended and all changes are sent.

        `why`: reason to end the session now, or "".
        """
        self.why, self.heard = why, time.monotonic()
        over = not self.thread.is_alive()
        batch = take_pieces(self.coming)
        if not batch:
            self.coming = self.changes.pieces()
            batch = take_pieces(self.coming)
        said = [self.said.pop(0) for _ in range(len(self.said))]
        if batch or not over:
            return batch, said, ("", "")
        shutil.rmtree(self.directory, ignore_errors=True)
        return [], said, self.ended


# ------------------------------------------------------------------------------------------- on the main machine

LOOK = 0.5  # seconds between polls
SHUNNED = 30.0  # after a machine lost a session, other free machines are preferred for this number of seconds


@dataclass(eq=False)
class MemberSeat:
    """CPU cores of a machine that are reserved for one actor (process that runs sessions)."""

    info: MachineInfo
    group: str  # name of the machine; "" if machines share cores
    number: int  # index of the actor's share of the cores
    free: int  # cores that were free when the machine was chosen
    actor: RayActor | None = None


class RemoteMembers:
    """Callable that runs sessions of members on the machines of a cluster. cores: number of CPU cores per session."""

    def __init__(self, cluster: Cluster, cores: int, options: RunOptions):
        self.cluster, self.cores, self.options = cluster, cores, options
        self.seats, self.idle = list[MemberSeat](), list[MemberSeat]()  # idle: with torch loaded, for later sessions
        self.shunned: dict[str, float] = {}  # machine → time until which others are preferred
        self.lock = threading.Lock()

    def __call__(
        self, runner: MemberRunner, directory: Path, m: Row, part: RunSegment, say: Callable[[str, str], None]
    ) -> tuple[str, str]:
        """Run a session. Return (how it ended, why). Raises UserError, OSError, or WorkerLost if a retry may help."""
        assert part.stopping is not None
        directory.mkdir(parents=True, exist_ok=True)
        try:
            with closing(run_files.DirectoryLock(directory)), self._seat(part.stopping) as seat:
                ended, why = self._session(seat, runner, directory, m, part, say)
        except WorkerLost:
            if why := part.stopping():
                return "stopped", why
            raise
        why = why.removeprefix(f"member {m['member']:02d}: ")
        if ended == "user":
            raise UserError(f"on {seat.info.name}: {why}")
        return ended, why

    def _session(
        self,
        seat: MemberSeat,
        runner: MemberRunner,
        home: Path,
        m: Row,
        part: RunSegment,
        say: Callable[[str, str], None],
    ) -> tuple[str, str]:
        assert part.stopping is not None
        name = str(home.relative_to(runner.directory))
        pieces = _needed(home, lambda text: say("caution", f"member {m['member']:02d}: {text}")).pieces()
        while batch := take_pieces(pieces):
            _ask(seat, "give", name, batch)
        if why := part.stopping():
            return "stopped", why
        there = replace(runner, elsewhere=None)
        _ask(seat, "begin", name, there, m, part.until, (seat.number, self.cores))
        while True:
            batch, said, ended = _ask(seat, "poll", part.stopping(), timeout=self.options.host_timeout)
            for piece in batch:
                put_piece(home, piece)
                self._arrived(runner, home, piece[3])
            for words in said:
                say(*words)
            if ended[0]:
                return ended
            if not batch:
                time.sleep(LOOK)

    def _arrived(self, runner: MemberRunner, home: Path, name: str) -> None:
        """Process a file or checkpoint that arrived: check and sign config.json, and remove outdated checkpoints."""
        if name == "config.json":
            contents = run_files.read_config(home)
            run_files.check_named(home, contents, run_files.read_config(runner.directory, population=True))
            contents["options"]["run"], contents["signature"] = str(home), run_files.signature(contents)
            write_json(home / name, contents)
        elif name.startswith(f"{SAVED}/{checkpoint.BEST}"):
            for path in (home / SAVED).glob(f"{checkpoint.BEST}*"):
                if path != home / name:
                    shutil.rmtree(path, ignore_errors=True)
        elif name.startswith(f"{SAVED}/"):
            checkpoint.prune(home, runner.options.keep)

    # ------------------------------------------------------------------------------------------ places for actors

    @contextlib.contextmanager
    def _seat(self, stopping: Callable[[], str]) -> Iterator[MemberSeat]:
        """Provide an actor on a machine. If the context raises, the actor ends."""
        seat = self._take(stopping)
        try:
            if seat.actor is None:
                seat.actor = self.cluster.start_actor(seat.info, MemberActor, min(self.cores, seat.free))
                seat.info.check_versions(_ask(seat, "versions"))
            yield seat
        except BaseException:
            with self.lock:
                self.seats.remove(seat)
                self.shunned[seat.info.name] = time.monotonic() + SHUNNED
            if seat.actor is not None:
                seat.actor.end()
            raise
        with self.lock:
            self.idle.append(seat)

    def _take(self, stopping: Callable[[], str]) -> MemberSeat:
        until = time.monotonic() + self.options.host_wait
        while not stopping():
            with self.lock:
                if found := self.idle.pop() if self.idle else self._choose():
                    return found
            if time.monotonic() > until:
                many = f"no machine has joined for {self.options.host_wait:g} s"
                raise UserError(f"--hosts: {many}; `polyplay resume` continues on the machines available then")
            time.sleep(LOOK)
        raise WorkerLost("it is ending")

    def _choose(self) -> MemberSeat | None:
        """Choose the machine for an actor, or return None if the cluster has no other machine. Prefer machines with
        enough free cores, then machines without a recent loss of a session, then machines with more free cores.
        """
        used, now = Counter(seat.info.name for seat in self.seats), time.monotonic()
        infos = self.cluster.machines()
        free = {info.name: info.cores - self.cores * used[info.name] for info in infos}

        def rank(info: MachineInfo) -> tuple[bool, bool, int]:
            return free[info.name] >= self.cores, self.shunned.get(info.name, 0.0) < now, free[info.name]

        best = max(infos, key=rank, default=None)
        if best is None:
            return None
        group = best.name if self.cluster.own_cores else ""
        taken = {seat.number for seat in self.seats if seat.group == group}
        seat = MemberSeat(best, group, next(i for i in count() if i not in taken), max(0, free[best.name]))
        self.seats.append(seat)
        return seat


def _ask(seat: MemberSeat, name: str, *given: Any, **how: float) -> Any:
    """Call the actor's method `name`, and return its answer. Raises WorkerLost if the actor does not answer."""
    assert seat.actor is not None
    try:
        return seat.actor.call(name, *given, **how)
    except UserError as e:
        raise WorkerLost(str(e).removeprefix("--hosts: ").partition(". ")[0]) from None  # without Ray's details


def _needed(home: Path, warn: Callable[[str], None]) -> DirectoryChanges:
    """Return the changes to send for a session: all files except older or damaged checkpoints. Raises UserError."""
    if not (home / "config.json").exists():
        return DirectoryChanges(home)
    found, _ = load.find_checkpoint(home, warn)
    checkpoint.remove_partial(home)
    checkpoint.set_aside(home, found)
    others = (path for path in (home / SAVED).glob("[!.]*") if path != found)
    return DirectoryChanges(home, [path for path in others if checkpoint.update_of(path) >= 0 or checkpoint.flaw(path)])

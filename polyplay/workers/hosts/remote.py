"""Crew of another machine: a Ray actor (remote object) that starts workers there, and forwards their messages.

The messages go through a line (connection to the main machine). If the main process closes the line, dies or is silent,
the crew and its workers end.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import queue
import shutil
import socket
import tempfile
import threading
import time
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from polyplay.core import checkpoint, platform, processes
from polyplay.core.machine import cores
from polyplay.core.processes import ForkedProcess
from polyplay.core.shared_memory import Semaphores, SharedBlock, SharedObject
from polyplay.core.worker import RunControl
from polyplay.workers.hosts.cluster import OPENING, needed_versions
from polyplay.workers.hosts.line import ENDED, LOAD, SIGNAL, START, WORD, LineEnd, LineLost, accept_lines
from polyplay.workers.hosts.traffic import RemoteSeat, Traffic
from polyplay.workers.process import SERVER, Call, CloudPickled, as_process, prepare
from polyplay.workers.role import Role


def needed_files(saved: Path | None, directory: Path, role: Role, seat: RemoteSeat) -> list[tuple[str, Path]]:
    """Return the files that a worker on another machine needs to start, as pairs (name there, path here). `saved`:
    checkpoint from which the run resumes, or None.
    """
    found: list[tuple[str, Path]] = []
    if "judge" in seat.kinds:  # AlphaGo Zero's judge needs the champion's weights
        newest = checkpoint.champions(directory)[-1:]
        found += [(str(x.relative_to(directory)), x) for root in newest for x in sorted(root.rglob("*.*"))]
    if saved is not None:
        patterns = [f"workers/{seat.name}.*", "workers/stream-*", f"replay/{seat.name}/*", "manifest.json"]
        # the index of any replay shows a worker that replays were saved
        patterns += ["replay/*/replay.json", *(["agents/*/*"] if role.learner else [])]
        paths = sorted({path for pattern in patterns for path in saved.glob(pattern)})
        found += [(f"resume/{path.relative_to(saved)}", path) for path in paths]
    return found


# A block of shared memory has a twin on each other machine. Pickles contain the block's number; flows copy the data.


TwinNumbers = dict[int, tuple[int, SharedBlock]]  # id of a block of this process → (number of its twins, block)


class _TwinPickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, numbers: TwinNumbers):
        super().__init__(file)
        self.numbers, self.found = numbers, list[SharedObject]()

    def _number(self, block: SharedBlock) -> int:
        return self.numbers.setdefault(id(block), (len(self.numbers) + 1, block))[0]  # the entry keeps the block alive

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Semaphores):
            self.found.append(obj)
            return _semaphores, (self._number(obj.block), obj.n)
        if isinstance(obj, SharedBlock):
            return _block, (self._number(obj), obj.nbytes)
        if isinstance(obj, SharedObject):
            self.found.append(obj)
        if isinstance(obj, RunControl):  # only learner 0 and the evaluator use the weights in `show`; both are here
            return RunControl.__new__, (RunControl,), obj.__getstate__() | {"show": None}
        return super().reducer_override(obj)


def dump(value: object, numbers: TwinNumbers) -> tuple[bytes, list[SharedObject]]:
    """Pickle a value for another machine. Return the bytes, and the shared objects in the value."""
    file = io.BytesIO()
    pickler = _TwinPickler(file, numbers)
    pickler.dump(value)
    return file.getvalue(), pickler.found


_twins: dict[int, Any] = {}  # this machine's twins of blocks and semaphores, by number
BELLS = 0  # number of the line's own semaphore here, which rings if a worker elsewhere is to be woken


def _block(number: int, nbytes: int) -> SharedBlock:
    return _twins.setdefault(number, SharedBlock(nbytes))


def _semaphores(number: int, n: int) -> Semaphores:
    if number not in _twins:
        _twins[number] = Semaphores(n)
        _twins[number].relay_by(_twins[BELLS])
    return _twins[number]


FOLDER = "polyplay-crew-"  # followed by the crew's process ID
PACE = 0.5  # seconds between two checks whether Ray's process still runs here
MOST_TEXT = 60_000  # most characters of a message


class RemoteCrew:
    """Crew of one machine, which starts workers there. `key`: the run's key, which the other end of the line must know.
    `address`: where the crew listens. `timeout`: seconds until a silent main process counts as lost.
    """

    def __init__(self, key: bytes, address: str, timeout: float):
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets this variable for its own workers
        platform.be_normal()  # Ray starts its workers with niceness 15
        sweep()
        self.root, self.bells = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-")), Semaphores(1)
        _twins[BELLS] = self.bells
        self.traffic = Traffic([], away=True, relay=0, root=self.root)
        self.calls: dict[int, Call] = {}
        self.workers: dict[int, ForkedProcess] = {}
        self.listener, self.proven = accept_lines(address, key, timeout)
        threading.Thread(target=self._watch, args=(os.getppid(),), daemon=True).start()
        prepare()
        SERVER.ensure_running()

    def _watch(self, raylet: int) -> None:
        """End the crew if Ray's process on this machine (the raylet) is killed. Ray would not end the crew."""
        while os.getppid() == raylet:
            time.sleep(PACE)
        with contextlib.suppress(AttributeError):  # there may be no line yet
            self.line.end("its raylet is gone", tell=True)  # first, so that workers are lost together
        self.end()
        os._exit(0)

    def about(self) -> dict[str, Any]:
        """Return what the main process must know about this machine: address, cores, memory, GPUs and versions."""
        where = {"address": self.listener.getsockname()[:2], "pid": os.getpid(), "folder": str(self.root)}
        has = {"memory": psutil.virtual_memory().total, "gpus": platform.nvidia_gpus() or 0}
        return {**where, "cores": cores(), **has, "versions": needed_versions()}

    def open(self, data: bytes) -> None:
        """Make this machine's copies (twins) of the run's shared objects. `data`: the pickled objects."""
        self.traffic = Traffic(cloudpickle.loads(data), away=True, relay=0, root=self.root)

    def give(self, number: int, data: bytes) -> str:
        """Keep a worker's pickled call until the worker starts. Return an error text if unpickling fails, else ""."""
        try:
            call: Call = cloudpickle.loads(data)
        except ImportError as e:
            return f"no module {e.name!r} to start with" if e.name else str(e)
        call.ctx.directory = self.root
        if call.ctx.resume is not None:
            call.ctx.resume = self.root / "resume"
        self.calls[number] = call
        return ""

    def serve(self) -> None:
        """Exchange data with the main process until the line ends. Then end this process."""
        with contextlib.suppress(LineLost, OSError, queue.Empty):
            line, on = self.proven.get(timeout=OPENING), {START: self._start, SIGNAL: self._signal}
            self.listener.shutdown(socket.SHUT_RDWR)  # no other connection is expected
            self.line = LineEnd(line, self.traffic, self.bells[0], on)
            psutil.cpu_percent()  # the first result is meaningless
            self.line.each_beat = lambda: self.line.tell(LOAD, load())
            self.line.run()
        self.end()
        os._exit(0)  # Ray's own exit would wait for a lost head node

    # ------------------------------------------------------------------------------------------ workers

    def _start(self, value: dict[str, Any]) -> None:
        """Start a worker whose files and data have arrived. The line's receiving thread calls this method."""
        call = self.calls.pop(number := value.pop("number"))
        self.traffic.sit(RemoteSeat(**{**value, "held": tuple((i, end) for i, end in value["held"])}))
        pipe, theirs = connection.Pipe(duplex=False)
        runs = ForkedProcess(SERVER, as_process, (CloudPickled(call), theirs), f"{call.ctx.role} {call.ctx.index}")
        try:
            runs.start()
        except OSError as e:
            self.line.tell(ENDED, {"number": number, "how": f"could not be started: {e}"})
            return
        theirs.close()
        self.workers[number] = runs
        threading.Thread(target=self._attend, args=(number, runs, pipe), daemon=True).start()

    def _signal(self, value: dict[str, Any]) -> None:
        if (runs := self.workers.get(value["number"])) is not None and runs.pid:
            with contextlib.suppress(OSError):
                os.kill(runs.pid, value["signal"])

    def _attend(self, number: int, runs: ForkedProcess, pipe: connection.Connection) -> None:
        """In a thread, forward a worker's messages and report its end. If this thread fails, end the line."""
        try:
            while pipe.poll() or runs.sentinel not in connection.wait([pipe, runs.sentinel]) or pipe.poll():
                try:
                    kind, text = pipe.recv()
                except (EOFError, OSError):
                    break
                value = {"number": number, "kind": kind, "text": text[-MOST_TEXT:]}
                self.line.request(partial(self._pass_on, WORD, value, last=kind == "done"))
            runs.join()
            del self.workers[number]
            ended = {"number": number, "how": runs.ending(), "code": runs.exitcode}
            self.line.request(partial(self._pass_on, ENDED, ended, last=True))
        except Exception as e:
            self.line.end(f"the thread of a worker failed: {e!r}", tell=True)

    def _pass_on(self, kind: str, value: dict[str, Any], last: bool) -> None:
        """Send a worker's message, in the line's sending thread. `last`: send all data of this machine before it."""
        if last:
            self.line.line.send(self.traffic.news(math.inf))  # includes data that is not due yet
        self.line.line.send((0, *piece) for piece in self.traffic.files("not-finite-*"))  # messages may name files
        self.line.tell(kind, value)

    def end(self) -> None:
        """End all workers on this machine, and remove the crew's folder."""
        self.traffic.close()
        for runs in list(self.workers.values()):  # a copy: another thread removes workers that have ended
            with contextlib.suppress(Exception):
                runs.end()
        processes.end_descendants()
        shutil.rmtree(self.root, ignore_errors=True)
        sweep()


def load() -> dict[str, float]:
    """Return the load of this machine's processor and memory, each from 0 to 1."""
    return {"cpu": psutil.cpu_percent() / 100.0, "memory": psutil.virtual_memory().percent / 100.0}


def sweep() -> None:
    """Remove the folders that killed crews left on this machine."""
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        owner = path.name.removeprefix(FOLDER).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(path, ignore_errors=True)

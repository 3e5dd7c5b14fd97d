"""The agent of another machine: it starts workers there, passes on what they say, and is one end of the link.

It ends, and with it all that it started, when the link ends: when the main process closes it, dies, or is silent.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import shutil
import socket
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from polyplay.core import processes
from polyplay.core.errors import UserError
from polyplay.core.machine import cores
from polyplay.core.processes import ForkedProcess
from polyplay.core.shared_memory import Semaphores, SharedBlock, SharedObject
from polyplay.core.worker import RunControl
from polyplay.workers.hosts.engines import OPENING, needed_versions
from polyplay.workers.hosts.link import ENDED, LOAD, RESUMED, SIGNAL, START, WORD, Link, LinkLost, prove
from polyplay.workers.hosts.mirrors import CountersMirror, MachineCopy, seat_of
from polyplay.workers.process import SERVER, Call, CloudPickled, as_process, prepare
from polyplay.workers.role import Role

# What is taken along to other machines: the modules of a folder (`--ship DIR`), and files of a checkpoint.


MOST = 64 * 2**20  # bytes


def pack_modules(directory: Path) -> bytes:
    """What is in a folder but for caches and what is hidden. Raises UserError."""
    if not directory.is_dir():
        raise UserError(f"--ship: {directory} given, but there is no such folder")
    file, size = io.BytesIO(), 0

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal size
        name = Path(member.name).name
        if name.startswith(".") or name == "__pycache__" or not (member.isdir() or member.isfile()):
            return None
        size += member.size
        if size > MOST:
            raise UserError(f"--ship: {directory} has more than {MOST >> 20} MB; name a folder with modules alone")
        return member

    with tarfile.open(fileobj=file, mode="w") as archive:
        for path in sorted(directory.iterdir()):
            archive.add(path, path.name, filter=wanted)
    return file.getvalue()


def unpack_modules(data: bytes, directory: Path) -> None:
    """From now on modules are looked for there first."""
    directory.mkdir()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(directory, filter="data")
    sys.path.insert(0, str(directory))


def needed_files(saved: Path, role: Role, index: int) -> list[tuple[str, Path]]:
    """Of a checkpoint, by their names in it: what this worker begins with."""
    patterns = [f"workers/{role.name}-{index}.*", "workers/stream-*", f"replay/{role.name}-{index}/*"]
    if role.learner:  # the indices of other replays say that these were saved
        patterns += ["agents/*/*", "replay/*/replay.json"]
    found = sorted({path for pattern in patterns for path in saved.glob(pattern)})
    return [(str(path.relative_to(saved)), path) for path in found]


# What is pickled here for another machine has there twins of its blocks, of zeros; mirrors copy what is written. Calls
# travel through the engine that started the agent, never through a link.


TwinNumbers = dict[int, tuple[int, SharedBlock]]  # of this process's blocks that have twins, by identity


class _TwinPickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, numbers: TwinNumbers):
        super().__init__(file)
        self.numbers, self.found = numbers, list[SharedObject]()

    def _number(self, block: SharedBlock) -> int:
        return self.numbers.setdefault(id(block), (len(self.numbers), block))[0]  # it is kept, and so is its identity

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Semaphores):
            self.found.append(obj)
            return _semaphores, (self._number(obj.block), obj.n)
        if isinstance(obj, SharedBlock):
            return _block, (self._number(obj), obj.nbytes)
        if isinstance(obj, SharedObject):
            self.found.append(obj)
        if isinstance(obj, RunControl):  # learner 0 and the evaluator are here, and alone use these weights
            return RunControl.__new__, (RunControl,), obj.__getstate__() | {"show": None}
        return super().reducer_override(obj)


def dump(value: object, numbers: TwinNumbers) -> tuple[bytes, list[SharedObject]]:
    """For another machine; and the shared objects in it."""
    file = io.BytesIO()
    pickler = _TwinPickler(file, numbers)
    pickler.dump(value)
    return file.getvalue(), pickler.found


load = cloudpickle.loads  # of an agent, by which its workers' calls come

# ------------------------------------------------------------------------------------------- of an agent's process

_blocks: dict[int, SharedBlock] = {}
_made: dict[int, Semaphores] = {}
_relays: list[Semaphores] = []  # one: of this machine's end of its link


def relay_by(links: Semaphores) -> None:
    """This machine's end of its link, which gets the tokens of whoever waits elsewhere."""
    _relays[:] = [links]


def _block(number: int, nbytes: int) -> SharedBlock:
    block = _blocks.get(number)
    if block is None:
        block = _blocks[number] = SharedBlock(nbytes)
    return block


def _semaphores(number: int, n: int) -> Semaphores:
    if number not in _made:
        _made[number] = made = Semaphores(n)
        made.relays = _relays[0]
        made._attach()
    return _made[number]


LOOK = 0.05  # seconds between two looks whether one that connected is the main process
MOST_TEXT = 60_000  # letters of one word


class MachineAgent:
    """give: calls, by the engine. run: until the link ends. root: a folder of its own."""

    def __init__(self, secret: bytes, address: str, timeout: float, root: Path):
        self.secret, self.timeout, self.root = secret, timeout, root
        self.bells = Semaphores(1)
        relay_by(self.bells)
        self.mirrors: list[MachineCopy] = []
        self.calls: dict[int, Call | str] = {}  # or why there is none
        self.workers: dict[int, ForkedProcess] = {}
        self._files = threading.Lock()
        self.listener = socket.create_server((address, 0))
        self.stop: Callable[[], None] = self.listener.close  # who started it is gone
        prepare()
        SERVER.ensure_running()

    def about(self) -> dict[str, Any]:
        """What the main process must know of it."""
        address, port = self.listener.getsockname()[:2]
        where = {"address": address, "port": port, "pid": os.getpid(), "folder": str(self.root)}
        gpus = Path("/proc/driver/nvidia/gpus")
        has = {"memory": psutil.virtual_memory().total, "gpus": len(list(gpus.iterdir())) if gpus.is_dir() else 0}
        return {**where, "cores": cores(), **has, "versions": needed_versions()}

    def give(self, number: int, data: bytes) -> None:
        """A worker's call; number 0: the mirrors."""
        try:
            value = load(data)
        except ImportError as e:
            if not number:
                raise
            self.calls[number] = f"no module {e.name!r} to begin with" if e.name else str(e)
            return
        if number:
            ctx = value.ctx
            ctx.directory = self.root
            if ctx.resume is not None:
                ctx.resume = self.root / "resume"
            self.calls[number] = value
            return
        self.mirrors = value
        for mirror in self.mirrors:
            mirror.away = True
            mirror.prepare()

    def run(self) -> None:
        try:
            self.link = Link(self._accept(), self.mirrors, self.bells[0], self.timeout, self.root)
            self.stop = partial(self.link.end, "")
            self.link.accepts = RESUMED
            self.link.before, self.link.each_beat, self.link.echoes = self._send_part, self._send_load, True
            psutil.cpu_percent()  # what it says first means nothing
            self.link.on |= {START: self._start, SIGNAL: self._signal}
            self.link.run()
        except (LinkLost, OSError):
            pass
        finally:
            self._end()

    def _accept(self) -> socket.socket:
        """The main process: strangers are sent away. Each that connects has a thread, so none waits for another."""
        until, proven = time.monotonic() + OPENING, queue.SimpleQueue[socket.socket]()
        self.listener.settimeout(LOOK)
        while proven.empty():
            try:
                sock, _ = self.listener.accept()
            except TimeoutError:
                if time.monotonic() > until:
                    raise
                continue
            threading.Thread(target=_let_in, args=(sock, self.secret, proven), daemon=True).start()
        self.listener.close()
        return proven.get()

    # ------------------------------------------------------------------------------------------ workers

    def _start(self, value: dict[str, Any]) -> None:
        """In the receiving thread: after all that the seat begins with has come."""
        number, seat = int(value["number"]), seat_of(value)
        until = time.monotonic() + self.timeout
        while number not in self.calls and time.monotonic() < until:
            time.sleep(0.002)  # it comes another way
        call = self.calls.pop(number)
        if isinstance(call, str):
            self.link.send_json(WORD, {"number": number, "kind": "user", "text": call})
            return
        for i, end in value["mirrors"]:
            self.mirrors[i].sit(replace(seat, end=end))
        pipe, theirs = connection.Pipe(duplex=False)
        runs = ForkedProcess(SERVER, as_process, (CloudPickled(call), theirs), f"{call.ctx.role} {call.ctx.index}")
        try:
            runs.start()
        except OSError as e:
            self.link.send_json(ENDED, {"number": number, "how": f"could not be started: {e}"})
            return
        theirs.close()
        self.workers[number] = runs
        threading.Thread(target=self._attend, args=(number, runs, pipe), daemon=True).start()

    def _signal(self, value: dict[str, Any]) -> None:
        runs = self.workers.get(int(value["number"]))
        if runs is not None and runs.pid:
            with contextlib.suppress(OSError):
                os.kill(runs.pid, int(value["signal"]))

    def _send_part(self, mirror: MachineCopy, part: int, i: int) -> None:
        """Files of a checkpoint, and counters, go before the mark that says they are written. Others that are whole go
        along: of actors whose memory is here, which has their answers.
        """
        if (name := mirror.answers(part, i)) is None:
            return
        if not isinstance(mirror, CountersMirror):
            self.link.flush_counters()
        for where in ("workers/[a-z]*", "agents/*/[a-z]*", f"replay/{name}/[0-9a-z]*"):
            self._send_files(f"checkpoints/.partial-*/{where}")

    def _send_files(self, pattern: str) -> None:
        with self._files:  # the threads of workers and the link's send them
            for path in sorted(self.root.glob(pattern)):
                self.link.send_file(str(path.relative_to(self.root)), path)
                path.unlink()

    def _send_load(self) -> None:
        load = {"cpu": psutil.cpu_percent() / 100.0, "memory": psutil.virtual_memory().percent / 100.0}
        self.link.send_json(LOAD, load)

    def _attend(self, number: int, runs: ForkedProcess, pipe: connection.Connection) -> None:
        """The thread of a worker, which passes on what it says and how it ends. The link ends where that fails."""
        try:
            while pipe.poll() or runs.sentinel not in connection.wait([pipe, runs.sentinel]) or pipe.poll():
                try:
                    kind, text = pipe.recv()
                except (EOFError, OSError):
                    break
                self._pass_on(number, kind, text)
            runs.join()
            del self.workers[number]
            self._send_last(ENDED, {"number": number, "how": runs.ending(), "code": runs.exitcode})
        except LinkLost:
            pass
        except Exception as e:
            self.link.end(f"the thread of a worker failed: {e!r}")

    def _pass_on(self, number: int, kind: str, text: str) -> None:
        self._send_files("not-finite-*")  # that the word is about
        value = {"number": number, "kind": kind, "text": text[-MOST_TEXT:]}
        send = self._send_last if kind == "done" else self.link.send_json
        send(WORD, value)

    def _send_last(self, kind: int, value: dict[str, Any]) -> None:
        """After all that the worker wrote."""

        def send() -> None:
            self.link.flush()
            self.link.send_json(kind, value)

        self.link.request(send)

    def _end(self) -> None:
        for mirror in self.mirrors:
            mirror.close()
        for runs in list(self.workers.values()):  # another thread takes out those that have ended
            with contextlib.suppress(Exception):
                runs.end()
        processes.end_descendants()
        shutil.rmtree(self.root, ignore_errors=True)


def _let_in(sock: socket.socket, secret: bytes, proven: queue.SimpleQueue[socket.socket]) -> None:
    """Close the connection of a stranger."""
    sock.settimeout(OPENING)
    try:
        prove(sock, secret, away=True)
    except (LinkLost, OSError):
        sock.close()
    else:
        proven.put(sock)


def main() -> None:
    """An agent whose calls come by its standard input (agent_process), until that closes or the link ends."""
    processes.ignore()  # also those sent to the whole process group: the main process decides
    processes.set_title("agent")
    out = os.fdopen(os.dup(1), "wb")  # closes with this process
    os.dup2(2, 1)  # what anybody prints is no answer
    config = json.loads(_message()[1])
    root = Path(tempfile.mkdtemp(prefix="polyplay-"))
    if config["ship"]:
        unpack_modules(_message()[1], root / "shipped")
    agent = MachineAgent(bytes.fromhex(config["secret"]), config["address"], config["timeout"], root)
    out.write(json.dumps(agent.about()).encode() + b"\n")
    out.flush()
    agent.give(*_message())
    threading.Thread(target=_take_calls, args=(agent,), daemon=True).start()
    agent.run()
    os._exit(0)  # a thread still reads


def _message() -> tuple[int, bytes]:
    """Raises EOFError."""
    head = sys.stdin.buffer.read(16)
    if len(head) < 16:
        raise EOFError
    number, n = int.from_bytes(head[:8], "little"), int.from_bytes(head[8:], "little")
    return number, sys.stdin.buffer.read(n)


def _take_calls(agent: MachineAgent) -> None:
    try:
        with contextlib.suppress(EOFError):
            while True:
                agent.give(*_message())
    finally:
        agent.stop()

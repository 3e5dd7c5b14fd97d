"""The main process's side of several machines: which there are, who works where, who is lost."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Pipe, connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyplay.common.errors import UserError
from polyplay.common.files import JsonLines
from polyplay.common.forkserver import ForkedProcess
from polyplay.common.semaphores import Semaphores
from polyplay.common.shared_memory import SharedObject
from polyplay.workers.hosts import twins
from polyplay.workers.hosts.engine import LINKS, AgentHandle, Engine, MachineInfo
from polyplay.workers.hosts.home_end import run_home_end
from polyplay.workers.hosts.mirrors import Mirror, mirror_of
from polyplay.workers.hosts.remote_worker import RemoteWorker
from polyplay.workers.process import SERVER, Call
from polyplay.workers.sizing import threads_of

if TYPE_CHECKING:
    from polyplay.workers.crew import Crew
    from polyplay.workers.role import Role

FILE = "hosts.jsonl"


@dataclass(eq=False)
class Machine:
    """One that has an open agent."""

    info: MachineInfo
    handle: AgentHandle
    link: ForkedProcess
    pipe: Connection
    workers: dict[int, RemoteWorker] = field(default_factory=dict)  # by number
    seats: set[tuple[str, int]] = field(default_factory=set)  # that began there
    threads: dict[int, int] = field(default_factory=dict)  # compute threads, by number
    lost: str | None = None
    stats: dict[str, Any] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return self.info.cores - sum(self.threads.values())


class Fleet:
    """timeout: seconds after which a silent machine is lost."""

    def __init__(self, engine: Engine, timeout: float = 5.0):
        self.engine, self.timeout = engine, timeout
        self.opened: list[Machine] = []
        self.secret = secrets.token_bytes(32)
        self._numbers, self._next, self._links = twins.TwinNumbers(), 0, 0
        self._mirrors: list[Mirror] = []
        self._of_roles: dict[str, list[int]] = {}  # mirrors, by role
        self._woken, self._wake = os.pipe()
        self._lock, self._closing = threading.Lock(), False

    # ------------------------------------------------------------------------------------------ wiring

    def goes(self, role: Role) -> bool:
        """Whether a role's workers go elsewhere: who only acts does."""
        return role.envs is not None and role.spec is None and role.on == "process" and role.on_loss == "replace"

    def prepare(self, crew: Crew) -> None:
        """Find what crosses machines, and open an agent on each. Raises UserError."""
        assert crew.counters is not None
        self.directory = Path(str(crew.directory))
        self._log, self.bells = JsonLines(self.directory / FILE), Semaphores(LINKS)
        things: list[SharedObject] = []
        roles = [role for role in crew.roles if self.goes(role)]
        if not roles:
            raise UserError("--hosts: given, but no role of this system can work on another machine: leave it out")
        for role in roles:
            _, found = twins.dump((role.arguments(0), crew.control, crew.counters, role.size), self._numbers)
            crossing = [x for x in found if not isinstance(x, Semaphores)]
            for thing in crossing:
                if not any(thing is other for other in things):
                    things.append(thing)
                    self._mirrors.append(self._mirror(thing, role))
            indices = [i for i, x in enumerate(things) if any(x is y for y in crossing)]
            self._of_roles[role.name] = indices
            for bells in (x for x in found if isinstance(x, Semaphores)):
                bells.relay_by(self.bells)
        for thing in things:
            thing._attach()
        order = sorted(range(len(things)), key=lambda i: self._mirrors[i].last)
        self._mirrors = [self._mirrors[i] for i in order]
        self._of_roles = {name: [order.index(i) for i in own] for name, own in self._of_roles.items()}
        threads = sum(role.n * threads_of(role, crew) for role in roles)
        self._threads = -(-threads // max(1, len(self.engine.machines())))
        self._open_all()
        threading.Thread(target=self._listen, daemon=True).start()

    @staticmethod
    def _mirror(thing: SharedObject, role: Role) -> Mirror:
        mirror = mirror_of(thing)
        if mirror is None:
            what = f"{type(thing).__name__} of {role.name}"
            raise UserError(f"--hosts: {what} given, which does not cross machines; leave --hosts out")
        return mirror

    def _open_all(self) -> None:
        """All agents at the same time."""
        infos = self.engine.machines()
        errors: list[UserError] = []

        def open_one(info: MachineInfo) -> None:
            try:
                self._open(info)
            except UserError as e:
                errors.append(e)

        threads = [threading.Thread(target=open_one, args=(info,)) for info in infos]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            self.close()
            raise errors[0]

    def _open(self, info: MachineInfo) -> Machine:
        config = {"secret": self.secret.hex(), "address": info.address, "timeout": self.timeout}
        config["threads"] = self._threads
        handle = self.engine.open(info, config)
        with self._lock:
            handle.give(0, twins.dump(self._mirrors, self._numbers)[0])
            number, self._links = self._links, self._links + 1
        pipe, theirs = Pipe()
        given = theirs, handle.about, self.secret, self.timeout, self._mirrors, self.bells, number, self.directory
        link = ForkedProcess(SERVER, run_home_end, given, f"link {info.name}")
        link.start()
        theirs.close()
        machine = Machine(info, handle, link, pipe)
        self._note("opened", machine, address=info.address, cores=info.cores)
        self.opened.append(machine)
        return machine

    # ----------------------------------------------------------------------------------------- workers

    def place(self, role: Role) -> Machine | None:
        """Where the next worker of a role goes: the machine with most free cores. None: there is none."""
        there = [machine for machine in self.opened if machine.lost is None]
        return max(there, key=lambda m: m.free, default=None)

    def start(self, machine: Machine, role: Role, call: Call) -> RemoteWorker:
        ctx = call[0]
        self._next += 1
        number = self._next

        def send_signal(n: int) -> None:
            self._command(machine, "signal", {"number": number, "signal": n})

        worker = RemoteWorker(machine.info.name, send_signal)
        with self._lock:
            machine.workers[number] = worker
            machine.threads[number] = ctx.threads
        machine.handle.give(number, twins.dump(call, self._numbers)[0])
        seat = role.name, ctx.index
        files = []
        if ctx.resume is not None:
            found = Path(ctx.resume).glob("workers/*")
            files = [p for p in found if p.name.startswith((f"{role.name}-{ctx.index}.", "stream-"))]
        value = {"number": number, "index": ctx.index, "row": ctx.row, "mirrors": self._of_roles[role.name]}
        self._command(machine, "seat", {**value, "files": files, "fresh": seat not in machine.seats})
        machine.seats.add(seat)
        if machine.lost is not None:
            worker.ended(machine.lost, None)
        return worker

    def _command(self, machine: Machine, kind: str, value: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it is lost, and about to be found so
            machine.pipe.send((kind, value))

    # ------------------------------------------------------------------------------------- what happens

    def _listen(self) -> None:
        """The thread that hears what links say."""
        while True:
            pipes = {m.pipe: m for m in self.opened if m.lost is None}
            for ready in connection.wait([*pipes, self._woken], 1.0):
                if ready == self._woken:
                    return
                self._hear(pipes[ready])  # type: ignore[index]

    def _hear(self, machine: Machine) -> None:
        try:
            kind, value = machine.pipe.recv()
        except (EOFError, OSError):
            self._lose(machine, f"the process of its link {machine.link.ending()}")
            return
        if kind == "lost":
            self._lose(machine, value)
        elif kind == "stats":
            machine.stats = value
        elif (worker := machine.workers.get(value["number"])) is not None:
            if kind == "word":
                worker.say(value["kind"], value["text"])
            elif kind == "ended":
                with self._lock:
                    del machine.workers[value["number"]], machine.threads[value["number"]]
                worker.ended(value["how"], value.get("code"))

    def _lose(self, machine: Machine, why: str) -> None:
        """A machine is gone, and all that worked there."""
        machine.link.kill()  # from now on nothing of it is written here
        machine.link.join()
        with self._lock:
            machine.lost = f"is lost with machine {machine.info.name}: {why}"
            workers = list(machine.workers.values())
        self._note("lost", machine, why=why, workers=len(workers))
        for i, worker in enumerate(workers):
            worker.lost_first = i == 0
            worker.ended(machine.lost, None)
        if not self._closing:
            threading.Thread(target=machine.handle.end, daemon=True).start()

    def _note(self, event: str, machine: Machine, **more: Any) -> None:
        if self._closing:
            return
        self._log.write({"time": time.time(), "event": event, "machine": machine.info.name, **more})

    def close(self) -> None:
        """End all agents, and everything on their machines."""
        self._closing = True
        with contextlib.suppress(OSError):
            os.write(self._wake, b".")
        live = [machine for machine in self.opened if machine.lost is None]
        for machine in live:
            self._command(machine, "close", {})
        for machine in live:
            machine.link.join(1.0)
            machine.link.kill()
            machine.link.join()
        ends: list[Callable[[], None]] = [machine.handle.end for machine in live]
        threads = [threading.Thread(target=end) for end in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5.0)
        self.engine.close()

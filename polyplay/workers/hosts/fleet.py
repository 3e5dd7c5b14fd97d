"""Fleet: the other machines of a run and the workers there, as the main process controls them."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyplay.core import platform, processes
from polyplay.core.errors import UserError
from polyplay.core.files import JsonLines, LogWrites
from polyplay.core.shared_memory import Semaphores, SharedObject
from polyplay.weights.params import AgentParams, Params
from polyplay.weights.update import AllReduce
from polyplay.workers.hosts.cluster import MACHINES, Cluster, MachineInfo, RayActor
from polyplay.workers.hosts.line import ENDED, LOAD, SIGNAL, START, WORD, LineEnd, LineLost, connect
from polyplay.workers.hosts.places import PlaceRule, Places, Spot
from polyplay.workers.hosts.remote import RemoteCrew, TwinNumbers, dump, needed_files
from polyplay.workers.hosts.traffic import RemoteSeat, Traffic, file_pieces
from polyplay.workers.process import Call
from polyplay.workers.role import Role
from polyplay.workers.sizing import threads_of

if TYPE_CHECKING:
    from polyplay.workers.crew import Crew


class RemoteWorker(processes.Handle):
    """A worker on another machine. `pipe`: receives the worker's messages, which come over a line (connection)."""

    apart = True

    def __init__(self, machine: str, send_signal: Callable[[int], None]):
        self.machine, self.signal = machine, send_signal
        self.pipe, self._words = connection.Pipe(duplex=False)
        self._ended, self._end = os.pipe()
        self.exitcode: int | None = None
        self._how, self._over = "", threading.Event()

    def log(self, kind: str, text: str) -> None:
        with contextlib.suppress(OSError):
            self._words.send((kind, text))

    def ended(self, how: str, code: int | None) -> None:
        if not self._over.is_set():
            self._how, self.exitcode = how, processes.LOST if code is None else code
            self._words.close()
            os.close(self._end)
            self._over.set()

    sentinel = property(lambda self: self._ended)

    def is_alive(self) -> bool:
        return not self._over.is_set()

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)

    def kill(self) -> None:
        self.signal(platform.KILL)

    def ending(self) -> str:
        return self._how or processes.ending_text(self.exitcode)

    def close(self) -> None:
        os.close(self._ended)


@dataclass(eq=False, kw_only=True)
class Machine(Spot):
    """Another machine of the run, as the main process sees it. A crew is the process that starts workers there."""

    actor: RayActor
    about: dict[str, Any]  # result of RemoteCrew.about
    end: LineEnd
    number: int  # number of its line
    thread: threading.Thread | None = None  # serves its line
    workers: dict[int, RemoteWorker] = field(default_factory=dict)  # by the worker's number
    seats: set[tuple[str, int]] = field(default_factory=set)  # role and index of workers that started there
    load: dict[str, Any] = field(default_factory=dict)  # newest load of its processor and memory
    reported: tuple[float, int, int] = field(default_factory=lambda: (time.monotonic(), 0, 0))  # time; bytes in, out

    def report(self) -> dict[str, float]:
        """Return the machine's metrics: its load, and the traffic in MB/s since the last report."""
        line, (then, *old) = self.end.line, self.reported
        self.reported = now = (time.monotonic(), line.received, line.sent)
        mb_in, mb_out = (round((x - y) / (now[0] - then) / 1e6, 4) for x, y in zip(now[1:], old, strict=True))
        trip, load = round(self.end.round_trip * 1e3, 3), {key: round(x, 3) for key, x in self.load.items()}
        return {"workers": len(self.workers), "mb_in": mb_in, "mb_out": mb_out, "round_trip_ms": trip, **load}

    def seat(self, seat: RemoteSeat, number: int, files: Sequence[tuple[str, Path]]) -> None:
        """Send the request to start a worker, after its files and data. The line's sending thread calls this method.
        `files`: pairs (name on the other machine, path here).
        """
        for name, path in files:
            self.end.line.send((0, *piece) for piece in file_pieces(path, name))
        if (seat.role, seat.index) not in self.seats:
            self.end.line.send(self.end.traffic.begin(seat))
            self.seats.add((seat.role, seat.index))
        self.end.traffic.sit(seat)
        self.end.tell(START, {"number": number, **vars(seat)})


def roles_elsewhere(places: Places, crew: Crew) -> list[Role]:
    """Return the roles that have workers on other machines. Raises UserError if no role has such workers."""
    if roles := [role for role in crew.roles if places.goes(role)]:
        return roles
    text = "all workers of this run stay here, by --place or because only one worker acts and learns"
    raise UserError(f"--hosts: {text}; remove --hosts, or use --replicas 2 or more if the system has replicas")


def plan_in_words(places: Places, crew: Crew, infos: Sequence[MachineInfo]) -> dict[str, str]:
    """Return each machine's planned workers as text, the main machine first. Raises UserError if a rule doesn't fit."""
    threads = {role.name: threads_of(role, crew) for role in crew.roles}
    places.check(infos, threads)
    cores = {info.name: f" ({info.cores} core{'s' * (info.cores != 1)})" for info in infos}
    return {name + cores.get(name, ""): _in_words(seats) for name, seats in places.plan(infos, threads).items()}


def check_memory(places: Places, crew: Crew, machines: Sequence[Machine]) -> None:
    """Check that each machine has enough memory for the replay buffers planned on it. Raises UserError."""
    threads = {role.name: threads_of(role, crew) for role in crew.roles}
    plan = places.plan([machine.info for machine in machines], threads)
    sizes = {r.name: r.held_replay.bytes(batches="out" not in r.holds) for r in crew.roles if r.held_replay is not None}
    for machine in machines:
        held = [sizes[name] for name, _ in plan[machine.info.name] if name in sizes]
        if sum(held) > (has := machine.about["memory"]):
            what = f"{machine.info.name} has {has / 1e9:.1f} GB of memory, {len(held)} replays there take"
            raise UserError(f"--hosts: {what} {sum(held) / 1e9:.1f} GB; lower --capacity, or use more machines")


def _in_words(seats: list[tuple[str, int]]) -> str:
    """Return workers as text, such as "act 0-3 5, learn 0". `seats`: role and index of each worker."""
    words = dict[str, list[str]]()
    for (name, _), run in itertools.groupby(enumerate(seats), lambda found: (found[1][0], found[1][1] - found[0])):
        indices = [index for _, (_, index) in run]
        text = f"{indices[0]}-{indices[-1]}" if len(indices) > 1 else f"{indices[0]}"
        words.setdefault(name, []).append(text)
    return ", ".join(f"{name} {' '.join(runs)}" for name, runs in words.items()) or "no worker"


FILE = "hosts.jsonl"
PATIENCE = 3.0  # crews wait this many timeouts for this process, because its threads may pause for seconds
TURN = 5e-4  # seconds of a thread's turn in Python; short, so that lines wait little while this process reports games
LOOK, PARTING = 1.0, 5.0  # seconds between two checks for new machines; most seconds until crews end
FIRST, HOUR = 2.0, 3600.0  # seconds until the first retry after a failure, doubled for each next retry; longest wait


class Fleet:
    """The other machines of a run. `timeout`: seconds of silence until a machine is lost. `rules`: parsed `--place`."""

    def __init__(self, cluster: Cluster, timeout: float = 5.0, rules: Sequence[PlaceRule] = ()):
        self.cluster, self.timeout, self.places = cluster, timeout, Places(rules)
        self.opened: list[Machine] = []
        self.key = secrets.token_bytes(32)
        self._numbers, self._next, self._lines = TwinNumbers(), itertools.count(1), set(range(MACHINES))  # unused lines
        self._things: list[SharedObject] = []  # shared objects that cross machines, in sending order
        self._held: dict[str, tuple[tuple[int, str], ...]] = {}  # role → (number, argument's name) of its objects
        self._threads = list[threading.Thread]()  # threads that open machines, and end leftover crews
        self._failures: dict[MachineInfo, tuple[int, float]] = {}  # machine → number of failures, time of the next try
        self._opening, self._seated = set[str](), set[tuple[str, int]]()  # machines being opened; workers placed before
        self._messages = queue.SimpleQueue[str]()
        self._lock, self._closing, self._over = threading.Lock(), False, threading.Event()

    # ------------------------------------------------------------------------------------------ wiring

    def is_away(self, role: Role, index: int) -> bool:
        """Tell whether a worker runs on another machine."""
        return self.places.is_away(role, index, len(self.opened))

    def _there(self) -> list[MachineInfo]:
        return [m.info for m in self.opened if m.lost is None] or self.cluster.machines()

    def cores(self, role: str = "") -> int:
        """Return the cores of all other machines, or of those for `role`. Return 0 for a cluster on this machine."""
        infos = self.places.machines_for(role, self._there()) if role else self._there()
        return sum(info.cores for info in infos) if self.cluster.own_cores else 0

    def elsewhere(self, roles: Sequence[Role]) -> dict[str, int]:
        """Return for each role how many of its workers run on other machines."""
        n = len(self.opened or self._there())
        return {role.name: sum(self.places.is_away(role, i, n) for i in range(role.n)) for role in roles}

    def check(self, crew: Crew) -> str:
        """Return the plan of machines and workers as text. Start nothing. Raises UserError if the plan cannot work."""
        infos, self.places.roles = self.cluster.machines(), crew.roles
        planned = plan_in_words(self.places, crew, infos)
        for role in roles_elsewhere(self.places, crew):
            if role.learns_own and crew.placement.device_for(role, 0) != "cpu":
                raise UserError("--hosts: replicas on several machines compute on CPUs; use --device cpu")
            if stays := [x for x in self._shared(role.holds, crew.control)[0] if x.crossing() is None]:
                what = f"{role.name} shares a {type(stays[0]).__name__} with others"
                raise UserError(f"--hosts: {what}, which does not cross machines; remove --hosts")
        if crew.trace and self.learner_away(crew):
            raise UserError("--place: learn is on another machine, but --trace writes its file here; remove one")
        if not infos:
            raise UserError("--hosts: this is the only machine; remove --hosts, or add a machine to the cluster")
        text = "; ".join(f"{title}: {who}" for title, who in planned.items())
        return text + "; rows on their way to the learner pass this machine" * self.learner_away(crew)

    def learner_away(self, crew: Crew) -> bool:
        return any(role.learner and not role.learns_own and self.places.goes(role) for role in crew.roles)

    def plan(self, crew: Crew) -> dict[str, str]:
        """Return the planned workers of each machine as text. Raises UserError if a rule of `--place` does not fit."""
        self.places.roles = crew.roles
        return plan_in_words(self.places, crew, self.cluster.machines())

    def _shared(self, *values: object) -> tuple[list[SharedObject], list[Semaphores]]:
        """Return the shared objects, and the semaphores (bells), inside the given values."""
        _, found = dump(values, self._numbers)
        bells = [x for x in found if isinstance(x, Semaphores)]
        return [x for x in found if not isinstance(x, Semaphores)], bells

    def prepare(self, crew: Crew) -> None:
        """Find the shared objects that machines exchange, and start a crew on each other machine. Raises UserError."""
        self.cluster.connect()
        sys.setswitchinterval(TURN)
        self.directory, self._control = crew.directory, crew.control
        self._log = None if crew.directory is None else JsonLines(crew.directory / FILE)
        self._writes = LogWrites(self._messages.put)
        self.bells = Semaphores(MACHINES)
        roles, things = roles_elsewhere(self.places, crew), dict[int, SharedObject]()
        for role in roles:
            shared, bells = self._shared(role.holds, crew.control, crew.counters)
            things |= {id(thing): thing for thing in shared}
            for bell in bells:
                bell.relay_by(self.bells)
            if role.spec is not None and isinstance(role.spec.update, AllReduce) and role.learns_own:
                role.spec.update.spread(self.cluster.address())
        for thing in things.values():
            thing._attach()
            for part in thing.each if isinstance(thing, AgentParams) else ():  # parts cross with the whole AgentParams
                things = {i: x for i, x in things.items() if x is not part}
        # weights come last: readers of new weights rely on earlier writes to other objects
        self._things = sorted(things.values(), key=lambda thing: isinstance(thing, (Params, AgentParams)))
        for role in roles:
            ends = {id(edge): end for end, edge in role.edges().items()}
            held = [(i, ends[id(thing)]) for i, thing in enumerate(self._things) if id(thing) in ends]
            self._held[role.name] = tuple(held)
        threads = sum(role.n * threads_of(role, crew) for role in roles)
        self._computing = -(-threads // max(1, len(self.cluster.machines())))
        try:
            with ThreadPoolExecutor(MACHINES) as pool:
                [*pool.map(self._open, self.cluster.machines())]
            self.opened.sort(key=lambda machine: machine.info.name)
            check_memory(self.places, crew, self.opened)
        except Exception:
            self.close()
            raise
        threading.Thread(target=self._look_for_more, daemon=True).start()

    def _open(self, info: MachineInfo) -> bool:
        """Start a crew on a machine. Return whether the machine has lost an earlier crew. Raises UserError."""
        actor = self.cluster.start_actor(
            info, RemoteCrew, self._computing, self.key, info.address, PATIENCE * self.timeout
        )
        try:
            machine = self._line_to(info, actor)
        except Exception:
            actor.end()
            raise
        serve = lambda: self._lose(machine, machine.end.run())  # noqa: E731
        machine.thread = threading.Thread(target=serve, daemon=True)
        with self._lock:
            machine.thread.start()
            at = next((i for i, m in enumerate(self.opened) if m.info.name == info.name), len(self.opened))
            again = at < len(self.opened)
            self.opened[at : at + 1] = [machine]
            self.cluster.lost.discard(info.node)
            late = self._closing
        if late:
            self._shut([machine])
        self._note("opened", info, address=info.address, cores=info.cores, **({"again": True} if again else {}))
        return again

    def _line_to(self, info: MachineInfo, actor: RayActor) -> Machine:
        """Connect to a crew, and return its machine. Raises UserError."""
        about = actor.call("about")
        info.check_versions(about["versions"])
        with self._lock:
            data = dump(self._things, self._numbers)[0]
            if not self._lines:
                raise UserError(f"--hosts: the cluster has more than {MACHINES} machines; must be at most {MACHINES}")
            number = self._lines.pop()
        try:
            actor.call("open", data)
            actor.send("serve")
            there = connect(about["address"], self.key, self.timeout)
        except (OSError, LineLost, UserError) as e:
            self._lines.add(number)
            if isinstance(e, UserError):
                raise
            way = f"to {info.name} at {':'.join(map(str, about['address']))}"
            raise UserError(f"--hosts: no connection {way}: {e}; check for a firewall between the machines") from None
        warn = lambda text: self._messages.put(f"machine {info.name}: {text}")  # noqa: E731
        traffic = Traffic(self._things, False, number, self.directory, warn)
        end = LineEnd(there, traffic, self.bells[number], {})
        machine = Machine(info, actor=actor, about=about, end=end, number=number)
        end.on |= {WORD: partial(self._hear, machine), ENDED: partial(self._ended, machine), LOAD: machine.load.update}
        return machine

    # ----------------------------------------------------------------------------------------- workers

    def place(self, role: Role, index: int) -> Machine | None:
        """Return the machine for a worker that starts, or None if no machine is available now."""
        best = self.places.choose(role, index, self.opened)
        if best is not None and (role.name, index) in self._seated:
            self._note("replaced", best.info, worker=f"{role.name} {index}")
        if best is not None:
            self._seated.add((role.name, index))
        return best

    def _look_for_more(self) -> None:
        """In a thread, start crews on machines that have joined the cluster or have lost their crews."""
        while not self._over.wait(LOOK):
            there = {m.info.name for m in self.opened if m.lost is None} | self._opening
            for info in self.cluster.machines():
                _, until = self._failures.get(info, (0, 0.0))
                if info.name not in there and time.monotonic() >= until and not self._ending:
                    self._opening.add(info.name)
                    self._start_thread(self._open_another, info)

    def _put_off(self, info: MachineInfo) -> float:
        """Record a failure of a machine. Return the seconds until the next attempt to start a crew there."""
        n, until = self._failures.get(info, (0, 0.0))
        n = n if time.monotonic() < until + HOUR else 0
        pause = min(FIRST * 2.0**n, HOUR)
        self._failures[info] = n + 1, time.monotonic() + pause
        return pause

    def _open_another(self, info: MachineInfo) -> None:
        """Start a crew on a machine during the run, and report a failure only as a warning."""
        try:
            again = self._open(info)
            self._messages.put(f"machine {info.name} has {'a new crew' if again else 'joined'}")
        except Exception as e:  # the machine left again, or has no room
            pause = self._put_off(info)
            self._note("not opened", info, why=str(e), retry=pause)
            if not self._ending:
                self._messages.put(f"machine {info.name} gets no crew; the next try is in {pause:g} s: {e}")
        finally:
            self._opening.discard(info.name)

    def _start_thread(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        with self._lock:
            self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
            thread.start()

    def start(self, machine: Machine, call: Call) -> RemoteWorker:
        ctx, role = call.ctx, call.role
        number = next(self._next)

        def send_signal(n: int) -> None:
            machine.end.request(partial(machine.end.tell, SIGNAL, {"number": number, "signal": n}))

        worker = RemoteWorker(machine.info.name, send_signal)
        with self._lock:
            machine.workers[number] = worker
            machine.threads[number] = call.threads
        kinds = ("learner",) * role.learner + ("judge",) * ("publish" in role.edges() and not role.learner)
        seat = RemoteSeat(role.name, ctx.index, ctx.row, self._held[role.name], kinds)
        files = [] if self.directory is None else needed_files(ctx.resume, self.directory, role, seat)
        try:
            wrong = machine.actor.call("give", number, dump(call, self._numbers)[0], timeout=self.timeout)
        except UserError:  # the machine is lost; its line will report this
            wrong = ""
        if wrong:
            self._hear(machine, {"number": number, "kind": "user", "text": wrong})
        else:
            machine.end.request(partial(machine.seat, seat, number, files))
        if machine.lost is not None:
            worker.ended(machine.lost, None)
        return worker

    def report(self) -> dict[str, dict[str, float]]:
        """Return each machine's metrics since the last report, by the machine's name."""
        return {m.info.name: m.report() for m in self.opened if m.lost is None}

    # ------------------------------------------------------------------------------------------- events

    def news(self) -> list[str]:
        """Return the warnings that came since the last call."""
        return [self._messages.get() for _ in range(self._messages.qsize())]

    def _hear(self, machine: Machine, value: dict[str, Any]) -> None:
        """Log a remote worker's message. Replace its paths by those here, and add the machine's name to a UserError."""
        text: str = value["text"].replace(machine.about["folder"], str(self.directory))
        where = f"; this is on {machine.info.name}, to which --ship DIR copies a folder's modules"
        if (worker := machine.workers.get(value["number"])) is not None:
            worker.log(value["kind"], text + where if value["kind"] == "user" else text)

    def _ended(self, machine: Machine, value: dict[str, Any]) -> None:
        with self._lock:
            worker = machine.workers.pop(value["number"])
            del machine.threads[value["number"]]
        worker.ended(value["how"], value.get("code"))

    def _lose(self, machine: Machine, why: str) -> None:
        """Record that a machine and its workers are lost. `why`: the reason for which the machine's line has ended."""
        with self._lock:
            if self._closing:
                return
            machine.lost = f"is lost with machine {machine.info.name}: {why}"
            workers = list(machine.workers.values())
            self._lines.add(machine.number)
            self.cluster.lost.add(machine.info.node)
        machine.end.traffic = Traffic([], False, machine.number, None)  # frees large buffers of the old Traffic
        retry = self._put_off(machine.info)  # seconds until the next try: perhaps only the crew is lost
        self._note("lost", machine.info, why=why, workers=len(workers), retry=retry)
        for i, worker in enumerate(workers):
            worker.lost_first = i == 0
            worker.ended(machine.lost, None)
        self._start_thread(machine.actor.end)  # in a thread, because the machine may not answer

    @property
    def _ending(self) -> bool:
        """Whether the run is ending. If it is, the end of a line does not mean that a machine is lost."""
        return self._closing or self._control.halted

    def _note(self, event: str, info: MachineInfo, **more: Any) -> None:
        if self._ending or self._log is None:
            return
        row, log = {"time": time.time(), "event": event, "machine": info.name, **more}, self._log
        self._writes.attempt(FILE, lambda: log.write(row))

    def close(self) -> None:
        """End all crews and their workers, and leave the cluster."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._over.set()
        self._shut([machine for machine in self.opened if machine.lost is None])
        until = time.monotonic() + PARTING
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self.cluster.close()

    def _shut(self, machines: Sequence[Machine]) -> None:
        for machine in machines:
            machine.end.request(partial(machine.end.end, tell=True))
        for seconds in (1.0, 1.0):  # seconds for all machines together
            until = time.monotonic() + seconds
            for machine in machines:
                assert machine.thread is not None
                machine.thread.join(max(0.0, until - time.monotonic()))
            for machine in machines:
                machine.end.end()
        for machine in machines:
            self._start_thread(machine.actor.end)

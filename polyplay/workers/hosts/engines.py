"""What opens agents on machines: local ones, or those of a Ray cluster, by which no byte of a rollout goes.

The only file that knows Ray.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyplay.core import processes
from polyplay.core.errors import UserError
from polyplay.core.machine import cores

if TYPE_CHECKING:
    from polyplay.workers.hosts.fleet import Fleet

LINKS = 64  # machines, at most
OPENING = 60.0  # seconds that an agent has to answer, and a link to be opened: torch may have to be loaded there


def needed_versions() -> dict[str, str]:
    """What must be the same on all machines."""
    names = ("polyplay", "torch", "numpy")
    return {"python": platform.python_version(), **{name: metadata.version(name).partition("+")[0] for name in names}}


@dataclass(frozen=True)
class MachineInfo:
    """A machine that there is."""

    name: str
    address: str
    cores: int
    resources: tuple[str, ...] = ()  # that somebody gave a name, as `ray start --resources` does


def check_versions(info: MachineInfo, theirs: dict[str, str]) -> None:
    """Raises UserError: calls travel pickled, which takes the same versions."""
    ours = needed_versions()
    if other := [name for name in ours if ours[name] != theirs.get(name)]:
        what = ", ".join(f"{name} {theirs.get(name)} there and {ours[name]} here" for name in other)
        raise UserError(f"--hosts: {info.name} ({info.address}) has {what}; install the same on both")


class Engine(ABC):
    own_cores = False  # whether machines have cores of their own, not this one's

    @abstractmethod
    def machines(self) -> list[MachineInfo]:
        """Those that are there, with an agent or without, but for the main process's own. Names stay as they are."""

    @abstractmethod
    def open(self, info: MachineInfo, config: dict[str, Any]) -> AgentHandle:
        """Start an agent. Takes seconds. Raises UserError."""

    def failing(self) -> str:
        """Why no machine can be held much longer; "": nothing is wrong."""
        return ""

    def close(self) -> None:  # noqa: B027 - of some nothing is left once agents have ended with their links
        """Leave the machines."""


# Nobody's child: Ray kills those of its workers, and an agent ends by itself, leaving nothing behind.
CODE = "import json, os, sys; os.fork() and os._exit(0); sys.path[:] = json.loads(sys.argv[1])\n"
CODE += "from polyplay.workers.hosts.agent import main; main()"
GONE = 2.0  # seconds that it has to end after its link has


class AgentProcess:
    """An agent that runs. about: what it says of itself (agent.MachineAgent.about). config: `secret`, `address`,
    `timeout`; `ship`, if modules go along (agent.pack_modules). Raises UserError where none comes to be.
    """

    def __init__(self, name: str, config: dict[str, Any]):
        command = [sys.executable, "-c", CODE, json.dumps(sys.path), processes.ROOM]
        started = subprocess.Popen(
            command, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        started.wait()
        pipes: Any = started.stdin, started.stdout
        (self._calls, self._answers), ship = pipes, config.get("ship", b"")
        self.give(0, json.dumps({**config, "ship": bool(ship)}).encode())
        if ship:
            self.give(0, ship)
        if not (answer := self._answers.readline()):
            raise UserError(f"--hosts: the agent of {name} ended before it answered; its output says why")
        self.about: dict[str, Any] = json.loads(answer)

    def give(self, number: int, data: bytes) -> None:
        """A worker's pickled call, by its number; 0: the mirrors, first of all."""
        with contextlib.suppress(OSError):  # it is lost: the link will say so
            left = memoryview(number.to_bytes(8, "little") + len(data).to_bytes(8, "little") + data)
            while left:  # unbuffered: `end` must be able to close a pipe that is full
                left = left[self._calls.write(left) :]

    def end(self) -> None:
        """Have it end, at once where it does not by itself. Its end of what it says closes with it."""
        with contextlib.suppress(OSError):
            self._calls.close()
        if not processes.readable([self._answers.fileno()], GONE):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.about["pid"], signal.SIGKILL)
            processes.readable([self._answers.fileno()], GONE)
        self._answers.close()
        shutil.rmtree(self.about["folder"], ignore_errors=True)  # of one that was killed


class LocalMachines(Engine):
    """`n` machines, called local-1 and so on, that are processes of this one, to try a placement."""

    def __init__(self, n: int):
        self.infos = [MachineInfo(f"local-{i + 1}", "127.0.0.1", cores()) for i in range(n)]

    def machines(self) -> list[MachineInfo]:
        return self.infos

    def open(self, info: MachineInfo, config: dict[str, Any]) -> AgentHandle:
        return AgentProcess(info.name, config)


# Whether the head of a Ray cluster answers. Ray's own client ends this process a minute after it does not.


EVERY, TRIES = 2.0, 10  # seconds from one try to the next, and that one may take; tries in vain until it is lost
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # gRPC's: it has to be answered


def answers(address: str, seconds: float = EVERY) -> bool:
    """Whether somebody at HOST:PORT does anything with a greeting: a process that is stopped would not."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), seconds) as sock:
            sock.settimeout(seconds)
            sock.sendall(GREETING)
            sock.recv(1)
    except (OSError, ValueError, OverflowError):
        return False
    return True


class HeadWatch:
    """A thread that tries again and again. It counts tries, not seconds: this process may have been stopped itself."""

    def __init__(self, address: str, every: float = EVERY, tries: int = TRIES):
        self.address, self.every, self.tries = address, every, tries
        self.failed = 0  # tries in vain, since the last answer
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        pause = self.every
        while not self._over.wait(pause):
            begun = time.monotonic()
            self.failed = 0 if answers(self.address, self.every) else self.failed + 1
            pause = max(0.0, begun + self.every - time.monotonic())

    def failing(self) -> str:
        """Why the run can't go on; "": it can."""
        if self.failed < self.tries:
            return ""
        silent = self.tries * self.every
        return f"--hosts: the head of the Ray cluster, {self.address}, has given no answer for {silent:.0f} s"

    def stop(self) -> None:
        self._over.set()


REACH = 5.0  # seconds that a cluster has to answer
OWN = ("CPU", "GPU", "memory", "object_store_memory")  # resources that every node has
PACE = 0.5  # seconds between two looks at the raylet


class RayMachines(Engine):
    """address: HOST:PORT of the cluster's head; empty: the cluster of this machine (RAY_ADDRESS)."""

    own_cores = True

    def __init__(self, address: str = ""):
        self.address = address
        self._names: dict[str, str] = {}  # of nodes that there are, by their IDs
        self._head: HeadWatch | None = None

    def _connect(self) -> Any:
        try:
            import ray
        except ImportError:
            raise UserError("--hosts: ray given, but Ray is not installed: pip install 'polyplay[ray]'") from None
        if not ray.is_initialized():
            self._join(ray)
        return ray

    def _join(self, ray: Any) -> None:
        given = self.address or os.environ.get("RAY_ADDRESS", "") or _of_this_machine()
        _reach(given)
        try:
            ray.init(given, namespace="polyplay", log_to_driver=False, configure_logging=False, include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError) as e:
            why = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
            raise UserError(f"--hosts: no Ray cluster at {given}: {why}") from None

    def machines(self) -> list[MachineInfo]:
        ray = self._connect()
        here = ray.get_runtime_context().get_node_id()
        nodes = {n["NodeID"]: n for n in ray.nodes() if n["Alive"] and n["NodeID"] != here}
        self._names = node_names({i: n["NodeName"] for i, n in nodes.items()}, self._names)
        found = []
        for i, node in nodes.items():
            names = tuple(r for r in node["Resources"] if r not in OWN and not r.startswith("node:"))
            cores = int(node["Resources"].get("CPU", 0))
            found.append(MachineInfo(self._names[i], node["NodeManagerAddress"], cores, names))
        return found

    def open(self, info: MachineInfo, config: dict[str, Any]) -> AgentHandle:
        ray = self._connect()
        node = next((i for i, name in self._names.items() if name == info.name), None)
        if node is None:
            raise UserError(f"--hosts: {info.name} ({info.address}) has left the Ray cluster")
        where = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        cpus = max(0, min(info.cores, config["threads"]))
        actor = ray.remote(_NodeAgent).options(num_cpus=cpus, scheduling_strategy=where, max_concurrency=2)
        return _RayAgent(ray, actor.remote(info.name, config), info)

    def failing(self) -> str:
        if self._head is None:
            self._head = HeadWatch(self._connect().get_runtime_context().gcs_address)
        return self._head.failing()

    def close(self) -> None:
        """The cluster is its owner's; only this process leaves it. From a head that is silent it can't: Ray would wait
        for that one for ever, or crash at the end of the process, which therefore ends without it.
        """
        if self._head is not None:
            self._head.stop()
        with contextlib.suppress(ImportError):
            import ray

            if self._head is not None and self._head.failing():
                atexit.unregister(ray.shutdown)
                atexit.register(_end_at_once)
            else:
                ray.shutdown()


def _end_at_once() -> None:
    """As the run that lost the head: status 1."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def node_names(nodes: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """What nodes are called here, by their IDs, from their own names: with a part of the ID where several have the same
    one. A node keeps the name that it had before.
    """
    count = Counter(nodes.values())
    return {i: before.get(i) or (name if count[name] == 1 else f"{name}-{i[:6]}") for i, name in nodes.items()}


def _of_this_machine() -> str:
    """Where `ray start` has written which cluster this machine belongs to."""
    try:
        return (Path(tempfile.gettempdir()) / "ray/ray_current_cluster").read_text("utf-8").strip()
    except OSError:
        how = "start one with `ray start --head`, or name one: ray:HOST:PORT"
        raise UserError(f"--hosts: ray given, but no Ray cluster was started on this machine; {how}") from None


def _reach(address: str) -> None:
    """Raises UserError: nobody listens there. Ray itself would ask for half a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), REACH).close()
    except (OSError, ValueError, OverflowError) as e:
        raise UserError(f"--hosts: no Ray cluster at {address}: {e}; allowed: ray:HOST:PORT of its head") from None


class _NodeAgent(AgentProcess):
    """What Ray starts on a node: it starts the agent and hands it calls."""

    def __init__(self, name: str, config: dict[str, Any]):
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's, for what computes in its own workers
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)  # Ray's workers are 15 nicer
        super().__init__(name, config)
        threading.Thread(target=self._watch, args=(os.getppid(),), daemon=True).start()

    def _watch(self, raylet: int) -> None:
        """Ray leaves an actor alone whose raylet was killed; here the machine counts as lost then."""
        while os.getppid() == raylet:
            time.sleep(PACE)
        self.end()
        os._exit(1)

    def describe(self) -> dict[str, Any]:
        return self.about


class _RayAgent:
    """The same, on a node."""

    def __init__(self, ray: Any, actor: Any, info: MachineInfo):
        self._ray, self._actor = ray, actor
        try:
            self.about: dict[str, Any] = ray.get(actor.describe.remote(), timeout=OPENING)
        except ray.exceptions.GetTimeoutError:
            ray.kill(actor)
            raise UserError(
                f"--hosts: {info.name} ({info.address}) gave no agent {OPENING:.0f} s: are its cores free?"
            ) from None
        except ray.exceptions.RayError as e:
            raise UserError(f"--hosts: no agent on {info.name} ({info.address}): {_cause(e)}") from None

    def give(self, number: int, data: bytes) -> None:
        self._actor.give.remote(number, data)

    def end(self) -> None:
        with contextlib.suppress(Exception):  # it may be lost
            self._ray.get(self._actor.end.remote(), timeout=3.0)
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)


AgentHandle = AgentProcess | _RayAgent


def _cause(e: Exception) -> str:
    lines = [line for line in str(getattr(e, "cause", None) or e).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(e).__name__


# What `--hosts` names.


def fleet_of(options: Any) -> Fleet | None:
    """The machines that `--hosts` names; None: no others. Raises UserError."""
    hosts = options.hosts
    if hosts is None or hosts == "none":
        for name in ("place", "ship"):
            if (given := vars(options)[name]) is not None:
                raise UserError(f"--{name}: {given} given, but it takes other machines: give --hosts too")
        return None
    if options.serial or options.on == "thread":
        how = "--serial" if options.serial else "--on thread"
        raise UserError(f"--hosts: {hosts} given, but it takes workers that are processes: leave out {how}")
    from polyplay.workers.hosts.agent import pack_modules
    from polyplay.workers.hosts.fleet import Fleet
    from polyplay.workers.hosts.places import parse_places

    rules = () if options.place is None else parse_places(options.place)
    shipped = b"" if options.ship is None else pack_modules(Path(options.ship))
    return Fleet(engine_of(hosts), options.host_timeout, rules, shipped)


def engine_of(hosts: str) -> Engine:
    """What starts agents on the machines that `--hosts` names. Raises UserError."""
    kind, _, rest = hosts.partition(":")
    if kind == "ray":
        return RayMachines(rest)
    if kind == "local" and rest.isdigit() and 1 <= int(rest) <= LINKS:
        return LocalMachines(int(rest))
    allowed = f"none, ray, ray:HOST:PORT, or local:N with N from 1 to {LINKS}"
    raise UserError(f"--hosts: {hosts} given, allowed: {allowed}")

"""Machines of an existing Ray cluster, or of one that `--hosts local:N` starts. Only this file uses Ray."""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from polyplay.core import processes
from polyplay.core.errors import UserError
from polyplay.core.machine import cores, install_command
from polyplay.core.platform import need_linux

if TYPE_CHECKING:
    from polyplay.workers.hosts.fleet import Fleet

MACHINES = 64  # most machines besides the main machine
OPENING = 60.0  # most seconds until a machine has started a crew, which may load torch
REACH = 5.0  # most seconds until a cluster answers
EVERY, TRIES = 1.0, 4  # seconds between requests to Ray's head node; unanswered requests until the node is lost
HIDDEN = [".?*", "__pycache__"]  # files that are not copied to other machines
OWN = ("CPU", "GPU", "memory", "object_store_memory")  # resources that every node has
OLDEST = (2, 40)  # oldest version of Ray that works


def needed_versions() -> dict[str, str]:
    """Return the versions of Python and of packages that must be equal on all machines."""
    names = ("polyplay", "torch", "numpy")
    return {"python": platform.python_version(), **{name: metadata.version(name).partition("+")[0] for name in names}}


@dataclass(frozen=True)
class MachineInfo:
    """A machine of the cluster, other than the main machine."""

    name: str
    address: str
    cores: int
    resources: tuple[str, ...] = ()  # custom resources, from `ray start --resources`
    node: str = ""  # Ray's ID of the machine

    def check_versions(self, theirs: dict[str, str]) -> None:
        """Raise UserError if the other machine's versions differ from those here. `theirs`: its `needed_versions()`."""
        ours = needed_versions()
        if other := [name for name in ours if ours[name] != theirs.get(name)]:
            what = ", ".join(f"{name} {theirs.get(name)} there and {ours[name]} here" for name in other)
            raise UserError(f"--hosts: {self.name} ({self.address}) has {what}; install the same on both")


def _ray() -> Any:
    """Return the module `ray`. Raises UserError if Ray is missing or too old."""
    try:
        import ray
    except ImportError:
        raise UserError(f"--hosts: Ray is not installed: {install_command('ray')}") from None
    if tuple(map(int, ray.__version__.split(".")[:2])) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise UserError(f"--hosts: Ray {ray.__version__} is installed; must be {needed} or newer: pip install -U ray")
    return ray


class Cluster:
    """The machines that `--hosts` names. `ship`: folder of modules that are copied to these machines. Raises UserError
    if `hosts` is not valid, or if the folder `ship` is missing.
    """

    def __init__(self, hosts: str, ship: str | None = None):
        kind, _, rest = hosts.partition(":")
        self.local = int(rest) if kind == "local" and rest.isdigit() else 0
        if kind != "ray" and not 1 <= self.local <= MACHINES:
            allowed = f"none, ray, ray:HOST:PORT, or local:N with N from 1 to {MACHINES}"
            raise UserError(f"--hosts {hosts}: must be {allowed}")
        if ship is not None and not Path(ship).is_dir():
            raise UserError(f"--ship {ship}: no such folder")
        self.head, self._ship = rest if kind == "ray" else "", ship
        self._names: dict[str, str] = {}  # names of the present nodes (machines), by ID
        self.lost = set[str]()  # IDs of nodes that the run has lost
        self._started: LocalCluster | None = None
        self._nodes: list[dict[str, Any]] = []
        self._missed, self._over, self._lock = 0, threading.Event(), threading.Lock()

    own_cores = property(lambda self: not self.local)  # whether other machines have other cores than this one

    def connect(self) -> Any:
        """Join the cluster, unless this process has joined already. Return the module `ray`. Raises UserError."""
        if "ray" not in sys.modules:  # Ray reads these variables when it is imported
            os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = "."  # hides raylets' messages about lost workers
            os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # ignores errors in answers that were not awaited
            if self.local:
                os.environ.update(QUIET)
                os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            else:
                os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "4")  # seconds until a missing head is reported
        ray = _ray()
        with self._lock:
            if not ray.is_initialized():
                if self.local:
                    self._started = LocalCluster(self.local)
                    self.head = self._started.address
                self._join(ray)
        return ray

    def _join(self, ray: Any) -> None:
        given = self.head or os.environ.get("RAY_ADDRESS", "")
        quiet = {"log_to_driver": False, "configure_logging": False, "include_dashboard": False}
        ships = {"working_dir": self._ship, "excludes": HIDDEN} if self._ship else {}
        try:
            if given:  # check first: Ray itself would try for half a minute
                host, _, port = given.removeprefix("ray://").rpartition(":")
                socket.create_connection((host, int(port)), REACH).close()
            with _muted():
                ray.init(given or "auto", namespace="polyplay", runtime_env=ships, **quiet)
        except (OSError, RuntimeError, ValueError, OverflowError) as e:
            why = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
            how = "; start one with `ray start --head`, or use ray:HOST:PORT of a running head"
            how = how if not given else "; is RAY_AUTH_TOKEN the cluster's?" if type(e) is ConnectionError else ""
            raise UserError(f"--hosts: no Ray cluster at {given or 'this machine'}: {why}{how}") from None
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):  # restore our handlers: Ray's print a stack
                signal.signal(number, signal.getsignal(number))
        self.head, self._nodes = ray.get_runtime_context().gcs_address, ray.nodes()
        for watch in (self._look, self._count):
            threading.Thread(target=watch, args=(ray,), daemon=True).start()

    def _look(self, ray: Any) -> None:
        """In a thread, ask Ray's head node for the list of nodes (machines) every second."""
        while not self._over.wait(EVERY):
            with contextlib.suppress(Exception):
                self._nodes = ray.nodes()
                self._missed = 0

    def _count(self, _: Any) -> None:
        """In a thread, count the seconds since the last answer of Ray's head node."""
        while not self._over.wait(EVERY):  # not a clock, which would count suspension of this process
            self._missed += 1

    def failing(self) -> str:
        """Return an error text if Ray's head node no longer answers, else "". The run must then end."""
        if self._missed <= TRIES:  # Ray's own client would end this process a minute after the loss
            return ""
        return f"--hosts: the head of the Ray cluster, {self.head}, has not answered for {TRIES * EVERY:.0f} s"

    def address(self) -> str:
        """Return this machine's address in the cluster."""
        here = self.connect().get_runtime_context().get_node_id()
        return str(next(node["NodeManagerAddress"] for node in self._nodes if node["NodeID"] == here))

    def machines(self) -> list[MachineInfo]:
        """Return the machines of the cluster except this one, sorted by name. Names never change. Raises UserError."""
        if self.local and self._started is None:  # for a plan, no cluster is started
            return [MachineInfo(f"local-{i + 1}", "127.0.0.1", cores()) for i in range(self.local)]
        here = self.connect().get_runtime_context().get_node_id()
        nodes = {n["NodeID"]: n for n in self._nodes if n["Alive"] and n["NodeID"] != here}
        self._names = node_names({i: n["NodeName"] for i, n in nodes.items()}, self._names, self.lost)
        found = []
        for i, node in ((i, nodes[i]) for i in self._names):
            names = tuple(r for r in node["Resources"] if r not in OWN and not r.startswith("node:"))
            n = int(node["Resources"].get("CPU", 0))
            found.append(MachineInfo(self._names[i], node["NodeManagerAddress"], n, names, i))
        return sorted(found, key=lambda info: info.name)

    def start_actor(self, info: MachineInfo, cls: type, cpus: int, *given: Any) -> RayActor:
        """Start a Ray actor (remote object) of class `cls` on a machine, without automatic restarts and retries."""
        ray = self.connect()
        where = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(info.node, soft=False)
        options = {"num_cpus": max(0, min(info.cores, cpus)), "max_restarts": 0, "max_task_retries": 0}
        actor = ray.remote(cls).options(scheduling_strategy=where, max_concurrency=4, **options)
        return RayActor(ray, actor.remote(*given), info)

    def close(self) -> None:
        """Leave the cluster. If this run started the cluster, end it."""
        lost = self.failing() != ""
        if not self._over.is_set() and self._nodes:
            ray = _ray()
            self._over.set()
            if lost:  # Ray's cleanup would wait forever or crash
                atexit.unregister(ray.shutdown)
                atexit.register(_end_at_once)
            else:
                ray.shutdown()
        if self._started is not None:
            self._started.close(lost)
            self._started = None


class RayActor:
    """A Ray actor (remote object) on another machine."""

    def __init__(self, ray: Any, actor: Any, info: MachineInfo):
        self._ray, self._actor, self.info = ray, actor, info

    def call(self, name: str, *given: Any, timeout: float = OPENING) -> Any:
        """Call a method and return its result. Raises UserError if the call fails, times out, or the actor is lost."""
        ray, where = self._ray, f"{self.info.name} ({self.info.address})"
        try:
            return ray.get(self.send(name, *given), timeout=timeout)
        except ray.exceptions.GetTimeoutError:
            raise UserError(f"--hosts: {where} did not answer for {timeout:.0f} s: are its cores free?") from None
        except ray.exceptions.ObjectStoreFullError:
            raise UserError(f"--hosts: the object store of {where} is full; start Ray with a larger one") from None
        except ray.exceptions.RayError as e:
            cause = e.cause if isinstance(e, ray.exceptions.RayTaskError) else e
            raise UserError(f"--hosts: no crew on {where}: {_last_line(cause)}") from None

    def send(self, name: str, *given: Any) -> Any:
        """Call a method without waiting. Return Ray's reference to the result."""
        return getattr(self._actor, name).remote(*given)

    def end(self) -> None:
        """End the actor and the processes that it started."""
        with contextlib.suppress(Exception):  # the actor may be lost
            self._ray.get(self._actor.end.remote(), timeout=3.0)
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    """Discard the stderr of Ray's native code, which prints many lines if a connection is refused."""
    sys.stderr.flush()
    saved = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _last_line(e: Exception) -> str:
    """Return the last line of an exception's text, or the name of the exception's class if there is no text."""
    return next((line.strip() for line in reversed(str(e).splitlines()) if line.strip()), type(e).__name__)


def _end_at_once() -> None:
    """End this process with status 1 and without Ray's cleanup, because the run has lost Ray's head node."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def node_names(nodes: Mapping[str, str], before: Mapping[str, str], lost: Collection[str] = ()) -> dict[str, str]:
    """Return the names of nodes (machines) by ID. If several nodes have the same name, add a part of the ID. The names
    in `before` stay as they are. A new node with the name of a node in `lost` may be the same machine, so omit it until
    Ray notices the loss.
    """
    count, gone = Counter(nodes.values()), {nodes[i] for i in nodes.keys() & {*lost}}
    there = {i: name for i, name in nodes.items() if i in before or name not in gone}
    return {i: before.get(i) or (name if count[name] == 1 else f"{name}-{i[:6]}") for i, name in there.items()}


# Program of `--hosts local:N`, for trials and tests: a process that ends its cluster when the run ends or is killed.
CODE = """
import shutil, sys
from ray.cluster_utils import Cluster
n, cores, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
few = {"num_cpus": cores, "object_store_memory": 80 * 2**20, "include_dashboard": False, "no_monitor": True}
cluster = Cluster(initialize_head=True, head_node_args={**few, "temp_dir": folder + "/ray"})
for i in range(n):
    cluster.add_node(wait=False, node_name=f"local-{i + 1}", **few)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
shutil.rmtree(folder, ignore_errors=True)
"""
# Ray's settings that are 0: usage statistics, niceness of workers, workers started in advance
ZERO = "RAY_USAGE_STATS_ENABLED RAY_worker_niceness RAY_enable_worker_prestart RAY_prestart_worker_first_driver"
QUIET = {"RAY_AUTH_MODE": "token", **dict.fromkeys(ZERO.split(), "0")}


class LocalCluster:
    """A cluster on this machine: a head node and `n` other nodes. Raises UserError if the nodes do not start."""

    def __init__(self, n: int):
        self.folder = tempfile.mkdtemp(prefix="polyplay-", dir="/tmp")  # names of sockets must be short
        words = [sys.executable, "-c", CODE, str(n), str(cores()), self.folder, processes.ROOM]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        env = {**os.environ, "TMPDIR": self.folder}  # Ray records the cluster of this machine there
        self._runs = subprocess.Popen(words, env=env, start_new_session=True, **pipes)
        assert self._runs.stdout is not None
        self.address = self._runs.stdout.readline().decode().strip()
        if not self.address:
            self.close()
            raise UserError(f"--hosts local:{n}: Ray could not start {n + 1} raylets here; use a smaller number")

    def close(self, lost: bool = False) -> None:
        """End the cluster. If the head node is lost, kill the cluster at once."""
        assert self._runs.stdin is not None
        self._runs.stdin.close()
        try:
            self._runs.wait(0.0 if lost else 5.0)
        except subprocess.TimeoutExpired:
            root = psutil.Process(self._runs.pid)
            for process in (*root.children(recursive=True), root):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            self._runs.wait()
            shutil.rmtree(self.folder, ignore_errors=True)


# The fleet that `--hosts` names.


def fleet_of(options: Any) -> Fleet | None:
    """Return the machines that `--hosts` names, or None if the run uses only this machine. Raises UserError."""
    hosts = options.hosts
    if hosts is None or hosts == "none":
        for name in ("place", "ship"):
            if (given := vars(options)[name]) is not None:
                raise UserError(f"--{name} {given}: needs other machines; add --hosts")
        return None
    need_linux(f"--hosts {hosts}", "workers on other machines", "leave it out: this machine does all the work")
    if options.serial or options.on == "thread":
        how = "--serial" if options.serial else "--on thread"
        raise UserError(f"--hosts {hosts}: workers must be processes; remove {how}")
    from polyplay.workers.hosts.fleet import Fleet
    from polyplay.workers.hosts.places import parse_places

    rules = () if options.place is None else parse_places(options.place)
    return Fleet(Cluster(hosts, options.ship), options.host_timeout, rules)

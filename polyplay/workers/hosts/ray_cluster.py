"""The machines of a Ray cluster. Ray says which there are, and starts an agent there; no byte of a rollout goes by it.

The only file that knows Ray.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyplay.common.errors import UserError
from polyplay.workers.hosts.agent_process import AgentProcess
from polyplay.workers.hosts.engine import OPENING, AgentHandle, MachineInfo
from polyplay.workers.hosts.head import HeadWatch

REACH = 5.0  # seconds that a cluster has to answer
OWN = ("CPU", "GPU", "memory", "object_store_memory")  # resources that every node has
PACE = 0.5  # seconds between two looks at the raylet


class RayMachines:
    """An engine. address: HOST:PORT of the cluster's head; empty: the cluster of this machine (RAY_ADDRESS)."""

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
            ray.init(
                given,
                namespace="polyplay",
                log_to_driver=False,
                configure_logging=False,
                include_dashboard=False,
            )
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


class _NodeAgent:
    """What Ray starts on a node: it starts the agent and hands it calls."""

    def __init__(self, name: str, config: dict[str, Any]):
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's, for what computes in its own workers
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)  # Ray's workers are 15 nicer
        self.agent = AgentProcess(name, config)
        threading.Thread(target=self._watch, args=(os.getppid(),), daemon=True).start()

    def _watch(self, raylet: int) -> None:
        """Ray leaves an actor alone whose raylet was killed; here the machine counts as lost then."""
        while os.getppid() == raylet:
            time.sleep(PACE)
        self.agent.end()
        os._exit(1)

    def about(self) -> dict[str, Any]:
        return self.agent.about

    def give(self, number: int, data: bytes) -> None:
        self.agent.give(number, data)

    def end(self) -> None:
        self.agent.end()


class _RayAgent:
    def __init__(self, ray: Any, actor: Any, info: MachineInfo):
        self._ray, self._actor = ray, actor
        try:
            self.about: dict[str, Any] = ray.get(actor.about.remote(), timeout=OPENING)
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


def _cause(e: Exception) -> str:
    lines = [line for line in str(getattr(e, "cause", None) or e).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(e).__name__

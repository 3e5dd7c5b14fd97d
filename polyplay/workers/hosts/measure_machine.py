"""What `polyplay doctor` says of another machine: an agent is opened there, and its link measured. Imports no torch."""

from __future__ import annotations

import secrets
import socket
import statistics
import time
from typing import Any

import numpy as np

from polyplay.common.errors import UserError
from polyplay.common.semaphores import Semaphores
from polyplay.workers.hosts import twins
from polyplay.workers.hosts.engine import OPENING, Engine, MachineInfo
from polyplay.workers.hosts.link import BEAT, CLOSE, DATA, ECHO, HEAD, Link, LinkLost, prove, read_exactly
from polyplay.workers.hosts.mirrors import Frame, ObjectMirror

SIZE, TIMES, TRIPS = 16 * 2**20, 8, 20  # bytes of a frame, frames, round trips


class ProbeMirror(ObjectMirror):
    """A block that is written there, and read by nobody."""

    def prepare(self) -> None:
        self.block = np.zeros(SIZE, np.uint8)

    def changes(self, now: float) -> list[Frame]:  # type: ignore[override]
        return []

    def places(self, item: int) -> list[np.ndarray]:
        return [self.block]

    def arrived(self, item: int) -> None:
        """Nothing is to be done with it."""


def measure_machine(engine: Engine, info: MachineInfo, timeout: float = 10.0) -> dict[str, Any]:
    """What its agent says; its link's `round_trip` (seconds) and `bandwidth` (bytes a second). Raises UserError."""
    secret = secrets.token_bytes(32)
    config = {"secret": secret.hex(), "address": info.address, "timeout": timeout, "threads": 0}
    handle = engine.open(info, config)
    try:
        handle.give(0, twins.dump([ProbeMirror()], twins.TwinNumbers())[0])
        with socket.create_connection((handle.about["address"], handle.about["port"]), OPENING) as sock:
            prove(sock, secret, away=False)
            sock.settimeout(timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(sock, [ProbeMirror()], Semaphores(1)[0], timeout, None)
            block = np.zeros(SIZE, np.uint8)
            trips = [_echo(link, []) for _ in range(TRIPS)]
            _echo(link, [block])  # its pages are there from now on
            took = _echo(link, [block] * TIMES)
            link.send(CLOSE)
        return {**handle.about, "round_trip": statistics.median(trips), "bandwidth": SIZE * TIMES / took}
    except (OSError, LinkLost) as e:
        there = f"{handle.about['address']}:{handle.about['port']}"
        raise UserError(f"no link to {there}: {e}; is a firewall between them?") from None
    finally:
        handle.end()


def _echo(link: Link, blocks: list[np.ndarray]) -> float:
    """Seconds until the other side answers a beat that comes after these blocks."""
    began = time.perf_counter()
    for block in blocks:
        link.send(DATA, 0, 0, [block])
    link.send(BEAT)
    while True:
        _, kind, _, _, n = HEAD.unpack(read_exactly(link.sock, HEAD.size))
        read_exactly(link.sock, n)
        if kind == ECHO:
            return time.perf_counter() - began

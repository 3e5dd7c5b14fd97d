"""Machines that are processes of this one, each with memory, a fork server and a temporary folder of its own: to test
a placement, and to try one. No Ray.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from typing import Any

from polyplay.common.errors import UserError
from polyplay.common.forkserver import ForkedProcess
from polyplay.common.machine import cores
from polyplay.workers.hosts.engine import AgentHandle, MachineInfo
from polyplay.workers.process import SERVER

OPENING = 60.0  # seconds that an agent has to answer


class PretendedMachines:
    """An engine: `n` machines, called pretend-1 and so on."""

    def __init__(self, n: int):
        self.infos = [MachineInfo(f"pretend-{i + 1}", "127.0.0.1", cores()) for i in range(n)]

    def machines(self) -> list[MachineInfo]:
        return self.infos

    def open(self, info: MachineInfo, config: dict[str, Any]) -> AgentHandle:
        self.infos = [other for other in self.infos if other is not info]  # once lost, it does not come back
        return _PretendedAgent(info, config)

    def close(self) -> None:
        """Agents end with their links."""


class _PretendedAgent:
    def __init__(self, info: MachineInfo, config: dict[str, Any]):
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = ForkedProcess(SERVER, _run, (theirs, json.dumps(config)), f"agent {info.name}")
        self._process.start()
        theirs.close()
        if not self._pipe.poll(OPENING):
            raise UserError(f"--hosts: {info.name} did not answer within {OPENING:.0f} s")
        try:
            self.about: dict[str, Any] = json.loads(self._pipe.recv_bytes())
        except EOFError:
            raise UserError(f"--hosts: the agent of {info.name} {self._process.ending()}") from None

    def give(self, number: int, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it is lost: the link will say so
            self._pipe.send_bytes(number.to_bytes(8, "little") + data if number else data)

    def end(self) -> None:
        self._pipe.close()
        self._process.join(1.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.about["pid"], signal.SIGKILL)


def _run(pipe: Connection, config: str) -> None:
    from polyplay.workers.hosts.agent import serve

    serve(pipe.recv_bytes, pipe.send_bytes, json.loads(config))

"""Machines that are processes of this one, each with memory, a fork server and a temporary folder of its own: to test
a placement, and to try one. No Ray.
"""

from __future__ import annotations

from typing import Any

from polyplay.common.machine import cores
from polyplay.workers.hosts.agent_process import AgentProcess
from polyplay.workers.hosts.engine import AgentHandle, MachineInfo


class PretendedMachines:
    """An engine: `n` machines, called pretend-1 and so on."""

    own_cores = False

    def __init__(self, n: int):
        self.infos = [MachineInfo(f"pretend-{i + 1}", "127.0.0.1", cores()) for i in range(n)]

    def machines(self) -> list[MachineInfo]:
        return self.infos

    def open(self, info: MachineInfo, config: dict[str, Any]) -> AgentHandle:
        return AgentProcess(info.name, config)

    def failing(self) -> str:
        return ""

    def close(self) -> None:
        """Agents end with their links."""

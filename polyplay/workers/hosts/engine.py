"""What opens agents on machines: a pretended one, or Ray."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Protocol

from polyplay.common.errors import UserError

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


class AgentHandle(Protocol):
    """An agent that runs. about: what it says of itself (agent.MachineAgent.about)."""

    about: dict[str, Any]

    def give(self, number: int, data: bytes) -> None:
        """A worker's pickled call, by its number; 0: the mirrors, first of all."""

    def end(self) -> None:
        """Have it end, at once where it does not by itself."""


class Engine(Protocol):
    own_cores: bool  # machines have cores of their own, not this one's

    def machines(self) -> list[MachineInfo]:
        """Those that are there, with an agent or without, but for the main process's own. Names stay as they are."""

    def open(self, info: MachineInfo, config: dict[str, Any]) -> AgentHandle:
        """Start an agent. Takes seconds. Raises UserError."""

    def failing(self) -> str:
        """Why no machine can be held much longer; "": nothing is wrong."""

    def close(self) -> None: ...

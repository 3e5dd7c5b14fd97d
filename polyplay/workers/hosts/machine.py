"""A machine that has an open agent, as the main process sees it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from polyplay.common.forkserver import ForkedProcess
from polyplay.workers.hosts.engine import AgentHandle, MachineInfo
from polyplay.workers.hosts.remote_worker import RemoteWorker


@dataclass(eq=False)
class Machine:
    info: MachineInfo
    handle: AgentHandle
    link: ForkedProcess
    pipe: Connection
    number: int  # of its link
    workers: dict[int, RemoteWorker] = field(default_factory=dict)  # by number
    seats: set[tuple[str, int]] = field(default_factory=set)  # that began there
    threads: dict[int, int] = field(default_factory=dict)  # compute threads, by number
    lost: str | None = None
    stats: dict[str, Any] = field(default_factory=dict)  # of its link, the newest
    reported: dict[str, Any] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Cores that no worker computes on."""
        return self.info.cores - sum(self.threads.values())

    def command(self, kind: str, value: dict[str, Any]) -> None:
        """To the process of its link."""
        with contextlib.suppress(OSError):  # it is lost, and about to be found so
            self.pipe.send((kind, value))

    def report(self) -> dict[str, float]:
        """How it and its link do, since the last report."""
        now, old = dict(self.stats), self.reported
        self.reported = now
        passed = now["at"] - old.get("at", 0.0)
        rates = {
            name: round((now[key] - old.get(key, 0)) / passed / 1e6, 4) if old and passed > 0 else 0.0
            for name, key in (("mb_in", "received"), ("mb_out", "sent"))
        }
        load: dict[str, float] = {key: round(now[key], 3) for key in ("cpu", "memory") if key in now}
        return {"workers": len(self.workers), **rates, "round_trip_ms": round(now["round_trip"] * 1e3, 3), **load}

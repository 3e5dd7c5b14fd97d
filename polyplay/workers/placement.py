"""Which worker computes on which device: `--device` and `--actors-on`, read. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from polyplay.common.errors import UserError
from polyplay.common.machine import cores
from polyplay.workers.role import Role


@dataclass
class Placement:
    """device: auto, cpu or cuda; actors_on: cpu, or device: where learners compute."""

    device: str = "cpu"
    actors_on: str = "cpu"

    @property
    def devices(self) -> tuple[str, ...]:
        """That learners compute on. Raises UserError: there are none of that kind."""
        if self.device == "cpu":
            return ("cpu",)
        from polyplay.nets.device import choose_devices

        return choose_devices(self.device)

    @property
    def on_cpu(self) -> bool:
        return self.devices == ("cpu",)

    @property
    def parts(self) -> int:
        """Into how many replicas a page divides itself where that is left open: cores, or devices."""
        return cores() if self.on_cpu else len(self.devices)

    def steppers(self, actors: int) -> int:
        """Threads that step an actor's environments: one, where it computes on a core of its own; where a device does,
        all actors' are twice the cores, so that some step while others wait for it.
        """
        return 1 if self.actors_on == "cpu" or self.on_cpu else max(1, 2 * cores() // actors)

    def only_cpu(self, system: str) -> None:
        """The page has nothing for another device. Raises UserError if that was asked for."""
        if self.device == "cuda":
            raise UserError(f"--device: cuda given, but {system}'s workers compute on the CPU alone; use auto or cpu")
        self.device = "cpu"

    def of(self, role: Role, index: int) -> str:
        """Worker `index` of a role: processes take devices in turn, threads share the first."""
        if role.envs is not None and role.spec is None and self.actors_on == "cpu":
            return "cpu"
        return self.devices[index % len(self.devices) if role.on == "process" else 0]

"""What a worker knows about itself: which one it is, its seed, its row of the meter, and what the crew wants of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from polyplay.shared import Control, Meter, MeterRow


def keyed(seed: int, incarnation: int) -> int:
    """Seeds environments and noise: a worker that takes another one's place must not repeat its past."""
    return seed + 1_000_003 * incarnation


@dataclass
class Me:
    role: str
    index: int  # among the workers of this role
    n: int  # workers of this role
    row: int  # of the meter
    seed: int  # of the run
    meters: Meter
    control: Control
    directory: Path | None = None  # where checkpoints and reports of this run go
    resume: Path | None = None  # the checkpoint this run goes on from
    incarnation: int = 0  # how often this worker was replaced, plus 1000 × resumptions that it began anew in
    threads: int = 1  # compute threads
    trace: bool = False  # write every update's loss
    patience: float = 0.1  # seconds a wait lasts before it answers "nothing yet"; 0 when all run in one thread
    leaving: bool = False  # a thread that is to end when nothing is in its hands
    say: Callable[[str, str], None] = lambda kind, text: None  # to the main process: ("warning" | "unsaved", text)
    meter: MeterRow = field(init=False)

    def __post_init__(self) -> None:
        self.meter = self.meters.row(self.row)

    @property
    def noise_seed(self) -> int:
        """Action noise is keyed by this and by the lanes' numbers."""
        return keyed(self.seed, self.incarnation)

    @property
    def env_seed(self) -> int:
        return keyed(self.seed, self.incarnation)

    def turn(self) -> None:
        """Called at every turn of a worker's loop: says that it lives, and raises Closed when all is to be dropped."""
        self.meter.stamp()
        self.control.check()

    def __getstate__(self) -> dict:
        state = dict(self.__dict__)
        del state["meter"], state["say"]
        return state

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self.meter = self.meters.row(self.row)

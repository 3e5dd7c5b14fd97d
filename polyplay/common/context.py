"""The context of a worker: which one it is, its seed, its counters, and what the crew wants of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from polyplay.common.bounds import SEATS
from polyplay.common.control import RunControl
from polyplay.common.counters import Counters, WorkerCounters
from polyplay.common.shared_memory import SharedObject

ENDING = 1.0  # seconds that a rollout may still take when the run ends; one that takes longer is dropped


def seed_of(seed: int, incarnation: int) -> int:
    """The seed of environments and noise: a replacement must not repeat the episodes of the worker before it."""
    return seed + 1_000_003 * incarnation


def next_incarnation(incarnation: int | None, resumes: int) -> int:
    """The incarnation of the next worker at a seat; None: it is the first. Multiples of 1000 begin with the run (or a
    resumed one); after 999 replacements the numbers repeat.
    """
    replaced = 0 if incarnation is None else incarnation % 1000 % 999 + 1
    return replaced + 1000 * resumes


class RoleSize(SharedObject):
    """How many workers a role is to have, and has, and which are to leave. Anyone may ask; the main process acts."""

    dismissed: np.ndarray  # by seat: whether its worker is to leave
    _cells: np.ndarray

    def __init__(self, n: int = 0):
        super().__init__(_cells=(8, np.int64), dismissed=(SEATS, np.int64))
        self._cells[:2] = n

    wanted = property(lambda self: int(self._cells[0]))

    def ask(self, n: int) -> None:
        self._cells[0] = n

    def get(self) -> int:
        """Workers that there are now, those that have not left yet included."""
        return int(self._cells[1])

    def count(self, n: int) -> None:
        self._cells[1] = n


@dataclass
class WorkerContext:
    OWN: ClassVar[tuple[str, ...]] = (
        "counters",
        "say",
        "rescue",
        "write_part",
        "number",
    )  # of the worker's own process

    role: str
    index: int  # among the workers of this role
    n: int  # workers of this role
    row: int  # of the counters
    seed: int  # of the run
    all_counters: Counters
    control: RunControl
    directory: Path | None = None  # where checkpoints and reports of this run go
    resume: Path | None = None  # the checkpoint this run goes on from
    anew: bool = False  # without what it has of lanes and of rollouts in flight
    incarnation: int = 0  # how often this worker was replaced, plus 1000 × resumptions that it began anew in
    threads: int = 1  # compute threads
    trace: bool = False  # write every update's loss
    precision: str = "float32"  # of networks, see nets.precision
    device: str = "cpu"  # that it computes on: see polyplay.nets.device
    reuse: bool = True  # learn from what was computed while acting, where the weights are the same
    heads: RoleSize | None = None  # of this role
    drains: bool = False  # it ends by itself once it is to leave; else it is ended at its next turn
    meeting: int = 0  # the one that it waits for others in, by number; 0: it does not
    patience: float = 0.1  # seconds a wait lasts before it answers "nothing yet"; 0 when all run in one thread
    # to the main process: ("warning" | "caution" | "remark" | "note" | "unsaved" | "decision", text)
    say: Callable[[str, str], None] = lambda kind, text: None
    served: tuple[int, ...] = ()  # rows of the counters of the agents that workers of this role learn for
    ending_since: float = 0.0  # when this worker saw that the run ends; 0: it has not
    rescue: Callable[[], None] | None = None  # of a learner: save what is whole, where the run has failed
    # where checkpoints are made between two rounds of turns: write its part of the one of that number;
    write_part: Callable[[int], None] | None = None
    number: Callable[[], int] | None = None  # and of a learner, the number of one that is made now

    @cached_property
    def counters(self) -> WorkerCounters:
        return self.all_counters.row(self.row)

    @property
    def noise_seed(self) -> int:
        """Action noise is keyed by this and by the lanes' numbers."""
        return seed_of(self.seed, self.incarnation)

    env_seed = noise_seed

    @property
    def serial(self) -> bool:
        """Whether all workers take turns in one thread: nothing comes while this one waits."""
        return self.patience == 0.0

    @property
    def leaving(self) -> bool:
        """Whether this worker is to leave: its role has fewer workers from now on."""
        return self.heads is not None and bool(self.heads.dismissed[self.index])

    def late(self, left: float = 0.0) -> bool:
        """Whether the run ends, and what this worker does is not waited for: it takes `left` seconds more, or has had
        its time.
        """
        if not self.control.finishing:
            return False
        self.ending_since = self.ending_since or time.monotonic()
        return max(left, time.monotonic() - self.ending_since) > ENDING

    def turn(self) -> None:
        """Called at every turn of a worker's loop: stamps its counters, and raises Closed when the run is halted."""
        self.counters.stamp()
        self.control.check()

    def __getstate__(self) -> dict:
        return {name: value for name, value in vars(self).items() if name not in self.OWN}

"""What two machines mirror of the objects that their workers share. Imports no torch before weights are mirrored.

A cell has one writer at a time. A mirror sends what was written on its machine, data before the number that says that
they are there, and in order; the other machine's mirror writes the same into the twin, and rings the bells there.

`home` is the main process's machine, `away` another one, on which workers have *seats*. A frame is (part, i, arrays):
part `part` of the object, its number `i`. The other side's `places` knows where the bytes of that belong.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from polyplay.buffers.replay_worker import SampleQueue
from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core.errors import UserError
from polyplay.core.shared_memory import SharedObject
from polyplay.core.worker import EPISODES, Counters, Hyperparameters, RunControl

Frame = tuple[int, int, list[np.ndarray]]
CELLS, REMAINING = range(2)  # parts of small arrays, of hyperparameters
COUNTS, GAME = range(2)  # parts of counters, by row; by row and place
COUNTING = 0.25  # seconds between two copies of a worker's counters


@dataclass(frozen=True)
class RemoteSeat:
    """A worker on another machine: its index in its role, its row of the counters."""

    index: int
    row: int
    group: tuple[int, ...] = ()  # who learns: all of its role that are on that machine and wait for each other
    role: str = ""
    end: str = ""  # as what it holds the mirrored object (Role.edges); of most it does not matter

    @property
    def name(self) -> str:
        """As files of a checkpoint have it."""
        return f"{self.role}-{self.index}"


def seat_of(value: dict[str, Any]) -> RemoteSeat:
    """As it travels."""
    return RemoteSeat(int(value["index"]), int(value["row"]), tuple(value["group"]), str(value["role"]))


class MachineCopy(ABC):
    """One object's. `away`: this side is the other machine's."""

    away = False
    relay: int | None = 0  # number of the link whose bell rings for this side
    last = False  # who sees its news relies on what was written to others before

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Both sides, before their link begins."""

    def begin(self, seat: RemoteSeat) -> Iterator[Frame]:
        """home: a worker will begin there, with what the object has here of its seat."""
        yield from ()

    def sit(self, seat: RemoteSeat) -> None:  # noqa: B027 - most need nothing
        """Both sides: from now on that seat's worker is away."""

    @abstractmethod
    def changes(self, now: float) -> Iterator[Frame]:
        """What was written on this machine since the last call."""

    @cached_property
    def sent(self) -> dict[tuple[int, int], bytes]:
        """Small frames that the other side has, by part and number."""
        return {}

    def if_new(self, part: int, i: int, arrays: list[np.ndarray]) -> Iterator[Frame]:
        """A small frame, where the other side has another."""
        if (whole := b"".join(x.tobytes() for x in arrays)) != self.sent.get((part, i)):
            self.sent[part, i] = whole
            yield part, i, arrays

    @abstractmethod
    def places(self, part: int, i: int) -> list[np.ndarray]:
        """Where the bytes of a frame from the other side go."""

    def arrived(self, part: int, i: int) -> None:  # noqa: B027 - of some nobody has to know
        """They are there."""

    def answers(self, part: int, i: int) -> str | None:
        """The name of the seat whose part of a checkpoint a frame says is written; None: it says something else."""
        return None

    def close(self) -> None:  # noqa: B027 - on most nobody waits
        """away: end every wait."""


class CellsMirror(MachineCopy):
    """home → away: small arrays, whole, when they have changed. Nobody waits for these by a bell."""

    def __init__(self, thing: Any, *names: str):
        self.thing, self.names = thing, names

    def places(self, part: int, i: int) -> list[np.ndarray]:
        return [vars(self.thing)[name] for name in self.names]

    def changes(self, now: float) -> Iterator[Frame]:
        if not self.away:
            yield from self.if_new(CELLS, 0, [vars(self.thing)[name].copy() for name in self.names])


class HyperparametersMirror(CellsMirror):
    """But what learners write themselves: what is scheduled, and `remaining`, of the run, of which the first one's
    comes home.
    """

    def __init__(self, thing: Hyperparameters):
        super().__init__(thing, "_values")
        self._theirs, self._own = np.zeros(len(thing.configured)), np.ones(len(thing.configured), bool)
        self._remaining, self._first = np.ones(1), False

    def sit(self, seat: RemoteSeat) -> None:
        for i, name in enumerate(self.thing.configured if seat.group else ()):
            self._own[i] = name not in ("remaining", *(schedule.name for schedule in self.thing.schedules))
        self._first |= 0 in seat.group and "remaining" in self.thing.configured

    def changes(self, now: float) -> Iterator[Frame]:
        if self.away and self._first:
            yield from self.if_new(REMAINING, 0, [np.array([self.thing.remaining])])
        yield from super().changes(now)

    def places(self, part: int, i: int) -> list[np.ndarray]:
        return [self._remaining if part == REMAINING else self._theirs]

    def arrived(self, part: int, i: int) -> None:
        if part == REMAINING:
            self.thing.set("remaining", float(self._remaining[0]))
        else:
            self.thing._values[self._own] = self._theirs[self._own]


class CountersMirror(MachineCopy):
    """away → home: the counters of each seat, and its new games; home → away: what a seat begins with."""

    def __init__(self, counters: Counters):
        self.counters = counters
        self._names: dict[int, str] = {}  # of seats, by row
        self._saved: dict[int, float] = {}  # by row: the last checkpoint whose part was sent
        self._values = np.zeros_like(counters.values[0])
        self._games: dict[int, int] = {}  # by row: games that the other side has
        self._next = 0.0

    def _cells(self, row: int) -> list[np.ndarray]:
        counters = self.counters
        return [counters.values[row], counters.lags[row], counters.sizes[row], counters.metrics[row]]

    def begin(self, seat: RemoteSeat) -> Iterator[Frame]:
        yield COUNTS, seat.row, [*map(np.array, self._cells(seat.row))]

    def sit(self, seat: RemoteSeat) -> None:
        self._games.setdefault(seat.row, int(self.counters.row(seat.row).get("episodes")))
        self._names[seat.row] = seat.name

    def changes(self, now: float) -> Iterator[Frame]:
        if not self.away or now < self._next:
            return
        self._next = time.monotonic() + COUNTING
        for row in list(self._names):
            cells = [*map(np.array, self._cells(row))]  # before the games: no game is counted that did not travel
            until = int(cells[0][self.counters.columns["episodes"]])
            for number in range(max(self._games[row], until - EPISODES), until):
                at = number % EPISODES
                yield GAME, row * EPISODES + at, [self.counters.games[row, at]]
            self._games[row], self._sending = until, cells[0]
            yield from self.if_new(COUNTS, row, cells)

    def answers(self, part: int, i: int) -> str | None:
        """A learner's counters say which part it has written."""
        if part == GAME:
            return None
        saved = float(self._sending[self.counters.columns["saved"]])
        if saved == self._saved.get(i, 0.0):
            return None
        self._saved[i] = saved
        return self._names[i]

    def places(self, part: int, i: int) -> list[np.ndarray]:
        return [self.counters.games[divmod(i, EPISODES)]] if part == GAME else [self._values, *self._cells(i)[1:]]

    def arrived(self, part: int, i: int) -> None:
        if part == COUNTS:
            values = self.counters.values[i]
            if self._values[1] != values[1]:
                self._values[0] = time.monotonic()  # that machine has another clock
            values[:] = self._values


def mirror_of(thing: SharedObject, holder: str = "the run") -> MachineCopy:
    """holder: a role. Raises UserError: it does not cross machines."""
    from polyplay.weights.parameter_server import ParameterServer
    from polyplay.weights.params import Params
    from polyplay.weights.update import AllReduce
    from polyplay.workers.hosts import queue_mirrors, weight_mirrors

    makes: dict[type, Callable[[Any], MachineCopy]] = {
        RunControl: lambda thing: CellsMirror(thing, "_flags", "dismissed"),
        Hyperparameters: HyperparametersMirror,
        Counters: CountersMirror,
        RolloutQueue: queue_mirrors.QueueMirror,
        SampleQueue: queue_mirrors.SampleMirror,
        Params: weight_mirrors.ParamsMirror,
        AllReduce: weight_mirrors.AllReduceMirror,
        ParameterServer: weight_mirrors.ServerMirror,
    }
    if type(thing) not in makes:
        what = f"{holder} shares a {type(thing).__name__} with others"
        raise UserError(f"--hosts: {what}, which does not cross machines yet; leave --hosts out")
    return makes[type(thing)](thing)

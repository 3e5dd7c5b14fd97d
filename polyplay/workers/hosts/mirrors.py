"""What two machines mirror of the objects that their workers share. Imports no torch before weights are mirrored.

A cell has one writer at a time. A mirror sends what was written on its machine, data before the number that says that
they are there, and in order; the other machine's mirror writes the same into the twin, and rings the bells there.

`home` is the main process's machine, `away` another one, on which workers have *seats*. Frames are (item, arrays): the
item tells the other side's `places` where the bytes belong, and so how many there may be.
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
from polyplay.core.shared_memory import SharedObject
from polyplay.core.worker import EPISODE, EPISODES, Counters, Hyperparameters, RoleSize, RunControl

Frame = tuple[int, list[np.ndarray]]
GAMES = 32  # finished games in one frame
LEFT = 1  # item of hyperparameters
COUNTING = 0.25  # seconds between two copies of a worker's counters


class FrameError(Exception):
    """A frame that no other end of ours would send."""


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

    @property
    def learns(self) -> bool:
        return bool(self.group)


def seat_of(value: dict[str, Any]) -> RemoteSeat:
    """As it travels."""
    return RemoteSeat(int(value["index"]), int(value["row"]), tuple(value["group"]), str(value["role"]))


class ObjectMirror(ABC):
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
    def sent(self) -> dict[int, bytes]:
        """Small frames that the other side has, by item."""
        return {}

    def if_new(self, item: int, arrays: list[np.ndarray]) -> Iterator[Frame]:
        """A small frame, where the other side has another."""
        if (whole := b"".join(x.tobytes() for x in arrays)) != self.sent.get(item):
            self.sent[item] = whole
            yield item, arrays

    @abstractmethod
    def places(self, item: int) -> list[np.ndarray]:
        """Where the bytes of a frame from the other side go. Raises FrameError."""

    @abstractmethod
    def arrived(self, item: int) -> None:
        """They are there. Raises FrameError."""

    def answers(self, item: int) -> str | None:
        """The name of the seat whose part of a checkpoint a frame says is written; None: it says something else."""
        return None

    def close(self) -> None:  # noqa: B027 - on most nobody waits
        """away: end every wait."""


class CellsMirror(ObjectMirror):
    """home → away: small arrays, whole, when they have changed."""

    def __init__(self, thing: SharedObject, *names: str):
        self.thing, self.names = thing, names

    def _arrays(self) -> list[np.ndarray]:
        return [getattr(self.thing, name) for name in self.names]

    def changes(self, now: float) -> Iterator[Frame]:
        if not self.away:
            yield from self.if_new(0, [np.array(x) for x in self._arrays()])

    def places(self, item: int) -> list[np.ndarray]:
        if not self.away or item:
            raise FrameError(f"item {item} of {type(self.thing).__name__}")
        return self._arrays()

    def arrived(self, item: int) -> None:
        """Nobody waits for these by a bell."""


class HyperparametersMirror(CellsMirror):
    """But what learners write themselves: what is scheduled, and `remaining`, of the run, of which the first one's
    comes home.
    """

    def __init__(self, thing: Hyperparameters):
        super().__init__(thing, "_values")
        self._theirs, self._own = np.zeros(len(thing.configured)), np.ones(len(thing.configured), bool)
        self._left, self._first, self._last = np.ones(1), False, 1.0

    def sit(self, seat: RemoteSeat) -> None:
        for i, name in enumerate(self.thing.configured if seat.learns else ()):  # type: ignore[attr-defined]
            self._own[i] = name not in ("remaining", *self.thing.scheduled)  # type: ignore[attr-defined]
        self._first |= 0 in seat.group and "remaining" in self.thing.configured  # type: ignore[attr-defined]

    def changes(self, now: float) -> Iterator[Frame]:
        if self.away and self._first and (left := float(self.thing.remaining)) != self._last:  # type: ignore[attr-defined]
            self._last = left
            yield LEFT, [np.array([left])]
        yield from super().changes(now)

    def places(self, item: int) -> list[np.ndarray]:
        if item == LEFT and self._first and not self.away:
            return [self._left]
        super().places(item)
        return [self._theirs]

    def arrived(self, item: int) -> None:
        if item == LEFT:
            self.thing.set("remaining", float(self._left[0]))  # type: ignore[attr-defined]
        else:
            self._arrays()[0][self._own] = self._theirs[self._own]


class CountersMirror(ObjectMirror):
    """away → home: the counters of each seat, and its new games; home → away: what a seat begins with."""

    def __init__(self, counters: Counters):
        self.counters = counters
        self._names: dict[int, str] = {}  # of seats, by row
        self._saved: dict[int, float] = {}  # by row: the last checkpoint whose part was sent
        self._games = np.zeros((1 + GAMES, len(EPISODE)))  # one frame's: [first, how many], then the games
        self._values = np.zeros_like(counters.values[0])
        self._sent_games: dict[int, int] = {}
        self._next = 0.0

    def _rest(self, row: int) -> list[np.ndarray]:
        counters = self.counters
        return [counters.lags[row], counters.sizes[row], counters.metrics[row]]

    def begin(self, seat: RemoteSeat) -> Iterator[Frame]:
        yield 2 * seat.row, [np.array(self.counters.values[seat.row]), *map(np.array, self._rest(seat.row))]

    def sit(self, seat: RemoteSeat) -> None:
        self._sent_games.setdefault(seat.row, int(self.counters.row(seat.row).get("episodes")))
        self._names[seat.row] = seat.name

    def changes(self, now: float) -> Iterator[Frame]:
        if not self.away or now < self._next:
            return
        self._next = time.monotonic() + COUNTING
        for row in list(self._names):
            values = np.array(self.counters.values[row])  # before the games: no game is counted that did not travel
            yield from self._new_games(row, int(values[self.counters.columns["episodes"]]))
            self._sending = values
            yield from self.if_new(2 * row, [values, *map(np.array, self._rest(row))])

    def answers(self, item: int) -> str | None:
        """A learner's counters say which part it has written."""
        row, games = divmod(item, 2)
        if games:  # they travel first
            return None
        saved = float(self._sending[self.counters.columns["saved"]])
        if saved == self._saved.get(row, 0.0):
            return None
        self._saved[row] = saved
        return self._names[row]

    def _new_games(self, row: int, until: int) -> Iterator[Frame]:
        first = max(self._sent_games[row], until - EPISODES)
        while first < until:
            n = min(GAMES, until - first)
            frame = np.zeros_like(self._games)
            frame[0, :2] = first, n
            frame[1 : 1 + n] = self.counters.games[row, np.arange(first, first + n) % EPISODES]
            first += n
            yield 2 * row + 1, [frame]
        self._sent_games[row] = until

    def places(self, item: int) -> list[np.ndarray]:
        row, games = divmod(item, 2)
        if row >= self.counters.workers or (not self.away and row not in self._names) or (self.away and games):
            raise FrameError(f"item {item} of counters")
        return [self._games] if games else [self._values, *self._rest(row)]

    def arrived(self, item: int) -> None:
        row, games = divmod(item, 2)
        if games:
            first, n = self._games[0, :2]
            if not (0 <= n <= GAMES and 0 <= first < 1 << 52):
                raise FrameError("games that are none")
            at = np.arange(int(first), int(first) + int(n)) % EPISODES
            self.counters.games[row, at] = self._games[1 : 1 + int(n)]
            return
        values = self.counters.values[row]
        if self._values[1] != values[1]:
            self._values[0] = time.monotonic()  # that machine has another clock
        values[:] = self._values


def mirror_of(thing: SharedObject) -> ObjectMirror | None:
    """None: it does not cross machines."""
    from polyplay.weights.parameter_server import ParameterServer
    from polyplay.weights.params import Params
    from polyplay.weights.update import AllReduce
    from polyplay.workers.hosts import queue_mirrors, weight_mirrors

    makes: dict[type, Callable[[Any], ObjectMirror]] = {
        RunControl: lambda thing: CellsMirror(thing, "_flags"),
        Hyperparameters: HyperparametersMirror,
        RoleSize: lambda thing: CellsMirror(thing, "_cells", "dismissed"),
        Counters: CountersMirror,
        RolloutQueue: queue_mirrors.QueueMirror,
        SampleQueue: queue_mirrors.SampleMirror,
        Params: weight_mirrors.ParamsMirror,
        AllReduce: weight_mirrors.AllReduceMirror,
        ParameterServer: weight_mirrors.ServerMirror,
    }
    make = makes.get(type(thing))
    return make(thing) if make else None

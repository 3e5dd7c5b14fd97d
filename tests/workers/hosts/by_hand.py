"""Two ends of a line in one process, with frames carried by hand: no line, no machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch

from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core.shared_memory import Semaphores, SharedObject
from polyplay.core.tree import Field
from polyplay.workers.hosts import remote
from polyplay.workers.hosts.traffic import Frame, RemoteSeat, Traffic

T, LANES = 3, 2
ROLES = {"out": "act", "params": "act", "source": "serve_replay", "publish": "learn", "league": "act", "update": "a"}
LINES = Semaphores(8)  # home's ends


class Vector:
    """The part of FlatParams that is published and pulled."""

    def __init__(self, values: Sequence[float]):
        self.flat = torch.tensor(values)


def queue_of(producers: int = 2, share: int = 3) -> RolloutQueue:
    rows = {"obs": Field((4,), "float32"), "version": Field((), "int64"), "first": Field((), "bool")}
    queue = RolloutQueue(rows, {}, T, LANES, producers * share, producers)
    queue.patience = 0.0
    return queue


def fill(queue: RolloutQueue, slot: int, number: int) -> None:
    """Every cell of a rollout is its number, so a torn one is seen."""
    queue.rows["obs"][slot] = number
    queue.rows["version"][slot] = number
    queue.rows["first"][slot] = False


def seat_of(end: str, index: int = 0, row: int = 0, thing: int = 0, kinds: tuple[str, ...] = ()) -> RemoteSeat:
    return RemoteSeat(ROLES.get(end, end), index, row, ((thing, end),), kinds)


class Wire:
    """Home and a new machine. What is sent waits until it lands; seats travel as START does, after their frames."""

    def __init__(
        self,
        *things: SharedObject,
        relay: int = 0,
        numbers: remote.TwinNumbers | None = None,
        roots: tuple[Path | None, Path | None] = (None, None),
    ):
        remote._twins.clear()
        remote._twins[remote.BELLS] = bells = Semaphores(1)
        data, found = remote.dump(things, remote.TwinNumbers() if numbers is None else numbers)
        for bell in found:
            if isinstance(bell, Semaphores) and bell.relays is None:
                bell.relay_by(LINES)
        for thing in found:
            thing._attach()
        self.twins: Any = cloudpickle.loads(data)
        self.bells = LINES[relay], bells[0]
        self.home = Traffic(things, False, relay, roots[0])
        self.away = Traffic(self.twins, True, 0, roots[1])
        self.to_away, self.to_home = deque[Frame | RemoteSeat](), deque[Frame]()
        nothing: list[Frame] = []
        self._sending, self._sending_back = iter(nothing), iter(nothing)  # looks that go on

    def seat(self, *of: Any, land: bool = True, meanwhile: Callable[[], None] = lambda: None, **more: Any) -> None:
        """Begin a worker there. land: at once, else with what is on its way. meanwhile: others do, between frames."""
        seat = of[0] if isinstance(of[0], RemoteSeat) else seat_of(*of, **more)
        self.to_away.extend(self._sending)
        for frame in copied(self.home.begin(seat)):
            self.to_away.append(frame)
            meanwhile()
        self.home.sit(seat)
        self.to_away.append(seat)
        if land:
            self.land_away()

    def send(self, now: float = 0.0) -> None:
        self.to_away.extend([*self._sending, *copied(self.home.news(now))])

    def send_back(self, now: float = 0.0) -> None:
        self.to_home.extend([*self._sending_back, *copied(self.away.news(now))])

    def send_one(self) -> None:
        """A frame; workers go on before the next one of the same look."""
        if (frame := next(self._sending, None)) is None:
            self._sending = copied(self.home.news(0.0))
            frame = next(self._sending, None)
        self.to_away.extend([] if frame is None else [frame])

    def send_one_back(self) -> None:
        if (frame := next(self._sending_back, None)) is None:
            self._sending_back = copied(self.away.news(0.0))
            frame = next(self._sending_back, None)
        self.to_home.extend([] if frame is None else [frame])

    def land_away(self, n: int = 1 << 30) -> None:
        for _ in range(min(n, len(self.to_away))):
            what = self.to_away.popleft()
            if isinstance(what, RemoteSeat):
                self.away.sit(what)
            else:
                self.away.land(what)

    def land_home(self, n: int = 1 << 30) -> None:
        for _ in range(min(n, len(self.to_home))):
            self.home.land(self.to_home.popleft())

    def out(self, now: float = 0.0) -> None:
        self.send(now)
        self.land_away()

    def back(self, now: float = 0.0) -> None:
        self.send_back(now)
        self.land_home()

    def both(self, now: float = 0.0) -> None:
        self.back(now)
        self.out(now)


def copied(frames: Iterable[Frame]) -> Iterator[Frame]:
    """As a line does where they are sent."""
    for number, part, i, arrays in frames:
        yield number, part, i, [np.array(x, order="C") for x in arrays]


def files_in(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

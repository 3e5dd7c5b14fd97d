"""Mirrors driven by hand in one process: no link, no machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core.shared_memory import Semaphores
from polyplay.core.tree import Field
from polyplay.workers.hosts import agent
from polyplay.workers.hosts.mirrors import MachineCopy, RemoteSeat

T, LANES = 3, 2
ROLES = {"out": "act", "params": "act", "source": "memory", "publish": "learn"}


class Vector:
    """The part of FlatParams that is published and pulled."""

    def __init__(self, values: list[float]):
        self.flat = torch.tensor(values)


def queue_of(producers: int = 2, share: int = 3) -> RolloutQueue:
    rows = {"obs": Field((4,), np.float32), "version": Field((), np.int64), "first": Field((), np.bool_)}
    return RolloutQueue(rows, {}, T, LANES, producers * share, producers)


def forget() -> None:
    agent._blocks.clear()
    agent._made.clear()
    agent.relay_by(Semaphores(1))


class Pair:
    """A mirror here and its other side, with frames carried at will."""

    def __init__(self, home: MachineCopy, numbers: agent.TwinNumbers | None = None):
        self.home = home
        data, self.found = agent.dump(home, numbers or agent.TwinNumbers())
        bells = Semaphores(4)
        for thing in self.found:
            if isinstance(thing, Semaphores):
                thing.relay_by(bells)
        for thing in self.found:
            thing._attach()
        self.away: Any = agent.load(data)
        self.away.away = True
        for side in (self.home, self.away):
            side.prepare()

    def seat(self, index: int, row: int = 0, end: str = "out") -> None:
        seat = RemoteSeat(index, row, role=ROLES[end], end=end)
        carry(self.home.begin(seat), self.away)
        for side in (self.home, self.away):
            side.sit(seat)

    def out(self, now: float = np.inf) -> None:
        carry(self.home.changes(now), self.away)

    def back(self, now: float = 0.0) -> None:
        carry(self.away.changes(now), self.home)


def carry(frames: Any, to: Any) -> None:
    for part, i, arrays in frames:
        data = b"".join(x.tobytes() for x in arrays)
        for place in to.places(part, i):
            assert place.flags.c_contiguous
            place.reshape(-1).view(np.uint8)[:] = np.frombuffer(data[: place.nbytes], np.uint8)
            data = data[place.nbytes :]
        assert not data, (part, i)
        to.arrived(part, i)


def fill(queue: RolloutQueue, slot: int, number: int) -> None:
    """Every cell of a rollout is its number, so a torn one is seen."""
    queue.rows["obs"][slot] = number
    queue.rows["version"][slot] = number
    queue.rows["first"][slot] = False

"""Random walks of workers, lines and machines: no rollout is lost, doubled or out of order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.buffers import queue_flows
from polyplay.core import flows
from polyplay.workers.hosts import remote, traffic
from tests.workers.hosts.by_hand import Wire, fill, queue_of


class Walk:
    """Two producers, and a reader who is here or on machine 1. A producer begins here; it may be replaced, go on on
    machine 0 or 1, or with machine 0, which may be lost once what it wrote is home. The reader asks for checkpoints.
    """

    def __init__(self, reader_away: bool):
        self.queue, self.numbers = queue_of(2, 3), remote.TwinNumbers()
        self.wires = [self._machine(0), self._machine(1)]
        if reader_away:
            self.wires[1].seat("source")
        self.where: list[int | None] = [None, None]
        self.sides: list[Any] = [self.queue, self.queue]
        self.writers, self.made = [self.queue.producer(p) for p in range(2)], [0, 0]
        self.there: Any = self.wires[1].twins[0] if reader_away else self.queue
        self.batches, self.seen = self.there.batches(1).consumer(0, wait=False), list[list[int]]([[], []])
        self.learnt = list[list[int]]()  # by checkpoint that was asked for: rollouts taken before, of each producer
        self.answered = dict[tuple[int, int], int]()  # by producer and checkpoint: rollouts made before
        self.on, self.acting, self.turn = False, list[int](), 0  # who goes on while a line reads or writes

    def _machine(self, relay: int) -> Wire:
        return Wire(self.queue, relay=relay, numbers=self.numbers)

    # ---- what workers do

    def make(self, p: int) -> bool:
        slot = self.writers[p].slot()
        if slot is None:
            return False
        fill(self.sides[p], slot, 1000 * p + self.made[p])
        self.writers[p].commit(slot)
        self.made[p] += 1
        return True

    def read(self) -> bool:
        batch = next(self.batches)
        if batch is None:
            return False
        (number,) = set(batch[0]["obs"].ravel().tolist())
        p, i = divmod(int(number), 1000)
        self.seen[p].append(i)
        return True

    def ask(self) -> None:
        self.learnt.append([self.there.learnt(p) for p in range(2)])
        self.there.ask(0, len(self.learnt) - 1)

    def answer(self, p: int) -> None:
        """What was taken before it was asked for is known."""
        side = self.sides[p]
        if (version := side.asked(p)) is not None:
            assert side.learnt(p) >= self.learnt[version][p]
            self.answered[p, version] = self.made[p]
            side.answer(p, version)

    def gather(self) -> None:
        """What was made before it was answered is here."""
        for p in range(2):
            if version := int(self.there.answered[p]):
                assert self.there.made(p) >= self.answered[p, version - 1]

    # ---- who is where

    def seat(self, p: int, m: int) -> None:
        """A new one, where it is or from here on a machine; the one before was filling a slot."""
        if self.where[p] not in (None, m):
            return
        self.writers[p].slot()
        if self.where[p] is None:
            self.where[p], side = m, self.wires[m].twins[0]
            self.wires[m].seat("out", p, land=False, meanwhile=self.go_on)
            self.wires[m].land_away()
            self.sides[p] = side
            self.answer(1 - p)
        self.writers[p] = self.sides[p].producer(p)

    def go_on(self) -> None:
        """What workers do while a line is between two cells."""
        self.turn += self.on
        if self.on and self.turn % 2:
            while self.read():  # what was taken is given back at the next
                pass
            self.ask()
        for p in self.acting if self.on else ():
            self.make(p)
            self.answer(p)

    def lose(self, m: int) -> None:
        """Machine 0, whose producers go on on a machine."""
        self.wires[0].back()
        there = [p for p in range(2) if self.where[p] == 0]
        self.wires[0] = self._machine(0)
        for p in there:
            self.where[p], self.sides[p] = None, self.queue
            self.writers[p] = self.queue.producer(p)
        for p in there:
            self.seat(p, m)

    def step(self, what: str, p: int, go_on: bool) -> None:
        """go_on: workers do, those that don't begin."""
        wire = self.wires[p]
        idle = {p} if what.startswith("seat") else {0, 1} if what == "lose" else set()
        self.on, self.acting = go_on, [i for i in range(2) if i not in idle]
        steps: dict[str, Any] = {
            "make": lambda: self.make(p),
            "read": self.read,
            "ask": self.ask,
            "answer": lambda: self.answer(p),
            "send": wire.send,
            "send back": wire.send_back,
            "send one": wire.send_one,
            "send one back": wire.send_one_back,
            "land": lambda: wire.land_away(2),
            "land home": lambda: wire.land_home(2),
            "seat": lambda: self.seat(p, 0),
            "seat too": lambda: self.seat(p, 1),
            "lose": lambda: self.lose(p),
        }
        steps[what]()
        self.on = False
        self.gather()

    def end(self) -> None:
        for _ in range(6):
            for wire in self.wires:
                wire.both()
            for p in range(2):
                self.answer(p)
            while self.read():
                pass
        self.gather()
        for p in range(2):
            assert self.seen[p] == list(range(self.made[p]))
            assert not self.learnt or self.there.late(0, len(self.learnt) - 1) == []
            assert [self.make(p) for _ in range(4)] == [True] * 3 + [False], "a slot was lost"


WALKS = ["make", "make", "make", "read", "read", "ask", "answer", "send", "send back", "send one", "send one back"]
WALKS += ["send one", "send one back", "land", "land home", "seat", "seat too", "lose", "lose"]


MOVES = st.lists(st.tuples(st.sampled_from(WALKS), st.integers(0, 1), st.booleans()), min_size=40, max_size=100)


@settings(max_examples=100)
@given(away=st.booleans(), moves=MOVES)
def test_a_reader_sees_every_rollout_once_and_in_order_however_lines_send_and_workers_begin_anew(away, moves):
    walk = Walk(away)
    with pytest.MonkeyPatch.context() as patch:
        for module in (flows, queue_flows, traffic):
            patch.setattr(module, "memory_barrier", walk.go_on)
        for move in moves:
            walk.step(*move)
    walk.end()

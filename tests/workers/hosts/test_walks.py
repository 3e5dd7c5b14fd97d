"""Random walks of workers, lines and machines: no rollout is lost, doubled or out of order."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.workers.hosts import remote
from tests.workers.hosts.by_hand import Wire, fill, queue_of


class Walk:
    """Two producers and a reader, who is here or on machine 1; any of them may begin anew on machine 0 or 1. Machine 0
    may be lost, once what it wrote has come home.
    """

    def __init__(self, reader_away: bool):
        self.queue, self.numbers = queue_of(2, 3), remote.TwinNumbers()
        self.wires = [self._machine(0), self._machine(1)]
        if reader_away:
            self.wires[1].seat("source")
        self.where: list[int | None] = [None, None]
        self.sides: list[Any] = [self.queue, self.queue]
        self.writers, self.made = [self.queue.producer(p) for p in range(2)], [0, 0]
        there = self.wires[1].twins[0] if reader_away else self.queue
        self.batches, self.seen = there.batches(1).consumer(0, wait=False), list[list[int]]([[], []])

    def _machine(self, relay: int) -> Wire:
        return Wire(self.queue, relay=relay, numbers=self.numbers)

    def make(self, p: int) -> bool:
        slot = self.writers[p].slot()
        if slot is None:
            return False
        fill(self.sides[p], slot, 1000 * p + self.made[p])
        self.writers[p].commit(slot)
        self.made[p] += 1
        return True

    def read(self, _: int) -> bool:
        batch = next(self.batches)
        if batch is None:
            return False
        (number,) = set(batch[0]["obs"].ravel().tolist())
        p, i = divmod(int(number), 1000)
        self.seen[p].append(i)
        return True

    def seat(self, p: int, m: int) -> None:
        """From here to a machine, or a new one in its place, which was filling a slot."""
        if self.where[p] is None:
            self.writers[p].slot()
            self.wires[m].seat("out", p, land=False)
            self.wires[m].land_away()
            self.where[p], self.sides[p] = m, self.wires[m].twins[0]
        elif self.where[p] == m:
            self.writers[p].slot()
        else:
            return
        self.writers[p] = self.sides[p].producer(p)

    def lose(self, p: int) -> None:
        self.wires[0].back()
        there = [i for i in range(2) if self.where[i] == 0]
        self.wires[0] = self._machine(0)
        for i in there:
            self.where[i] = None
            self.sides[i] = self.queue
            self.writers[i] = self.queue.producer(i)
            self.seat(i, p)

    def step(self, what: str, p: int) -> None:
        wire = self.wires[p]
        match what:
            case "make":
                self.make(p)
            case "read":
                self.read(p)
            case "send":
                wire.send()
            case "send back":
                wire.send_back()
            case "land":
                wire.land_away(2)
            case "land home":
                wire.land_home(2)
            case "seat":
                self.seat(p, 0)
            case "seat too":
                self.seat(p, 1)
            case "lose":
                self.lose(p)

    def end(self) -> None:
        for _ in range(6):
            for wire in self.wires:
                wire.both()
            while self.read(0):
                pass
        for p in range(2):
            assert self.seen[p] == list(range(self.made[p]))
            assert [self.make(p) for _ in range(4)] == [True] * 3 + [False], "a slot was lost"


WALKS = ["make", "make", "read", "send", "send back", "land", "land home", "seat", "seat too", "lose"]


@settings(max_examples=150)
@given(away=st.booleans(), moves=st.lists(st.tuples(st.sampled_from(WALKS), st.integers(0, 1)), max_size=80))
def test_a_reader_sees_every_rollout_once_and_in_order_however_lines_send_and_workers_begin_anew(away, moves):
    walk = Walk(away)
    for what, p in moves:
        walk.step(what, p)
    walk.end()

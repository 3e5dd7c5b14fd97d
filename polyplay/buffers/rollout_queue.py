"""Rollouts in flight: fixed slots in shared memory, and rings of the numbers of the empty and the full ones.

A slot is [T+1, lanes]: row t as docs/concepts/rows.md has it, plus the recurrent state before row 0.
Every producer (an acting worker) owns its share of the slots and feeds one consumer (a learner): producer p feeds
consumer p mod consumers, so every ring has one writer and one reader. Imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from math import gcd
from typing import Any, ClassVar, Protocol

import numpy as np

from polyplay.buffers.rollout_slots import Collator
from polyplay.common import tree
from polyplay.common.edges import Arrow
from polyplay.common.errors import Closed, UserError
from polyplay.common.ring import Ring
from polyplay.common.semaphores import Semaphores
from polyplay.common.shared_memory import LINE, Layout, SharedBlock
from polyplay.common.tree import Batch, Field, Spec

# Who holds a slot: written by the holder *before* it takes the number out of a ring, so a slot that is FILLING and in
# no ring was in the hands of an actor that died.
FILLING, READING = 1, 2
UNWRITTEN = -1  # in a row's version: nothing was written there yet

ROWS: Spec = {
    "reward": Field((), "float32"),
    "terminated": Field((), "bool"),
    "truncated": Field((), "bool"),
    "first": Field((), "bool"),
    "version": Field((), "int64"),
    "agent": Field((), "int32"),  # whose weights chose; 0, as the memory begins, where there is one agent
}


class EnvSpecLike(Protocol):
    @property
    def obs(self) -> Spec: ...
    @property
    def mask(self) -> Spec | None: ...


class EnvsLike(Protocol):
    @property
    def lanes(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def spec(self) -> EnvSpecLike: ...


class PolicyLike(Protocol):
    def spec(self) -> Spec: ...
    def state_spec(self) -> Spec: ...


def row_spec(obs: Spec, policy: Spec, mask: Spec | None = None) -> Spec:
    """Fields of a row and lane: what arrives (obs, …, and the mask of legal actions where the environment has one),
    what the policy said (action, logp, value), and its version.
    """
    return {"obs": obs, **({} if mask is None else {"mask": mask}), **ROWS, **policy}


def slots_per_batch(batch: int, lanes: int, actors: int, slots: int, learners: int, lag: int) -> int:
    """Slots in one learner's part of a batch of `batch` trajectories. Raises UserError: all would wait for all."""
    if learners < 1:
        raise UserError(f"--learners: {learners} given, allowed: a whole number from 1 up")
    each, rest = divmod(batch, learners * lanes)
    if rest or not each:
        raise UserError(f"--batch {batch} is not a multiple of --learners {learners} x --lanes {lanes}")
    fed = actors // learners
    most = fed * slots if lag < 0 else min(fed * slots, fed * lag + gcd(fed, each))
    if each > most or (lag >= 0 and actors % learners):
        raise UserError(
            f"--batch {batch} takes {each} rollouts of --lanes {lanes} for one update; --actors {actors}, "
            f"--learners {learners}, --slots {slots} and --lag {lag} allow {most}: lower it or raise --actors"
        )
    return each


class RolloutQueue:
    """`slots` rollouts of T+1 rows and `lanes` lanes, shared by `producers` actors and `consumers` learners."""

    memory: ClassVar[str] = "rollouts"

    def __init__(
        self,
        rows: Spec,
        state: Spec,
        T: int,
        lanes: int,
        slots: int,
        producers: int = 1,
        consumers: int = 1,
        groups: int = 1,
    ):
        """groups: of an actor's lanes, which fill a slot each in a round."""
        if slots % producers or producers < consumers:
            raise ValueError(f"{slots} slots for {producers} producers and {consumers} consumers do not divide")
        self.T, self.lanes, self.slots = T, lanes, slots
        self.producers, self.consumers, self.groups = producers, consumers, groups
        self.share = slots // producers
        layout = Layout()
        self._fields = {
            "rows": tree.map(lambda f: layout.add((slots, T + 1, lanes, *f.shape), f.dtype), rows),
            "state": tree.map(lambda f: layout.add((slots, lanes, *f.shape), f.dtype), state),
            "use": layout.add((slots, LINE // 8), np.int64),
            "rings": layout.add((2, producers, -(-Ring.cells(self.share) // 8) * 8), np.int64),
            "by": layout.add(slots, np.int64),
            "base": layout.add(producers, np.int64),
            "asked": layout.add(consumers, np.int64),
            "answered": layout.add(producers, np.int64),
            "closed": layout.add(8, np.int64),
        }
        self.block: SharedBlock = layout.block()
        self._bells = Semaphores(producers + consumers)
        self.patience = 0.1  # seconds a wait lasts before it answers "nothing yet"; 0 when all run in one thread
        self._attach()
        for slot in range(slots):
            self._free[slot // self.share].put(slot)
            self._bells[slot // self.share].post()

    @classmethod
    def of(
        cls, envs: EnvsLike, policy: PolicyLike, T: int, actors: int, slots: int = 4, readers: int = 1
    ) -> RolloutQueue:
        """For rollouts of T steps from `actors` workers with such environments and this network each; slots: of each
        actor.
        """
        rows, width = row_spec(envs.spec.obs, policy.spec(), envs.spec.mask), envs.lanes // envs.groups
        return cls(rows, policy.state_spec(), T, width, actors * slots * envs.groups, actors, readers, envs.groups)

    def label(self) -> str:
        return f"RolloutQueue: {self.slots} slots × {self.T + 1} rows × {self.lanes} lanes"

    def arrows(self) -> list[Arrow]:
        return [Arrow(self.label(), ("out",), ("source",))]

    @property
    def nbytes(self) -> int:
        return self.block.nbytes

    def _attach(self) -> None:
        def array(field: Any) -> np.ndarray:
            return self.block.array(*field)

        self.rows: Batch = tree.map(array, self._fields["rows"])
        self.state: Batch = tree.map(array, self._fields["state"])
        self.use = array(self._fields["use"])[:, 0]
        self.by = array(self._fields["by"])  # incarnation of the actor that filled a slot
        self.base = array(self._fields["base"])  # rollouts learnt before this stream began, by producer
        self._asked, self.answered = array(self._fields["asked"]), array(self._fields["answered"])
        self._closed = array(self._fields["closed"])
        cells = array(self._fields["rings"])[..., : Ring.cells(self.share)]
        self._free, self._full = ([Ring(cells[k, p]) for p in range(self.producers)] for k in (0, 1))
        self.ends = cells[1, :, 0:16:8]  # [producers, 2] head and tail of each full ring

    def producer(self, p: int) -> Producer:
        """The acting end number `p`. A worker that replaces a lost one gets back the slots that one was filling."""
        return Producer(self, p)

    def ask(self, c: int, version: int) -> None:
        """Have consumer `c`'s actors write their parts of update `version`'s checkpoint, at the end of a rollout."""
        self._asked[c] = version + 1

    def late(self, c: int, version: int) -> list[int]:
        """Producers of consumer `c` that have not answered that yet."""
        mine = range(c, self.producers, self.consumers)
        return [p for p in mine if abs(self.answered[p]) < version + 1]

    def failed(self, c: int) -> list[int]:
        """Producers of consumer `c` that could not write the last part that they were asked for."""
        return [p for p in range(c, self.producers, self.consumers) if self.answered[p] < 0]

    def made(self, p: int) -> int:
        """Rollouts that producer `p` gave away, in earlier runs too."""
        return int(self.base[p]) + int(self._full[p]._tail[0])

    def learnt(self, p: int) -> int:
        """Rollouts of producer `p` that a learner took, in earlier runs too."""
        return int(self.base[p]) + int(self._full[p]._head[0])

    def unfinished(self, p: int) -> tuple[int, int]:
        """Rollouts that producer `p`'s actor had begun, and the agent steps in them; of one that is dead."""
        slots = self.filling(p)
        written = self.rows["version"][slots] != UNWRITTEN
        steps = written[:, 1:] & ~self.rows["first"][slots, 1:]
        return int(written.any((1, 2)).sum()), int(np.count_nonzero(steps))

    def filling(self, p: int) -> list[int]:
        """Slots of producer `p` that are in no ring and with no learner."""
        known = set(self._free[p].peek()) | set(self._full[p].peek())
        own = range(p * self.share, (p + 1) * self.share)
        return [s for s in own if s not in known and self.use[s] == FILLING]

    def batches(self, n: int, in_turn: bool = False) -> RolloutBatches:
        """The learning end: batches of `n` slots. `.consumer(c)` is an iterator for learner `c`.

        `in_turn`: producers are taken strictly one after another, so every round has the same share of each: without
        it a fast actor's next rollout may take the place of a slow one's, whose lag then grows past what was asked for.
        """
        return RolloutBatches(self, n, in_turn)

    @property
    def depth(self) -> int:
        """Full slots that no learner has taken yet."""
        return int((self.ends[:, 1] - self.ends[:, 0]).sum())

    def close(self) -> None:
        """Every wait, now and later, raises Closed."""
        self._closed[0] = 1
        for i in range(self.producers + self.consumers):
            self._bells[i].post()

    def check(self) -> None:
        if self._closed[0]:
            raise Closed

    def bell(self, c: int) -> Any:
        """The semaphore that gets a token whenever consumer `c` has something to look at."""
        return self._bells[self.producers + c]

    def give_back(self, slots: list[int]) -> None:
        """Slots whose rows were taken go to their producers again."""
        for slot in slots:
            p = slot // self.share
            self._free[p].put(slot)
            self._bells[p].post()

    def reclaim(self, c: int) -> int:
        """Give back what a lost predecessor of consumer `c` was reading; how many slots."""
        found = []
        for p in range(c, self.producers, self.consumers):
            known = {*self._free[p].peek(), *self._full[p].peek()}
            own = range(p * self.share, (p + 1) * self.share)
            found += [s for s in own if s not in known and self.use[s] == READING]
        self.give_back(found)
        return len(found)

    def __getstate__(self) -> dict:
        names = (
            "T",
            "lanes",
            "slots",
            "producers",
            "consumers",
            "groups",
            "share",
            "_fields",
            "block",
            "_bells",
            "patience",
        )
        return {k: self.__dict__[k] for k in names}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._attach()


class Producer:
    """One actor's end of a RolloutQueue."""

    def __init__(self, queue: RolloutQueue, p: int):
        self.queue, self.p, self.T, self.lanes = queue, p, queue.T, queue.lanes
        self._free, self._full = queue._free[p], queue._full[p]
        self._bell, self._doorbell = queue._bells[p], queue._bells[queue.producers + p % queue.consumers]
        self._reclaimed = queue.filling(p)  # those a lost predecessor held
        queue.rows["version"][self._reclaimed] = UNWRITTEN

    def slot(self) -> int | None:
        """An empty slot, or None when there was none for a while. Raises Closed."""
        self.queue.check()
        if self._reclaimed:
            slot: int | None = self._reclaimed.pop()
        else:
            until = time.monotonic() + self.queue.patience
            while self._free.look() is None and (left := until - time.monotonic()) > 0:
                self._bell.wait(left)  # a token may be that of a slot that was taken before it came
                self.queue.check()
            slot = self._free.take(self.queue.use, FILLING)
            if slot is not None:
                self._bell.wait(0)  # its token, so that tokens never outnumber slots
        if slot is not None:
            self.queue.rows["version"][slot] = UNWRITTEN
        return slot

    @property
    def patience(self) -> float:
        return self.queue.patience

    @property
    def committed(self) -> int:
        """Rollouts this end has given away, its predecessors' included."""
        return self.queue.made(self.p)

    def asked(self) -> int | None:
        """The update whose checkpoint waits for this actor's part; None: no such."""
        wanted = int(self.queue._asked[self.p % self.queue.consumers])
        return wanted - 1 if wanted > abs(self.queue.answered[self.p]) else None

    def answer(self, version: int, failed: bool = False) -> None:
        self.queue.answered[self.p] = -(version + 1) if failed else version + 1

    def flight(self) -> Batch:
        """Copies of the rollouts that no learner took yet, while all learners wait."""
        queue, slots = self.queue, self._full.peek()
        whole = {"rows": queue.rows, "state": queue.state, "by": queue.by}
        return {str(i): tree.map(lambda x, s=s: np.array(x[s]), whole) for i, s in enumerate(slots)}

    def give(self, flight: Batch) -> None:
        """The inverse, on a stream that nothing went through yet."""
        for i in range(len(flight)):
            slot, kept = self.slot(), flight[str(i)]
            assert slot is not None  # they were in slots of a stream as large as this
            rows, state = self.views(slot)
            tree.write(rows, ..., kept["rows"])
            tree.write(state, ..., kept.get("state", {}))
            self.commit(slot, int(kept["by"]))

    def views(self, slot: int) -> tuple[Batch, Batch]:
        """The slot's rows, [T+1, lanes, …], and the state before them, [lanes, …]."""
        return tree.map(lambda x: x[slot], self.queue.rows), tree.map(lambda x: x[slot], self.queue.state)

    def commit(self, slot: int, by: int = 0) -> None:
        """Hand a finished slot to the learner. Its number is all that crosses. `by`: see RolloutQueue."""
        self.queue.by[slot] = by
        if (self.queue.rows["version"][slot] == UNWRITTEN).any():
            raise RuntimeError(f"slot {slot} was committed with rows that nobody wrote")
        self._full.put(slot)
        self._doorbell.post()


class RolloutBatches:
    """What crosses into a learner: a description that becomes an iterator there."""

    def __init__(self, queue: RolloutQueue, n: int, in_turn: bool = False):
        self.queue, self.n, self.in_turn = queue, n, in_turn
        self.order: Callable[[int, int], list[int]] | None = None  # (c, turn): producers of that batch, to reproduce

    @property
    def edge(self) -> RolloutQueue:
        return self.queue

    @property
    def joined_nbytes(self) -> float:
        """Bytes of a batch that is put together from several slots."""
        return self.queue.nbytes / self.queue.slots * self.n if self.n > 1 else 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """[T, B] of a batch."""
        return self.queue.T, self.n * self.queue.lanes

    def describe(self) -> list[str]:
        return [f"batch   {self.n} slots × {self.queue.lanes} lanes × {self.queue.T} steps"]

    def consumer(
        self,
        c: int,
        turn: int = 0,
        log: Callable[[list[int]], None] = lambda slots: None,
        join: Collator | None = None,
        wait: bool = True,
    ) -> Iterator[tuple[Batch, Batch] | None]:
        """Yield (rows [T+1, n·lanes, …], state [n·lanes, …]), or None when nothing came for a while. Raises Closed.

        The arrays are good until the next batch is asked for: then the slots go back to their producers. No slot is
        taken before a whole batch is there. `turn`: slots taken before, in an earlier run; `log` hears of every batch.
        `join` puts slots side by side, if not the stream's own does. `wait`: for a while, before it answers None.
        """
        queue = self.queue
        bell = queue.bell(c)
        join = join or Collator(queue.rows, queue.state, queue.lanes, self.n)
        while True:
            queue.check()
            chosen, after = self._choose(c, turn)
            if len(chosen) < self.n:
                if not (wait and bell.wait(queue.patience)):
                    yield None
                continue
            taken, turn = [queue._full[p].take(queue.use, READING) for p in chosen], after
            for _ in taken:
                bell.wait(0)
            slots = [s for s in taken if s is not None]
            log(slots)
            yield join(slots)
            join.done()
            queue.give_back(slots)

    def _choose(self, c: int, turn: int) -> tuple[list[int], int]:
        """The producers whose next slots are the next batch, as many as are there, and the turn after them."""
        queue, ends = self.queue, self.queue.ends[c :: self.queue.consumers]
        there = ends[:, 1] - ends[:, 0]  # all at once: there may be hundreds
        if self.order is not None:
            wanted = self.order(c, turn)
            counts = {p: int(there[p // queue.consumers]) for p in wanted}
            return (wanted if all(counts[p] >= wanted.count(p) for p in wanted) else []), turn + self.n
        chosen: list[int] = []
        while len(chosen) < self.n:
            at = turn % len(there)
            if not there[at]:
                ready = np.flatnonzero(there)
                if self.in_turn or not len(ready):
                    break
                at = int(ready[np.searchsorted(ready, at) % len(ready)])  # the next one that has some
                turn += (at - turn) % len(there)
            there[at] -= 1
            chosen.append(c + at * queue.consumers)
            turn += 1
        return chosen, turn

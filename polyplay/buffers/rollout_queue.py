"""Queue that carries rollouts from actors (acting workers) to learners, in shared memory. Imports no torch.

A slot is memory for one rollout. It holds rows [T+1, lanes] (docs/concepts/rows.md), and the recurrent state before row
0 or before each window of rows. Workers do not send rollouts to each other. They only exchange the numbers of empty and
full slots, through ring buffers (rings) with one writer and one reader each.

Every producer (actor) owns some of the slots. Producer p hands its full slots to consumer (learner) p mod consumers.
With `per_agent`, each consumer trains a different agent, and the producer chooses the consumer of each slot.
"""

from __future__ import annotations

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from math import gcd
from typing import Any, Protocol

import numpy as np

from polyplay.core import tree
from polyplay.core.errors import Closed, UserError
from polyplay.core.flows import Cells, Crossing, End
from polyplay.core.shared_memory import LINE, Closable, Ring, Semaphore, shared_array
from polyplay.core.tree import Batch, Field, Spec
from polyplay.core.worker import Arrow, Edge
from polyplay.envs.pool import Envs, EnvSpec

# Common parts of the queues between acting and learning.


# Marks of a slot's holder, written *before* the slot's number leaves a ring. So when a writer starts, a slot that is
# FILLING and in no ring belonged to a writer that died.
FILLING, READING = 1, 2


class Queue(Edge):
    """Queue between workers. The workers that write have it as argument `out`, those that read as argument `source`."""

    def arrows(self) -> list[Arrow]:
        """Return the arrow of this queue in a diagram."""
        return [Arrow(self.label(), ("out",), ("source",))]


class SharedQueue(Closable, Queue, ABC):
    """Queue of slots between processes, in shared memory.

    Every pair of a writer and a reader has two rings (ring buffers) of slot numbers: one for empty slots, one for full
    slots. A ring has one writer and one reader, so it needs no lock. The reader of pair i is i mod `readers`. Each
    group of `each` consecutive pairs owns `share` slots.

    The first asks[0] readers may request parts of a checkpoint. Writer i answers the requests of reader i mod asks[0].
    """

    LOCAL = ("use", "_empty", "_full", "ends")
    marks = shared_array(np.int64, lambda q: (q.slots, LINE // 8))
    answered = shared_array(np.int64, lambda q: (q.asks[1],))
    _rings = shared_array(np.int64, lambda q: (2, q.slots * q.each // q.share, -(-Ring.cells(q.share) // 8) * 8))
    _asked = shared_array(np.int64, lambda q: (q.asks[0],))
    _last = shared_array(np.int64, lambda q: (q.asks[0],))

    def __init__(
        self, trees: Spec, slots: int, pairs: int, readers: int, asks: tuple[int, int], bells: int = 0, each: int = 1
    ):
        """`trees`: arrays to add to those of the class.
        `asks`: number of readers that may request parts of checkpoints, and number of writers that answer.
        `bells`: number of semaphores in addition to one for each reader.
        """
        self.slots, self.share, self.readers, self.each, self.asks = slots, slots * each // pairs, readers, each, asks
        super().__init__(readers + bells, **trees)
        for slot in range(slots):
            self._empty[slot // self.share * self.each].put(slot)

    def _attach(self) -> None:
        super()._attach()
        self.use = self.marks[:, 0]  # holder of each slot
        empty, full = self._rings[..., : Ring.cells(self.share)]
        self._empty = [Ring(cells, self.writer_bell(i)) for i, cells in enumerate(empty)]
        self._full = [Ring(cells, self._bells[i % self.readers]) for i, cells in enumerate(full)]
        self.ends = full[:, 0:16:8]  # [pairs, 2] head and tail of each full ring

    @abstractmethod
    def writer_bell(self, i: int) -> Semaphore:
        """Return the semaphore of pair `i`'s writer. It is posted whenever a slot becomes empty."""

    @property
    def depth(self) -> int:
        """Number of full slots that no reader has taken yet."""
        return int((self.ends[:, 1] - self.ends[:, 0]).sum())

    def held(self, pairs: slice, holder: int) -> list[int]:
        """Return the slots of these pairs that are in no ring and are marked as held by `holder`, such as FILLING."""
        known = {slot for ring in self._empty[pairs] + self._full[pairs] for slot in ring.peek()}
        owners = sorted({i // self.each for i in range(len(self._full))[pairs]})
        own = np.arange(self.slots).reshape(-1, self.share)[owners].ravel().tolist()
        return [s for s in own if s not in known and self.use[s] == holder]

    def ask(self, c: int, version: int, last: bool = False) -> None:
        """Request the writers' parts of the checkpoint of update `version` for reader `c`. Version -1 withdraws the
        request. If `last` is set, this is the run's last checkpoint.
        """
        self._last[c] = last
        self._asked[c] = version + 1

    def asked(self, i: int) -> int | None:
        """Return the update whose checkpoint needs a part from writer `i`. Return None if no request is open."""
        wanted = int(self._asked[i % len(self._asked)])
        return wanted - 1 if wanted > abs(self.answered[i]) else None

    def last(self, i: int) -> bool:
        """Tell whether the last request to writer `i` was for the run's last checkpoint."""
        return bool(self._last[i % len(self._last)])

    def answer(self, i: int, version: int, failed: bool = False) -> None:
        self.answered[i] = -(version + 1) if failed else version + 1

    def late(self, c: int, version: int) -> list[int]:
        """Return the writers that have not yet answered reader `c`'s request for the checkpoint of update `version`."""
        return [i for i in self._answering(c) if abs(self.answered[i]) < version + 1]

    def failed(self, c: int) -> list[int]:
        """Return the writers that failed to write their part of the checkpoint that reader `c` requested last."""
        return [i for i in self._answering(c) if self.answered[i] < 0]

    def _answering(self, c: int) -> range:
        return range(c, len(self.answered), len(self._asked))


Log = Callable[[list[int]], None]  # called with the slots of each batch


class QueueBatches:
    """View of a queue, from which learners read batches of `n` slots."""

    queue: Any  # a RolloutQueue or a TrainingQueue
    n: int

    edge = property(lambda self: self.queue)

    def nbytes(self, policy: PolicyLike) -> float:
        """Return the bytes of memory that a batch needs in addition to its slots. A batch of one slot needs none."""
        return self.queue.nbytes / self.queue.slots * self.n if self.n > 1 else 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """Shape [T, B] of a batch."""
        return self.queue.T, self.n * self.queue.lanes


# Fields of a rollout's row, and slots of rollouts within one worker. Imports no torch.


ROWS: Spec = {
    "reward": Field((), "float32"),
    "terminated": Field((), "bool"),
    "truncated": Field((), "bool"),
    "first": Field((), "bool"),
    "version": Field((), "int64"),
    "agent": Field((), "int32"),  # agent whose weights chose the action; with one agent never written, so 0
}


class PolicyLike(Protocol):
    def spec(self) -> Spec: ...
    def state_spec(self) -> Spec: ...


def row_spec(obs: Spec, policy: Spec, mask: Spec | None = None, team: Spec | None = None) -> Spec:
    """Return the fields of a row (data of one step of a lane): `obs`, the fields in ROWS, the outputs of the policy
    and, if given, the mask of legal actions and the fields of a team.
    """
    return {"obs": obs, **({} if mask is None else {"mask": mask}), **ROWS, **(team or {}), **policy}


def rows_of(spec: EnvSpec, policy: Spec) -> Spec:
    """Return the fields of a row (data of one step of a lane) for these environments and the outputs `policy`."""
    return row_spec(spec.obs, policy, spec.mask, spec.own_fields)


class RolloutSlots:
    """Memory of rollouts for a worker that acts and learns in turn. The worker fills all slots, then trains on them."""

    committed = 0  # number of rollouts handed to another worker
    window = 0  # 0: the recurrent state is stored only before a rollout

    def __init__(self, rows: Spec, state: Spec, T: int, lanes: int, slots: int):
        self.T, self.lanes, self.slots = T, lanes, slots
        self.rows: Batch = tree.zeros(rows, (slots, T + 1, lanes))
        self.state: Batch = tree.zeros(state, (slots, lanes))
        self.slot = itertools.cycle(range(slots)).__next__  # the next slot to fill


UNWRITTEN = -1  # version of a row that is not written yet


def slots_per_batch(batch: int, lanes: int, actors: int, slots: int, learners: int, lag: int) -> int:
    """Return the number of slots (rollouts) that each learner takes for an update. `batch`: number of trajectories of
    an update, for all learners together. Raises UserError if so large a batch can never be filled.
    """
    each, rest = divmod(batch, learners * lanes)
    if rest or not each:
        raise UserError(f"--batch {batch} is not a multiple of --learners {learners} x --lanes {lanes}")
    fed = actors // learners
    most = fed * slots if lag < 0 else min(fed * slots, fed * lag + gcd(fed, each))
    if each > most or (lag >= 0 and actors % learners):
        raise UserError(
            f"--batch {batch} takes {each} rollouts of --lanes {lanes} for one update; --actors {actors}, "
            f"--learners {learners}, --slots {slots} and --lag {lag} allow {most}: lower --batch or raise --actors"
        )
    return each


class RolloutQueue(SharedQueue):
    """Queue of rollouts from `producers` actors to `consumers` learners. It has `slots` slots, each for one rollout:
    T+1 rows (steps) of `lanes` lanes (parallel environments).
    """

    rows: Batch
    state: Batch
    by = shared_array(np.int64, lambda q: (q.slots,))  # incarnation of the actor that filled a slot
    base = shared_array(np.int64, lambda q: (q.producers,))  # rollouts taken before the run was resumed, by producer
    # number of slots taken and producers skipped by each consumer, since the start of the run
    turns = shared_array(np.int64, lambda q: (q.consumers,))

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
        per_agent: bool = False,
        window: int = 0,
    ):
        """`groups`: number of groups of an actor's lanes. Each group fills a separate slot.
        `per_agent`: whether every producer hands slots to all consumers, each of which trains a different agent.
        `window`: number of rows between two stored recurrent states. 0: store only the state before each rollout.
        """
        if slots % producers or (producers < consumers and not per_agent):
            raise ValueError(f"{slots} slots for {producers} producers and {consumers} consumers do not divide")
        if window and T % window:
            raise ValueError(f"rollouts of {T} steps do not divide into windows of {window}")
        self.T, self.lanes, self.producers, self.consumers, self.groups = T, lanes, producers, consumers, groups
        self.window, self.per_agent = window, per_agent
        lead, each = (slots, T // window, lanes) if window else (slots, lanes), consumers if per_agent else 1
        trees = {"rows": tree.widen(rows, (slots, T + 1, lanes)), "state": tree.widen(state, lead)}
        super().__init__(trees, slots, producers * each, consumers, (consumers, producers), producers, each)

    @classmethod
    def of(
        cls,
        envs: Envs,
        policy: PolicyLike,
        T: int,
        actors: int,
        slots: int = 4,
        readers: int = 1,
        per_agent: bool = False,
        window: int = 0,
    ) -> RolloutQueue:
        """Return a queue for rollouts of T steps from `actors` workers with these environments and this network.
        `slots`: number of slots for each group of an actor's lanes (parallel environments that step together).
        """
        rows, width = rows_of(envs.spec, policy.spec()), envs.lanes // envs.groups
        n = actors * slots * envs.groups
        return cls(rows, policy.state_spec(), T, width, n, actors, readers, envs.groups, per_agent, window)

    def label(self) -> str:
        return f"RolloutQueue: {self.slots} slots × {self.T + 1} rows × {self.lanes} lanes"

    def writer_bell(self, i: int) -> Semaphore:
        return self._bells[self.consumers + i // self.each]

    def crossing(self) -> Crossing:
        from polyplay.buffers.queue_flows import RolloutContent, asking, queue_flows

        flows = queue_flows(self, self.each, RolloutContent(self))
        for c in range(self.consumers):
            learnt = [self.base[p : p + 1] for p in range(c, self.producers, self.consumers)]  # before this run
            flows += [Cells(End("source", c), (), [self.turns[c : c + 1]]), asking(self, c, *learnt)]
        bells = [(self._bells[c], End("source", c)) for c in range(self.consumers)]
        bells += [(self.writer_bell(p * self.each), End("out", p)) for p in range(self.producers)]
        return Crossing(flows, bells, self.close)

    def waiting(self, c: int) -> np.ndarray:
        """Return the number of full slots from each producer that wait for consumer `c`, int64 [producers of `c`]."""
        ends = self.ends[c :: self.consumers]
        return ends[:, 1] - ends[:, 0]

    def pairs(self, p: int) -> slice:
        """Return the pairs of producer `p`: one for each consumer to which it hands slots."""
        return slice(p * self.each, (p + 1) * self.each)

    def producer(self, p: int) -> Producer:
        """Return producer `p`'s access to the queue. It first fills the slots that a lost producer `p` was filling."""
        return Producer(self, p)

    def made(self, p: int) -> int:
        """Return the number of rollouts that producer `p` has handed over, also before the run was resumed."""
        return int(self.base[p]) + int(self.ends[self.pairs(p), 1].sum())

    def learnt(self, p: int) -> int:
        """Return the number of rollouts that learners took from producer `p`, also before the run was resumed."""
        return int(self.base[p]) + int(self.ends[self.pairs(p), 0].sum())

    def batches(self, n: int, in_turn: bool = False) -> RolloutBatches:
        """Return an object that reads this queue in batches of `n` slots. Its method `consumer(c)` gives learner `c`'s
        iterator.

        `in_turn`: whether to take rollouts from the producers in a fixed order, equally often from each. Otherwise,
            learners take what is full, so that a slow actor's rollout may become older than the lag allows.
        """
        return RolloutBatches(self, n, in_turn)

    def bell(self, c: int) -> Semaphore:
        """Return the semaphore that wakes consumer `c`, for example when a slot becomes full."""
        return self._bells[c]

    def reclaim(self, c: int) -> None:
        """Give back the slots that an earlier process of consumer `c` was reading when it ended."""
        for slot in self.held(slice(c, None, self.consumers), READING + (self.each > 1) * c):
            self.give_back(c, slot)

    def give_back(self, c: int, slot: int) -> None:
        """Return a slot, which consumer `c` has read, to its producer."""
        self._empty[slot // self.share * self.each + (self.each > 1) * c].put(slot)


class Producer:
    """An actor's access to a RolloutQueue, which fills slots."""

    def __init__(self, queue: RolloutQueue, p: int):
        self.queue, self.p, self.T, self.rows, self.state = queue, p, queue.T, queue.rows, queue.state
        self.window = queue.window
        pairs = queue.pairs(p)
        self._empty, self._full, self._bell = queue._empty[pairs], queue._full[pairs], queue.writer_bell(pairs.start)
        self._reclaimed = queue.held(pairs, FILLING)  # slots that a lost predecessor was filling
        self.rows["version"][self._reclaimed] = UNWRITTEN

    def slot(self) -> int | None:
        """Return an empty slot to fill, or None if no slot became empty within `patience` seconds. Raises Closed."""
        queue = self.queue
        queue.check()
        slot: int | None = self._reclaimed.pop() if self._reclaimed else None
        if slot is None:
            until = time.monotonic() + queue.patience
            while (slot := self._take(FILLING)) is None and (left := until - time.monotonic()) > 0:
                self._bell.wait(left)  # the token may belong to a slot that was already taken
                queue.check()
            if slot is None:
                return None
            self._bell.wait(0)  # the slot's token, so that tokens never outnumber slots
        self.rows["version"][slot] = UNWRITTEN
        return slot

    def _take(self, holder: int) -> int | None:
        taken = (ring.take(self.queue.use, holder) for ring in self._empty)
        return next((slot for slot in taken if slot is not None), None)

    @property
    def committed(self) -> int:
        """Number of rollouts that this producer and the lost ones that it replaces have handed over."""
        return self.queue.made(self.p)

    def made(self, to: int) -> int:
        """Return the number of rollouts that this producer has handed to its consumer number `to`."""
        return int(self._full[to]._tail[0])

    def flight(self) -> Batch:
        """Return copies of the rollouts that no learner has taken yet. No learner may take any during the call."""
        whole = {"rows": self.rows, "state": self.state, "by": self.queue.by}
        found: Batch = {}
        for to, ring in enumerate(self._full):
            for slot in ring.peek():
                kept = tree.map(lambda x, s=slot: np.array(x[s]), whole)
                found[str(len(found))] = kept | ({"to": np.array(to)} if self.queue.each > 1 else {})
        return found

    def save(self) -> Batch:
        """Return how many slots each consumer has taken and is reading. No worker may run during the call."""
        pairs = self.queue.pairs(self.p)
        reading = [len(self.queue.held(slice(i, i + 1), self._reader(i))) for i in range(pairs.start, pairs.stop)]
        return {"taken": self.queue.ends[pairs, 0].copy(), "reading": np.array(reading)}

    def load(self, saved: Batch, flight: Batch) -> None:
        """Restore what `save` and `flight` returned, in an unused queue whose consumers have not started yet."""
        pairs = self.queue.pairs(self.p)
        self.queue.ends[pairs] = saved["taken"][:, None]
        self.give(flight)
        for i, n in enumerate(saved["reading"].tolist(), pairs.start):
            for _ in range(n):
                self._take(self._reader(i))

    def _reader(self, pair: int) -> int:
        return READING + (pair - self.queue.pairs(self.p).start)

    def give(self, flight: Batch, reading: int = 0) -> None:
        """Put the rollouts of `flight` into an unused queue. `reading`: number of slots that the learner was reading.
        They are reserved until the learner starts and returns them.
        """
        for i in range(len(flight)):
            slot, kept = self.slot(), flight[str(i)]
            assert slot is not None  # these rollouts were in slots of an equally large queue
            tree.write(self.rows, slot, kept["rows"])
            tree.write(self.state, slot, kept.get("state", {}))
            self.commit(slot, int(kept["by"]), int(kept.get("to", 0)))
        for _ in range(reading):
            self._take(READING)
            self._bell.wait(0)  # the slot's token

    def commit(self, slot: int, by: int = 0, to: int = 0) -> None:
        """Hand a finished slot to the learner. Raises RuntimeError if rows of the slot were not written. `by`:
        incarnation of the actor, a number that changes when the actor is replaced. `to`: number of the consumer.
        """
        self.queue.by[slot] = by
        if (self.rows["version"][slot] == UNWRITTEN).any():
            raise RuntimeError(f"slot {slot} was committed with rows that were not written")
        self._full[to].put(slot)


class RolloutBatches(QueueBatches):
    """Batches of `n` rollouts from a RolloutQueue. Each learner calls `consumer` to get an iterator."""

    queue: RolloutQueue

    def __init__(self, queue: RolloutQueue, n: int, in_turn: bool = False):
        self.queue, self.n, self.in_turn = queue, n, in_turn
        self.taken = 1 if queue.per_agent else n  # slots taken at once
        self.order: Callable[[int, int], list[int]] | None = None  # to reproduce: (c, turn) → producers

    def describe(self) -> list[str]:
        whose = ", of one agent" * self.queue.per_agent
        return [f"batch   {self.n} slots × {self.queue.lanes} lanes × {self.queue.T} steps{whose}"]

    def consumer(
        self, c: int, log: Log = lambda slots: None, join: Collator | None = None, wait: bool = True
    ) -> Iterator[tuple[Batch, Batch] | None]:
        """Yield batches for learner `c`: rows [T+1, n·lanes, …], and recurrent states [n·lanes, …]. Yield None if no
        batch came for a while. Raises Closed.

        The arrays are valid until the next batch is requested. Then the slots return to their producers. No slot is
        taken before a whole batch is ready. With `per_agent`, however, each full slot is copied and returned at once,
        so that actors never wait for the rest of a batch.

        `log`: function that is called with the slots of every batch.
        `join`: Collator to use instead of the default one.
        `wait`: whether to wait for `patience` seconds before yielding None.
        """
        queue, bell = self.queue, self.queue.bell(c)
        join = join or Collator(queue.rows, queue.state, queue.lanes, self.n)
        queue.reclaim(c)
        while True:
            queue.check()
            chosen, after = self._choose(c, int(queue.turns[c]))
            if len(chosen) < self.taken:
                if not (wait and bell.wait(queue.patience)):
                    yield None
                continue
            taken = [queue._full[p].take(queue.use, READING + (queue.each > 1) * c) for p in chosen]
            queue.turns[c] = after
            for _ in taken:
                bell.wait(0)
            slots = [s for s in taken if s is not None]
            log(slots)
            if self.taken == self.n:
                yield join(slots)
            else:
                join.put(join.placed, slots[0])
            join.done()
            for slot in slots:
                queue.give_back(c, slot)
            if self.taken < self.n:
                join.placed = (join.placed + 1) % self.n
                if not join.placed:
                    yield join.joined

    def _choose(self, c: int, turn: int) -> tuple[list[int], int]:
        """Return the producers of the next batch (fewer if too few slots are full), and the new value of `turn`."""
        queue, there = self.queue, self.queue.waiting(c)
        if self.order is not None:
            wanted = self.order(c, turn)
            counts = {p: int(there[p // queue.consumers]) for p in wanted}
            return (wanted if all(counts[p] >= wanted.count(p) for p in wanted) else []), turn + self.n
        chosen: list[int] = []
        while len(chosen) < self.taken:
            at = turn % len(there)
            if not there[at]:
                ready = np.flatnonzero(there)
                if self.in_turn or not len(ready):
                    break
                at = int(ready[np.searchsorted(ready, at) % len(ready)])  # the next producer with slots
                turn += (at - turn) % len(there)
            there[at] -= 1
            chosen.append(c + at * queue.consumers)
            turn += 1
        return chosen, turn


class Collator:
    """Joins `n` slots of `lanes` lanes (parallel environments) into a batch. A batch of one slot is a view of the slot.
    A larger batch is a copy, which overwrites the batch before.
    """

    def __init__(self, rows: Batch, state: Batch, lanes: int, n: int):
        self.rows, self.state, self.lanes, self.n = rows, state, lanes, n
        self.placed = 0  # number of slots already in the next batch, if slots come one by one
        if n == 1:
            slots = len(next(x for _, x in tree.leaves(rows)))
            self.alone = [(tree.at(rows, slot), tree.at(state, slot)) for slot in range(slots)]
        else:
            self._rows = tree.map(lambda x: np.empty((x.shape[1], n * lanes, *x.shape[3:]), x.dtype), rows)
            self._state = tree.map(lambda x: np.empty((n * lanes, *x.shape[2:]), x.dtype), state)
            self.joined = self._rows, self._state  # the batch, once complete

    def __call__(self, slots: list[int]) -> tuple[Batch, Batch]:
        if self.n == 1:
            return self.alone[slots[0]]
        for i, slot in enumerate(slots):
            self.put(i, slot)
        return self.joined

    def put(self, i: int, slot: int) -> None:
        """Copy a slot to place `i` of a batch of several slots."""
        lanes = slice(i * self.lanes, (i + 1) * self.lanes)
        tree.write(self._rows, (slice(None), lanes), tree.at(self.rows, slot))
        tree.write(self._state, lanes, tree.at(self.state, slot))

    def save(self) -> Batch:
        """Return the data of an incomplete batch, or {}."""
        if not self.placed:
            return {}
        (rows, state), lanes = self.joined, self.placed * self.lanes
        return {"rows": tree.at(rows, (slice(None), slice(lanes))), "state": tree.at(state, slice(lanes))}

    def load(self, saved: Batch) -> None:
        """Restore the data that `save` returned."""
        if saved:
            lanes = saved["rows"]["reward"].shape[1]
            tree.write(self._rows, (slice(None), slice(lanes)), saved["rows"])
            tree.write(self._state, slice(lanes), saved.get("state", {}))
            self.placed = lanes // self.lanes

    def done(self) -> None:
        """Called when the slots of the last batch are no longer read, before they return to their producers."""


# Queue between threads of one process: chunks of single lanes, a list of empty slots and a list of full slots.
#
# Any number of threads may put and take slots, and threads may start and end at any time; a RolloutQueue, between
# processes, instead has rings for each pair. A slot is [T+1, 1] as in a RolloutQueue. Rows after a chunk's last row are
# padding with `first` true, so they are in no transition.


class TrainingQueue(Queue):
    """Queue of chunks between threads of one process. A chunk is up to T steps of one lane. If `capacity` chunks are
    full or being trained on, threads that need a slot wait, which limits the policy lag. `agents`: number of lanes.
    """

    lanes = 1  # lanes per slot

    def __init__(self, rows: Spec, state: Spec, T: int, agents: int, capacity: int):
        self.T, self.agents, self.capacity = T, agents, capacity
        slots = self.slots = capacity + agents
        self.rows: Batch = tree.zeros(rows, (slots, T + 1))
        self.state: Batch = tree.zeros(state, (slots,))
        self.length = np.zeros(slots, np.int64)  # transitions of the chunk in a slot
        self._empty = list(range(slots))
        self._full: deque[int] = deque()
        self._held = 0  # number of slots that are full or being trained on
        self._rows = 0  # number of transitions in full slots
        self._closed = False
        lock = threading.Lock()
        self._room, self._came = threading.Condition(lock), threading.Condition(lock)

    @classmethod
    def of(cls, envs: Envs, policy: PolicyLike, T: int, capacity: int) -> TrainingQueue:
        """Return a queue for chunks of up to T steps of these environments and this network."""
        rows = rows_of(envs.spec, policy.spec())
        return cls(rows, policy.state_spec(), T, envs.lanes, capacity)

    @property
    def nbytes(self) -> int:
        """See Edge."""
        return sum(array.nbytes for _, array in tree.leaves({"rows": self.rows, "state": self.state}))

    def label(self) -> str:
        return f"training queue: at most {self.capacity} chunks × {self.T + 1} rows"

    # ---------------------------------------------------------------------------------- the acting side

    def slot(self) -> int | None:
        """Return an empty slot. Return None if the queue stays full for `patience` seconds. Raises Closed."""
        with self._room:
            free = self._room.wait_for(
                lambda: self._closed or (self._held < self.capacity and self._empty), self.patience
            )
            if self._closed:
                raise Closed
            return self._empty.pop() if free else None

    def commit(self, slot: int, length: int) -> None:
        """Hand over a finished chunk of `length` transitions. A chunk of length 0 is dropped."""
        with self._came:
            self.length[slot] = length
            if length:
                self._full.append(slot)
                self._held += 1
                self._rows += length
                self._came.notify()
            else:
                self._empty.append(slot)
                self._room.notify()

    # -------------------------------------------------------------------------------- the learning side

    def take(self, rows: int) -> list[int] | None:
        """Take the oldest chunks until they have at least `rows` transitions, and return their slots. Return None if
        too few transitions came within `patience` seconds. Raises Closed.
        """
        rows = max(rows, 1)
        with self._came:
            there = self._came.wait_for(lambda: self._closed or self._rows >= rows, self.patience)
            if self._closed:
                raise Closed
            if not there:
                return None
            taken: list[int] = []
            while rows > 0:
                taken.append(self._full.popleft())
                rows -= int(self.length[taken[-1]])
            self._rows -= int(self.length[taken].sum())
            return taken

    def batch(self, slots: list[int]) -> tuple[Batch, Batch]:
        """Return copies of the chunks in n slots: rows [T+1, n, …], and the recurrent states before row 0 [n, …]."""
        rows = tree.map(lambda x: np.ascontiguousarray(np.moveaxis(x[slots], 1, 0)), self.rows)
        return rows, tree.map(lambda x: x[slots], self.state)

    def give_back(self, slots: list[int]) -> None:
        with self._room:
            self._empty.extend(slots)
            self._held -= len(slots)
            self._room.notify_all()

    @property
    def depth(self) -> int:
        """Number of full chunks that no thread has taken yet."""
        return len(self._full)

    def close(self) -> None:
        """Close the queue. All waiting and later calls of `slot` and `take` raise Closed."""
        with self._room:
            self._closed = True
            self._room.notify_all()
            self._came.notify_all()

"""A training queue between threads of one process: chunks of single lanes, one list of empty slots, one of full ones.

Any number of threads put in and take out, and their numbers may change while the queue is in use; a RolloutQueue,
between processes, has a ring for each pair instead. A slot is [T+1, 1] as a RolloutQueue's; rows behind a chunk's last
are padding: `first` is true there, so they hold no transition. Imports no torch.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from polyplay.buffers.rollout_queue import PolicyLike, Queue, rows_of
from polyplay.core import tree
from polyplay.core.errors import Closed
from polyplay.core.tree import Batch, Spec
from polyplay.envs.pool import Envs


class TrainingQueue(Queue):
    """At most `capacity` full chunks, and one more slot in the hands of each of `agents` lanes.

    Who wants a slot while the queue is full waits: that is the queue's bound on policy lag.
    """

    lanes = 1  # of a slot

    def __init__(self, rows: Spec, state: Spec, T: int, agents: int, capacity: int):
        self.T, self.agents, self.capacity = T, agents, capacity
        slots = self.slots = capacity + agents
        self.rows: Batch = tree.zeros(rows, (slots, T + 1))
        self.state: Batch = tree.zeros(state, (slots,))
        self.length = np.zeros(slots, np.int64)  # transitions of the chunk in a slot
        self._empty = list(range(slots))
        self._full: deque[int] = deque()
        self._held = 0  # full slots, and those being learnt
        self._rows = 0  # transitions in full slots
        self._closed = False
        lock = threading.Lock()
        self._room, self._came = threading.Condition(lock), threading.Condition(lock)

    @classmethod
    def of(cls, envs: Envs, policy: PolicyLike, T: int, capacity: int) -> TrainingQueue:
        """For chunks of T steps of such environments' lanes, with this network."""
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
        """An empty slot; None when there was none for a while. Raises Closed."""
        with self._room:
            free = self._room.wait_for(
                lambda: self._closed or (self._held < self.capacity and self._empty), self.patience
            )
            if self._closed:
                raise Closed
            return self._empty.pop() if free else None

    def commit(self, slot: int, length: int) -> None:
        """A finished chunk of `length` transitions; without any its slot is just empty again."""
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
        """The oldest chunks that together have `rows` transitions or, with 0, one; None when there were not so many
        for a while. Raises Closed.
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
        """Copies of n chunks: rows [T+1, n, …] and the state before them [n, …]."""
        rows = tree.map(lambda x: np.ascontiguousarray(np.moveaxis(x[slots], 1, 0)), self.rows)
        return rows, tree.map(lambda x: x[slots], self.state)

    def give_back(self, slots: list[int]) -> None:
        with self._room:
            self._empty.extend(slots)
            self._held -= len(slots)
            self._room.notify_all()

    @property
    def depth(self) -> int:
        """Full chunks that nobody has taken yet."""
        return len(self._full)

    def close(self) -> None:
        """Every wait, now and later, raises Closed."""
        with self._room:
            self._closed = True
            self._room.notify_all()
            self._came.notify_all()

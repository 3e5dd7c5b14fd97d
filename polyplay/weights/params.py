"""The current weights of one agent as one vector: a module's views of it, and its versioned copy that anyone may read.

vector = [parameters | floating buffers]. Optimisers see one flat Parameter (the parameters' part) and one flat
gradient; publishing, pulling, checkpoints and replicas carry both parts.
"""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import torch
from torch import nn

from polyplay.common.edges import Arrow
from polyplay.common.shared_memory import memory_barrier
from polyplay.common.tree import Batch
from polyplay.nets.device import page_lock, to_host
from polyplay.nets.policy import Policy, PolicyFactory
from polyplay.weights.flat import FlatParams, param_sizes
from polyplay.weights.shared_arrays import SharedArrays, TwoCopies, shared_array

# cells of the header, int64; those of the two copies begin at _COPIES
_VERSION, _ROUND, _COPIES = 0, 1, 8


class Vector(Protocol):
    """Weights as one vector."""

    flat: torch.Tensor


class Params(SharedArrays):
    """Versioned weights: one writes, up to `readers` others read, nobody ever sees a torn copy.

    Two copies in shared memory; the writer fills the one that readers are not sent to, and marks begin and end of it.
    `version` counts optimiser updates (stamped on rows, reported as lag); `round` is what `lag` waits for.
    """

    LOCAL = ("_newest", "_locked")
    _head = shared_array(np.int64, lambda p: (32,))
    _waiting = shared_array(np.int64, lambda p: (max(p.readers, 1),))  # that reader
    _reads = shared_array(np.int64, lambda p: (max(p.readers, 1),))  # waits of that reader that are over
    _learnt = shared_array(np.int64, lambda p: (max(p.readers, 1),))  # rollouts of that reader, where it asks for them
    _copies = shared_array(np.float32, lambda p: (2, p.size))

    def __init__(self, size: int, readers: int = 1):
        self.size, self.readers = size, readers
        super().__init__(bells=readers + 1)  # the last is rung by who begins to wait, where the publisher is elsewhere
        self._head[_ROUND] = -1  # nothing published: round 0 is the first weights

    @classmethod
    def of(cls, policy: nn.Module | Policy | PolicyFactory, readers: int = 1) -> Params:
        """Of a network, or of those that a NetworkFactory makes."""
        network = policy if isinstance(policy, nn.Module | Policy) else policy()
        return cls(param_sizes(network)[1], readers)

    def _attach(self) -> None:
        super()._attach()
        self._newest = TwoCopies(self._head[_COPIES:], self._copies)
        self._locked = False  # whether the device of who publishes was asked to write here by itself

    @property
    def version(self) -> int:
        return int(self._head[_VERSION])

    @property
    def round(self) -> int:
        return int(self._head[_ROUND])

    @property
    def learnt(self) -> np.ndarray:
        """Rollouts of each reader that the weights have learnt from, where it asks for them."""
        return self._learnt

    def label(self) -> str:
        return f"Params: {self.size:,} weights"

    def arrows(self) -> list[Arrow]:
        return [Arrow(self.label(), ("publish",), ("params",))]

    def publish(
        self,
        vector: Vector,
        version: int,
        round: int,  # noqa: A002 - the design's word
        learnt: np.ndarray | None = None,
    ) -> None:
        """learnt: rollouts of each reader that these weights have learnt from."""
        if not self._locked:
            self._locked = True
            page_lock(self.block, vector.flat.device)
        self._newest.write(vector.flat, version)
        self._head[_VERSION], self._head[_ROUND] = version, round
        if learnt is not None:
            self._learnt[:] = learnt  # last: who waits for these rollouts pulls that version
        self._wake()

    def _wake(self) -> None:
        memory_barrier()
        for i in np.flatnonzero(self._waiting):
            self._bells[int(i)].post()

    def waits(self, readers: slice) -> bool:
        """Whether all of these readers wait for weights now."""
        return bool(self._waiting[readers].all())

    def stay(self, readers: slice, learnt: np.ndarray) -> None:
        """No newer weights will come of so many rollouts of each of these readers: they go on with those there are."""
        self._learnt[readers] = learnt
        self._wake()

    def wait(self, atleast: int, reader: int, timeout: float, learnt: int = 0) -> bool:
        """True once round ≥ `atleast`, and the weights have learnt from that many rollouts of this reader; False after
        `timeout` seconds. Raises Closed.
        """

        def there() -> bool:
            return self.round >= atleast and (not learnt or int(self._learnt[reader]) >= learnt)

        if there():
            self._reads[reader] += 1
            return True
        until = time.monotonic() + timeout
        self._waiting[reader] = 1
        memory_barrier()  # seen by who publishes from now on, before the round is looked at
        if (begins := self._bells[self.readers]).relayed is not None:
            begins.post()
        while not there() and not self._closed[0] and (left := until - time.monotonic()) > 0:
            self._bells[reader].wait(left)  # a token may be an earlier round's
        self._waiting[reader] = 0
        self.check()
        self._reads[reader] += (is_there := there())
        return is_there

    def pull(self, vector: FlatParams, have: int = -1) -> int:
        """Copy the newest weights into `vector` unless it holds them already (`have`); their version."""
        self.check()
        if self.round < 0:
            raise RuntimeError("nothing was published yet")
        return have if self.version == have else self._newest.read(vector.flat, self.check)


class HeldWeights:
    """A reader's copy of the weights, which it keeps for `rollouts` rollouts before it pulls newer ones."""

    def __init__(self, vector: FlatParams, rollouts: int = 1):
        self.vector, self.rollouts = vector, rollouts
        self.version = -1
        self.age = 0  # rollouts made with them; 0: newer ones are due

    def used(self) -> None:
        self.age = (self.age + 1) % self.rollouts

    def save(self) -> Batch:
        """Empty where newer ones are due."""
        state = {"age": np.array(self.age), "version": np.array(self.version)}
        return {**state, "vector": np.array(to_host(self.vector.flat))} if self.age else {}

    def load(self, saved: Batch) -> None:
        self.age, self.version = int(saved["age"]), int(saved["version"])
        self.vector.flat.copy_(torch.from_numpy(np.array(saved["vector"])))

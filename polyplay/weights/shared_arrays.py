"""Arrays that workers share, and what each object that crosses between workers answers about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from polyplay.common.edges import Arrow
from polyplay.common.errors import Closed
from polyplay.common.semaphores import Semaphores
from polyplay.common.shared_memory import SharedObject, memory_barrier


@dataclass(frozen=True)
class _Declared:
    dtype: type
    shape: Callable[..., tuple[int, ...]]


def shared_array(dtype: type, shape: Callable[..., tuple[int, ...]]) -> np.ndarray:
    """Declares an array in the body of a class of SharedArrays. shape: from the object, which has all else by then."""
    return cast("np.ndarray", _Declared(dtype, shape))


class SharedArrays(SharedObject):
    """The arrays that its class declares, in one shared block; mapped again in every process the object is sent to.

    Who waits on it does so by a bell, and is told when it is closed.
    """

    memory: ClassVar[str] = "weights"
    patience = 0.02  # seconds a wait lasts before others get their turn; 0 when all run in one thread

    _closed = shared_array(np.int64, lambda _: (1,))

    def __init__(self, bells: int = 0) -> None:
        self._bells = Semaphores(max(bells, 1))
        members = [x for cls in reversed(type(self).__mro__) for x in vars(cls).items()]
        declared = {name: x for name, x in members if isinstance(x, _Declared)}
        super().__init__(**{name: (x.shape(self), x.dtype) for name, x in declared.items()})

    def label(self) -> str:
        """What a diagram calls it."""
        return type(self).__name__

    def arrows(self) -> list[Arrow]:
        """The lines of a diagram that it is."""
        return []

    def check(self) -> None:
        """Raises Closed."""
        if self._closed[0]:
            raise Closed

    def close(self) -> None:
        """End every wait on this object."""
        self._closed[0] = 1
        for i in range(self._bells.n):
            self._bells[i].post()


class TwoCopies:
    """Two copies of a vector in shared memory, of which one is whole and newest at any time: that is read, the other
    written, by one writer. Begin and end of writing are marked, so who reads knows a torn copy, and copies again.
    """

    def __init__(self, cells: np.ndarray, copies: np.ndarray):
        """cells: int64 [5], zeros at first; copies: float32 [2, n]."""
        self._active, self._begun, self._done = cells[:1], cells[1:3], cells[3:5]
        self._copies = [torch.from_numpy(copy) for copy in copies]

    @property
    def active(self) -> int:
        """Which is whole and newest."""
        return int(self._active[0])

    def begin(self, version: int) -> None:
        """From now on the other copy is written, as `version` or a later one."""
        self._begun[1 - self.active] = version + 1  # + 1: zero means never written
        memory_barrier()

    def end(self, version: int) -> None:
        """The other copy is whole, and from now on the newest."""
        into = 1 - self.active
        self._begun[into] = version + 1
        memory_barrier()
        self._done[into] = version + 1
        self._active[0] = into

    def write(self, vector: Tensor, version: int) -> None:
        self.begin(version)
        self._copies[1 - self.active].copy_(vector)
        self.end(version)

    @torch.no_grad()
    def read(self, into: Tensor, check: Callable[[], None]) -> int:
        """Copy the newest into `into`; its version. check: called before each try, to raise."""
        while True:
            check()
            at = self.active
            mark = int(self._done[at])
            memory_barrier()
            into.copy_(self._copies[at])  # perhaps torn: then nobody acts on it, it is copied again
            memory_barrier()
            if self._begun[at] == mark == self._done[at]:
                return mark - 1

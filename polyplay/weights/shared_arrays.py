"""Arrays that workers share, and what each object that crosses between workers answers about itself."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import numpy as np

from polyplay.common.edges import Arrow
from polyplay.common.shared_memory import Layout

_FENCE = threading.Lock()


def memory_barrier() -> None:
    """What this thread has written is there before what it writes next; so with what it reads."""
    with _FENCE:
        pass


class SharedArrays:
    """Arrays in one shared block, mapped again in every process that the object is sent to.

    `_local`: attributes that `_attach` makes anew in each process.
    """

    memory: ClassVar[str] = "weights"
    patience = 0.02  # seconds a wait lasts before others get their turn; 0 when all run in one thread
    _local: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *arrays: tuple[tuple[int, ...] | int, type]):
        """arrays: shape and number type of each."""
        layout = Layout()
        self._fields = tuple(layout.add(shape, dtype) for shape, dtype in arrays)
        self._block = layout.block()
        self._attach()

    def _attach(self) -> None:
        """Make what is this process's own."""

    def label(self) -> str:
        """What a diagram calls it."""
        return type(self).__name__

    def arrows(self) -> list[Arrow]:
        """The lines of a diagram that it is."""
        return []

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return self._block.nbytes

    def close(self) -> None:
        """End every wait on this object. Most have none."""

    def _arrays(self) -> tuple[np.ndarray, ...]:
        return tuple(self._block.array(*field) for field in self._fields)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in self._local}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach()

"""Shared memory: anonymous blocks, their layout, and objects whose arrays lie in one. Imports no torch.

Blocks are anonymous (memfd): nothing has a name, so nothing is left behind when the last holder dies, however it dies.
Waiting goes through unnamed POSIX semaphores that live inside a block and are used as token counts; no lock is ever
held across processes, so a killed worker cannot keep one. The semaphore calls are the memory fences.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from functools import cached_property
from multiprocessing import reduction, resource_sharer

import numpy as np
from numpy.typing import DTypeLike

from polyplay.common import tree

Place = tuple[tuple[int, ...] | int, DTypeLike, int]  # shape, dtype and offset of an array in a block
LINE = 64  # bytes of a cache line: neighbours that different workers write are kept this far apart


_FENCE = threading.Lock()


def memory_barrier() -> None:
    """What this thread has written is there before what it writes next; so with what it reads."""
    with _FENCE:
        pass


class SharedBlock:
    """Anonymous shared memory. Hand it to a worker as an argument; it maps the same bytes there."""

    def __init__(self, nbytes: int):
        self.nbytes = max(int(nbytes), 1)
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("polyplay")
        else:  # macOS: a file without a name
            self.fd, path = tempfile.mkstemp()
            os.unlink(path)
        os.ftruncate(self.fd, self.nbytes)

    @cached_property
    def memory(self) -> mmap.mmap:
        """Mapped when it is first used: a mapping holds a second descriptor."""
        return mmap.mmap(self.fd, self.nbytes)

    def array(self, shape: tuple[int, ...] | int, dtype: DTypeLike, offset: int = 0) -> np.ndarray:
        """The array of `shape` and `dtype` at byte `offset`."""
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self.memory, np.dtype(dtype), count, offset).reshape(shape)

    def __reduce__(self) -> tuple:
        return _open_block, (reduction.DupFd(self.fd), self.nbytes)

    def __del__(self) -> None:
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            os.close(fd)  # the mapping outlives the descriptor


def _open_block(fd: resource_sharer.DupFd, nbytes: int) -> SharedBlock:
    block = SharedBlock.__new__(SharedBlock)
    block.fd, block.nbytes = fd.detach(), nbytes
    return block


class Layout:
    """Hands out offsets of one block, a cache line apart: `a = layout.add(shape, dtype)`, then `layout.block()`."""

    def __init__(self) -> None:
        self.size = 0

    def add(self, shape: tuple[int, ...] | int, dtype: DTypeLike) -> Place:
        at = self.size
        count = int(np.prod(shape, dtype=np.int64))
        self.size = -(-(at + count * np.dtype(dtype).itemsize) // LINE) * LINE
        return shape, dtype, at

    def block(self) -> SharedBlock:
        return SharedBlock(self.size)


class SharedObject:
    """Arrays in one block, and trees of arrays: attributes by their names, which `_attach` makes anew in each process.

    `LOCAL`: other attributes that it makes, which do not travel either.
    """

    LOCAL: tuple[str, ...] = ()
    _places: tree.Tree = ()  # of the arrays, by their names

    def __init__(self, **arrays: tree.Tree):
        """arrays: shape and number type of each, or a tree of these."""
        layout = Layout()
        self._places = tree.map(lambda array: layout.add(*array), arrays)
        self.block = layout.block()
        self._attach()

    def _attach(self) -> None:
        """Make what is this process's own."""
        self.__dict__.update(tree.map(lambda place: self.block.array(*place), self._places))

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return self.block.nbytes

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k not in self.LOCAL and k not in self._places}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._attach()

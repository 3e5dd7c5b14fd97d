"""Memory and numbers that any worker of a machine can hold: Block, Semaphore, Ring, Knobs, Control. Imports no torch.

Blocks are anonymous (memfd): nothing has a name, so nothing is left behind when the last holder dies, however it dies.
Waiting goes through unnamed POSIX semaphores that live inside a block and are used as token counts; no lock is ever
held across processes, so a killed worker cannot keep one. The semaphore calls are the memory fences.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import sys
import tempfile
import time
from multiprocessing import reduction
from typing import Any

import numpy as np

from polyplay.common.errors import Closed

LINE = 64  # bytes of a cache line: neighbours that different workers write are kept this far apart


class Block:
    """Anonymous shared memory. Hand it to a worker as an argument; it maps the same bytes there."""

    def __init__(self, nbytes: int):
        self.nbytes = max(int(nbytes), 1)
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("polyplay")
        else:  # macOS: a file without a name
            self.fd, path = tempfile.mkstemp()
            os.unlink(path)
        os.ftruncate(self.fd, self.nbytes)
        self._used = 0
        self._map()

    def _map(self) -> None:
        self.memory = mmap.mmap(self.fd, self.nbytes)

    def array(self, shape: tuple[int, ...] | int, dtype: Any, offset: int = 0) -> np.ndarray:
        """The array of `shape` and `dtype` at byte `offset`."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self.memory, np.dtype(dtype), count, offset).reshape(shape)

    def __reduce__(self) -> tuple:
        return _open_block, (reduction.DupFd(self.fd), self.nbytes)

    def __del__(self) -> None:
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            os.close(fd)  # the mapping outlives the descriptor


def _open_block(fd: Any, nbytes: int) -> Block:
    block = Block.__new__(Block)
    block.fd, block.nbytes = fd.detach(), nbytes
    block._map()
    return block


class Layout:
    """Hands out offsets of one block, a cache line apart: `a = layout.add(shape, dtype)`, then `layout.block()`."""

    def __init__(self) -> None:
        self.size = 0

    def add(self, shape: tuple[int, ...] | int, dtype: Any) -> tuple[tuple[int, ...] | int, Any, int]:
        at = self.size
        count = int(np.prod(shape, dtype=np.int64))
        self.size = -(-(at + count * np.dtype(dtype).itemsize) // LINE) * LINE
        return shape, dtype, at

    def block(self) -> Block:
        return Block(self.size)


# ---------------------------------------------------------------------------------------------------- semaphores


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


_libc = ctypes.CDLL(None, use_errno=True)
_POSIX = sys.platform.startswith("linux")
_clockwait = getattr(_libc, "sem_clockwait", None)
_EINTR = 4


class Semaphore:
    """A token count in shared memory: `post` adds tokens, `wait` takes one or gives up after `timeout` seconds.

    POSIX's unnamed semaphore, `LINE` bytes of a block. (macOS has none: there `Semaphores` makes named ones.)
    """

    def __init__(self, cell: np.ndarray, create: bool = False):
        self._cell = cell
        self._at = ctypes.c_void_p(cell.ctypes.data)
        if create and _libc.sem_init(self._at, 1, 0):
            raise OSError(ctypes.get_errno(), "sem_init failed")

    def post(self, n: int = 1) -> None:
        for _ in range(n):
            _libc.sem_post(self._at)

    def wait(self, timeout: float) -> bool:
        """Take a token; False when none came within `timeout` seconds."""
        if _libc.sem_trywait(self._at) == 0:
            return True
        if timeout <= 0:
            return False
        clock = time.CLOCK_MONOTONIC if _clockwait else time.CLOCK_REALTIME
        until = time.clock_gettime(clock) + timeout
        spec = _Timespec(int(until), int((until % 1.0) * 1e9))
        while True:
            failed = (
                _clockwait(self._at, clock, ctypes.byref(spec))
                if _clockwait
                else _libc.sem_timedwait(self._at, ctypes.byref(spec))
            )
            if not failed:
                return True
            if ctypes.get_errno() != _EINTR:
                return False


class _NamedSemaphore:
    """The same with multiprocessing's named semaphore, for platforms without unnamed ones."""

    def __init__(self) -> None:
        self._semaphore = multiprocessing.get_context("spawn").Semaphore(0)

    def post(self, n: int = 1) -> None:
        for _ in range(n):
            self._semaphore.release()

    def wait(self, timeout: float) -> bool:
        return self._semaphore.acquire(timeout=max(timeout, 0.0))


class Semaphores:
    """`n` semaphores in one block."""

    def __init__(self, n: int, named: bool = not _POSIX):
        self.n = n
        self._named = [_NamedSemaphore() for _ in range(n)] if named else None
        self._block = None if named else Block(n * LINE)
        self._attach(create=True)

    def _attach(self, create: bool) -> None:
        if self._block is not None:
            cells = self._block.array((self.n, LINE), np.uint8)
            self._all: list[Any] = [Semaphore(c, create) for c in cells]
        else:
            self._all = list(self._named or [])

    def __getitem__(self, i: int) -> Any:
        return self._all[i]

    def __getstate__(self) -> dict:
        return {"n": self.n, "_named": self._named, "_block": self._block}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._attach(create=False)


# ---------------------------------------------------------------------------------------------------------- rings


class Ring:
    """Numbers from one producer to one consumer, in order. `get` answers None when empty; waiting is a Semaphore's.

    cells: int64 [capacity + 2 · 8]; head and tail lie a cache line apart.
    """

    def __init__(self, cells: np.ndarray):
        self._head, self._tail, self._ring = cells[0:1], cells[8:9], cells[16:]

    @staticmethod
    def cells(capacity: int) -> int:
        return 16 + capacity

    def put(self, number: int) -> None:
        tail = int(self._tail[0])
        if tail - int(self._head[0]) >= len(self._ring):
            raise RuntimeError("ring overflow: more numbers in flight than the ring was made for")
        self._ring[tail % len(self._ring)] = number
        self._tail[0] = tail + 1

    def look(self) -> int | None:
        """The next number, left where it is."""
        head = int(self._head[0])
        return None if head == int(self._tail[0]) else int(self._ring[head % len(self._ring)])

    def get(self) -> int | None:
        number = self.look()
        if number is not None:
            self._head[0] += 1
        return number

    def peek(self) -> list[int]:
        """What is in it now; for the producer after a crash, and for reports."""
        head, tail = int(self._head[0]), int(self._tail[0])
        return [int(self._ring[i % len(self._ring)]) for i in range(head, tail)]

    def __len__(self) -> int:
        return int(self._tail[0]) - int(self._head[0])


# ---------------------------------------------------------------------------------------------- knobs and control


class Knobs:
    """Hyper-parameters that may change while a run goes on: named float64 in shared memory, read as attributes."""

    _names: dict[str, int]

    def __init__(self, **values: float):
        self._names = {name: i for i, name in enumerate(values)}
        self._block = Block(8 * max(len(values), 1))
        self._attach()
        for name, value in values.items():
            self.set(name, value)

    def _attach(self) -> None:
        self._values = self._block.array(max(len(self._names), 1), np.float64)

    def __getattr__(self, name: str) -> float:
        names = self.__dict__.get("_names", {})
        if name not in names:
            raise AttributeError(f"no knob {name!r}; there are: {', '.join(names) or 'none'}")
        return float(self._values[names[name]])

    def set(self, name: str, value: float) -> None:
        getattr(self, name)
        self._values[self._names[name]] = value

    def all(self) -> dict[str, float]:
        return {name: float(self._values[i]) for name, i in self._names.items()}

    def __getstate__(self) -> dict:
        return {"_names": self._names, "_block": self._block}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._attach()


class Control:
    """What the main process wants of every worker: run on, save, finish, or drop everything."""

    HALT, FINISH, SAVE = 0, 1, 2

    def __init__(self) -> None:
        self.show: Any = None  # params.Show, where somebody wants to see the weights
        self._block = Block(LINE)
        self._attach()

    def _attach(self) -> None:
        self._flags = self._block.array(8, np.int64)

    halted = property(lambda self: bool(self._flags[self.HALT]))
    finishing = property(lambda self: bool(self._flags[self.FINISH]))
    saves = property(lambda self: int(self._flags[self.SAVE]))

    def halt(self) -> None:
        """Everybody drops what they do: every wait raises Closed."""
        self._flags[self.HALT] = 1

    def finish(self) -> None:
        """Learners save at their next update and end."""
        self._flags[self.FINISH] = 1

    def save(self) -> None:
        """Learners save at their next update."""
        self._flags[self.SAVE] += 1

    def check(self) -> None:
        if self._flags[self.HALT]:
            raise Closed

    def __getstate__(self) -> dict:
        return {"_block": self._block, "show": self.show}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._attach()

"""Token counts in shared memory: what a worker waits on. POSIX semaphores, which are the memory fences too."""

from __future__ import annotations

import ctypes
import multiprocessing
import sys
import time
from typing import Any

import numpy as np

from polyplay.common.shared_memory import LINE, SharedObject


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


_libc = ctypes.CDLL(None, use_errno=True)
_clockwait = getattr(_libc, "sem_clockwait", None)
_EINTR = 4
RELAY = 32  # a semaphore takes so many bytes of its line; then comes the number of the link that gets its tokens


class Semaphore:
    """A token count in shared memory: `post` adds tokens, `wait` takes one or gives up after `timeout` seconds.

    POSIX's unnamed semaphore, `LINE` bytes of a block. (macOS has none: there `Semaphores` makes named ones.)
    relays: semaphores of links to other machines. Where who waits is on one of these, its link gets the tokens.
    """

    def __init__(self, cell: np.ndarray, create: bool = False, relays: Semaphores | None = None):
        self._cell, self._relays = cell, relays
        self._at = ctypes.c_void_p(cell.ctypes.data)
        self._relay = cell[RELAY : RELAY + 8].view(np.int64)
        if create and _libc.sem_init(self._at, 1, 0):
            raise OSError(ctypes.get_errno(), "sem_init failed")

    def post(self, n: int = 1) -> None:
        if self._relays is not None and (relay := int(self._relay[0])):
            self._relays[relay - 1].post()
            return
        for _ in range(n):
            _libc.sem_post(self._at)

    def relay(self, to: int | None) -> None:
        """From now on this link gets the tokens; None: who waits is on this machine."""
        self._relay[0] = 0 if to is None else to + 1

    @property
    def relayed(self) -> int | None:
        """The link that gets the tokens; None: who waits is on this machine."""
        return int(self._relay[0]) - 1 if self._relay[0] else None

    def wait(self, timeout: float) -> bool:
        """Take a token; False when none came within `timeout` seconds."""
        if _libc.sem_trywait(self._at) == 0:
            return True
        if timeout <= 0:
            return False
        clock = time.CLOCK_MONOTONIC if _clockwait else time.CLOCK_REALTIME
        until = time.clock_gettime(clock) + timeout
        spec = _Timespec(int(until), int((until % 1.0) * 1e9))
        wait, given = (_clockwait, (self._at, clock)) if _clockwait else (_libc.sem_timedwait, (self._at,))
        while wait(*given, ctypes.byref(spec)):
            if ctypes.get_errno() != _EINTR:
                return False
        return True


class _NamedSemaphore:
    """The same with multiprocessing's named semaphore, for platforms without unnamed ones."""

    relayed = None

    def __init__(self) -> None:
        self._semaphore = multiprocessing.get_context("spawn").Semaphore(0)

    def post(self, n: int = 1) -> None:
        for _ in range(n):
            self._semaphore.release()

    def wait(self, timeout: float) -> bool:
        return self._semaphore.acquire(timeout=max(timeout, 0.0))


class Semaphores(SharedObject):
    """`n` semaphores in one block."""

    LOCAL = ("_all",)
    relays: Semaphores | None = None  # of the links to other machines, where there are any
    _cells: np.ndarray

    def __init__(self, n: int, named: bool = not sys.platform.startswith("linux")):
        self.n = n
        self._named = [_NamedSemaphore() for _ in range(n)] if named else None
        super().__init__(_cells=((0 if named else n, LINE), np.uint8))
        for cell in self._cells:
            Semaphore(cell, create=True)

    def _attach(self) -> None:
        super()._attach()
        self._all: list[Any] = self._named or [Semaphore(cell, relays=self.relays) for cell in self._cells]

    def relay_by(self, links: Semaphores) -> None:
        """Who waits on one of these may be on another machine."""
        self.relays = links
        self._attach()

    def __getitem__(self, i: int) -> Semaphore:
        return self._all[i]

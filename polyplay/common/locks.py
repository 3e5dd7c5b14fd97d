"""Locks across processes and threads that end with their holder. Imports no torch.

Each is a lock of the operating system on a byte of a file without a name: the system releases it
when the process that holds it ends, however that ends, so a killed worker cannot keep one.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading

import numpy as np

from polyplay.common.shared_memory import SharedObject

# Linux: a lock of an open file. Elsewhere locks are a process's, and its threads need one more among themselves.
_SET = getattr(fcntl, "F_OFD_SETLK", None)
NOBODY = -1


class RobustLocks(SharedObject):
    """`n` locks. Each worker, thread or process, calls `join` for an end of its own."""

    LOCAL = ("_locks",)
    _holders: np.ndarray

    def __init__(self, n: int):
        super().__init__(_holders=(n, np.int64))
        self._holders[:] = NOBODY

    def _attach(self) -> None:
        super()._attach()
        self._locks = [threading.Lock() for _ in self._holders]  # among threads, where the system's are processes'

    def holder(self, index: int) -> int:
        """Who acquired it last and has not released it; a dead one is still named."""
        return int(self._holders[index])

    def join(self, who: int) -> LockHolder:
        return LockHolder(self, who)


class LockHolder:
    """One worker's end of some RobustLocks."""

    def __init__(self, locks: RobustLocks, who: int):
        self.locks, self.who = locks, who
        # an open file of its own: locks are the open file's, and there may be several workers in this process
        self._fd = os.open(f"/proc/self/fd/{locks.block.fd}", os.O_RDWR) if _SET is not None else -1

    def acquire(self, index: int) -> bool:
        """Whether it is ours from now on; False: somebody else has it."""
        if _SET is None and not self.locks._locks[index].acquire(blocking=False):
            return False
        try:
            self._set(fcntl.F_WRLCK, fcntl.LOCK_EX | fcntl.LOCK_NB, index)
        except (BlockingIOError, PermissionError):
            if _SET is None:
                self.locks._locks[index].release()
            return False
        self.locks._holders[index] = self.who
        return True

    def release(self, index: int) -> None:
        self.locks._holders[index] = NOBODY
        self._set(fcntl.F_UNLCK, fcntl.LOCK_UN, index)
        if _SET is None:
            self.locks._locks[index].release()

    def _set(self, kind: int, elsewhere: int, index: int) -> None:
        """Lock or unlock a byte: `kind` as Linux calls it for open files, `elsewhere` as others do for processes."""
        if _SET is not None:
            fcntl.fcntl(self._fd, _SET, _flock(kind, index))
        else:
            fcntl.lockf(self.locks.block.fd, elsewhere, 1, index)

    def __del__(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)


def _flock(kind: int, at: int) -> bytes:
    """struct flock: type, whence, start, length, pid (0, as these locks ask for)."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, at, 1, 0)

"""Places of which each is one worker's at a time, across processes and threads. Imports no torch.

A claim is a lock of the operating system on a byte of a file without a name: it ends with the process that holds it,
however that ends, so a killed worker cannot keep one.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from typing import Any

import numpy as np

from polyplay.common.shared_memory import SharedBlock

# Linux: a lock of an open file. Elsewhere locks are a process's, and its threads need one more among themselves.
_SET = getattr(fcntl, "F_OFD_SETLK", None)
NOBODY = -1


class RobustLocks:
    """`n` places. Each worker, thread or process, calls `join` for an end of its own."""

    def __init__(self, n: int):
        self.n = n
        self._block = SharedBlock(8 * n)
        self._attach()
        self._holders[:] = NOBODY

    def _attach(self) -> None:
        self._holders = self._block.array(self.n, np.int64)
        self._locks = [threading.Lock() for _ in range(self.n)]  # among threads, where the system's are processes'

    def holder(self, place: int) -> int:
        """Who claimed it last and has not given it back; one that died meanwhile is still named."""
        return int(self._holders[place])

    def join(self, who: int) -> LockHolder:
        return LockHolder(self, who)

    def __getstate__(self) -> dict[str, Any]:
        return {"n": self.n, "_block": self._block}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach()


class LockHolder:
    """One worker's end of some RobustLocks."""

    def __init__(self, claims: RobustLocks, who: int):
        self.claims, self.who = claims, who
        # an open file of its own: locks are the open file's, and there may be several workers in this process
        self._fd = os.open(f"/proc/self/fd/{claims._block.fd}", os.O_RDWR) if _SET is not None else -1

    def take(self, place: int) -> bool:
        """Whether the place is ours from now on; False: somebody else has it."""
        if not self._lock(place):
            return False
        self.claims._holders[place] = self.who
        return True

    def give(self, place: int) -> None:
        self.claims._holders[place] = NOBODY
        if _SET is not None:
            fcntl.fcntl(self._fd, _SET, _flock(fcntl.F_UNLCK, place))
            return
        fcntl.lockf(self.claims._block.fd, fcntl.LOCK_UN, 1, place)
        self.claims._locks[place].release()

    def _lock(self, place: int) -> bool:
        if _SET is None and not self.claims._locks[place].acquire(blocking=False):
            return False
        try:
            if _SET is not None:
                fcntl.fcntl(self._fd, _SET, _flock(fcntl.F_WRLCK, place))
            else:
                fcntl.lockf(self.claims._block.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):
            if _SET is None:
                self.claims._locks[place].release()
            return False
        return True

    def __del__(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)


def _flock(kind: int, at: int) -> bytes:
    """struct flock: type, whence, start, length, pid (0, as these locks ask for)."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, at, 1, 0)

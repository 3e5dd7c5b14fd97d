"""The lock on a run's directory: one process writes there. The system releases it when its holder ends, however."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path

from polyplay.common.errors import UserError
from polyplay.common.files import parse_json
from polyplay.common.machine import now

FILE = ".lock"  # in the run's directory; what it says is for people, the lock itself is the system's
MOMENT = 0.05  # seconds until a lock that was taken is tried again


class DirectoryLock:
    """Held from here to `close`. Raises UserError: another process holds it."""

    def __init__(self, directory: Path):
        self.path, self.fd, self.place = directory / FILE, -1, -1
        self.take()

    def take(self) -> None:
        """Also where the directory was deleted and made again."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(fd)
        except BlockingIOError:
            holder = _describe(os.pread(fd, 4096, 0))
            os.close(fd)
            raise UserError(
                f"RUN: {self.path.parent} is being written by {holder}: wait until that has ended, or end it"
            ) from None
        except OSError as e:
            if e.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):  # file systems without locks
                os.close(fd)
                raise
        self.close()
        self.fd = fd
        self.place = os.open(self.path.parent, os.O_RDONLY)  # while it is open nobody else gets its inode
        if not self.held:  # deleted between open and lock
            self.take()
            return
        self._sign()

    def _sign(self) -> None:
        """Write down who we are."""
        who = {"pid": os.getpid(), "host": socket.gethostname(), "command": _command(), "since": now()}
        os.ftruncate(self.fd, 0)
        try:
            os.pwrite(self.fd, (json.dumps(who) + "\n").encode(), 0)
        except OSError:  # a full disk: it is locked nonetheless
            os.ftruncate(self.fd, 0)

    @property
    def held(self) -> bool:
        """Whether what is at our path is what we locked, and not another directory or none."""
        return _same(self.path, self.fd)

    @property
    def in_place(self) -> bool:
        """Whether the directory at our path is the one that we locked, even if the lock in it was deleted."""
        return _same(self.path.parent, self.place)

    @property
    def moved_to(self) -> Path | None:
        """Where the directory that we locked is, if it has another path now and the system says it."""
        try:
            there = Path(os.readlink(f"/proc/self/fd/{self.place}"))
        except OSError:
            return None
        return there if _same(there, self.place) and not self.in_place else None

    def close(self) -> None:
        """May be called again."""
        for fd in (self.fd, self.place):
            if fd >= 0:
                os.close(fd)
        self.fd = self.place = -1


def is_locked(directory: Path) -> bool:
    """Whether a process holds the lock on a directory. Writes nothing."""
    try:
        fd = os.open(directory / FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # file systems without locks
        return False
    finally:
        os.close(fd)
    return False


def _lock(fd: int) -> None:
    """Lock an open file; `is_locked` of another process may hold it for a moment. Raises OSError."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(MOMENT)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _same(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False


def _command() -> str:
    program = Path(sys.argv[0]).name or "python"
    return " ".join(["polyplay" if program == "__main__.py" else program, *sys.argv[1:]])[:200]


def _describe(written: bytes) -> str:
    who = parse_json(written)
    if not isinstance(who, dict):
        return "another process"
    pid, host, command, since = (who.get(k, "?") for k in ("pid", "host", "command", "since"))
    return f"process {pid} on {host} (`{command}`, since {since})"

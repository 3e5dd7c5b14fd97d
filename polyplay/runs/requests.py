"""What another program may ask of a run that goes on: to save a checkpoint, or to end.

A request to save is a file in the run's directory, which the session takes at its next look; a request to end is
SIGINT to the process that has the directory's lock. Imports no torch.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import psutil

from polyplay.common.files import is_number, parse_json
from polyplay.runs.lock import FILE

SAVE = ".save"  # in the run's directory


def take_save_request(directory: Path) -> bool:
    """Whether somebody has asked for a checkpoint since the last time."""
    try:
        os.unlink(directory / SAVE)
    except OSError:
        return False
    return True


def request_save(directory: Path) -> bool:
    """Whether a run goes on there, which will save at its next update."""
    if lock_holder(directory) is None:
        return False
    (directory / SAVE).touch()
    return True


def request_end(directory: Path) -> bool:
    """Whether a run goes on there, which now saves and ends as with Ctrl-C. Nobody else ever gets the signal: the
    process is pinned before it is looked at, where the system can do that.
    """
    pid = _written_pid(directory)
    if pid is None:
        return False
    if not hasattr(os, "pidfd_open"):
        return _holds(pid, directory) and _interrupt(pid)
    try:
        pinned = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _holds(pid, directory):
            return False
        signal.pidfd_send_signal(pinned, signal.SIGINT)
    except OSError:
        return False
    finally:
        os.close(pinned)
    return True


def _interrupt(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGINT)
    except OSError:
        return False
    return True


def lock_holder(directory: Path) -> int | None:
    """The process that writes to a run's directory; None: nobody on this machine does. The lock itself is not tried,
    which could keep a run from starting.
    """
    pid = _written_pid(directory)
    return pid if pid is not None and _holds(pid, directory) else None


def _written_pid(directory: Path) -> int | None:
    """Whom the lock's file names, if it is a process of this machine other than this one."""
    try:
        who = parse_json((directory / FILE).read_bytes())
    except OSError:
        return None
    if not isinstance(who, dict) or who.get("host") != socket.gethostname() or not is_number(who.get("pid")):
        return None
    pid = int(who["pid"])
    return pid if pid > 1 and pid != os.getpid() else None


def _holds(pid: int, directory: Path) -> bool:
    """Whether the process has the lock's file open, as who holds it has until it ends."""
    path = str((directory / FILE).resolve())
    try:
        return any(file.path == path for file in psutil.Process(pid).open_files())
    except (psutil.Error, OSError):
        return False

"""This process and those below it, as the system sees them: titles, open files, who is left at the end."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PDEATHSIG, SUBREAPER = 1, 36  # of prctl: the signal when the parent dies; be the parent of orphans below
PREFIX = "polyplay: "
STEPPING = ("resume", "reproduce", "evaluate", "verify", "starts", "tournament")  # verbs of runs that were begun
SERIAL = ("--serial", "--config")  # options of others
HASH_SEED = "PYTHONHASHSEED"  # Python reads it as it starts: the order of sets of texts follows from it
label = ""  # what belongs to this process is called so: " [RUN]", " of act 1 [RUN]"
served = False  # this process is a fork server, or was forked from one
REFUSED = (errno.EMFILE, errno.ENFILE, errno.EAGAIN)  # what a system says that lets no more be opened or started
on_compile: list[Callable[[], None]] = []  # called when this process begins to compile a loop


def is_limit(e: BaseException) -> bool:
    """Whether the system lets no more files be opened, processes or threads be started: fewer of them cure that."""
    return (isinstance(e, OSError) and e.errno in REFUSED) or "can't start new thread" in str(e)


def prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value)


def set_title(text: str) -> None:
    """What `ps` and `top` show instead of the command, which has to be at least as long. In the names of the kernel
    there is room for 15 letters.
    """
    import ctypes

    with contextlib.suppress(OSError, ValueError, IndexError):
        Path("/proc/self/comm").write_bytes((PREFIX + text).encode(errors="replace")[:15])
        fields = Path("/proc/self/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # of the arguments in memory; 0: not told
        if 0 < start < end:
            title = (PREFIX + text).encode(errors="replace")[: end - start - 1]
            ctypes.memset(start, 0, end - start)
            ctypes.memmove(start, title, len(title))


def sets_are_fixed() -> bool:
    """Whether the user chose an order of sets for this process and those that it starts."""
    return os.environ.get(HASH_SEED, "random") not in ("", "random")


@contextlib.contextmanager
def hash_seed(other: bool = False) -> Iterator[None]:
    """What is started meanwhile orders sets in the same way in every run: as the user says, else by seed 0. other: in
    another way than that.
    """
    before, usual = os.environ.get(HASH_SEED), os.environ[HASH_SEED] if sets_are_fixed() else "0"
    os.environ[HASH_SEED] = ("3" if usual != "3" else "0") if other else usual
    try:
        yield
    finally:
        del os.environ[HASH_SEED]
        if before is not None:
            os.environ[HASH_SEED] = before


def fix_sets() -> None:
    """Begin this command anew with sets in the same order in every run, unless they are already."""
    if not sets_are_fixed():
        with hash_seed():
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def may_step(words: Sequence[str]) -> bool:
    """Whether a command may step environments in its own process, where the order of sets counts."""
    return bool(words) and (words[0] in STEPPING or any(word.partition("=")[0] in SERIAL for word in words))


def describe_sets(here: bool) -> str:
    """A condition for repeating what is stepped `here`, in a program of the user's, whose sets have an order by chance;
    "": there is none.
    """
    return ", and sets in order (start the program with PYTHONHASHSEED=0)" if here and not sets_are_fixed() else ""


def raise_open_files() -> int:
    """As many files may be open as the system lets this process ask for; how many that is."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS does not allow all that it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def end_descendants(titled: bool = False, seconds: float = 2.0) -> None:
    """Kill every process below this one and see it gone, so that nothing is left once the command has returned. titled:
    only those that bear our title, and what is below them.
    """
    with contextlib.suppress(Exception):  # a signal's handler may find `ctypes` half imported
        prctl(SUBREAPER, 1)  # orphans come to us from now on
    until = time.monotonic() + seconds
    while (left := _below(os.getpid(), titled)) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)


def _below(pid: int, titled: bool) -> list[int]:
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, file.read_text("utf-8").split()):
                if not titled or _titled(child):
                    found += [child, *_below(child, False)]
    return found


def _titled(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_bytes().startswith(PREFIX.strip().encode())
    return False

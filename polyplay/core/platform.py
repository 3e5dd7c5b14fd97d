"""Features that only Linux has, each with a portable replacement from the standard library and psutil.

| | on Linux | portable |
|---|---|---|
| shared memory | files in memory (memfd) | temporary files, deleted at once |
| waits | POSIX semaphores in that memory | polling, with sleeps of 0.01 to 2 ms |
| processes | forked from a server | spawned, each with its own imports |
| end with the parent process | by a signal from the kernel | by a thread that waits |
| descendants, cores, memory, title | /proc, affinity, control groups | psutil; no title |

If the platform lacks a feature of the Linux column, or if POLYPLAY_PORTABLE=1, Polyplay runs in portable mode, and
`PORTABLE` is true. `WINDOWS` tells whether the platform is Windows, which also lacks signals and process groups.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import importlib
import itertools
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import connection, reduction, spawn
from pathlib import Path
from typing import Any, NoReturn

from polyplay.core.errors import UserError

SWITCH = "POLYPLAY_PORTABLE"
WINDOWS = sys.platform == "win32"
NEEDED = {
    os: ("fork", "memfd_create", "pipe2", "register_at_fork", "sched_setaffinity"),
    signal: ("SIGKILL", "pthread_sigmask", "set_wakeup_fd"),
    select: ("poll",),
}


def _lacks() -> str:
    """Return the first needed Linux feature that this platform lacks, or "" if it has all of them."""
    lost = [f"{module.__name__}.{name}" for module, own in NEEDED.items() for name in own if name not in vars(module)]
    lost += [] if os.path.isdir("/proc/self/fd") else ["/proc"]
    return lost[0] if lost else ""


LACKS = _lacks()
FORCED = os.environ.get(SWITCH, "0") not in ("", "0")
PORTABLE = FORCED or bool(LACKS)
_linux: Any = None if WINDOWS else importlib.import_module("fcntl")
_windows: Any = importlib.import_module("msvcrt") if WINDOWS else None
_limits: Any = None if WINDOWS else importlib.import_module("resource")


def describe() -> str:
    """Return the line about portable mode for the printed plan of a run, or "" in Linux mode."""
    why = f"{SWITCH}={os.environ.get(SWITCH)}" if FORCED else f"{sys.platform} has no {LACKS}"
    return f"portable ({why}): processes are spawned, waits poll: slower than on Linux" if PORTABLE else ""


# Signals.


KILL: signal.Signals = vars(signal).get("SIGKILL", signal.SIGTERM)  # on Windows every signal kills
ENDING = tuple(vars(signal)[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in vars(signal))
_MASKED = "pthread_sigmask" in vars(signal)


@contextlib.contextmanager
def blocked(numbers: Iterable[int]) -> Iterator[None]:
    """Block signals within this context, also in processes that are started within the context."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers) if _MASKED else ()
    try:
        yield
    finally:
        if _MASKED:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock(numbers: Iterable[int]) -> None:
    if _MASKED:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def kill(pid: int) -> None:
    """Kill a process. Raises OSError."""
    os.kill(pid, KILL)


def kill_group(pid: int) -> None:
    """Kill the process group that `pid` leads. On Windows, kill `pid` and its descendants. Raises OSError if the group
    does not exist.
    """
    if not WINDOWS:
        return os.killpg(pid, KILL)
    _kill_all(_trees([pid]))


def lead_group() -> int:
    """Make this process the leader of a process group. Return its `owner` for `kill_when_closed`."""
    if WINDOWS:
        return os.getpid()
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    return -os.getpid() if os.getpgrp() == os.getpid() else os.getpid()


def dump_on_signal(fd: int) -> None:
    """Have this process write its Python stack to `fd` when it crashes, or when `ask_for_dump` requests it."""
    faulthandler.enable(fd, all_threads=False)
    if not WINDOWS:
        faulthandler.register(signal.SIGUSR1, fd, all_threads=False)


def ask_for_dump(pid: int) -> None:
    """Ask a process to write its Python stack. On Windows, do nothing, because it has no signal for this."""
    if not WINDOWS:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)


# Files.


_BINARY: int = vars(os).get("O_BINARY", 0)
_TEMPORARY: int = _BINARY | vars(os).get("O_TEMPORARY", 0) | vars(os).get("O_SHORT_LIVED", 0)
_FAR = 1 << 30  # position of the locked byte on Windows: beyond any text, because locked bytes can't be read
_REFUSED = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
BUSY = 1.0  # seconds during which Windows may refuse to replace a file, because another program has it open


def open_file(path: Path | str, flags: int, mode: int = 0o644) -> int:
    """Open a file for reading or writing bytes. Return the file's descriptor. Raises OSError."""
    return os.open(path, flags | _BINARY, mode)


def open_directory(path: Path) -> int:
    """Return a descriptor of a directory, or -1 on Windows."""
    return -1 if WINDOWS else os.open(path, os.O_RDONLY)


def sync(path: Path) -> None:
    """Flush a file or a directory to the disk. On Windows, do nothing for a directory. Raises OSError."""
    if WINDOWS and path.is_dir():
        return
    fd = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(source: Path | str, target: Path | str) -> None:
    """Rename a file or a directory. An existing file at `target` is replaced. Raises OSError."""
    until = time.monotonic() + BUSY
    while WINDOWS and time.monotonic() < until:
        with contextlib.suppress(PermissionError):
            return os.replace(source, target)
        time.sleep(0.02)
    os.replace(source, target)


def _read_at(fd: int, size: int, at: int) -> bytes:
    os.lseek(fd, at, os.SEEK_SET)
    return os.read(fd, size)


def _write_at(fd: int, data: bytes, at: int) -> int:
    os.lseek(fd, at, os.SEEK_SET)
    return os.write(fd, data)


pread: Callable[[int, int, int], bytes] = vars(os).get("pread", _read_at)
pwrite: Callable[[int, bytes, int], int] = vars(os).get("pwrite", _write_at)


def lock(fd: int, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file until it is closed or this process ends. Return False if the file is locked. Raises OSError."""
    if not WINDOWS:
        how = (_linux.LOCK_SH if shared else _linux.LOCK_EX) | (0 if wait else _linux.LOCK_NB)
        with contextlib.suppress(BlockingIOError):
            return _linux.flock(fd, how) is None
        return False
    while not _lock_byte(fd, _windows.LK_NBLCK):
        if not wait:
            return False
        time.sleep(0.02)
    return True


def unlock(fd: int) -> None:
    if WINDOWS:
        _lock_byte(fd, _windows.LK_UNLCK)
    else:
        _linux.flock(fd, _linux.LOCK_UN)


def _lock_byte(fd: int, how: int) -> bool:
    at = os.lseek(fd, 0, os.SEEK_CUR)
    os.lseek(fd, _FAR, os.SEEK_SET)
    try:
        _windows.locking(fd, how, 1)
    except OSError as e:
        if e.errno not in _REFUSED:
            raise
        return False
    finally:
        os.lseek(fd, at, os.SEEK_SET)
    return True


# Memory that processes share is a file, given by a descriptor and by a path ("" if the file has none).


def new_memory(named: bool = False) -> tuple[int, str]:
    """Make an empty shared file, and return its descriptor and its path ("" without a path). Raises OSError.
    `named`: whether `reopen` will be called, which needs a path in portable mode.
    """
    if not PORTABLE:
        return os.memfd_create("polyplay"), ""
    path = os.path.join(tempfile.gettempdir(), f"polyplay-{os.getpid()}-{os.urandom(8).hex()}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _TEMPORARY, 0o600)
    if named or WINDOWS:  # Windows deletes it with its last descriptor
        return fd, path
    os.unlink(path)
    return fd, ""


def send_memory(fd: int, path: str) -> tuple[Any, str]:
    """Convert a shared file's descriptor and path so that they can be pickled for a new process."""
    return (None if WINDOWS else reduction.DupFd(fd)), path


def receive_memory(fd: Any, path: str) -> tuple[int, str]:
    """Return the descriptor and path of a shared file that another process has sent by `send_memory`."""
    return (os.open(path, os.O_RDWR | _TEMPORARY) if fd is None else fd.detach()), path


def reopen(fd: int, path: str) -> int:
    """Open a shared file again. Locks on the new descriptor are separate from locks on the old one."""
    return os.open(path or f"/proc/self/fd/{fd}", os.O_RDWR | _TEMPORARY)


def forget_memory(path: str, os: Any = os, windows: bool = WINDOWS) -> None:
    """Delete a shared file's path. Works even while Python exits."""
    if path and not windows:
        with contextlib.suppress(OSError):
            os.unlink(path)


# Semaphores, in 32 bytes of shared memory. The portable semaphore counts no tokens, so several posts may wake a waiter
# only once. Therefore, a waiter reads the shared data before it waits, and again after `patience` seconds.
#
# Processes can't safely increment a number without a lock, which a killed process would keep. So each portable post
# writes a number that no other post writes. The only process that waits stores the last such number that it saw.


_FENCE = threading.Lock()
SHORTEST, LONGEST, GROWTH = 1e-5, 2e-3, 1.2  # first and longest sleep of a polling wait in seconds; growth per sleep
C_CALLS: tuple[Any, ...] = ()  # sem_trywait, sem_wait, sem_post, memcpy for compiled loops, which run without the GIL


def memory_barrier() -> None:
    """Order the memory accesses of this thread: earlier reads and writes complete before later ones."""
    with _FENCE:
        pass


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def polled_at(cell: Any) -> Any:
    """Return the two cells of a portable semaphore: the newest post, and the post that the waiter saw last."""
    return cell[:16].view("int64")


def polled_create(at: Any) -> None:
    at[:] = 0


_posts = itertools.count(int.from_bytes(os.urandom(7), "little"))


def polled_post(at: Any) -> None:
    memory_barrier()
    at[0] = next(_posts)


def polled_try(at: Any) -> int:
    """Return 0 if there was a post since the last call, or else -1."""
    if (posted := at[0]) == at[1]:
        return -1
    at[1] = posted
    memory_barrier()
    return 0


def polled_wait(at: Any, timeout: float) -> bool:
    """Wait up to `timeout` seconds for a post. Return whether one came."""
    until, pause = time.monotonic() + timeout, SHORTEST
    while polled_try(at):
        if (left := until - time.monotonic()) <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(GROWTH * pause, LONGEST)
    return True


sem_at: Callable[[Any], Any] = polled_at
sem_create: Callable[[Any], None] = polled_create
sem_post: Callable[[Any], Any] = polled_post
sem_try: Callable[[Any], int] = polled_try
sem_wait: Callable[[Any, float], bool] = polled_wait

if not PORTABLE:
    _libc = ctypes.CDLL(None, use_errno=True)
    _clockwait = getattr(_libc, "sem_clockwait", None)
    C_CALLS = (_libc.sem_trywait, _libc.sem_wait, _libc.sem_post, _libc.memcpy)

    def _at(cell: Any) -> Any:
        return ctypes.c_void_p(cell.ctypes.data)

    def _create(at: Any) -> None:
        if _libc.sem_init(at, 1, 0):
            raise OSError(ctypes.get_errno(), "sem_init failed")

    def _wait(at: Any, timeout: float) -> bool:
        clock = time.CLOCK_MONOTONIC if _clockwait else time.CLOCK_REALTIME
        until = time.clock_gettime(clock) + timeout
        spec = _Timespec(int(until), int((until % 1.0) * 1e9))
        wait, given = (_clockwait, (at, clock)) if _clockwait else (_libc.sem_timedwait, (at,))
        while wait(*given, ctypes.byref(spec)):
            if ctypes.get_errno() != errno.EINTR:
                return False
        return True

    sem_at, sem_create, sem_wait = _at, _create, _wait
    sem_post, sem_try = _libc.sem_post, _libc.sem_trywait


# Cores, memory, limits, priority.


def cores() -> list[int]:
    """Return the numbers of the cores that this thread may use."""
    if not PORTABLE:
        return sorted(os.sched_getaffinity(0))
    return sorted(_process().cpu_affinity()) if BINDS else list(range(os.cpu_count() or 1))


def bind(own: Iterable[int]) -> None:
    """Bind this thread to the cores `own`. In portable mode, bind the whole process, if the platform can."""
    if not PORTABLE:
        os.sched_setaffinity(0, own)
    elif BINDS:
        _process().cpu_affinity([*own])


def _process(pid: int | None = None) -> Any:
    import psutil

    return psutil.Process(pid)


BINDS = not PORTABLE or "cpu_affinity" in dir(_process())  # macOS cannot bind
UNBOUND = f"{sys.platform} cannot bind processes to cores"


def cpu_name() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    import platform  # Python's own module

    return platform.processor() or platform.machine()


def cpu_features() -> str:
    """Return the names of the processor's features, or its model name if the features are unknown."""
    with contextlib.suppress(OSError):
        return Path("/proc/cpuinfo").read_text("utf-8").partition("flags")[2].partition("\n")[0]
    return cpu_name()


GROUPS = Path("/sys/fs/cgroup")


def memory_limit(groups: Path = GROUPS) -> int:
    """Return the bytes of memory that this process and its children may use, as limited by the control group."""
    import psutil

    found = [psutil.virtual_memory().total]
    with contextlib.suppress(OSError):
        own = groups / Path("/proc/self/cgroup").read_text("utf-8").partition("::/")[2].strip()
        for place in (own, *own.parents):
            with contextlib.suppress(OSError, ValueError):  # "max" means no limit
                found.append(int((place / "memory.max").read_text("utf-8")))
    return min(found)


def cpu_limit() -> str:
    """Return the control group's CPU limit as text, such as "200000 100000" (µs per period), or "" if it is unknown."""
    try:
        return (GROUPS / "cpu.max").read_text("utf-8").strip()
    except OSError:
        return ""


def nvidia_gpus() -> int | None:
    """Return the number of GPUs that Nvidia's driver shows, or None if there is no such driver."""
    driver = Path("/proc/driver/nvidia")
    return len([*(driver / "gpus").glob("*")]) if driver.exists() else None


def open_files() -> tuple[int, int] | None:
    """Return the limit of open files and the highest allowed limit, or None on Windows, which has no limit."""
    return None if _limits is None else _limits.getrlimit(_limits.RLIMIT_NOFILE)


def raise_open_files() -> None:
    """Raise the limit of open files of this process as far as the system allows."""
    if (found := open_files()) and found[0] != found[1]:
        with contextlib.suppress(OSError, ValueError):  # containers may forbid it
            _limits.setrlimit(_limits.RLIMIT_NOFILE, (found[1], found[1]))


def be_nicer(by: int) -> None:
    """Lower the priority of this process by `by` nice levels. On Windows, set the class BELOW_NORMAL."""
    if not WINDOWS:
        os.nice(by)
    elif by > 0:
        _process().nice(0x4000)  # BELOW_NORMAL_PRIORITY_CLASS


def be_normal() -> None:
    """Give this process the usual priority, if the system allows it."""
    with contextlib.suppress(PermissionError):
        if not WINDOWS:
            os.setpriority(os.PRIO_PROCESS, 0, 0)


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for this process, because updates often allocate and free large tensors."""
    if not PORTABLE:
        libc = ctypes.CDLL(None)
        with contextlib.suppress(AttributeError):
            libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
            libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def need_linux(option: str, what: str, instead: str) -> None:
    """Raise UserError if this platform is not Linux. `what` and `instead`: parts of the message."""
    if not sys.platform.startswith("linux"):
        raise UserError(f"{option}: {what} need Linux, and this is {sys.platform}: {instead}")


# Processes.


PREFIX = "polyplay: "
PDEATHSIG, SUBREAPER = 1, 36  # for prctl: signal when the parent dies; become the parent of orphaned descendants


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


def at_fork(before: Callable[[], None], in_child: Callable[[], None]) -> None:
    """Register `before` to run before each fork, and `in_child` in each forked child. Windows cannot fork."""
    if not WINDOWS:
        os.register_at_fork(before=before, after_in_child=in_child)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent process dies."""
    _prctl(PDEATHSIG, KILL)


def set_title(text: str) -> None:
    """Set the process title that `ps` and `top` show. A long title is cut. In portable mode, do nothing."""
    if PORTABLE:
        return
    with contextlib.suppress(OSError, ValueError, IndexError):
        Path("/proc/self/comm").write_bytes((PREFIX + text).encode(errors="replace")[:15])
        fields = Path("/proc/self/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # addresses of the arguments; 0: unknown
        if 0 < start < end:
            title = (PREFIX + text).encode(errors="replace")[: end - start - 1]
            ctypes.memset(start, 0, end - start)
            ctypes.memmove(start, title, len(title))


def readable(fds: Sequence[int], seconds: float | None = None) -> set[int]:
    """Return the descriptors that are readable or closed at the other end. Wait up to `seconds` for at least one."""
    if PORTABLE:
        return {fd for fd in connection.wait(fds, seconds) if isinstance(fd, int)}
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if seconds is None else 1000 * seconds)}


def reader_of(fd: int) -> Callable[[float], object]:
    """Return a function that waits until `fd` is readable, at most the given seconds, and returns whether it is."""
    if PORTABLE:
        return lambda seconds: connection.wait([fd], seconds)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return lambda seconds: poll.poll(1e3 * seconds)


def kill_when_closed(fd: int, owner: int) -> None:
    """Kill processes when the other end of `fd` closes. On Linux, the kernel kills the process `owner`, or the process
    group -`owner` if `owner` is negative. In portable mode, a thread kills this process and its descendants.
    """
    if PORTABLE:
        threading.Thread(target=_end_when_closed, args=(fd,), daemon=True).start()
        return
    _linux.fcntl(fd, _linux.F_SETOWN, owner)
    _linux.fcntl(fd, _linux.F_SETSIG, KILL)
    _linux.fcntl(fd, _linux.F_SETFL, _linux.fcntl(fd, _linux.F_GETFL) | os.O_ASYNC)


def _end_when_closed(fd: int) -> None:
    connection.wait([fd])
    _kill_all(_trees([os.getpid()])[1:])
    kill(os.getpid())


def has_open(pid: int, file: Path) -> bool:
    """Tell whether a process has a file open. Raises OSError or psutil.Error if the process is gone."""
    found = os.stat(file)
    if not PORTABLE:
        return any(os.path.samestat(os.stat(fd), found) for fd in Path(f"/proc/{pid}/fd").iterdir())
    return any(os.path.samestat(os.stat(each.path), found) for each in _process(pid).open_files())


def end_descendants(titled: bool, seconds: float, own: Callable[[], Iterable[int]]) -> None:
    """Kill all descendants of this process and wait for them.

    `titled`: whether to kill only processes with Polyplay's title, and their descendants.
    `own`: function that returns the ids of Polyplay's processes in portable mode, where titles cannot be set.
    """
    if PORTABLE:
        _kill_all(_trees(own()) if titled else _trees([os.getpid()])[1:], seconds)
        return
    with contextlib.suppress(Exception):
        _prctl(SUBREAPER, 1)  # become the parent of orphaned descendants
    until = time.monotonic() + seconds
    while (left := _below(os.getpid(), titled)) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(OSError):
                kill(pid)
        for pid in left:
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)


def _below(pid: int, titled: bool) -> list[int]:
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, file.read_text("utf-8").split()):
                # a process that just ended has no title and no descendants
                with contextlib.suppress(OSError):
                    comm = Path(f"/proc/{child}/comm").read_bytes() if titled else b""
                    if not titled or comm.startswith(PREFIX.strip().encode()):
                        found += [child, *_below(child, False)]
    return found


def _trees(roots: Iterable[int]) -> list[Any]:
    import psutil

    found = list[Any]()
    for pid in roots:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(pid)
            found += [root, *root.children(recursive=True)]
    return found


def _kill_all(found: Sequence[Any], seconds: float = 0.0) -> None:
    import psutil

    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(found, seconds)


# Starting a process: multiprocessing's Popen. On Linux, core/processes uses its own Popen, with a fork server.


if WINDOWS:
    SpawnPopen: Any = importlib.import_module("multiprocessing.popen_spawn_win32").Popen
    ServerPopen: Any = SpawnPopen
else:
    SpawnPopen = importlib.import_module("multiprocessing.popen_spawn_posix").Popen
    ServerPopen = importlib.import_module("multiprocessing.popen_forkserver").Popen
_preparing = threading.Lock()


def spawn_process(process: Any) -> Any:
    """Start a process that does not import `__main__` again. Return its multiprocessing Popen. Raises OSError."""
    module: Any = spawn
    with _preparing:
        data = module.get_preparation_data
        module.get_preparation_data = lambda name: {
            key: value for key, value in data(name).items() if not key.startswith("init_main")
        }
        try:
            return SpawnPopen(process)
        finally:
            module.get_preparation_data = data


def restart(command: Sequence[str]) -> NoReturn:
    """Replace this process by a command. On Windows, run the command as a child process instead, because the shell
    would not wait for the command.
    """
    if WINDOWS:
        import subprocess

        sys.exit(subprocess.run(command, check=False).returncode)
    os.execv(command[0], [*command])

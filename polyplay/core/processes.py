"""Processes: the fork server, titles, signals, the end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, popen_forkserver, process, reduction, spawn, util
from multiprocessing.context import set_spawning_popen
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from polyplay.core import user_modules

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
        with contextlib.suppress(OSError, ValueError):  # containers may forbid it
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
                # a process that ends meanwhile has no title, and nothing below it
                with contextlib.suppress(OSError):
                    comm = Path(f"/proc/{child}/comm").read_bytes() if titled else b""
                    if not titled or comm.startswith(PREFIX.strip().encode()):
                        found += [child, *_below(child, False)]
    return found


# What SIGINT, SIGTERM and SIGHUP do to a command, from its first instruction to its exit.
#
# Until a verb says otherwise the command ends at once. A run that has begun saves first (runs.session); other verbs get
# an exception. Nothing heavy is imported: this is the first thing that a command loads.


Handler = Callable[[int, FrameType | None], Any]
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IMPORTS = "<frozen importlib._bootstrap>"  # the file of the code that imports
AGAIN = 1.0  # seconds after the line about one from which on another counts: schedulers send several at once


class Stopped(KeyboardInterrupt):
    """A signal asks to end. number: which."""

    def __init__(self, number: int):
        super().__init__(name(number))
        self.number = number


def name(number: int) -> str:
    return signal.Signals(number).name


def install(handler: Handler | signal.Handlers) -> dict[signal.Signals, Any]:
    """From now on `handler` gets them; who got them before. Under nohup SIGHUP stays ignored."""
    handled = [n for n in ENDING if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    return {n: signal.signal(n, handler) for n in handled}


@contextlib.contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """`handler` gets them meanwhile; elsewhere than in the main thread nothing changes. A command that would have ended
    at once before ignores them after: it has done its work, and its status stands.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = install(handler)
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, signal.SIG_IGN if handler_before is end_at_once else handler_before)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """They wait until the end of this block; a process that is started meanwhile begins with them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore() -> None:
    """For processes whose main process decides, and for a command that has ended."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Raise Stopped; within an import, where an exception could be lost or become another one, end the process."""
    while frame is not None:
        if frame.f_code.co_filename == IMPORTS:
            _end(number, f"ended by {name(number)}")
        frame = frame.f_back
    raise Stopped(number)


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Nothing is worth saving yet. An exception could be lost, or printed, within an import: none is raised."""
    _end(number, f"{name(number)}: ended before anything had begun")


def _end(number: int, text: str) -> NoReturn:
    ignore()
    end_descendants()
    with contextlib.suppress(OSError):
        os.write(2, f"polyplay: {text}\n".encode())
    os._exit(128 + number)


# Processes are forked from servers: what they need is imported there once.
#
# multiprocessing has one such server, of which every child knows; it listens on a file that a killed main process
# leaves behind, and lives as long as any child does. Ours belongs to one process, talks over a pair of sockets, and is
# killed with it. A child never imports the user's `__main__`, so scripts without a main guard are safe; factories
# travel by cloudpickle.


CODE = "import json, sys; given = json.loads(sys.argv[1]); sys.path[:] = given.pop()\n"
CODE += "from polyplay.core.processes import main; main(*given)"  # the same files as ours
ROOM = " " * 256  # in the command, for a title
MOST_FDS, MOST_BYTES = 250, 4096  # of one request
LOST = 255  # the exit status of which nobody can tell any more
TICK = 0.1  # seconds between two calls of `check` while a server gets ready


class ForkServer:
    """The main process's side. Started when it is first needed, or by `ensure_running`.

    tied: its children are killed when it dies. reordered: sets are in another order there, see processes.hash_seed.
    """

    def __init__(self, preload: str, tied: bool = False, reordered: bool = False):
        self.preload, self.tied, self.reordered = preload, tied, reordered
        self.status: int | None = None  # how the last one ended; None: it runs, or never did
        self._pid = 0
        self._lock = threading.Lock()

    def ensure_running(self) -> None:
        """Raises UserError where nothing may start, see user_modules."""
        user_modules.refuse("a process")
        with self._lock:
            if not self._pid or self._ended(0.0):
                self._start()

    def _start(self) -> None:
        self._channel, theirs = socket.socketpair()
        util.Finalize(None, self._channel.close, exitpriority=0)
        lifeline, self._lifeline = os.pipe()  # we hold the other end, and nobody else does
        passed = [theirs.fileno(), lifeline]
        flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
        given = json.dumps([*passed, self.preload, self.tied, sys.path])
        command = [spawn.get_executable(), *flags, "-c", CODE, given, ROOM]
        try:
            with blocked(), hash_seed(self.reordered):
                self._pid = util.spawnv_passfds(command[0], command, passed)
        except OSError:
            self._channel.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self.status = None

    def fork(self, title: str, fds: list[int], check: Callable[[], None]) -> tuple[int, int, int, int]:
        """A new process that waits for its data: its number, where its exit status comes from, where its data go to,
        what tells it by being closed that we ended.

        check: called every now and then while the server gets ready; what it raises ends the wait. Raises OSError.
        """
        self.ensure_running()
        # the kernel signals late that data came: those must not kill, so the lifeline is a pipe of its own
        (status, their_status), (their_data, data), (their_lifeline, lifeline) = os.pipe(), os.pipe(), os.pipe()
        theirs = [their_data, their_lifeline, their_status]
        try:
            request = json.dumps([len(fds), title, label]).encode()
            with self._lock:
                socket.send_fds(self._channel, [request], [their_status, their_data, their_lifeline, *fds])
                os.close(theirs.pop())
                while not readable([status], TICK):
                    check()
                pid = forkserver.read_signed(status)
            if pid < 0:
                raise OSError(-pid, os.strerror(-pid))
        except BaseException as e:
            for fd in (status, data, lifeline):
                os.close(fd)
            if not isinstance(e, (EOFError, ConnectionError)):
                raise
            # it is dead, or could not take what it was sent
            fate = self.fate()
            lost = OSError(f"the fork server {fate}") if fate else OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            raise lost from None
        finally:
            for fd in theirs:
                os.close(fd)
        return pid, status, data, lifeline

    def _ended(self, seconds: float) -> bool:
        """Whether it has ended, within so many seconds."""
        until = time.monotonic() + seconds
        while self._pid:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has reaped it, or it is our parent's
                pid, status = self._pid, 0
            if pid:
                self._pid, self.status = 0, os.waitstatus_to_exitcode(status)
                self._channel.close()
                os.close(self._lifeline)
            elif time.monotonic() >= until:
                return False
            else:
                time.sleep(0.005)
        return True

    def fate(self) -> str:
        """How it ended; empty: it runs."""
        with self._lock:
            ended = self._ended(0.5)
        return ending_text(self.status) if ended and self.status is not None else ""


def readable(fds: list[int], seconds: float | None = None) -> set[int]:
    """Those that can be read or whose other end is closed, within so many seconds. Numbers may be large."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if seconds is None else 1000 * seconds)}


def ending_text(code: int | None) -> str:
    """How a process ended, in words."""
    return f"was killed by {name(-code)}" if code and code < 0 else f"ended with exit status {code}"


class _Popen(popen_forkserver.Popen):
    """multiprocessing's own, with our server and without the way back to `__main__`."""

    def _launch(self, process_obj: ForkedProcess) -> None:
        preparation = spawn.get_preparation_data(process_obj.name)
        for key in ("init_main_from_name", "init_main_from_path"):
            preparation.pop(key, None)
        buffer = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(preparation, buffer)
            reduction.dump(process_obj, buffer)
        finally:
            set_spawning_popen(None)
        fork = process_obj.server.fork(process_obj.name, self._fds, process_obj.check)  # type: ignore[attr-defined]
        self.pid, self.sentinel, data, lifeline = fork
        self.finalizer = util.Finalize(self, util.close_fds, (lifeline, self.sentinel))  # type: ignore[attr-defined]
        with open(data, "wb", closefd=True) as pipe:
            pipe.write(buffer.getbuffer())


class Handle:
    """What runs a worker, as the main process sees it. The defaults are those of what runs in this process and can only
    end by itself.
    """

    apart: bool = False  # a process, here or on another machine: it can be killed
    machine: str | None = None  # the other machine that it is on
    lost_first: bool = True  # of the workers that were lost with a machine at once: the one that counts

    @property
    def pid(self) -> int | None:
        """Its number, where it is a process of this machine."""
        return None

    @property
    def sentinel(self) -> int | None:
        """A file that is readable once it has ended; None: it sends a last message."""
        return None

    def turn(self) -> None:
        """Take a turn, where it runs in the calling thread. Raises StopIteration: it is done; and what it raises."""

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return False

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most `timeout` seconds."""

    def kill(self) -> None:
        """End it at once, where it is apart."""

    def ending(self) -> str:
        """How it ended, in words."""
        return "ended"

    def close(self) -> None:
        """Give back what it holds. It has ended, or never runs again."""


class ForkedProcess(process.BaseProcess, Handle):
    """A process forked from a server. It ends with its parent, also when that is daemonic."""

    apart = True
    _start_method = None  # what it starts itself it starts in the platform's way
    starts = True  # it may start processes itself, once it has read what it was sent

    def __init__(self, server: ForkServer, target: Callable[..., None], args: tuple, title: str):
        super().__init__(target=target, args=args, name=title, daemon=False)
        self.server = server

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("server", "check")}

    def run(self) -> None:
        """In the new process."""
        if self.starts:
            user_modules.lift()
        super().run()

    def start(self, check: Callable[[], None] = lambda: None) -> None:
        """check: see ForkServer.fork. Raises OSError, and UserError where nothing may start."""
        self.check = check
        self._popen = _Popen(self)
        self._sentinel = self._popen.sentinel
        del self._target, self._args, self._kwargs  # type: ignore[attr-defined]

    def ending(self) -> str:
        """How it ended, in words. Who was killed with its server, or unseen after that, says so."""
        lost = self.exitcode == LOST and self.server.fate()
        return f"is lost, because the fork server {lost}" if lost else ending_text(self.exitcode)

    def signal(self, number: int) -> None:
        os.kill(self._popen.pid, number)

    def end(self) -> None:
        """Kill it and everything it started; reap it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)  # its group, where it has one
        self.kill()
        self.join(5.0)


# ----------------------------------------------------------------------------------------------------- the server


def main(channel: int, lifeline: int, preload: str, tied: bool) -> None:
    """Run a server."""
    ignore()  # also those sent to the whole process group: the main process decides
    kill_when_closed(lifeline, os.getpid())  # also in the midst of an import
    if readable([lifeline], 0.0):  # it was closed before
        os._exit(1)
    set_title("fork server")
    global served
    served, requests = True, socket.socket(fileno=channel)
    try:
        __import__(preload)
    except Exception as e:
        if not isinstance(e, ImportError):  # what is forked imports it, and says what is missing
            sys.exit(f"polyplay: fork server: {type(e).__name__}: {' '.join(str(e).split())}")
    util._close_stdin()  # type: ignore[attr-defined]
    _Server(requests, tied).serve()


def kill_when_closed(fd: int, owner: int) -> None:
    """Have the kernel kill a process, or the group of that number below 0, when the other end closes."""
    fcntl.fcntl(fd, fcntl.F_SETOWN, owner)
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


class _Server:
    def __init__(self, channel: socket.socket, tied: bool):
        self.channel, self.tied = channel, tied
        self.statuses: dict[int, int] = {}  # by process: where its exit status goes
        self.woken, self.wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake)

    def serve(self) -> None:
        while True:
            ready = readable([self.channel.fileno(), self.woken])
            if self.woken in ready:
                os.read(self.woken, 1 << 16)
                self._reap()
            if self.channel.fileno() in ready:
                request, fds, _, _ = socket.recv_fds(self.channel, MOST_BYTES, MOST_FDS)
                if not request:
                    return
                self._take(fds, *json.loads(request))

    def _reap(self) -> None:
        while self.statuses:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if pid in self.statuses:
                self._tell(self.statuses[pid], os.waitstatus_to_exitcode(status))
                os.close(self.statuses.pop(pid))

    def _tell(self, end: int, number: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
            forkserver.write_signed(end, number)

    def _take(self, fds: list[int], others: int, title: str, label: str) -> None:
        set_title(f"fork server{label}")
        if len(fds) == 3 + others:
            self._fork(title, *fds)
            return
        for fd in fds:  # some were lost: too many files are open here
            os.close(fd)

    def _fork(self, title: str, status: int, data: int, lifeline: int, *others: int) -> None:
        mine = os.getpid()
        try:
            pid = os.fork()
        except OSError as e:
            pid = -(e.errno or 1)
        if pid == 0:
            self._become(mine, title, status, data, lifeline, [*others])
        self._tell(status, pid)
        if pid > 0:
            self.statuses[pid] = status
        for fd in (data, lifeline, *others, *[status] * (pid < 0)):
            os.close(fd)

    def _become(self, server: int, title: str, status: int, data: int, lifeline: int, fds: list[int]) -> None:
        """The new process, which never returns."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if self.tied:
                prctl(PDEATHSIG, signal.SIGKILL)
                if os.getppid() != server:
                    os._exit(1)
            for fd in (self.woken, self.wake, status, *self.statuses.values()):
                os.close(fd)
            self.channel.close()
            set_title(title)
            user_modules.close()
            forkserver._forkserver._inherited_fds = fds  # type: ignore[attr-defined]
            code = spawn._main(data, lifeline)
        except Exception:
            if not readable([lifeline], 0.0):  # else the other side went, in the midst of a sentence
                sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)

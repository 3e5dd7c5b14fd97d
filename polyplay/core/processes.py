"""Processes and signals: the fork server, process titles, handlers of signals, and how a command ends."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, process, reduction, spawn, util
from multiprocessing.context import set_spawning_popen
from types import FrameType
from typing import Any, NoReturn
from weakref import WeakSet

from polyplay.core import platform, user_modules
from polyplay.core.platform import ENDING, kill_when_closed, readable, set_title

STEPPING = ("resume", "evaluate", "check", "tournament")  # commands that may step environments
SERIAL = ("--serial", "--config", "--sweep")  # options with which other commands may step environments in their process
HASH_SEED = "PYTHONHASHSEED"  # variable that Python reads when it starts; it decides the order of sets of strings
label = ""  # suffix of the titles of this process's children: " [RUN]", " of act 1 [RUN]"
served = False  # whether this process is a fork server, or was forked from one
REFUSED = (errno.EMFILE, errno.ENFILE, errno.EAGAIN)  # a limit of files, processes or threads was reached
on_compile: list[Callable[[], None]] = []  # called when this process starts to compile a loop


def is_limit(e: BaseException) -> bool:
    """Tell whether `e` means that a limit of open files, processes or threads was reached."""
    return (isinstance(e, OSError) and e.errno in REFUSED) or "can't start new thread" in str(e)


def sets_are_fixed() -> bool:
    """Tell whether PYTHONHASHSEED fixes the order of sets in this process and in its children."""
    return os.environ.get(HASH_SEED, "random") not in ("", "random")


@contextlib.contextmanager
def hash_seed(other: bool = False) -> Iterator[None]:
    """Fix the order of sets in processes that are started within this context. The order is that of the user's hash
    seed, or else of seed 0. `other`: whether to use another seed, so that sets have another order.
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
    """Restart this command with a fixed order of sets, unless the order is already fixed."""
    if not sets_are_fixed():
        with hash_seed():
            platform.restart([sys.executable, *sys.orig_argv[1:]])


def may_step(words: Sequence[str]) -> bool:
    """Tell whether a command may step environments in its own process. If so, the order of sets must be fixed."""
    return bool(words) and (words[0] in STEPPING or any(word.partition("=")[0] in SERIAL for word in words))


def describe_sets(here: bool) -> str:
    """Return advice on the order of sets for a run that can be repeated, or "" if none is needed. `here`: whether
    environments step in the user's program.
    """
    return ", and sets in order (start the program with PYTHONHASHSEED=0)" if here and not sets_are_fixed() else ""


def end_descendants(titled: bool = False, seconds: float = 2.0) -> None:
    """Kill all descendants of this process and wait for them. `titled`: whether to kill only processes that this module
    started, and their descendants.
    """
    platform.end_descendants(titled, seconds, lambda: [p.pid for p in [*_spawned] if p.is_alive() and p.pid])


# Handlers of SIGINT, SIGTERM and SIGHUP, from a command's first instruction to its exit.
#
# By default, a signal ends the command at once. A run that has started saves first (runs.session); in other commands, a
# signal raises an exception. This module imports nothing that loads slowly, because commands import it first.


Handler = Callable[[int, FrameType | None], Any]
IMPORTS = "<frozen importlib._bootstrap>"  # file name of the import machinery
AGAIN = 1.0  # seconds after a signal during which others are ignored: schedulers send several at once


class Stopped(KeyboardInterrupt):
    """Raised when a signal asks the process to end. `number`: number of the signal."""

    def __init__(self, number: int):
        super().__init__(name(number))
        self.number = number


def name(number: int) -> str:
    return signal.Signals(number).name


def install(handler: Handler | signal.Handlers) -> dict[signal.Signals, Any]:
    """Let `handler` handle SIGINT, SIGTERM and SIGHUP. Return the earlier handlers by signal. If SIGHUP is ignored, as
    under nohup, it stays ignored.
    """
    handled = [n for n in ENDING if n.name != "SIGHUP" or signal.getsignal(n) != signal.SIG_IGN]
    return {n: signal.signal(n, handler) for n in handled}


@contextlib.contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """Let `handler` handle SIGINT, SIGTERM and SIGHUP within this context. Do nothing outside the main thread. If the
    earlier handler was `end_at_once`, ignore these signals afterward, because the command's work is done.
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


def ignore() -> None:
    """Ignore SIGINT, SIGTERM and SIGHUP."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    platform.unblock(ENDING)


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Signal handler that raises Stopped. During an import, which could lose the exception, it ends the process."""
    while frame is not None:
        if frame.f_code.co_filename == IMPORTS:
            _end(number, f"ended by {name(number)}")
        frame = frame.f_back
    raise Stopped(number)


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Signal handler that ends the process at once. It is used as long as the process has nothing to save."""
    _end(number, f"{name(number)}: ended before anything had begun")


def _end(number: int, text: str) -> NoReturn:
    ignore()
    end_descendants()
    with contextlib.suppress(OSError):
        os.write(2, f"polyplay: {text}\n".encode())
    os._exit(128 + number)


# Processes are forked from servers, which import common modules once. In portable mode (`platform.PORTABLE`), there are
# no servers: each process is spawned, and imports all these modules itself.
#
# multiprocessing also has a fork server, which every child knows. That server listens on a file, which a killed main
# process leaves behind, and runs as long as any child. Polyplay's server belongs to one process, communicates by a
# socket pair, and is killed with the process that owns it. A child never imports the user's `__main__`, so scripts
# without a main guard are safe. cloudpickle sends factories to children.


CODE = "import json, sys; given = json.loads(sys.argv[1]); sys.path[:] = given.pop()\n"
CODE += "from polyplay.core.processes import main; main(*given)"  # with this process's sys.path
ROOM = " " * 256  # space in the command line, for a long title
MOST_FDS, MOST_BYTES = 250, 4096  # limits of descriptors and bytes in one request to a server
LOST = 255  # exit status reported for a process whose real exit status is unknown
TICK = 0.1  # seconds between calls of `check` while a server starts


class ForkServer:
    """Starts processes by forking them from a server process. The server starts at first use, or by `ensure_running`.
    Portable mode has no server, and uses only the options of this object.

    `tied`: whether the server's children end with the server.
    `reordered`: whether sets have another order in the children (see `hash_seed`).
    """

    def __init__(self, preload: str, tied: bool = False, reordered: bool = False):
        self.preload, self.tied, self.reordered = preload, tied, reordered
        self.status: int | None = None  # exit status of the last server; None: it runs, or none has started
        self._pid = 0
        self._lock = threading.Lock()

    def ensure_running(self) -> None:
        """Start the server if it is not running. Raises UserError while user_modules forbids processes."""
        user_modules.refuse("a process")
        with self._lock:
            if not platform.PORTABLE and (not self._pid or self._ended(0.0)):
                self._start()

    def _start(self) -> None:
        self._channel, theirs = socket.socketpair()
        util.Finalize(None, self._channel.close, exitpriority=0)
        lifeline, self._lifeline = os.pipe()  # only this process holds the other end
        passed = [theirs.fileno(), lifeline]
        flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
        given = json.dumps([*passed, self.preload, self.tied, sys.path])
        command = [spawn.get_executable(), *flags, "-c", CODE, given, ROOM]
        try:
            with platform.blocked(ENDING), hash_seed(self.reordered):
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
        """Fork a process, which waits for its data. Return its process id and three descriptors: to read its exit
        status, to send its data, and a lifeline. If the lifeline closes, the new process learns that its owner has
        ended. Raises OSError.

        `check`: called repeatedly while the server starts. It may raise an exception to give up.
        """
        self.ensure_running()
        # a separate pipe as lifeline: the kernel may signal data late, and that signal must not kill the process
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
            # the server is dead, or could not receive the descriptors
            fate = self.fate()
            lost = OSError(f"the fork server {fate}") if fate else OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            raise lost from None
        finally:
            for fd in theirs:
                os.close(fd)
        return pid, status, data, lifeline

    def _ended(self, seconds: float) -> bool:
        """Tell whether the server has ended. Wait up to `seconds` for its end."""
        until = time.monotonic() + seconds
        while self._pid:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:  # reaped elsewhere, or a child of our parent
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
        """Describe how the server ended. Return "" if it is running."""
        with self._lock:
            ended = self._ended(0.5)
        return ending_text(self.status) if ended and self.status is not None else ""


def ending_text(code: int | None) -> str:
    """Describe how a process ended. `code`: its exit status, or -N if it was killed by signal N."""
    return f"was killed by {name(-code)}" if code and code < 0 else f"ended with exit status {code}"


class _Popen(platform.ServerPopen):
    """Popen of multiprocessing, but it forks from Polyplay's server and does not import `__main__` again."""

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
        fork = process_obj.server.fork(process_obj.name, self._fds, process_obj.check)
        self.pid, self.sentinel, data, lifeline = fork
        self.finalizer = util.Finalize(self, util.close_fds, (lifeline, self.sentinel))  # type: ignore[attr-defined]
        with open(data, "wb", closefd=True) as pipe:
            pipe.write(buffer.getbuffer())


class Handle:
    """Handle by which the main process controls a running worker. The methods of this base class suit a worker that
    runs inside the main process and cannot be killed.
    """

    apart: bool = False  # whether the worker is a separate process, here or elsewhere, which can be killed
    machine: str | None = None  # name of the other machine where the worker runs; None: this machine
    lost_first: bool = True  # whether its loss counts; of the workers lost with a machine, only the first does

    @property
    def pid(self) -> int | None:
        """Process id of the worker, or None if the worker is not a process of this machine."""
        return None

    @property
    def sentinel(self) -> int | None:
        """Descriptor that becomes readable when the worker ends. None for workers that send a last message instead."""
        return None

    def turn(self) -> None:
        """Run one turn of the worker in this thread. Raises the worker's exceptions, or StopIteration at its end."""

    def is_alive(self) -> bool:
        """Tell whether the worker is still running."""
        return False

    def join(self, timeout: float | None = None) -> None:
        """Wait for the worker to end, at most `timeout` seconds."""

    def kill(self) -> None:
        """Kill the worker if it is a separate process."""

    def ending(self) -> str:
        """Describe how the worker ended."""
        return "ended"

    def close(self) -> None:
        """Release the resources of a worker that will not run again."""


class _Spawning:
    """First object that a spawned process unpickles. This prepares the process, as a fork server would."""

    def __reduce__(self) -> tuple:
        return _begin_spawned, ()


def _begin_spawned() -> None:
    global served
    served = True
    ignore()
    user_modules.close()


_spawned = WeakSet["ForkedProcess"]()


class ForkedProcess(process.BaseProcess, Handle):
    """Process that is forked from a server, or spawned in portable mode. It ends when its parent ends."""

    apart = True
    _start_method = None  # children of this process use the platform's start method
    starts = True  # whether this process may start others, once it has read its arguments

    def __init__(self, server: ForkServer, target: Callable[..., None], args: tuple, title: str):
        super().__init__(target=target, args=args, name=title, daemon=False)
        self.server = server

    def __getstate__(self) -> dict[str, Any]:
        first = {"_spawning": _Spawning()} if platform.PORTABLE else {}
        return first | {k: v for k, v in self.__dict__.items() if k not in ("server", "check")}

    def _bootstrap(self, parent_sentinel: int | None = None) -> int:
        """Run the new process, and return its exit status."""
        code: int = super()._bootstrap(parent_sentinel)  # type: ignore[misc]
        if platform.PORTABLE:
            os._exit(code)  # without Python's cleanup, as a fork server ends its children
        return code

    def run(self) -> None:
        """Run the target function, in the new process."""
        if self.starts:
            user_modules.lift()
            if platform.PORTABLE and (parent := process.parent_process()) is not None:
                kill_when_closed(parent.sentinel, os.getpid())
        super().run()

    def start(self, check: Callable[[], None] = lambda: None) -> None:
        """Start the process. `check`: see `ForkServer.fork`. Raises OSError, or UserError if starting is forbidden."""
        self.check = check
        self._popen = self._spawn() if platform.PORTABLE else _Popen(self)
        self._sentinel = self._popen.sentinel
        del self._target, self._args, self._kwargs  # type: ignore[attr-defined]

    def _spawn(self) -> Any:
        self.server.ensure_running()
        self.check()
        with platform.blocked(ENDING), hash_seed(self.server.reordered):
            popen = platform.spawn_process(self)
        _spawned.add(self)
        return popen

    def ending(self) -> str:
        """Describe how the process ended, or that it was lost with its fork server."""
        if platform.PORTABLE:
            self.join(1.0)  # its pipes close a moment before its exit status is known
        lost = self.exitcode == LOST and self.server.fate()
        return f"is lost, because the fork server {lost}" if lost else ending_text(self.exitcode)

    def signal(self, number: int) -> None:
        os.kill(self._popen.pid, number)

    def end(self) -> None:
        """Kill the process, and its group if it leads one. Then wait for the process to end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            platform.kill_group(self._popen.pid)  # the group that it leads, if any
        self.kill()
        self.join(5.0)


# ----------------------------------------------------------------------------------------------------- the server


def main(channel: int, lifeline: int, preload: str, tied: bool) -> None:
    """Run a fork server in this process, until its owner ends."""
    ignore()  # also signals to the whole process group, to which only the main process reacts
    kill_when_closed(lifeline, os.getpid())  # even during an import
    if readable([lifeline], 0.0):  # the owner has already ended
        os._exit(1)
    set_title("fork server")
    global served
    served, requests = True, socket.socket(fileno=channel)
    try:
        __import__(preload)
    except Exception as e:
        if not isinstance(e, ImportError):  # forked processes repeat the import and report the missing module
            sys.exit(f"polyplay: fork server: {type(e).__name__}: {' '.join(str(e).split())}")
    util._close_stdin()  # type: ignore[attr-defined]
    _Server(requests, tied).serve()


class _Server:
    def __init__(self, channel: socket.socket, tied: bool):
        self.channel, self.tied = channel, tied
        self.statuses: dict[int, int] = {}  # process id → descriptor for its exit status
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
        with contextlib.suppress(BrokenPipeError):  # no reader is left
            forkserver.write_signed(end, number)

    def _take(self, fds: list[int], others: int, title: str, label: str) -> None:
        set_title(f"fork server{label}")
        if len(fds) == 3 + others:
            self._fork(title, *fds)
            return
        for fd in fds:  # some descriptors were lost: too many open files here
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
        """Turn this forked process into the requested process, and run it. Never return."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if self.tied:
                platform.end_with_parent()
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
            if not readable([lifeline], 0.0):  # otherwise the owner ended while it sent the data
                sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)

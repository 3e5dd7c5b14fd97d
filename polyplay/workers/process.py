"""The start of a worker in a thread or a process, and the messages that the worker sends to the crew (main process).

A message is a pair (kind, text) through a pipe. Kinds such as "warning", "caution" (a warning shown once), "note" and
"decision" may come at any time. The last message says how the worker ended: "done", "closed", "error" with a traceback
as text, or a key of KINDS with the text of that exception.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple, cast

from polyplay.core import platform, processes
from polyplay.core.errors import Closed, EnvFailure, NotFinite, UserError, WorkerLost
from polyplay.core.processes import ForkServer, Handle
from polyplay.core.worker import WorkerContext

if TYPE_CHECKING:
    from polyplay.workers.role import Role

SERVER = ForkServer("polyplay.workers.preload", tied=True)
Work = Callable[..., Iterator[None]]  # work(ctx, **arguments), the function of a worker: every `yield` ends a turn
FEWER = "use fewer workers, or allow more open files (`ulimit -n`) and processes (`ulimit -u`)"
COMPILES = "compiling loops for this machine: takes up to half a minute, the first time only"
KINDS: dict[str, type[Exception]] = {"user": UserError, "env": EnvFailure, "finite": NotFinite, "lost": WorkerLost}


class Call(NamedTuple):
    """The data that a worker needs to start."""

    ctx: WorkerContext
    role: Role
    threads: int  # compute threads of the process; unused by a thread


class CloudPickled:
    """Sends a worker's Call to a process by cloudpickle, because the Call may hold users' factories."""

    def __init__(self, value: Call):
        self.value = value

    def __reduce__(self) -> tuple:
        import cloudpickle

        return cloudpickle.loads, (cloudpickle.dumps(self.value),)


def prepare() -> None:
    """Prepare this process for a fork server: let OpenMP threads wait passively, and allow more open files."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # CUDA must not be initialized before a fork
    platform.raise_open_files()


def _run(ctx: WorkerContext, role: Role) -> tuple[str, str]:
    try:
        turns = role.work(ctx, **role.holds)
        for _ in turns:
            ctx.turn()
            if ctx.leaving and not role.drain:
                cast("Generator[None, None, None]", turns).close()
                break
    except Closed:
        if ctx.control.rescuer == ctx.index:
            rescue(ctx)
        return "closed", ""
    except Exception as e:
        if ctx.index == 0:
            rescue(ctx)
        if processes.is_limit(e):
            return "user", f"worker {ctx.role} {ctx.index}: {getattr(e, 'strerror', None) or e}; {FEWER}"
        known = [kind for kind, cls in KINDS.items() if isinstance(e, cls)]
        return (known[0], str(e)) if known else ("error", traceback.format_exc())
    return "done", ""


def rescue(ctx: WorkerContext) -> None:
    """Let a learner save its complete updates after the run has failed."""
    if ctx.hooks.rescue is not None:
        with contextlib.suppress(Exception):  # the failure of the run is reported, not that of the rescue
            ctx.hooks.rescue()


class WorkerThread(threading.Thread, Handle):
    """A worker that runs in a thread of this process."""


class SerialWorker(Handle):
    """A worker that runs in the calling thread. Each call of `turn` runs one turn."""

    def __init__(self, turns: Iterator[None]):
        self.turns = cast("Generator[None, None, None]", turns)

    def turn(self) -> None:
        next(self.turns)

    def close(self) -> None:
        self.turns.close()


def as_thread(call: Call, pipe: Connection) -> None:
    call.ctx.log = lambda kind, text: pipe.send((kind, text))
    with contextlib.suppress(OSError):
        pipe.send(_run(call.ctx, call.role))


def as_process(call: Call, pipe: Connection) -> None:
    processes.label = f" of {multiprocessing.current_process().name}"
    processes.on_compile = [lambda: pipe.send(_compiling())]
    try:
        tune(call.threads)
        as_thread(call, pipe)
    except Exception:
        pipe.send(("error", traceback.format_exc()))
    pipe.close()


def _compiling() -> tuple[str, str]:
    """Return the message (kind, text) that announces a compilation by Numba."""
    from polyplay.core.compiled import CompileState

    return ("caution", CompileState.uncached) if CompileState.uncached else ("note", COMPILES)


def tune(threads: int) -> None:
    """Set the number of compute threads of this process, and let the memory allocator reuse freed memory."""
    import torch

    torch.set_num_threads(threads)
    platform.keep_freed_memory()


def keep_to(cores: int | None) -> None:
    """Bind this process, and processes that it starts, to `cores` cores. None: do nothing. Raises UserError."""
    if cores is None:
        return
    if not platform.BINDS:
        raise UserError(f"--cores {cores}: {platform.UNBOUND}; leave it out: the run then uses all cores")
    there = platform.cores()
    if cores > len(there):
        raise UserError(f"--cores {cores}: must be 1 to {len(there)}, the cores that this process may use")
    platform.bind(there[:cores])


def start_early(given: Iterable[str]) -> None:
    """Start the fork server now, so that the server and this process import torch at the same time. `given`: names of
    the command's options. With some of them, do nothing.
    """
    # these options need no server, or must take effect before its start
    if not {"serial", "on", "cores", "help", "h"}.intersection(given):
        prepare()
        SERVER.ensure_running()

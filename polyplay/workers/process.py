"""Start of a worker, as a thread or a process, and its messages to the crew.

A pipe to the main process carries pairs (kind, text): "warning", "caution" (a warning shown once), "note",
"unsaved" and "decision" at any time, and at the end "done", "closed", "error" with a traceback, or one of KINDS with
the message of that exception.
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
Work = Callable[..., Iterator[None]]  # work(ctx, **arguments): every `yield` ends a turn
FEWER = "use fewer workers, or allow more open files (`ulimit -n`) and processes (`ulimit -u`)"
COMPILES = "compiling loops for this machine: takes up to half a minute, the first time only"
KINDS: dict[str, type[Exception]] = {"user": UserError, "env": EnvFailure, "finite": NotFinite, "lost": WorkerLost}


class Call(NamedTuple):
    """A worker to start."""

    ctx: WorkerContext
    role: Role
    threads: int  # compute threads, if a process


class CloudPickled:
    """A call that is pickled with cloudpickle when a process starts. It may hold users' factories and shared blocks."""

    def __init__(self, value: Call):
        self.value = value

    def __reduce__(self) -> tuple:
        import cloudpickle

        return cloudpickle.loads, (cloudpickle.dumps(self.value),)


def prepare() -> None:
    """Prepare the process for the fork server: passive OpenMP waits, and the highest limit of open files."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # forked processes need an uninitialized CUDA
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
    """Let a learner whose run has failed save its complete updates."""
    if ctx.hooks.rescue is not None:
        with contextlib.suppress(Exception):  # only the run's own failure is reported
            ctx.hooks.rescue()


class WorkerThread(threading.Thread, Handle):
    """A worker in a thread of this process."""


class SerialWorker(Handle):
    """A worker that takes turns in the calling thread."""

    def __init__(self, turns: Iterator[None]):
        self.turns = cast("Generator[None, None, None]", turns)

    def turn(self) -> None:
        """See Handle."""
        next(self.turns)

    def close(self) -> None:
        """See Handle."""
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
    """Return the message about compiling."""
    from polyplay.core.compiled import CompileState

    return ("caution", CompileState.uncached) if CompileState.uncached else ("note", COMPILES)


def tune(threads: int) -> None:
    """Set the compute threads of this process, and let its allocator reuse freed memory."""
    import torch

    torch.set_num_threads(threads)
    platform.keep_freed_memory()


def keep_to(cores: int | None) -> None:
    """Bind this process, and all processes that it starts, to this many of its cores. Raises UserError."""
    if cores is None:
        return
    if not platform.BINDS:
        raise UserError(f"--cores {cores}: {platform.UNBOUND}; leave it out: the run then uses all cores")
    there = platform.cores()
    if cores > len(there):
        raise UserError(f"--cores {cores}: must be 1 to {len(there)}, the cores that this process may use")
    platform.bind(there[:cores])


def start_early(given: Iterable[str]) -> None:
    """Start the fork server now, so that it and this process import torch at the same time. If the given options need
    no server, or must be read first, do nothing.
    """
    if not {"serial", "on", "cores", "help", "h"}.intersection(given):
        prepare()
        SERVER.ensure_running()

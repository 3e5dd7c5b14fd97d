"""One environment process: single environments, stepped in place into memory that the pool shares.

Orders come as lane numbers (a match's is that of its first lane) on one pipe, answers go as lane numbers on another
(`~lane`: read the lane's note first). Pipes are all that the two processes wait on, so a killed worker leaves no lock
behind. A lane that is ordered to step after `terminated | truncated` is reset instead of stepped: that row is the first
of its next episode.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.process import parent_process
from typing import NoReturn

import numpy as np

from polyplay.common import import_guard
from polyplay.common.errors import UserError
from polyplay.common.shared_memory import SharedBlock
from polyplay.common.tree import Batch
from polyplay.envs import rules, user_modules
from polyplay.envs.pool import Factory
from polyplay.envs.pools.board import SharedRows
from polyplay.envs.pools.build import describe, factory, one_line
from polyplay.envs.pools.global_random import load_generators, save_generators, seed_process
from polyplay.envs.pools.lane import Lane
from polyplay.envs.pools.match import Match
from polyplay.envs.pools.saved_state import LOAD, SAVE, UNSAVED, StateMail, reason_of
from polyplay.envs.pools.turn import LaneJob, Unit, lane_seed, take_turn

TRACE = 8192  # bytes for the traceback of a process that hangs or crashes


def serve(
    orders: Connection,
    answers: Connection,
    board: SharedRows,
    job: LaneJob,
    ctx: int,
    lanes: list[int],
    each: bool,
    trace: SharedBlock,
    mail: StateMail,
) -> None:
    """Step `lanes` as ordered until the pool closes the pipe. `each`: answer lane by lane (for pools that give
    whoever is ready).
    """
    settle(trace)
    seed_process(lane_seed(board, job, lanes[0]))
    mine = _lanes(job, board, ctx, lanes)
    source, sink = orders.fileno(), answers.fileno()
    board.deadline[ctx] = 0.0  # started
    waited = board.waited[ctx]
    with contextlib.suppress(BrokenPipeError):
        idle_since = time.perf_counter()
        while order := os.read(source, 1 << 16):
            waited[0] += time.perf_counter() - idle_since
            waited[1] += 1
            done = []
            for number in np.frombuffer(order, np.int32).tolist():
                board.busy[ctx] = number
                lane = mine[number % SAVE]
                last = lane.lane == lanes[-1]
                done.append(take_turn(lane) if number < SAVE else serve_state(lane, number, mail, last))
                board.deadline[ctx] = 0.0
                if each:
                    os.write(sink, np.array(done, np.int32).tobytes())
                    done.clear()
            if done:
                os.write(sink, np.array(done, np.int32).tobytes())
            idle_since = time.perf_counter()
    for lane in mine.values():
        lane.close()


def serve_state(lane: Unit, order: int, mail: StateMail, last: bool) -> int:
    """What a process does for an order to save or load one of its lanes: the order's number, or `~number` with a note
    on the board. With its last lane go its global generators.
    """
    try:
        if order >= LOAD:
            saved = mail.take()
            random = saved.pop("random", None)
            lane.load(saved)
            if random is not None:
                load_generators(random)
        else:
            mail.put({**lane.save(), **({"random": save_generators()} if last else {})})
        return order
    except BaseException as e:
        lane.board.note(lane.lane, UNSAVED, reason_of(e))
        return ~order


def _lanes(job: LaneJob, board: SharedRows, ctx: int, lanes: list[int]) -> dict[int, Unit]:
    def allow(seconds: float) -> None:
        board.deadline[ctx] = time.monotonic() + seconds

    def fail() -> NoReturn:
        raise failure

    make: Factory = fail
    try:
        make = factory(*unpack(job.maker, job.title))
    except BaseException as e:
        failure = e if isinstance(e, UserError) else UserError(f"{job.title}: {one_line(e)}")
    kind: type[Lane] | type[Match] = Match if job.spec.kinds else Lane
    return {lane: kind(job, make, board, lane, allow) for lane in lanes}


def unpack(maker: bytes, title: str) -> tuple[str | Factory, Batch]:
    """(name, options), as they were sent. Raises UserError."""
    try:
        with user_modules.held_back(), import_guard.importing():  # it may import the function's module
            return pickle.loads(maker)
    except BaseException as e:
        why = str(e) if isinstance(e, UserError) else one_line(e)
        raise UserError(f"{title}: cannot be read in another process: {why} {rules.rule_suffix('factory')}") from e


def probe(answer: Connection, maker: bytes, title: str) -> None:
    """Describe one environment to the pool's process: an EnvSpec, or the text of a UserError."""
    trace = SharedBlock(TRACE)  # its descriptor must live as long as we do
    settle(trace)
    try:
        answer.send(describe(*unpack(maker, title)))
    except UserError as e:
        answer.send(str(e))
    except BaseException as e:
        answer.send(f"{title}: {one_line(e)}")


def settle(trace: SharedBlock) -> None:
    """Become a well-behaved environment process: its own group, ended with its parent."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # for libraries that environments load: one process, one core
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # so that what an environment starts can be killed with it
    faulthandler.enable(trace.fd, all_threads=False)
    faulthandler.register(signal.SIGUSR1, trace.fd, all_threads=False)
    parent = parent_process()
    if parent is not None:
        _die_with(parent.sentinel)


def _die_with(sentinel: int) -> None:
    """Be killed when the other end of `sentinel` closes: by a thread, and on Linux by the kernel too (an
    environment may hold the GIL for ever)."""

    def watch() -> None:
        wait([sentinel])
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(sentinel, fcntl.F_SETOWN, -os.getpgrp() if os.getpgrp() == os.getpid() else os.getpid())
        fcntl.fcntl(sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=watch, daemon=True, name="parent-watch").start()

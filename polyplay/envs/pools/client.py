"""The pool's side of one environment process: start, orders, answers, end."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import time

import numpy as np

from polyplay.common import processes
from polyplay.common.errors import UserError
from polyplay.common.forkserver import LOST
from polyplay.common.shared_memory import SharedBlock
from polyplay.envs import rules
from polyplay.envs.pool import Envs, EnvSpec
from polyplay.envs.pools.board import SharedRows
from polyplay.envs.pools.forkserver import EnvProcess
from polyplay.envs.pools.saved_state import StateMail
from polyplay.envs.pools.turn import START, LaneJob
from polyplay.envs.pools.worker import TRACE, probe, serve

FEWER = (
    "let there be fewer (ga3c: --agents; others: --lanes, --actors or --replicas), or allow more open files "
    "(`ulimit -n`) and processes (`ulimit -u`)"
)


def pickled_factory(envs: Envs) -> bytes:
    """The factory as bytes that a worker can read, whatever it closes over. Raises UserError."""
    import cloudpickle

    try:
        return cloudpickle.dumps((envs.name, dict(envs.options)))
    except Exception as e:
        why = f"{type(e).__name__}: {e} {rules.rule_suffix('factory')}"
        raise UserError(f"{envs.title}: cannot be sent to another process: {why}") from None


def describe(envs: Envs) -> EnvSpec:
    """Build one environment in a process of its own and get its description. Raises UserError."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = EnvProcess(probe, (there, pickled_factory(envs), envs.title), "env probe")
    process.start()
    there.close()
    limit = max(START, envs.step_timeout)
    try:
        if not here.poll(limit):
            why = f"took longer than {limit:g} s {rules.rule_suffix('build')}"
            raise UserError(f"{envs.title}: building and resetting it {why}")
        answer = here.recv()
    except EOFError:
        process.join(1.0)
        why = f"{exit_text(process)} {rules.rule_suffix('build')}"
        raise UserError(f"{envs.title}: building it ended its process: {why}") from None
    finally:
        here.close()
        process.end()
    if isinstance(answer, str):
        raise UserError(answer)
    return answer


def exit_text(process: EnvProcess) -> str:
    code = process.exitcode
    if code == LOST and (fate := process.server.fate()):
        return f"the fork server {fate}"
    if code is None or code >= 0:
        return f"exit status {code}"
    names = {number.value: f", {number.name}" for number in signal.Signals}
    return f"signal {-code}{names.get(-code, '')}"


class EnvProcessHandle:
    """The pool's side of one environment process."""

    def __init__(self, index: int, lanes: list[int], board: SharedRows, job: LaneJob, each: bool):
        self.index, self.lanes = index, lanes
        self._args = (board, job, index, lanes, each)
        self.leave_by = math.inf
        self.start()

    def start(self) -> None:
        board = self._args[0]
        board.deadline[self.index] = time.monotonic() + START
        self.trace, self.mail = SharedBlock(TRACE), StateMail()
        there, self.orders = multiprocessing.Pipe(duplex=False)
        self.answers, back = multiprocessing.Pipe(duplex=False)
        process = EnvProcess(serve, (there, back, *self._args, self.trace, self.mail), f"env {self.index}")
        try:
            process.start()
        except OSError as e:
            self.orders.close()
            self.answers.close()
            raise UserError(f"{self} could not be started: {e}{f'; {FEWER}' * processes.is_limit(e)}") from None
        finally:
            there.close()
            back.close()
        self.process = process
        self.source, self.sink = self.answers.fileno(), self.orders.fileno()
        os.set_blocking(self.source, False)

    def order(self, lanes: np.ndarray) -> None:
        with contextlib.suppress(BrokenPipeError):  # recv notices its end and orders its lanes again
            os.write(self.sink, lanes.astype(np.int32).tobytes())

    def stack(self, ask: bool) -> str:
        """Where its Python code was when it crashed, or (`ask`) where it is now; what it wrote of that."""
        if ask:
            self.process.dump()
            time.sleep(0.1)
        text = bytes(self.trace.memory).split(b"\0", 1)[0].decode(errors="replace").strip()
        return f"\n{text[-3000:]}" if text else ""

    def drain(self) -> bytes:
        """The answers that it gave before it ended."""
        return b"".join(iter(lambda: self.read() or b"", b""))

    def read(self) -> bytes | None:
        """Its answers; b"": it closed the pipe, None: none now."""
        try:
            return os.read(self.source, 1 << 16)
        except BlockingIOError:
            return None

    def close_orders(self) -> None:
        """No more orders: it closes its environments and ends."""
        self.leave_by = time.monotonic() + 5.0
        self.orders.close()

    def end(self) -> None:
        self.process.end()
        self.orders.close()
        self.answers.close()

    def __str__(self) -> str:
        job, lanes = self._args[1], self.lanes
        numbers = ", ".join(str(job.lane + i) for i in lanes[:8]) + (", …" if len(lanes) > 8 else "")
        return f"environment process {self.index} (lanes {numbers})"

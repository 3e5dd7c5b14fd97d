"""Any Gymnasium environment, in processes: several lanes each, rows written in place into shared memory.

Nobody spins and nobody shares a lock: orders and answers are lane numbers on two pipes per process. A
process that is killed or hangs is replaced, its lanes begin anew.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import select
import signal
import threading
import time
from typing import Any

import numpy as np

from polyplay import tree
from polyplay.envs import rules, states
from polyplay.envs.board import Board
from polyplay.envs.faults import Faults
from polyplay.envs.lane import START, Job
from polyplay.envs.launch import EnvProcess
from polyplay.envs.pool import Envs, EnvSpec, Lanes
from polyplay.envs.spaces import check_action
from polyplay.envs.states import LOAD, SAVE, Mail
from polyplay.envs.turns import OUT, Turns
from polyplay.envs.worker import TRACE, probe, serve
from polyplay.errors import Closed, EnvFailure, UserError
from polyplay.shared import Block
from polyplay.tree import Batch

TICK = 0.25  # seconds between two looks at the deadlines, and the longest that close() by another thread waits


def maker(envs: Envs) -> bytes:
    """The factory as bytes that a worker can read, whatever it closes over. Raises UserError."""
    import cloudpickle

    try:
        return cloudpickle.dumps((envs.name, dict(envs.options)))
    except Exception as e:
        why = f"{type(e).__name__}: {e} {rules.named('factory')}"
        raise UserError(f"{envs.title}: cannot be sent to another process: {why}") from None


def describe(envs: Envs) -> EnvSpec:
    """Build one environment in a process of its own and ask for its spaces. Raises UserError."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = EnvProcess(probe, (there, maker(envs), envs.title), "polyplay-env-probe")
    process.start()
    there.close()
    limit = max(START, envs.step_timeout)
    try:
        if not here.poll(limit):
            raise UserError(
                f"{envs.title}: building and resetting it took longer than {limit:g} s {rules.named('build')}"
            )
        answer = here.recv()
    except EOFError:
        process.join(1.0)
        why = f"{end_of(process)} {rules.named('build')}"
        raise UserError(f"{envs.title}: building it ended its process: {why}") from None
    finally:
        here.close()
        process.end()
    if isinstance(answer, str):
        raise UserError(answer)
    return answer


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_of(process: EnvProcess) -> str:
    code = process.exitcode
    if code is None or code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


class Worker:
    """The pool's side of one environment process."""

    def __init__(self, index: int, lanes: list[int], board: Board, job: Job, each: bool):
        self.index, self.lanes = index, lanes
        self._args = (board, job, index, lanes, each)
        self.start()

    def start(self) -> None:
        board = self._args[0]
        board.deadline[self.index] = time.monotonic() + START
        self.trace, self.mail = Block(TRACE), Mail()
        there, self.orders = multiprocessing.Pipe(duplex=False)
        self.answers, back = multiprocessing.Pipe(duplex=False)
        self.process = EnvProcess(
            serve, (there, back, *self._args, self.trace, self.mail), f"polyplay-env-{self.index}"
        )
        self.process.start()
        there.close()
        back.close()
        self.source, self.sink = self.answers.fileno(), self.orders.fileno()
        os.set_blocking(self.source, False)

    def order(self, lanes: np.ndarray) -> None:
        with contextlib.suppress(BrokenPipeError):  # its death is seen and its lanes ordered again by recv
            os.write(self.sink, lanes.astype(np.int32).tobytes())

    def stack(self, ask: bool) -> str:
        """Where its Python code was when it crashed, or (`ask`) where it is now; what it wrote of that."""
        if ask:
            self.process.dump()
            time.sleep(0.1)
        text = bytes(self.trace.memory).split(b"\0", 1)[0].decode(errors="replace").strip()
        return f"\n{text[-3000:]}" if text else ""

    def drain(self) -> bytes:
        """What it still said before it ended."""
        said = b""
        while data := self.read():
            said += data
        return said

    def read(self) -> bytes | None:
        """What it says; b"": it hung up, None: nothing now."""
        try:
            return os.read(self.source, 1 << 16)
        except BlockingIOError:
            return None

    def hang_up(self) -> None:
        """No more orders: it closes its environments and ends."""
        self.orders.close()

    def end(self) -> None:
        self.process.end()
        self.orders.close()
        self.answers.close()

    def __str__(self) -> str:
        job, lanes = self._args[1], self.lanes
        numbers = ", ".join(str(job.lane + i) for i in lanes[:8]) + (", …" if len(lanes) > 8 else "")
        return f"environment process {self.index} (lanes {numbers})"


class ProcessPool:
    """A Pool over environment processes. recv and send may be called by several threads."""

    def __init__(self, envs: Envs, seed: int, lane: int):
        self.lanes, self.groups, self.fixed = envs.lanes, envs.groups, envs.fixed
        self.spec, self._envs, self._lane = envs.spec, envs, lane
        width = envs.lanes // envs.groups
        n = min(envs.workers or cores(), width)
        # every process serves every group, so that all of them are busy whichever group steps
        self._owner = np.arange(envs.lanes) % width * n // width
        self._board = Board(self.spec, envs.lanes, n)
        self._turns = Turns(envs.lanes, envs.groups, envs.batching)
        self._faults = Faults(self._board, envs.max_restarts)
        self.faults = self._faults.told
        self._turn = threading.RLock()  # who waits
        self._lock = threading.RLock()  # who changes what is below
        self._poll = select.poll()
        self._workers: list[Worker] = []
        self._by_source: dict[int, Worker] = {}
        self._closed, self._failure = False, None  # type: bool, BaseException | None
        self.unsaved = ""
        self._looked = time.monotonic()
        self._tick = min(TICK, envs.step_timeout / 4)
        job = Job(maker(envs), envs.title, self.spec, seed, lane, envs.step_timeout, envs.max_restarts)
        try:
            for i in range(n):
                mine = np.flatnonzero(self._owner == i).tolist()
                self._workers.append(Worker(i, mine, self._board, job, each=not self.fixed))
                self._register(self._workers[-1])
            self._order(np.arange(envs.lanes))
        except BaseException:
            self.close()
            raise

    restarts = property(lambda self: self._faults.restarts)

    # ------------------------------------------------------------------------------- the protocol

    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """See Pool. Slices give views of shared memory, index arrays give copies."""
        end = None if timeout is None else time.monotonic() + timeout
        if not self._turn.acquire(timeout=-1 if timeout is None else max(timeout, 0.0)):
            raise TimeoutError
        try:
            while True:
                with self._lock:
                    if self._failure is not None:
                        raise self._failure
                    if self._closed:
                        raise Closed
                    lanes = self._turns.take()
                    if lanes is None and self.fixed and self._turns.idle:
                        raise RuntimeError("recv() before the rows that recv() gave were answered with send()")
                if lanes is not None:
                    return lanes, self._rows(lanes)
                if not self._wait(end) and end is not None and time.monotonic() >= end:
                    raise TimeoutError
        except (EnvFailure, UserError) as e:
            self._failure = e
            self.close()
            raise
        finally:
            self._turn.release()

    def send(self, lanes: Lanes, action: Any) -> None:
        """See Pool."""
        action = check_action(self.spec.action, action, self._turns.count(lanes))
        with self._lock:
            if self._closed:
                raise Closed
            numbers = self._turns.sent(lanes)
            tree.write(self._board.action, numbers, action)
            self._order(numbers)

    def close(self) -> None:
        """Ask every process to end, wait a second, kill the rest."""
        self._closed = True
        with self._turn, self._lock:
            workers, self._workers = self._workers, []
            for worker in workers:
                worker.hang_up()
            until = time.monotonic() + 1.0
            for worker in workers:
                worker.process.join(max(until - time.monotonic(), 0.0))
                worker.end()

    def state(self) -> Batch | None:
        """See Pool; waits for the rows that are awaited."""
        with self._turn, self._lock:
            if self._closed:
                raise Closed
            lanes: Batch = {}
            for worker in self._workers:
                for lane in worker.lanes:
                    if not self._ask(worker, SAVE + lane):
                        return None
                    lanes[str(lane)] = worker.mail.take()
            return states.keep(self._board, self._turns, lanes)

    def load(self, state: Batch) -> None:
        """See Pool. Raises UserError: an environment that does not take its state back."""
        with self._turn, self._lock:
            for worker in self._workers:
                for lane in worker.lanes:
                    worker.mail.put(state["lanes"][str(lane)])
                    if not self._ask(worker, LOAD + lane):
                        who = f"{self._envs.title}, lane {self._lane + lane}"
                        raise UserError(f"{who}: cannot go on from what was saved: {self.unsaved}")
            states.restore(self._board, self._turns, self._faults, state)

    # ------------------------------------------------------------------------------------- inside

    def _register(self, worker: Worker) -> None:
        for source in (worker.source, worker.process.sentinel):
            self._by_source[source] = worker
            self._poll.register(source, select.POLLIN)

    def _ask(self, worker: Worker, order: int) -> bool:
        """Order a lane to be saved or loaded and wait for that; False: why not is in `unsaved`."""
        worker.order(np.array([order]))
        poll = select.poll()
        poll.register(worker.source, select.POLLIN)
        while True:
            poll.poll(math.ceil(self._tick * 1000))
            said = worker.read()
            if said == b"":
                self.unsaved = f"{worker} ended by itself"  # recv sees that too, and replaces it
                return False
            if said:
                numbers = np.frombuffer(said, np.int32)
                done = (numbers == order) | (numbers == ~order)
                self._landed(numbers[~done].tobytes())
                if done.any():
                    self.unsaved = "" if order in numbers else self._board.read(order % SAVE)[1]
                    return order in numbers
            now = time.monotonic()
            if 0.0 < self._board.deadline[worker.index] < now:
                self.unsaved = f"{worker} took longer than step_timeout={self._envs.step_timeout:g} s"
                self._look(now)
                return False

    def _rows(self, lanes: Lanes) -> Batch:
        return tree.map(lambda a: a[lanes], self._board.rows)

    def _order(self, numbers: np.ndarray) -> None:
        owner = self._owner[numbers]
        for worker in self._workers:
            mine = numbers[owner == worker.index]
            if mine.size:
                worker.order(mine)

    def _wait(self, end: float | None) -> bool:
        """Wait for a process to say something, at most a tick or until `end`; False: nobody did."""
        left = self._tick if end is None else min(self._tick, end - time.monotonic())
        ready = self._poll.poll(math.ceil(max(left, 0.0) * 1000))
        with self._lock:
            if self._closed:
                return False
            for source, _ in ready:
                if source in self._by_source:
                    self._hear(self._by_source[source])
            now = time.monotonic()
            if now - self._looked >= self._tick:
                self._looked = now
                self._look(now)
        return bool(ready)

    def _hear(self, worker: Worker) -> None:
        said = worker.read()
        if said:
            self._landed(said)
        elif said == b"" or worker.process.exitcode is not None:
            worker.process.join(1.0)
            why = f"{worker} ended by itself: {end_of(worker.process)}"
            self._replace(worker, "crash", why + worker.stack(ask=False))

    def _landed(self, said: bytes) -> None:
        numbers = np.frombuffer(said, np.int32).tolist()
        for i in numbers:
            if i < 0:
                self._faults.of_lane(~i)
        self._turns.back([i if i >= 0 else ~i for i in numbers])

    def _look(self, now: float) -> None:
        """Replace processes whose environment takes too long."""
        for worker in self._workers:
            if 0.0 < self._board.deadline[worker.index] < now:
                lane = self._lane + int(self._board.busy[worker.index]) % SAVE
                limit = f"step_timeout={self._envs.step_timeout:g} s"
                text = f"{self._envs.title}, lane {lane}: took longer than {limit}; {worker} was killed"
                self._replace(worker, "hang", text + worker.stack(ask=True))

    def _replace(self, worker: Worker, rule: str, why: str) -> None:
        """Another process for its lanes: those whose row is awaited begin anew now, the others
        when they are answered.
        """
        for source in (worker.source, worker.process.sentinel):
            self._poll.unregister(source)
            del self._by_source[source]
        worker.process.end()
        self._landed(worker.drain())
        worker.end()
        head, _, rest = why.partition("\n")
        head = f"{head}; all its lanes were restarted {rules.named(rule)}"
        self._faults.of_process(f"{head}\n{rest}".rstrip(), worker.lanes)
        worker.start()
        self._register(worker)
        lanes = np.array(worker.lanes)
        if (awaited := lanes[self._turns.where[lanes] == OUT]).size:
            worker.order(awaited)

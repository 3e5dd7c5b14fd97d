"""The pool of environment processes, and one such process.

A process has several lanes or matches, whose rows it writes in place into shared memory. No process spins, and none
shares a lock: orders and answers are lane numbers on two pipes per process. A process that is killed or hangs is
replaced, its lanes begin anew.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import multiprocessing
import os
import pickle
import select
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import parent_process
from typing import NoReturn

import numpy as np

from polyplay.core import processes, tree, user_modules
from polyplay.core.errors import EnvFailure, UserError
from polyplay.core.machine import cores
from polyplay.core.processes import LOST, ForkedProcess, ForkServer
from polyplay.core.shared_memory import SharedBlock
from polyplay.core.tree import Batch, Tree
from polyplay.envs import rules
from polyplay.envs.base_pool import ABSENT, READY, STEPPING, UnitPool
from polyplay.envs.build import describe as describe_
from polyplay.envs.build import factory, one_line
from polyplay.envs.lane import START, LaneJob, Unit, lane_seed, make_unit, take_turn
from polyplay.envs.pool import Envs, EnvSpec, Factory, Lanes
from polyplay.envs.process_state import load_generators, save_generators, seed_process, seeding_torch
from polyplay.envs.saved_state import reason_of
from polyplay.envs.shared_rows import SharedRows

# Environment processes are forked from a server of their own, with NumPy and Gymnasium in it but no torch: whoever
# acts wants torch preloaded; hence a second one.


SERVER = ForkServer("polyplay.envs.preload")
REORDERED = ForkServer("polyplay.envs.preload", reordered=True)  # the order of sets is another one


class EnvProcess(ForkedProcess):
    """A process forked from the environments' server, or from another one such."""

    starts = False

    def __init__(self, target: Callable[..., None], args: tuple, name: str, server: ForkServer = SERVER):
        super().__init__(server, target, args, f"{name}{processes.label}")

    def dump(self) -> None:
        """Have it write its Python stack into the block that `settle` got."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._popen.pid, signal.SIGUSR1)


# One environment process: single environments, stepped in place into memory that the pool shares.
#
# Requests come as lane numbers (a match's is that of its first lane) on one pipe, answers go as lane numbers on another
# (`~lane`: read the lane's note first). Pipes are all that the two processes wait on, so a killed worker leaves no lock
# behind.


TRACE = 8192  # bytes for the traceback of a process that hangs or crashes
SAVE, LOAD = 1 << 24, 1 << 25  # in the place of a lane's number: an order to save or load all lanes of a process
UNSAVED = 5  # kind of a note: why a lane was not saved or loaded


class StateMail:
    """A file without a name that a pool and one of its processes share: the state of the process's lanes."""

    def __init__(self) -> None:
        self.block = SharedBlock(1)

    def put(self, saved: Batch) -> None:
        from safetensors.numpy import save as pack

        data = pack({k: np.asarray(v, order="C") for k, v in tree.leaves(saved)})
        os.pwrite(self.block.fd, data, 0)
        os.ftruncate(self.block.fd, len(data))

    def take(self) -> Batch:
        from safetensors.numpy import load

        return tree.nest(load(os.pread(self.block.fd, os.fstat(self.block.fd).st_size, 0)))


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
                board.busy[ctx] = number if number < SAVE else lanes[0]
                done.append(take_turn(mine[number]) if number < SAVE else serve_state(mine, number, mail))
                board.deadline[ctx] = 0.0
                if each:
                    os.write(sink, np.array(done, np.int32).tobytes())
                    done.clear()
            if done:
                os.write(sink, np.array(done, np.int32).tobytes())
            idle_since = time.perf_counter()
    for lane in mine.values():
        lane.close()


def serve_state(units: dict[int, Unit], order: int, mail: StateMail) -> int:
    """Save or load them all, and with the last one the global generators: the order, or `~order` with a note of the
    first lane on the board.
    """
    numbers = list(units)
    first, last = numbers[0], numbers[-1]
    try:
        if order == LOAD:
            saved = mail.take()
            random = saved[str(last)].pop("random", None)
            for lane, unit in units.items():
                unit.load(saved[str(lane)])
            if random is not None:
                load_generators(random)
        else:
            saved = {str(lane): unit.save() for lane, unit in units.items()}
            saved[str(last)]["random"] = save_generators()
            mail.put(saved)
        return order
    except BaseException as e:
        units[first].board.note(first, UNSAVED, reason_of(e))
        return ~order


def _lanes(job: LaneJob, board: SharedRows, ctx: int, lanes: list[int]) -> dict[int, Unit]:
    def allow(seconds: float) -> None:
        board.deadline[ctx] = time.monotonic() + seconds

    def fail() -> NoReturn:
        raise UserError(failure)

    make: Factory = fail
    try:
        with seeding_torch():
            make = factory(*unpack(job.maker, job.title))
    except BaseException as e:
        failure = _text_of(e, f"{job.title}: ")
    return {lane: make_unit(job, make, board, lane, allow) for lane in lanes}


def _text_of(e: BaseException, head: str) -> str:
    """A user's mistake as it is, anything else with its place behind `head`."""
    return str(e) if isinstance(e, UserError) else head + one_line(e)


def unpack(maker: bytes, title: str) -> tuple[str | Factory, Batch]:
    """(name, options), as they were sent. Raises UserError."""
    try:
        with user_modules.importing():  # it may import the function's module
            return pickle.loads(maker)
    except BaseException as e:
        why = f"{_text_of(e, '')} {rules.rule_suffix('factory')}"
        raise UserError(f"{title}: cannot be read in another process: {why}") from e


def probe(answer: Connection, maker: bytes, title: str) -> None:
    """Describe one environment to the pool's process: an EnvSpec, or the text of a UserError."""
    trace = SharedBlock(TRACE)  # its descriptor must live as long as we do
    settle(trace)
    try:
        answer.send(describe_(*unpack(maker, title)))
    except BaseException as e:
        answer.send(_text_of(e, f"{title}: "))


def settle(trace: SharedBlock) -> None:
    """Become a well-behaved environment process: its own group, ended with its parent."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # for libraries that environments load: one process, one core
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # so that what an environment starts can be killed with it
    faulthandler.enable(trace.fd, all_threads=False)
    faulthandler.register(signal.SIGUSR1, trace.fd, all_threads=False)
    if (parent := parent_process()) is not None:
        group = -os.getpid() if os.getpgrp() == os.getpid() else os.getpid()
        processes.kill_when_closed(parent.sentinel, group)  # by the kernel: an environment may hold the GIL for ever
        if wait([parent.sentinel], 0):
            os._exit(1)


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
    limit, what = max(START, envs.step_timeout), f"{envs.title}: building and resetting it"
    try:
        if not here.poll(limit):
            raise UserError(f"{what} took longer than {limit:g} s {rules.rule_suffix('build')}")
        answer = here.recv()
    except EOFError:
        process.join(1.0)
        raise UserError(f"{what} ended its process: {exit_text(process)} {rules.rule_suffix('build')}") from None
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

    def __init__(self, index: int, lanes: list[int], board: SharedRows, job: LaneJob, each: bool, server: ForkServer):
        self.index, self.lanes, self._server = index, lanes, server
        self._args = (board, job, index, lanes, each)
        self.leave_by = math.inf
        self.start()

    def start(self) -> None:
        board = self._args[0]
        board.deadline[self.index] = time.monotonic() + START
        self.trace, self.mail = SharedBlock(TRACE), StateMail()
        there, self.orders = multiprocessing.Pipe(duplex=False)
        self.answers, back = multiprocessing.Pipe(duplex=False)
        process = EnvProcess(
            serve, (there, back, *self._args, self.trace, self.mail), f"env {self.index}", self._server
        )
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


TICK = 0.25  # seconds between two checks of the deadlines, and the longest that close() by another thread waits


class ProcessPool(UnitPool):
    """A Pool over environment processes."""

    threaded = True
    _asynchronous = True

    def __init__(self, envs: Envs, seed: int, lane: int, server: ForkServer = SERVER):
        super().__init__(envs, seed, lane, envs.workers or cores())
        self._server = server
        n, units = self.workers, self.units
        # every process serves every group, so that all of them are busy whichever group steps
        self._owner = np.empty(envs.lanes, np.int64)
        self._owner[self.numbers] = np.arange(units) % self.width * n // self.width
        self._turn = threading.RLock()  # who waits
        self._lock = threading.RLock()  # who changes what is below
        self._poll = select.poll()
        self._by_source: dict[int, EnvProcessHandle] = {}
        self._workers: dict[int, EnvProcessHandle] = {}
        self._leaving: list[EnvProcessHandle] = []  # without orders; they are closing their environments
        self._apart = n == units  # every lane, or match, has a process of its own, so lanes may come and go
        self._wanted = envs.active or envs.lanes
        self._where[:] = STEPPING
        self._where[self._wanted :] = ABSENT
        self._here: set[int] = set()  # lanes that gave a row since they came
        self._failure: BaseException | None = None
        self._checked = time.monotonic()
        self._tick = min(TICK, envs.step_timeout / 4)
        self._job = LaneJob(pickled_factory(envs), envs.title, self.spec, seed, lane, envs.step_timeout)
        if not self._apart and self._wanted < envs.lanes:
            raise UserError(f"active={envs.active}: lanes that come and go need a process each: workers={units}")
        try:
            for i in range(self._wanted // self.seats if self._apart else n):
                self._start(i)
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------------------- the protocol

    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """See Pool. Slices give views of shared memory, index arrays give copies."""
        end = time.monotonic() + (math.inf if timeout is None else timeout)
        if not self._turn.acquire(timeout=-1 if timeout is None else max(timeout, 0.0)):
            raise TimeoutError
        try:
            while True:
                with self._lock:
                    if self._failure is not None:
                        raise self._failure
                    try:
                        return super().recv()
                    except RuntimeError:  # no lane that is due has a row yet
                        if self.fixed and not self._busy:
                            raise
                if not self._wait(end) and time.monotonic() >= end:
                    raise TimeoutError
        except (EnvFailure, UserError) as e:
            self._failure = e
            self.close()
            raise
        finally:
            self._turn.release()

    def send(self, lanes: Lanes, action: Tree) -> None:
        """See Pool."""
        with self._lock:
            super().send(lanes, action)

    def close(self) -> None:
        """Ask every process to end, wait a second, kill the rest."""
        self._open = False
        with self._turn, self._lock:
            workers = [*self._workers.values(), *self._leaving]
            for worker in self._workers.values():
                worker.close_orders()
            self._workers, self._leaving = {}, []
            until = time.monotonic() + 1.0
            for worker in workers:
                worker.process.join(max(until - time.monotonic(), 0.0))
                worker.end()

    def state(self) -> Batch | None:
        """See Pool; waits for the rows that are awaited."""
        with self._turn, self._lock:
            self._settle()
            lanes: Batch = {}
            for worker in self._workers.values():
                if not self._ask(worker, SAVE):
                    return None
                lanes |= worker.mail.take()
            return self._saved(lanes)

    def load(self, state: Batch) -> None:
        """See Pool. Raises UserError: an environment that does not take its state back."""
        with self._turn, self._lock:
            self._settle()
            self._load(state)
            for worker in self._workers.values():
                worker.mail.put({str(lane): state["lanes"][str(lane)] for lane in worker.lanes})
                if not self._ask(worker, LOAD):
                    raise UserError(f"{self.title}, {worker}: cannot go on from what was saved: {self.unsaved}")

    # --------------------------------------------------------------------------- lanes that come and go

    def scale(self, n: int) -> None:
        """Be `n` lanes, the first ones, or a few more: of whole matches. New ones begin with a reset; recv gives the
        others once more, to `part`.
        """
        if not self._apart or self.fixed or not 0 <= n <= self.lanes:
            raise ValueError(f"{n} lanes: 0 … {self.lanes} can be, of a greedy pool with a process per lane")
        with self._lock:
            self._check_open()
            self._wanted = min(-(-n // self.seats) * self.seats, self.lanes)
            for i in range(self._wanted // self.seats):
                for lane in self._absent(i):
                    self._board.joins[lane] += 1
                    self._where[lane] = STEPPING
                if i not in self._workers:
                    self._start(i)
            self._reap()

    def part(self, lanes: np.ndarray) -> None:
        """See Pool. Nobody waits for their end."""
        with self._lock:
            for lane in lanes.tolist():
                self._where[lane] = ABSENT
                self._here.discard(lane)
                i = lane // self.seats
                if len(self._absent(i)) == self.seats:
                    worker = self._workers.pop(i)
                    self._unregister(worker)
                    worker.close_orders()
                    self._leaving.append(worker)
            self.scale(self._wanted)  # perhaps they are wanted again

    def _absent(self, i: int) -> list[int]:
        """The lanes of process `i`, of those that have one lane or match, that are not there."""
        lanes = range(i * self.seats, (i + 1) * self.seats)
        return [lane for lane in lanes if self._where[lane] == ABSENT]

    wanted = property(lambda self: self._wanted)

    @property
    def present(self) -> int:
        """Lanes that are there: those that have yet to go included, but not those whose first row is awaited."""
        there = len(self._workers) * self.seats if self._apart else self.lanes
        return there if there > self._wanted else min(there, len(self._here))

    def waits(self) -> tuple[float, float]:
        """See Pool."""
        waited = self._board.waited.sum(0)
        return float(waited[0]), float(waited[1])

    def _reap(self) -> None:
        """Reap the processes that have closed their environments, and kill those that take too long."""
        now = time.monotonic()
        for worker in list(self._leaving):
            if worker.process.exitcode is not None or now > worker.leave_by:
                worker.end()
                self._leaving.remove(worker)

    # ------------------------------------------------------------------------------------- inside

    @property
    def _busy(self) -> bool:
        """Something is being stepped."""
        return bool(self._due(np.flatnonzero(self._where == STEPPING)).size)

    def _settle(self) -> None:
        """Wait for the rows that are awaited: also a lane that is begun anew has none yet."""
        self._check_open()
        while self._busy:
            self._wait(math.inf)
            self._check_open()

    def _start(self, i: int) -> None:
        mine = self.numbers[self._owner[self.numbers] == i]
        self._workers[i] = EnvProcessHandle(i, mine.tolist(), self._board, self._job, not self.fixed, self._server)
        self._register(self._workers[i])
        self._workers[i].order(mine)

    def _register(self, worker: EnvProcessHandle) -> None:
        for source in (worker.source, worker.process.sentinel):
            self._by_source[source] = worker
            self._poll.register(source, select.POLLIN)

    def _unregister(self, worker: EnvProcessHandle) -> None:
        for source in (worker.source, worker.process.sentinel):
            self._poll.unregister(source)
            del self._by_source[source]

    def _ask(self, worker: EnvProcessHandle, order: int) -> bool:
        """Order its lanes to be saved or loaded and wait for that; False: `unsaved` has the reason."""
        worker.order(np.array([order]))
        while True:
            wait([worker.answers], self._tick)
            answers = worker.read()
            if answers == b"":
                self.unsaved = f"{worker} ended by itself"  # recv notices that too, and replaces it
                return False
            if answers:
                numbers = np.frombuffer(answers, np.int32)
                done = (numbers == order) | (numbers == ~order)
                self._stepped(numbers[~done].tobytes())
                if done.any():
                    self.unsaved = "" if order in numbers else self._board.read(worker.lanes[0])[1]
                    return order in numbers
            now = time.monotonic()
            if 0.0 < self._board.deadline[worker.index] < now:
                self.unsaved = f"{worker} took longer than step_timeout={self._job.step_timeout:g} s"
                self._replace_hung(now)
                return False

    def _step(self, numbers: np.ndarray, action: Tree) -> None:
        tree.write(self._board.action, numbers, action)
        ordered = self._due(numbers)
        owner = self._owner[ordered]
        for i in np.unique(owner).tolist():
            self._workers[i].order(ordered[owner == i])

    def _wait(self, end: float) -> bool:
        """Wait for an answer, at most a tick or until `end`; False: none came."""
        left = min(self._tick, end - time.monotonic())
        ready = self._poll.poll(math.ceil(max(left, 0.0) * 1000))
        with self._lock:
            if not self._open:
                return False
            for source, _ in ready:
                if source in self._by_source:
                    self._receive(self._by_source[source])
            now = time.monotonic()
            if now - self._checked >= self._tick:
                self._checked = now
                self._replace_hung(now)
        return bool(ready)

    def _receive(self, worker: EnvProcessHandle) -> None:
        answers = worker.read()
        if answers:
            self._stepped(answers)
        elif answers == b"" or worker.process.exitcode is not None:
            worker.process.join(1.0)
            self._replace(worker, "crash", f"{worker} ended by itself: {exit_text(worker.process)}")

    def _stepped(self, answers: bytes) -> None:
        numbers = np.frombuffer(answers, np.int32).tolist()
        failed = [~i for i in numbers if i < 0 and self._faults.of_lane(~i, self._lanes_of([~i]))]
        for i in failed:
            self._workers[self._owner[i]].order(np.array([i]))
        lanes = self._lanes_of([lane for i in numbers if (lane := max(i, ~i)) not in failed])
        self._faults.steps += len(lanes)
        self._here.update(lanes)
        self._where[lanes] = READY

    def _replace_hung(self, now: float) -> None:
        """Replace processes whose environment takes too long."""
        self._reap()
        for worker in self._workers.values():
            if 0.0 < self._board.deadline[worker.index] < now:
                lane = self._job.lane + int(self._board.busy[worker.index])
                limit = f"step_timeout={self._job.step_timeout:g} s"
                why = f"{self.title}, lane {lane}: took longer than {limit}; {worker} was killed"
                self._replace(worker, "hang", why)

    def _replace(self, worker: EnvProcessHandle, rule: str, why: str) -> None:
        """Another process for its lanes: those whose row is awaited begin anew now, the others
        when they are answered.
        """
        stack = worker.stack(ask=rule == "hang")
        self._unregister(worker)
        worker.process.end()
        self._stepped(worker.drain())
        worker.end()
        text = f"{why}; all its lanes were restarted {rules.rule_suffix(rule)}{stack}"
        lanes = np.array(self._lanes_of(worker.lanes))
        self._faults.of_process(text, lanes.tolist())
        worker.start()
        self._register(worker)
        if (awaited := self._due(lanes[self._where[lanes] == STEPPING])).size:
            worker.order(awaited)

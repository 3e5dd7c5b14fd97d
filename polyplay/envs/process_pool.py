"""A pool whose environments step in other processes, and the code that runs in such a process.

A process steps several lanes (parallel environments) or matches, and writes their rows into shared memory. The pool
orders a step by writing the lane's number into a queue in shared memory. The process answers by writing the number into
another queue. A semaphore (a bell) wakes the reader of a queue. Processes share no lock. If a process is killed or
hangs, the pool replaces it, and its lanes restart.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import parent_process
from typing import NoReturn

import numpy as np

from polyplay.core import platform, processes, tree, user_modules
from polyplay.core.errors import EnvFailure, UserError
from polyplay.core.processes import LOST, ForkedProcess, ForkServer
from polyplay.core.shared_memory import LINE, Ring, Semaphore, Semaphores, SharedBlock, SharedObject
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

# Environment processes have a separate fork server, which preloads NumPy and Gymnasium; the workers' fork server also
# preloads torch.


SERVER = ForkServer("polyplay.envs.preload")
REORDERED = ForkServer("polyplay.envs.preload", reordered=True)  # with another iteration order of Python's sets


class EnvProcess(ForkedProcess):
    """A process that steps environments. `server`: the fork server that forks it."""

    starts = False

    def __init__(self, target: Callable[..., None], args: tuple, name: str, server: ForkServer = SERVER):
        super().__init__(server, target, args, f"{name}{processes.label}")

    def dump(self) -> None:
        """Make the process write its Python stack into shared memory, see `settle`."""
        platform.ask_for_dump(self._popen.pid)


# One environment process. It steps single environments, which write their rows into memory shared with the pool.
#
# Orders and answers are lane numbers (of a match: the number of its first lane). The answer `~lane` means that the lane
# left a message to read. Pool and process wait only on bells, so a killed process leaves no lock behind. The pool
# detects the end of a process by its sentinel; the kernel ends the processes of a dead pool.


TRACE = 8192  # bytes for the traceback of a process that hangs or crashes
# orders other than a lane number: save or load all lanes of the process, or end it
SAVE, LOAD, LEAVE = 1 << 24, 1 << 25, 1 << 26
UNSAVED = 5  # kind of message: why a lane was not saved or loaded


class OrderQueues(SharedObject):
    """Queues of orders to a process with `lanes` lanes, and of its answers. A semaphore wakes the reader of a queue."""

    LOCAL = ("bell", "orders", "answers")
    _cells: np.ndarray
    _bell: np.ndarray

    def __init__(self, lanes: int, answered: Semaphores):
        self._answered = answered
        super().__init__(_cells=((2, Ring.cells(lanes + 2)), np.int64), _bell=(LINE, np.uint8))
        Semaphore(self._bell, create=True)

    def _attach(self) -> None:
        super()._attach()
        self.bell = Semaphore(self._bell)
        self.orders, self.answers = Ring(self._cells[0], self.bell), Ring(self._cells[1], self._answered[0])


class StateMail:
    """Unnamed file through which the pool and one process exchange the saved state of the process's lanes."""

    def __init__(self) -> None:
        self.block = SharedBlock(1)

    def put(self, saved: Batch) -> None:
        from safetensors.numpy import save as pack

        data = pack({k: np.asarray(v, order="C") for k, v in tree.leaves(saved)})
        platform.pwrite(self.block.fd, data, 0)
        os.ftruncate(self.block.fd, len(data))

    def take(self) -> Batch:
        from safetensors.numpy import load

        return tree.nest(load(platform.pread(self.block.fd, os.fstat(self.block.fd).st_size, 0)))


def serve(
    queues: OrderQueues,
    board: SharedRows,
    job: LaneJob,
    ctx: int,
    lanes: list[int],
    each: bool,
    trace: SharedBlock,
    mail: StateMail,
) -> None:
    """Run an environment process, which steps lanes as the pool orders, until the order LEAVE arrives. `each`: answer
    after every lane, not after all ordered lanes.
    """
    settle(trace)
    seed_process(lane_seed(board, job, lanes[0]))
    mine = _lanes(job, board, ctx, lanes)
    board.deadline[ctx] = 0.0  # the process has started
    waited, idle_since = board.waited[ctx], time.perf_counter()
    while LEAVE not in (ordered := queues.orders.take_all()):
        if not ordered:
            queues.bell.wait(60.0)
            continue
        waited[0] += time.perf_counter() - idle_since
        waited[1] += 1
        done = []
        for number in ordered:
            board.busy[ctx] = number if number < SAVE else lanes[0]
            done.append(take_turn(mine[number]) if number < SAVE else serve_state(mine, number, mail))
            board.deadline[ctx] = 0.0
            if each:
                queues.answers.put_all(done)
                done.clear()
        if done:
            queues.answers.put_all(done)
        idle_since = time.perf_counter()
    for lane in mine.values():
        lane.close()


def serve_state(units: dict[int, Unit], order: int, mail: StateMail) -> int:
    """Save or load the state of all units (lanes or matches) of this process, and of its global random generators.
    Return `order`. After a failure, leave the reason as a message of the first lane, and return `~order`.
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
            make = factory(*unpack(job.maker, job.title), job.progress)
    except BaseException as e:
        failure = _text_of(e, f"{job.title}: ")
    return {lane: make_unit(job, make, board, lane, allow) for lane in lanes}


def _text_of(e: BaseException, head: str) -> str:
    return str(e) if isinstance(e, UserError) else head + one_line(e)


def unpack(maker: bytes, title: str) -> tuple[str | Factory, Batch]:
    """Unpickle the (name, options) of an environment. Raises UserError if unpickling fails."""
    try:
        with user_modules.importing():  # unpickling may import the function's module
            return pickle.loads(maker)
    except BaseException as e:
        why = f"{_text_of(e, '')} {rules.rule_suffix('factory')}"
        raise UserError(f"{title}: cannot be read in another process: {why}") from e


def probe(answer: Connection, maker: bytes, title: str) -> None:
    """Build one environment, and send its description (EnvSpec), or the text of an error."""
    trace = SharedBlock(TRACE)  # the variable keeps the file open as long as this process lives
    settle(trace)
    try:
        answer.send(describe_(*unpack(maker, title), timed=True))
    except BaseException as e:
        answer.send(_text_of(e, f"{title}: "))


def settle(trace: SharedBlock) -> None:
    """Make this process lead a process group, which dies with the parent process. Its Python stacks go to `trace`."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # libraries that environments load use one core
    group = platform.lead_group()  # so that children of environments can be killed with the process
    platform.dump_on_signal(trace.fd)
    if (parent := parent_process()) is not None:
        platform.kill_when_closed(parent.sentinel, group)  # by the kernel: an environment may never release the GIL
        if wait([parent.sentinel], 0):
            os._exit(1)


FEWER = (
    "use fewer (ga3c: --agents; others: --lanes, --actors or --replicas), or allow more open files "
    "(`ulimit -n`) and processes (`ulimit -u`)"
)


def pickled_factory(envs: Envs) -> bytes:
    """Pickle a factory, and all that it closes over, for another process. Raises UserError if this is not possible."""
    import cloudpickle

    try:
        return cloudpickle.dumps((envs.name, dict(envs.options)))
    except Exception as e:
        why = f"{type(e).__name__}: {e} {rules.rule_suffix('factory')}"
        raise UserError(f"{envs.title}: cannot be sent to another process: {why}") from None


def describe(envs: Envs) -> EnvSpec:
    """Describe one environment, built in a separate process. Raises UserError if building fails or takes too long."""
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
    """Handle by which the pool starts, orders and replaces one environment process."""

    def __init__(
        self, index: int, lanes: list[int], pool: tuple[SharedRows, LaneJob, Semaphores], each: bool, server: ForkServer
    ):
        self.index, self.lanes, self._server = index, lanes, server
        self._board, self._job, self._bell = pool
        self._each, self.leave_by = each, math.inf
        self.start()

    def start(self) -> None:
        self._board.deadline[self.index] = time.monotonic() + START
        self.trace, self.mail, self._queues = SharedBlock(TRACE), StateMail(), OrderQueues(len(self.lanes), self._bell)
        self.orders, self.answers = self._queues.orders, self._queues.answers
        given = self._queues, self._board, self._job, self.index, self.lanes, self._each, self.trace, self.mail
        process = EnvProcess(serve, given, f"env {self.index}", self._server)
        try:
            process.start()
        except OSError as e:
            raise UserError(f"{self} could not be started: {e}{f'; {FEWER}' * processes.is_limit(e)}") from None
        self.process = process

    def stack(self, ask: bool) -> str:
        """Return the Python stack of the process, or "" if unknown: its stack now if `ask`, else that of a crash."""
        if ask:
            self.process.dump()
            time.sleep(0.1)
        text = bytes(self.trace.memory).split(b"\0", 1)[0].decode(errors="replace").strip()
        return f"\n{text[-3000:]}" if text else ""

    def leave(self) -> None:
        """Order the process to close its environments and end."""
        self.leave_by = time.monotonic() + 5.0
        self.orders.put_all([LEAVE])

    def __str__(self) -> str:
        job, lanes = self._job, self.lanes
        numbers = ", ".join(str(job.lane + i) for i in lanes[:8]) + (", …" if len(lanes) > 8 else "")
        return f"environment process {self.index} (lanes {numbers})"


TICK = 0.1  # seconds between checks for lost and hanging processes


class ProcessPool(UnitPool):
    """A pool whose environments step in other processes. If `here` is true, the caller's thread steps some of them."""

    threaded = True

    def __init__(
        self, envs: Envs, seed: int, lane: int, processes: int, here: bool = False, server: ForkServer = SERVER
    ):
        super().__init__(envs, seed, lane, processes)
        self._job = replace(self._job, maker=pickled_factory(envs))
        self._server, sides = server, processes + here
        # each process steps lanes of every group, so that all processes are busy for any group
        self._owner = np.empty(envs.lanes, np.int64)
        self._owner[self.numbers] = np.arange(self.units) % self.width * sides // self.width
        self._shares = lru_cache(64)(self._shares_of)  # cached, because groups repeat
        self._turn = threading.RLock()  # held by the thread that waits in recv
        self._lock = threading.RLock()  # protects the attributes below
        self._bell = Semaphores(1)  # every answer rings it
        self._workers: dict[int, EnvProcessHandle] = {}
        self._leaving: list[EnvProcessHandle] = []  # processes that are closing their environments
        self._apart = processes == self.units  # whether each lane or match has a process, so that lanes may come and go
        self._wanted = envs.active or envs.lanes
        self._where[self._wanted :] = ABSENT
        self._here: set[int] = set()  # lanes with a row since their process started
        self._failure: BaseException | None = None
        self._checked = time.monotonic()
        self._tick = min(TICK, envs.step_timeout / 4)
        if not self._apart and self._wanted < envs.lanes:
            raise UserError(f"active={envs.active}: lanes that come and go need a process each: workers={self.units}")
        try:
            for i in range(self._wanted // self.seats if self._apart else processes):
                self._start(i)
        except BaseException:
            self.close()
            raise
        if here:
            self._begin(envs, np.array(self._share_of(processes)))

    # ------------------------------------------------------------------------------- the protocol

    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """See Pool. If the lanes are a slice, the rows are views of shared memory. Otherwise, the rows are copies."""
        end = time.monotonic() + (math.inf if timeout is None else timeout)
        if not self._turn.acquire(timeout=-1 if timeout is None else max(timeout, 0.0)):
            raise TimeoutError
        try:
            while True:
                with self._lock:
                    self._collect()
                    if (found := self._take()) is not None:
                        return found
                if self._wait(end):
                    continue
                if self.fixed and not self._busy:
                    return super().recv()  # raises RuntimeError: no row will come
                if time.monotonic() >= end:
                    raise TimeoutError
        except (EnvFailure, UserError) as e:
            self._fail(e)
            raise
        finally:
            self._turn.release()

    def send(self, lanes: Lanes, action: Tree) -> None:
        """See Pool."""
        try:
            with self._lock:
                super().send(lanes, action)
        except (EnvFailure, UserError) as e:  # from an environment in this thread
            self._fail(e)
            raise

    def _fail(self, e: BaseException) -> None:
        self._failure = e
        self.close()

    def close(self) -> None:
        """Order every process to end, wait at most a second, then kill the processes that remain."""
        self._open = False
        self._bell[0].post()
        with self._turn, self._lock:
            workers = [*self._workers.values(), *self._leaving]
            for worker in self._workers.values():
                worker.leave()
            self._workers, self._leaving = {}, []
            super().close()
            until = time.monotonic() + 1.0
            for worker in workers:
                worker.process.join(max(until - time.monotonic(), 0.0))
                worker.process.end()

    def state(self) -> Batch | None:
        """See Pool. The call waits until no lane steps."""
        with self._turn, self._lock:
            self._settle()
            if (found := super().state()) is None:
                return None
            for worker in self._workers.values():
                if not self._ask(worker, SAVE):
                    return None
                found["lanes"] |= worker.mail.take()
            return found

    def load(self, state: Batch) -> None:
        """See Pool. Raises UserError if a saved state of an environment cannot be restored."""
        with self._turn, self._lock:
            self._settle()
            super().load(state)
            for worker in self._workers.values():
                worker.mail.put({str(lane): state["lanes"][str(lane)] for lane in worker.lanes})
                if not self._ask(worker, LOAD):
                    raise UserError(f"{self.title}, {worker}: cannot restore its saved state: {self.unsaved}")

    # --------------------------------------------------------------------------- lanes that come and go

    def scale(self, n: int) -> None:
        """Keep the first `n` lanes, rounded up to whole matches. New lanes start with a reset. recv returns each other
        lane once more, then `part` ends it.
        """
        if not self._apart or self.fixed or not 0 <= n <= self.lanes:
            raise ValueError(f"{n} lanes: must be 0 … {self.lanes}, with a process per lane and without fixed groups")
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
        """See Pool. Does not wait until the processes of these lanes end."""
        with self._lock:
            for lane in lanes.tolist():
                self._where[lane] = ABSENT
                self._here.discard(lane)
                i = lane // self.seats
                if len(self._absent(i)) == self.seats:
                    worker = self._workers.pop(i)
                    worker.leave()
                    self._leaving.append(worker)
            self.scale(self._wanted)  # some of these lanes may be wanted again

    def _absent(self, i: int) -> list[int]:
        lanes = range(i * self.seats, (i + 1) * self.seats)
        return [lane for lane in lanes if self._where[lane] == ABSENT]

    wanted = property(lambda self: self._wanted)

    @property
    def present(self) -> int:
        """Number of lanes that exist. It includes lanes that are about to end, but not new lanes without a row."""
        there = len(self._workers) * self.seats if self._apart else self.lanes
        return min(there, len(self._here)) if self._apart and there <= self._wanted else there

    def waits(self) -> tuple[float, float]:
        """See Pool."""
        waited = self._board.waited.sum(0)
        return float(waited[0]), float(waited[1])

    def _reap(self) -> None:
        """End processes that have closed their environments, or that take too long to do so."""
        now = time.monotonic()
        for worker in list(self._leaving):
            if worker.process.exitcode is not None or now > worker.leave_by:
                worker.process.end()
                self._leaving.remove(worker)

    # ---------------------------------------------------------------------------------- internals

    @property
    def _busy(self) -> bool:
        return bool(self._due(np.flatnonzero(self._where == STEPPING)).size)

    def _settle(self) -> None:
        self._collect()
        while self._busy:
            self._wait(math.inf)
            self._collect()

    def _share_of(self, i: int) -> list[int]:
        return self.numbers[self._owner[self.numbers] == i].tolist()

    def _start(self, i: int) -> None:
        pool = self._board, self._job, self._bell
        self._workers[i] = EnvProcessHandle(i, self._share_of(i), pool, not self.fixed, self._server)
        self._workers[i].orders.put_all(self._workers[i].lanes)

    def _ask(self, worker: EnvProcessHandle, order: int) -> bool:
        """Order a process to save or load its lanes, and wait for the answer. Return False after a failure."""
        worker.orders.put_all([order])
        while not (answers := worker.answers.take_all()):
            if self._ended([worker]):
                self.unsaved = f"{worker} ended by itself"  # recv detects this too, and replaces the process
                return False
            if self._hangs(worker):
                self.unsaved = f"{worker} took longer than step_timeout={self._job.step_timeout:g} s"
                self._replace_hung()
                return False
            self._bell[0].wait(self._tick)
        self.unsaved = "" if answers == [order] else self._board.read(worker.lanes[0])[1]
        return answers == [order]

    def _step(self, numbers: np.ndarray, action: Tree) -> None:
        tree.write(self._board.action, numbers, action)
        here, shares = self._shares(self._due(numbers).tobytes())
        for i, share in shares:
            self._workers[i].orders.put_all(share)
        if here.size:
            self._turns(here)

    def _shares_of(self, ordered: bytes) -> tuple[np.ndarray, list[tuple[int, list[int]]]]:
        """Split lane numbers between the caller's thread and the processes."""
        shares: dict[int, list[int]] = {}
        for i in np.frombuffer(ordered, np.int64).tolist():
            shares.setdefault(int(self._owner[i]), []).append(i)
        return np.array(shares.pop(self.processes, []), np.int64), list(shares.items())

    def _wait(self, end: float) -> bool:
        """Wait for an answer until the time `end`, but at most TICK seconds. Return whether an answer came."""
        rang = self._bell[0].wait(max(min(self._tick, end - time.monotonic()), 0.0))
        with self._lock:
            if self._open and time.monotonic() - self._checked >= self._tick:
                self._checked = time.monotonic()
                self._reap()
                self._replace_ended()
                self._replace_hung()
        return rang

    def _collect(self) -> None:
        """Read the available answers. Raises Closed, or the exception that ended the pool."""
        if self._failure is not None:
            raise self._failure
        self._check_open()
        while self._bell[0].wait(0.0):  # the answers that rang the bell are read below
            pass
        for worker in self._workers.values():
            if answers := worker.answers.take_all():
                self._stepped(answers)

    def _stepped(self, answers: list[int]) -> None:
        failed = [~i for i in answers if i < 0 and self._faults.of_lane(~i, self._lanes_of([~i]))]
        for i in failed:
            self._workers[self._owner[i]].orders.put_all([i])
        lanes = self._lanes_of([lane for i in answers if (lane := max(i, ~i)) not in failed])
        self._faults.steps += len(lanes)
        self._here.update(lanes)
        self._where[lanes] = READY

    def _ended(self, workers: Iterable[EnvProcessHandle]) -> list[EnvProcessHandle]:
        """Return the processes that have ended."""
        sentinels = {worker.process.sentinel: worker for worker in workers}
        return [sentinels[fd] for fd in platform.readable([*sentinels], 0.0)]

    def _hangs(self, worker: EnvProcessHandle) -> bool:
        return 0.0 < self._board.deadline[worker.index] < time.monotonic()

    def _replace_ended(self) -> None:
        for worker in self._ended(self._workers.values()):
            worker.process.join(1.0)
            self._replace(worker, "crash", f"{worker} ended by itself: {exit_text(worker.process)}")

    def _replace_hung(self) -> None:
        """Replace processes whose environments exceed their time limit."""
        for worker in filter(self._hangs, self._workers.values()):
            lane = self._job.lane + int(self._board.busy[worker.index])
            limit = f"step_timeout={self._job.step_timeout:g} s"
            why = f"{self.title}, lane {lane}: took longer than {limit}; {worker} was killed"
            self._replace(worker, "hang", why)

    def _replace(self, worker: EnvProcessHandle, rule: str, why: str) -> None:
        """Replace a process, and restart its lanes."""
        stack = worker.stack(ask=rule == "hang")
        worker.process.end()
        self._stepped(worker.answers.take_all())
        text = f"{why}; all its lanes were restarted {rules.rule_suffix(rule)}{stack}"
        lanes = np.array(self._lanes_of(worker.lanes))
        self._faults.of_process(text, lanes.tolist())
        worker.start()
        if (awaited := self._due(lanes[self._where[lanes] == STEPPING])).size:
            worker.orders.put_all(awaited.tolist())

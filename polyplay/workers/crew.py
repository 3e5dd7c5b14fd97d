"""The crew starts, watches, scales and stops all workers of a run: processes, threads, or all in one thread.

A worker runs a generator function `work(ctx, **arguments)`, in a process or a thread. Every `yield` of this function
ends a turn. With `serial`, workers take turns in the calling thread, and the run is deterministic and easy to debug.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyplay.core import processes
from polyplay.core.errors import SEATS, Closed, EnvFailure, NotFinite, UserError, WorkerLost
from polyplay.core.processes import LOST, ForkedProcess, Handle
from polyplay.core.user_modules import title as title_of
from polyplay.core.worker import (
    Adjustable,
    Counters,
    Edge,
    HyperparameterSchedule,
    RoleSize,
    RunControl,
    WorkerContext,
    next_incarnation,
)
from polyplay.envs.pool import Envs
from polyplay.workers import process
from polyplay.workers.process import Call, CloudPickled, Work
from polyplay.workers.role import IfLost, Kind, Placement, Role, check_holds, draw_diagram
from polyplay.workers.sizing import threads_of

if TYPE_CHECKING:
    from polyplay.learning import LearnerSpec
    from polyplay.workers.hosts.cluster import Cluster
    from polyplay.workers.hosts.fleet import Fleet, Machine


def take_turns(workers: Sequence[WorkerHandle], control: RunControl) -> None:
    """Give every worker a turn, and write a checkpoint if one is due. If a worker raises Closed or an exception of
    process.KINDS, raise this exception. If a worker raises another exception, raise WorkerLost.
    """
    for worker in workers:
        _turn(worker)
    _meet(workers)
    _save(workers, control)


def _turn(worker: WorkerHandle) -> None:
    if worker.done:
        return
    try:
        worker.runs.turn()
        worker.ctx.turn()
    except StopIteration:
        worker.done = True
    except (UserError, EnvFailure, NotFinite, WorkerLost, Closed):
        raise
    except Exception:
        raise WorkerLost(error_text(worker, traceback.format_exc())) from None


def _meet(workers: Sequence[WorkerHandle]) -> None:
    """Give extra turns to learners that wait for each other, so that an update ends in the round where it began."""
    # replicas get no extra turns, because a turn of a replica also acts
    waiting = [w for w in workers if w.ctx.hooks.meeting and "source" in w.role.edges()]
    before = list[int]()
    while (now := [w.ctx.hooks.meeting for w in waiting]) != before:
        before = now
        for worker in waiting:
            if worker.ctx.hooks.meeting:
                _turn(worker)


def _save(workers: Sequence[WorkerHandle], control: RunControl) -> None:
    """Let each worker write its part of a checkpoint, if one is due. At the run's end, mark the learners as done."""
    learners = [w for w in workers if w.role.learner]
    numbers = [w.ctx.hooks.number() for w in learners if w.ctx.hooks.number is not None]
    ends = control.finishing or all(w.done for w in learners)
    if not numbers or any(w.ctx.hooks.meeting for w in workers) or not (ends or control.saves > control.made):
        return
    control.made = control.saves
    for worker in workers:
        if worker.ctx.hooks.write_part is not None:
            worker.ctx.hooks.write_part(max(numbers))
    for worker in learners:
        worker.done |= ends


def error_text(worker: WorkerHandle, text: str) -> str:
    """Return a worker's traceback as an error message, headed by the line that names the exception."""
    return f"worker {worker.role.name} {worker.ctx.index} raised {text.rstrip().splitlines()[-1]}\n{text.rstrip()}"


def compiles(how: str, serial: bool, trace: bool) -> str:
    """Return the effective value of `--compile`. `auto` is off in serial and traced runs, which must be repeatable."""
    return "off" if how == "auto" and (serial or trace) else how


GRACE, PARTING = 1.0, 30.0  # seconds for workers to end by themselves: at the end of the run; when dismissed
REPLACEMENTS, HOUR = 20, 3600.0  # most replacements of a role's lost workers in a period; seconds of this period


@dataclass
class WorkerHandle:
    ctx: WorkerContext
    role: Role
    runs: Handle
    pipe: Connection | None = None  # receives the worker's messages (kind, text)
    done: bool = False
    until: float = 0.0  # time when a leaving worker is killed


@dataclass(eq=False)
class WorkerSeats:
    """The workers of a role. Each worker has a seat: a number within the role, which a replacement takes over."""

    n: int  # number of seats now
    threads: int  # compute threads per worker; 0: a share of the cores
    capacity: int  # most workers at any time
    size: RoleSize
    workers: dict[int, WorkerHandle] = field(default_factory=dict)  # by number of the seat
    leaving: dict[int, WorkerHandle] = field(default_factory=dict)
    past: dict[int, WorkerContext] = field(default_factory=dict)  # context of the last worker at each seat
    lost: int = 0
    recent_losses: list[float] = field(default_factory=list)  # times of recent losses


@dataclass(eq=False)
class Crew:
    """All workers of a run. Call `add` for each role (group of workers that do the same work), then `start`, then
    `poll` until it returns True, and `stop` at the end.
    """

    seed: int = 0
    on: Kind = "process"
    serial: bool = False
    directory: Path | None = None
    resume: Path | None = None
    resumes: int = 0
    trace: bool = False
    steps: int | None = None
    precision: str = "float32"
    placement: Placement = field(default_factory=Placement)
    reuse: bool = True
    compile: str = "auto"  # whether to compile updates and acting: auto, on or off
    env_defaults: Mapping[str, Any] = field(default_factory=dict)  # default arguments of every Envs
    schedules: tuple[HyperparameterSchedule, ...] = ()  # schedules of learners' hyperparameters
    loss: Callable[[Any], Any] | str | None = None  # makes the user's loss from a system's loss: LearnerSpec.with_loss
    fleet: Fleet | None = None  # other machines that run workers
    cluster: Cluster | None = None  # machines on which members of a population run
    host_wait: float = 300.0  # most seconds that a worker waits for a machine
    log: Callable[[str, str], None] = lambda kind, text: print(text, file=sys.stderr)

    def __post_init__(self) -> None:
        self.env_defaults = {"inline": self.serial or None, **self.env_defaults}
        self.roles = list[Role]()
        self.control = RunControl(self.trace, self.reuse, compiles(self.compile, self.serial, self.trace))
        self._seats: dict[str, WorkerSeats] = {}  # by the role's name
        self.measures, self.divided = False, ""  # whether a system may measure to choose options; the result
        self.counters: Counters | None = None
        self._rows, self._starting = itertools.count(), True  # next free row of the counters; whether workers start
        self._unseated: dict[tuple[str, int], tuple[Role, float]] = {}  # workers that wait for a machine; since when

    def agent_steps(self, envs: Envs, frames: int) -> float:
        """Return the agent steps to train for: those of `--steps` if it is given, else those of `frames` frames."""
        return self.steps if self.steps is not None else frames / envs.spec.frames_per_step

    def add(
        self,
        work: Work,
        /,
        n: int = 1,
        *,
        name: str | None = None,
        if_lost: IfLost = "fail",
        learner: bool = False,
        drain: bool = False,
        on: Kind | None = None,
        threads: int = 0,
        **holds: Any,
    ) -> Role:
        """Add a role: a group of `n` workers that run `work(ctx, **holds)`.

        `name`: the role's name. None: the name of `work`.
        `if_lost`: whether a lost worker ends the run (fail) or is replaced (replace).
        `learner`: whether the workers save checkpoints and decide when the run ends. They always do if `holds` has a
            `spec`.
        `drain`: whether a dismissed worker sees `ctx.leaving`, finishes its work and returns. Without `drain`, a thread
            ends at its next turn, and a process ends at once.
        `on`: process or thread. None: the crew's default.
        `threads`: compute threads per worker. 0: a share of the cores.

        Raises UserError if `work` does not take these arguments, the name is in use, or the user's loss does not fit.
        """
        title = name or work.__name__
        check_holds(title, work, holds)
        if "spec" in holds:
            holds["spec"] = self.learned(holds["spec"])
        if title in self._seats:
            raise UserError(f"crew.add: a role {title} already exists; choose another name")
        role = Role(title, work, n, holds, if_lost, on or self.on, learner or "spec" in holds, drain)
        if role.agents and any(other.agents for other in self.roles):
            raise UserError(f"{title}: another role has a source of several agents; use one such role per crew")
        self._check_room(role, n)
        if role.spec is not None:
            role.spec.hyperparameters.schedules = self.schedules
            if role.source is not None:
                from polyplay.learning import own_loss, try_loss

                with own_loss(title_of(self.loss)) if self.loss else contextlib.nullcontext():
                    try_loss(role.source, role.spec)
        self._seats[title] = WorkerSeats(n, threads, n, RoleSize(n))
        self.roles.append(role)
        return role

    def learned(self, spec: LearnerSpec) -> LearnerSpec:
        """Return a system's LearnerSpec, changed to use the user's loss if the run has one."""
        return spec if self.loss is None else spec.with_loss(self.loss)

    def _check_room(self, role: Role, n: int) -> None:
        """Raise UserError if the run would exceed SEATS workers with `n` workers of this role."""
        left = SEATS - sum(seats.capacity for name, seats in self._seats.items() if name != role.name)
        if n > left:
            raise UserError(f"{role.option} {n}: must be at most {left}; a run has at most {SEATS} workers")

    def dial(self, role: Role, low: int, high: int) -> Adjustable:
        """Return a dial, by which a worker changes the role's number of workers. `poll` starts or dismisses workers."""
        if not 0 < low <= role.n <= high <= SEATS:
            raise UserError(f"a dial of {role.name}: {low} to {high} must include {role.n}, and be within 1 to {SEATS}")
        self._check_room(role, high)
        seats = self._seats[role.name]
        seats.capacity = max(seats.capacity, high)
        return Adjustable(role.name, low, high, seats.size.get, seats.size.ask)

    # -------------------------------------------------------------------------------------------- running

    def start(self, metrics: tuple[str, ...] = ()) -> None:
        """Start all workers. Raises Closed if the run ends before all workers have started. Raises UserError if the
        operating system refuses to start more workers.
        """
        if self.directory is not None:
            processes.label = f" [{self.directory.name}]"
        tasks = max((len(r.envs.spec.tasks) for r in self.roles if r.envs is not None), default=0)
        self.counters = Counters(sum(r.agents + self._seats[r.name].capacity for r in self.roles), metrics, tasks)
        threads = self.serial or any(r.on == "thread" for r in self.roles)
        process.prepare()
        if threads:
            for edge in self.edges():
                edge.patience = 0.0 if self.serial else 0.05
            process.tune(1)  # the workers themselves are threads
        if self.fleet is not None:
            self.fleet.prepare(self)
        if self.cluster is not None:
            self.cluster.connect()
        for role in self.roles:
            for index in range(role.n):
                self._check_start()
                self._begin(role, index)
        self._starting = False

    def poll(self, timeout: float) -> bool:
        """Watch the workers for about `timeout` seconds, or run them in a serial run. Return True once every learner is
        done. Raises UserError, EnvFailure or NotFinite if a worker raised it. If a worker failed for another reason,
        raises WorkerLost with the worker's traceback or signal.
        """
        for role in self.roles:
            seats = self._seats[role.name]
            if seats.leaving or seats.size.wanted != seats.n:
                self._resize(role)
        for (_, index), (role, since) in list(self._unseated.items()):
            self._seat(role, index, since)
        if self.serial:
            until = time.monotonic() + timeout
            while time.monotonic() < until and not self.done:
                take_turns(self.workers(), self.control)
            return self.done
        pipes = {w.pipe: w for w in self.workers() if w.pipe is not None and not w.pipe.closed}
        ends = {w.runs.sentinel: w for w in self.workers() if not w.done and w.runs.sentinel is not None}
        for ready in connection.wait([*pipes, *ends], timeout):
            if ready in pipes:
                self._read(pipes[ready])
            elif ready in ends:
                self._ended(ends[ready])
        return self.done

    @property
    def done(self) -> bool:
        learners = [w for r in self.roles if r.learner for w in self._seats[r.name].workers.values()]
        return bool(learners) and all(w.done for w in learners)

    def workers(self) -> list[WorkerHandle]:
        """Return all workers, including dismissed workers that are still leaving."""
        return [w for seats in self._seats.values() for held in (seats.workers, seats.leaving) for w in held.values()]

    @property
    def learner(self) -> Role:
        """The first role whose workers learn."""
        return next(role for role in self.roles if role.learner)

    def count(self, role: Role) -> int:
        """Return a role's present number of workers, including those that wait for a free machine."""
        return self._seats[role.name].n

    def threads(self, role: Role) -> int:
        """Return the compute threads per worker that the system set for a role, or 0 for a share of the cores."""
        return self._seats[role.name].threads

    @property
    def lost(self) -> int:
        """Number of workers that were lost and replaced so far."""
        return sum(seats.lost for seats in self._seats.values())

    def edges(self) -> list[Edge]:
        """Return all edges: the objects through which workers share data."""
        return list({id(edge): edge for role in self.roles for edge in role.edges().values()}.values())

    def rows(self, role: Role, past: bool = False) -> list[int]:
        """Return the indices of a role's rows in the run's counters. `past`: include rows of workers that have left."""
        seats = self._seats[role.name]
        own = seats.past.values() if past else [w.ctx for w in seats.workers.values()]
        return [*(ctx.row for ctx in own), *self.agent_rows(role)]

    def agent_rows(self, role: Role) -> range:
        """Return the indices of the counter rows of a role's agents, which are the last rows of the counters."""
        assert self.counters is not None
        return range(self.counters.workers - role.agents, self.counters.workers)

    def savers(self) -> list[int]:
        """Return the counter rows of learners that save. If a role is asynchronous, only its learner 0 saves."""
        saving = (self.agent_rows(r) or self.rows(r)[: 1 if r.asynchronous else None] for r in self.roles if r.learner)
        return [row for rows in saving for row in rows]

    def rescue(self, saved: float, busy: Callable[[], bool]) -> list[int]:
        """Stop a failed run, but first let a learner save its complete updates. Return a list of this learner's counter
        row, or [] if no learner can save.
        `saved`: the learners' counter `saved` at the last checkpoint.
        `busy`: function that tells whether a checkpoint is being written.
        """
        assert self.counters is not None
        marks, until = self.counters.column("saved"), time.monotonic() + GRACE
        writer = self._rescuer(marks, saved)
        if writer is None or writer.role.agents:
            return []
        if abs(marks[writer.ctx.row]) > saved:
            return [writer.ctx.row]
        self.control.rescue(writer.ctx.index)
        if self.serial:
            process.rescue(writer.ctx)
        else:
            while writer.runs.is_alive() and (time.monotonic() < until or busy()):
                writer.runs.join(0.02)
        return [writer.ctx.row]

    def _rescuer(self, marks: Any, saved: float) -> WorkerHandle | None:
        """Return the learner that can save the updates of a failed run, or None."""
        learners = ((role, self._seats[role.name].workers) for role in self.roles if role.learner)
        for role, workers in ((role, workers) for role, workers in learners if 0 in workers):
            # learner 0, if it has saved already, or saves for all
            if abs(marks[workers[0].ctx.row]) > saved or role.asynchronous or self.serial:
                return workers[0]
            return next((w for _, w in sorted(workers.items()) if w.runs.is_alive()), None)
        return None

    def stop(self) -> None:
        """Close all edges (shared objects) and end all workers. Kill workers that still run after GRACE seconds."""
        self.control.halt()
        for edge in self.edges():
            edge.close()
        self._unseated.clear()
        until = time.monotonic() + GRACE
        for worker in self.workers():
            worker.runs.join(max(0.0, until - time.monotonic()))
        for worker in self.workers():
            if worker.runs.apart and worker.runs.is_alive():
                worker.runs.kill()
                worker.runs.join(PARTING)
            with contextlib.suppress(Exception) if self.serial else contextlib.nullcontext():
                worker.runs.close()
            if worker.pipe is not None:
                worker.pipe.close()
        for seats in self._seats.values():
            seats.workers.clear()
            seats.leaving.clear()
        if self.fleet is not None:
            self.fleet.close()
        if self.cluster is not None:
            self.cluster.close()

    # ------------------------------------------------------------------------------------------- innards

    def _begin(self, role: Role, index: int) -> None:
        if self.fleet is not None and self.fleet.is_away(role, index):
            self._seat(role, index, time.monotonic())
        else:
            self._start(role, index)

    def _seat(self, role: Role, index: int, since: float) -> None:
        """Start a worker on another machine. If no machine has room, retry until `host_wait` seconds after `since`."""
        assert self.fleet is not None
        machine = self.fleet.place(role, index)
        if machine is not None:
            self._unseated.pop((role.name, index), None)
            self._start(role, index, machine)
        elif time.monotonic() > since + self.host_wait:
            many = f"waited {self.host_wait:g} s for a machine"
            raise WorkerLost(f"worker {role.name} {index} {many}; `polyplay resume` continues on the existing machines")
        elif (role.name, index) not in self._unseated:
            self._unseated[role.name, index] = role, since
            self.log("warning", f"worker {role.name} {index} waits for a machine, at most {self.host_wait:g} s")

    def _context(self, role: Role, index: int) -> WorkerContext:
        assert self.counters is not None
        old = self._seats[role.name].past.get(index)
        return WorkerContext(
            role=role.name,
            index=index,
            n=self._seats[role.name].n,
            row=old.row if old else next(self._rows),
            seed=self.seed,
            all_counters=self.counters,
            control=self.control,
            directory=self.directory,
            resume=self.resume,
            incarnation=next_incarnation(old.incarnation if old else None, self.resumes),
            precision=self.precision,
            device=self.placement.device_for(role, index),
            patience=0.0 if self.serial else 0.1,
        )

    def _start(self, role: Role, index: int, machine: Machine | None = None) -> None:
        seats, ctx = self._seats[role.name], self._context(role, index)
        seats.past[index] = ctx
        self.control.dismissed[ctx.row] = False
        call = Call(ctx, role, threads_of(role, self))
        if self.serial:
            ctx.log = self.log
            seats.workers[index] = WorkerHandle(ctx, role, process.SerialWorker(role.work(ctx, **role.holds)))
        elif machine is not None and self.fleet is not None:
            remote = self.fleet.start(machine, call)
            seats.workers[index] = WorkerHandle(ctx, role, remote, remote.pipe)
        else:
            seats.workers.pop(index, None)  # a failed start leaves the seat empty
            try:
                seats.workers[index] = self._start_here(call)
            except (OSError, RuntimeError) as e:  # RuntimeError: no new thread can start
                raise _refused(role, index, e) from None

    def _start_here(self, call: Call) -> WorkerHandle:
        pipe, theirs = multiprocessing.Pipe(duplex=False)
        runs: Handle
        if call.role.on == "thread":
            runs = thread = process.WorkerThread(target=process.as_thread, args=(call, theirs), daemon=True)
            thread.start()
        else:
            title = f"{call.role.name} {call.ctx.index}{processes.label}"
            runs = forked = ForkedProcess(process.SERVER, process.as_process, (CloudPickled(call), theirs), title)
            forked.start(self._check_start)
            theirs.close()
        return WorkerHandle(call.ctx, call.role, runs, pipe)

    def _check_start(self) -> None:
        """Raise Closed if the run must end while its first workers are being started."""
        if self._starting and self.control.finishing:
            raise Closed

    def _read_rest(self, worker: WorkerHandle) -> None:
        """Read all messages that a worker sent before its end."""
        assert worker.pipe is not None
        while not worker.pipe.closed and worker.pipe.poll():
            self._read(worker)
        worker.pipe.close()

    def _read(self, worker: WorkerHandle) -> None:
        assert worker.pipe is not None
        try:
            kind, text = worker.pipe.recv()
        except (EOFError, OSError):
            return worker.pipe.close()
        if kind == "done":
            worker.done = True
        elif kind in process.KINDS:
            raise process.KINDS[kind](text)
        elif kind == "error":
            raise WorkerLost(error_text(worker, text))
        else:
            self.log(kind, text)

    def _ended(self, worker: WorkerHandle) -> None:
        """Read an ended worker's last messages. If the worker was not done, replace it or raise WorkerLost."""
        self._read_rest(worker)
        role, seats, index, now = worker.role, self._seats[worker.role.name], worker.ctx.index, time.monotonic()
        if worker.done or index in seats.leaving:
            worker.done = True
            return
        runs = worker.runs
        if isinstance(runs, ForkedProcess) and runs.exitcode == LOST and (fate := process.SERVER.fate()):
            raise WorkerLost(f"the fork server of the workers {fate}, and its workers with it; the run cannot continue")
        how = runs.ending()
        counts = runs.lost_first  # of the workers that a lost machine had, only the first counts
        seats.recent_losses = [t for t in seats.recent_losses if t > now - HOUR] + [now] * counts
        if role.if_lost == "fail" or len(seats.recent_losses) > REPLACEMENTS:
            many = f" ({REPLACEMENTS} of its role were replaced within an hour)" if role.if_lost == "replace" else ""
            raise WorkerLost(f"worker {role.name} {index} {how}{many}; the run cannot continue without it")
        seats.lost += 1
        self.log("warning", f"worker {role.name} {index} {how}; a new worker replaces it")
        runs.close()
        del seats.workers[index]
        self._begin(role, index)

    def _resize(self, role: Role) -> None:
        """Start or dismiss workers until a role has the wanted number."""
        seats = self._seats[role.name]
        for index in range(seats.n - 1, seats.size.wanted - 1, -1):
            seats.n = index
            if self._unseated.pop((role.name, index), None):
                continue
            seats.leaving[index] = worker = seats.workers.pop(index)
            worker.until = time.monotonic() + (PARTING if role.drain else 0.0)
            self.control.dismissed[worker.ctx.row] = True
        for worker in list(seats.leaving.values()):
            if self._left(worker):
                del seats.leaving[worker.ctx.index]
        while seats.n < seats.size.wanted and seats.n not in seats.leaving:  # a seat must be empty
            self._begin(role, seats.n)
            seats.n += 1
        seats.size.count(seats.n + len(seats.leaving))

    def _left(self, worker: WorkerHandle) -> bool:
        """Kill a dismissed worker whose time is over. Return whether the worker has ended."""
        if self.serial:
            if not worker.role.drain:
                worker.runs.close()
            return worker.done or not worker.role.drain
        if worker.runs.apart and worker.runs.is_alive() and time.monotonic() >= worker.until:
            worker.runs.kill()
            worker.runs.join()
        if worker.runs.is_alive():
            return False
        self._read_rest(worker)
        worker.runs.close()
        return True

    def diagram(self) -> str:
        return draw_diagram(self)


def _refused(role: Role, index: int, why: Exception) -> UserError:
    """Return the error for a worker that cannot start, with advice to use fewer workers if a limit was reached."""
    text = f"starting {role.name} {index} of {role.n} failed: {getattr(why, 'strerror', None) or why}"
    return UserError(f"{role.option}: {text}; {process.FEWER}" if processes.is_limit(why) else text)

"""A worker's context: counters, control, schedules, edges, the league."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from polyplay.core.errors import SEATS, Closed
from polyplay.core.flows import ANY, COUNTING, EVERYONE, MAIN, Cells, Crossing, End, Flow, Piece
from polyplay.core.shared_memory import SharedObject, shared_array

# Objects shared by workers. The crew, the diagram and the plan use only this interface, no subclass.


class Arrow(NamedTuple):
    """An arrow of the diagram, from roles that give to an edge to roles that take from it.

    givers, takers: names of the arguments by which a role holds the edge: `out` writes to the edge, `source` takes
    from it, `publish` publishes weights, `params` reads them, `update` updates through it, `server` serves it.
    """

    label: str
    givers: tuple[str, ...]
    takers: tuple[str, ...]


class Edge:
    """An object shared by workers. An edge that only one worker holds has no arrows."""

    memory: ClassVar[str] = "rollouts"  # the part of the memory estimate that includes it
    patience: float = 0.1  # seconds that a wait lasts before it returns "nothing yet"; 0 if all run in one thread
    replay: Any = None  # the Replay whose batches it delivers

    @property
    def nbytes(self) -> int:
        """Number of bytes of shared memory."""
        return 0

    def label(self) -> str:
        """Return its name in a diagram."""
        return type(self).__name__

    def arrows(self) -> list[Arrow]:
        """Return its arrows in a diagram."""
        return []

    def close(self) -> None:
        """Make all present and later waits raise Closed."""


class Holder:
    """A description that contains others: a learner's source contains a queue, its spec contains a policy."""

    def holds(self) -> Mapping[str, Any]:
        """Return its parts by name; edges have the names that Arrow lists."""
        return {}


# Counters of every worker in shared memory: one row each, written only by that worker.


EVENTS = ("stamp", "stamps", "steps", "rollouts", "updates", "learnt", "episodes", "restarts", "saved")
SECONDS = ("env", "infer", "learn", "replay", "wait")
LOAD = ("lag_sum", "lag_count", "lag_max", "depth_sum", "depth_count", "served", "calls", "simulations")
COLUMNS = [*EVENTS, *SECONDS, *LOAD]
SIZES = 257  # bins of the histogram of rows served or chunks learned at once; the last also counts larger values
LAGS = 64  # bins of the histogram of policy lag in updates; the last also counts larger values
EPISODES = 2048  # finished games that a worker may report between two reads by the main process
EPISODE = ("return", "length", "lane", "agent", "wall")


class Timed:
    """Adds the seconds spent within the context to element `at` of an array, even after an exception."""

    def __init__(self, values: np.ndarray, at: int):
        self.values, self.at = values, at

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.values[self.at] += time.perf_counter() - self.began


class WorkerCounters:
    """One worker's counters. They only grow, and only their worker writes them; readers take differences."""

    def __init__(self, counters: Counters, i: int):
        self.values, self.lags, self.sizes = counters.values[i], counters.lags[i], counters.sizes[i]
        self.games, self.metrics, self.tasks = counters.games[i], counters.metrics[i], counters.tasks[i]
        self._at, self._names = counters.columns, counters.names

    def timed(self, column: str) -> Timed:
        """Add the seconds spent within the context to a column."""
        return Timed(self.values, self._at[column])

    def add(self, column: str, amount: float) -> None:
        self.values[self._at[column]] += amount

    def set(self, column: str, value: float) -> None:
        self.values[self._at[column]] = value

    def get(self, column: str) -> float:
        return float(self.values[self._at[column]])

    def lag(self, lags: np.ndarray) -> None:
        """Count policy lags, in optimizer updates, of the rows learned from."""
        if lags.size == 0:
            return
        self.lags += np.bincount(np.maximum(np.minimum(lags, LAGS - 1), 0), minlength=LAGS)
        at, values = self._at, self.values
        values[at["lag_sum"]] += lags.sum()
        values[at["lag_count"]] += lags.size
        values[at["lag_max"]] = max(values[at["lag_max"]], lags.max())

    def served(self, n: int, calls: int = 1) -> None:
        """Count `calls` calls of a service, each for `n` items."""
        self.sizes[min(n, SIZES - 1)] += calls
        self.values[self._at["served"]] += n * calls
        self.values[self._at["calls"]] += calls

    def depth(self, n: int) -> None:
        """Count a look at the worker's queue, in which `n` items wait."""
        self.values[self._at["depth_sum"]] += n
        self.values[self._at["depth_count"]] += 1

    def episode(self, ret: float, length: float, lane: int, agent: int = 0) -> None:
        at = self._at["episodes"]
        self.games[int(self.values[at]) % EPISODES] = (ret, length, lane, agent, time.time())
        self.values[at] += 1

    def task_steps(self, tasks: np.ndarray) -> None:
        """Count one agent step for each of these task numbers."""
        self.tasks += np.bincount(tasks, minlength=len(self.tasks))

    def losses(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            if name in self._names:
                self.metrics[self._names[name]] += value, 1

    def tally(self, name: str, total: float, n: float) -> None:
        """Add the sum of `n` values to a metric, which is reported as a mean."""
        if name in self._names:
            self.metrics[self._names[name]] += total, n


class Counters(SharedObject):
    """Counters of every worker in shared memory: one row each."""

    values = shared_array(np.float64, lambda c: (c.workers, -(-len(COLUMNS) // 8) * 8))
    lags = shared_array(np.int64, lambda c: (c.workers, LAGS))
    sizes = shared_array(np.int64, lambda c: (c.workers, SIZES))
    games = shared_array(np.float64, lambda c: (c.workers, EPISODES, len(EPISODE)))
    metrics = shared_array(np.float64, lambda c: (c.workers, len(c.names), 2))
    tasks = shared_array(np.int64, lambda c: (c.workers, c.number))  # agent steps by task

    def __init__(self, workers: int, metrics: tuple[str, ...] = (), tasks: int = 0):
        self.workers, self.number = workers, tasks
        self.columns = {name: i for i, name in enumerate(COLUMNS)}
        self.names = {name: i for i, name in enumerate(metrics)}
        super().__init__()

    def crossing(self) -> Crossing:
        return Crossing([*(CounterFlow(self, row) for row in range(self.workers)), ProgressFlow(self)])

    def row(self, i: int) -> WorkerCounters:
        return WorkerCounters(self, i)

    def column(self, name: str) -> np.ndarray:
        """Return one column's values [workers]."""
        return self.values[:, self.columns[name]]


class CounterFlow(Cells):
    """A worker's row of the counters, with its new games. A learner's part of a checkpoint is sent before `saved`."""

    every = COUNTING

    def __init__(self, counters: Counters, row: int):
        parts = counters.values, counters.lags, counters.sizes, counters.metrics, counters.tasks
        cells = [part[row] for part in parts]
        self._stamps, self._saved, episodes = (counters.columns[name] for name in ("stamps", "saved", "episodes"))
        games, counted = counters.games[row], lambda cells: cells[0][episodes]
        super().__init__(End("row", row), [MAIN], cells, log=[games], counted=counted)

    def pieces(self, old: bytes | None, new: bytes, gives: bool) -> Iterator[Piece]:
        if old is not None and self.split(old)[0][self._saved] != self.split(new)[0][self._saved]:
            yield from self.traffic.parts(-1, self.writer)
        yield from super().pieces(old, new, gives)

    def write(self, cells: list[np.ndarray]) -> None:
        mine, theirs = self.cells[0], cells[0].copy()
        # the other machine has another clock
        theirs[0] = mine[0] if theirs[self._stamps] == mine[self._stamps] else time.monotonic()
        if self.traffic.failed(-1, self.writer):
            theirs[self._saved] = -abs(theirs[self._saved])
        super().write([theirs, *cells[1:]])


class ProgressFlow(Cells):
    """Counters of all workers, for a judge on another machine, which keeps its workers' rows."""

    every = COUNTING

    def __init__(self, counters: Counters):
        super().__init__(MAIN, [End("judge", ANY)], [counters.values])

    def write(self, cells: list[np.ndarray]) -> None:
        own = [end.i for _, end in self.traffic.seats if end.name == "row"]
        others = np.setdiff1d(np.arange(len(cells[0])), own)
        self.cells[0][others] = cells[0][others]


@dataclass(frozen=True)
class SchedulePoint:
    """A value and its start: at a fraction of the run (if `part`), or after N agent steps learned from."""

    value: float
    at: float
    part: bool

    def steps(self, total: float) -> float:
        """Return the agent steps after which the value holds, in a run of `total` agent steps."""
        return self.at * total if self.part else self.at


@dataclass(frozen=True)
class HyperparameterSchedule:
    """Values of the hyperparameter `name`, in order; each holds until the next."""

    name: str
    points: tuple[SchedulePoint, ...]

    def reached(self, learnt: float, total: float) -> SchedulePoint | None:
        """Return the point that holds after `learnt` agent steps of `total`; None before the first."""
        return next((point for point in reversed(self.points) if point.steps(total) <= learnt), None)


class Hyperparameters(SharedObject):
    """Hyperparameters that may change during a run: named float64 in shared memory, read as attributes."""

    _names: dict[str, int]
    _values = shared_array(np.float64, lambda h: (len(h._names),))

    def __init__(self, anneal: str = "constant", **values: float):
        self.anneal = anneal  # "constant", or the learning rate falls linearly to 0 over the run
        self.falls = anneal != "constant"
        self.configured = values  # values at the start
        self.schedules: tuple[HyperparameterSchedule, ...] = ()  # schedules that learners apply
        self._names = {name: i for i, name in enumerate(values)}
        super().__init__()
        self._values[:] = list(values.values())

    def __getattr__(self, name: str) -> float:
        names = self.__dict__.get("_names", {})
        if name not in names:
            raise AttributeError(f"no hyperparameter {name!r}; there are: {', '.join(names) or 'none'}")
        return float(self._values[names[name]])

    def set(self, name: str, value: float) -> None:
        getattr(self, name)
        self._values[self._names[name]] = value

    def keep_to_schedules(self, learnt: float, total: float) -> dict[str, SchedulePoint]:
        """Set scheduled hyperparameters to their values after `learnt` agent steps of `total`; before
        the first point, to the configured values. Return the points that hold now, by name.
        """
        held = {s.name: s.reached(learnt, total) for s in self.schedules}
        for name, point in held.items():
            self.set(name, self.configured[name] if point is None else point.value)
        return {name: point for name, point in held.items() if point is not None}

    def restore(self, values: Mapping[str, float], configured: Mapping[str, float] | None) -> None:
        """Restore a checkpoint's values, except those whose configured value has changed since. configured: that run's
        configured values; None: unknown.
        """
        for name in values.keys() & self._names.keys():
            if configured is None or configured.get(name) == self.configured[name]:
                self.set(name, values[name])

    def all(self) -> dict[str, float]:
        return {name: float(self._values[i]) for name, i in self._names.items()}

    def crossing(self) -> Crossing:
        flows: list[Flow] = [HyperparameterFlow(self)]
        if "remaining" in self.configured:
            at = self._names["remaining"]
            flows.append(Cells(End("learner", 0), [MAIN], [self._values[at : at + 1]]))
        return Crossing(flows)


class HyperparameterFlow(Cells):
    """Hyperparameters set by the main process; a learner itself sets scheduled ones and `remaining`."""

    every = COUNTING  # `remaining` changes with each update

    def __init__(self, hyper: Hyperparameters):
        super().__init__(MAIN, [EVERYONE], [hyper._values])
        scheduled = {"remaining", *(schedule.name for schedule in hyper.schedules)}
        self._given = np.array([name not in scheduled for name in hyper.configured], bool)

    def write(self, cells: list[np.ndarray]) -> None:
        learns = any(end.name == "learner" for _, end in self.traffic.seats)
        given = self._given if learns else np.ones_like(self._given)
        self.cells[0][given] = cells[0][given]


class RunControl(SharedObject):
    """Orders of the main process to all workers: run, save, finish, leave, or stop at once."""

    _flags = shared_array(np.int64, lambda _: (8,))
    dismissed = shared_array(np.int64, lambda _: (2 * SEATS,))  # by row of the counters: whether that worker must leave
    HALT, FINISH, SAVE, RESCUE, PAUSE, TAKEN = 0, 1, 2, 3, 4, 5
    REPEATS = 1024  # limit of distinguishable saves of one update

    def __init__(self, trace: bool = False, reuse: bool = True, compile: str = "off") -> None:  # noqa: A002
        self.trace = trace  # write every update's loss
        self.compile = compile  # updates and acting: "auto", "on" or "off"
        self.reuse = reuse  # learn from values computed while acting if the weights are the same
        self.anew = False  # whether a resumed run discards saved lanes and rollouts in flight
        self.over: Callable[[], bool] | None = None  # if all workers take turns: also tells whether the run ends
        self.show: Any = None  # weights.Params, for an evaluator beside training
        self.made = 0  # saves made, if checkpoints are made between two rounds of turns
        self.run = Hyperparameters(remaining=1.0)  # remaining fraction of the run, set by the first learner
        super().__init__()

    def crossing(self) -> Crossing:
        return Crossing([Cells(MAIN, [EVERYONE], [self._flags, self.dismissed])])

    halted = property(lambda self: bool(self._flags[self.HALT]))
    saves = property(lambda self: int(self._flags[self.SAVE]))

    @property
    def finishing(self) -> bool:
        return bool(self._flags[self.FINISH]) or (self.over is not None and self.over())

    # agent steps after which learners save and end, before the run's end; inf: not set
    until = property(lambda self: float(self._flags[self.PAUSE]) or math.inf)

    def pause_at(self, steps: int) -> None:
        """Have learners save and end after `steps` agent steps learned from since the start of the run."""
        self._flags[self.PAUSE] = steps

    def halt(self) -> None:
        """Stop all workers at once: every wait raises Closed."""
        self._flags[self.HALT] = 1

    def finish(self) -> None:
        """Have learners save at their next update, and then end."""
        self._flags[self.FINISH] = 1

    def save(self) -> None:
        """Have learners save at their next update."""
        self._flags[self.SAVE] += 1

    def take(self, mark: float) -> None:
        """Let workers delete their parts of the save with this mark (a learner's counter `saved`)."""
        self._flags[self.TAKEN] = round(mark * self.REPEATS)

    # mark of the save whose parts were collected last
    taken = property(lambda self: float(self._flags[self.TAKEN]) / self.REPEATS)

    def rescue(self, index: int) -> None:
        """Stop all workers after a failure; learner `index` first saves its intact state."""
        self._flags[self.RESCUE] = index + 1
        self.halt()

    @property
    def rescuer(self) -> int | None:
        """Number of the learner that must save its intact state; None: no learner."""
        index = int(self._flags[self.RESCUE])
        return index - 1 if index else None

    def check(self) -> None:
        if self._flags[self.HALT]:
            raise Closed


@dataclass(frozen=True)
class Adjustable:
    """A number that may change during the run, from `low` to `high`, in steps of one.

    `set` requests a number and returns at once; `get` returns the current one. Crew.dial makes one, for a role.
    """

    name: str
    low: int
    high: int
    get: Callable[[], int]
    set: Callable[[int], None]


ENDING = 1.0  # seconds that a rollout may take after the run's end; longer ones are dropped


def seed_of(seed: int, incarnation: int) -> int:
    """Return the seed of environments and noise; a replacement must not repeat its predecessor's episodes."""
    return seed + 1_000_003 * incarnation


def next_incarnation(incarnation: int | None, resumes: int) -> int:
    """Return the incarnation of the worker that replaces the one with `incarnation` (None: of the first worker). It
    starts at 1000 × `resumes`; after 999 replacements, numbers repeat.
    """
    replaced = 0 if incarnation is None else incarnation % 1000 % 999 + 1
    return replaced + 1000 * resumes


class RoleSize(SharedObject):
    """Wanted and actual number of a role's workers. Any worker may request a number; the main process applies it."""

    _cells = shared_array(np.int64, lambda _: (8,))

    def __init__(self, n: int = 0):
        super().__init__()
        self._cells[:2] = n

    wanted = property(lambda self: int(self._cells[0]))

    def ask(self, n: int) -> None:
        self._cells[0] = n

    def get(self) -> int:
        """Return the current number of workers, including those that are about to leave."""
        return int(self._cells[1])

    def count(self, n: int) -> None:
        self._cells[1] = n


@dataclass
class TurnHooks:
    """Callbacks that a worker gives the crew. rescue(): saves a learner's intact state after a failure.

    If all workers take turns in one thread, checkpoints are made between two rounds: write_part(number) writes the
    worker's part of a checkpoint; a learner's number() returns the number that a checkpoint would have now.

    compiled(update): called when updates are compiled, the first of which is `update`. repeats(update): tells whether
    `update` was compiled in the run that is being reproduced.
    """

    rescue: Callable[[], None] | None = None
    write_part: Callable[[int], None] | None = None
    number: Callable[[], int] | None = None
    compiled: Callable[[int], None] | None = None
    repeats: Callable[[int], bool] | None = None
    meeting: int = 0  # number of the meeting in which it waits for others; 0: it does not wait


@dataclass
class WorkerContext:
    """A worker's place in its run. Attributes in `OWN` belong to its process and are not pickled."""

    OWN: ClassVar = ("counters", "hooks", "ending_since", "log")

    role: str
    index: int  # of this worker in its role
    n: int  # number of workers of this role
    row: int  # its row of the counters
    seed: int  # the run's seed
    all_counters: Counters
    control: RunControl
    directory: Path | None = None  # the run's directory, for checkpoints and reports
    resume: Path | None = None  # the checkpoint from which this run resumes
    incarnation: int = 0  # replacements of this worker, plus 1000 × resumptions in which it restarted
    precision: str = "float32"  # precision of networks, see nets.device
    device: str = "cpu"  # device for computing, see nets.device
    patience: float = 0.1  # seconds that a wait lasts before it returns "nothing yet"; 0 if all run in one thread
    # message to the main process: ("warning" | "caution" | "remark" | "note" | "unsaved" | "decision", text)
    log: Callable[[str, str], None] = lambda kind, text: None

    @cached_property
    def counters(self) -> WorkerCounters:
        return self.all_counters.row(self.row)

    @cached_property
    def hooks(self) -> TurnHooks:
        return TurnHooks()

    @cached_property
    def ending_since(self) -> float:
        """Time when this worker first saw that the run ends."""
        return time.monotonic()

    @property
    def noise_seed(self) -> int:
        """Key of action noise, together with the lanes' numbers."""
        return seed_of(self.seed, self.incarnation)

    env_seed = noise_seed

    @property
    def serial(self) -> bool:
        """Whether all workers take turns in one thread, so that waiting is useless."""
        return self.patience == 0.0

    @property
    def leaving(self) -> bool:
        """Whether this worker must leave, because its role gets fewer workers."""
        return bool(self.control.dismissed[self.row])

    def late(self, left: float = 0.0) -> bool:
        """Tell whether the run ends without waiting for this worker, because it needs more than ENDING seconds: `left`
        more, or since `ending_since`.
        """
        if not self.control.finishing:
            return False
        return max(left, time.monotonic() - self.ending_since) > ENDING

    def turn(self) -> None:
        """Count a turn of the worker's loop and store its time. Raises Closed: the run is halted."""
        values = self.counters.values
        values[0], values[1] = time.monotonic(), values[1] + 1  # stamp, stamps
        if self.control.halted:
            raise Closed

    def __getstate__(self) -> dict:
        return {name: value for name, value in vars(self).items() if name not in self.OWN}

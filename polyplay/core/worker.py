"""Context of a worker: shared objects, counters, hyperparameters, and the orders of the main process."""

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

# Objects that workers share. Code that starts workers, draws the diagram or prints the plan uses only this interface.


class Arrow(NamedTuple):
    """Arrow in the diagram of a run. It shows that data flows through an object that workers share, called an edge.

    `givers`: names under which workers hold the edge to put data into it, such as `out` or `publish`.
    `takers`: names under which workers hold the edge to get data from it, such as `source` or `params`.
    """

    label: str
    givers: tuple[str, ...]
    takers: tuple[str, ...]


class Edge:
    """Object that workers share, such as a queue. In the diagram of a run, it is an edge between workers."""

    memory: ClassVar[str] = "rollouts"  # part of the memory estimate that includes this object
    patience: float = 0.1  # seconds before a wait returns "nothing yet"; 0 if all workers run in one thread
    replay: Any = None  # the Replay whose batches this edge delivers; None for other edges

    @property
    def nbytes(self) -> int:
        """Number of bytes of shared memory."""
        return 0

    def label(self) -> str:
        """Return the edge's name in a diagram."""
        return type(self).__name__

    def arrows(self) -> list[Arrow]:
        """Return the edge's arrows in a diagram."""
        return []

    def close(self) -> None:
        """Make all waits for this object raise Closed, now and later."""


class Holder:
    """Base class of descriptions that contain other descriptions, as a LearnerSpec contains a policy."""

    def holds(self) -> Mapping[str, Any]:
        """Return the contained objects by name. An edge has one of the names in its arrows, such as `out`."""
        return {}


# Counters in shared memory: one row per worker, written only by that worker.


EVENTS = ("stamp", "stamps", "steps", "rollouts", "updates", "learnt", "episodes", "restarts", "saved")
SECONDS = ("env", "infer", "learn", "replay", "wait")
LOAD = ("lag_sum", "lag_count", "lag_max", "depth_sum", "depth_count", "served", "calls", "simulations")
COLUMNS = [*EVENTS, *SECONDS, *LOAD]
SIZES = 257  # bins of the histogram of rows or chunks processed per call; the last bin also counts larger values
LAGS = 64  # bins of the histogram of policy lag in updates; the last bin also counts larger values
EPISODES = 2048  # finished games that a worker may report between two reads by the main process
EPISODE = ("return", "length", "lane", "agent", "wall")


class Timed:
    """Context manager that adds the seconds spent inside to element `at` of an array, even after an exception."""

    def __init__(self, values: np.ndarray, at: int):
        self.values, self.at = values, at

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.values[self.at] += time.perf_counter() - self.began


class WorkerCounters:
    """Counters of one worker, which no other worker writes."""

    def __init__(self, counters: Counters, i: int):
        self.values, self.lags, self.sizes = counters.values[i], counters.lags[i], counters.sizes[i]
        self.games, self.metrics, self.tasks = counters.games[i], counters.metrics[i], counters.tasks[i]
        self._at, self._names = counters.columns, counters.names

    def timed(self, column: str) -> Timed:
        """Context manager that measures the seconds spent inside, and adds them to the counter `column`."""
        return Timed(self.values, self._at[column])

    def add(self, column: str, amount: float) -> None:
        self.values[self._at[column]] += amount

    def set(self, column: str, value: float) -> None:
        self.values[self._at[column]] = value

    def get(self, column: str) -> float:
        return float(self.values[self._at[column]])

    def lag(self, lags: np.ndarray) -> None:
        """Count the policy lags of steps that were trained on. `lags`: int [n], in optimizer updates."""
        if lags.size == 0:
            return
        self.lags += np.bincount(np.maximum(np.minimum(lags, LAGS - 1), 0), minlength=LAGS)
        at, values = self._at, self.values
        values[at["lag_sum"]] += lags.sum()
        values[at["lag_count"]] += lags.size
        values[at["lag_max"]] = max(values[at["lag_max"]], lags.max())

    def served(self, n: int, calls: int = 1) -> None:
        """Count `calls` calls that processed `n` items each, such as calls of a network with `n` observations."""
        self.sizes[min(n, SIZES - 1)] += calls
        self.values[self._at["served"]] += n * calls
        self.values[self._at["calls"]] += calls

    def depth(self, n: int) -> None:
        """Record that `n` items wait in the worker's queue. Reports have the mean of these numbers."""
        self.values[self._at["depth_sum"]] += n
        self.values[self._at["depth_count"]] += 1

    def episode(self, ret: float, length: float, lane: int, agent: int = 0) -> None:
        at = self._at["episodes"]
        self.games[int(self.values[at]) % EPISODES] = (ret, length, lane, agent, time.time())
        self.values[at] += 1

    def task_steps(self, tasks: np.ndarray) -> None:
        """Count one agent step for each task number in `tasks`."""
        self.tasks += np.bincount(tasks, minlength=len(self.tasks))

    def losses(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            if name in self._names:
                self.metrics[self._names[name]] += value, 1

    def tally(self, name: str, total: float, n: float) -> None:
        """Add `n` values with the sum `total` to a metric. Reports have the mean of the values."""
        if name in self._names:
            self.metrics[self._names[name]] += total, n


class Counters(SharedObject):
    """Counters of all workers in shared memory. Each worker has one row."""

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
        """Return the values of one counter for all workers, float64 [workers]."""
        return self.values[:, self.columns[name]]


class CounterFlow(Cells):
    """Flow that sends a worker's counters and new games to the main machine. When the counter `saved` changes, a
    learner's part of the checkpoint is sent first.
    """

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
        # the other machine's clock differs, so take the time here
        theirs[0] = mine[0] if theirs[self._stamps] == mine[self._stamps] else time.monotonic()
        if self.traffic.failed(-1, self.writer):
            theirs[self._saved] = -abs(theirs[self._saved])
        super().write([theirs, *cells[1:]])


class ProgressFlow(Cells):
    """Flow that sends the counters of all workers to the machine of a worker that plays test matches. It does not
    change the counters of the workers on that machine.
    """

    every = COUNTING

    def __init__(self, counters: Counters):
        super().__init__(MAIN, [End("judge", ANY)], [counters.values])

    def write(self, cells: list[np.ndarray]) -> None:
        own = [end.i for _, end in self.traffic.seats if end.name == "row"]
        others = np.setdiff1d(np.arange(len(cells[0])), own)
        self.cells[0][others] = cells[0][others]


@dataclass(frozen=True)
class SchedulePoint:
    """Value of a hyperparameter, and the time at which it starts. If `part` is true, `at` is a fraction of the run.
    Otherwise, `at` is a number of agent steps of training.
    """

    value: float
    at: float
    part: bool

    def steps(self, total: float) -> float:
        """Return the number of agent steps at which this value starts. `total`: agent steps of the whole run."""
        return self.at * total if self.part else self.at


@dataclass(frozen=True)
class HyperparameterSchedule:
    """Schedule of the hyperparameter `name`: a list of values, each with its start."""

    name: str
    points: tuple[SchedulePoint, ...]

    def reached(self, learnt: float, total: float) -> SchedulePoint | None:
        """Return the point in use after `learnt` of `total` agent steps, or None before the first point."""
        return next((point for point in reversed(self.points) if point.steps(total) <= learnt), None)


class Hyperparameters(SharedObject):
    """Hyperparameters that may change during a run. They are float64 numbers in shared memory, read as attributes."""

    _names: dict[str, int]
    _values = shared_array(np.float64, lambda h: (len(h._names),))

    def __init__(self, anneal: str = "constant", **values: float):
        self.anneal = anneal  # "constant"; else the learning rate falls linearly to 0 over the run
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
        """Set each scheduled hyperparameter to its value after `learnt` of `total` agent steps. Before the first point
        of its schedule, this is the configured value. Return {hyperparameter: its current point}.
        """
        held = {s.name: s.reached(learnt, total) for s in self.schedules}
        for name, point in held.items():
            self.set(name, self.configured[name] if point is None else point.value)
        return {name: point for name, point in held.items() if point is not None}

    def restore(self, values: Mapping[str, float], configured: Mapping[str, float] | None) -> None:
        """Restore a checkpoint's values. A hyperparameter whose configured value has changed since then keeps its new
        value.

        `configured`: configured values when the checkpoint was made. If None (unknown), all values are restored.
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
    """Flow that sends hyperparameters to other machines. On a machine with a learner, it does not change scheduled
    hyperparameters and `remaining`, because the learner sets them.
    """

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
    """Orders of the main process to all workers: continue, save, finish, leave, or stop at once."""

    _flags = shared_array(np.int64, lambda _: (8,))
    dismissed = shared_array(np.int64, lambda _: (2 * SEATS,))  # whether a worker must leave, by its counter row
    HALT, FINISH, SAVE, RESCUE, PAUSE, TAKEN = 0, 1, 2, 3, 4, 5
    REPEATS = 1024  # limit of saves of the same update that `taken` can distinguish

    def __init__(self, trace: bool = False, reuse: bool = True, compile: str = "off") -> None:  # noqa: A002
        self.trace = trace  # write every update's loss
        self.compile = compile  # compile updates and acting: "auto", "on" or "off"
        self.reuse = reuse  # train with activations from acting if the weights have not changed
        self.anew = False  # whether a resumed run discards saved lanes and rollouts in flight
        self.over: Callable[[], bool] | None = None  # in a run in one thread: tells whether the run ends
        self.show: Any = None  # weights.Params for an evaluator that runs during training
        self.made = 0  # number of saves made so far, in a run in one thread
        self.run = Hyperparameters(remaining=1.0)  # remaining fraction of the run, set by the first learner
        super().__init__()

    def crossing(self) -> Crossing:
        return Crossing([Cells(MAIN, [EVERYONE], [self._flags, self.dismissed])])

    halted = property(lambda self: bool(self._flags[self.HALT]))
    saves = property(lambda self: int(self._flags[self.SAVE]))

    @property
    def finishing(self) -> bool:
        return bool(self._flags[self.FINISH]) or (self.over is not None and self.over())

    # number of agent steps after which learners save and end early; inf: not set
    until = property(lambda self: float(self._flags[self.PAUSE]) or math.inf)

    def pause_at(self, steps: int) -> None:
        """Tell learners to save and end once they have learned from `steps` agent steps since the start of the run."""
        self._flags[self.PAUSE] = steps

    def halt(self) -> None:
        """Stop all workers at once, by making every wait raise Closed."""
        self._flags[self.HALT] = 1

    def finish(self) -> None:
        """Tell learners to save at their next update, and then to end."""
        self._flags[self.FINISH] = 1

    def save(self) -> None:
        """Tell learners to save at their next update."""
        self._flags[self.SAVE] += 1

    def take(self, mark: float) -> None:
        """Announce that all parts of a checkpoint were collected. `mark`: the learner's `saved` for this checkpoint."""
        self._flags[self.TAKEN] = round(mark * self.REPEATS)

    # mark of the save whose parts were collected last
    taken = property(lambda self: float(self._flags[self.TAKEN]) / self.REPEATS)

    def rescue(self, index: int) -> None:
        """Stop all workers after a failure, but first let learner `index` save its state."""
        self._flags[self.RESCUE] = index + 1
        self.halt()

    @property
    def rescuer(self) -> int | None:
        """Number of the learner that must save its state before it stops, or None."""
        index = int(self._flags[self.RESCUE])
        return index - 1 if index else None

    def check(self) -> None:
        if self._flags[self.HALT]:
            raise Closed


@dataclass(frozen=True)
class Adjustable:
    """Whole number that may change during the run, such as the number of workers in a role. `low` and `high` are its
    bounds. `get` returns the current number. `set` requests another number, and returns at once.
    """

    name: str
    low: int
    high: int
    get: Callable[[], int]
    set: Callable[[int], None]


ENDING = 1.0  # seconds that a rollout may still take when the run ends; longer rollouts are dropped


def seed_of(seed: int, incarnation: int) -> int:
    """Return the seed of a worker's environments and action noise. A replacement worker has another seed."""
    return seed + 1_000_003 * incarnation


def next_incarnation(incarnation: int | None, resumes: int) -> int:
    """Return the incarnation of a new worker: the number of replacements so far, plus 1000 × `resumes`. After 999
    replacements, their count starts again at 1.

    `incarnation`: incarnation of the worker that is replaced, or None for the first worker.
    """
    replaced = 0 if incarnation is None else incarnation % 1000 % 999 + 1
    return replaced + 1000 * resumes


class RoleSize(SharedObject):
    """Requested and current number of a role's workers. The main process starts or stops workers as requested."""

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
    """Callbacks that a worker offers to the code that runs it.

    `rescue`: saves a learner's intact state after a failure.
    `write_part`: writes the worker's part of a checkpoint, whose number is given. Used if all workers run in one
        thread.
    `number`: returns the number of the checkpoint that this learner makes now. Used if all workers run in one thread.
    `compiled`: called with the number of the first compiled update.
    `repeats`: in a reproduction of a run, tells whether the original run compiled the update with this number.
    """

    rescue: Callable[[], None] | None = None
    write_part: Callable[[int], None] | None = None
    number: Callable[[], int] | None = None
    compiled: Callable[[int], None] | None = None
    repeats: Callable[[int], bool] | None = None
    meeting: int = 0  # number of the all-reduce in which the worker waits for others; 0: it does not wait


@dataclass
class WorkerContext:
    """Identity of a worker in its run, with the run's counters and orders. Attributes in `OWN` are not pickled."""

    OWN: ClassVar = ("counters", "hooks", "ending_since", "log")

    role: str
    index: int  # number of this worker in its role, from 0
    n: int  # number of workers of this role
    row: int  # this worker's row of the counters
    seed: int  # the run's seed
    all_counters: Counters
    control: RunControl
    directory: Path | None = None  # the run's directory, for checkpoints and reports
    resume: Path | None = None  # the checkpoint from which this run resumes
    incarnation: int = 0  # number of replacements of this worker, plus 1000 × restarts on resume
    precision: str = "float32"  # precision of networks, see nets.device
    device: str = "cpu"  # device for computing, see nets.device
    patience: float = 0.1  # seconds before a wait returns "nothing yet"; 0 if all workers run in one thread
    # sends (kind, text) to the main process; kind: "warning", "caution", "remark", "note", "unsaved" or "decision"
    log: Callable[[str, str], None] = lambda kind, text: None

    @cached_property
    def counters(self) -> WorkerCounters:
        return self.all_counters.row(self.row)

    @cached_property
    def hooks(self) -> TurnHooks:
        return TurnHooks()

    @cached_property
    def ending_since(self) -> float:
        """Time when this worker noticed that the run ends, in seconds of the monotonic clock."""
        return time.monotonic()

    @property
    def noise_seed(self) -> int:
        """Seed of the worker's action noise."""
        return seed_of(self.seed, self.incarnation)

    env_seed = noise_seed

    @property
    def serial(self) -> bool:
        """Whether all workers take turns in one thread, so that a worker must not wait for another."""
        return self.patience == 0.0

    @property
    def leaving(self) -> bool:
        """Whether this worker must leave, because the number of workers of its role is reduced."""
        return bool(self.control.dismissed[self.row])

    def late(self, left: float = 0.0) -> bool:
        """Tell whether the run ends without waiting for this worker. This is so ENDING seconds after the end began, or
        if the worker still needs more than ENDING seconds. `left`: seconds that the worker still needs.
        """
        if not self.control.finishing:
            return False
        return max(left, time.monotonic() - self.ending_since) > ENDING

    def turn(self) -> None:
        """Count one pass of the worker's loop, and store its time. Raises Closed if the run was halted."""
        values = self.counters.values
        values[0], values[1] = time.monotonic(), values[1] + 1  # counters stamp, stamps
        if self.control.halted:
            raise Closed

    def __getstate__(self) -> dict:
        return {name: value for name, value in vars(self).items() if name not in self.OWN}

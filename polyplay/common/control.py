"""What the main process and schedulers set while a run goes on: hyperparameters, save, finish, numbers of workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyplay.common.errors import Closed
from polyplay.common.schedule import HyperparameterSchedule, SchedulePoint
from polyplay.common.shared_memory import SharedObject


class Hyperparameters(SharedObject):
    """Hyper-parameters that may change while a run goes on: named float64 in shared memory, read as attributes."""

    _names: dict[str, int]
    _values: np.ndarray

    def __init__(self, **values: float):
        self.configured = values  # whatever they become
        self.schedules: tuple[HyperparameterSchedule, ...] = ()  # of those that learners set themselves
        self._names = {name: i for i, name in enumerate(values)}
        super().__init__(_values=(len(values), np.float64))
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
        """Give what is scheduled its value after `learnt` agent steps of `total`: the configured one before its first
        point. The points that hold now, by name.
        """
        held = {s.name: s.reached(learnt, total) for s in self.schedules}
        for name, point in held.items():
            self.set(name, self.configured[name] if point is None else point.value)
        return {name: point for name, point in held.items() if point is not None}

    @property
    def scheduled(self) -> dict[str, float]:
        """The present values of what is scheduled."""
        return {s.name: getattr(self, s.name) for s in self.schedules}

    def restore(self, values: Mapping[str, float], configured: Mapping[str, float] | None) -> None:
        """Values of a checkpoint, of a run that was configured with `configured` (None: nobody wrote that down): what
        was scheduled goes on, unless another value is configured now.
        """
        for name in values.keys() & self._names.keys():
            if configured is None or configured.get(name) == self.configured[name]:
                self.set(name, values[name])

    def all(self) -> dict[str, float]:
        return {name: float(self._values[i]) for name, i in self._names.items()}


class RunControl(SharedObject):
    """What the main process wants of every worker: run on, save, finish, or drop everything."""

    _flags: np.ndarray
    HALT, FINISH, SAVE, RESCUE, PAUSE, TAKEN = 0, 1, 2, 3, 4, 5
    REPEATS = 1024  # saves of one update, at most, that are told apart

    def __init__(self) -> None:
        self.over: Callable[[], bool] | None = None  # asked too whether the run is to end, where all take turns
        self.show: Any = None  # weights.on_request, for an evaluator beside training
        self.made = 0  # of `saves`, where checkpoints are made between two rounds of turns
        super().__init__(_flags=(8, np.int64))

    halted = property(lambda self: bool(self._flags[self.HALT]))
    saves = property(lambda self: int(self._flags[self.SAVE]))

    @property
    def finishing(self) -> bool:
        return bool(self._flags[self.FINISH]) or (self.over is not None and self.over())

    @property
    def until(self) -> float:
        """Agent steps at which learners save and end, although the run has more; inf: it has not."""
        return float(self._flags[self.PAUSE]) or math.inf

    def pause_at(self, steps: int) -> None:
        """Learners save and end once so many agent steps were learnt from, counted from the start of the run."""
        self._flags[self.PAUSE] = steps

    def halt(self) -> None:
        """Everybody drops what they do: every wait raises Closed."""
        self._flags[self.HALT] = 1

    def finish(self) -> None:
        """Learners save at their next update and end."""
        self._flags[self.FINISH] = 1

    def save(self) -> None:
        """Learners save at their next update."""
        self._flags[self.SAVE] += 1

    def take(self, mark: float) -> None:
        """The parts of the save with this mark (a learner's counter `saved`) are no longer needed where they are."""
        self._flags[self.TAKEN] = round(mark * self.REPEATS)

    @property
    def taken(self) -> float:
        """The mark of the save whose parts were taken last."""
        return float(self._flags[self.TAKEN]) / self.REPEATS

    def rescue(self, index: int) -> None:
        """The run has failed: everybody stops, and this learner saves what is whole before it does."""
        self._flags[self.RESCUE] = index + 1
        self.halt()

    @property
    def rescuer(self) -> int | None:
        """The learner that is to save what is whole; None: none is."""
        index = int(self._flags[self.RESCUE])
        return index - 1 if index else None

    def check(self) -> None:
        if self._flags[self.HALT]:
            raise Closed


@dataclass(frozen=True)
class Adjustable:
    """A number that may change while the run goes on, from `low` to `high`; one more should make a difference.

    `set` asks for a number and returns at once; `get` answers how many there are now. Crew.dial makes one of a role.
    """

    name: str
    low: int
    high: int
    get: Callable[[], int]
    set: Callable[[int], None]

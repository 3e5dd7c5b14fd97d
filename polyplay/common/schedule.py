"""What values a hyperparameter has in the course of a run, piecewise constant. Pure; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulePoint:
    """A value, and from where on: a part of the run, or so many agent steps learnt from."""

    value: float
    at: float
    part: bool

    def steps(self, total: float) -> float:
        """From how many agent steps on it holds, in a run of `total`."""
        return self.at * total if self.part else self.at


@dataclass(frozen=True)
class HyperparameterSchedule:
    """Values of the hyperparameter `name`, in the order in which they hold, each until the next."""

    name: str
    points: tuple[SchedulePoint, ...]

    def reached(self, learnt: float, total: float) -> SchedulePoint | None:
        """The point whose value holds after `learnt` agent steps of `total`; None: the first is yet to come."""
        return next((point for point in reversed(self.points) if point.steps(total) <= learnt), None)

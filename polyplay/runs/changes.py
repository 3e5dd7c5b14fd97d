"""`--change NAME=VALUE@AT,…`: read from words, checked against a wired crew, told in its plan. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from polyplay.common.errors import UserError
from polyplay.common.schedule import HyperparameterSchedule, SchedulePoint
from polyplay.runs import flags

FORM = "NAME=VALUE@AT,VALUE@AT with AT a part of the run from 0 to 1.0, or agent steps, as in learning_rate=1e-3@0.5"
LEFT = "left"  # the part of the run that is left, which is no choice


def parse_changes(words: Iterable[str]) -> tuple[HyperparameterSchedule, ...]:
    """What --change says. Raises UserError."""
    found: dict[str, HyperparameterSchedule] = {}
    for word in words:
        name, equals, rest = str(word).partition("=")
        name = name.replace("-", "_")
        if not equals or not name.isidentifier():
            raise UserError(f"--change: {word} given, allowed: {FORM}")
        if name in found:
            raise UserError(f"--change: {name} given twice: give all its values in one, {FORM}")
        found[name] = HyperparameterSchedule(name, tuple(_point(str(word), part) for part in rest.split(",")))
    return tuple(found.values())


def _point(word: str, part: str) -> SchedulePoint:
    """One VALUE@AT of a word. Raises UserError."""
    value, _, place = part.partition("@")
    try:
        number, (at, share) = float(value), _place(flags.expand_suffix(place))
        if math.isfinite(number):
            return SchedulePoint(number, at, share)
    except ValueError:
        pass
    raise UserError(f"--change: '{part}' of {word} given, allowed: {FORM}")


def _place(text: str) -> tuple[float, bool]:
    """(AT, whether it is a part of the run). Raises ValueError."""
    try:
        at, whole = float(int(text)), True
    except ValueError:
        at, whole = float(text), False
    if not (0.0 <= at <= 1.0 or (whole and at > 1.0)):
        raise ValueError
    return at, not whole or at == 0.0


def check_changes(crew: Any, types: flags.OptionTypes) -> list[tuple[str, str]]:
    """The plan's line of what changes in a wired crew's run; none: nothing does. types: of its system's options.
    Raises UserError: no such hyperparameter, one that agents copy, a value out of range, or an order that is none.
    """
    if not crew.schedules:
        return []
    spec = next(r.spec for r in crew.roles if r.learner and r.spec)
    known = [name for name in spec.hyperparameters.configured if name != LEFT]
    copied = {name for r in crew.roles for name in getattr(r.league, "varied", ())}
    for schedule in crew.schedules:
        name = schedule.name
        if name not in known:
            near = flags.did_you_mean(name, known)
            raise UserError(f"--change: {name} given, allowed here: {', '.join(known)}{near}")
        if name in copied:
            raise UserError(f"--change: {name} given, but agents copy each other's: leave it out, or let none copy")
        for point in schedule.points:
            flags.check_value(f"--change {name}", point.value, types.get(name, float))
        steps = [point.steps(spec.total) for point in schedule.points]
        if steps != sorted(set(steps)):
            text = ", ".join(f"{at:,.0f}" for at in steps)
            raise UserError(f"--change: {name} from {text} agent steps on given, allowed: each later than the last")
    return [("changes", "; ".join(_told(schedule, spec.total) for schedule in crew.schedules))]


def _told(schedule: HyperparameterSchedule, total: float) -> str:
    values = ", ".join(f"{p.value:g} from {p.steps(total):,.0f}" for p in schedule.points)
    return f"{schedule.name} {values} agent steps on"


def scheduled_names(words: Iterable[str]) -> set[str]:
    """The hyperparameters that --change names. Raises UserError."""
    return {schedule.name for schedule in parse_changes(words)}

"""What a user's own code is called with while a run is going: reports, games, checkpoints, evaluations, its end."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyplay.common.errors import UserError
from polyplay.common.files import Row

METHODS = ("on_report", "on_episode", "on_checkpoint", "on_evaluation", "on_end")
EVENTS = {"metrics": "on_report", "episodes": "on_episode", "evaluations": "on_evaluation"}  # by file of lines


@dataclass(frozen=True)
class CurrentRun:
    """The run as a callback sees it. `stop` ends it as Ctrl-C does: a checkpoint, a summary, exit status 0."""

    directory: Path
    stop: Callable[[str], None]


def check_callbacks(callbacks: Sequence[object]) -> None:
    """Raises UserError: one of them is neither a function nor has one of the methods, or can't be called."""
    if not isinstance(callbacks, (list, tuple)):
        raise UserError(f"callbacks: {_name(callbacks)} given, allowed: a list of functions or objects")
    for callback in callbacks:
        if not callable(callback) and not any(hasattr(callback, method) for method in METHODS):
            text = f"callbacks: {_name(callback)} given, allowed: a function, or an object with one of"
            raise UserError(f"{text} {', '.join(METHODS)}")
        if isinstance(callback, type):
            raise UserError(
                f"callbacks: the class {_name(callback)} given, allowed: an object of it, {_name(callback)}()"
            )
        for method in METHODS:
            if (function := _function(callback, method)) is not None:
                _check_call(function, _name(callback))


def _check_call(function: Callable[..., Any], name: str) -> None:
    """Raises UserError: it does not take two arguments, or nobody would await it."""
    if inspect.iscoroutinefunction(function):
        raise UserError(f"callbacks: {name} is async, allowed: def, which is called and waited for")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as e:
        raise UserError(f"callbacks: {name} is called with (run, row), and does not take that: {e}") from None
    except ValueError:  # of compiled code: its first call tells
        pass


def _function(callback: Any, method: str) -> Callable[..., Any] | None:
    """What is called of a callback; a function stands for on_report."""
    function = getattr(callback, method, None)
    if function is None and method == "on_report" and not any(hasattr(callback, name) for name in METHODS):
        return callback
    return function


class Callbacks:
    """Collects what happens, and calls the user's code with it between two polls of the crew.

    callbacks: objects with any of METHODS, or functions, which stand for on_report. finish: called with the reason
    where one of them asks for the end, by returning False or by `run.stop`.
    """

    def __init__(self, callbacks: Sequence[Any], directory: Path, finish: Callable[[str], None]):
        self.callbacks, self.directory, self.finish = callbacks, directory, finish
        self.events: deque[tuple[str, Any]] = deque()

    def line(self, file: str, row: Row) -> None:
        """A line was written to FILE.jsonl."""
        if self.callbacks and file in EVENTS:
            self.events.append((EVENTS[file], row))

    def checkpoint(self, path: Path) -> None:
        """A checkpoint is complete."""
        if self.callbacks:
            self.events.append(("on_checkpoint", path))

    def call(self, ended: bool = False) -> None:
        """Call the user's code with all that has happened since. Raises what it raises. ended: there is nothing left
        for it to stop.
        """
        if ended:
            self.finish = lambda reason: None
        while self.events:
            method, what = self.events.popleft()
            self._call(method, what)

    def end(self, summary: Row) -> None:
        """The run is over; what it still wrote comes first."""
        self.call(ended=True)
        self._call("on_end", summary)

    def _call(self, method: str, what: Any) -> None:
        for callback in self.callbacks:
            if (function := _function(callback, method)) is None:
                continue
            name = _name(callback)
            run = CurrentRun(self.directory, lambda why, name=name: self._stop(name, why))  # type: ignore[misc]
            if _is_false(function(run, what)):
                self._stop(name)

    def _stop(self, name: str, why: str = "") -> None:
        self.finish(f"stopped by callback {name}{f': {why}' if why else ''}")


def _is_false(answer: Any) -> bool:
    """Also of NumPy and torch, whose comparisons give no `bool`."""
    scalar = getattr(answer, "ndim", None) == 0 and str(getattr(answer, "dtype", "")).endswith("bool")
    return (isinstance(answer, bool) or scalar) and not answer


def _name(callback: object) -> str:
    return str(getattr(callback, "__name__", type(callback).__name__))

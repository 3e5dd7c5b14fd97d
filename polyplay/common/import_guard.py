"""While a module of the user's is imported, nothing is started: it would import that module again, and so on.

A process that is forked for environments starts nothing at all; one for workers does once it has read what it was sent.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import FrameType

from polyplay.common.errors import UserError

OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
MAIN = "put it under if __name__ == '__main__'"
_closed = 0  # how many reasons there are to start nothing


def close() -> None:
    """From now on this process starts nothing, until `lift`."""
    global _closed
    _closed += 1


def lift() -> None:
    global _closed
    _closed -= 1


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Nothing is started meanwhile."""
    close()
    try:
        yield
    finally:
        lift()


def refused() -> bool:
    return _closed > 0


def refuse(what: str) -> None:
    """Raises UserError while nothing may start; what: what was to start."""
    if not refused():
        return
    frames = [f for f in _frames() if not f.f_code.co_filename.startswith((OURS, "<"))]
    module = [f for f in frames if f.f_code.co_name == "<module>"]
    place = next(iter(module or frames), None)
    where = f" ({os.path.basename(place.f_code.co_filename)}:{place.f_lineno})" if place else ""
    when = "while its module was being imported" if module else "in a process that only steps environments"
    raise UserError(f"{what} was started {when}{where}; {MAIN if module else 'leave it out there'}")


def _frames() -> Iterator[FrameType]:
    """Of whoever called `check`, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back

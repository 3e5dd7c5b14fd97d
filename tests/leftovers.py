"""Names in shared memory that nobody holds any more."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PLACE = Path("/dev/shm")


def names() -> set[str]:
    return set(os.listdir(PLACE))


def since(before: set[str]) -> set[str]:
    """New names that no living process has mapped: other tests that run meanwhile hold theirs."""
    new = names() - before
    return {name for name in new if not _held(name)}


def _held(name: str) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if f"{PLACE}/{name}" in maps.read_text():
                return True
    return not (PLACE / name).exists()

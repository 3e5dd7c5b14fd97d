"""Compiled loops that are compiled anew when a file changes that their machine code was made from. Imports no torch.

A loop contains the loops that it calls. Numba's cache on disk only notices a change of the file of the loop itself.
Where no folder for that cache can be written, each process compiles its loops, and that is said once.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from numba import njit
from numba.core.dispatcher import Dispatcher
from numba.core.event import Event, Listener, register
from numpy import generic

from polyplay.common import processes

UNCACHED = (
    "every process compiles its loops anew, for up to half a minute, because Numba's cache can't be written: set "
    "NUMBA_CACHE_DIR to a folder that can"
)


class CompileState:
    """Of this process. uncached: a loop has no cache; told: the person knows."""

    uncached = told = False


class _Compiling(Listener):
    """What is in the cache is not compiled."""

    def on_start(self, event: Event) -> None:
        for call in processes.on_compile:
            call()
        if CompileState.uncached and not CompileState.told and not processes.served:
            CompileState.told = True
            print(f"polyplay: {UNCACHED}", file=sys.stderr)

    def on_end(self, event: Event) -> None:
        pass


register("numba:compile", _Compiling())
inlined = njit(inline="always", error_model="numpy")  # a part of whatever loop calls it


def cached_njit(**options: Any) -> Callable[[Any], Any]:
    """`njit(cache=True, nogil=True, error_model="numpy", **options)`, cached by all files it depends on."""
    how = {"nogil": True, "error_model": "numpy", **options}

    def decorate(function: FunctionType) -> Any:
        try:
            loop = njit(cache=True, **how)(function)
        except RuntimeError:  # there is no folder that can be written
            CompileState.uncached = True
            return njit(**how)(function)
        _save_if_possible(loop)
        # Numba has no public way to say what a cached loop depends on; without this attribute it is as Numba's own
        index = getattr(getattr(loop, "_cache", None), "_cache_file", None)
        if index is not None and hasattr(index, "_source_stamp"):
            index._source_stamp = source_stamp(function)
        return loop

    return decorate


def _save_if_possible(loop: Any) -> None:
    """A loop that the disk has no room for is compiled again by the next process."""
    cache = getattr(loop, "_cache", None)
    if (save := getattr(cache, "save_overload", None)) is None:
        return

    def attempt(signature: Any, data: Any) -> None:
        try:
            save(signature, data)
        except OSError:
            CompileState.uncached = True

    cache.save_overload = attempt  # type: ignore[union-attr]


def source_stamp(function: FunctionType) -> str:
    """Hash of a function's file, of the files of the loops that it can reach, and of the numbers imported there."""
    files: set[Path] = set()
    numbers: list[str] = []
    _collect(function, files, numbers)
    digest = hashlib.sha256(repr(sorted(numbers)).encode())
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _collect(function: FunctionType, files: set[Path], numbers: list[str]) -> None:
    path = Path(function.__code__.co_filename)
    if path in files:
        return
    files.add(path)
    for name, value in function.__globals__.items():
        for loop in vars(value).values() if _is_ours(value) else (value,):
            if isinstance(loop, Dispatcher):
                _collect(loop.py_func, files, numbers)
        if isinstance(value, bool | int | float | generic):
            numbers.append(f"{name}={value!r}")


def _is_ours(value: object) -> bool:
    """A module of Polyplay, whose loops may be called as its attributes."""
    return isinstance(value, ModuleType) and value.__name__.startswith("polyplay.")

"""Decorators for loops that Numba compiles, and random numbers for these loops.

Numba caches compiled loops on disk. A loop's machine code contains the loops that it calls, but Numba does not notice
changes in their files. Here, a loop is compiled again if any of these files has changed. If the cache cannot be
written, each process compiles its loops, and the main process prints one warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import types
from numba.core.dispatcher import Dispatcher
from numba.core.event import Event, Listener, register
from numba.extending import intrinsic
from numpy import generic

from polyplay.core import platform, processes

UNCACHED = (
    "Numba's cache cannot be written, so every process compiles its loops, for up to half a minute: set "
    "NUMBA_CACHE_DIR to a writable folder"
)

WAIT = 60.0  # seconds to wait for another process that compiles the same loop


class CompileState:
    """State of Numba's cache: a warning if it cannot be written (`uncached`), and whether it was printed (`warned`)."""

    uncached, warned = "", False


class _Compiling(Listener):
    """Calls the functions in `on_compile` when Numba compiles. Warns once if the cache cannot be written."""

    def on_start(self, event: Event) -> None:
        for call in processes.on_compile:
            call()
        if CompileState.uncached and not CompileState.warned and not processes.served:
            CompileState.warned = True
            print(f"polyplay: {CompileState.uncached}", file=sys.stderr)

    def on_end(self, event: Event) -> None:
        pass


register("numba:compile", _Compiling())
inlined = njit(inline="always", error_model="numpy")  # decorator: makes a function part of the loops that call it


def cached_njit(**options: Any) -> Callable[[Any], Any]:
    """Return `numba.njit` with a cache. Unlike Numba's own, this cache also checks the files of the functions that a
    loop calls. `options`: more keyword arguments of `njit`.
    """
    how = {"nogil": True, "error_model": "numpy", **options}

    def decorate(function: FunctionType) -> Any:
        try:
            loop = njit(cache=True, **how)(function)
        except RuntimeError:  # Numba found no writable cache folder
            CompileState.uncached = UNCACHED
            return njit(**how)(function)
        _compile_once(loop)
        # Numba has no public way to set a cached loop's dependencies. Without this attribute, Numba's check remains
        index = getattr(getattr(loop, "_cache", None), "_cache_file", None)
        if index is not None and hasattr(index, "_source_stamp"):
            index._source_stamp = source_stamp(function)
        return loop

    return decorate


def _acquire(path: Path, held: contextlib.ExitStack) -> None:
    """Lock a file, so that only one process compiles a loop. `held.close()` unlocks it. Continue without the lock after
    WAIT seconds, or if the file cannot be written.
    """
    until = time.monotonic() + WAIT
    with contextlib.suppress(OSError):
        file = held.enter_context(path.open("wb"))
        while time.monotonic() < until:
            if platform.lock(file.fileno()):
                return
            time.sleep(0.02)


def _compile_once(loop: Any) -> None:
    """Let one process compile a loop while other processes wait for the result."""
    cache = getattr(loop, "_cache", None)
    if (save := getattr(cache, "save_overload", None)) is None:
        return
    load, held = cache.load_overload, contextlib.ExitStack()  # type: ignore[union-attr]
    lock = Path(cache._cache_file._index_path).with_suffix(".lock")  # type: ignore[union-attr]

    def load_or_lock(signature: Any, context: Any) -> Any:
        if (found := load(signature, context)) is None:
            _acquire(lock, held)
            if (found := load(signature, context)) is not None:
                held.close()
        return found

    def attempt(signature: Any, data: Any) -> None:
        with held:
            try:
                save(signature, data)
            except OSError:
                CompileState.uncached = UNCACHED

    cache.load_overload, cache.save_overload = load_or_lock, attempt  # type: ignore[union-attr]


def source_stamp(function: FunctionType) -> str:
    """Return a hash that changes if a compiled function must be compiled again. It covers the files of the function and
    of all loops that it calls, and the numbers in global variables of these files.
    """
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
        # loops of Polyplay's modules may be called as attributes: module.loop(…)
        ours = isinstance(value, ModuleType) and value.__name__.startswith("polyplay.")
        for loop in vars(value).values() if ours else (value,):
            if isinstance(loop, Dispatcher):
                _collect(loop.py_func, files, numbers)
        if isinstance(value, bool | int | float | generic):
            numbers.append(f"{name}={value!r}")


compiled = cached_njit()


def _fused(typing: Any, a: Any, b: Any, c: Any) -> Any:
    return a(a, a, a), lambda context, builder, signature, numbers: builder.fma(*numbers)


fused_multiply_add: Any = intrinsic(_fused)  # in compiled loops: a·b + c, rounded once, like torch's addcmul


def _type_call(typing: Any, address: Any, given: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = [builder.extract_value(args[1], i) for i in range(len(given))]
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(64)] * len(given))
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), words)

    return types.int32(types.int64, types.UniTuple(types.int64, len(given))), generate


call_address: Any = intrinsic(_type_call)  # in compiled loops: call the C function int f(int64, …) at an address


# Random numbers for compiled loops: number n is a hash of (key, n), so a generator's state is two integers.


_A, _B, _C = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_27, _30, _31 = (np.uint64(x) for x in (27, 30, 31))


@inlined
def bits(key: np.uint64, n: np.uint64) -> np.uint64:
    """Return 64-bit random number `n` of the sequence that `key` selects, by SplitMix64 (Steele et al. 2014)."""
    x = key + n * _A
    x = (x ^ (x >> _30)) * _B
    x = (x ^ (x >> _27)) * _C
    return x ^ (x >> _31)

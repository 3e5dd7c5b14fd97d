"""Random numbers from a counter, for compiled loops: number n is a hash of (key, n), so its state is two integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numba.core.dispatcher import Dispatcher

from polyplay.common.compiled import cached_njit, inlined

compiled = cached_njit()


def is_compiled(loop: Dispatcher) -> bool:
    """Whether a compiled loop was compiled on this machine before, and its file is the same since."""
    code, cache = loop.py_func.__code__, loop.stats.cache_path
    path, name = Path(code.co_filename), f"{Path(code.co_filename).stem}.{code.co_name}-{code.co_firstlineno}.*.nbi"
    return cache is not None and any(f.stat().st_mtime >= path.stat().st_mtime for f in Path(cache).glob(name))


_A, _B, _C = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_11, _27, _30, _31, _32 = (np.uint64(x) for x in (11, 27, 30, 31, 32))
_LOW, _ONE = np.uint64(0xFFFFFFFF), np.uint64(1)


@inlined
def bits(key: np.uint64, n: np.uint64) -> np.uint64:
    """Number `n` (uint64) of `key` (uint64), 64 bits: SplitMix64 (Steele et al. 2014)."""
    x = key + n * _A
    x = (x ^ (x >> _30)) * _B
    x = (x ^ (x >> _27)) * _C
    return x ^ (x >> _31)


@inlined
def below(key: np.uint64, n: np.uint64, limit: np.uint64) -> tuple[np.uint64, np.uint64]:
    """(integer in [0, limit), next n), exactly uniform; 0 < limit < 2^32, both uint64 (Lemire 2019)."""
    least = ((_LOW - limit) + _ONE) % limit
    while True:
        product = (bits(key, n) >> _32) * limit
        n += _ONE
        if (product & _LOW) >= least:
            return product >> _32, n


@compiled
def uniforms(key: np.uint64, begin: np.uint64, n: int) -> np.ndarray:
    """float64 [n] in [0, 1), 53 bits each: numbers begin … begin + n - 1."""
    out = np.empty(n)
    for i in range(n):
        out[i] = np.float64(bits(key, begin + np.uint64(i)) >> _11) * 2.0**-53
    return out


class CounterRng:
    """A key and how many of its numbers were used."""

    def __init__(self, seed: int):
        self.key = np.random.SeedSequence(seed % 2**64).generate_state(1, np.uint64)[0]
        self.used = np.uint64(0)

    def take(self, n: int) -> np.uint64:
        """The first of `n` numbers that are the caller's."""
        begin = self.used
        self.used = np.uint64(int(begin) + n)
        return begin

    def save(self) -> dict[str, int]:
        return {"key": int(self.key), "used": int(self.used)}

    def load(self, saved: dict[str, int]) -> None:
        self.key, self.used = np.uint64(saved["key"]), np.uint64(saved["used"])

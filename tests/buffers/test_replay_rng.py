from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from polyplay.core.compiled import CounterRng, below, bits, compiled, is_compiled, uniforms


@compiled
def many(key, used, n, limit):
    out = np.empty(n, np.uint64)
    for i in range(n):
        out[i], used = below(key, used, limit)
    return out, used


def test_numbers_are_splitmix64s():
    """The published sequence for seed 1234567: number n is the hash of seed + n·golden."""
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    with np.errstate(over="ignore"):
        assert [int(bits(np.uint64(1234567), np.uint64(n))) for n in (1, 2, 3)] == wanted


def test_every_number_below_a_limit_is_as_likely():
    n, limit = 120_000, 6
    found, _ = many(np.uint64(5), np.uint64(0), n, np.uint64(limit))
    counts = np.bincount(found.astype(np.int64), minlength=limit)
    assert len(counts) == limit
    assert ((counts - n / limit) ** 2 / (n / limit)).sum() < 20


def test_fractions_and_a_saved_state():
    rng = CounterRng(4)
    x = uniforms(rng.key, rng.take(1000), 1000)
    assert ((x >= 0) & (x < 1)).all()
    assert abs(x.mean() - 0.5) < 0.05
    other = CounterRng(0)
    other.load(rng.save())
    assert np.array_equal(uniforms(other.key, other.take(5), 5), uniforms(rng.key, rng.take(5), 5))
    assert CounterRng(1).key != CounterRng(2).key


def test_what_was_compiled_before_is_known(tmp_path):
    many(np.uint64(1), np.uint64(0), 1, np.uint64(3))
    assert is_compiled(many)
    loop = SimpleNamespace(py_func=many.py_func, __name__="many", stats=SimpleNamespace(cache_path=str(tmp_path)))
    assert not is_compiled(loop)
    index = tmp_path / f"{Path(__file__).stem}.many-{many.py_func.__code__.co_firstlineno}.py311.nbi"
    index.touch()
    assert is_compiled(loop)
    os.utime(index, (0, 0))
    assert not is_compiled(loop), "the file changed since"

"""Frames once: memory per transition by arithmetic and by pages touched; planes compressed; trees of observations."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.replay.copy_kernels import gather, scatter
from polyplay.buffers.rollout_queue import row_spec
from polyplay.common.errors import UserError
from polyplay.common.tree import Field
from tests.buffers.replay.plain import Plain, World

POLICY = {"action": Field((), "int64"), "value": Field((), "float32"), "chosen": Field((), "float32")}
ATARI = row_spec(Field((4, 84, 84), "uint8"), POLICY)
LIMIT = 7200  # bytes of a transition at a million, everything included


def atari(capacity: int, batch: int = 32) -> Replay:
    return Replay(ATARI, 8, capacity, batch, stack=4, n_step=3, sampler=Proportional(first="given"))


def test_a_million_transitions_by_arithmetic():
    assert 7056e6 < atari(1_000_000).bytes() < LIMIT * 1_000_000
    small = atari(3_000)
    for own in (True, False):
        assert small.bytes(own) == pytest.approx(small.open(0, own).nbytes, rel=0.002)  # what was said is what is taken


FILL = """
import os, sys
import numpy as np
from tests.buffers.replay.test_frames import atari
def pages():
    return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGESIZE')
n, lanes, T = 8_000, 8, 20
warm = atari(100, 4).open(0)
rng = np.random.default_rng(0)
frames = rng.integers(0, 255, (T + 3, lanes, 84, 84), np.uint8)
obs = np.stack([frames[j : j + T] for j in range(4)], 2)
rows = {k: np.zeros((T, lanes), f.dtype) for k, f in warm.replay.spec.items() if k != 'obs'}
rows['first'][0] = True
warm.add(rows | {'obs': obs}, slice(None), priority=rows['reward'])
warm.sample()
memory = atari(n, 4).open(0)
before = pages()
flags = rows['first']
count = 0
stack = np.zeros((lanes, 4, 84, 84), np.uint8)
while count < memory.ledger.slots + 200:
    for t in range(T):
        stack[:, :-1] = stack[:, 1:]
        stack[:, -1] = frames[t]
        obs[t] = stack
    flags[:] = count == 0
    memory.add(rows | {'obs': obs}, slice(None), priority=rows['reward'])
    count += T * lanes
memory.sample()
print((pages() - before) / memory.ledger.size, memory.nbytes / memory.ledger.size, memory.ledger.size)
"""


def test_pages_touched_by_a_full_memory():
    """Less than a hundredth of it; lanes' last rows and batches, which do not grow with it, are counted apart."""
    small = os.environ | {"NUMPY_MADVISE_HUGEPAGE": "0"}  # pages of 2 MB would be many of so few
    done = subprocess.run([sys.executable, "-c", FILL], capture_output=True, text=True, env=small)
    assert done.returncode == 0, done.stderr
    touched, told, size = (float(x) for x in done.stdout.split())
    fixed = (8 * 28_224 + 2 * 4 * 2 * 28_224 + 2**19) / size  # and half a MB for what Python does meanwhile
    assert touched - fixed < LIMIT
    assert told - fixed < LIMIT


@pytest.mark.parametrize("compress", ["none", "zlib"])
def test_a_tree_of_observations_some_of_them_stacks(compress):
    rng = np.random.default_rng(0)
    world = World(rng, 2, 3, "any", (5, 3))
    spec = world.spec()
    spec["obs"] = {"screen": Field((3, 5, 3), "uint8"), "deep": {"x": Field((7,), "float64")}}
    replay = Replay(spec, 2, 50, 16, stack=3, n_step=2, compress=compress)
    memory, plain = replay.open(1), Plain(replay)
    by_action = {}
    for _ in range(9):
        rows = world.rows(9, np.arange(2))
        plain.add(rows, np.arange(2))
        extra = rng.normal(size=(9, 2, 7))
        by_action.update(zip(rows["action"].reshape(-1).tolist(), extra.reshape(-1, 7), strict=True))
        memory.add(rows | {"obs": {"screen": rows["obs"], "deep": {"x": extra}}}, slice(None))
    batch, items = memory.sample(), plain.items()
    for i, number in enumerate(batch["id"].tolist()):
        assert np.array_equal(batch["obs"]["screen"][:, i], items[number]["obs"])
        assert np.array_equal(batch["obs"]["deep"]["x"][0, i], by_action[int(batch["action"][i])])


def test_compressed_planes_take_less():
    world = World(np.random.default_rng(0), 1, 2, "zeros", (40, 40))
    sizes = {}
    for compress in ("none", "zlib"):
        memory = Replay(world.spec(), 1, 100, 4, stack=2, compress=compress).open(0)
        rows = world.rows(60, np.arange(1))
        rows["obs"] = np.zeros_like(rows["obs"])
        memory.add(rows, slice(None))
        assert not memory.sample()["obs"].any()
        sizes[compress] = sum(s.nbytes for s in memory.fields.shelves.values())
    assert sizes["zlib"] < sizes["none"] / 10


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lz4", None)
    with pytest.raises(UserError, match=r"pip install 'polyplay\[lz4\]'"):
        Replay(ATARI, 1, 100, 4, stack=4, compress="lz4").open(0)


def test_copies_refuse_rows_that_are_not_there():
    memory, out = np.zeros((5, 3, 2), np.int16), np.zeros((2, 3, 2), np.int16)
    scatter(memory, np.array([4, 1]), np.arange(12).reshape(2, 3, 2))
    gather(memory, np.array([1, 4]), out)
    assert np.array_equal(out.reshape(-1), [6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5])
    for wrong in ([0, 5], [-1, 0]):
        with pytest.raises(IndexError):
            gather(memory, np.array(wrong), out)
        with pytest.raises(IndexError):
            scatter(memory, np.array(wrong), out)

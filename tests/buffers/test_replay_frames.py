"""Frames once: buffer per transition by arithmetic and by pages touched; trees of observations."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.replay_kernels import as_cells, gather, scatter
from polyplay.buffers.rollout_queue import row_spec
from polyplay.core.tree import Field
from tests.buffers.plain_replay import Plain, World

POLICY = {"action": Field((), "int64"), "value": Field((), "float32"), "chosen": Field((), "float32")}
ATARI = row_spec(Field((4, 84, 84), "uint8"), POLICY)
LIMIT = 7200  # bytes of a transition at a million, everything included


def atari(capacity: int, batch: int = 32) -> Replay:
    return Replay(ATARI, 8, capacity, batch, stack=4, n_step=3, sampler=Proportional())


def test_a_million_transitions_by_arithmetic():
    assert 7056e6 < atari(1_000_000).bytes() < LIMIT * 1_000_000
    small = atari(3_000)
    for own in (True, False):
        assert small.bytes(own) == pytest.approx(small.open(0, own).nbytes, rel=0.002)  # as much is allocated


FILL = """
import os, sys
import numpy as np
from tests.buffers.test_replay_frames import atari
def pages():
    return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGESIZE')
n, lanes, T = 8_000, 8, 20
warm = atari(100, 4).open(0)
rng = np.random.default_rng(0)
frames = rng.integers(0, 255, (T + 3, lanes, 84, 84), np.uint8)
obs = np.stack([frames[j : j + T] for j in range(4)], 2)
rows = {k: np.zeros((T, lanes), f.dtype) for k, f in warm.replay.spec.items() if k != 'obs'}
rows['first'][0] = True
warm.add(rows | {'obs': obs}, slice(None))
warm.sample()
buffer = atari(n, 4).open(0)
before = pages()
flags = rows['first']
count = 0
stack = np.zeros((lanes, 4, 84, 84), np.uint8)
while count < buffer.index.slots + 200:
    for t in range(T):
        stack[:, :-1] = stack[:, 1:]
        stack[:, -1] = frames[t]
        obs[t] = stack
    flags[:] = count == 0
    buffer.add(rows | {'obs': obs}, slice(None))
    count += T * lanes
buffer.sample()
print((pages() - before) / buffer.index.size, buffer.nbytes / buffer.index.size, buffer.index.size)
"""


def test_pages_touched_by_a_full_memory():
    """Less than a hundredth of it; lanes' last rows and batches, which do not grow with it, are counted apart."""
    small = os.environ | {"NUMPY_MADVISE_HUGEPAGE": "0"}  # pages of 2 MB would be many of so few
    done = subprocess.run([sys.executable, "-c", FILL], capture_output=True, text=True, env=small)
    assert done.returncode == 0, done.stderr
    touched, reported, size = (float(x) for x in done.stdout.split())
    fixed = (8 * 28_224 + 2 * 4 * 2 * 28_224 + 2**19) / size  # and half a MB for what Python does meanwhile
    assert touched - fixed < LIMIT
    assert reported - fixed < LIMIT


def test_a_tree_of_observations_some_of_them_stacks():
    rng = np.random.default_rng(0)
    world = World(rng, 2, 3, "any", (5, 3))
    spec = world.spec()
    spec["obs"] = {"screen": Field((3, 5, 3), "uint8"), "deep": {"x": Field((7,), "float64")}}
    replay = Replay(spec, 2, 50, 16, stack=3, n_step=2)
    buffer, plain = replay.open(1), Plain(replay)
    by_action = {}
    for _ in range(9):
        rows = world.rows(9, np.arange(2))
        plain.add(rows, np.arange(2))
        extra = rng.normal(size=(9, 2, 7))
        by_action.update(zip(rows["action"].reshape(-1).tolist(), extra.reshape(-1, 7), strict=True))
        buffer.add(rows | {"obs": {"screen": rows["obs"], "deep": {"x": extra}}}, slice(None))
    batch, items = buffer.sample(), plain.items()
    for i, number in enumerate(batch["id"].tolist()):
        assert np.array_equal(batch["obs"]["screen"][:, i], items[number]["obs"])
        assert np.array_equal(batch["obs"]["deep"]["x"][0, i], by_action[int(batch["action"][i])])


def test_copies_refuse_rows_that_are_not_there():
    cells, out = as_cells(np.zeros((5, 3, 2), np.int16), 5), np.zeros((2, 3, 2), np.int16)
    scatter(cells, np.array([4, 1]), np.arange(12, dtype=np.int16).reshape(2, 3, 2))
    gather(cells, np.array([1, 4]), out)
    assert np.array_equal(out.reshape(-1), [6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5])
    for wrong in ([0, 5], [-1, 0]):
        with pytest.raises(IndexError):
            gather(cells, np.array(wrong), out)
        with pytest.raises(IndexError):
            scatter(cells, np.array(wrong), out)

"""Stacked pictures: packed for a link and unpacked again, exact to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core.tree import Field
from polyplay.workers.hosts import queue_mirrors
from polyplay.workers.hosts.mirrors import FrameError
from polyplay.workers.hosts.queue_mirrors import QueueMirror
from tests.workers.hosts.by_hand import Pair
from tests.workers.hosts.test_queue_mirror import _machine  # noqa: F401 - a fixture

K = 4


def stacks(T: int, B: int, size: int, resets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[T, B, K, size, size]: each row continues the one before, but where a game begins, with one picture K times."""
    rows = np.zeros((T, B, K, size, size), np.uint8)
    for t in range(T):
        for b in range(B):
            new = rng.integers(0, 256, (size, size), np.uint8)
            if t == 0:
                rows[t, b] = rng.integers(0, 256, (K, size, size), np.uint8)
            elif resets[t, b]:
                rows[t, b] = new
            else:
                rows[t, b, :-1], rows[t, b, -1] = rows[t - 1, b, 1:], new
    return rows


@settings(deadline=None)  # the first call compiles
@given(T=st.integers(1, 6), B=st.integers(1, 4), size=st.sampled_from([3, 4]), seed=st.integers(0, 1000))
def test_packed_and_unpacked_is_the_same(T, B, size, seed):
    rng = np.random.default_rng(seed)
    resets = rng.random((T, B)) < 0.3
    rows = stacks(T, B, size, resets, rng)
    numbers = queue_mirrors.words(rows)
    whole, packed = np.zeros((T, B), np.uint8), np.empty((T * B * K, numbers.shape[-1]), numbers.dtype)
    n = queue_mirrors.pack_planes(numbers, whole, packed)
    resets[0] = True
    assert (whole == resets).all()
    assert n == queue_mirrors.count(whole, K) == resets.sum() * K + (~resets).sum()
    back = np.full_like(rows, 77)
    queue_mirrors.unpack_planes(queue_mirrors.words(back), whole, packed[:n].copy())
    assert (back == rows).all()


@settings(deadline=None)
@given(seed=st.integers(0, 1000))
def test_pictures_that_are_no_stacks_go_whole(seed):
    rows = np.random.default_rng(seed).integers(0, 256, (3, 2, K, 4, 4), np.uint8)
    numbers = queue_mirrors.words(rows)
    whole, packed = np.zeros((3, 2), np.uint8), np.empty((3 * 2 * K, numbers.shape[-1]), numbers.dtype)
    assert queue_mirrors.pack_planes(numbers, whole, packed) == 3 * 2 * K
    assert whole.all()


def test_a_mask_that_continues_nothing_is_refused():
    for mask in ([[0, 1], [1, 1]], [[1, 1], [2, 1]]):
        with pytest.raises(ValueError, match="continue nothing"):
            queue_mirrors.count(np.array(mask, np.uint8), K)


def queue_of_pictures() -> RolloutQueue:
    rows = {"obs": Field((K, 8, 8), np.uint8), "version": Field((), np.int64), "first": Field((), np.bool_)}
    return RolloutQueue(rows, {"h": Field((2,), np.float32)}, 5, 3, 4, 1)


def test_a_rollout_of_stacks_comes_home_as_planes():
    queue, rng = queue_of_pictures(), np.random.default_rng(0)
    pair = Pair(QueueMirror(queue))
    pair.seat(0)
    there = pair.away.queue
    producer, batches = there.producer(0), queue.batches(1).consumer(0, wait=False)
    for n in range(10):
        slot = producer.slot()
        rows = stacks(6, 3, 8, rng.random((6, 3)) < 0.1, rng)
        there.rows["obs"][slot], there.rows["version"][slot], there.state["h"][slot] = rows, n, n
        producer.commit(slot)
        frames = [(item, [np.array(x) for x in arrays]) for item, arrays in pair.away.changes(0.0)]
        assert [item for item, _ in frames] == [
            pair.away.of_more + slot,
            pair.away.of_planes + slot,
            pair.away.of_pairs,
        ]
        assert sum(x.nbytes for _, arrays in frames for x in arrays) < 0.8 * rows.nbytes
        for item, arrays in frames:
            for place, array in zip(pair.home.places(item), arrays, strict=item != pair.home.of_pairs):
                place[...] = array if item != pair.home.of_pairs else np.concatenate(arrays)
            pair.home.arrived(item)
        batch, state = next(batches)
        assert (batch["obs"] == rows).all()
        assert (state["h"] == n).all()
        next(batches)
        pair.out()


def test_planes_come_only_after_their_rows():
    pair = Pair(QueueMirror(queue_of_pictures()))
    pair.seat(0)
    home = pair.home
    with pytest.raises(FrameError, match="without its rows"):
        home.places(home.of_planes + 1)
    with pytest.raises(FrameError, match="without its pictures"):
        home.places(1)
    whole = home.places(home.of_more + 1)[0]
    whole[:] = 0
    with pytest.raises(FrameError, match="continue nothing"):
        home.arrived(home.of_more + 1)

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.buffers.replay import Rank, Replay, row_kernels
from polyplay.buffers.replay.rank_heap import RankHeap
from polyplay.buffers.replay.rng import CounterRng
from tests.buffers.replay.plain import World


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 90), st.integers(0, 2**32 - 1))
def test_the_heap_holds_what_is_not_zero_the_greatest_in_front(n, seed):
    rng, ranks, plain = np.random.default_rng(seed), RankHeap(n, 0.7), np.zeros(n)
    for _ in range(12):
        slots = rng.integers(0, n, 17)
        priority = np.where(rng.random(17) < 0.3, 0.0, rng.integers(1, 9, 17).astype(float))
        ranks.put(slots, priority)
        for slot, p in zip(slots, priority, strict=True):
            plain[slot] = p
        held = ranks.heap[: ranks.size]
        assert sorted(held.tolist()) == np.flatnonzero(plain).tolist()
        assert all(ranks.where[s] == i for i, s in enumerate(held))
        assert all(plain[held[(i - 1) // 2]] >= plain[held[i]] for i in range(1, len(held)))
    ranks.sort()
    assert (np.diff(plain[ranks.heap[: ranks.size]]) <= 0).all()


def test_draws_follow_one_over_rank():
    ranks, draws, n, alpha = RankHeap(40, 0.7), CounterRng(1), 100_000, 0.7
    ranks.put(np.arange(30), np.random.default_rng(0).permutation(30) + 1.0)
    ranks.sort()
    want = np.arange(1, 31.0) ** -alpha
    want /= want.sum()
    for stratified in (False, True):
        slots, share = ranks.draw(draws.key, draws.take(n), n, stratified)
        rank = ranks.where[slots]
        assert np.allclose(share, want[rank])
        counts = np.bincount(rank, minlength=30)
        assert ((counts - n * want) ** 2 / (n * want)).sum() < 60


def test_a_memory_by_rank():
    world = World(np.random.default_rng(1), 2, 0, "zeros")
    memory = Replay(world.spec(), 2, 60, 16, sampler=Rank(beta=1.0)).open(0)
    for _ in range(8):
        memory.add(world.rows(10, np.arange(2)), slice(None))
    ids = memory.ledger.ids(np.flatnonzero(memory.ledger.flags & row_kernels.LIVE))
    memory.feedback(ids, np.where(np.arange(len(ids)) < 5, 0.0, 1.0 + np.arange(len(ids))))
    drawn = [memory.sample() for _ in range(200)]
    seen = np.concatenate([b["id"] for b in drawn])
    assert set(seen.tolist()) == set(ids[5:].tolist())
    assert all(b["weight"].max() == 1 for b in drawn)
    memory.feedback(ids, np.zeros(len(ids)))
    assert set(np.concatenate([memory.sample()["id"] for _ in range(200)]).tolist()) == set(ids.tolist())

"""Transitions: what is drawn is what was played, nothing crosses an episode, nothing is missing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.buffers import replay_kernels
from polyplay.buffers.replay import Proportional, Replay, Uniform
from polyplay.buffers.replay_buffer import ReplayBuffer
from polyplay.core.errors import BadPriority
from tests.buffers.plain_replay import Plain, World, live_slots

QUICK = settings(max_examples=25, deadline=None)


def alive(buffer: ReplayBuffer) -> set[int]:
    """Ids of all items that may be drawn."""
    return set(buffer.index.ids(live_slots(buffer.index)).tolist())


@QUICK
@given(
    seed=st.integers(0, 2**32 - 1),
    n_step=st.integers(1, 5),
    stack=st.sampled_from([0, 1, 2, 4]),
    fill=st.sampled_from(["zeros", "repeat", "play", "goes on", "any"]),
    reward=st.sampled_from(["none", "clip", "sign"]),
    scale=st.sampled_from([1.0, 0.1]),
    capacity=st.integers(3, 90),
)
def test_items_are_those_of_the_twin(seed, n_step, stack, fill, reward, scale, capacity):
    rng = np.random.default_rng(seed)
    world = World(rng, lanes=3, stack=stack, fill=fill)
    replay = Replay(
        world.spec(), 3, capacity, batch=16, n_step=n_step, gamma=0.9, reward=reward, scale=scale, stack=stack,
        sampler=Proportional() if seed % 2 else Uniform(),
    )  # fmt: skip
    buffer, plain = replay.open(seed), Plain(replay)
    for _ in range(6):
        lanes = rng.permutation(3)[: rng.integers(1, 4)]
        rows = world.rows(int(rng.integers(1, 12)), lanes)
        buffer.add(rows, lanes)
        plain.add(rows, lanes)
        items = plain.items()
        assert alive(buffer) == set(items)
        assert buffer.index.size == len(items) <= 3 * (-(-capacity // 3) + n_step - 1)
        if items:
            batch = buffer.sample()
            for i, number in enumerate(batch["id"].tolist()):
                for key, value in items[number].items():
                    got = batch[key][:, i] if key in ("obs", "first") else batch[key][i]
                    assert np.allclose(got, value, rtol=1e-6, atol=1e-6), key


def test_worked_windows():
    """An episode of 3 steps that terminates, one of 2 that is cut short, one that is interrupted; n = 3, γ = 0.5."""
    spec = World(np.random.default_rng(0), 1, 0, "zeros").spec()
    buffer = Replay(spec, 1, 100, batch=64, n_step=3, gamma=0.5).open(0)
    first = [1, 0, 0, 0, 1, 0, 0, 1, 0, 1]
    rows = {
        "obs": np.arange(10, dtype=np.uint8).repeat(4).reshape(10, 1, 1, 2, 2),
        "action": np.arange(10).reshape(10, 1),
        "reward": np.array([0, 1, 2, 4, 0, 8, 16, 0, 32, 0], np.float32).reshape(10, 1),
        "first": np.array(first, bool).reshape(10, 1),
        "terminated": (np.arange(10) == 3).reshape(10, 1),
        "truncated": (np.arange(10) == 6).reshape(10, 1),
        "version": np.zeros((10, 1), np.int64),
    }
    buffer.add(rows, [0])
    batch = buffer.sample()
    found = {
        int(a): (float(g), float(d), int(s[0, 0, 0]))
        for a, g, d, s in zip(batch["action"], batch["return"], batch["discount"], batch["obs"][1], strict=True)
    }
    assert found == {
        0: (1 + 2 / 2 + 4 / 4, 0.0, 3),
        1: (2 + 4 / 2, 0.0, 3),
        2: (4.0, 0.0, 3),
        4: (8 + 16 / 2, 0.25, 6),  # the real last observation
        5: (16.0, 0.5, 6),
        7: (32.0, 0.5, 8),
    }


def small(sampler=None, lanes=2, capacity=40, **options):
    world = World(np.random.default_rng(3), lanes, 2, "any")
    replay = Replay(world.spec(), lanes, capacity, 8, stack=2, sampler=sampler or Uniform(), **options)
    return world, replay.open(5)


def test_uniform_draws_every_item_equally_often_and_nothing_else():
    world, buffer = small()
    lanes = np.arange(2)
    buffer.add(world.rows(30, lanes), lanes)
    buffer.add(world.rows(13, lanes[:1]), lanes[:1])
    there, n = alive(buffer), 4000
    drawn = np.concatenate([buffer.sample()["id"] for _ in range(n)])
    ids, counts = np.unique(drawn, return_counts=True)
    assert set(ids.tolist()) == there
    expected = 8 * n / len(there)
    assert ((counts - expected) ** 2 / expected).sum() < 2 * len(there)  # χ², mean len - 1


@pytest.mark.parametrize("sampler", [Uniform(), Proportional()])
def test_a_late_priority_is_counted_and_changes_nothing(sampler):
    world, buffer = small(sampler)
    lanes = np.arange(2)
    buffer.add(world.rows(20, lanes), lanes)
    old = buffer.sample()["id"]
    buffer.add(world.rows(25, lanes), lanes)
    gone = np.array(sorted(set(old.tolist()) - alive(buffer)))
    assert len(gone)
    before = [buffer.sampler.priorities(np.arange(buffer.index.slots)).copy(), buffer.max_priority]
    assert buffer.update_priorities(gone, np.full(len(gone), 77.0)) == len(gone)
    assert np.array_equal(buffer.sampler.priorities(np.arange(buffer.index.slots)), before[0])
    assert (buffer.max_priority, buffer.metrics()["late"]) == (before[1], len(gone))


@pytest.mark.parametrize(
    ("value", "word"),
    [(np.nan, "NaN"), (-0.5, "negative"), (np.inf, "infinite"), (-np.inf, "negative"), (1e300, "too")],
)
def test_wrong_priorities_are_refused_by_name(value, word):
    world, buffer = small(Proportional())
    buffer.add(world.rows(20, np.arange(2)), slice(None))
    ids = buffer.sample()["id"]
    before = buffer.sampler.tree.leaves.copy()
    with pytest.raises(BadPriority, match=f"id {ids[2]}, .*{word}"):
        buffer.update_priorities(ids, np.where(np.arange(len(ids)) == 2, value, 1.0))
    assert np.array_equal(buffer.sampler.tree.leaves, before)


def test_a_stack_that_does_not_go_on_within_an_episode_is_refused():
    world, buffer = small()
    rows = world.rows(12, np.arange(2))
    rows["first"][:] = rows["terminated"][:] = rows["truncated"][:] = False
    rows["obs"] = np.random.default_rng(0).integers(0, 255, rows["obs"].shape, np.uint8)
    with pytest.raises(ValueError, match=r"row 1 of lane 0.*stack=0"):
        buffer.add(rows, slice(None))


def test_nothing_to_sample_is_refused():
    world, buffer = small()
    with pytest.raises(ValueError, match="nothing to sample"):
        buffer.sample()
    buffer.add(world.rows(1, np.arange(2)), slice(None))
    assert not buffer.ready
    with pytest.raises(ValueError, match="lanes"):
        buffer.add(world.rows(1, np.arange(2)), [1, 1])


def test_soft_capacity_blocks_nothing_and_trims_the_oldest():
    world, buffer = small(capacity=80, soft=True)
    world.events, lanes = ("go",), np.arange(2)
    for _ in range(10):
        buffer.add(world.rows(10, lanes), lanes)
    size, before = buffer.index.size, alive(buffer)
    assert size == 90
    stamps = {i: buffer.index.arrival[i & replay_kernels.MASK] for i in before}
    assert buffer.trim() == size - 80
    after = alive(buffer)
    assert len(after) == 80
    assert max(stamps[i] for i in before - after) <= min(stamps[i] for i in after)
    assert buffer.trim() == 0
    assert set(np.concatenate([buffer.sample()["id"] for _ in range(200)]).tolist()) <= after


@pytest.mark.parametrize(
    ("inserted", "kept"), [(100_000, 100_000), (250_000, 250_000), (1_000_000, 494_000), (10_000_000, 2_240_000)]
)
def test_a_window_grows_as_katago_s(inserted, kept):
    """Wu 2019, appendix C, with its numbers; never beyond the capacity."""
    _, buffer = small(capacity=10**7, start=1, grows_from=250_000)
    assert min(inserted, buffer.replay.limit(inserted)) == pytest.approx(kept, rel=0.01)
    assert buffer.replay.limit(10**9) == 10**7


def test_of_a_window_that_grows_the_newest_are_drawn():
    world, buffer = small(capacity=400, grows_from=40)
    world.events, lanes, stamps = ("go",), np.arange(2), dict[int, int]()
    for _ in range(20):
        before = alive(buffer)
        buffer.add(world.rows(10, lanes), lanes)
        after, inserted = alive(buffer), buffer.inserted
        assert len(after) == min(inserted, buffer.replay.limit(inserted))
        gone, stamps = (
            [stamps[i] for i in before - after],
            {i: buffer.index.arrival[i & replay_kernels.MASK] for i in after},
        )
        assert max(gone, default=-1) < min(stamps.values()), "the oldest went"
    assert 40 < len(after) < 200 < inserted


def test_metrics_count_what_was_never_sampled_and_age():
    world, buffer = small(n_step=1)
    lanes = np.arange(2)
    buffer.add(world.rows(15, lanes), lanes)
    metrics = buffer.metrics()
    assert metrics["size"] == metrics["inserted"] == buffer.index.size
    live = live_slots(buffer.index)
    assert metrics["age"] == pytest.approx(metrics["steps"] - buffer.index.arrival[live].mean())
    for _ in range(10):
        buffer.add(world.rows(15, lanes), lanes)
    metrics = buffer.metrics()
    assert metrics["never_sampled"] == 1.0
    assert metrics["evicted"] == metrics["inserted"] - metrics["size"] > 0

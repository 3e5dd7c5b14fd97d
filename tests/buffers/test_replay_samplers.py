"""Priorities and weights, against plain sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.buffers.replay import Proportional, Replay, Uniform
from polyplay.buffers.replay_buffer import ReplayBuffer
from polyplay.core.errors import BadPriority, UserError
from polyplay.core.tree import Field
from tests.buffers.plain_replay import World, live_slots


def buffer_of(sampler: Any, rows: int = 24, batch: int = 16, **options: Any) -> ReplayBuffer:
    world = World(np.random.default_rng(1), 2, 0, "zeros")
    spec = world.spec() | {"value": Field((), "float32"), "chosen": Field((), "float32")}
    buffer = Replay(spec, 2, 200, batch, sampler=sampler, **options).open(3)
    lanes = np.arange(2)
    played = world.rows(rows, lanes)
    rng = np.random.default_rng(2)
    played |= {k: rng.normal(size=(rows, 2)).astype(np.float32) for k in ("value", "chosen")}
    buffer.add(played, lanes)
    return buffer


def all_ids(buffer: ReplayBuffer) -> np.ndarray:
    return buffer.index.ids(live_slots(buffer.index))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    alpha=st.sampled_from([0.0, 0.5, 0.6, 1.0]),
    beta=st.sampled_from([0.0, 0.4, 1.0]),
    mixture=st.sampled_from([0.0, 0.001, 0.3]),
    stratified=st.booleans(),
)
def test_weights_are_those_of_the_twin(seed, alpha, beta, mixture, stratified):
    """P(i) = p^α/Σp^α with 0^α = 0, or the mixture with 1/N; w = (1/(N·P))^β over the batch's maximum."""
    buffer, rng = buffer_of(Proportional(alpha, 0.9, mixture, stratified)), np.random.default_rng(seed)
    ids = all_ids(buffer)
    priority = np.where(rng.random(len(ids)) < 0.3, 0, rng.random(len(ids)) * 10 ** rng.uniform(-3, 3, len(ids)))
    priority[0] = 1.0
    assert buffer.update_priorities(ids, priority) == 0
    batch = buffer.sample(beta)
    of = dict(zip(ids.tolist(), priority.tolist(), strict=True))
    mass = {i: p**alpha if p > 0 else 0.0 for i, p in of.items()}
    share = [(1 - mixture) * mass[i] / sum(mass.values()) + mixture / len(of) for i in batch["id"].tolist()]
    weight = np.array([(1 / (len(of) * p)) ** beta for p in share])
    assert batch["weight"].max() == 1
    assert batch["weight"] == pytest.approx(weight / weight.max(), rel=1e-5)
    if not mixture:
        assert all(of[i] > 0 for i in batch["id"].tolist())


def test_draws_are_in_proportion():
    buffer = buffer_of(Proportional(alpha=0.5, mixture=0.1))
    ids = all_ids(buffer)
    priority = np.arange(len(ids), dtype=float)
    buffer.update_priorities(ids, priority)
    n = 1500
    drawn = np.concatenate([buffer.sample()["id"] for _ in range(n)])
    counts = np.array([(drawn == i).sum() for i in ids])
    mass = np.sqrt(priority)
    expected = 16 * n * (0.9 * mass / mass.sum() + 0.1 / len(ids))
    assert counts.sum() == 16 * n
    assert ((counts - expected) ** 2 / expected).sum() < 2 * len(ids)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_where_all_priorities_are_zero_the_draw_is_uniform(alpha):
    buffer = buffer_of(Proportional(alpha))
    ids = all_ids(buffer)
    buffer.update_priorities(ids, np.zeros(len(ids)))
    batches = [buffer.sample() for _ in range(300)]
    assert all((b["weight"] == 1).all() for b in batches)
    assert set(np.concatenate([b["id"].copy() for b in batches]).tolist()) == set(ids.tolist())


def test_new_items_have_the_greatest_priority_ever_given():
    buffer = buffer_of(Proportional(alpha=1.0))
    live = live_slots(buffer.index)
    assert set(buffer.sampler.priorities(live).tolist()) == {1.0}
    buffer.update_priorities(all_ids(buffer)[:2], [7.0, 0.5])
    buffer.update_priorities(all_ids(buffer)[:2], [0.25, 0.5])
    world = World(np.random.default_rng(5), 2, 0, "zeros")
    rows = world.rows(5, np.arange(2)) | {k: np.zeros((5, 2), np.float32) for k in ("value", "chosen")}
    buffer.add(rows, slice(None))
    new = np.setdiff1d(live_slots(buffer.index), live)
    assert set(buffer.sampler.priorities(new).tolist()) == {7.0}


def test_first_priorities_by_the_policys_outputs():
    buffer = buffer_of(Proportional(alpha=1.0, first="td"), n_step=3, gamma=0.9)
    live = live_slots(buffer.index)
    end, total, discount = buffer.batches.windows(live)
    value, chosen = (buffer.columns.arrays[k] for k in ("value", "chosen"))
    want = np.abs(total + discount * value[end] - chosen[live])
    assert buffer.sampler.priorities(live) == pytest.approx(want, rel=1e-6)
    assert len(set(want.tolist())) > 10


def test_first_priorities_of_what_is_not_finite_are_refused_but_not_behind_an_end():
    buffer = buffer_of(Proportional(alpha=1.0, first="td"), n_step=1, gamma=0.9)
    live = live_slots(buffer.index)
    end, _, discount = buffer.batches.windows(live)
    value = buffer.columns.arrays["value"]
    value[end[discount == 0]] = np.nan
    assert np.isfinite(buffer.batches.td_errors(live[discount == 0])).all()
    value[end[discount > 0][:1]] = np.inf
    with pytest.raises(BadPriority, match="infinite"):
        buffer.batches.td_errors(live)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": Proportional(alpha=1.5)}, "alpha=1.5"),
        ({"sampler": Proportional(first="best")}, "max, td"),
        ({"sampler": Proportional(first="td")}, "chosen"),
        ({"ratio": 0.0}, "ratio=0.0"),
        ({"capacity": 5, "start": 9}, "start=9"),
        ({"stack": 3}, "stack=3"),
        ({"reward": "half"}, "none, clip, sign"),
        ({"scale": 0.0}, "scale=0.0 of rewards given, allowed: above 0"),
        ({"gamma": 1.1}, "gamma=1.1"),
        ({"lanes": 0}, "lanes=0"),
        ({"lanes": 99, "capacity": 50}, "99 lanes"),
        ({"spec": {"obs": Field((1, 2, 2), "uint8")}}, "lack action, first, reward"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_wrong_descriptions_are_refused_by_name(options, message):
    spec = World(np.random.default_rng(0), 1, 0, "zeros").spec()
    with pytest.raises(UserError, match=message):
        Replay(**{"spec": spec, "lanes": 1, "capacity": 100, "batch": 4, **options})


def test_uniform_weights_are_one():
    assert (buffer_of(Uniform()).sample()["weight"] == 1).all()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sampler=st.sampled_from([Proportional(1.0), Proportional(1.0, first="td")]),
    stack=st.sampled_from([0, 2]),
    options=st.sampled_from([{}, {"n_step": 3}, {"soft": True}, {"sequence": 4, "burn_in": 2}]),
    capacity=st.integers(3, 90),
    T=st.integers(1, 40),
)
def test_items_that_take_the_place_of_old_ones_have_first_priorities_too(seed, sampler, stack, options, capacity, T):
    """However many rows come at once, an item that leaves a slot is not taken for the one that gets it."""
    rng = np.random.default_rng(seed)
    world, lanes = World(rng, 2, stack, "zeros"), np.arange(2)
    spec = world.spec() | {"value": Field((), "float32"), "chosen": Field((), "float32")}
    buffer = Replay(spec, 2, capacity, 4, sampler=sampler, stack=stack, **options).open(3)
    for _ in range(1 + 300 // T):
        rows = world.rows(T, lanes) | {k: rng.normal(size=(T, 2)).astype(np.float32) for k in ("value", "chosen")}
        buffer.add(rows, lanes)
    live = live_slots(buffer.index)
    want = np.ones(len(live)) if sampler.first == "max" else buffer.batches.td_errors(live)
    assert buffer.sampler.priorities(live) == pytest.approx(want, rel=1e-6)
    dead = np.setdiff1d(np.arange(buffer.index.slots), live)
    assert not buffer.sampler.priorities(dead).any()

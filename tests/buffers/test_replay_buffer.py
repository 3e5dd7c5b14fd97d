"""Transitions: what is drawn is what was played, nothing crosses an episode, nothing is missing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.replay_buffer import GENERATION, STEPS, BadPriority, ReplayBuffer, n_step_windows
from polyplay.core.errors import NotFinite, UserError
from polyplay.core.tree import Field
from polyplay.learning import value_losses
from tests.buffers.plain_replay import Plain, World, live_slots

QUICK = settings(max_examples=25, deadline=None)


def alive(buffer: ReplayBuffer) -> set[int]:
    """Ids of all items that may be drawn."""
    return set(buffer.index.id[live_slots(buffer.index)].tolist())


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
        sampler=Proportional() if seed % 2 else None
    )  # fmt: skip
    buffer, plain = replay.open(seed), Plain(replay)
    for _ in range(6):
        lanes = rng.permutation(3)[: rng.integers(1, 4)]
        rows = world.rows(int(rng.integers(1, 12)), lanes)
        buffer.add(rows, lanes)
        plain.add(rows, lanes)
        items = plain.items()
        assert alive(buffer) == set(items)
        assert buffer.size == len(items) <= 3 * (-(-capacity // 3) + n_step - 1)
        if items:
            batch = buffer.sample()
            for i, number in enumerate(batch["id"].tolist()):
                for key, value in items[number].items():
                    got = batch[key][:, i] if key in ("obs", "first") else batch[key][i]
                    assert np.allclose(got, value, rtol=1e-6, atol=1e-6), key


def small(sampler=None, lanes=2, capacity=40, **options):
    world = World(np.random.default_rng(3), lanes, 2, "any")
    replay = Replay(world.spec(), lanes, capacity, 8, stack=2, sampler=sampler, **options)
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


@pytest.mark.parametrize("sampler", [None, Proportional()])
def test_a_late_priority_is_counted_and_changes_nothing(sampler):
    world, buffer = small(sampler)
    lanes = np.arange(2)
    buffer.add(world.rows(20, lanes), lanes)
    old = buffer.sample()["id"]
    buffer.add(world.rows(25, lanes), lanes)
    gone = np.array(sorted(set(old.tolist()) - alive(buffer)))
    assert len(gone)
    before = [buffer.priorities(np.arange(len(buffer.index.id))).copy(), buffer.max_priority]
    assert buffer.update_priorities(gone, np.full(len(gone), 77.0)) == len(gone)
    assert np.array_equal(buffer.priorities(np.arange(len(buffer.index.id))), before[0])
    assert (buffer.max_priority, buffer.metrics()["late"]) == (before[1], len(gone))


@pytest.mark.parametrize("value", [np.nan, -0.5, np.inf, 1e300])
def test_wrong_priorities_are_refused_by_name(value):
    world, buffer = small(Proportional())
    buffer.add(world.rows(20, np.arange(2)), slice(None))
    ids = buffer.sample()["id"]
    before = buffer.tree.leaves.copy()
    with pytest.raises(BadPriority, match=re.escape(f"priority {value} of id {ids[2]}, number 2 of 8; must be 0 to")):
        buffer.update_priorities(ids, np.where(np.arange(len(ids)) == 2, value, 1.0))
    assert np.array_equal(buffer.tree.leaves, before)


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
    assert not buffer.due()
    with pytest.raises(ValueError, match="lanes"):
        buffer.add(world.rows(1, np.arange(2)), [1, 1])


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
    world.events, lanes = ("go",), np.arange(2)
    for _ in range(20):
        buffer.add(world.rows(10, lanes), lanes)
        live = live_slots(buffer.index)
        assert len(live) == min(buffer.inserted, buffer.replay.limit(buffer.inserted))
        newest = buffer.index.counts[STEPS] - len(live) - len(lanes)
        assert (buffer.index.arrival[live] >= newest).all()
    assert 40 < len(live) < 200 < buffer.inserted


def test_metrics_count_what_was_never_sampled_and_age():
    world, buffer = small(n_step=1)
    lanes = np.arange(2)
    buffer.add(world.rows(15, lanes), lanes)
    metrics = buffer.metrics()
    assert metrics["size"] == metrics["inserted"] == buffer.size
    live = live_slots(buffer.index)
    assert metrics["age"] == pytest.approx(metrics["steps"] - buffer.index.arrival[live].mean())
    for _ in range(10):
        buffer.add(world.rows(15, lanes), lanes)
    metrics = buffer.metrics()
    assert metrics["never_sampled"] == 1.0
    assert metrics["evicted"] == metrics["inserted"] - metrics["size"] > 0


# Priorities and weights, against plain sums.


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
    return buffer.index.id[live_slots(buffer.index)]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    alpha=st.sampled_from([0.0, 0.5, 0.6, 1.0]),
    beta=st.sampled_from([0.0, 0.4, 1.0]),
    mixture=st.sampled_from([0.0, 0.001, 0.3]),
    stratified=st.booleans(),
)
def test_weights_are_those_of_the_twin(seed, alpha, beta, mixture, stratified):
    """P(i) = p^α/Σp^α with 0^α = 0, or the mixture with 1/N; w = (1/(N·P))^β over the batch's maximum."""
    buffer, rng = buffer_of(Proportional(alpha, beta, mixture, stratified)), np.random.default_rng(seed)
    ids = all_ids(buffer)
    priority = np.where(rng.random(len(ids)) < 0.3, 0, rng.random(len(ids)) * 10 ** rng.uniform(-3, 3, len(ids)))
    priority[0] = 1.0
    assert buffer.update_priorities(ids, priority) == 0
    batch = buffer.sample()
    of = dict(zip(ids.tolist(), priority.tolist(), strict=True))
    mass = {i: p**alpha if p > 0 else 0.0 for i, p in of.items()}
    share = [(1 - mixture) * mass[i] / sum(mass.values()) + mixture / len(of) for i in batch["id"].tolist()]
    weight = np.array([(1 / (len(of) * p)) ** beta for p in share])
    assert batch["weight"].max() == 1
    assert batch["weight"] == pytest.approx(weight / weight.max(), rel=1e-5)
    if not mixture:
        assert all(of[i] > 0 for i in batch["id"].tolist())


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
    assert set(buffer.priorities(live).tolist()) == {1.0}
    buffer.update_priorities(all_ids(buffer)[:2], [7.0, 0.5])
    buffer.update_priorities(all_ids(buffer)[:2], [0.25, 0.5])
    world = World(np.random.default_rng(5), 2, 0, "zeros")
    rows = world.rows(5, np.arange(2)) | {k: np.zeros((5, 2), np.float32) for k in ("value", "chosen")}
    buffer.add(rows, slice(None))
    new = np.setdiff1d(live_slots(buffer.index), live)
    assert set(buffer.priorities(new).tolist()) == {7.0}


def test_first_priorities_of_what_is_not_finite_are_refused_but_not_behind_an_end():
    buffer = buffer_of(Proportional(alpha=1.0, first="td"), n_step=1, gamma=0.9)
    live = live_slots(buffer.index)
    end, _, discount = n_step_windows(live, *buffer.windows)
    value = buffer.columns.arrays["value"]
    value[end[discount == 0]] = np.nan
    assert np.isfinite(buffer.first_priorities(live[discount == 0])).all()
    value[end[discount > 0][:1]] = np.inf
    with pytest.raises(NotFinite, match="an actor computed, is not finite: priority inf of id"):
        buffer.first_priorities(live)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": Proportional(alpha=1.5)}, "alpha=1.5"),
        ({"sampler": Proportional(first="best")}, "max or td"),
        ({"sampler": Proportional(first="td")}, "chosen"),
        ({"ratio": 0.0}, "ratio=0.0"),
        ({"capacity": 5, "start": 9}, "start=9"),
        ({"stack": 3}, "stack=3"),
        ({"burn_in": 4}, "burn_in=4 needs sequence"),
        ({"reward": "half"}, "none, clip, sign"),
        ({"scale": 0.0}, "scale=0.0 of rewards: must be above 0"),
        ({"gamma": 1.1}, "gamma=1.1"),
        ({"lanes": 99, "capacity": 50}, "99 lanes"),
        ({"spec": {"obs": Field((1, 2, 2), "uint8")}}, "lack action, first, reward"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_wrong_descriptions_are_refused_by_name(options, message):
    spec = World(np.random.default_rng(0), 1, 0, "zeros").spec()
    with pytest.raises(UserError, match=message):
        Replay(**{"spec": spec, "lanes": 1, "capacity": 100, "batch": 4, **options})


@settings(max_examples=15, deadline=None)
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
    for _ in range(1 + 150 // T):
        rows = world.rows(T, lanes) | {k: rng.normal(size=(T, 2)).astype(np.float32) for k in ("value", "chosen")}
        buffer.add(rows, lanes)
    live = live_slots(buffer.index)
    want = np.ones(len(live)) if sampler.first == "max" else buffer.first_priorities(live)
    assert buffer.priorities(live) == pytest.approx(want, rel=1e-6)
    dead = np.setdiff1d(np.arange(len(buffer.index.id)), live)
    assert not buffer.priorities(dead).any()


# Sequences: rows, padding, states and masks as a plain twin has them; every transition is in some item.

SEQUENCE_QUICK = settings(max_examples=40, deadline=None)
STATE = {"core": {"h": Field((2,), "float32")}}


class Known(Plain):
    """The twin, with the recurrent states that were given with rows."""

    def __init__(self, replay: Replay):
        super().__init__(replay)
        self.state: dict[tuple[int, int], np.ndarray] = {}
        self.last = [-(10**9)] * replay.lanes

    def tell(self, lane: int, state: np.ndarray) -> None:
        """Before the rows that come next are added, of which the first is no `first` one."""
        t = len(self.lanes[lane])
        number = self.head[lane]
        if number - self.last[lane] >= self.replay.every:
            self.state[lane, t], self.last[lane] = state, number

    def begin(self, lane: int, t: int) -> int | None:
        """The first row of t's episode; None: it was never seen."""
        rows = self.lanes[lane]
        while t >= 0 and not rows[t]["first"]:
            t -= 1
        return t if t >= 0 else None

    def sequences(self) -> dict[int, tuple[int, int]]:
        """(lane, first trained row) of every item, by id."""
        r, found = self.replay, {}
        for lane, rows in enumerate(self.lanes):
            for t in range(len(rows)):
                e = self.begin(lane, t)
                early = e is not None and (t - e) % r.every == 0 and t - e <= r.burn_in
                anchored = (lane, t - r.burn_in) in self.state and (e is None or t - r.burn_in >= e)
                steps = self.stretch(lane, t)
                done = steps >= r.window or (steps and self.closed(lane, t))
                if (early or anchored) and done and self.there(lane, t):
                    found[self.id(lane, rows[t]["number"])] = (lane, t)
        return found

    def cut(self, lane: int, t: int) -> dict[str, Any]:
        """The item whose first trained row is t, row by row."""
        r, rows = self.replay, self.lanes[lane]
        e = self.begin(lane, t)
        low = t - r.burn_in if e is None else max(e, t - r.burn_in)
        high = t + self.stretch(lane, t)
        out: dict[str, Any] = {"valid": [], "obs": [], "action": [], "reward": [], "first": [], "terminated": []}
        for i in range(t - r.burn_in, t - r.burn_in + r.length):
            row, real = rows[min(max(i, low), high)], low <= i <= high
            out["valid"].append(low <= i < high and i + 1 < t - r.burn_in + r.length)
            out["obs"].append(row["obs"])
            out["action"].append(row["action"])
            out["reward"].append(row["reward"] if real else 0.0)
            out["first"].append(row["first"] if real else True)
            out["terminated"].append(row["terminated"] and real)
        out["state"] = np.zeros(2) if out["first"][0] else self.state[lane, t - r.burn_in]
        return out


@SEQUENCE_QUICK
@given(
    seed=st.integers(0, 2**32 - 1),
    sequence=st.integers(1, 8),
    burn_in=st.integers(0, 6),
    n_step=st.integers(1, 3),
    period=st.integers(0, 4),
    stack=st.sampled_from([0, 2]),
    calm=st.booleans(),
)
def test_sequence_items_are_those_of_the_twin(seed, sequence, burn_in, n_step, period, stack, calm):
    rng = np.random.default_rng(seed)
    world = World(rng, 2, stack, "any")
    world.events = ("go",) * 20 + ("terminate", "truncate", "restart") if calm else world.events
    replay = Replay(
        world.spec(), 2, int(rng.integers(30, 80)), 8, STATE, n_step=n_step, stack=stack,
        sequence=sequence, burn_in=burn_in, period=period
    )  # fmt: skip
    buffer, twin, lanes = replay.open(seed), Known(replay), np.arange(2)
    for _ in range(8):
        rows, state = world.rows(int(rng.integers(1, 9)), lanes), rng.normal(size=(2, 2)).astype(np.float32)
        for lane in lanes:
            if not rows["first"][0, lane]:
                twin.tell(lane, state[lane])
        twin.add(rows, lanes)
        buffer.add(rows, lanes, {"core": {"h": state}})
        items = twin.sequences()
        assert alive(buffer) == set(items)
        if items:
            batch = buffer.sample()
            for i, number in enumerate(batch["id"].tolist()):
                want = twin.cut(*items[number])
                assert np.array_equal(batch["state"]["core"]["h"][i], np.float32(want.pop("state")))
                for key, value in want.items():
                    assert np.array_equal(batch[key][:, i], value), key


@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_first_priorities_are_those_of_the_loss_with_the_actors_values(eps):
    rng, lanes = np.random.default_rng(3), np.arange(2)
    world = World(rng, 2, 0, "zeros")
    world.events = ("go",) * 20 + ("terminate", "truncate", "restart")
    spec = world.spec() | {"value": Field((), "float32"), "chosen": Field((), "float32")}
    sampler = Proportional(1.0, first="td", eta=0.9, rescale=eps)
    replay = Replay(spec, 2, 400, 400, n_step=3, gamma=0.9, sequence=6, burn_in=4, period=3, sampler=sampler)
    buffer = replay.open(0)
    for _ in range(60):
        rows = world.rows(3, lanes) | {k: rng.normal(size=(3, 2)).astype(np.float32) for k in ("value", "chosen")}
        buffer.add(rows, lanes)
    drawn = buffer.sample()
    slots = drawn["id"] % GENERATION
    batch = {k: torch.as_tensor(v[4:]) for k, v in drawn.items() if k not in ("state", "weight", "id")}
    target, valid = value_losses.sequence_targets(batch, batch["value"].unsqueeze(-1), 0.9, 3, eps=eps or None)
    want = value_losses.sequence_priority(target - batch["chosen"][:-1], valid, 0.9)
    assert buffer.priorities(slots) == pytest.approx(want.numpy(), rel=1e-5)
    assert len(set(slots.tolist())) > 30

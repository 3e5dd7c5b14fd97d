"""Sequences: rows, padding, states and masks as a plain twin has them; every transition is in some item."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.replay_buffer import ReplayBuffer
from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.learning import value_losses
from tests.buffers.plain_replay import Plain, World, live_slots

QUICK = settings(max_examples=40, deadline=None)
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


def alive(buffer: ReplayBuffer) -> set[int]:
    return set(buffer.index.ids(live_slots(buffer.index)).tolist())


@QUICK
@given(
    seed=st.integers(0, 2**32 - 1),
    sequence=st.integers(1, 8),
    burn_in=st.integers(0, 6),
    n_step=st.integers(1, 3),
    period=st.integers(0, 4),
    stack=st.sampled_from([0, 2]),
    calm=st.booleans(),
)
def test_items_are_those_of_the_twin(seed, sequence, burn_in, n_step, period, stack, calm):
    rng = np.random.default_rng(seed)
    world = World(rng, 2, stack, "any")
    world.events = ("go",) * 20 + ("terminate", "truncate", "restart") if calm else world.events
    replay = Replay(
        world.spec(), 2, int(rng.integers(30, 80)), 8, STATE, n_step=n_step, stack=stack,
        sequence=sequence, burn_in=burn_in, period=period,
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


@pytest.mark.parametrize(
    ("sequence", "burn_in", "period", "T"), [(8, 4, 0, 4), (8, 4, 4, 2), (6, 5, 3, 3), (4, 0, 2, 1)]
)
def test_every_transition_is_trained_on_in_some_item(sequence, burn_in, period, T):
    world = World(np.random.default_rng(sequence), 1, 0, "zeros")
    world.events = ("go",) * 15 + ("terminate", "restart")
    replay = Replay(world.spec(), 1, 2000, 64, STATE, sequence=sequence, burn_in=burn_in, period=period, n_step=2)
    buffer, first, lanes = replay.open(0), [], np.arange(1)
    for _ in range(600 // T):
        rows = world.rows(T, lanes)
        first += rows["first"][:, 0].tolist()
        buffer.add(rows, lanes, {"core": {"h": np.zeros((1, 2), np.float32)}})
    trained: set[int] = set()
    for _ in range(100):
        batch = buffer.sample()
        part = slice(burn_in, burn_in + sequence)
        trained |= set(batch["action"][part][batch["valid"][part]].tolist())
    last = len(first) - 1 - first[::-1].index(True)  # the episode that still goes on may wait
    wanted = {t for t in range(last - 1) if not first[t + 1]}
    assert {a - 1 for a in trained} >= wanted


@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_first_priorities_are_those_of_the_loss_with_the_actors_values(eps):
    rng, lanes = np.random.default_rng(3), np.arange(2)
    world = World(rng, 2, 0, "zeros")
    world.events = ("go",) * 20 + ("terminate", "truncate", "restart")
    spec = world.spec() | {"value": Field((), "float32"), "chosen": Field((), "float32")}
    sampler = Proportional(1.0, first="td", eta=0.9, rescale=eps)
    replay = Replay(spec, 2, 400, 8, n_step=3, gamma=0.9, sequence=6, burn_in=4, period=3, sampler=sampler)
    buffer = replay.open(0)
    for _ in range(60):
        rows = world.rows(3, lanes) | {k: rng.normal(size=(3, 2)).astype(np.float32) for k in ("value", "chosen")}
        buffer.add(rows, lanes)
    live = live_slots(buffer.index)
    drawn = buffer.batches.fill(
        live, np.ones(len(live), np.float32), tree.zeros(replace(replay, batch=len(live)).drawn())
    )
    batch = {k: torch.as_tensor(v[4:]) for k, v in drawn.items() if k not in ("state", "weight", "id")}
    made = value_losses.sequence_targets(batch, batch["value"].unsqueeze(-1), 0.9, 3, eps=eps or None)
    want = value_losses.sequence_priority(made.target - batch["chosen"][:-1], made.valid, 0.9)
    assert buffer.sampler.priorities(live) == pytest.approx(want.numpy(), rel=1e-5)
    assert len(live) > 50


def test_bounds_of_a_description():
    spec = World(np.random.default_rng(0), 1, 0, "zeros").spec()
    replay = Replay(spec, 4, 4_000, 8, STATE, sequence=80, burn_in=40, n_step=5, soft=True)
    assert (replay.every, replay.window, replay.length) == (40, 84, 125)
    assert replay.rows == 1000 + 125 + 84 + 40
    with pytest.raises(UserError, match="burn_in"):
        Replay(spec, 4, 4_000, 8, burn_in=40)

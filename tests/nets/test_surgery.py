"""A network that grows: the same outputs but for rounding; new units that learn at once; statistics in their places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core import checkpoint, tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Batch, Field, Spec
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Conditional, Discrete
from polyplay.nets import NetworkFactory
from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.factory import build_network
from polyplay.nets.layers import AxisSegment
from polyplay.nets.surgery import RENEWED, NetworkGrowth, match_axes
from tests.nets.fights import FIGHT, OBS
from tests.nets.helpers import continuous, image, vector

STEPS, LANES = 25, 52


def build(spec: EnvSpec, options: dict[str, Any], seed: int = 1) -> ActorCritic:
    more = {k: v for k, v in options.items() if k != "network"}
    return build_network(NetworkFactory(options.get("network", "mlp"), spec, more), seed)


def pair(old: EnvSpec, new: EnvSpec, was: dict[str, Any], now: dict[str, Any]) -> tuple[ActorCritic, ActorCritic]:
    """A network with random weights everywhere, and what it grows into."""
    before, after = build(old, was), build(new, {**was, **now}, 2)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in before.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator)
    rng = np.random.default_rng(1)
    for _ in range(3):
        before.observe(tree.map(lambda x: torch.stack([x, x]), step_of(rng, old)))
    checkpoint.load_into(after, NetworkGrowth(before, after).grow(arrays(before), arrays(after)))
    return before, after


def arrays(policy: ActorCritic) -> dict[str, np.ndarray]:
    return {k: v.numpy().copy() for k, v in policy.state_dict().items()}


def step_of(rng: np.random.Generator, spec: EnvSpec) -> Batch:
    def draw(path: str, field: Field) -> np.ndarray:
        highest, shape = spec.classes.get(path, 256 if field.dtype == "uint8" else 0), (LANES, *field.shape)
        return rng.integers(0, highest, shape).astype(field.dtype) if highest else rng.normal(size=shape)

    obs = {path: torch.from_numpy(draw(path, f)).to(getattr(torch, f.dtype)) for path, f in tree.leaves(spec.obs)}
    rest = {"reward": torch.from_numpy(rng.normal(size=LANES).astype("float32"))}
    return {"obs": tree.nest(obs), "first": torch.from_numpy(rng.random(LANES) < 0.05), **rest}


def widened(step: Batch, rng: np.random.Generator, spec: EnvSpec, policy: ActorCritic) -> Batch:
    """The same row with more in it: random numbers in all new places, but new units of sets are not there."""
    wide, leaves = dict(tree.leaves(step_of(rng, spec)["obs"])), dict(tree.leaves(step["obs"]))
    for path, x in wide.items():
        old = leaves.get(path)
        if path in getattr(policy.torso, "unit_sets", ()):
            x[:, 0 if old is None else old.shape[1] :] = 0
        if old is not None:
            x[(slice(None), *map(slice, old.shape[1:]))] = old
    return {**step, "obs": tree.nest(wide)}


def places(old: ActorCritic, new: ActorCritic) -> dict[str, np.ndarray]:
    """Where the old values of each part of the actions stand among the new ones; of a new part, its first value."""
    found = {path: np.arange(part.size) for path, part in old.head.parts.items()}
    if pointer := getattr(new.torso, "pointer", None):
        found[pointer[0]] = match_axes("", old.torso.unit_axis, new.torso.unit_axis).new
    return {path: found.get(path, np.zeros(1, int)) for path in new.head.parts}


def difference(old: ActorCritic, new: ActorCritic, before: EnvSpec, after: EnvSpec) -> float:
    """The largest of log-probabilities and values where each has its own state, `old` acts, and only what it knows is
    legal.
    """
    rng, most, at = np.random.default_rng(0), 0.0, places(old, new)
    legal = {path: torch.zeros(LANES, part.size, dtype=torch.bool) for path, part in new.head.parts.items()}
    for path, mask in legal.items():
        mask[:, at[path]] = True
    states = old.initial(LANES), new.initial(LANES)
    for _ in range(STEPS):
        step = {**step_of(rng, before), "noise": torch.rand(LANES, old.noise)}
        with torch.no_grad():
            out, one = old.act(step, states[0])
            taken = dict(tree.leaves(out["action"]))
            action = {path: torch.from_numpy(at[path])[taken[path]] for path in at}
            row = {**widened(step, rng, after, new), "mask": tree.nest(legal), "action": tree.nest(action)}
            del row["noise"]
            found = new.unroll(tree.map(lambda x: x.unsqueeze(0), row), states[1])
            _, two = new.act(row, states[1])
        states = one, {**two, **{k: row[k] for k in ("action",) if k in two}}
        most = max(most, *(float((out[k] - found[k][0]).abs().max()) for k in ("logp", "value")))
    return most


def fight(obs: Spec, values: int = 4, uses: tuple[int, ...] = (1, 3)) -> EnvSpec:
    """FIGHT with other observations, and values of its first part of which some name a unit."""
    units = sum(field.shape[0] for field in obs.values() if len(field.shape) == 2)
    parts = {"primary": Discrete(values), "unit": Discrete(units), "offset": Discrete(5)}
    return replace(FIGHT, obs=obs, action=Conditional(parts, {"unit": uses, "offset": (2, 3)}), mask=None)


def units(n: int, numbers: int) -> Field:
    return Field((n, numbers), "float32")


VECTOR, LONGER = (EnvSpec(vector(n), Discrete(4)) for n in (5, 8))
DICT = EnvSpec({"a": Field((2, 3), "float32"), "b": Field((), "int64")}, Discrete(4), classes={"b": 4})
MORE = {"a": Field((3, 5), "float32"), "b": Field((), "int64"), "c": vector(2)}
IMAGE = EnvSpec(image(2), Discrete(3))
VIEW = {"view": image(3, 9), "own": vector(4)}
SMALL, LARGE = {"hidden": (64, 64)}, {"hidden": (128, 128)}
LSTM, LARGER = {"core": "lstm", "core_size": 32}, {"core_size": 48}
FIVE: dict[str, Any] = {**LSTM, "network": "five", "hidden": 64, "init": "torch"}
FIVE_MORE = {**OBS, "allies": units(4, 4), "enemies": units(9, 4)}
SETS = {"own": OBS["own"], "allies": OBS["allies"], "creeps": units(6, 5), "x": vector(2), **OBS}
ALL = {**SETS, **FIVE_MORE, "own": vector(8), "towers": units(5, 3)}
GROWN = {
    "lstm": (VECTOR, VECTOR, LSTM, LARGER),
    "gru": (VECTOR, VECTOR, {**LSTM, "core": "gru"}, LARGER),
    "mlp": (VECTOR, VECTOR, SMALL, LARGE),
    "separate": (VECTOR, VECTOR, {**SMALL, "network": "separate"}, LARGE),
    "longer vector": (VECTOR, LONGER, SMALL, {}),
    "dict": (DICT, replace(DICT, obs=MORE, classes={"b": 6}), SMALL, {}),
    "layers of the heads": (VECTOR, VECTOR, {**SMALL, "width": 32}, {**LARGE, "width": 48}),
    "all of mlp": (VECTOR, replace(LONGER, action=Discrete(6)), {**LSTM, **SMALL, "previous": True}, LARGER | LARGE),
    "behind images": (IMAGE, IMAGE, {**LSTM, "network": "nature", "hidden": 8}, {"hidden": 16, **LARGER}),
    "behind a view": (EnvSpec(VIEW, Discrete(3)), EnvSpec(VIEW, Discrete(3)), {"network": "ftw"}, {"hidden": 300}),
    "core of five": (FIGHT, FIGHT, FIVE, LARGER),
    "layers of five": (FIGHT, FIGHT, FIVE, {"hidden": 128}),
    "numbers of units": (
        FIGHT,
        fight({**OBS, "own": vector(8), "enemies": units(3, 7)}),
        {**FIVE, "inputs": "normalize"},
        {},
    ),
    "values of the first part": (FIGHT, fight(OBS, 6, (1, 3, 4)), FIVE, {}),
    "units": (FIGHT, fight(FIVE_MORE), FIVE, {}),
    "sets of units": (FIGHT, fight(SETS), FIVE, {}),
    "all of five": (
        FIGHT,
        fight(ALL, 6, (1, 3, 4)),
        {**FIVE, "inputs": "normalize", "previous": True},
        {"hidden": 96, **LARGER},
    ),
}


@pytest.mark.parametrize(("old", "new", "was", "now"), GROWN.values(), ids=GROWN)
def test_outputs_are_the_same_but_for_rounding(old: EnvSpec, new: EnvSpec, was: dict, now: dict):
    """To the bit on most processors: on others a longer product adds in another order."""
    both = pair(old, new, was, now)
    assert sum(p.numel() for p in both[1].parameters()) >= sum(p.numel() for p in both[0].parameters())
    assert difference(*both, old, new) <= (1e-5 if old is IMAGE else 1e-6)


def test_gradients_reach_new_units_at_once():
    _, new = pair(VECTOR, LONGER, {**LSTM, "hidden": (32,)}, {"core_size": 48, "hidden": (40,)})
    rng = np.random.default_rng(0)
    batch = tree.map(lambda *x: torch.stack(x), *(step_of(rng, LONGER) for _ in range(4)))
    batch["action"] = torch.zeros(4, LANES, dtype=torch.int64)
    out = new.unroll(batch, new.initial(LANES))
    (out["logp"].sum() + out["value"].sum()).backward()
    recurrent = new.core.cell.recurrent.weight.grad.unflatten(0, (4, 48))
    assert recurrent[:, :32, 32:].any(), "old units begin to hear new ones"
    assert new.actions.weight.grad[:, 32:].any()
    assert new.torso.layers[0].weight.grad[:32, 5:].any(), "and new inputs"
    assert new.core.input.weight.grad.unflatten(0, (4, 48))[:, :32, 32:].any(), "and new features"


def test_statistics_stand_where_the_weights_do():
    was = {"core": "gru", "core_size": 6, "hidden": (7,), "previous": True}
    before, after = pair(VECTOR, replace(LONGER, action=Discrete(5)), was, {"core_size": 9, "hidden": (8,)})
    growth = NetworkGrowth(before, after)
    wanted = growth.grow(arrays(before), {k: np.zeros_like(v) for k, v in arrays(after).items()})
    flat = np.concatenate([p.detach().numpy().ravel() for p in before.parameters()])
    names = [name for name, _ in after.named_parameters()]
    assert np.array_equal(growth.grow_statistics(flat), np.concatenate([wanted[name].ravel() for name in names]))
    ones = growth.grow_statistics(np.zeros_like(flat), 1.0)
    assert ones.sum() == len(ones) - len(flat)


def test_deviations_of_real_actions_and_running_statistics_are_kept():
    before, after = (build(continuous(vector(n), n - 1), {"inputs": "normalize"}) for n in (3, 5))
    rows = {"obs": torch.randn(50, LANES, 3, generator=torch.Generator().manual_seed(0)) * 3 + 1}
    for _ in range(300):
        before.observe(rows)
    with torch.no_grad():
        before.head.log_std.copy_(torch.tensor([0.5, -0.5]))
    grown = NetworkGrowth(before, after).grow(arrays(before), arrays(after))
    assert grown["head.log_std"].tolist() == [0.5, -0.5, 0.0, 0.0]
    checkpoint.load_into(after, grown)
    moments = after.inputs.moments[0]
    assert torch.equal(moments.variance()[:3], before.inputs.moments[0].variance())
    assert float(before.inputs.moments[0].count) > RENEWED == float(moments.count)
    new_numbers = torch.tensor([[0.0, 0.0, 0.0, 2.5, -2.5]])
    assert moments(new_numbers)[0, 3:].tolist() == [2.5, -2.5], "as they are, until more is known"


def test_parts_of_observations_can_be_taken_away():
    before, after = build(DICT, {}), build(EnvSpec({"a": DICT.obs["a"]}, DICT.action), {})
    growth = NetworkGrowth(before, after)
    assert growth.missing == ["b"]
    grown = growth.grow(arrays(before), arrays(after))
    assert np.array_equal(grown["torso.layers.0.weight"], before.torso.layers[0].weight.detach().numpy()[:, :6])


def test_auxiliary_heads_and_rewards_of_events_grow():
    old, new = (EnvSpec(VIEW, Discrete(n)) for n in (3, 5))
    was = {"network": "ftw", "core": "lstm", "previous": True, "auxiliary": ("pixel", "reward")}
    was, now = ({**was, "hidden": n, "core_size": n, "width": n, "rewards": e} for n, e in ((8, "ab"), (16, "cab")))
    before, after = pair(old, new, was, now)
    with torch.no_grad():
        before.rewards.weights.copy_(torch.tensor([1.0, 2.0]))
    grown = NetworkGrowth(before, after).grow(arrays(before), arrays(after))
    assert grown["rewards.weights"].tolist() == [0.0, 1.0, 2.0]
    obs = {k: torch.zeros(LANES, *f.shape, dtype=getattr(torch, f.dtype)) + 3 for k, f in VIEW.items()}
    seen = [torch.stack([policy.torso(obs)] * 3) for policy in (before, after)]
    torch.testing.assert_close(before.auxiliary.reward(seen[0]), after.auxiliary.reward(seen[1]), rtol=0, atol=1e-6)
    x = torch.randn(LANES, 8, generator=torch.Generator().manual_seed(0))
    maps = before.auxiliary.pixel(x), after.auxiliary.pixel(torch.cat([x, torch.ones(LANES, 8)], 1))
    (value, (advantage,)), (more, (wider,)) = (
        before.auxiliary.pixel.values(maps[0]),
        after.auxiliary.pixel.values(maps[1]),
    )
    torch.testing.assert_close(value, more, rtol=0, atol=1e-6)
    torch.testing.assert_close(advantage, wider[:, :3], rtol=0, atol=1e-6)
    assert not wider[:, 3:].any()


FEWER = {k: OBS[k] for k in OBS if k != "enemies"}


@pytest.mark.parametrize(
    ("old", "new", "was", "now", "says"),
    [
        (VECTOR, VECTOR, SMALL, {"hidden": (32, 64)}, "layers.0.weight: the features would go from [64] to [32]"),
        (VECTOR, VECTOR, {"hidden": (64,)}, SMALL, "torso.layers.2.weight would be new"),
        (VECTOR, VECTOR, SMALL, {"hidden": (64,)}, "torso.layers.2.weight would be missing"),
        (VECTOR, VECTOR, {"core": "lstm"}, {"core": "none"}, "core.input.weight would be missing"),
        (VECTOR, VECTOR, {"core": "lstm"}, {"core": "gru"}, "the gates would go from [4, 256] to [3, 256]"),
        (FIGHT, fight({**OBS, "enemies": units(2, 4)}), FIVE, {}, "the units of enemies would go from [3] to [2], and"),
        (FIGHT, fight(FEWER), FIVE, {}, "the units of enemies would be missing"),
        (FIGHT, fight({k: OBS[k] for k in OBS if k != "own"}), FIVE, {}, "torso.hero.0.weight would be missing"),
        (FIGHT, fight(OBS, 4, (1, 2)), FIVE, {}, "the query of action unit of primary 3 would be missing"),
        (FIGHT, FIGHT, FIVE, {"embedding": 48}, "the embedding would go from [32] to [48]"),
    ],
)
def test_what_is_no_growth_is_refused_in_one_line(old: EnvSpec, new: EnvSpec, was: dict, now: dict, says: str):
    with pytest.raises(UserError, match=r"networks only grow|none is added") as caught:
        NetworkGrowth(build(old, was), build(new, {**was, **now}))
    assert says in str(caught.value)


SHAPES = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=0, max_size=3)


@settings(deadline=None, max_examples=50)
@given(st.lists(SHAPES, min_size=1, max_size=3), st.permutations(range(3)))
def test_every_old_number_stands_where_it_has_its_name(segments: list, order: list[int]):
    before = [AxisSegment(f"s{i}", tuple(n for n, _ in dims)) for i, dims in enumerate(segments)]
    after = [AxisSegment(f"s{i}", tuple(n + more for n, more in dims), silent=True) for i, dims in enumerate(segments)]
    after = [after[i] for i in order if i < len(after)]
    match = match_axes("", tuple(before), tuple(after))
    old, new = ([(s.name, *at) for s in axis for at in np.ndindex(*s.shape)] for axis in (before, after))
    assert [old[i] for i in match.old] == [new[i] for i in match.new]
    assert sorted(match.old) == list(range(len(old)))
    assert sorted([*match.new, *match.silent]) == list(range(len(new)))

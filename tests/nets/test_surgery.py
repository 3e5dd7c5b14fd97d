"""A network that grows: the same outputs, to the bit; new units that learn at once; statistics in their places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from polyplay.core import checkpoint, tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Batch, Field, Spec
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Conditional, Discrete
from polyplay.nets import NetworkFactory
from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.factory import build_network
from polyplay.nets.surgery import RENEWED, NetworkGrowth, match_axes
from tests.nets.comparison import WiderRows
from tests.nets.fights import FIGHT, OBS, rows
from tests.nets.helpers import continuous, vector

VECTOR, LONGER = (EnvSpec(Field((n,), "float32"), Discrete(4)) for n in (5, 8))
STEPS, LANES = 60, 52


def pair(old: EnvSpec, new: EnvSpec, was: dict[str, Any], now: dict[str, Any]) -> tuple[ActorCritic, ActorCritic]:
    """A network with random weights everywhere, and what it grows into."""
    networks = []
    for seed, spec, options in ((1, old, was), (2, new, now)):
        given = dict(options)
        networks.append(build_network(NetworkFactory(given.pop("network", "mlp"), spec, given), seed))
    before, after = networks
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in before.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator)
    checkpoint.load_into(after, NetworkGrowth(before, after).grow(arrays(before), arrays(after)))
    return before, after


def arrays(policy: ActorCritic) -> dict[str, np.ndarray]:
    return {k: v.numpy().copy() for k, v in policy.state_dict().items()}


def step_of(rng: np.random.Generator, spec: EnvSpec) -> Batch:
    obs = {}
    for path, field in tree.leaves(spec.obs):
        n = spec.classes.get(path, 0)
        shape = (LANES, *field.shape)
        obs[path] = torch.from_numpy(rng.integers(0, n, shape) if n else rng.normal(size=shape).astype("float32"))
    rest = {"reward": torch.from_numpy(rng.normal(size=LANES).astype("float32"))}
    return {"obs": tree.nest(obs), "first": torch.from_numpy(rng.random(LANES) < 0.05), **rest}


def widened(step: Batch, rng: np.random.Generator, spec: EnvSpec, mask: Any = None) -> Batch:
    """The same row with more in it: random numbers in all new places."""
    wide, leaves = step_of(rng, spec), dict(tree.leaves(step["obs"]))
    for path, x in tree.leaves(wide["obs"]):
        if path in leaves:
            x[(slice(None), *map(slice, leaves[path].shape[1:]))] = leaves[path]
    return {**step, "obs": wide["obs"], **({} if mask is None else {"mask": mask})}


def difference(old: ActorCritic, new: ActorCritic, before: EnvSpec, after: EnvSpec, masks: Any = (None, None)) -> float:
    """The largest of log-probabilities and values over steps in which each has its own state and acts by itself."""
    rng, most = np.random.default_rng(0), 0.0
    states = old.initial(LANES), new.initial(LANES)
    with torch.no_grad():
        for _ in range(STEPS):
            step = step_of(rng, before)
            wide = widened(step, rng, after, masks[1])
            out, one = old.act({**step, **({} if masks[0] is None else {"mask": masks[0]})}, states[0])
            more, two = new.act(wide, states[1])
            states = one, two
            for (path, a), (_, b) in zip(tree.leaves(out["action"]), tree.leaves(more["action"]), strict=True):
                assert torch.equal(a, b), path
            most = max(most, *(float((out[k] - more[k]).abs().max()) for k in ("logp", "value")))
    return most


DICT = EnvSpec({"a": Field((2, 3), "float32"), "b": Field((), "int64")}, Discrete(4), classes={"b": 4})
MORE = {"a": Field((3, 5), "float32"), "b": Field((), "int64"), "c": Field((2,), "float32")}
SMALL, LARGE = {"hidden": (64, 64)}, {"hidden": (128, 128)}


@pytest.mark.parametrize(
    ("old", "new", "was", "now"),
    [
        (VECTOR, VECTOR, {"core": "lstm", "core_size": 32}, {"core": "lstm", "core_size": 48}),
        (VECTOR, VECTOR, {"core": "gru", "core_size": 32}, {"core": "gru", "core_size": 48}),
        (VECTOR, VECTOR, SMALL, LARGE),
        (VECTOR, VECTOR, {**SMALL, "network": "separate"}, {**LARGE, "network": "separate"}),
        (VECTOR, LONGER, SMALL, SMALL),
        (DICT, replace(DICT, obs=MORE, classes={"b": 6}), SMALL, SMALL),
        (VECTOR, VECTOR, {**SMALL, "width": 32}, {**LARGE, "width": 48}),
    ],
    ids=["lstm", "gru", "mlp", "separate", "longer vector", "dict", "hidden layers of the heads"],
)
def test_outputs_are_the_same_but_for_rounding(old: EnvSpec, new: EnvSpec, was: dict, now: dict):
    """To the bit on most processors: on others a longer product adds in another order."""
    both = pair(old, new, was, now)
    assert sum(p.numel() for p in both[1].parameters()) > sum(p.numel() for p in both[0].parameters())
    assert difference(*both, old, new) <= 1e-6


def test_gradients_reach_new_units_at_once():
    was = {"core": "lstm", "core_size": 32, "hidden": (32,)}
    _, new = pair(VECTOR, LONGER, was, {**was, "core_size": 48, "hidden": (40,)})
    rng = np.random.default_rng(0)
    rows = [step_of(rng, LONGER) for _ in range(4)]
    batch = {k: torch.stack([row[k] for row in rows]) for k in rows[0]}
    batch["action"] = torch.zeros(4, LANES, dtype=torch.int64)
    out = new.unroll(batch, new.initial(LANES))
    (out["logp"].sum() + out["value"].sum()).backward()
    recurrent = new.core.cell.recurrent.weight.grad.unflatten(0, (4, 48))
    assert recurrent[:, :32, 32:].any(), "old units begin to hear new ones"
    assert new.actions.weight.grad[:, 32:].any()
    assert new.value.weight.grad[:, 32:].any()
    assert new.torso.layers[0].weight.grad[:32, 5:].any(), "and new inputs"
    assert new.core.input.weight.grad.unflatten(0, (4, 48))[:, :32, 32:].any(), "and new features"


def test_statistics_stand_where_the_weights_do():
    was = {"core": "gru", "core_size": 6, "hidden": (7,), "previous": True}
    before, after = pair(VECTOR, replace(LONGER, action=Discrete(5)), was, {**was, "core_size": 9, "hidden": (8,)})
    growth = NetworkGrowth(before, after)
    nothing = {k: np.zeros_like(v) for k, v in arrays(after).items()}
    wanted = growth.grow(arrays(before), nothing)
    flat = np.concatenate([p.detach().numpy().ravel() for p in before.parameters()])
    found = growth.grow_statistics(flat)
    names = [name for name, _ in after.named_parameters()]
    assert np.array_equal(found, np.concatenate([wanted[name].ravel() for name in names]))
    ones = growth.grow_statistics(np.zeros_like(flat), 1.0)
    assert ones.sum() == len(ones) - len(flat)
    with pytest.raises(ValueError, match="reshape"):
        growth.grow_statistics(flat[1:])


def test_deviations_of_real_actions_and_running_statistics_are_kept():
    old, new = continuous(Field((3,), "float32"), 2), continuous(Field((5,), "float32"), 4)
    networks = [build_network(NetworkFactory("mlp", spec, {"inputs": "normalize"}), 1) for spec in (old, new)]
    before, after = networks
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
    few = EnvSpec({"a": DICT.obs["a"]}, DICT.action)
    before, after = (build_network(NetworkFactory("mlp", spec), 1) for spec in (DICT, few))
    growth = NetworkGrowth(before, after)
    assert growth.missing == ["b"]
    grown = growth.grow(arrays(before), arrays(after))
    assert np.array_equal(grown["torso.layers.0.weight"], before.torso.layers[0].weight.detach().numpy()[:, :6])


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ({"hidden": (64,)}, {"hidden": (32,)}, "torso.layers.0.weight: the features would go from [64] to [32]"),
        ({"hidden": (64,)}, {"hidden": (64, 64)}, "torso.layers.2.weight would be new"),
        ({"hidden": (64, 64)}, {"hidden": (64,)}, "torso.layers.2.weight would be missing"),
        ({"core": "lstm"}, {"core": "none"}, "core.input.weight would be missing"),
        ({"core": "lstm"}, {"core": "gru"}, "the gates would go from [4, 256] to [3, 256]"),
    ],
)
def test_what_is_no_growth_is_refused_in_one_line(was: dict, now: dict, says: str):
    before, after = (build_network(NetworkFactory("mlp", VECTOR, given), 1) for given in (was, now))
    with pytest.raises(UserError, match=r"networks only grow|none is added") as caught:
        NetworkGrowth(before, after)
    assert says in str(caught.value)


IMAGE = EnvSpec(Field((2, 84, 84), "uint8"), Discrete(3))
VIEW = {"view": Field((3, 9, 9), "uint8"), "own": Field((4,), "float32")}


@pytest.mark.parametrize(
    ("name", "spec", "hidden"), [("nature", IMAGE, (8, 16)), ("ftw", EnvSpec(VIEW, Discrete(3)), (8, 16))]
)
def test_layers_behind_convolutions_grow(name: str, spec: EnvSpec, hidden: tuple[int, int]):
    was, now = ({"hidden": n, "network": name, "core": "lstm", "core_size": n} for n in hidden)
    before, after = pair(spec, spec, was, now)
    growth = NetworkGrowth(before, after)
    assert not any("convs" in tensor for tensor in growth.changed)
    rng = np.random.default_rng(0)
    obs = tree.map(lambda f: torch.from_numpy((rng.random((LANES, *f.shape)) * 255).astype(f.dtype)), spec.obs)
    step = {"obs": obs, "first": torch.zeros(LANES, dtype=torch.bool), "reward": torch.zeros(LANES)}
    (out, _), (more, _) = (policy.act(step, policy.initial(LANES)) for policy in (before, after))
    torch.testing.assert_close(out["value"], more["value"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out["logp"], more["logp"], rtol=1e-5, atol=1e-5)


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
    torch.testing.assert_close(*maps, rtol=0, atol=1e-6)
    value, (advantage,) = before.auxiliary.pixel.values(maps[0])
    more, (wider,) = after.auxiliary.pixel.values(maps[1])
    torch.testing.assert_close(value, more, rtol=0, atol=1e-6)
    torch.testing.assert_close(advantage, wider[:, :3], rtol=0, atol=1e-6)
    assert not wider[:, 3:].any()


# Networks for sets of units that grow: the same numbers for the units that were there, wherever they stand now.

FIVE_STEPS, FIVE_LANES = 20, 64
FIVE: dict[str, Any] = {"network": "five", "core": "lstm", "core_size": 32, "hidden": 64, "init": "torch"}


def fight(obs: Spec, values: int = 4, uses: tuple[int, ...] = (1, 3)) -> EnvSpec:
    """FIGHT with other observations, and values of its first part of which some name a unit."""
    assert isinstance(obs, dict)
    units = sum(field.shape[0] for field in obs.values() if len(field.shape) == 2)
    parts = {"primary": Discrete(values), "unit": Discrete(units), "offset": Discrete(5)}
    mask = {"primary": Field((values,), "bool"), "unit": Field((values, units), "bool")}
    return replace(FIGHT, obs=obs, action=Conditional(parts, {"unit": uses, "offset": (2, 3)}), mask=mask)


def units(n: int, numbers: int) -> Field:
    return Field((n, numbers), "float32")


def differences(old: ActorCritic, new: ActorCritic, spec: EnvSpec) -> dict[str, float]:
    """The largest in log-probability and value, where each has its own state and `old` acts."""
    wider = WiderRows(FIGHT, spec, {"unit": match_axes("", old.torso.unit_axis, new.torso.unit_axis)})
    batch, before, after = rows(FIVE_STEPS, FIVE_LANES, old.noise), old.initial(FIVE_LANES), new.initial(FIVE_LANES)
    most = {"logp": 0.0, "value": 0.0}
    for i in range(FIVE_STEPS):
        step = tree.map(lambda x, i=i: x[i], batch)
        with torch.no_grad():
            out, before = old.act(step, before)
            row = {**wider.row(step), "action": wider.action(out["action"])}
            found = new.unroll(tree.map(lambda x: x.unsqueeze(0), row), after)
            _, after = new.act({**row, "noise": torch.full((FIVE_LANES, new.noise), 0.5)}, after)
        after |= {k: row[k] for k in ("action",) if k in after}
        most = {k: max(most[k], float((found[k][0] - out[k]).abs().max())) for k in most}
    return most


FIVE_MORE = {**OBS, "allies": units(4, 4), "enemies": units(9, 4)}
SETS = {"own": OBS["own"], "allies": OBS["allies"], "creeps": units(6, 5), "x": vector(2), **OBS}
FIVE_LARGE = {"core_size": 48, "hidden": 96}
ALL = {**SETS, **FIVE_MORE, "own": vector(8), "towers": units(5, 3)}


@pytest.mark.parametrize(
    ("spec", "now"),
    [
        (FIGHT, {"core_size": 48}),
        (FIGHT, {"hidden": 128}),
        (fight({**OBS, "own": vector(8), "enemies": units(3, 7)}), {"inputs": "normalize"}),
        (fight(OBS, 6, (1, 3, 4)), {}),
        (fight(FIVE_MORE), {}),
        (fight(SETS), {}),
        (fight(ALL, 6, (1, 3, 4)), {**FIVE_LARGE, "inputs": "normalize", "previous": True}),
    ],
    ids=["core", "hidden", "numbers", "masked actions", "units", "sets", "all, with the action before"],
)
def test_outputs_stay(spec: EnvSpec, now: dict[str, Any]):
    """But for rounding: sums over more units, and on some processors larger products, add in another order."""
    torch.manual_seed(0)
    was = FIVE | {k: v for k, v in now.items() if k not in FIVE_LARGE}
    before, after = pair(FIGHT, spec, was, was | now)
    if before.inputs is not None:
        for _ in range(3):
            before.observe(rows(5, FIVE_LANES, 1))
        checkpoint.load_into(after, NetworkGrowth(before, after).grow(arrays(before), arrays(after)))
    found = differences(before, after, spec)
    assert found["value"] <= 1e-6
    assert found["logp"] <= 1e-6


@pytest.mark.parametrize(
    ("spec", "now", "says"),
    [
        (fight({**OBS, "enemies": units(2, 4)}), {}, "the units of enemies would go from [3] to [2], and networks"),
        (fight({k: OBS[k] for k in OBS if k != "enemies"}), {}, "the units of enemies would be missing"),
        (fight({**OBS, "enemies": units(3, 3)}), {}, "the observation enemies would go from [4] to [3]"),
        (fight({k: OBS[k] for k in OBS if k != "own"}), {}, "torso.hero.0.weight would be missing"),
        (fight(OBS, 4, (1, 2)), {}, "the query of action unit of primary 3 would be missing"),
        (FIGHT, {"embedding": 48}, "the embedding would go from [32] to [48]"),
        (replace(FIGHT, action=FIGHT.action["primary"]), {}, "actions.query.weight would be missing"),
    ],
)
def test_five_what_is_no_growth_is_refused_in_one_line(spec: EnvSpec, now: dict[str, Any], says: str):
    given = {k: v for k, v in FIVE.items() if k != "network"}
    old, new = (build_network(NetworkFactory("five", one, {**given, **o}), 1) for one, o in ((FIGHT, {}), (spec, now)))
    with pytest.raises(UserError, match="networks only grow") as caught:
        NetworkGrowth(old, new)
    assert says in str(caught.value)

"""Networks for sets of units that grow: the same numbers for the units that were there, wherever they stand now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from polyplay.core import checkpoint, tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field, Spec
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Conditional, Discrete
from polyplay.nets import NetworkFactory
from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.factory import build_network
from polyplay.nets.surgery import NetworkGrowth
from tests.nets.comparison import WiderRows
from tests.nets.fights import FIGHT, OBS, rows
from tests.nets.helpers import vector
from tests.nets.test_surgery import arrays, pair

STEPS, LANES = 40, 256  # 10,240 rows
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
    wider = WiderRows(FIGHT, spec, NetworkGrowth(old, new).named)
    batch, before, after = rows(STEPS, LANES, old.noise), old.initial(LANES), new.initial(LANES)
    most = {"logp": 0.0, "value": 0.0}
    for i in range(STEPS):
        step = tree.map(lambda x, i=i: x[i], batch)
        with torch.no_grad():
            out, before = old.act(step, before)
            row = {**wider.row(step), "action": wider.action(out["action"])}
            found = new.unroll(tree.map(lambda x: x.unsqueeze(0), row), after)
            _, after = new.act({**row, "noise": torch.full((LANES, new.noise), 0.5)}, after)
        after |= {k: row[k] for k in ("action",) if k in after}
        most = {k: max(most[k], float((found[k][0] - out[k]).abs().max())) for k in most}
    return most


MORE = {**OBS, "allies": units(4, 4), "enemies": units(9, 4)}
SETS = {"own": OBS["own"], "allies": OBS["allies"], "creeps": units(6, 5), "x": vector(2), **OBS}
LARGE = {"core_size": 48, "hidden": 96}
ALL = {**SETS, **MORE, "own": vector(8), "towers": units(5, 3)}


@pytest.mark.parametrize(
    ("spec", "now"),
    [
        (FIGHT, {"core_size": 48}),
        (FIGHT, {"hidden": 128}),
        (fight({**OBS, "own": vector(8), "enemies": units(3, 7)}), {"inputs": "normalize"}),
        (fight(OBS, 6, (1, 3, 4)), {}),
        (fight(MORE), {}),
        (fight(SETS), {}),
        (fight(ALL, 6, (1, 3, 4)), {**LARGE, "inputs": "normalize", "previous": True}),
    ],
    ids=["core", "hidden", "numbers", "masked actions", "units", "sets", "all, with the action before"],
)
def test_outputs_stay(spec: EnvSpec, now: dict[str, Any]):
    """But for rounding: sums over more units, and on some processors larger products, add in another order."""
    torch.manual_seed(0)
    was = FIVE | {k: v for k, v in now.items() if k not in LARGE}
    before, after = pair(FIGHT, spec, was, was | now)
    if before.inputs is not None:
        for _ in range(3):
            before.observe(rows(5, LANES, 1))
        checkpoint.load_into(after, NetworkGrowth(before, after).grow(arrays(before), arrays(after)))
    found = differences(before, after, spec)
    assert found["value"] <= 1e-6
    assert found["logp"] <= 1e-6


def test_units_keep_their_numbers_and_new_ones_are_named_by_the_same_query():
    torch.manual_seed(0)
    spec = fight(MORE, 5, (1, 3, 4))
    before, after = pair(FIGHT, spec, FIVE, FIVE)
    growth = NetworkGrowth(before, after)
    assert growth.named["unit"].new.tolist() == [0, 1, 4, 5, 6, 13, 14, 15, 16]
    x, keys, wide = torch.randn(LANES, 32), torch.randn(LANES, 9, 32), torch.randn(LANES, 17, 32)
    wide[:, growth.named["unit"].new] = keys
    with torch.no_grad():
        few, many = before.actions(x, keys.flatten(1)), after.actions(x, wide.flatten(1))
    old, new = few[:, 4:22].unflatten(1, (2, 9)), many[:, 5:56].unflatten(1, (3, 17))
    assert torch.equal(new[:, :2, growth.named["unit"].new], old)
    assert not new[:, 2].any(), "a value that names units now names all alike"
    assert new[:, :2].all()
    assert torch.equal(many[:, :4], few[:, :4])
    assert torch.equal(many[:, 56:], few[:, 22:])


def test_where_no_action_names_units_a_set_may_go():
    plain, fewer = (
        EnvSpec({k: OBS[k] for k in names}, Discrete(3)) for names in (("own", "allies", "towers"), ("own", "allies"))
    )
    growth = NetworkGrowth(*(build_network(NetworkFactory("five", spec), 1) for spec in (plain, fewer)))
    assert (growth.missing, growth.named) == (["towers"], {})


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
def test_what_is_no_growth_is_refused_in_one_line(spec: EnvSpec, now: dict[str, Any], says: str):
    given = {k: v for k, v in FIVE.items() if k != "network"}
    old, new = (build_network(NetworkFactory("five", one, {**given, **o}), 1) for one, o in ((FIGHT, {}), (spec, now)))
    with pytest.raises(UserError, match="networks only grow") as caught:
        NetworkGrowth(old, new)
    assert says in str(caught.value)

"""Five's torso: beside a plain float64 twin, what absent units and the order of units change, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs.spaces import Conditional, Discrete
from polyplay.nets import factory
from polyplay.nets.torsos import FiveTorso
from tests.nets.fights import FIGHT, OBS, PARTS, SETS, appear, doubles, rows
from tests.nets.helpers import image, observations, parameters, vector


def made(seed: int = 0, **options: int) -> FiveTorso:
    torch.manual_seed(seed)
    torso = FiveTorso(FIGHT, **options)
    for p in torso.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return torso


def plain(torso: FiveTorso, obs: dict, quarter: int) -> tuple[np.ndarray, np.ndarray]:
    """Features [hidden] and embeddings [units, E] of one observation, by float64 and loops."""

    def relu_layers(layers, x):
        for weight, bias in doubles(layers):
            x = np.maximum(weight @ x + bias, 0)
        return x

    pooled, everyone, embeddings, own = [], [], [], relu_layers(torso.hero, obs["own"])
    for path, layers in zip(SETS, torso.encoders, strict=True):
        best = np.zeros(len(own))
        for unit in obs[path]:
            found = relu_layers(layers, unit) if unit[0] > 0 else np.zeros(len(own))
            embeddings.append(found)
            best = np.maximum(best, found)
        pooled.append(best)
        everyone += embeddings[:] if path == "allies" else []
    heroes = [max(hero[k] for hero in [own, *everyone]) for k in range(quarter)]
    return relu_layers(torso.last, np.concatenate([obs["last"], own, heroes, *pooled])), np.stack(embeddings)


@pytest.mark.parametrize(("hidden", "embedding", "quarter"), [(16, 8, 2), (7, 13, 3), (128, 32, 8)])
def test_it_is_a_plain_float64_twin(hidden, embedding, quarter):
    torso = made(hidden=hidden, embedding=embedding)
    obs = appear(observations(OBS, 12))
    obs["enemies"][0], obs["allies"][1] = 0, 0
    got = torso(obs).detach().double().numpy()
    assert got.shape == (12, torso.features) == (12, hidden + 9 * embedding)
    assert (torso.pointer, torso.unit_features) == (("unit", embedding), 9 * embedding)
    for i, row in enumerate(got):
        features, units = plain(torso, {k: v[i].double().numpy() for k, v in obs.items()}, quarter)
        np.testing.assert_allclose(row[:hidden], features, atol=1e-5)
        np.testing.assert_allclose(row[hidden:].reshape(9, embedding), units, atol=1e-5)
    assert (got[0, hidden:].reshape(9, -1)[SETS["enemies"]] == 0).all()
    assert np.abs(got).max() > 0.1


def test_its_layers_by_hand():
    sets = 2 * (4 * 8 + 8) + (2 * 8 + 8) + (5 * 8 + 8) + 4 * (8 * 8 + 8)
    assert parameters(FiveTorso(FIGHT, 16, 8)) == sets + (3 + 8 + 2 + 3 * 8) * 16 + 16


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(-1e6, 1e6), st.floats(-9, 0))
def test_units_that_are_not_there_change_nothing(seed, garbage, flag):
    torso = made(seed % 3, hidden=8, embedding=8)
    torch.manual_seed(seed)
    obs = appear(observations(OBS, 5))
    other = {k: v.clone() for k, v in obs.items()}
    for path in SETS:
        absent = obs[path][..., 0] == 0
        other[path][absent] = garbage
        other[path][..., 0][absent] = flag
    assert torch.equal(torso(obs), torso(other))


def test_where_nobody_is_all_is_finite_and_so_are_gradients():
    torso = made(hidden=8, embedding=8)
    obs = {k: torch.zeros(3, *f.shape).requires_grad_() for k, f in OBS.items()}
    got = torso(obs)
    assert (got[:, 8:] == 0).all()
    got.sum().backward()
    assert all(x.grad.isfinite().all() for x in (*obs.values(), *torso.parameters()))
    assert obs["own"].grad.abs().sum() > 0


@pytest.mark.parametrize("path", SETS)
def test_the_order_of_a_set_is_that_of_its_embeddings_and_nothing_to_the_rest(path):
    torso, obs = made(), appear(observations(OBS, 6))
    order = torch.randperm(obs[path].shape[1], generator=torch.Generator().manual_seed(1))
    assert order.tolist() != sorted(order.tolist())
    one, two = torso(obs), torso({**obs, path: obs[path][:, order]})
    assert torch.equal(one[:, :128], two[:, :128])
    units = one[:, 128:].unflatten(1, (9, 32)).clone()
    units[:, SETS[path]] = units[:, SETS[path]][:, order]
    assert torch.equal(units, two[:, 128:].unflatten(1, (9, 32)))
    assert not torch.equal(one, two)


def test_every_number_of_who_is_there_is_heard_and_every_layer_learns():
    policy = factory.make("five", FIGHT, "lstm", 16, init="torch", embedding=16)
    batch = rows(6, 9, policy.noise)
    obs = {k: v.requires_grad_() for k, v in batch["obs"].items()}
    action = {k: torch.randint(part.n, (6, 9)) for k, part in PARTS.items()}
    out = policy.unroll({**batch, "mask": {}, "action": action}, policy.initial(9))
    (out["logp"].sum() + out["value"].square().sum() + out["entropy"].sum()).backward()
    for path in ("own", "last"):
        assert (obs[path].grad.abs().sum((0, 1)) > 0).all(), path
    for path in SETS:
        there, grad = obs[path][..., 0] > 0, obs[path].grad
        assert (grad[there].abs().sum(0) > 0).all(), path
        assert (grad[~there] == 0).all(), path
    assert all(p.grad.abs().sum() > 0 for p in policy.parameters())


def test_other_actions_have_no_pointer_and_values_their_own_last_layer():
    for action in (Discrete(9), {"unit": Discrete(9)}, Conditional({**PARTS, "unit": Discrete(8)}, FIGHT.action.uses)):
        torso = FiveTorso(replace(FIGHT, action=action))
        assert (torso.pointer, torso.unit_features, torso.features) == (None, 0, 128)
        assert torso(observations(OBS, 3)).shape == (3, 128)
    values = factory.make_values("five", replace(FIGHT, action=Discrete(9), mask=None), core="lstm", core_size=8)
    assert values.torso.last is None
    step = {"obs": observations(OBS, 3), "first": torch.ones(3, dtype=torch.bool)}
    step |= {"noise": torch.rand(3, values.noise), "reward": torch.zeros(3), "epsilon": torch.zeros(3)}
    assert values.act(step, values.initial(3))[0]["action"].shape == (3,)


def test_only_heroes_who_have_both_names_are_pooled_together():
    for obs in ({"own": vector(5), "mates": OBS["allies"]}, {"own": OBS["allies"], "allies": OBS["allies"]}):
        torso = FiveTorso(replace(FIGHT, obs={**obs, "speed": Field((), "float32")}))
        assert torso.hero is None
        assert torso(observations({**obs, "speed": Field((), "float32")}, 2)).shape == (2, torso.features)


SEVERAL = Conditional({**PARTS, "other": Discrete(9)}, {**FIGHT.action.uses, "other": (0,)})


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"obs": vector(5)}, {}, r"takes a Dict of real vectors and sets \[units, numbers\], here they are float32"),
        ({"obs": OBS["allies"]}, {}, "takes a Dict of real vectors and sets"),
        ({"obs": {"own": vector(5)}}, {}, "takes a Dict of real vectors and sets"),
        ({"obs": {**OBS, "map": image()}}, {}, "takes a Dict of real vectors and sets"),
        ({"obs": {**OBS, "kind": Field((), "int64")}}, {}, "takes a Dict of real vectors and sets"),
        ({"action": SEVERAL}, {}, "unit, other have a value for each of 9 units; allowed: one part"),
        ({}, {"hidden": -1}, "hidden=-1, embedding=32 given, allowed: from 0 and from 4"),
        ({}, {"embedding": 3}, "hidden=128, embedding=3 given"),
    ],
)
def test_what_it_does_not_take_is_refused_in_one_line(change, options, said):
    with pytest.raises(UserError, match=f"--network five: {said}") as e:
        factory.make("five", replace(FIGHT, **{"mask": None, **change}), **options)
    assert "\n" not in str(e.value)


def test_its_width_is_said_beside_its_name():
    policy = factory.NetworkFactory("five(24)", FIGHT, {"core": "gru", "core_size": 8})()
    assert policy.torso.last.out_features == 24
    assert policy.core.inputs == 24
    assert dict(tree.leaves(policy.state_spec())).keys() == {"h"}

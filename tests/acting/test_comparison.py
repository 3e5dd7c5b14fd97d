"""Rows of one environment as those of a larger one, and policies that are asked in them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from polyplay.acting.comparison import WiderRows, compare_policies
from polyplay.common.tree import Field
from polyplay.envs import Envs
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Conditional, Discrete, MultiBinary, MultiDiscrete
from polyplay.nets import NetworkFactory
from polyplay.nets.axes import AxisMatch
from polyplay.nets.factory import build_network
from tests.nets.helpers import continuous

VECTOR = Field((2,), "float32")


def row(obs: object, mask: object = None) -> dict:
    return {"obs": obs, "first": torch.tensor([True]), **({} if mask is None else {"mask": mask})}


def legal(old: EnvSpec, new: EnvSpec, mask: object = None) -> object:
    return WiderRows(old, new).row(row(torch.zeros(1, 2), mask)).get("mask")


def test_what_is_new_of_an_observation_is_0():
    old = EnvSpec({"a": Field((1, 2), "float32"), "gone": VECTOR}, Discrete(2))
    new = EnvSpec({"b": VECTOR, "a": Field((2, 3), "float32")}, Discrete(2))
    obs = WiderRows(old, new).row(row({"a": torch.ones(1, 1, 2), "gone": torch.ones(1, 2)}))["obs"]
    assert {k: v.tolist() for k, v in obs.items()} == {"a": [[[1, 1, 0], [0, 0, 0]]], "b": [[0, 0]]}


def test_what_is_new_of_actions_is_illegal():
    two, three = EnvSpec(VECTOR, Discrete(2)), EnvSpec(VECTOR, Discrete(3))
    assert legal(two, two) is None
    assert legal(two, three).tolist() == [[True, True, False]]
    assert legal(two, three, torch.tensor([[False, True]])).tolist() == [[False, True, False]]
    many, more = (EnvSpec(VECTOR, MultiDiscrete((n,), nvec)) for n, nvec in ((1, (2,)), (2, (3, 2))))
    assert legal(many, more).tolist() == [[True, True, False, True, False]], "a new number has its first value"
    bits, wider = (EnvSpec(VECTOR, MultiBinary((n,))) for n in (1, 2))
    assert legal(bits, wider, torch.tensor([[False, True]])).tolist() == [[False, True, True, False]]


def test_a_new_part_has_its_first_value():
    old, new = (EnvSpec(VECTOR, {name: Discrete(2) for name in names}) for names in ("a", "ab"))
    assert legal(old, new)["b"].tolist() == [[True, False]]
    assert WiderRows(old, new).action({"a": torch.tensor([1])})["b"].tolist() == [0]


def test_masks_for_each_value_of_the_first_part_get_rows_for_new_ones():
    old = Conditional({"v": Discrete(2), "x": Discrete(2)}, {"x": (1,)})
    new = Conditional({"v": Discrete(3), "x": Discrete(2)}, {"x": (1, 2)})
    given = {"v": torch.ones(1, 2, dtype=torch.bool), "x": torch.tensor([[[False, False], [False, True]]])}
    mask = legal(EnvSpec(VECTOR, old), EnvSpec(VECTOR, new), given)
    assert mask["v"].tolist() == [[True, True, False]]
    assert mask["x"].tolist() == [[[False, False], [False, True], [False, False]]]


def test_values_that_stand_elsewhere_are_moved():
    old, new = (EnvSpec(VECTOR, {"a": Discrete(n)}) for n in (2, 4))
    moved = AxisMatch(np.array([0, 1]), np.array([1, 3]), np.array([]))
    wider = WiderRows(old, new, {"a": moved})
    assert wider.action({"a": torch.tensor([1, 0])})["a"].tolist() == [3, 1]
    mask = wider.row(row(torch.zeros(1, 2), {"a": torch.tensor([[False, True]])}))["mask"]
    assert mask["a"].tolist() == [[False, False, False, True]]


def test_densities_of_new_real_numbers_are_not_compared():
    old, new = continuous(VECTOR, 2), continuous(VECTOR, 3)
    assert WiderRows(old, old).comparable
    assert not WiderRows(old, new).comparable


def test_a_policy_is_like_itself_and_unlike_another():
    envs = Envs("toy:memory", 2)
    options = {"core": "gru", "core_size": 8, "previous": True}
    one, other = (build_network(NetworkFactory("mlp", envs.spec, options), seed) for seed in (1, 2))
    assert compare_policies(envs, one, one, envs.spec, 20, 0) == (160, 0.0, 0.0, 0.0)
    found = compare_policies(envs, one, other, replace(envs.spec), 20, 0)
    assert found.rows == 160
    assert min(found.logp, found.value, found.relative) > 1e-3
    assert np.isfinite(found).all()

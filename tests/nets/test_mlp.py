from __future__ import annotations

import pytest
import torch

from polyplay import nets
from polyplay.common.errors import UserError
from polyplay.common.tree import Field
from tests.nets.helpers import continuous, discrete, parameters, vector


def test_parameters():
    spec = continuous(vector(17), 6)  # HalfCheetah
    body = 17 * 64 + 64 + 64 * 64 + 64
    assert parameters(nets.make("mlp", spec)) == body + 64 * 6 + 6 + 6 + 65


def test_trees_are_concatenated_in_order_with_one_hot_and_scaled_bytes():
    obs = {
        "inner": {"room": Field((), "int64"), "bits": Field((2,), "bool")},
        "eye": Field((1, 2), "uint8"),
        "far": Field((), "float64"),
    }
    torso = nets.make("auto", discrete(obs, classes={"inner/room": 3})).torso
    heard = []
    torso.layers.register_forward_pre_hook(lambda _, args: heard.append(args[0]))
    torso(
        {
            "far": torch.tensor([0.5], dtype=torch.float64),
            "eye": torch.tensor([[[255, 0]]], dtype=torch.uint8),
            "inner": {"bits": torch.tensor([[True, False]]), "room": torch.tensor([2])},
        }
    )
    assert heard[0].tolist() == [[0, 0, 1, 1, 0, 1, 0, 0.5]]
    assert heard[0].dtype == torch.float32


def test_numbers_of_a_multi_discrete_observation_are_one_hot():
    torso = nets.make("auto", discrete({"m": Field((2, 1), "int64")}, classes={"m": (2, 3)})).torso
    heard = []
    torso.layers.register_forward_pre_hook(lambda _, args: heard.append(args[0]))
    torso({"m": torch.tensor([[[1], [2]], [[0], [0]]])})
    assert heard[0].tolist() == [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]


def test_a_bare_discrete_observation_is_one_hot():
    torso = nets.make("auto", discrete(Field((), "int64"), classes={"": 16})).torso
    assert torso.layers[0].in_features == 16
    assert torso(torch.tensor([0, 15])).shape == (2, 64)


def test_activations_and_sizes():
    relu = nets.make("mlp", discrete(vector(3)), hidden=(5,), activation="relu").torso
    assert relu.features == 5
    assert relu(torch.randn(100, 3)).min() == 0
    tanh = nets.make("mlp", discrete(vector(3)), hidden=(5,)).torso
    assert -1 < tanh(torch.randn(100, 3)).min() < 0
    with pytest.raises(UserError, match="activation: 'elu' is not one of tanh, relu"):
        nets.make("mlp", discrete(vector(3)), activation="elu")
    with pytest.raises(UserError, match="hidden: \\(\\) given"):
        nets.make("mlp", discrete(vector(3)), hidden=())

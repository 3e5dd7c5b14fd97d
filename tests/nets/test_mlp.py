from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs.pool import space_to_json
from polyplay.nets import factory
from tests.nets.helpers import continuous, discrete, parameters, vector


def test_parameters():
    spec = continuous(vector(17), 6)  # HalfCheetah
    body = 17 * 64 + 64 + 64 * 64 + 64
    assert parameters(factory.make("mlp", spec)) == body + 64 * 6 + 6 + 6 + 65


def test_trees_are_concatenated_in_order_with_one_hot_and_scaled_bytes():
    obs = {
        "inner": {"room": Field((), "int64"), "bits": Field((2,), "bool")},
        "eye": Field((1, 2), "uint8"),
        "far": Field((), "float64"),
    }
    torso = factory.make("auto", discrete(obs, classes={"inner/room": 3})).torso
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
    torso = factory.make("auto", discrete({"m": Field((2, 1), "int64")}, classes={"m": (2, 3)})).torso
    heard = []
    torso.layers.register_forward_pre_hook(lambda _, args: heard.append(args[0]))
    torso({"m": torch.tensor([[[1], [2]], [[0], [0]]])})
    assert heard[0].tolist() == [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]


def test_a_bare_discrete_observation_is_one_hot():
    torso = factory.make("auto", discrete(Field((), "int64"), classes={"": 16})).torso
    assert torso.layers[0].in_features == 16
    assert torso(torch.tensor([0, 15])).shape == (2, 64)


def test_activations_and_sizes():
    relu = factory.make("mlp", discrete(vector(3)), hidden=(5,), activation="relu").torso
    assert relu.features == 5
    assert relu(torch.randn(100, 3)).min() == 0
    tanh = factory.make("mlp", discrete(vector(3)), hidden=(5,)).torso
    assert -1 < tanh(torch.randn(100, 3)).min() < 0
    with pytest.raises(UserError, match="activation: 'elu' is not one of tanh, relu"):
        factory.make("mlp", discrete(vector(3)), activation="elu")
    with pytest.raises(UserError, match="hidden: \\(\\) given"):
        factory.make("mlp", discrete(vector(3)), hidden=())


BYTES = {  # declared bounds, bytes, and what a network takes for them
    "flags": (0, 1, [0, 1, 1], [0.0, 1.0, 1.0]),
    "pixels": (0, 255, [0, 51, 255], [0.0, 0.2, 1.0]),
    "kinds of cells": (2, 10, [2, 6, 10], [0.0, 0.5, 1.0]),
    "some always the same": ([3, 0, 0], [3, 4, 2], [3, 1, 1], [0.0, 0.25, 0.5]),
}


@pytest.mark.parametrize(("low", "high", "given", "taken"), BYTES.values(), ids=BYTES)
@pytest.mark.parametrize("path", ["", "part"])
def test_bytes_are_scaled_by_the_bounds_that_were_declared(path, low, high, given, taken):
    ends = (np.broadcast_to(np.uint8(x), 3).copy() for x in (low, high))
    shown = gym.Box(*ends, (3,), np.uint8)
    made = {"observation": space_to_json(gym.Dict({"part": shown}) if path else shown)}
    made["action"] = space_to_json(gym.Discrete(2))
    field = Field((3,), "uint8")
    torso = factory.make("auto", discrete({"part": field} if path else field, spaces=made)).torso
    heard = []
    torso.layers.register_forward_pre_hook(lambda _, args: heard.append(args[0]))
    bytes_ = torch.tensor([given], dtype=torch.uint8)
    torso({"part": bytes_} if path else bytes_)
    torch.testing.assert_close(heard[0], torch.tensor([taken]))
    assert not torso.state_dict().keys() - {k for k, _ in torso.named_parameters()}, "bounds are not learnt"


def test_planes_of_flags_are_no_pixels_for_convolutions_either():
    planes = Field((3, 84, 84), "uint8")
    torsos = []
    for high in (1, 255):
        made = {"observation": space_to_json(gym.Box(0, high, planes.shape, np.uint8))}
        made["action"] = space_to_json(gym.Discrete(2))
        torch.manual_seed(3)
        torsos.append(factory.make("a3c", discrete(planes, spaces=made)).torso)
    flags = torch.randint(0, 2, (3, *planes.shape), dtype=torch.uint8)
    torch.testing.assert_close(torsos[0](flags), torsos[1](255 * flags))

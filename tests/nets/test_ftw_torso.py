"""FTW's torso: the paper's layers by their parameters, small views, what stands beside a view, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces as gym

from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.nets import factory
from polyplay.nets.torsos import FTWTorso
from tests.nets.helpers import declared, discrete, image, observations, parameters, vector

PICTURE = {"view": image(3), "numbers": vector(12)}
WINDOW = {"view": image(10, 11), "health": Field((), "float32"), "flags": Field((2,), "bool")}


def test_the_paper_s_layers_by_hand():
    """84 → 20 → 9 → 9 → 9."""
    convs = 3 * 8 * 8 * 32 + 32 + 32 * 4 * 4 * 64 + 64 + 2 * (64 * 3 * 3 * 64 + 64)
    assert parameters(FTWTorso(discrete(image(3)))) == convs + 64 * 9 * 9 * 256 + 256
    beside = FTWTorso(discrete(PICTURE))
    assert parameters(beside) == convs + (64 * 9 * 9 + 12) * 256 + 256
    assert beside.features == 256


def test_a_small_view_by_hand():
    """11 → 9 → 4."""
    torso = FTWTorso(discrete(WINDOW), hidden=64)
    assert parameters(torso) == 10 * 9 * 32 + 32 + 32 * 9 * 64 + 64 + (64 * 4 * 4 + 3) * 64 + 64
    assert torso(observations(WINDOW, 5)).shape == (5, 64)
    assert FTWTorso(discrete(image(2, 5)), hidden=8)(observations(image(2, 5), 3)).shape == (3, 8)


def test_the_input_goes_on_around_both_last_convolutions():
    torch.manual_seed(0)
    torso, obs = FTWTorso(discrete(image(3))), observations(image(3), 2)
    one, two, three, four = torso.convs
    x = F.conv2d(obs / 255.0, one.weight, one.bias, stride=4).relu()
    x = F.conv2d(x, two.weight, two.bias, stride=2).relu()
    for conv in (three, four):
        x = x + F.conv2d(x, conv.weight, conv.bias, padding=1).relu()
    expected = F.linear(x.flatten(1), torso.fc.weight, torso.fc.bias).relu()
    torch.testing.assert_close(torso(obs), expected, atol=1e-5, rtol=1e-5)
    assert expected.abs().max() > 0.1


def test_all_that_is_seen_matters_and_gradients_reach_every_layer():
    torch.manual_seed(1)
    torso, obs = FTWTorso(discrete(WINDOW)), observations(WINDOW, 4)
    obs["flags"] = torch.zeros(4, 2, dtype=torch.bool)
    before = torso(obs)
    for name, other in (("view", 255 - obs["view"]), ("health", obs["health"] + 1), ("flags", ~obs["flags"])):
        assert (torso({**obs, name: other}) != before).any(1).all(), name
    before.square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in torso.parameters())


@pytest.mark.parametrize(
    ("obs", "said"),
    [
        (vector(5), "takes one image of bytes and numbers beside it, here they are float32"),
        (Field((3, 84, 84), "float32"), "takes one image of bytes and numbers beside it, here they are float32"),
        ({"a": image(), "b": image()}, "takes one image of bytes and numbers beside it, here they are"),
        ({"a": image(), "b": Field((2, 3), "float32")}, "takes one image of bytes and numbers beside it"),
        (Field((3, 4, 4), "uint8"), r"takes an image of 5 × 5 or more, here it is \[3, 4, 4\]"),
        (Field((3, 2, 9), "uint8"), r"takes an image of 5 × 5 or more, here it is \[3, 2, 9\]"),
        (Field((3, 1, 1), "uint8"), r"takes an image of 5 × 5 or more, here it is \[3, 1, 1\]"),
    ],
)
def test_other_observations_are_refused_in_one_line(obs, said):
    with pytest.raises(UserError, match=f"--network ftw: {said}") as e:
        factory.make("ftw", discrete(obs))
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("obs", [image(3), PICTURE, WINDOW, image(2, 36), image(2, 35)], ids=range(5))
def test_it_is_made_by_name(obs):
    policy = factory.make("ftw", discrete(obs), "temporal", 8, previous=True, hidden=16)
    assert isinstance(policy.torso, FTWTorso)
    step = {"obs": observations(obs, 2), "reward": torch.zeros(2), "first": torch.ones(2, dtype=torch.bool)}
    out, _ = policy.act({**step, "noise": torch.rand(2, policy.noise)}, policy.initial(2))
    assert out["value"].shape == (2,)


BESIDE = {  # declared bounds of bytes beside a view, bytes, and what the last layer hears of them
    "flags": (0, 1, [0, 1, 1], [0.0, 1.0, 1.0]),
    "health": (0, 200, [0, 50, 200], [0.0, 0.25, 1.0]),
    "kinds": (2, 10, [2, 6, 10], [0.0, 0.5, 1.0]),
}


@pytest.mark.parametrize(("low", "high", "given", "taken"), BESIDE.values(), ids=BESIDE)
def test_bytes_beside_a_view_are_scaled_by_their_declared_bounds(low, high, given, taken):
    shown = gym.Dict({"view": gym.Box(0, 255, (2, 5, 5), np.uint8), "own": gym.Box(low, high, (3,), np.uint8)})
    spec = declared(shown, {"view": image(2, 5), "own": Field((3,), "uint8")})
    torso, heard = FTWTorso(spec, hidden=4), list[torch.Tensor]()
    torso.fc.register_forward_pre_hook(lambda _, args: heard.append(args[0]))
    obs = {"view": torch.zeros(1, 2, 5, 5, dtype=torch.uint8), "own": torch.tensor([given], dtype=torch.uint8)}
    torso(obs)
    order = slice(None, -3), slice(-3, None)
    torch.testing.assert_close(heard[0][:, order[1]], torch.tensor([taken]))
    torso({**obs, "own": torch.tensor([[3.0, -4.0, 9.0]])})  # normalized before: as they are
    torch.testing.assert_close(heard[1][:, order[1]], torch.tensor([[3.0, -4.0, 9.0]]))
    assert not torso.state_dict().keys() - {k for k, _ in torso.named_parameters()}, "bounds are not learnt"


def test_a_view_is_scaled_by_its_own_bounds():
    torso = FTWTorso(declared(gym.Box(10, 30, (2, 5, 5), np.uint8), image(2, 5)), hidden=4)
    heard: list[torch.Tensor] = []
    torso.convs[0].register_forward_pre_hook(lambda _, args: heard.append(args[0]))
    torso(torch.full((1, 2, 5, 5), 15, dtype=torch.uint8))
    torch.testing.assert_close(heard[0], torch.full((1, 2, 5, 5), 0.25))

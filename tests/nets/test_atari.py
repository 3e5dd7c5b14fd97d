from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from polyplay import nets
from polyplay.errors import UserError
from polyplay.nets import atari

from .helpers import discrete, image, parameters, vector


@pytest.mark.parametrize(
    ("name", "count"), [("nature", 1_687_719), ("a3c", 677_943), ("ga3c", 1_005_623), ("impala", 1_091_031)]
)
def test_parameters_with_heads_for_six_actions(name, count):
    assert parameters(nets.make(name, discrete(image()))) == count


INSTRUCTIONS = 1000 * 20 + 4 * 64 * (20 + 64 + 1) + 4 * 256 * 64  # embedding, its LSTM, its share of the core's input


@pytest.mark.parametrize(("name", "count"), [("impala", 1_628_010), ("a3c", 1_230_426)])
def test_parameters_of_impala_on_dmlab_less_the_instruction_encoder(name, count):
    spec = discrete(image()._replace(shape=(3, 72, 96)), 9)
    assert parameters(nets.make(name, spec, "lstm", 256, previous=True)) == count - INSTRUCTIONS


def test_features_and_input_scale():
    spec = discrete(image())
    dark = torch.zeros(2, 4, 84, 84, dtype=torch.uint8)
    for build in (atari.nature, atari.a3c, atari.ga3c, atari.impala):
        torso = build(spec)
        assert torso(dark).shape == (2, torso.features)
        bright = dark + 255
        torch.testing.assert_close(torso(bright), torso(torch.ones(2, 4, 84, 84)))
        assert bright.min() == 255


def test_same_padding_is_tensorflows():
    """84 → 21 pads two pixels around; 21 → 11 one before and two behind."""
    assert atari.ga3c(discrete(image())).pads == [(2, 2, 2, 2), (1, 2, 1, 2)]
    assert atari.a3c(discrete(image())).pads == [(0, 0, 0, 0), (0, 0, 0, 0)]


@pytest.mark.parametrize("sides", [(84, 84), (21, 21), (42, 11), (9, 12), (1, 2)])
def test_pooling_is_tensorflows_same_pooling(sides):
    section = atari.Section(1, 2)
    seen = []
    section.one.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    section(x := torch.randn(1, 1, *sides))
    pads = []
    for n in reversed(sides):
        missing = max((-(-n // 2) - 1) * 2 + 3 - n, 0)
        pads += [missing // 2, missing - missing // 2]
    want = F.max_pool2d(F.pad(section.conv(x), pads, value=-torch.inf), 3, 2)
    assert torch.equal(seen[0], want)


@pytest.mark.parametrize("name", ["nature", "a3c", "ga3c", "impala"])
def test_other_observations_are_refused(name):
    with pytest.raises(UserError, match=rf"--network: '{name}' takes one image .*the observations are \[4\]; use mlp"):
        nets.make(name, discrete(vector(4)))
    with pytest.raises(UserError, match="the observations are a dict of eye, goal"):
        nets.make(name, discrete({"eye": image(), "goal": vector(2)}))


def test_images_too_small_for_the_convolutions_are_refused():
    assert nets.make("nature", discrete(image(1, 36))).torso.fc.in_features == 64
    with pytest.raises(UserError, match=r"at least 36×36, the observations are \[1, 35, 35\]"):
        nets.make("nature", discrete(image(1, 35)))


def test_published_initialisations():
    torch.manual_seed(0)
    net = nets.make("nature", discrete(image()))
    weight = net.torso.fc.weight
    torch.testing.assert_close(weight @ weight.t(), 2 * torch.eye(512), atol=1e-4, rtol=0)
    torch.testing.assert_close(net.actions.weight @ net.actions.weight.t(), 1e-4 * torch.eye(6), atol=1e-6, rtol=0)
    assert net.value.weight.norm().item() == pytest.approx(1, abs=1e-4)
    assert all(p.abs().sum() == 0 for n, p in net.named_parameters() if n.endswith("bias"))
    net = nets.make("a3c", discrete(image()))
    for layer, fan_in in (
        (net.torso.convs[0], 256),
        (net.torso.fc, 2592),
        (net.actions, 256),
        (net.value, 256),
    ):
        assert 0.8 * fan_in**-0.5 < layer.weight.abs().max() <= fan_in**-0.5
        assert 0 < layer.bias.abs().max() <= fan_in**-0.5

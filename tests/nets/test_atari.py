from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polyplay.core.errors import UserError
from polyplay.nets import factory, torsos
from tests.nets.helpers import discrete, image, parameters, vector

COUNTS = {
    "nature": 1_687_719,
    "a3c": 677_943,
    "ga3c": 1_005_623,
    "ga3c_large4": 649_351,
    "ga3c_large3": 862_343,
    "ga3c_large2": 2_041_991,
    "ga3c_large1": 7_284_871,
    "impala": 1_091_031,
    "dopamine": 4_047_015,
}


def described(name: str) -> str:
    """A docstring, or the comment above a line of the table."""
    text = torsos.Impala.__doc__ or ""
    if name in torsos.CONVS:
        text = inspect.getsource(torsos).partition(f'    "{name}": (')[0].splitlines()[-1]
    return " ".join(text.split())


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_parameters_with_heads_for_six_actions(name, count):
    assert parameters(factory.make(name, discrete(image()))) == count
    assert f"{count:,} parameters" in described(name)


ACCEL = {
    "accel": (899_127, 256, [(16, 25, 19), (32, 12, 9)]),
    "accel_large": (3_621_031, 512, [(32, 25, 19), (64, 12, 9), (64, 12, 9)]),
    "rlpyt": (1_785_911, 512, [(16, 25, 19), (32, 12, 9)]),
}
SCREEN = image()._replace(shape=(4, 104, 80))


@pytest.mark.parametrize("name", ACCEL)
def test_accels_parameters_and_sides_on_its_own_screen(name):
    count, hidden, sides = ACCEL[name]
    net, seen = factory.make(name, discrete(SCREEN)), []
    assert parameters(net) == count
    assert f"{count:,} parameters" in described(name)
    for conv in net.torso.convs:
        conv.register_forward_hook(lambda _, args, out: seen.append(tuple(out.shape[1:])))
    assert net.torso(torch.zeros(1, 4, 104, 80, dtype=torch.uint8)).shape == (1, hidden)
    assert seen == sides
    assert net.torso.fc.in_features == 12 * 9 * sides[-1][0]


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("accel", [(4, 16, 8, 4, 0), (16, 32, 4, 2, 1)]),
        ("accel_large", [(4, 32, 8, 4, 0), (32, 64, 4, 2, 1), (64, 64, 3, 1, 1)]),
    ],
)
@pytest.mark.parametrize("sides", [(104, 80), (84, 84), (61, 47)])
def test_accels_padding_is_torchs_own(name, layers, sides):
    torso = factory.NETS[name](discrete(image()._replace(shape=(4, *sides))))
    plain = nn.Sequential(*(x for layer in layers for x in (nn.Conv2d(*layer), nn.ReLU())), nn.Flatten())
    for mine, theirs in zip(torso.convs, [x for x in plain if isinstance(x, nn.Conv2d)], strict=True):
        theirs.load_state_dict(mine.state_dict())
    obs = torch.randint(0, 256, (3, 4, *sides), dtype=torch.uint8)
    want = F.relu(F.linear(plain(obs.float() / 255), torso.fc.weight, torso.fc.bias))
    torch.testing.assert_close(torso(obs), want)


LARGE = {4: (21, 11, 6), 3: (28, 14, 7), 2: (42, 21, 11), 1: (84, 42, 21)}


@pytest.mark.parametrize(("stride", "sides"), LARGE.items())
def test_sides_of_ga3cs_large_networks(stride, sides):
    torso, seen = factory.make(f"ga3c_large{stride}", discrete(image())).torso, []
    for conv in torso.convs:
        conv.register_forward_hook(lambda _, args, out: seen.append(tuple(out.shape[1:])))
    assert torso(torch.zeros(1, 4, 84, 84, dtype=torch.uint8)).shape == (1, 256)
    assert seen == [(c, n, n) for c, n in zip((32, 32, 64), sides, strict=True)]
    assert torso.fc.in_features == {4: 2304, 3: 3136, 2: 7744, 1: 28224}[stride]


@pytest.mark.parametrize("name", ["ga3c", "dopamine", *(f"ga3c_large{s}" for s in LARGE)])
@pytest.mark.parametrize("side", [84, 41])
def test_same_padding_is_tensorflows_pixel_by_pixel(name, side):
    """A twin that pads by TensorFlow's rule: half of what is missing before, the rest behind."""
    torso = factory.NETS[name](discrete(image(4, side)))
    obs = torch.randint(0, 256, (2, 4, side, side), dtype=torch.uint8)
    x = obs.float() / 255
    for conv in torso.convs:
        (kernel, stride), n = (conv.kernel_size[0], conv.stride[0]), x.shape[2]
        missing = max((-(-n // stride) - 1) * stride + kernel - n, 0)
        pads = [missing // 2, missing - missing // 2] * 2
        x = F.relu(F.conv2d(F.pad(x, pads), conv.weight, conv.bias, stride))
    torch.testing.assert_close(torso(obs), F.relu(F.linear(x.flatten(1), torso.fc.weight, torso.fc.bias)))


INSTRUCTIONS = 1000 * 20 + 4 * 64 * (20 + 64 + 1) + 4 * 256 * 64  # embedding, its LSTM, its share of the core's input


@pytest.mark.parametrize(("name", "count"), [("impala", 1_628_010), ("a3c", 1_230_426)])
def test_parameters_of_impala_on_dmlab_less_the_instruction_encoder(name, count):
    spec = discrete(image()._replace(shape=(3, 72, 96)), 9)
    assert parameters(factory.make(name, spec, "lstm", 256, previous=True)) == count - INSTRUCTIONS


def test_features_and_input_scale():
    spec = discrete(image())
    dark = torch.zeros(2, 4, 84, 84, dtype=torch.uint8)
    for name in ("nature", "a3c", "ga3c", "impala", "accel", "accel_large"):
        torso = factory.NETS[name](spec)
        assert torso(dark).shape == (2, torso.features)
        bright = dark + 255
        torch.testing.assert_close(torso(bright), torso(torch.ones(2, 4, 84, 84)))
        assert bright.min() == 255


def test_same_padding_is_tensorflows():
    """84 → 21 pads two pixels around, which the convolution does itself; 21 → 11 one before and two behind."""
    torso = torsos.conv("ga3c")(discrete(image()))
    assert torso.pads == [(0, 0, 0, 0), (1, 2, 1, 2)]
    assert [conv.padding for conv in torso.convs] == [(2, 2), (0, 0)]
    assert torsos.conv("a3c")(discrete(image())).pads == [(0, 0, 0, 0), (0, 0, 0, 0)]


@pytest.mark.parametrize("sides", [(84, 84), (21, 21), (42, 11), (9, 12), (1, 2)])
def test_pooling_is_tensorflows_same_pooling(sides):
    section = torsos.Section(1, 2)
    seen = []
    section.one.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    section(x := torch.randn(1, 1, *sides))
    pads = []
    for n in reversed(sides):
        missing = max((-(-n // 2) - 1) * 2 + 3 - n, 0)
        pads += [missing // 2, missing - missing // 2]
    want = F.max_pool2d(F.pad(section.conv(x), pads, value=-torch.inf), 3, 2)
    assert torch.equal(seen[0], want)


@pytest.mark.parametrize("name", [*COUNTS, *ACCEL])
def test_other_observations_are_refused(name):
    with pytest.raises(UserError, match=rf"--network: '{name}' takes one image .*the observations are \[4\]; use mlp"):
        factory.make(name, discrete(vector(4)))
    with pytest.raises(UserError, match="the observations are a dict of eye, goal"):
        factory.make(name, discrete({"eye": image(), "goal": vector(2)}))


def test_images_too_small_for_the_convolutions_are_refused():
    assert factory.make("nature", discrete(image(1, 36))).torso.fc.in_features == 64
    with pytest.raises(UserError, match=r"at least 36×36, the observations are \[1, 35, 35\]"):
        factory.make("nature", discrete(image(1, 35)))


@pytest.mark.parametrize("name", ["ga3c", "ga3c_large4", "ga3c_large1"])
def test_ga3cs_initialisation_is_uniform_by_fan_in(name):
    net = factory.make(name, discrete(image()))
    for layer in (*net.torso.convs, net.torso.fc, net.actions, net.value):
        bound = layer.weight[0].numel() ** -0.5
        assert 0.8 * bound < layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.15)
        assert 0 < layer.bias.abs().max() <= bound


def test_published_initialisations():
    torch.manual_seed(0)
    net = factory.make("nature", discrete(image()))
    weight = net.torso.fc.weight
    torch.testing.assert_close(weight @ weight.t(), 2 * torch.eye(512), atol=1e-4, rtol=0)
    torch.testing.assert_close(net.actions.weight @ net.actions.weight.t(), 1e-4 * torch.eye(6), atol=1e-6, rtol=0)
    assert net.value.weight.norm().item() == pytest.approx(1, abs=1e-4)
    assert all(p.abs().sum() == 0 for n, p in net.named_parameters() if n.endswith("bias"))
    net = factory.make("a3c", discrete(image()))
    for layer, fan_in in (
        (net.torso.convs[0], 256),
        (net.torso.fc, 2592),
        (net.actions, 256),
        (net.value, 256),
    ):
        assert 0.8 * fan_in**-0.5 < layer.weight.abs().max() <= fan_in**-0.5
        assert 0 < layer.bias.abs().max() <= fan_in**-0.5


def test_sonnets_and_dopamines_initial_weights():
    """Of IMPALA's code: normal, cut off at two deviations of 1/√fan_in. Of Dopamine's: uniform in ±(√3/fan_in)^½."""
    torch.manual_seed(0)
    net = factory.make("impala", discrete(image()), "lstm", 256, previous=True)
    layers = [m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    core = {net.core.input, net.core.cell.recurrent}
    assert len(layers) == 15 + 1 + 2 + 2
    for layer in layers:
        deviation = layer.weight[0].numel() ** -0.5
        if layer in core:  # TensorFlow's LSTM: Glorot's bounds for the matrix of input, reward, action and state
            bound = (6 / (256 + 1 + 6 + 256 + 4 * 256)) ** 0.5
            assert 0.99 * bound < layer.weight.abs().max() <= bound
            continue
        assert layer.weight.abs().max() <= 2 * deviation
        if layer.weight.numel() > 4000:
            assert layer.weight.std().item() == pytest.approx(0.8796 * deviation, rel=0.03)
    biases = {name: p for name, p in net.named_parameters() if name.endswith("bias")}
    assert biases.pop("core.input.bias").tolist() == [0.0] * 256 + [1.0] * 256 + [0.0] * 512  # forget gates: 1
    assert all((p == 0).all() for p in biases.values())
    net = factory.make_values("dopamine", discrete(image()), atoms=51, init="dopamine")
    assert parameters(net) == 4_200_402
    for layer in (*net.torso.convs, net.head.advantage.hidden, net.head.advantage.last):
        bound = (3**0.5 / layer.weight[0].numel()) ** 0.5
        assert 0.99 * bound < layer.weight.abs().max() <= bound
        assert (layer.bias == 0).all()

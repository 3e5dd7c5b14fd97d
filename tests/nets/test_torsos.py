"""Torsos by their papers' numbers, what they hear, what they refuse."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces as gym
from torch import nn

from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Conditional, Discrete
from polyplay.nets import factory, torsos
from polyplay.nets.layers import initialize
from polyplay.nets.torsos import FiveTorso, FTWTorso
from tests.nets.fights import FIGHT, OBS, PARTS, SETS, appear, doubles
from tests.nets.helpers import declared, discrete, image, observations, parameters, vector

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


@pytest.mark.parametrize("name", ["ga3c", "dopamine", "ga3c_large3", "ga3c_large1"])
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


@pytest.mark.parametrize("sides", [(84, 84), (21, 21), (42, 11), (9, 12), (1, 2)])
def test_pooling_is_tensorflows_same_pooling(sides):
    section = torsos.Section(1, 2)
    seen = heard_by(section.one)
    section(x := torch.randn(1, 1, *sides))
    pads = []
    for n in reversed(sides):
        missing = max((-(-n // 2) - 1) * 2 + 3 - n, 0)
        pads += [missing // 2, missing - missing // 2]
    want = F.max_pool2d(F.pad(section.conv(x), pads, value=-torch.inf), 3, 2)
    assert torch.equal(seen[0], want)


@pytest.mark.parametrize("name", ["impala", "nature", "ga3c"])
def test_other_observations_are_refused(name):
    with pytest.raises(
        UserError, match=rf"--network: '{name}' takes one image .*the observations are float32 \[4\]; use mlp"
    ):
        factory.make(name, discrete(vector(4)))
    with pytest.raises(UserError, match=r"the observations are eye: uint8 .*, goal: float32"):
        factory.make(name, discrete({"eye": image(), "goal": vector(2)}))


def test_images_too_small_for_the_convolutions_are_refused():
    assert factory.make("nature", discrete(image(1, 36))).torso.fc.in_features == 64
    with pytest.raises(UserError, match=r"at least 36×36, but the observations are uint8 \[1, 35, 35\]"):
        factory.make("nature", discrete(image(1, 35)))


STYLES = {"torch": "a3c ga3c ga3c_large1 ga3c_large2 ga3c_large3 ga3c_large4 dqn rlpyt", "sonnet": "impala"}
STYLES |= {"dopamine": "dopamine", "orthogonal": "combined small nature accel accel_large mlp separate ftw five"}


def test_each_network_begins_as_published():
    known = {name: inspect.signature(net).parameters["init"].default for name, net in factory.NETS.items()}
    assert known == {name: style for style, names in STYLES.items() for name in names.split()}


@pytest.mark.parametrize("style", STYLES)
def test_initial_weights(style):
    """sonnet: normal, cut off at two deviations of 1/√fan_in; dopamine: in ±(√3/fan_in)^½; torch: in ±1/√fan_in."""
    layer, scale = nn.Linear(400, 300), 400**-0.5
    initialize(layer, style)
    if style == "orthogonal":
        torch.testing.assert_close(layer.weight @ layer.weight.t(), 2 * torch.eye(300), atol=1e-4, rtol=0)
    else:
        bound = scale * {"torch": 1.0, "sonnet": 2.0, "dopamine": 3**0.25}[style]
        assert 0.99 * bound < layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(
            0.8796 * scale if style == "sonnet" else bound / 3**0.5, rel=0.03
        )
    assert (layer.bias == 0).all() == (style != "torch")
    assert layer.bias.abs().max() <= scale


def test_initial_weights_of_heads_and_cores():
    net = factory.make("nature", discrete(image()))
    torch.testing.assert_close(net.actions.weight @ net.actions.weight.t(), 1e-4 * torch.eye(6), atol=1e-6, rtol=0)
    assert net.value.weight.norm().item() == pytest.approx(1, abs=1e-4)
    core = factory.make("impala", discrete(image()), "lstm", 256, previous=True).core
    bound = (6 / (256 + 1 + 6 + 256 + 4 * 256)) ** 0.5  # TensorFlow's LSTM: input, reward, action and state
    for layer in (core.input, core.cell.recurrent):
        assert 0.99 * bound < layer.weight.abs().max() <= bound
    assert core.input.bias.tolist() == [0.0] * 256 + [1.0] * 256 + [0.0] * 512  # forget gates: 1


# mlp


def test_trees_are_concatenated_in_order_with_one_hot_and_scaled_bytes():
    obs = {
        "inner": {"room": Field((), "int64"), "bits": Field((2,), "bool")},
        "eye": Field((1, 2), "uint8"),
        "far": Field((), "float64"),
        "m": Field((2, 1), "int64"),
    }
    torso = factory.make("auto", discrete(obs, classes={"inner/room": 3, "m": (2, 3)})).torso
    heard = heard_by(torso.layers)
    torso(
        {
            "far": torch.tensor([0.5], dtype=torch.float64),
            "eye": torch.tensor([[[255, 0]]], dtype=torch.uint8),
            "inner": {"bits": torch.tensor([[True, False]]), "room": torch.tensor([2])},
            "m": torch.tensor([[[1], [2]]]),
        }
    )
    assert heard[0].tolist() == [[0, 0, 1, 1, 0, 1, 0, 0.5, 0, 1, 0, 0, 1]]
    assert heard[0].dtype == torch.float32


def test_other_activations_are_refused():
    with pytest.raises(UserError, match="activation: 'elu' is not one of tanh, relu"):
        factory.make("mlp", discrete(vector(3)), activation="elu")


BYTES = {  # declared bounds, bytes, and what a network takes for them
    "flags": (0, 1, [0, 1, 1], [0.0, 1.0, 1.0]),
    "pixels": (0, 255, [0, 51, 255], [0.0, 0.2, 1.0]),
    "kinds of cells": (2, 10, [2, 6, 10], [0.0, 0.5, 1.0]),
    "some always the same": ([3, 0, 0], [3, 4, 2], [3, 1, 1], [0.0, 0.25, 0.5]),
}


def heard_by(layer: nn.Module) -> list[torch.Tensor]:
    """What a layer is given from now on."""
    heard: list[torch.Tensor] = []
    layer.register_forward_pre_hook(lambda _, args: heard.append(args[0]))
    return heard


@pytest.mark.parametrize(("low", "high", "given", "taken"), BYTES.values(), ids=BYTES)
@pytest.mark.parametrize("name", ["mlp", "ftw"])
def test_bytes_are_scaled_by_the_bounds_that_were_declared(name, low, high, given, taken):
    """ftw hears them beside a view, behind what it makes of that."""
    ends = (np.broadcast_to(np.uint8(x), 3).copy() for x in (low, high))
    shown, obs = {"part": gym.Box(*ends, (3,), np.uint8)}, {"part": Field((3,), "uint8")}
    seen = {"part": torch.tensor([given], dtype=torch.uint8)}
    if name == "ftw":
        shown, obs = {"view": gym.Box(0, 255, (2, 5, 5), np.uint8), **shown}, {"view": image(2, 5), **obs}
        seen = {"view": torch.zeros(1, 2, 5, 5, dtype=torch.uint8), **seen}
    torso = factory.make(name, declared(gym.Dict(shown), obs)).torso
    heard = heard_by(torso.fc if name == "ftw" else torso.layers)
    torso(seen)
    torch.testing.assert_close(heard[0][:, -3:], torch.tensor([taken]))
    torso({**seen, "part": torch.tensor([[3.0, -4.0, 9.0]])})  # normalized before: as they are
    torch.testing.assert_close(heard[1][:, -3:], torch.tensor([[3.0, -4.0, 9.0]]))
    assert not torso.state_dict().keys() - {k for k, _ in torso.named_parameters()}, "bounds are not learnt"


# FTW's torso: the paper's layers by their parameters, small views, what stands beside a view, what is refused.

PICTURE = {"view": image(3), "numbers": vector(12)}
WINDOW = {"view": image(10, 11), "health": Field((), "float32"), "flags": Field((2,), "bool")}


def test_the_paper_s_layers_by_hand():
    """84 → 20 → 9 → 9 → 9."""
    convs = 3 * 8 * 8 * 32 + 32 + 32 * 4 * 4 * 64 + 64 + 2 * (64 * 3 * 3 * 64 + 64)
    assert parameters(FTWTorso(discrete(image(3)))) == convs + 64 * 9 * 9 * 256 + 256
    beside = FTWTorso(discrete(PICTURE))
    assert parameters(beside) == convs + (64 * 9 * 9 + 12) * 256 + 256
    assert beside.features == 256


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


@pytest.mark.parametrize(
    ("obs", "said"),
    [
        (vector(5), "takes one image of bytes and numbers beside it, but the observations are float32"),
        ({"a": image(), "b": image()}, "takes one image of bytes and numbers beside it, but the observations are"),
        ({"a": image(), "b": Field((2, 3), "float32")}, "takes one image of bytes and numbers beside it"),
        (Field((3, 4, 4), "uint8"), r"takes an image of 5 × 5 or more, but it is \[3, 4, 4\]"),
    ],
)
def test_other_observations_are_refused_in_one_line(obs, said):
    with pytest.raises(UserError, match=f"--network ftw: {said}") as e:
        factory.make("ftw", discrete(obs))
    assert "\n" not in str(e.value)


# Five's torso: beside a plain float64 twin, what absent units and the order of units change, what is refused.


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


SEVERAL = Conditional({**PARTS, "other": Discrete(9)}, {**FIGHT.action.uses, "other": (0,)})


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"obs": vector(5)}, {}, r"takes a Dict of real vectors and sets \[units, numbers\], but the observations are"),
        ({"obs": {**OBS, "map": image()}}, {}, "takes a Dict of real vectors and sets"),
        ({"obs": {**OBS, "kind": Field((), "int64")}}, {}, "takes a Dict of real vectors and sets"),
        ({"action": SEVERAL}, {}, "unit, other have a value for each of 9 units; allowed: one part"),
    ],
)
def test_what_it_does_not_take_is_refused_in_one_line(change, options, said):
    with pytest.raises(UserError, match=f"--network five: {said}") as e:
        factory.make("five", replace(FIGHT, **{"mask": None, **change}), **options)
    assert "\n" not in str(e.value)


TOLD = EnvSpec({"seen": Field((4, 84, 84), "uint8"), "task": Field((), "int64")}, Discrete(18), classes={"task": 3})
TOLD = replace(TOLD, tasks=("a", "b", "c"), order=(0, 1, 2))


@pytest.mark.parametrize("how", ["onehot", "embedding"])
@pytest.mark.parametrize("network", ["auto", "nature", "impala", "a3c"])
def test_a_network_for_images_gets_the_task_beside_them(network: str, how: str):
    policy: Any = factory.make(network, replace(TOLD, task_input=how))
    torso = policy.torso
    assert type(torso) is torsos.WithTask
    assert (torso.embedding is None) == (how == "onehot")
    obs = {"seen": torch.zeros(3, 4, 84, 84, dtype=torch.uint8), "task": torch.arange(3)}
    with torch.no_grad():
        x = torso(obs)
    assert x.shape == (3, torso.features)
    assert not torch.equal(x[0], x[1])
    segments = (torso.join if how == "onehot" else torso.embedding).axes["weight"].axes[1]
    assert [segment.name for segment in segments][-3:] == ["task of a", "task of b", "task of c"]


def test_a_value_s_own_layer_joins_the_task():
    policy: Any = factory.make_values("nature", replace(TOLD, task_input="onehot"))
    assert policy.torso.join is None
    assert policy.torso.features == policy.torso.seen.features + 3

"""Networks by name."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.nets import factory as nets
from tests.nets.helpers import arrivals, discrete, image, play, vector

CUSTOM = """
import torch
from torch import nn

from polyplay.core.tree import Field
from polyplay.nets import policy

class Torso(policy.Torso):
    features = 9
    def __init__(self, spec, width=9):
        super().__init__()
        self.layer = nn.Linear(spec.obs.shape[0], width)
    def forward(self, obs):
        return self.layer(obs).relu()

class Crooked(Torso):
    features = 10

class Choosy(Torso):
    def forward(self, obs):
        return self.layer(obs.view(-1, 3)[:, :2])

class Double(Torso):
    def forward(self, obs):
        return super().forward(obs).double()

class Empty(policy.Torso):
    def __init__(self, spec):
        super().__init__()

class Nameless(Empty):
    forward = Torso.forward

class Counter(policy.Policy):
    noise = 1
    def __init__(self, spec):
        super().__init__()
        self.layer = nn.Linear(3, 1)
    def spec(self):
        return {"action": Field((), "int64"), "value": Field((), "float32")}
    def state_spec(self):
        return {"age": Field((), "int64")}
    def initial(self, lanes):
        return {"age": torch.zeros(lanes, dtype=torch.int64)}
    def act(self, step, state):
        value = self.layer(step["obs"]).squeeze(1) * step["noise"].squeeze(1)
        return {"action": state["age"] % 5, "value": value}, {"age": state["age"] + 1}
    def unroll(self, batch, state):
        value = self.layer(batch["obs"]).squeeze(2)
        return {"logp": value, "value": value, "entropy": value}

class Mute(Counter):
    unroll = policy.Policy.unroll

class Still(Counter):
    def spec(self):
        return {"value": Field((), "float32")}

class Ageless(Counter):
    initial = policy.Policy.initial

class Column(Counter):
    def act(self, step, state):
        said, after = super().act(step, state)
        return {**said, "value": said["value"].unsqueeze(1)}, after

class Older(Counter):
    def act(self, step, state):
        said, after = super().act(step, state)
        return said, {"age": after["age"].float()}

class Alone(Counter):
    def act(self, step, state):
        return super().act(step, state)[0]

class Blind(Counter):
    def unroll(self, batch, state):
        return {"value": batch["observation"]}

class Quiet(Counter):
    def unroll(self, batch, state):
        return {"logp": super().unroll(batch, state)["logp"]}

class Silent(Counter):
    def spec(self):
        return {"action": 1 / 0}

class Taken(Counter):
    def __init__(self, spec):
        super().__init__(spec)
        self.noise = nn.Linear(1, 1)

def nothing(spec):
    return 3

def plain(spec):
    return nn.Linear(4, 4)

def whole(spec):
    from polyplay import nets
    return nets.make("mlp", spec, hidden=(3,))

number = 7
"""


@pytest.fixture
def custom(tmp_path, monkeypatch):
    (tmp_path / "custom_nets_for_test.py").write_text(CUSTOM)
    monkeypatch.syspath_prepend(tmp_path)
    return "custom_nets_for_test:"


@pytest.mark.parametrize(
    ("obs", "kind"),
    [
        (image(), "Conv"),
        (image(1, 64), "Conv"),
        (image(1, 36), "Conv"),
        (image(1, 35), "Combined"),
        (image(1, 23), "MLP"),
        (vector(3), "MLP"),
        (Field((), "int64"), "MLP"),
        ({"eye": image(1, 8), "goal": vector(2)}, "MLP"),
        ({"eye": image(1, 24), "goal": vector(2)}, "Combined"),
        ({"eye": image(), "ear": {"left": vector(2), "right": Field((), "int64")}}, "Combined"),
    ],
)
def test_auto_picks_by_shape(obs, kind):
    assert type(nets.make("auto", discrete(obs)).torso).__name__ == kind


def test_a_factory_travels_and_makes_the_same_policy():
    factory = nets.NetworkFactory("a3c", discrete(image(1, 40), 4), {"core": "gru", "core_size": 16, "previous": True})
    again = pickle.loads(pickle.dumps(factory))
    assert again == factory
    torch.manual_seed(5)
    one = factory()
    torch.manual_seed(5)
    two = again()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert one.state_spec() == {"h": Field((16,), "float32"), "action": Field((), "int64")}


def test_a_torso_by_module_and_name_gets_head_and_core(custom):
    spec = discrete(vector(3), 5)
    net = nets.make(custom + "Torso", spec, "gru", 4, previous=True)
    assert net.core.inputs == 9 + 5 + 1
    batch = arrivals(spec.obs, 4, 8, 1)
    said, _ = play(net, batch, net.initial(8))
    out = net.unroll({**batch, "action": said["action"]}, net.initial(8))
    torch.testing.assert_close(out["value"], said["value"])


def test_a_whole_policy_by_module_and_name_is_left_alone(custom):
    assert nets.make(custom + "whole", discrete(vector(3))).torso.features == 3
    assert nets.make(custom + "Counter", discrete(vector(3), 5)).training
    with pytest.raises(UserError, match=r"leave out --core$"):
        nets.make(custom + "whole", discrete(vector(3)), core="gru")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "natur",
            {},
            "--network: 'natur' is unknown, did you mean 'nature'\\?; there are auto, nature, a3c, accel, accel_large",
        ),
        (
            "mlp",
            {"hiden": (3,)},
            "--network: 'mlp': got an unexpected keyword argument 'hiden'; its options are: hidden, act",
        ),
        ("no_such_module_here:f", {}, "no module 'no_such_module_here'; it must be installed or lie in "),
        ("CUSTOM:absent", {}, "custom_nets_for_test has no 'absent'; allowed: auto, nature"),
        ("CUSTOM:number", {}, "must be a callable that takes an EnvSpec, got int"),
        ("CUSTOM:nothing", {}, "returned int, it must return a Torso or a Policy: .* inherits one of these from"),
        ("CUSTOM:plain", {}, "returned Linear, it must return a Torso or a Policy"),
        ("CUSTOM:Empty", {}, r"class Empty lacks forward\(obs\): observations \[N, …\] → float32 \[N, features\]"),
        ("CUSTOM:Nameless", {}, "class Nameless: features is 0, it must be an int, the number of features that"),
        ("CUSTOM:Crooked", {}, r"class Crooked: forward, .* gave float32 \[2, 9\], not float32 \[2, 10\]"),
        ("CUSTOM:Double", {}, r"forward, of .* float32 \[3\], gave float64 \[2, 9\], not float32 \[2, 9\]"),
        ("CUSTOM:Choosy", {}, r"forward does not take two observations of float32 \[3\]: mat1 and mat2"),
        ("CUSTOM:Still", {}, r"spec must have `action` Field\(shape=\(\), dtype='int64'\), .*; it has None"),
        ("CUSTOM:Ageless", {}, r"initial, for two lanes, gave age no tensor, not int64 \[2\]"),
        ("CUSTOM:Column", {}, r"class Column: act, for two lanes, gave value float32 \[2, 1\], not float32 \[2\]"),
        ("CUSTOM:Older", {}, r"act, for two lanes, as the state after gave age float32 \[2\], not int64 \[2\]"),
        ("CUSTOM:Alone", {}, r"act gave dict, it must give \(outputs, the state after\)"),
        ("CUSTOM:Silent", {}, "class Silent: spec does not take an empty call: division by zero"),
        ("CUSTOM:Taken", {}, "class Taken: noise names a module or tensor, but Policy uses"),
        ("CUSTOM:Torso", {"depth": 3}, "unexpected keyword argument 'depth'; its options are: width"),
    ],
)
def test_mistakes_are_one_clear_line(custom, name, options, message):
    with pytest.raises(UserError, match=message) as caught:
        nets.make(name.replace("CUSTOM:", custom), discrete(vector(3), 5), **options)
    assert "\n" not in str(caught.value)


def test_how_long_a_step_of_the_environment_took_is_nothing_to_its_network():
    """Packages of compiled updates are found again by it."""
    assert nets.NetworkFactory("mlp", replace(discrete(vector(4)), step_time=1e-5)).spec.step_time == 0.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Mute", r"class Mute lacks unroll\(batch, state\): rows \[T\+1, B, …\] and the state before"),
        ("Blind", r"unroll does not take three rows of two lanes with obs float32 \[3\]: 'observation'"),
        ("Quiet", r"unroll, for three rows of two lanes, gave value no tensor, not float32 \[3, 2\]"),
        ("Counter", ""),
        ("Torso", ""),
    ],
)
def test_unrolling_is_tried_where_a_loss_of_actors_and_critics_takes_it(custom, name, message):
    factory = nets.NetworkFactory(custom + name, discrete(vector(3), 5))
    assert factory.own
    with pytest.raises(UserError, match=message) if message else nullcontext():
        factory.check_unroll()

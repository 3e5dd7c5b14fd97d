"""Networks by name."""

from __future__ import annotations

import pickle

import pytest
import torch

from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.nets import factory as nets
from tests.nets.helpers import arrivals, discrete, image, play, vector

CUSTOM = """
import torch
from torch import nn

class Torso(nn.Module):
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

def nothing(spec):
    return 3

def nameless(spec):
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
        (image(1, 63), "MLP"),
        (vector(3), "MLP"),
        (Field((), "int64"), "MLP"),
        ({"eye": image(1, 8), "goal": vector(2)}, "MLP"),
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
        ("CUSTOM:absent", {}, "could not be loaded: .* has no attribute 'absent'"),
        ("CUSTOM:number", {}, "is no function of the EnvSpec, but int"),
        ("CUSTOM:nothing", {}, "returned int, it must return a torch.nn.Module"),
        ("CUSTOM:nameless", {}, "must have an int attribute `features`, it has None"),
        ("CUSTOM:Crooked", {}, r"made \[2, 9\] of two observations of shape \[3\], not \[2, 10\]"),
        ("CUSTOM:Choosy", {}, r"does not take observations of shape \[3\]: mat1 and mat2"),
        ("CUSTOM:Torso", {"depth": 3}, "unexpected keyword argument 'depth'; its options are: width"),
    ],
)
def test_mistakes_are_one_clear_line(custom, name, options, message):
    with pytest.raises(UserError, match=message) as caught:
        nets.make(name.replace("CUSTOM:", custom), discrete(vector(3)), **options)
    assert "\n" not in str(caught.value)

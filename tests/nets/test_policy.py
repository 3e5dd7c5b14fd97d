"""Every network is a Policy, by its members and by what they take and give."""

import inspect

import pytest
import torch
from torch import nn

from polyplay.core import tree
from polyplay.nets import factory
from polyplay.nets.policy import Policy, TapedPolicy
from tests.nets.helpers import continuous, discrete, vector

MEMBERS = ("initial", "act", "unroll", "noise", "spec", "state_spec")
MADE = {
    "actor_critic": lambda: factory.make("mlp", discrete(vector(3), 4), core="lstm", core_size=8),
    "q_network": lambda: factory.make_values("mlp", discrete(vector(3), 4)),
    "dpg": lambda: factory.make_deterministic("mlp", continuous(vector(3), 2)),
}


@pytest.mark.parametrize("name", MADE)
def test_each_network_is_a_policy(name: str):
    policy: Policy = MADE[name]()
    assert isinstance(policy, Policy)
    for member in MEMBERS:
        declared, ours = getattr(Policy, member), getattr(type(policy), member)
        if callable(declared):
            theirs = list(inspect.signature(declared).parameters)
            assert list(inspect.signature(ours).parameters)[: len(theirs)] == theirs, member


@pytest.mark.parametrize("name", MADE)
def test_acting_and_unrolling_have_the_declared_shapes(name: str):
    policy, lanes = MADE[name](), 3
    state = policy.initial(lanes)
    step = {"obs": torch.zeros(lanes, 3), "reward": torch.zeros(lanes), "first": torch.ones(lanes, dtype=torch.bool)}
    with torch.no_grad():
        out, after = policy.act({**step, "noise": torch.full((lanes, policy.noise), 0.5)}, state)
        batch = {k: v.unsqueeze(0) for k, v in {**step, "action": out["action"]}.items()}
        unrolled = policy.unroll(batch, state)
    assert list(out) == [path for path, _ in tree.leaves(policy.spec())]
    assert list(after) == [path for path, _ in tree.leaves(policy.state_spec())]
    assert all(out[k].shape == (lanes, *f.shape) for k, f in tree.leaves(policy.spec()))
    assert unrolled["value"].shape == (1, lanes)


def test_only_some_policies_have_tapes():
    assert isinstance(MADE["actor_critic"](), TapedPolicy)
    assert not isinstance(MADE["q_network"](), TapedPolicy)


def test_a_torso_is_no_policy():
    assert not isinstance(nn.Linear(3, 4), Policy)

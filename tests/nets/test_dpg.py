"""polyplay/nets/q_network.py: units, noise, bounds, the same bits in unrolling, gradients by finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Box, Discrete
from polyplay.nets import factory as nets
from polyplay.weights.params import FlatParams
from tests.nets.helpers import arrivals, bind, continuous, discrete, parameters, play, unroll_in_pieces, vector

SMALL: Any = {"actor": (9, 7), "critic": (11, 6)}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def box(low: Any, high: Any, obs: Any = None) -> EnvSpec:
    low, high = np.array(low, np.float32), np.array(high, np.float32)
    return EnvSpec(vector(3) if obs is None else obs, Box(low.shape, low, high))


def noisy(spec: EnvSpec, policy: Any, rows: int, lanes: int, deviation: float) -> Any:
    batch = arrivals(spec.obs, rows, lanes, policy.noise)
    return {**batch, "epsilon": torch.full((rows, lanes), deviation)}


def test_the_papers_network_by_hand() -> None:
    spec = box([-2, -2], [2, 2])
    policy = nets.make_deterministic("mlp", spec)
    assert parameters(policy.actor) + parameters(policy.steer) == (3 + 1) * 300 + 301 * 200 + 201 * 2
    assert parameters(policy.critic) + parameters(policy.judge) == (3 + 1) * 400 + (400 + 2 + 1) * 300 + 301
    obs, action = torch.randn(5, 3), torch.rand(5, 2) * 4 - 2
    named = dict(policy.named_parameters())

    def layer(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ named[f"{name}.weight"].T + named[f"{name}.bias"]

    mu = layer(layer(layer(obs, "actor.layers.0").tanh(), "steer.0").tanh(), "steer.2").tanh()
    torch.testing.assert_close(policy.act({"obs": obs}, {})[0]["action"], 2 * mu)

    def q(inner: torch.Tensor) -> torch.Tensor:
        seen = layer(obs, "critic.layers.0").tanh()
        return layer(layer(torch.cat([seen, inner], 1), "judge.0").tanh(), "judge.2")[:, 0]

    out = policy.learnt(obs, action)
    torch.testing.assert_close(out["q"], q(action / 2), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(out["best"], mu)
    torch.testing.assert_close(out["value"], q(mu), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(policy.value(obs), out["value"])


def test_actions_are_in_the_environments_units_and_within_its_bounds() -> None:
    low, high = [-0.1, 5.0, 2.0], [0.3, 7.0, 2.0]
    spec = box(low, high)
    policy = nets.make_deterministic("mlp", spec, **SMALL)
    step = tree.map(lambda x: x[0], noisy(spec, policy, 1, 4000, 5.0))
    action = policy.act(step, {})[0]["action"].detach()
    assert (action >= torch.tensor(low)).all()
    assert (action <= torch.tensor(high)).all()
    for i in (0, 1):
        assert [float(action[:, i].min()), float(action[:, i].max())] == pytest.approx([low[i], high[i]], abs=1e-6)
    inner = torch.rand(50, 3) * 2 - 1
    inner[:, 2] = 0.0  # there is but one number to choose
    torch.testing.assert_close(policy._inner(policy._outer(inner)), inner, atol=1e-5, rtol=0)
    torch.testing.assert_close(policy._outer(torch.zeros(1, 3)), torch.tensor([[0.1, 6.0, 2.0]]))


def test_noise_is_normal_of_that_deviation_in_half_ranges_and_never_without_one() -> None:
    spec = box([-10.0], [10.0])
    policy = nets.make_deterministic("mlp", spec, **SMALL)
    lanes = 20_000
    step: Any = {"obs": torch.ones(lanes, 3), "noise": torch.rand(lanes, policy.noise)}
    best = policy.act(step, {})[0]
    assert (best["action"] == best["action"][0]).all(), "evaluation: noise, but no deviation"
    assert torch.equal(best["value"], best["chosen"])
    assert torch.equal(policy.act({"obs": step["obs"]}, {})[0]["action"], best["action"])
    out = policy.act({**step, "epsilon": torch.full((lanes,), 0.1)}, {})[0]
    apart = out["action"] - best["action"]
    assert float(apart.mean()) == pytest.approx(0.0, abs=0.03)
    assert float(apart.std()) == pytest.approx(0.1 * 10.0, rel=0.03)
    assert torch.equal(out["value"], best["value"])
    assert not torch.equal(out["chosen"], best["chosen"])
    with pytest.raises(ValueError, match=r"a deviation without noise: chance comes from step\['noise'\] alone"):
        policy.act({"obs": step["obs"], "epsilon": torch.full((lanes,), 0.1)}, {})


def test_acting_and_unrolling_agree_to_the_bit_in_any_batch() -> None:
    trees = {"a": Field((2,), "float32"), "b": {"c": Field((), "float32")}}
    for seed, spec in enumerate((continuous(vector(5), 3), continuous(trees, 2, 2), box(-1.5, 0.5))):
        torch.manual_seed(seed)
        policy = nets.make_deterministic("mlp", spec, **SMALL)
        bind(policy)
        batch = noisy(spec, policy, 3, 5 + seed, 0.3)
        said, _ = play(policy, batch, {})
        out = policy.unroll({**batch, "action": said["action"]}, {})
        part = tree.map(lambda x: x[:, 1:4], {**batch, "action": said["action"]})
        some = unroll_in_pieces(policy, part, {}, 2)
        for k in ("value", "chosen"):
            assert torch.equal(out[k], said[k]), (k, seed)
            assert torch.equal(some[k], said[k][:, 1:4]), (k, seed)
        assert tree.map(lambda v: Field(tuple(v.shape[2:]), str(v.dtype)[6:]), said) == policy.spec()


def test_the_slope_is_the_critics_by_finite_differences() -> None:
    spec = box([-2, 0, 1], [2, 1, 9])
    policy = nets.make_deterministic("mlp", spec, **SMALL).double()
    obs = torch.randn(4, 3, dtype=torch.float64)
    with torch.no_grad():
        for p in policy.critic.parameters():
            p.normal_()
    policy._features = lambda torso, x: torch.tanh(x @ torso.layers[0].weight.T)  # in float64
    out = policy.learnt(obs, torch.ones(4, 3, dtype=torch.float64))
    best, h = out["best"].detach(), 1e-6
    for i in range(3):
        step = torch.zeros(3, dtype=torch.float64)
        step[i] = h
        high, low = (policy._q(policy._features(policy.critic, obs), best + s * step) for s in (1, -1))
        torch.testing.assert_close(out["slope"][:, i], ((high - low) / (2 * h)).detach(), atol=1e-8, rtol=1e-6)
    assert not out["slope"].requires_grad
    assert not out["value"].requires_grad


def test_what_is_learnt_of_one_half_leaves_the_other_alone() -> None:
    policy = nets.make_deterministic("mlp", continuous(vector(3), 2), **SMALL)
    weights = FlatParams(policy)
    obs, action = torch.randn(6, 3), torch.rand(6, 2)
    out = policy.learnt(obs, action)
    assert float(weights.grad.abs().sum()) == 0.0, "dQ/da left nothing in the weights"
    for name, mine, theirs in (
        ("q", ("critic", "judge"), ("actor", "steer")),
        ("best", ("actor", "steer"), ("critic",)),
    ):
        weights.zero_grad()
        out[name].sum().backward(retain_graph=True)
        grads = {k: float(p.grad.abs().sum()) for k, p in policy.named_parameters()}
        assert all(v > 0 for k, v in grads.items() if k.startswith(mine)), name
        assert all(v == 0 for k, v in grads.items() if k.startswith(theirs)), name


def test_one_vector_has_all_of_it_and_bounds_are_in_no_checkpoint() -> None:
    factory = nets.NetworkFactory("mlp", box([-3.0], [1.0]), SMALL, deterministic=True)
    one, other = factory(), factory()
    FlatParams(other).write(FlatParams(one).read())
    obs = torch.randn(4, 3)
    assert torch.equal(one.value(obs), other.value(obs))
    assert {k.split(".")[0] for k in one.state_dict()} == {"actor", "critic", "steer", "judge"}


def test_bfloat16_is_for_the_torsos() -> None:
    policy = nets.make_deterministic("mlp", continuous(vector(3), 2), actor=(64, 64, 9), critic=(64, 64, 9))
    obs = torch.randn(16, 3)
    exact = policy.value(obs)
    policy.bf16 = True
    with torch.no_grad():
        half = policy.value(obs)
        policy.hold()
        held = policy.value(obs)
    assert half.dtype == torch.float32
    assert torch.equal(half, held)
    assert not torch.equal(half, exact)
    torch.testing.assert_close(half, exact, atol=0.02, rtol=0.02)


def test_pictures_take_a_torso_as_it_is() -> None:
    spec = EnvSpec(Field((4, 84, 84), "uint8"), continuous(vector(1), 2).action)
    policy = nets.make_deterministic("a3c", spec, **SMALL)
    assert policy.steer[0].in_features == 256
    assert policy.judge[0].in_features == 258


@pytest.mark.parametrize(
    ("spec", "options", "said"),
    [
        (
            discrete(vector(3)),
            {},
            "actions: it learns bounded real vectors (a Box), the environment's are 6 discrete",
        ),
        (EnvSpec(vector(3), {"a": Discrete(2)}), {}, "it learns bounded real vectors"),
        (box([-np.inf], [np.inf]), {}, "it learns bounded real vectors"),
        (box([-1], [1]), {"actor": (5,)}, "actor: (5,) given, allowed: 2 or more sizes of at least 1"),
        (box([-1], [1]), {"critic": (5, 0)}, "critic: (5, 0) given"),
    ],
)
def test_what_has_no_such_network_is_refused_in_a_line(spec: EnvSpec, options: Any, said: str) -> None:
    with pytest.raises(UserError) as found:
        nets.make_deterministic("mlp", spec, **options)
    assert said in str(found.value)
    assert "\n" not in str(found.value)

"""polyplay/nets/q_network.py: ε-greedy acting, the same bits in unrolling, memory, noise, precision, one vector."""

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
from polyplay.learning import value_losses
from polyplay.nets import device
from polyplay.nets import factory as nets
from polyplay.weights.params import FlatParams
from tests.nets.helpers import arrivals, bind, continuous, discrete, image, parameters, play, unroll_in_pieces, vector

HEADS: list[dict[str, Any]] = [
    {},
    {"dueling": True, "scale": 2**-0.5},
    {"atoms": 11},
    {"dueling": True, "atoms": 11, "noisy": "zoo", "bias": "none"},
    {"noisy": "fortunato", "width": 9},
    {"bias": "shared"},
]
CORES = [("none", False), ("none", True), ("lstm", True), ("gru", False)]


def randomly(step: dict[str, Any], epsilon: float) -> dict[str, Any]:
    return {**step, "epsilon": torch.full(step["first"].shape, epsilon)}


def masks(n: int, *lead: int) -> torch.Tensor:
    return (torch.rand(*lead, n) < 0.5).scatter(-1, torch.randint(n, (*lead, 1)), True)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("core", "previous"), CORES)
def test_acting_and_unrolling_agree_to_the_bit(head: dict, core: str, previous: bool) -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        size, n, width = (int(torch.randint(1, high, ())) for high in (40, 20, 70))
        rows, lanes = 2 + seed, 1 + 2 * seed
        spec = discrete(vector(size), 1 + n)
        policy = nets.make_values(
            "mlp", spec, core=core, core_size=width, previous=previous, hidden=((64, 64), (width,))[seed % 2], **head
        )
        bind(policy)
        state = tree.map(torch.ones_like, policy.initial(lanes))
        if previous:
            state["action"] = torch.zeros(lanes, dtype=torch.int64)
        batch = randomly(arrivals(spec.obs, rows, lanes, policy.noise), 0.3)
        if seed % 2:
            batch["mask"] = masks(1 + n, rows, lanes)
        said, _ = play(policy, batch, state)
        out = policy.unroll({**batch, "action": said["action"]}, state)
        for k in ("value", "chosen"):
            assert torch.equal(out[k], said[k]), (k, seed)


def test_epsilon_is_each_lanes_chance_of_a_uniform_action() -> None:
    n, lanes = 4, 40_000
    spec = discrete(vector(2), n)
    policy = nets.make_values("mlp", spec)
    step = {"obs": torch.ones(lanes, 2), "noise": torch.rand(lanes, policy.noise)}
    epsilon = torch.zeros(lanes)
    epsilon[: lanes // 2] = 0.4
    best = policy.act(step, {})[0]["action"]
    assert (best == best[0]).all()
    action = policy.act({**step, "epsilon": epsilon}, {})[0]["action"]
    assert (action[lanes // 2 :] == best[0]).all()
    counts = torch.bincount(action[: lanes // 2], minlength=n) / (lanes // 2)
    expected = torch.full((n,), 0.1)
    expected[best[0]] += 0.6
    torch.testing.assert_close(counts, expected, atol=0.015, rtol=0)


def test_ties_are_broken_evenly_and_without_noise_by_the_first() -> None:
    spec = discrete(vector(2), 4)
    policy = nets.make_values("mlp", spec)
    with torch.no_grad():
        for p in policy.head.parameters():
            p.zero_()
        policy.head.advantage.last.bias[1:] = 2.0  # actions 1, 2, 3 are equally good
    step = {"obs": torch.ones(9000, 2)}
    assert (policy.act(step, {})[0]["action"] == 1).all()
    step["noise"] = torch.rand(9000, 3)
    counts = torch.bincount(policy.act(step, {})[0]["action"], minlength=4) / 9000
    torch.testing.assert_close(counts, torch.tensor([0.0, 1 / 3, 1 / 3, 1 / 3]), atol=0.02, rtol=0)
    step["mask"] = torch.tensor([True, False, True, False]).expand(9000, 4)
    out, _ = policy.act({**step, "epsilon": torch.zeros(9000)}, {})
    assert (out["action"] == 2).all()
    some = policy.act({**step, "epsilon": torch.ones(9000)}, {})[0]["action"]
    assert some.unique().tolist() == [0, 2]


def test_sizes_are_the_papers() -> None:
    pong, full = discrete(image()), discrete(image(), 18)
    assert parameters(nets.make_values("nature", pong)) == 1_687_206
    assert parameters(nets.make_values("dqn", pong)) == 1_687_206
    assert parameters(nets.make_values("nature", pong, bias="shared")) == 1_687_201
    assert parameters(nets.make_values("nature", pong, dueling=True)) == 3_293_863
    assert parameters(nets.make_values("nature", pong, atoms=51)) == 1_841_106
    assert parameters(nets.make_values("dopamine", pong, atoms=51, init="dopamine")) == 4_200_402
    r2d2 = nets.make_values("nature", full, dueling=True, core="lstm", previous=True)
    assert parameters(r2d2) * 4 == 32_500_428  # bytes: what R2D2's actors pull, 32.5 MB


def test_bfloat16_is_close_and_its_copies_serve_only_who_asks() -> None:
    spec = discrete(image())
    made = []
    for how in ("float32", "bfloat16"):
        torch.manual_seed(0)
        made.append(device.set_precision(nets.make_values("nature", spec, dueling=True), how))
    full, half = made
    obs = torch.randint(0, 256, (2, 3, *image().shape), dtype=torch.uint8)
    exact, near = full.scores({"obs": obs}, {}), half.scores({"obs": obs}, {})
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, exact, atol=0.01, rtol=0.1)
    with torch.no_grad():
        half.freeze_noise()
        half.head.advantage.hidden.weight.mul_(2.0)
        assert torch.equal(half.scores({"obs": obs}, {}, cached=True), near), "old until told"
        changed = half.scores({"obs": obs}, {})
        assert not torch.equal(changed, near), "who learns has the present weights"
        half.freeze_noise()
        assert torch.equal(half.scores({"obs": obs}, {}, cached=True), changed)
    assert set(value_losses.q_outputs(half, full, {"obs": obs}, double=True)) == {"q", "target", "online"}


def test_only_discrete_actions_have_values() -> None:
    with pytest.raises(
        UserError, match=r"actions: this system needs Discrete actions, the environment's are .*; take ppo, impala, a2c"
    ):
        nets.make_values("mlp", continuous(vector(3), 2))


# polyplay/nets/q_network.py: units, noise, bounds, the same bits in unrolling, gradients by finite differences.

SMALL: Any = {"actor": (9, 7), "critic": (11, 6)}


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
    best = mu.detach().requires_grad_()
    torch.testing.assert_close(out["slope"], torch.autograd.grad(q(best).sum(), best)[0])
    assert not out["slope"].requires_grad
    assert not out["value"].requires_grad


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

"""polyplay/nets/q_network.py: ε-greedy acting, the same bits in unrolling, memory, noise, precision, one vector."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core import tree
from polyplay.core.tree import Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Box
from polyplay.learning import value_losses
from polyplay.nets import device, q_network
from polyplay.nets import factory as nets
from polyplay.nets.q_network import QHead, by_torch, epsilon_greedy, random_choice
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
        policy.head.branches[0][-1].bias[1:] = 2.0  # actions 1, 2, 3 are equally good
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
        half.cache_weights()
        half.head.branches[0][0].weight.mul_(2.0)
        assert torch.equal(half.scores({"obs": obs}, {}, cached=True), near), "old until told"
        changed = half.scores({"obs": obs}, {})
        assert not torch.equal(changed, near), "who learns has the present weights"
        half.cache_weights()
        assert torch.equal(half.scores({"obs": obs}, {}, cached=True), changed)
    batch = {
        "obs": obs,
        "action": torch.zeros(3, dtype=torch.int64),
        "return": torch.ones(3),
        "discount": torch.ones(3),
    }
    assert value_losses.QLoss(double=True)(half, full, batch, {}, {}).loss.isfinite()


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


# Heads: what plain and dueling ones are, their biases, noise and the gradient they give back.


@pytest.mark.parametrize("atoms", [0, 5])
def test_dueling_streams_are_identifiable(atoms: int) -> None:
    """The mean over actions is V alone, differences between actions are A's alone."""
    head = QHead(7, 3, atoms, 8, dueling=True)
    x = torch.randn(6, 7)
    out = head(x)
    advantage, value = (last(hidden(x).relu()) for hidden, last in head.branches)
    value, advantage = value.view(6, *([atoms] if atoms else [])), advantage.view(out.shape)
    torch.testing.assert_close(out.mean(1), value)
    torch.testing.assert_close(out - out[:, :1], advantage - advantage[:, :1])
    with torch.no_grad():
        head.branches[0][-1].bias += 3.0 if not atoms else torch.randn(atoms).repeat(3)
    torch.testing.assert_close(head(x), out)  # what all actions' advantages share vanishes


def test_one_bias_for_all_actions_or_none() -> None:
    x = torch.zeros(2, 7)
    shared = QHead(7, 3, bias="shared")
    assert parameters(shared) == 7 * 3 + 1
    assert torch.equal(shared(x), shared.shared.expand(2, 3))
    shared(x).sum().backward()
    assert shared.shared.grad.item() == 6.0
    assert shared.shared.abs().item() <= 7**-0.5
    assert torch.equal(QHead(7, 3, 5, bias="none")(x), torch.zeros(2, 3, 5))
    assert torch.equal(QHead(7, 3, 5, dueling=True, bias="none")(x), torch.zeros(2, 3, 5))


def test_the_features_gradient_is_scaled_and_nothing_else() -> None:
    torch.manual_seed(1)
    plain = QHead(7, 3, 0, 8, dueling=True)
    scaled = QHead(7, 3, 0, 8, dueling=True, scale=2**-0.5)
    scaled.load_state_dict(plain.state_dict())
    grads = []
    for head in (plain, scaled):
        x = torch.linspace(-1, 1, 28).view(4, 7).requires_grad_()
        y = x * 1.0
        out = head(y)
        out.square().sum().backward()
        grads.append((out.detach(), x.grad, head.branches[0][0].weight.grad, head.branches[1][-1].weight.grad))
    for i, factor in enumerate((1.0, 2**-0.5, 1.0, 1.0)):
        torch.testing.assert_close(grads[1][i], grads[0][i] * factor)
    assert scaled(torch.zeros(1, 7)).shape == (1, 3), "and without a gradient as well"


# polyplay/nets/q_network.py: noise from keys, its distribution, and the layer against the formula written out.


def drawn(variant: str, n: int = 400_000) -> torch.Tensor:
    """x of ε = sgn(x)·√|x|."""
    eps = q_network.draw_noise(torch.arange(4), n // 4, variant).flatten()
    return eps * eps.abs()


def test_a_key_gives_the_same_numbers_everywhere() -> None:
    """A value that must never change: checkpoints and machines agree by it."""
    key = torch.tensor([5, 6, 5])
    eps = q_network.draw_noise(key, 11, "fortunato")
    assert torch.equal(eps[0], eps[2])
    assert not torch.equal(eps[0], eps[1])
    assert torch.equal(q_network.draw_noise(key[1:], 7, "fortunato"), eps[1:, :7]), "fewer are the first of more"
    key = (5 + q_network._A) % 2**64
    first = _mixed((_mixed(key) + q_network._A) % 2**64) & 0xFFFF
    place = ((first + 2**15) % 2**16 + 0.5) / 2**16
    x = float(torch.special.ndtri(torch.tensor(place, dtype=torch.float64)))
    assert eps[0, 0].item() == pytest.approx(math.copysign(math.sqrt(abs(x)), x), rel=1e-6)


def _mixed(x: int) -> int:
    """SplitMix64 in whole numbers of any size."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def test_the_noise_is_normal_or_cut_off_at_two() -> None:
    x = drawn("fortunato")
    assert abs(float(x.mean())) < 0.01
    assert float(x.std()) == pytest.approx(1.0, abs=0.01)
    assert 3.5 < float(x.abs().max()) < 4.5
    cut = drawn("zoo")
    assert float(cut.abs().max()) <= 2.0
    assert float(cut.std()) == pytest.approx(0.8796, abs=0.01)  # of a standard normal within ±2
    for sample in (x, cut):
        assert abs(float((sample[1:] * sample[:-1]).mean())) < 0.01


@pytest.mark.parametrize("bias", [True, False])
def test_the_layer_is_the_formula_with_every_rows_own_weights(bias: bool) -> None:
    layer = q_network.Noisy(6, 4, 0.5, bias)
    x, eps = torch.randn(5, 6), q_network.draw_noise(torch.arange(5), layer.noise, "fortunato")
    made = layer(x, eps)
    for row in range(5):
        before, behind = eps[row, :6], eps[row, 6:]
        weight = layer.mean.weight + layer.spread.weight * torch.outer(behind, before)
        offset = layer.spread.bias * behind + (layer.mean.bias if bias else 0.0)
        torch.testing.assert_close(made[row], weight @ x[row] + offset)
    torch.testing.assert_close(layer(x, eps[:1])[3], layer(x[3:4], eps[:1])[0])
    assert torch.equal(layer(x, None), layer.mean(x))


@pytest.mark.parametrize("bias", [True, False])
def test_one_noise_for_many_rows_is_the_same_by_a_matrix(bias: bool) -> None:
    torch.manual_seed(3)
    layer, x = q_network.Noisy(9, 5, 0.5, bias), torch.randn(q_network.MANY, 9)
    eps, weights = torch.randn(1, layer.noise), list(layer.parameters())
    found = []
    for rows in (eps, eps.expand(q_network.MANY, -1)):
        y = layer(x, rows)
        found.append([y.detach(), *torch.autograd.grad(y.square().sum(), weights)])
    for together, apart in zip(*found, strict=True):
        torch.testing.assert_close(together, apart)
    assert not torch.equal(found[0][0], found[1][0]), "two ways"


def test_weights_start_as_published() -> None:
    layer = q_network.Noisy(400, 300, 0.5)
    assert layer.mean.weight.abs().max().item() == pytest.approx(0.05, rel=1e-3)
    assert layer.mean.bias.abs().max() <= 0.05
    for x in (layer.spread.weight, layer.spread.bias):
        assert torch.equal(x, torch.full_like(x, 0.025))


# ε-greedy actions: the compiled loop gives what torch's operations give, to the bit.


@settings(deadline=None)  # the loop is compiled first
@given(
    st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 18), st.booleans(), st.sampled_from([None, 0.0, 0.5, 1.0])
)
def test_the_compiled_loop_is_torch_to_the_bit(
    seed: int, rows: int, actions: int, masked: bool, chance: float | None
) -> None:
    torch.manual_seed(seed)
    q = torch.randint(-2, 3, (rows, actions)).float()  # many are equally good
    mask = (torch.rand(rows, actions) < 0.6) | (torch.arange(actions) == 0) if masked else None
    noise, epsilon = torch.rand(rows, 5), None if chance is None else torch.full((rows,), chance)
    for a, b in zip(epsilon_greedy(q, mask, noise, epsilon), by_torch(q, mask, noise, epsilon), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite(bad: float) -> None:
    q, noise = torch.tensor([[0.0, bad, 1.0], [bad, bad, bad], [1.0, 2.0, bad]]), torch.rand(3, 3)
    mask = torch.tensor([[True, True, True], [True, True, True], [True, True, False]])
    for a, b in zip(epsilon_greedy(q, mask, noise, None), by_torch(q, mask, noise, None), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_picking_knows_the_ends_of_its_uniforms() -> None:
    among = torch.tensor([[False, True, True, False, True]])
    for u, expected in ((0.0, 1), (1 / 3 - 1e-4, 1), (1 / 3 + 1e-4, 2), (1.0 - 2.0**-24, 4)):
        assert random_choice(among, torch.tensor([u])).item() == expected
    assert random_choice(torch.ones(1, 18, dtype=torch.bool), torch.tensor([1.0 - 2.0**-24])).item() == 17
    assert random_choice(torch.zeros(1, 3, dtype=torch.bool), torch.tensor([0.5])).item() == 0

"""polyplay/nets/q_heads.py: what plain and dueling heads are, their biases, noise and the gradient they give back."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.nets import q_heads
from polyplay.nets.q_heads import QHead, by_torch, compiled, random_choice
from tests.nets.helpers import parameters


@pytest.mark.parametrize("atoms", [0, 5])
def test_dueling_streams_are_identifiable(atoms: int) -> None:
    """The mean over actions is V alone, differences between actions are A's alone."""
    head = QHead(7, 3, atoms, 8, dueling=True)
    x = torch.randn(6, 7)
    out = head(x)
    value = head.value(x, None, torch.enable_grad()).view(6, *([atoms] if atoms else []))
    advantage = head.advantage(x, None, torch.enable_grad()).view(out.shape)
    torch.testing.assert_close(out.mean(1), value)
    torch.testing.assert_close(out - out[:, :1], advantage - advantage[:, :1])
    with torch.no_grad():
        head.advantage.last.bias += 3.0 if not atoms else torch.randn(atoms).repeat(3)
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
        grads.append((out.detach(), x.grad, head.advantage.hidden.weight.grad, head.value.last.weight.grad))
    for i, factor in enumerate((1.0, 2**-0.5, 1.0, 1.0)):
        torch.testing.assert_close(grads[1][i], grads[0][i] * factor)
    assert scaled(torch.zeros(1, 7)).shape == (1, 3), "and without a gradient as well"


# polyplay/nets/q_heads.py: noise from keys, its distribution, and the layer against the formula written out.


def drawn(variant: str, n: int = 400_000) -> torch.Tensor:
    """x of ε = sgn(x)·√|x|."""
    eps = q_heads.draw_noise(torch.arange(4), n // 4, variant).flatten()
    return eps * eps.abs()


def test_a_key_gives_the_same_numbers_everywhere() -> None:
    """A value that must never change: checkpoints and machines agree by it."""
    key = torch.tensor([5, 6, 5])
    eps = q_heads.draw_noise(key, 11, "fortunato")
    assert torch.equal(eps[0], eps[2])
    assert not torch.equal(eps[0], eps[1])
    assert torch.equal(q_heads.draw_noise(key[1:], 7, "fortunato"), eps[1:, :7]), "fewer are the first of more"
    key = (5 + q_heads._A) % 2**64
    first = _mixed((_mixed(key) + q_heads._A) % 2**64) & 0xFFFF
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
    layer = q_heads.Noisy(6, 4, 0.5, bias)
    x, eps = torch.randn(5, 6), q_heads.draw_noise(torch.arange(5), layer.noise, "fortunato")
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
    layer, x = q_heads.Noisy(9, 5, 0.5, bias), torch.randn(q_heads.MANY, 9)
    eps, weights = torch.randn(1, layer.noise), list(layer.parameters())
    found = []
    for rows in (eps, eps.expand(q_heads.MANY, -1)):
        y = layer(x, rows)
        found.append([y.detach(), *torch.autograd.grad(y.square().sum(), weights)])
    for together, apart in zip(*found, strict=True):
        torch.testing.assert_close(together, apart)
    assert not torch.equal(found[0][0], found[1][0]), "two ways"


def test_weights_start_as_published() -> None:
    layer = q_heads.Noisy(400, 300, 0.5)
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
    for a, b in zip(compiled(q, mask, noise, epsilon), by_torch(q, mask, noise, epsilon), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite(bad: float) -> None:
    q, noise = torch.tensor([[0.0, bad, 1.0], [bad, bad, bad], [1.0, 2.0, bad]]), torch.rand(3, 3)
    mask = torch.tensor([[True, True, True], [True, True, True], [True, True, False]])
    for a, b in zip(compiled(q, mask, noise, None), by_torch(q, mask, noise, None), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_picking_knows_the_ends_of_its_uniforms() -> None:
    among = torch.tensor([[False, True, True, False, True]])
    for u, expected in ((0.0, 1), (1 / 3 - 1e-4, 1), (1 / 3 + 1e-4, 2), (1.0 - 2.0**-24, 4)):
        assert random_choice(among, torch.tensor([u])).item() == expected
    assert random_choice(torch.ones(1, 18, dtype=torch.bool), torch.tensor([1.0 - 2.0**-24])).item() == 17
    assert random_choice(torch.zeros(1, 3, dtype=torch.bool), torch.tensor([0.5])).item() == 0

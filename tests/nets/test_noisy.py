"""polyplay/nets/q_heads.py: noise from keys, its distribution, and the layer against the formula written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from polyplay.core import numbers
from polyplay.nets import q_heads


def drawn(variant: str, n: int = 400_000) -> torch.Tensor:
    """x of ε = sgn(x)·√|x|."""
    eps = q_heads.draw_noise(torch.arange(4), n // 4, variant).flatten()
    return eps * eps.abs()


def test_keys_are_of_the_noise_alone_and_differ() -> None:
    uniforms = torch.from_numpy(numbers.uniform(3, np.arange(500)[:, None], np.arange(4), 5)).flatten(0, 1)
    keys = q_heads.keys(uniforms)
    assert keys.dtype == torch.int64
    assert len(keys.unique()) == len(keys) == 2000
    assert torch.equal(q_heads.keys(uniforms[:, -2:]), keys)
    assert (keys >= 0).all()


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


def test_gradients_reach_means_and_spreads() -> None:
    layer = q_heads.Noisy(6, 4, 0.5)
    layer(torch.randn(5, 6), q_heads.draw_noise(torch.tensor([1]), layer.noise, "zoo")).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in layer.parameters())

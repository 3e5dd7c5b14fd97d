"""Ensembles of SAC's and TD3's networks: normalization and dropout, against slow twins in NumPy's float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyplay.core import tree
from polyplay.envs.spaces import Box, Discrete
from polyplay.nets import critics
from polyplay.nets.critics import BatchRenorm, CriticActions, Ensemble


def renorm_twin(x: np.ndarray, mean: np.ndarray, variance: np.ndarray, warm: bool) -> np.ndarray:
    """One network's x [N, size] by the batch's statistics, number by number, corrected by running ones [size]."""
    found = np.empty_like(x)
    for k in range(x.shape[1]):
        own, spread = x[:, k].mean(), np.sqrt(((x[:, k] - x[:, k].mean()) ** 2).mean() + 1e-3)
        there = np.sqrt(variance[k] + 1e-3)
        r = min(max(spread / there, 1 / 3), 3.0) if warm else 1.0
        d = min(max((own - mean[k]) / there, -5.0), 5.0) if warm else 0.0
        found[:, k] = (x[:, k] - own) / spread * r + d
    return found


def test_batch_renormalization_is_that_of_a_slow_twin(monkeypatch):
    monkeypatch.setattr(critics, "WARM", 3)
    rng, layer = np.random.default_rng(0), BatchRenorm(2, 4)
    mean, variance = np.zeros((2, 4)), np.ones((2, 4))
    for i in range(8):
        x = rng.normal(rng.normal(size=(2, 1, 4)) * 3, rng.uniform(0.1, 5.0, (2, 1, 4)), (2, 6, 4))
        found = layer(torch.tensor(x, dtype=torch.float32), True, lambda w: w).detach().numpy()
        for j in range(2):
            wanted = renorm_twin(x[j], mean[j], variance[j], i >= 3)
            np.testing.assert_allclose(found[j], wanted, rtol=1e-3, atol=1e-4)
        mean, variance = 0.99 * mean + 0.01 * x.mean(1), 0.99 * variance + 0.01 * x.var(1)
    np.testing.assert_allclose(layer.mean[:, 0].numpy(), mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.variance[:, 0].numpy(), variance, rtol=1e-4)
    still = layer(torch.tensor(x, dtype=torch.float32), False, lambda w: w).detach().numpy()
    np.testing.assert_allclose(still, (x - mean[:, None]) / np.sqrt(variance[:, None] + 1e-3), rtol=1e-3, atol=1e-4)
    assert float(layer.passes) == 8.0


def test_a_unit_that_never_changes_has_a_finite_gradient():
    layer = BatchRenorm(1, 2)
    x = torch.zeros(1, 5, 2, requires_grad=True)
    layer(x, True, lambda w: w).square().sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())


def test_layers_are_dropped_and_normalized_before_relu():
    torch.manual_seed(0)
    rng, ensemble = np.random.default_rng(1), Ensemble(2, (3, 5, 4, 1), "layer", dropout=0.25)
    with torch.no_grad():
        for p in ensemble.parameters():
            p.copy_(torch.tensor(rng.normal(size=p.shape)))
    x, draws = rng.normal(size=(6, 3)), rng.integers(-32_768, 32_768, (6, 2 * 9), np.int16)
    found = ensemble(torch.tensor(x, dtype=torch.float32), draws=torch.from_numpy(draws)).detach().numpy()
    left = draws < -32_768 + 16_384
    assert 0.1 < left.mean() < 0.4
    params = {name: p.detach().double().numpy() for name, p in ensemble.named_parameters()}
    for j in range(2):
        y, at = x, 0
        for i, width in enumerate((5, 4)):
            y = y @ params[f"weights.{i}"][j] + params[f"biases.{i}"][j]
            y = np.where(left[:, at + j * width : at + (j + 1) * width], 0.0, y / 0.75)
            y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5)
            y = np.maximum(y * params[f"layer_norms.{i}.scale"][j] + params[f"layer_norms.{i}.shift"][j], 0.0)
            at += 2 * width
        wanted = y @ params["weights.2"][j] + params["biases.2"][j]
        np.testing.assert_allclose(found[j], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("normalization", ["none", "layer", "batch"])
def test_of_a_frozen_ensemble_the_inputs_alone_have_a_gradient(normalization):
    torch.manual_seed(0)
    ensemble, x = Ensemble(2, (3, 5, 1), normalization), torch.randn(4, 3, requires_grad=True)
    ensemble(x, frozen=True).sum().backward()
    assert x.grad is not None
    assert bool(x.grad.abs().sum() > 0)
    assert all(p.grad is None for p in ensemble.parameters())


def box(shape: tuple[int, ...], low: float) -> Box:
    return Box(shape, np.full(shape, low, np.float32), np.full(shape, low + 2.0, np.float32))


PARTS = {"a": Discrete(3), "b": {"c": box((2, 2), -1.0), "d": Discrete(2)}, "e": box((), 0.0)}


@pytest.mark.parametrize("space", [Discrete(4), box((2, 3), -1.0), PARTS])
def test_actions_are_taken_apart_and_come_back(space):
    actions, rng = CriticActions(space), np.random.default_rng(0)

    def drawn(leaf: Box | Discrete) -> torch.Tensor:
        if isinstance(leaf, Discrete):
            return torch.tensor(rng.integers(0, leaf.n, 50))
        return torch.tensor(rng.uniform(leaf.low, leaf.high, (50, *leaf.shape)), dtype=torch.float32)

    given = tree.map(drawn, space)
    real, number = actions.split(given)
    back = actions.join(real, number)
    assert [path for path, _ in tree.leaves(back)] == [path for path, _ in tree.leaves(space)]
    for (_, x), (_, y) in zip(tree.leaves(given), tree.leaves(back), strict=True):
        assert torch.equal(x, y)
    if space is PARTS:
        assert actions.box is not None
        assert actions.choice is not None
        assert (actions.box.shape, actions.choice.n) == ((5,), 6)
        assert torch.equal(number, 2 * given["a"] + given["b"]["d"])
        legal = actions.mask({"a": torch.tensor([[True, False, True]])})
        assert legal is not None
        assert legal.tolist() == [[True, True, False, False, True, True]]

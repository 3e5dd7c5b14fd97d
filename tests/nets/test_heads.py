from __future__ import annotations

import math

import pytest
import torch
from torch import distributions

from polyplay.envs.spaces import Discrete
from polyplay.errors import UserError
from polyplay.nets.heads import Categorical, Gaussian, for_space

from .helpers import continuous, vector


def grid(n: int) -> torch.Tensor:
    """Midpoints of n equal parts of (0, 1)."""
    return ((torch.arange(n) + 0.5) / n).unsqueeze(1)


def test_categorical_logp_and_entropy_are_torchs():
    head, logits = Categorical(7), torch.randn(50, 7) * 3
    theirs = distributions.Categorical(logits=logits)
    action = head.sample(logits, torch.rand(50, 1))
    torch.testing.assert_close(head.logp(logits, action), theirs.log_prob(action))
    torch.testing.assert_close(head.entropy(logits), theirs.entropy())
    assert torch.equal(head.mode(logits), theirs.mode)
    assert torch.equal(head.embed(action).argmax(-1), action)


def test_categorical_frequencies_are_its_probabilities():
    head, logits, n = Categorical(5), torch.tensor([0.3, -1.0, 2.0, 0.0, -4.0]), 100_000
    action = head.sample(logits.expand(n, 5), grid(n))
    assert action.dtype == torch.int64
    shares = action.bincount(minlength=5) / n
    torch.testing.assert_close(shares, logits.softmax(0), atol=2e-5, rtol=0)


def test_impossible_actions_are_never_drawn_and_the_edges_are_in_range():
    head, inf = Categorical(4), math.inf
    noise = torch.tensor([[0.0], [2.0**-25], [0.5], [1 - 2.0**-24], [1.0]])
    for logits, allowed in (
        ([-inf, 0.0, 1.0, -inf], {1, 2}),
        ([0.0, -inf, -inf, -inf], {0}),
        ([0.0] * 4, {0, 2, 3}),
    ):
        drawn = head.sample(torch.tensor(logits).expand(5, 4), noise)
        assert set(drawn.tolist()) == allowed
    many = torch.randn(2000, 4) * 10
    assert head.sample(many, torch.ones(2000, 1)).max() <= 3


def test_gaussian_logp_and_entropy_are_torchs():
    head, mean = Gaussian((2, 3), log_std=-0.7), torch.randn(50, 6)
    head.log_std.data += torch.randn(6) * 0.3
    theirs = distributions.Independent(distributions.Normal(mean, head.log_std.exp()), 1)
    action = head.sample(mean, torch.rand(50, 6))
    assert action.shape == (50, 2, 3)
    torch.testing.assert_close(head.logp(mean, action), theirs.log_prob(action.flatten(1)))
    torch.testing.assert_close(head.entropy(mean), theirs.entropy())
    assert torch.equal(head.mode(mean).flatten(1), mean)
    assert torch.equal(head.embed(action), action.flatten(1))


def test_gaussian_samples_are_the_normals_quantiles():
    head, n = Gaussian((1,), log_std=math.log(2.0)), 10_000
    action = head.sample(torch.full((n, 1), 3.0), grid(n)).squeeze(1)
    quantiles = distributions.Normal(3.0, 2.0).icdf(grid(n).squeeze(1))
    torch.testing.assert_close(action, quantiles, atol=2e-3, rtol=0)
    assert action.mean().item() == pytest.approx(3.0, abs=1e-3)
    assert action.std().item() == pytest.approx(2.0, abs=1e-2)
    assert head.sample(torch.zeros(2, 1), torch.tensor([[0.0], [1.0]])).isfinite().all()


def test_spaces_have_heads_or_a_clear_error():
    assert for_space(Discrete(4)).size == 4
    head = for_space(continuous(vector(1), 3).action, log_std=-1.0)
    assert head.action == ((3,), "float32")
    assert head.noise == 3
    assert torch.equal(head.log_std, torch.full((3,), -1.0))
    with pytest.raises(UserError, match="allowed are Discrete and Box"):
        for_space("MultiDiscrete([2 2])")

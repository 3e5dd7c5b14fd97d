from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.envs.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from polyplay.nets.action_heads import Bernoulli, Categorical, Composite, Gaussian, MultiCategorical, for_space
from tests.nets.helpers import continuous, vector


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
    head, mean = Gaussian((2, 3)), torch.randn(50, 6)
    head.log_std.data += torch.randn(6) * 0.3 - 0.7
    theirs = distributions.Independent(distributions.Normal(mean, head.log_std.exp()), 1)
    action = head.sample(mean, torch.rand(50, 6))
    assert action.shape == (50, 2, 3)
    torch.testing.assert_close(head.logp(mean, action), theirs.log_prob(action.flatten(1)))
    torch.testing.assert_close(head.entropy(mean), theirs.entropy())
    assert torch.equal(head.mode(mean).flatten(1), mean)
    assert torch.equal(head.embed(action), action.flatten(1))


def test_gaussian_samples_are_the_normals_quantiles():
    head, n = Gaussian((1,)), 10_000
    head.log_std.data.fill_(math.log(2.0))
    action = head.sample(torch.full((n, 1), 3.0), grid(n)).squeeze(1)
    quantiles = distributions.Normal(3.0, 2.0).icdf(grid(n).squeeze(1))
    torch.testing.assert_close(action, quantiles, atol=2e-3, rtol=0)
    assert action.mean().item() == pytest.approx(3.0, abs=1e-3)
    assert action.std().item() == pytest.approx(2.0, abs=1e-2)
    assert head.sample(torch.zeros(2, 1), torch.tensor([[0.0], [1.0]])).isfinite().all()


def test_spaces_have_heads_or_a_clear_error():
    assert for_space(Discrete(4)).size == 4
    head = for_space(continuous(vector(1), 3).action)
    assert head.action == ((3,), "float32")
    assert head.noise == 3
    assert torch.equal(head.log_std, torch.zeros(3))
    with pytest.raises(UserError, match="allowed are Discrete, MultiDiscrete, MultiBinary and Box, and dicts"):
        for_space("MultiDiscrete([2 2])")


def test_multi_categorical_is_torchs_categoricals():
    head, logits = MultiCategorical((2, 2), (3, 1, 5, 2)), torch.randn(40, 11) * 2
    theirs = [distributions.Categorical(logits=x) for x in logits.split((3, 1, 5, 2), 1)]
    action = head.sample(logits, torch.rand(40, 4))
    assert (action.shape, action.dtype) == ((40, 2, 2), torch.int64)
    flat = action.flatten(1).unbind(1)
    torch.testing.assert_close(head.logp(logits, action), sum(d.log_prob(a) for d, a in zip(theirs, flat, strict=True)))
    torch.testing.assert_close(head.entropy(logits), sum(d.entropy() for d in theirs))
    assert torch.equal(head.mode(logits).flatten(1), torch.stack([d.mode for d in theirs], 1))
    hot = [torch.nn.functional.one_hot(a, n) for a, n in zip(flat, (3, 1, 5, 2), strict=True)]
    assert torch.equal(head.embed(action), torch.cat(hot, 1).float())
    assert not list(head.state_dict()), "nothing of it is a weight"


def test_bernoulli_is_torchs():
    head, logits = Bernoulli((2, 3)), torch.randn(40, 6) * 2
    theirs = distributions.Independent(distributions.Bernoulli(logits=logits), 1)
    action = head.sample(logits, torch.rand(40, 6))
    assert (action.shape, action.dtype) == ((40, 2, 3), torch.int8)
    torch.testing.assert_close(head.logp(logits, action), theirs.log_prob(action.flatten(1).float()))
    torch.testing.assert_close(head.entropy(logits), theirs.entropy())
    assert torch.equal(head.mode(logits).flatten(1), (logits > 0).to(torch.int8))
    assert torch.equal(head.embed(action), action.flatten(1).float())
    shares = head.sample(logits[:1].expand(10_000, 6), grid(10_000).expand(-1, 6)).flatten(1).float().mean(0)
    torch.testing.assert_close(shares, logits[0].sigmoid(), atol=2e-4, rtol=0)


def test_composite_adds_up_its_parts():
    box = continuous(vector(1), 2).action
    head = for_space({"type": Discrete(3), "b": {"0": box, "1": MultiBinary((2,))}})
    assert isinstance(head, Composite)
    assert (head.size, head.noise, head.inputs) == (3 + 2 + 2, 1 + 2 + 2, 3 + 2 + 2)
    assert head.action == {"type": ((), "int64"), "b": {"0": ((2,), "float32"), "1": ((2,), "int8")}}
    params, noise = torch.randn(9, 7), torch.rand(9, 5)
    action = head.sample(params, noise)
    parts = Categorical(3), Gaussian((2,)), Bernoulli((2,))
    cuts, each = params.split((3, 2, 2), 1), noise.split((1, 2, 2), 1)
    alone = [h.sample(x, u) for h, x, u in zip(parts, cuts, each, strict=True)]
    leaves = [a for _, a in tree.leaves(action)]
    assert all(torch.equal(a, b) for a, b in zip(leaves, alone, strict=True))
    torch.testing.assert_close(
        head.logp(params, action), sum(h.logp(x, a) for h, x, a in zip(parts, cuts, leaves, strict=True))
    )
    torch.testing.assert_close(head.entropy(params), sum(h.entropy(x) for h, x in zip(parts, cuts, strict=True)))
    assert torch.equal(head.embed(action), torch.cat([h.embed(a) for h, a in zip(parts, alone, strict=True)], 1))
    assert torch.equal(head.mode(params)["b"]["0"], params[:, 3:5])


def test_masks_are_torchs_with_impossible_logits():
    head, logits = MultiCategorical((2,), (4, 3)), torch.randn(30, 7)
    mask = torch.tensor([True, False, True, True, False, False, True]).expand(30, 7)
    params = head.masked(logits, mask)
    theirs = [distributions.Categorical(logits=x) for x in logits.masked_fill(~mask, -math.inf).split((4, 3), 1)]
    action = head.sample(params, torch.rand(30, 2))
    assert (action[:, 0] != 1).all()
    assert (action[:, 1] == 2).all()
    each = zip(theirs, action.unbind(1), strict=True)
    torch.testing.assert_close(head.logp(params, action), sum(d.log_prob(a) for d, a in each))
    expected = theirs[0].probs * theirs[0].probs.clamp(min=1e-30).log()
    torch.testing.assert_close(head.entropy(params), -expected.sum(1))


# -------------------------------------------------------------------------------- of any actions

LEAVES = st.one_of(
    st.integers(1, 4).map(Discrete),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(lambda n: MultiDiscrete((len(n),), tuple(n))),
    st.just(MultiDiscrete((1, 2), (2, 3))),
    st.sampled_from([(1,), (2,), (1, 2)]).map(MultiBinary),
)
ACTIONS = LEAVES | st.dictionaries(st.sampled_from("abc"), LEAVES, min_size=1, max_size=3)


def every(action):
    """All actions, [number of them, …]."""
    leaves = list(tree.leaves(action))
    sizes = [n for _, leaf in leaves for n in leaf.classes]
    values = torch.cartesian_prod(*(torch.arange(n) for n in sizes)).reshape(-1, len(sizes))
    parts = values.split([len(leaf.classes) for _, leaf in leaves], 1)
    shaped = {
        path: v.reshape(len(v), *leaf.field.shape).to(getattr(torch, leaf.field.dtype))
        for (path, leaf), v in zip(leaves, parts, strict=True)
    }
    return tree.nest(shaped), values, sizes


def some_mask(action, n):
    """Bool masks [n, values] with something legal for each number; the same flat, and split among the leaves."""
    leaves = list(tree.leaves(action))
    sizes = [k for _, leaf in leaves for k in leaf.classes]
    flat = torch.cat([(torch.rand(n, k) < 0.5).scatter(1, torch.randint(k, (n, 1)), True) for k in sizes], 1)
    parts = flat.split([sum(leaf.classes) for _, leaf in leaves], 1)
    return flat, tree.nest({path: part for (path, _), part in zip(leaves, parts, strict=True)})


@settings(max_examples=50, deadline=None)
@given(action=ACTIONS, masked=st.booleans(), seed=st.integers(0, 2**16))
def test_probabilities_add_up_to_1_and_illegal_actions_have_none(action, masked, seed):
    torch.manual_seed(seed)
    head = for_space(action)
    all_of_them, values, sizes = every(action)
    n = len(values)
    params = (torch.randn(1, head.size) * 4).expand(n, -1)
    legal = torch.ones(n, dtype=torch.bool)
    if masked:
        flat, mask = some_mask(action, 1)
        params = head.masked(params, tree.map(lambda m: m.expand(n, -1), mask))
        offsets = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        legal = flat[0][values + offsets].all(1)
    logp = head.logp(params, all_of_them)
    p = logp.exp()
    assert (p[~legal] == 0).all()
    assert p.sum().item() == pytest.approx(1.0, abs=1e-5)
    entropy = -(p[legal] * logp[legal]).sum().item()
    assert head.entropy(params)[0].item() == pytest.approx(entropy, abs=1e-4)
    mode = head.logp(params, head.mode(params))[0].item()
    assert mode == pytest.approx(logp.max().item(), abs=1e-5)


@settings(max_examples=50, deadline=None)
@given(action=ACTIONS, big=st.sampled_from([1.0, 30.0]), seed=st.integers(0, 2**16))
def test_what_is_drawn_is_legal_and_gradients_are_finite(action, big, seed):
    torch.manual_seed(seed)
    head = for_space(action)
    params = (torch.randn(64, head.size) * big).requires_grad_()
    flat, mask = some_mask(action, 64)
    within = head.masked(params, mask)
    edges = torch.rand(64, head.noise)
    edges[:2], edges[2:4] = 0.0, 1.0
    for drawn in (head.sample(within, edges), head.mode(within)):
        assert (head.logp(within, drawn) > -1e6).all(), "an illegal one has less"
    entropy = head.entropy(within)
    assert (entropy >= -1e-5).all()
    (1e3 * head.logp(within, head.sample(within, edges)).sum() + 1e3 * entropy.sum()).backward()
    assert params.grad.isfinite().all()
    if not any(isinstance(leaf, MultiBinary) for _, leaf in tree.leaves(action)):
        assert (params.grad[~flat] == 0).all()


RANGES = {
    "set points": ([900.0], [1100.0]),
    "torques": ([-0.4, -2.0], [0.4, 2.0]),
    "one-sided rates": ([0.0, 1e6, -5.0], [1e-3, 5e6, 0.0]),
}


@pytest.mark.parametrize(("low", "high"), RANGES.values(), ids=RANGES)
def test_a_policy_s_minus_one_to_one_is_an_environment_s_range(low, high):
    low, high = np.float32(low), np.float32(high)
    n = len(low)
    head, unit = for_space(Box((n,), low, high)), Gaussian((n,))
    ends = head.mode(torch.tensor([[-1.0] * n, [1.0] * n]))
    torch.testing.assert_close(ends, torch.from_numpy(np.stack([low, high])))
    mean, noise = torch.randn(200, n) / 3, torch.rand(200, n)
    action, plain = head.sample(mean, noise), unit.sample(mean, noise)
    torch.testing.assert_close(head.embed(action), plain, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(head.logp(mean, action), unit.logp(mean, plain), rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(head.entropy(mean), unit.entropy(mean))
    assert not list(head.buffers()), "what is no weight is not published and averaged with them"


def test_parts_without_bounds_and_with_one_number_only():
    inf, largest = np.float32(np.inf), np.finfo(np.float32).max
    box = Box((4,), np.array([-inf, 0, -largest, 7], np.float32), np.array([inf, inf, largest, 7], np.float32))
    head, mean = for_space(box), torch.tensor([[0.3, -2.0, 5.0, 0.9]])
    assert head.mode(mean)[0].tolist() == pytest.approx([0.3, -2.0, 5.0, 7.0])
    assert head.logp(mean, head.mode(mean)).isfinite().all()
    free = for_space(Box((2,), np.full(2, -inf), np.full(2, inf)))
    assert free.range is None


def test_a_range_of_minus_one_to_one_and_clipped_actions_are_left_as_they_are_to_the_bit():
    mean, noise = torch.randn(50, 3), torch.rand(50, 3)
    plain = Gaussian((3,)).sample(mean, noise)
    assert torch.equal(for_space(continuous(vector(1), 3).action).sample(mean, noise), plain)
    box = Box((3,), np.full(3, 900, np.float32), np.full(3, 1100, np.float32))
    assert torch.equal(for_space(box, scaled=False).sample(mean, noise), plain)
    many = {"a": box, "b": Discrete(2)}
    assert for_space(many).mode(torch.zeros(1, 5))["a"].tolist() == [[1000.0] * 3]
    assert for_space(many, scaled=False).mode(torch.zeros(1, 5))["a"].tolist() == [[0.0] * 3]

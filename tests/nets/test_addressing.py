"""Invariants of the ways to address a memory, and that products of few rows don't depend on the batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyplay.nets import dnc

QUICK = settings(max_examples=40, deadline=None)
SEEDS = st.integers(0, 2**31)
LANES, SLOTS, READS, WORD = st.integers(1, 3), st.integers(1, 9), st.integers(1, 5), st.integers(1, 6)


def weights(*shape: int) -> Tensor:
    """Random, some of them 0, with a sum of at most 1, exactly 1 now and then; float64."""
    raw = torch.rand(*shape, dtype=torch.float64) * (torch.rand(*shape) < 0.7)
    total = raw.sum(-1, keepdim=True).clamp_min(1e-3)
    return raw / total * torch.rand(*shape[:-1], 1, dtype=torch.float64).mul(1.3).clamp_max(1.0)


def one_hot(slots: int, *at: int) -> Tensor:
    return torch.eye(slots, dtype=torch.float64)[list(at)]


def are_weights(x: Tensor) -> bool:
    return bool((x >= -1e-12).all() and (x.sum(-1) <= 1 + 1e-12).all())


@QUICK
@given(SEEDS, LANES, SLOTS, READS, WORD)
def test_content_weights_are_a_distribution_and_turn_to_the_nearest_word(seed, lanes, slots, reads, word):
    torch.manual_seed(seed)
    memory = torch.randn(lanes, slots, word, dtype=torch.float64)
    keys = torch.randn(lanes, reads, word, dtype=torch.float64)
    strengths = torch.rand(lanes, reads, dtype=torch.float64) * 20
    found = dnc.content_weights(memory, keys, strengths)
    torch.testing.assert_close(found.sum(2), torch.ones(lanes, reads, dtype=torch.float64))
    for b in range(lanes):
        for r in range(reads):
            near = [float(keys[b, r] @ m / ((keys[b, r].norm() * m.norm()) + 1e-9)) for m in memory[b]]
            best = torch.softmax(torch.tensor(near, dtype=torch.float64) * strengths[b, r], 0)
            assert abs(found[b, r] - best).max() < 1e-2  # the released code's 1e-6 matters for short words alone


@QUICK
@given(SEEDS, LANES, SLOTS, READS)
def test_usage_stays_in_bounds_and_what_is_freed_falls(seed, lanes, slots, reads):
    torch.manual_seed(seed)
    usage, written, read = torch.rand(lanes, slots).double(), weights(lanes, slots), weights(lanes, reads, slots)
    after = dnc.usage_after(usage, written, torch.rand(lanes, reads).double(), read)
    assert (after >= 0).all()
    assert (after <= 1).all()
    kept = dnc.usage_after(usage, written, torch.zeros(lanes, reads).double(), read)
    assert (kept >= usage - 1e-12).all()
    assert (after <= kept).all()
    freed = dnc.usage_after(usage, written, torch.ones(lanes, reads).double(), read.round())
    assert (freed[(read.round() == 1).any(1)] == 0).all()


def test_usage_takes_no_gradient_to_what_was_written():
    usage, written, free, read = (torch.rand(*s, requires_grad=True) for s in ((2, 3), (2, 3), (2, 4), (2, 4, 3)))
    after = dnc.usage_after(usage, written, free, read)
    after.sum().backward()
    assert written.grad is None
    assert all((x.grad != 0).all() for x in (usage, free, read))


@QUICK
@given(SEEDS, LANES, SLOTS)
def test_allocation_goes_to_the_least_used_first(seed, lanes, slots):
    """Against Π and the order written out; slots of usage 1 get nothing, of equals the first comes first."""
    torch.manual_seed(seed)
    usage = (torch.rand(lanes, slots).double() * 1.5).clamp_max(1.0)
    usage[torch.rand(lanes, slots) < 0.2] = 0.25  # equals
    found = dnc.allocation_weights(usage)
    assert are_weights(found)
    assert (found[usage == 1] == 0).all()
    for b in range(lanes):
        used = [1e-6 + (1 - 1e-6) * float(u) for u in usage[b]]
        left = 1.0
        for slot in sorted(range(slots), key=lambda i, used=used: (used[i], i)):
            assert abs(float(found[b, slot]) - left * (1 - used[slot])) < 1e-12
            left *= used[slot]


def test_a_single_free_slot_gets_all():
    usage = torch.ones(1, 5)
    usage[0, 3] = 0.0
    torch.testing.assert_close(dnc.allocation_weights(usage), one_hot(5, 3).float(), rtol=0, atol=1e-5)
    assert dnc.allocation_weights(torch.ones(2, 5)).tolist() == [[0.0] * 5] * 2
    assert dnc.allocation_weights(torch.zeros(1, 5)).argmax(1).item() == 0


def test_gradients_of_an_empty_memory_are_finite():
    usage = torch.zeros(2, 450, requires_grad=True)
    (dnc.allocation_weights(usage) * torch.randn(2, 450)).sum().backward()
    assert usage.grad.isfinite().all()
    assert usage.grad.abs().sum() > 0


def test_erasing_and_adding():
    memory, erase, add = torch.randn(2, 3, 4), torch.rand(2, 4), torch.randn(2, 4)
    after = dnc.erase_and_add(memory, one_hot(3, 2, 0).float(), torch.ones(2, 4), add)
    assert torch.equal(after[0], torch.stack([memory[0, 0], memory[0, 1], add[0]]))
    assert torch.equal(after[1], torch.stack([add[1], memory[1, 1], memory[1, 2]]))
    half = dnc.erase_and_add(memory, torch.full((2, 3), 0.5), erase, add)
    torch.testing.assert_close(half, memory - 0.5 * memory * erase.unsqueeze(1) + 0.5 * add.unsqueeze(1))


def test_gradients_of_erasing_and_adding():
    given_ = torch.randn(2, 3, 4).double(), weights(2, 3), torch.rand(2, 4).double(), torch.randn(2, 4).double()
    assert torch.autograd.gradcheck(dnc.erase_and_add, [x.requires_grad_() for x in given_])


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("inner", "columns"), [(37, 37), (450, 450), (32, 450), (33, 13), (7, 9)])
def test_a_lanes_product_is_the_same_wherever_it_lies(rows, inner, columns):
    """torch.bmm alone fails here for most shapes with rows other than 4."""
    a, b = torch.randn(5, rows, inner), torch.randn(5, inner, columns)
    for turned in (b, b.transpose(1, 2).contiguous().transpose(1, 2)):
        whole = dnc.bmm_rows(a, turned)
        torch.testing.assert_close(whole, torch.einsum("brk,bkm->brm", a, b), rtol=1e-4, atol=1e-4)
        for i in range(5):
            assert torch.equal(dnc.bmm_rows(a[i : i + 1].clone(), turned[i : i + 1].clone())[0], whole[i])


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (dnc.content_weights, ((2, 5, 3), (2, 4, 2), (2, 4))),
        (dnc.usage_after, ((2, 5), (2, 4), (2, 3), (2, 3, 5))),
        (dnc.allocation_weights, ((5,),)),
        (dnc.erase_and_add, ((2, 5, 3), (2, 5), (2, 5), (2, 3))),
        (dnc.precedence_after, ((2, 5), (1, 5))),
    ],
)
def test_shapes_are_checked(function, shapes):
    with pytest.raises(ValueError, match=r"shapes must be .*; got \["):
        function(*(torch.zeros(s) for s in shapes))

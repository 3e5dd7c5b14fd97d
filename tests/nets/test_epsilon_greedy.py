"""ε-greedy actions: the compiled loop gives what torch's operations give, to the bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.nets.q_heads import by_torch, compiled, random_choice


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

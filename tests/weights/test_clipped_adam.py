"""The per-parameter clip of OpenAI Five in Adam: a scalar twin, Adam where nothing is clipped, one pass and several."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.weights import optimizers
from polyplay.weights.optimizers import ClippedAdam, make_optimizer
from tests import twins
from tests.weights.test_optimizers import gradients, run, vector

SPIKE = [0.01, -0.01] * 20 + [3.0, 0.01, -3.0]  # Δ, of which two are far outside what came before


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.one_of(st.floats(-1, 1), st.sampled_from([0.0, 1e-6, 40.0])), min_size=1, max_size=12),
    st.sampled_from([0.99, 0.999]),
    st.sampled_from([1e-8, 0.1]),
)
def test_it_equals_its_scalar_twin(grads: list[float], beta2: float, eps: float) -> None:
    grads, rates = SPIKE + grads, [0.1 / (i + 1) for i in range(len(SPIKE) + len(grads))]
    path = run(ClippedAdam([vector()], 1.0, eps, (0.9, beta2)), torch.tensor(grads).double()[:, None], rates)
    twin, clipped = twins.clipped_adam(torch.tensor(grads).double().tolist(), rates, eps, 0.9, beta2)
    assert path[:, 0].tolist() == pytest.approx(twin, rel=1e-10, abs=1e-13)
    assert clipped


def test_a_gradient_within_five_deviations_is_adams() -> None:
    grads = gradients(40, 7, seed=3).clamp(-3, 3)
    ours, own = make_optimizer("adam_clipped", vector(7, 4), 0.1, eps=1e-5), torch.optim.Adam([vector(7, 4)], 0.1)
    own.param_groups[0]["eps"] = 1e-5
    torch.testing.assert_close(run(ours, grads), run(own, grads), rtol=1e-12, atol=1e-14)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=25))
def test_none_of_the_first_25_gradients_is_clipped(grads: list[float]) -> None:
    own, some = torch.optim.Adam([vector()], 0.1, eps=1e-5), torch.tensor(grads, dtype=torch.float64)[:, None]
    ours = make_optimizer("adam_clipped", vector(), 0.1, eps=1e-5)
    torch.testing.assert_close(run(ours, some), run(own, some), rtol=1e-9, atol=1e-12)


def test_what_is_far_outside_is_clipped_but_counts_whole_in_the_second_moment() -> None:
    """By hand: 99 gradients of 0, then one of 8; v̂ = 0.001·64/(1 − 0.999¹⁰⁰), and 5·√v̂ is the gradient in m."""
    p = vector()
    optimizer = make_optimizer("adam_clipped", p, 0.1, eps=1e-8)
    run(optimizer, torch.tensor([0.0] * 99 + [8.0], dtype=torch.float64)[:, None])
    state = optimizer.state[p]
    deviation = math.sqrt(0.064 / (1 - 0.999**100))
    assert 5 * deviation < 5.0
    assert state["exp_avg_sq"].item() == pytest.approx(0.064)
    assert state["exp_avg"].item() == pytest.approx(0.1 * 5 * deviation)
    assert p.item() == pytest.approx(-0.1 * 0.1 * 5 / (1 - 0.9**100))
    assert float(state["step"]) == 100.0


@pytest.mark.parametrize("shape", [(5001,), (90, 60)])
def test_one_pass_over_many_weights_is_what_several_are_here_too(shape: tuple[int, ...], monkeypatch) -> None:
    grads = torch.randn(40, *shape, generator=torch.Generator().manual_seed(1))
    grads[[30, 35]] *= 100
    paths, states = [], []
    for few in (0, 1 << 60):
        monkeypatch.setattr(optimizers, "FEW", few)
        p = torch.nn.Parameter(torch.linspace(-1, 1, grads[0].numel()).view(shape).clone())
        optimizer = make_optimizer("adam_clipped", [p], lr=0.01, eps=1e-5)
        paths.append(run(optimizer, grads))
        states.append(optimizer.state[p])
    torch.testing.assert_close(paths[0], paths[1], rtol=1e-5, atol=1e-5)
    for name in ("exp_avg", "exp_avg_sq", "step"):
        torch.testing.assert_close(states[0][name], states[1][name], rtol=1e-5, atol=1e-5)
    assert all((a != b).any() for a, b in pairwise(paths[0]))


def test_state_has_torchs_names_and_shapes() -> None:
    """So that a run of either can be read as the other's."""
    own, ours = torch.optim.Adam([vector(3)], 0.1), make_optimizer("adam_clipped", vector(3), 0.1, eps=1e-5)
    run(own, gradients(1, 3, 1))
    (theirs,), (mine,) = own.state.values(), ours.state.values()
    assert {k: v.shape for k, v in mine.items()} == {k: v.shape for k, v in theirs.items()}
    assert all(not v.requires_grad for v in mine.values())

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.learning import losses
from tests import twins

QUICK = settings(max_examples=50, deadline=None)
GAMMAS = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])
LAMBDAS = st.sampled_from([0.0, 0.3, 0.95, 1.0])
INF = float("inf")
BOUNDS = st.sampled_from([(1.0, 1.0, 1.0), (2.0, 0.5, 1.5), (INF, 1.0, INF), (INF, INF, INF)])


@st.composite
def lanes(draw: Any, wild: bool = False) -> list[twins.Lane]:
    """1..3 lanes of one length: rows as a pool makes them, or with `wild` any flags at all."""
    horizon, width = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    result = []
    for _ in range(width):
        if wild:
            flags = {k: (rng.random(horizon + 1) < 0.4).tolist() for k in ("first", "terminated", "truncated")}
        else:
            events = draw(st.lists(st.sampled_from(twins.EVENTS), min_size=horizon, max_size=horizon))
            flags = twins.lane_flags(events, draw(st.sampled_from(["first", *twins.EVENTS])))
        numbers = {k: rng.normal(size=horizon + 1).tolist() for k in ("reward", "value", "log_rho")}
        result.append(flags | numbers)
    return result


def rows(group: list[twins.Lane], dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """Lanes as [T+1, B] tensors."""
    batch = {k: torch.tensor([lane[k] for lane in group]).T.contiguous() for k in group[0]}
    numbers = {k: torch.tensor([lane[k] for lane in group], dtype=dtype).T for k in ("reward", "value", "log_rho")}
    return batch | numbers


def steps(batch: dict[str, torch.Tensor], gamma: float) -> losses.Transitions:
    return losses.transitions(batch, gamma)


def columns(per_lane: list[list[float]]) -> torch.Tensor:
    return torch.tensor(per_lane, dtype=torch.float64).T


def one(rewards: list[float], values: list[float], events: list[str], begin: str = "first") -> dict[str, Any]:
    flags = twins.lane_flags(events, begin)
    return rows([flags | {"reward": rewards, "value": values, "log_rho": [0.0] * len(values)}])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_compiled_recursion_has_the_bits_of_a_kernel_per_step(dtype: torch.dtype) -> None:
    """In all sizes, of numbers small and large, some not finite, in any memory layout."""
    torch.manual_seed(0)
    for rows_, width in itertools.product((1, 2, 20, 129), (1, 3, 8, 16, 17, 40, 256)):
        base = torch.randn(width, rows_, dtype=dtype).T * 10.0 ** torch.randint(-9, 9, (rows_, width))
        trace, last = torch.rand(rows_, width, dtype=dtype), torch.randn(width, dtype=dtype)
        trace[torch.rand(rows_, width) < 0.1] = 0.0
        base[0, 0], last[-1] = np.nan, np.inf
        made, wanted = losses._scan(base, trace, last), losses._scan_by_torch(base, trace, last)
        assert made.dtype == dtype
        assert torch.equal(made.nan_to_num(7.0), wanted.nan_to_num(7.0))


@QUICK
@given(st.one_of(lanes(), lanes(wild=True)), GAMMAS, st.sampled_from([None, 1, 2, 3, 50]))
def test_n_step_equals_its_twin(group: list[twins.Lane], gamma: float, n: int | None) -> None:
    batch = rows(group)
    result = losses.n_step(steps(batch, gamma), batch["value"], n)
    torch.testing.assert_close(result, columns([twins.n_step(lane, gamma, n) for lane in group]))


@QUICK
@given(st.one_of(lanes(), lanes(wild=True)), GAMMAS, LAMBDAS)
def test_gae_equals_the_mixture_of_n_step_returns(group: list[twins.Lane], gamma: float, lam: float) -> None:
    batch = rows(group)
    advantage, target = losses.gae(steps(batch, gamma), batch["value"], lam)
    torch.testing.assert_close(target, columns([twins.lambda_return(lane, gamma, lam) for lane in group]))
    torch.testing.assert_close(advantage, target - batch["value"][:-1])


@QUICK
@given(st.one_of(lanes(), lanes(wild=True)), GAMMAS, LAMBDAS, BOUNDS)
def test_vtrace_equals_the_sum_of_equation_1(
    group: list[twins.Lane], gamma: float, lam: float, bounds: tuple[float, float, float]
) -> None:
    batch = rows(group)
    advantage, target = losses.vtrace(steps(batch, gamma), batch["value"], batch["log_rho"][:-1], *bounds, lam=lam)
    twin = [twins.vtrace(lane, gamma, *bounds, lam=lam) for lane in group]
    torch.testing.assert_close(target, columns([t for t, _ in twin]))
    torch.testing.assert_close(advantage, columns([a for _, a in twin]))


@QUICK
@given(lanes(), LAMBDAS)
def test_invalid_rows_keep_their_value_and_shield_the_past(group: list[twins.Lane], lam: float) -> None:
    """Garbage that came with a first row, or was chosen on a final one, reaches no target."""
    batch = rows(group)
    clean, invalid = steps(batch, 0.9), batch["first"][1:]
    nan, inf = torch.full_like(clean.reward, torch.nan), torch.full_like(clean.reward, torch.inf)
    dirty = clean._replace(
        reward=torch.where(invalid, nan, clean.reward), discount=torch.where(invalid, nan, clean.discount)
    )
    value, log_rho = batch["value"], batch["log_rho"][:-1]
    dirty_rho = torch.where(invalid, inf, log_rho)
    results = [
        (losses.vtrace(clean, value, log_rho, lam=lam), losses.vtrace(dirty, value, dirty_rho, lam=lam)),
        (losses.gae(clean, value, lam), losses.gae(dirty, value, lam)),
    ]
    for expected, (advantage, target) in results:
        assert torch.equal(advantage, expected[0])
        assert torch.equal(target, expected[1])
        assert torch.equal(target[invalid], value[:-1][invalid])
        assert not advantage[invalid].any()
    for n in (None, 2):
        assert torch.equal(losses.n_step(dirty, value, n), losses.n_step(clean, value, n))


@QUICK
@given(lanes(), LAMBDAS, st.sampled_from([np.nan, np.inf]))
def test_a_value_that_is_not_finite_behind_a_termination_reaches_no_other_row(
    group: list[twins.Lane], lam: float, bad: float
) -> None:
    batch = rows(group)
    step, value, log_rho = steps(batch, 0.9), batch["value"], batch["log_rho"][:-1]
    ended = batch["terminated"]
    dirty, others = torch.where(ended, bad, value), ~ended[:-1]
    for f in (
        lambda v: losses.gae(step, v, lam),
        lambda v: losses.vtrace(step, v, log_rho, lam=lam),
        lambda v: (losses.n_step(step, v),),
        lambda v: (losses.n_step(step, v, 2),),
    ):
        for clean, found in zip(f(value), f(dirty), strict=True):
            assert torch.equal(found[others], clean[others])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept_inputs_untouched_and_no_gradient_passes(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    flags = twins.lane_flags(["go", "terminate", "go", "go", "truncate", "go", "go", "go"], "first")
    numbers = {k: rng.normal(size=9).tolist() for k in ("reward", "value", "log_rho")}
    batch = rows([flags | numbers] * 2, dtype)
    before = {k: v.clone() for k, v in batch.items()}
    step, value = steps(batch, 0.9), batch["value"].requires_grad_()
    log_rho = batch["log_rho"].requires_grad_()[:-1]
    results = [
        step.reward,
        step.discount,
        losses.n_step(step, value),
        losses.n_step(step, value, 2),
        *losses.gae(step, value, 0.9),
        *losses.vtrace(step, value, log_rho),
    ]
    assert all(r.dtype == dtype and r.shape == (8, 2) and not r.requires_grad for r in results)
    assert all(torch.equal(batch[k], before[k]) for k in batch)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda b, s: losses.transitions({**b, "terminated": b["terminated"][1:]}, 0.9),
            r"T\+1, B.*\[3, 1\], \[2, 1\]",
        ),
        (lambda b, s: losses.transitions({k: v[:1] for k, v in b.items()}, 0.9), "T >= 1"),
        (lambda b, s: losses.transitions({**b, "first": b["first"].byte()}, 0.9), r"must be bool; got .*uint8"),
        (lambda b, s: losses.gae(s, b["value"][1:], 1.0), r"value \[T\+1, B\].*, \[2, 1\]$"),
        (lambda b, s: losses.n_step(s, b["value"][..., None]), r", \[3, 1, 1\]$"),
    ],
)
def test_wrong_shapes_and_dtypes_are_named(call, says: str) -> None:
    batch = one([0, 1, 2], [0.0] * 3, ["go", "go"])
    with pytest.raises(ValueError, match=says):
        call(batch, steps(batch, 0.9))

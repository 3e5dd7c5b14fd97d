from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.learning import returns
from tests import twins

QUICK = settings(max_examples=120, deadline=None)
GAMMAS = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])
LAMBDAS = st.sampled_from([0.0, 0.3, 0.95, 1.0])
BOUNDS = st.sampled_from([(1.0, 1.0, 1.0), (2.0, 0.5, 1.5), (None, 1.0, None), (None, None, None)])


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


def steps(batch: dict[str, torch.Tensor], gamma: float) -> returns.Transitions:
    return returns.transitions(batch, gamma)


def columns(per_lane: list[list[float]]) -> torch.Tensor:
    return torch.tensor(per_lane, dtype=torch.float64).T


def one(rewards: list[float], values: list[float], events: list[str], begin: str = "first") -> dict[str, Any]:
    flags = twins.lane_flags(events, begin)
    return rows([flags | {"reward": rewards, "value": values, "log_rho": [0.0] * len(values)}])


def test_transitions_shift_the_rows() -> None:
    batch = one([0, 1, 2, 0, 4], [0.0] * 5, ["go", "terminate", "go", "truncate"])
    reward, discount, valid = steps(batch, 0.5)
    assert reward[:, 0].tolist() == [1, 2, 0, 4]
    assert discount[:, 0].tolist() == [0.5, 0, 0.5, 0.5]
    assert valid[:, 0].tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    ("case", "events", "begin", "expected"),
    [
        (
            "no end: bootstrap from the last row",
            ["go", "go", "go"],
            "first",
            [1 + 2 + 4 + 40, 2 + 4 + 40, 44],
        ),
        ("termination: no value behind it", ["go", "terminate", "first"], "first", [3, 2, 30]),
        ("truncation: V of the final row", ["go", "truncate", "first"], "first", [33, 32, 30]),
        ("both at once: termination wins", ["go", "both", "first"], "first", [3, 2, 30]),
        ("an episode of length 1", ["terminate", "first", "go"], "first", [1, 20, 44]),
        ("the rollout ends on a terminal row", ["go", "go", "terminate"], "first", [7, 6, 4]),
        ("the rollout ends on a truncated row", ["go", "go", "truncate"], "first", [47, 46, 44]),
        ("the rollout begins on a final row", ["first", "go", "go"], "terminate", [10, 46, 44]),
        ("a lane restarts out of the blue", ["go", "restart", "go"], "go", [21, 20, 44]),
        ("two restarts in a row", ["restart", "restart", "go"], "first", [10, 20, 44]),
    ],
)
def test_every_edge_by_hand(case: str, events: list[str], begin: str, expected: list[float]) -> None:
    """γ = 1, rewards 1, 2, 4 arrive at rows 1..3, V = 10, 20, 30, 40."""
    batch = one([0, 1, 2, 4], [10, 20, 30, 40], events, begin)
    step, value = steps(batch, 1.0), batch["value"]
    target, zeros = torch.tensor(expected, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)
    assert torch.equal(returns.n_step(step, value)[:, 0], target), case
    for advantage, result in (returns.gae(step, value, 1.0), returns.vtrace(step, value, zeros)):
        assert torch.equal(result[:, 0], target), case
        assert torch.equal(advantage[:, 0], target - value[:-1, 0]), case


@QUICK
@given(st.one_of(lanes(), lanes(wild=True)), GAMMAS, st.sampled_from([None, 1, 2, 3, 50]))
def test_n_step_equals_its_twin(group: list[twins.Lane], gamma: float, n: int | None) -> None:
    batch = rows(group)
    result = returns.n_step(steps(batch, gamma), batch["value"], n)
    torch.testing.assert_close(result, columns([twins.n_step(lane, gamma, n) for lane in group]))


@QUICK
@given(st.one_of(lanes(), lanes(wild=True)), GAMMAS, LAMBDAS)
def test_gae_equals_the_mixture_of_n_step_returns(group: list[twins.Lane], gamma: float, lam: float) -> None:
    batch = rows(group)
    advantage, target = returns.gae(steps(batch, gamma), batch["value"], lam)
    torch.testing.assert_close(target, columns([twins.lambda_return(lane, gamma, lam) for lane in group]))
    torch.testing.assert_close(advantage, target - batch["value"][:-1])


@QUICK
@given(st.one_of(lanes(), lanes(wild=True)), GAMMAS, LAMBDAS, BOUNDS)
def test_vtrace_equals_the_sum_of_equation_1(
    group: list[twins.Lane], gamma: float, lam: float, bounds: tuple[float | None, float | None, float | None]
) -> None:
    batch = rows(group)
    advantage, target = returns.vtrace(steps(batch, gamma), batch["value"], batch["log_rho"][:-1], *bounds, lam=lam)
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
        (returns.vtrace(clean, value, log_rho, lam=lam), returns.vtrace(dirty, value, dirty_rho, lam=lam)),
        (returns.gae(clean, value, lam), returns.gae(dirty, value, lam)),
    ]
    for expected, (advantage, target) in results:
        assert torch.equal(advantage, expected.advantage)
        assert torch.equal(target, expected.target)
        assert torch.equal(target[invalid], value[:-1][invalid])
        assert not advantage[invalid].any()
    for n in (None, 2):
        assert torch.equal(returns.n_step(dirty, value, n), returns.n_step(clean, value, n))


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
        lambda v: returns.gae(step, v, lam),
        lambda v: returns.vtrace(step, v, log_rho, lam=lam),
        lambda v: (returns.n_step(step, v),),
        lambda v: (returns.n_step(step, v, 2),),
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
        returns.n_step(step, value),
        returns.n_step(step, value, 2),
        *returns.gae(step, value, 0.9),
        *returns.vtrace(step, value, log_rho),
    ]
    assert all(r.dtype == dtype and r.shape == (8, 2) and not r.requires_grad for r in results)
    assert all(torch.equal(batch[k], before[k]) for k in batch)


def test_low_precision_values_are_carried_in_the_rewards_precision() -> None:
    batch = one([0.0, 1, 1, 1], [1.0, 2, 3, 4], ["go", "go", "terminate"])
    step = returns.transitions({**batch, "reward": batch["reward"].float()}, 0.9)
    low = batch["value"].bfloat16()
    results = [returns.n_step(step, low), returns.n_step(step, low, 1), *returns.gae(step, low, 1.0)]
    results += [*returns.vtrace(step, low, torch.zeros(3, 1))]
    assert {r.dtype for r in results} == {torch.float32}


def test_wrong_shapes_and_dtypes_are_named() -> None:
    batch = one([0, 1, 2], [0.0] * 3, ["go", "go"])
    step, value = steps(batch, 0.9), batch["value"]
    with pytest.raises(ValueError, match=r"T\+1, B.*\[3, 1\], \[2, 1\], \[3, 1\]"):
        returns.transitions({**batch, "terminated": batch["terminated"][1:]}, 0.9)
    with pytest.raises(ValueError, match="T >= 1"):
        returns.transitions({k: v[:1] for k, v in batch.items()}, 0.9)
    with pytest.raises(ValueError, match=r"must be bool; got torch\.bool, torch\.uint8"):
        returns.transitions({**batch, "first": batch["first"].byte()}, 0.9)
    with pytest.raises(ValueError, match=r"value \[T\+1, B\].*, \[2, 1\]$"):
        returns.gae(step, value[1:], 1.0)
    with pytest.raises(ValueError, match=r", \[3, 1, 1\]$"):
        returns.n_step(step, value[..., None])
    with pytest.raises(ValueError, match=r"log_rho must be \[T, B\] = \[2, 1\]; got \[3, 1\]"):
        returns.vtrace(step, value, torch.zeros(3, 1))
    with pytest.raises(ValueError, match="valid must be bool"):
        returns.n_step(step._replace(valid=step.valid.float()), value)
    with pytest.raises(ValueError, match="at least 1; got 0"):
        returns.n_step(step, value, 0)

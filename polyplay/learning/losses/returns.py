"""Targets from rows: n-step returns, GAE, V-trace. Pure, without gradient; inputs are never written to.

Row convention: a batch holds rows 0..T, each [B]; row t: what arrived at time t and what was chosen then.
The transition t → t+1 is *valid* unless row t+1 is the first of an episode (or of a restarted lane). Where it
is not valid the target is V_t and the advantage 0, so the recursion for t-1 sees V(obs_t): an episode cut by
truncation bootstraps from its real final observation with no special case; the next episode does not leak in. Where a
discount is 0 the value behind it is not used, even if it is NaN.

Every recursion is x_t = base_t + trace_t·x_{t+1}, run backwards from t = T-1. Results have the inputs' dtype.
Rewards and values share one unit (that of the reward given); time is counted in agent steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polyplay.common.tree import Batch


class Transitions(NamedTuple):
    """The steps t → t+1 for t < T, each [T, B]. Where `valid` is False the other two are not used."""

    reward: Tensor  # r_{t+1}, float
    discount: Tensor  # d_t = γ·(1 − terminated_{t+1}), float
    valid: Tensor  # ~first_{t+1}, bool


class Advantages(NamedTuple):
    """advantage [T, B]: weight of ∇log π(a_t); target [T, B]: what V_t should become."""

    advantage: Tensor
    target: Tensor


def transitions(batch: Batch, gamma: float) -> Transitions:
    """Steps of the rows batch["reward"] (float), ["terminated"], ["first"] (bool), each [T+1, B], T ≥ 1.

    `gamma` is the discount per agent step. Truncation needs no flag here: its row's V is the bootstrap.
    Raises ValueError for shapes that differ or are too short, and for flags that are not bool.
    """
    reward, terminated, first = batch["reward"], batch["terminated"], batch["first"]
    fit = reward.ndim == 2 and len(reward) >= 2 and reward.shape == terminated.shape == first.shape
    names = "reward, terminated and first must be one [T+1, B] shape with T >= 1"
    check_shapes(fit, names, reward, terminated, first)
    if not terminated.dtype == first.dtype == torch.bool:
        raise ValueError(f"terminated and first must be bool; got {terminated.dtype}, {first.dtype}")
    return Transitions(reward[1:], (~terminated[1:]).to(reward.dtype) * gamma, ~first[1:])


@torch.no_grad()
def n_step(steps: Transitions, value: Tensor, n: int | None = None) -> Tensor:
    """n-step returns [T, B] from `value` [T+1, B] (V of every row).

    G_t = r_{t+1} + d_t·G_{t+1} if valid_t else V_t, G_T = V_T. With `n`, at most n rewards and then V; None
    means as many as the rollout has (A3C's forward view: Mnih et al. 2016, algorithm S3).
    Raises ValueError for shapes that do not fit and for n < 1.
    """
    _check(steps, value)
    reward, discount, valid = steps
    if n is None:
        # rows whose V is a bootstrap, if it is: padding may be NaN
        used = torch.cat([torch.zeros_like(valid[:1]), valid & (discount != 0)])
        ahead = torch.where(used, value, 0.0)
        result = _scan(torch.where(valid, reward, ahead[:-1]), torch.where(valid, discount, 0.0), ahead[-1])
        return torch.where(valid, result, value[:-1])
    if n < 1:
        raise ValueError(f"n must be at least 1; got {n}")
    result = value
    for _ in range(min(n, len(reward))):
        ahead = torch.where(valid, reward + _discounted(discount, result[1:]), value[:-1])
        result = torch.cat([ahead, value[-1:].to(ahead.dtype)])
    return result[:-1]


@torch.no_grad()
def gae(steps: Transitions, value: Tensor, lam: float) -> Advantages:
    """Generalised advantages and λ-returns, each [T, B], from `value` [T+1, B].

    δ_t = r_{t+1} + d_t·V_{t+1} − V_t;  A_t = δ_t + d_t·λ·A_{t+1}, A_T = 0;  target = A + V
    (Schulman et al. 2016, eq. 16). λ = 1 gives the n-step return of the whole rollout, λ = 0 one step.
    Raises ValueError for shapes that do not fit.
    """
    _check(steps, value)
    reward, discount, valid = steps
    delta = torch.where(valid, reward + _discounted(discount, value[1:]) - value[:-1], 0.0)
    advantage = _scan(delta, torch.where(valid, discount * lam, 0.0), torch.zeros_like(delta[0]))
    return Advantages(advantage, advantage + value[:-1])


@torch.no_grad()
def vtrace(
    steps: Transitions,
    value: Tensor,
    log_rho: Tensor,
    rho: float | None = 1.0,
    c: float | None = 1.0,
    rho_pg: float | None = 1.0,
    lam: float = 1.0,
) -> Advantages:
    """V-trace targets v and policy advantages, each [T, B] (Espeholt et al. 2018, eq. 1 and §4.2).

    `value` [T+1, B] is V of the learner's weights; `log_rho` [T, B] = log π(a_t) − log μ(a_t) = log ρ_t.
    δ_t = min(ρ̄, ρ_t)·(r_{t+1} + d_t·V_{t+1} − V_t);  c_t = λ·min(c̄, ρ_t)
    v_t = V_t + δ_t + d_t·c_t·(v_{t+1} − V_{t+1}), v_T = V_T
    advantage_t = min(ρ̄_pg, ρ_t)·(r_{t+1} + d_t·v_{t+1} − V_t)
    A bound of None does not clip. On-policy with λ = 1, v is the n-step return.
    Raises ValueError for shapes that do not fit.
    """
    _check(steps, value)
    reward, discount, valid = steps
    check_shapes(log_rho.shape == reward.shape, f"log_rho must be [T, B] = {list(reward.shape)}", log_rho)
    ratio = log_rho.exp()
    delta = _below(ratio, rho) * (reward + _discounted(discount, value[1:]) - value[:-1])
    trace = _below(ratio, c) * (discount * lam)
    delta, trace = torch.where(valid, delta, 0.0), torch.where(valid, trace, 0.0)
    target = value[:-1] + _scan(delta, trace, torch.zeros_like(delta[0]))
    ahead = torch.cat([target[1:], value[-1:].to(target.dtype)])
    advantage = _below(ratio, rho_pg) * (reward + _discounted(discount, ahead) - value[:-1])
    return Advantages(torch.where(valid, advantage, 0.0), target)


def _scan(base: Tensor, trace: Tensor, last: Tensor) -> Tensor:
    """x_t = base_t + trace_t·x_{t+1} with x_T = `last`: [T, B], [T, B], [B] → [T, B]. One kernel per step."""
    result = torch.empty_like(base)
    x = last.detach()
    for row, b, w in zip(*(reversed(a.detach().unbind()) for a in (result, base, trace)), strict=True):
        x = torch.addcmul(b, w, x, out=row)
    return result


def _discounted(discount: Tensor, ahead: Tensor) -> Tensor:
    """discount·ahead, and 0 behind a termination, whatever the network gives there, even NaN."""
    return torch.where(discount == 0, 0.0, discount * ahead)


def _below(ratio: Tensor, bound: float | None) -> Tensor:
    return ratio if bound is None else ratio.clamp(max=bound)


def _check(steps: Transitions, value: Tensor) -> None:
    reward, discount, valid = steps
    fit = reward.shape == discount.shape == valid.shape and value.shape == (len(reward) + 1, *reward.shape[1:])
    names = "reward, discount and valid must be [T, B] and value [T+1, B]"
    check_shapes(fit and reward.ndim == 2, names, reward, discount, valid, value)
    if valid.dtype != torch.bool:
        raise ValueError(f"valid must be bool; got {valid.dtype}")


def check_shapes(fit: bool, wanted: str, *given: Tensor | None) -> None:
    """Raises ValueError, with the shapes given, unless they `fit`."""
    if not fit:
        raise ValueError(f"{wanted}; got {', '.join('None' if x is None else str(list(x.shape)) for x in given)}")

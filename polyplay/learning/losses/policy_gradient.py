"""Losses of the policy-gradient systems: frozen, picklable callables `loss(out, batch, hyperparameters) -> LossOutput`.

out    policy.unroll(batch, state), or the outputs stored while acting: "logp", "value", "entropy", each [T+1, B]
batch  rows 0..T as tensors [T+1, B]: reward (raw), terminated, first, and the acting weights' logp and value
hyperparameters  anything with the float attribute `entropy_cost`, read at every call, so it may change while running

All terms run over valid transitions only (see returns.py): "mean" divides by their number (at least 1), "sum"
does not divide, so its gradient grows with the rows of a batch. Targets and advantages are constants.
Metrics are detached scalars: `loss` is what is minimised, every other one is a mean over valid transitions,
before costs, whatever the reduction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

from polyplay.common.control import Hyperparameters
from polyplay.common.errors import UserError
from polyplay.common.tree import Batch
from polyplay.learning.losses import base, returns

BASELINES = ("acted", "present")


@dataclass(frozen=True)
class A2C(base.ActorCriticLoss):
    """Advantage actor-critic: −A·log π(a) − entropy_cost·H + value_cost·(R − V)².

    Advantages and targets R = A + V come from the values stored while acting (GAE with `lam`; λ = 1 is the
    n-step return); at lag 0 these are the learner's own. Defaults: OpenAI baselines' a2c (mean, no extra ½).
    baseline="present": the same R, but the advantage is R − V of the present weights, without its gradient.
    A3C (Mnih et al. 2016) is reduction="sum"; muupan/async-rl, its reproduction, halves the value loss again; GA3C
    (Babaeizadeh et al. 2017;
    NVlabs/GA3C) is reduction="sum", value_half=True, value_cost=1, baseline="present".
    Raises UserError for settings out of range, ValueError for shapes that do not fit.
    """

    reduction: str = "mean"
    value_half: bool = False  # ½(R − V)² instead of (R − V)²
    baseline: str = "acted"  # whose V is subtracted from R for the policy: stored while acting, or present

    metrics: ClassVar[tuple[str, ...]] = base.COMMON

    def __post_init__(self) -> None:
        super().__post_init__()
        base.check_settings(self, reduction=base.REDUCTIONS, baseline=BASELINES)

    def __call__(self, out: Batch, batch: Batch, hyperparameters: Hyperparameters) -> base.LossOutput:
        steps = self.transitions(out, batch)
        over = base.MaskedMean(steps.valid)
        advantage, target = returns.gae(steps, batch["value"], self.lam)
        if self.baseline == "present":
            advantage = target - base.at_least_float32(out["value"][:-1].detach(), target)
        return _score(self, out, batch, over, advantage, target, hyperparameters)


@dataclass(frozen=True)
class VTrace(base.ActorCriticLoss):
    """IMPALA (Espeholt et al. 2018, §4.2): −A·log π(a) − entropy_cost·H + value_cost·½(v − V)².

    v and A come from V-trace with the learner's values and ratios π/μ against the log-probabilities stored
    while acting. Bounds of None do not clip; `rho` ≥ `c` as the paper assumes. Defaults are those of
    deepmind/scalable_agent (sums over time and batch).
    Raises UserError for settings out of range, ValueError for shapes that do not fit.
    """

    rho: float | None = 1.0
    c: float | None = 1.0
    rho_pg: float | None = 1.0
    reduction: str = "sum"
    value_half: bool = True

    metrics: ClassVar[tuple[str, ...]] = (*base.COMMON, "rho_mean", "rho_clipped")

    def __post_init__(self) -> None:
        super().__post_init__()
        base.check_settings(self, reduction=base.REDUCTIONS)
        for name in ("rho", "c", "rho_pg"):
            bound = getattr(self, name)
            if bound is not None and not bound > 0:
                raise UserError(f"{name} is {bound}; it must be above 0, or none for no clipping")
        if (self.rho is not None) and (self.c is None or self.c > self.rho):
            raise UserError(f"c is {self.c} and rho {self.rho}; V-trace needs c <= rho: lower c or raise rho")

    def __call__(self, out: Batch, batch: Batch, hyperparameters: Hyperparameters) -> base.LossOutput:
        steps = self.transitions(out, batch)
        over = base.MaskedMean(steps.valid)
        log_rho = out["logp"][:-1].detach() - batch["logp"][:-1]
        advantage, target = returns.vtrace(
            steps, out["value"].detach(), log_rho, self.rho, self.c, self.rho_pg, self.lam
        )
        more = partial(base.rho_metrics, over, log_rho, self.rho)
        return _score(self, out, batch, over, advantage, target, hyperparameters, more)


def _score(
    loss: A2C | VTrace,
    out: Batch,
    batch: Batch,
    over: base.MaskedMean,
    advantage: Tensor,
    target: Tensor,
    hyperparameters: Hyperparameters,
    more: Callable[[], dict[str, Tensor]] = dict,
) -> base.LossOutput:
    """The three terms over rows 0..T-1, added up; `advantage` and `target` are [T, B] without gradient."""
    if loss.normalize_advantage:
        advantage = base.normalize_advantages(advantage, over)
    advantage, target = over.only(advantage), over.only(target)
    rows = (base.at_least_float32(out[k][:-1], advantage) for k in ("logp", "value", "entropy"))
    logp, value, entropy = map(over.only, rows)
    policy_loss = over.mean(-advantage * logp)
    value_loss = over.mean((target - value).square()) * (0.5 if loss.value_half else 1.0)
    terms = policy_loss, value_loss, over.mean(entropy)
    apart, summed = lambda: logp - batch["logp"][:-1], loss.reduction == "sum"
    return loss.total(terms, over, apart, (value, target), hyperparameters, more, summed)

"""A2C, V-trace, PPO, APPO.

PPO's clipped surrogate (Schulman et al. 2017): losses for several passes over one batch, fresh or older.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from polyplay.core import tree
from polyplay.core.errors import Fraction, NonNegative, Positive, UserError
from polyplay.core.tree import Batch
from polyplay.learning import returns
from polyplay.learning.returns import Hyper

# Losses of the policy-gradient systems: frozen dataclasses, whose `score` takes
#
# out    policy.unroll(batch, state): "logp", "value", "entropy", each [T+1, B]
# batch  rows 0..T as tensors [T+1, B]: reward (raw), terminated, first, and the acting weights' logp and value
# hyper  entropy_cost, and of PPO with anneal_clip `remaining`
#
# All terms run over valid transitions only (see returns.py): "mean" divides by their number (at least 1), "sum"
# does not divide, so its gradient grows with the rows of a batch. Targets and advantages are constants.
# Metrics are detached scalars: `loss` is what is minimised, every other one is a mean over valid transitions,
# before costs, whatever the reduction.


@dataclass(frozen=True)
class A2C(returns.ActorCriticLoss):
    """Advantage actor-critic: −A·log π(a) − entropy_cost·H + value_cost·(R − V)².

    Advantages and targets R = A + V come from the values stored while acting (GAE with `lam`; λ = 1 is the
    n-step return); at lag 0 these are the learner's own. Defaults: OpenAI baselines' a2c (mean, no extra ½).
    baseline="present": the same R, but the advantage is R − V of the present weights, without its gradient.
    A3C (Mnih et al. 2016) is reduction="sum"; muupan/async-rl, its reproduction, halves the value loss again; GA3C
    (Babaeizadeh et al. 2017;
    NVlabs/GA3C) is reduction="sum", value_half=True, value_cost=1, baseline="present".
    Raises ValueError for shapes that do not fit.
    """

    _: KW_ONLY
    baseline: Literal["acted", "present"] = "acted"  # whose V is subtracted from R for the policy
    values: Literal["acted", "unrolled"] = "acted"  # which V targets are made of; unrolled: acting had these weights
    bootstrap: Literal["acted", "unrolled"] = "unrolled"  # the last row's V; acted: that row is not unrolled

    metrics = returns.COMMON

    @property
    def recalls(self) -> bool:  # type: ignore[override]
        return self.bootstrap == "acted"

    def outputs(self, policy: Any, batch: Batch, state: Batch) -> Batch:
        """Unroll all rows, or with bootstrap="acted" rows 0..T-1: row T then has the value that was stored while
        acting, and 0 for its log-probability and entropy, which no loss uses.
        """
        if self.bootstrap == "unrolled":
            return super().outputs(policy, batch, state)
        out: Batch = policy.unroll(tree.map(lambda x: x[:-1], batch), state)
        last = {"value": batch["value"][-1:], "logp": torch.zeros_like(batch["value"][-1:])}
        last["entropy"] = last["logp"]
        return {k: torch.cat([v, last[k]]) if k in last else v for k, v in out.items()}

    def score(self, out: Batch, batch: Batch, hyper: Hyper) -> returns.LossOutput:
        steps = self.transitions(out, batch)
        over = returns.MaskedMean(steps.valid)
        value = batch["value"] if self.values == "acted" else out["value"].detach()
        made = returns.gae(steps, value, self.lam)
        if self.baseline == "present":
            value = returns.at_least_float32(out["value"][:-1].detach(), made.target)
            made = made._replace(advantage=made.target - value)
        return self.sum_terms(out, batch, over, made, hyper["entropy_cost"])


@dataclass(frozen=True)
class VTrace(returns.ActorCriticLoss):
    """IMPALA (Espeholt et al. 2018, §4.2): −A·log π(a) − entropy_cost·H + value_cost·½(v − V)².

    v and A come from V-trace with the learner's values and ratios π/μ against the log-probabilities stored
    while acting. Infinite bounds do not clip; `rho` ≥ `c` as the paper assumes. Defaults are those of
    deepmind/scalable_agent (sums over time and batch).
    Raises ValueError for shapes that do not fit.
    """

    rho: float = 1.0
    c: float = 1.0
    rho_pg: float = 1.0
    _: KW_ONLY
    reduction: returns.Reduction = "sum"
    value_half: bool = True

    metrics = (*returns.COMMON, "rho_mean", "rho_clipped")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0.0 < self.c <= self.rho and self.rho_pg > 0.0):
            given = f"rho {self.rho}, c {self.c}, rho_pg {self.rho_pg}"
            raise UserError(f"{given} given, allowed: numbers above 0, c no more than rho")

    def score(self, out: Batch, batch: Batch, hyper: Hyper) -> returns.LossOutput:
        steps = self.transitions(out, batch)
        over = returns.MaskedMean(steps.valid)
        log_rho = out["logp"][:-1].detach() - batch["logp"][:-1]
        made = returns.vtrace(steps, out["value"].detach(), log_rho, self.rho, self.c, self.rho_pg, self.lam)
        cost = hyper["entropy_cost"]
        return self.sum_terms(out, batch, over, made, cost, log_rho=log_rho, bound=self.rho)


@dataclass(frozen=True)
class PPO(returns.ActorCriticLoss):
    """max(−A·r, −A·clip(r, 1−ε, 1+ε)) − entropy_cost·H + value_cost·(R − V)², with r = π(a)/μ(a).

    μ, and the values V_μ that A (GAE with `lam`) and R = A + V_μ are made of, are those stored while acting: `prepare`
    makes A and R once, for all passes. value_clip: max((R − V)², (R − V_μ − clip(V − V_μ, −ε, ε))²) instead, as
    baselines' ppo2. ε is `clip_range`, with anneal_clip times `hyperparameters.remaining`, the part of the run to
    come. Advantages are normalised over each call's rows. Means over valid transitions.
    Raises ValueError for shapes that do not fit.
    """

    lam: Fraction = 0.95
    clip_range: Positive = 0.1
    anneal_clip: bool = True
    _: KW_ONLY
    value_cost: NonNegative = 1.0
    whole = False

    metrics = (*returns.COMMON, "clip_fraction", "clip_range")

    @property
    def anneals(self) -> bool:  # type: ignore[override]
        return self.anneal_clip

    def prepare(self, rows: Batch, scale: float | Tensor = 1.0) -> Batch:
        """A rollout's advantage, target, valid, each [T, B], from its rows [T+1, B]. scale: of rewards, as learnt."""
        steps = returns.transitions(rows, self.gamma)
        reward = self.squashed(steps.reward, {"reward_scale": scale})
        advantage, target = returns.gae(steps._replace(reward=reward), rows["value"], self.lam)
        return {"advantage": advantage, "target": target, "valid": steps.valid}

    def score(self, out: Batch, batch: Batch, hyper: Hyper) -> returns.LossOutput:
        """out: "logp", "value", "entropy"; batch: those of `prepare`, and "logp", "value" as acted; all one shape."""
        rows = {k: batch[k] for k in ("advantage", "target", "valid", "logp", "value")}
        returns.check_one_shape("shape", rows | {f"out {k}": out[k] for k in ("logp", "value")})
        over = returns.MaskedMean(batch["valid"])
        reach = self.clip_range * (hyper["remaining"] if self.anneal_clip else 1.0)
        made = returns.Advantages(batch["advantage"], batch["target"])
        return self.sum_terms(out, batch, over, made, hyper["entropy_cost"], reach)


@dataclass(frozen=True)
class APPO(returns.ActorCriticLoss):
    """The same surrogate for rollouts of older weights, whole lanes at a time (after Sample Factory, Petrenko
    et al. 2020, with its V-trace on): targets v_t are V-trace's, from the present V and ratios π/μ, with ρ̄ = c̄ = 1
    and `lam` in the traces; A_t = r_{t+1} + d_t·v_{t+1} − V_t, which the surrogate's own ratio corrects, so no ρ
    before it (Sample Factory has both, and no λ). With λ = 1 and fresh weights this is PPO with λ = 1. Raises
    UserError for settings out of range, ValueError for shapes that do not fit.
    """

    lam: Fraction = 0.95
    clip_range: Positive = 0.1
    _: KW_ONLY
    normalize_advantage: bool = True
    metrics = (*PPO.metrics, "rho_mean", "rho_clipped")

    def score(self, out: Batch, batch: Batch, hyper: Hyper) -> returns.LossOutput:
        """out and batch: rows [T+1, B], as those of losses.VTrace."""
        steps = self.transitions(out, batch)
        over, value = returns.MaskedMean(steps.valid), out["value"].detach()
        log_rho = out["logp"][:-1].detach() - batch["logp"][:-1]
        target = returns.vtrace(steps, value, log_rho, lam=self.lam).target
        ahead = torch.cat([target[1:], value[-1:].to(target.dtype)])
        made = returns.Advantages(steps.reward + steps.discount * ahead - value[:-1], target)
        return self.sum_terms(out, batch, over, made, hyper["entropy_cost"], self.clip_range, log_rho)

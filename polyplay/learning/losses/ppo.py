"""PPO's clipped surrogate (Schulman et al. 2017): losses for several passes over one batch, fresh or older."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from polyplay.common.control import Hyperparameters
from polyplay.common.tree import Batch
from polyplay.learning.losses import base, returns


@dataclass(frozen=True)
class PPO(base.ActorCriticLoss):
    """max(−A·r, −A·clip(r, 1−ε, 1+ε)) − entropy_cost·H + value_cost·(R − V)², with r = π(a)/μ(a).

    μ, and the values V_μ that A (GAE with `lam`) and R = A + V_μ are made of, are those stored while acting: `prepare`
    makes A and R once, for all passes. value_clip: max((R − V)², (R − V_μ − clip(V − V_μ, −ε, ε))²) instead, as
    baselines' ppo2. ε is `clip_range`, with anneal_clip times `hyperparameters.left`, the part of the run that is left.
    Advantages are normalised over each call's rows. Means over valid transitions.
    Raises UserError for settings out of range, ValueError for shapes that do not fit.
    """

    lam: float = 0.95
    clip_range: float = 0.1
    anneal_clip: bool = True
    value_clip: bool = False
    _: KW_ONLY
    value_cost: float = 1.0
    whole: ClassVar[bool] = False  # minibatches may take lanes apart

    metrics: ClassVar[tuple[str, ...]] = (*base.COMMON, "clip_fraction", "clip_range")

    def __post_init__(self) -> None:
        super().__post_init__()
        base.check_settings(self, clip_range=base.ABOVE_ZERO)

    def prepare(self, batch: Batch, scale: float | Tensor = 1.0) -> Batch:
        """A rollout's advantage, target, valid, each [T, B], from its rows [T+1, B]. scale: of rewards, as learnt."""
        steps = returns.transitions(batch, self.gamma)
        reward = base.squash_rewards(steps.reward, self.reward, self.reward_scale * scale)
        advantage, target = returns.gae(steps._replace(reward=reward), batch["value"], self.lam)
        return {"advantage": advantage, "target": target, "valid": steps.valid}

    def __call__(self, out: Batch, batch: Batch, hyperparameters: Hyperparameters) -> base.LossOutput:
        """out: "logp", "value", "entropy"; batch: those of `prepare`, and "logp", "value" as acted; all one shape."""
        rows = {k: batch[k] for k in ("advantage", "target", "valid", "logp", "value")}
        base.check_one_shape("shape", rows | {f"out {k}": out[k] for k in ("logp", "value")})
        over = base.MaskedMean(batch["valid"])
        reach = self.clip_range * (hyperparameters.left if self.anneal_clip else 1.0)
        return _surrogate(self, out, batch, over, batch["advantage"], batch["target"], reach, hyperparameters)


@dataclass(frozen=True)
class APPO(base.ActorCriticLoss):
    """The same surrogate for rollouts of older weights, whole lanes at a time (after Sample Factory, Petrenko
    et al. 2020, with its V-trace on): targets v_t are V-trace's, from the present V and ratios π/μ, with ρ̄ = c̄ = 1
    and `lam` in the traces; A_t = r_{t+1} + d_t·v_{t+1} − V_t, which the surrogate's own ratio corrects, so no ρ
    before it (Sample Factory has both, and no λ). With λ = 1 and fresh weights this is PPO with λ = 1. Raises
    UserError for settings out of range, ValueError for shapes that do not fit.
    """

    lam: float = 0.95
    clip_range: float = 0.1
    value_clip: bool = False
    _: KW_ONLY
    normalize_advantage: bool = True
    whole: ClassVar[bool] = True

    metrics: ClassVar[tuple[str, ...]] = (*PPO.metrics, "rho_mean", "rho_clipped")

    def __post_init__(self) -> None:
        super().__post_init__()
        base.check_settings(self, clip_range=base.ABOVE_ZERO)

    def prepare(self, batch: Batch, scale: float | Tensor = 1.0) -> Batch:
        """Of the rows [T+1, B] only which transitions are valid, [T, B]: the rest depends on the present weights."""
        return {"valid": returns.transitions(batch, self.gamma).valid}

    def __call__(self, out: Batch, batch: Batch, hyperparameters: Hyperparameters) -> base.LossOutput:
        """out and batch: rows [T+1, B], as those of losses.VTrace."""
        steps = self.transitions(out, batch)
        over, value = base.MaskedMean(steps.valid), out["value"].detach()
        log_rho = out["logp"][:-1].detach() - batch["logp"][:-1]
        target = returns.vtrace(steps, value, log_rho, lam=self.lam).target
        ahead = torch.cat([target[1:], value[-1:].to(target.dtype)])
        advantage = steps.reward + steps.discount * ahead - value[:-1]
        cut = {k: out[k][:-1] for k in ("logp", "value", "entropy")}
        acted = {k: batch[k][:-1] for k in ("logp", "value")}
        more = partial(base.rho_metrics, over, log_rho)
        return _surrogate(self, cut, acted, over, advantage, target, self.clip_range, hyperparameters, more)


def _surrogate(
    loss: PPO | APPO,
    out: Batch,
    acted: Batch,
    over: base.MaskedMean,
    advantage: Tensor,
    target: Tensor,
    reach: float,
    hyperparameters: Hyperparameters,
    more: Callable[[], dict[str, Tensor]] = dict,
) -> base.LossOutput:
    """The three terms, added up; everything is [T, B], `advantage` and `target` without gradient; reach: ε."""
    advantage, target = over.only(advantage), over.only(target)
    if loss.normalize_advantage:
        advantage = over.only(base.normalize_advantages(advantage, over))
    logp, value, entropy = (over.only(base.at_least_float32(out[k], advantage)) for k in ("logp", "value", "entropy"))
    log_ratio = logp - over.only(acted["logp"])
    ratio = log_ratio.exp()
    policy_loss = over.mean(torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1.0 - reach, 1.0 + reach)))
    squared = (target - value).square()
    if loss.value_clip:
        before = over.only(acted["value"])
        near = before + (value - before).clamp(-reach, reach)
        squared = torch.maximum(squared, (target - near).square())

    def metrics() -> dict[str, Tensor]:
        clipped = over.mean(((ratio - 1.0).abs() > reach).to(ratio.dtype))
        return {"clip_fraction": clipped, "clip_range": torch.tensor(reach), **more()}

    terms = policy_loss, over.mean(squared), over.mean(entropy)
    return loss.total(terms, over, lambda: log_ratio, (value, target), hyperparameters, metrics)

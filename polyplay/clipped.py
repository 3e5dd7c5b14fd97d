"""PPO's clipped surrogate (Schulman et al. 2017): a loss for several passes over one batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from polyplay import returns
from polyplay.errors import UserError
from polyplay.losses import COMMON, Later, Over, Scored, common, normalized, squash, validate, wide
from polyplay.tree import Batch


@dataclass(frozen=True)
class PPO:
    """max(−A·r, −A·clip(r, 1−ε, 1+ε)) − entropy_cost·H + value_cost·(R − V)², with r = π(a)/μ(a).

    μ, and the values V_μ that A (GAE with `lam`) and R = A + V_μ are made of, are those said while acting: `prepare`
    makes A and R once, for all passes. value_clip: max((R − V)², (R − V_μ − clip(V − V_μ, −ε, ε))²) instead, as
    baselines' ppo2. ε is `clip_range`, with anneal_clip times `knobs.left`, the part of the run that is left.
    Advantages are normalised over each call's rows. Means over valid transitions.
    Raises UserError for settings out of range, ValueError for shapes that do not fit.
    """

    gamma: float = 0.99
    lam: float = 0.95
    clip_range: float = 0.1
    anneal_clip: bool = True
    value_clip: bool = False
    value_cost: float = 1.0
    normalize_advantage: bool = False
    reward: str = "clip"
    reward_scale: float = 1.0
    reduction: ClassVar[str] = "mean"

    metrics: ClassVar[tuple[str, ...]] = (*COMMON, "clip_fraction", "clip_range")

    def __post_init__(self) -> None:
        validate(self)
        if not self.clip_range > 0.0:
            raise UserError(f"clip_range is {self.clip_range}; it must be above 0")

    def prepare(self, batch: Mapping[str, Any], scale: float | Tensor = 1.0) -> Batch:
        """A rollout's advantage, target, valid, each [T, B], from its rows [T+1, B]. scale: of rewards, as learnt."""
        steps = returns.transitions(batch, self.gamma)
        reward = squash(steps.reward, self.reward, self.reward_scale * scale)
        advantage, target = returns.gae(steps._replace(reward=reward), batch["value"], self.lam)
        return {"advantage": advantage, "target": target, "valid": steps.valid}

    def __call__(self, out: Mapping[str, Any], batch: Mapping[str, Any], knobs: Any) -> Scored:
        """out: "logp", "value", "entropy"; batch: those of `prepare`, and "logp", "value" as acted; all one shape."""
        names = ("advantage", "target", "valid", "logp", "value")
        shapes = {k: list(batch[k].shape) for k in names} | {f"out {k}": list(out[k].shape) for k in ("logp", "value")}
        if len(set(map(tuple, shapes.values()))) > 1:
            raise ValueError(f"all must be one shape; got {', '.join(f'{k} {s}' for k, s in shapes.items())}")
        over = Over(batch["valid"])
        advantage, target = over.only(batch["advantage"]), over.only(batch["target"])
        if self.normalize_advantage:
            advantage = over.only(normalized(advantage, over))
        reach = self.clip_range * (knobs.left if self.anneal_clip else 1.0)
        logp, value, entropy = (over.only(wide(out[k], advantage)) for k in ("logp", "value", "entropy"))
        log_ratio = logp - over.only(batch["logp"])
        ratio = log_ratio.exp()
        policy_loss = over.mean(torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1.0 - reach, 1.0 + reach)))
        squared = (target - value).square()
        if self.value_clip:
            acted = over.only(batch["value"])
            near = acted + (value - acted).clamp(-reach, reach)
            squared = torch.maximum(squared, (target - near).square())
        value_loss, entropy_mean = over.mean(squared), over.mean(entropy)
        total = policy_loss + self.value_cost * value_loss - knobs.entropy_cost * entropy_mean

        def metrics() -> dict[str, Tensor]:
            clipped = over.mean(((ratio - 1.0).abs() > reach).to(ratio.dtype))
            told = common(over, (total, policy_loss, value_loss, entropy_mean), value, target, log_ratio)
            return {**told, "clip_fraction": clipped, "clip_range": torch.tensor(reach)}

        return Scored(total, Later(metrics))


ppo = PPO

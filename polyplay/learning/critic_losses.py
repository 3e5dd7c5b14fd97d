"""Losses of SAC and TD3, and functions for these losses.

batch  transitions of a replay's `sample()`, as tensors: "obs" [2, B, …] of s_t and s_{t+n}, "action" [B, …] in the
       environment's units, "return" and "discount" [B] (value_losses.td_target), "weight" [B] if stored
q      values [n, B] of n critics, in units of reward; with discrete actions [n, B, A]
logp   log π [B] of an action y, in nats; y is from −1 to 1, not in the environment's units

The terms of a loss share no weights. The critics' gradient stops at the actor, and the actor's gradient stops at the
critics. One backward pass and one optimizer step therefore suffice, where the papers make three of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from polyplay.core import tree
from polyplay.core.errors import Count, NonNegative, Whole
from polyplay.core.tree import Batch
from polyplay.learning.losses import Hyper, Key, Loss, LossOutput, check_shapes, importance_weight, metrics_of
from polyplay.learning.value_losses import td_target
from polyplay.nets.critics import CriticsNetwork, picked

DISCRETE = 0.89  # target entropy ÷ entropy of uniform discrete actions (CleanRL; Christodoulou 2019: 0.98)
METRICS = ("loss", "critic_loss", "actor_loss", "q_mean", "target_mean", "td_abs", "weight_mean")


def soft_value(q: Tensor, logp: Tensor, alpha: Tensor) -> Tensor:
    """Return the soft value V(s) = min_j Q_j(s, a) − α·log π(a|s) [B] for one action a drawn from π (Haarnoja et al.
    2018b, equations 3 and 5). The inputs are q [n, B], logp [B], alpha [] or [1]. Raises ValueError for shapes that do
    not fit.
    """
    check_shapes(q.ndim == 2 and q.shape[1:] == logp.shape, "q must be [n, B], logp [B]", q, logp)
    return q.amin(0) - alpha * logp


def soft_value_discrete(q: Tensor, log_probs: Tensor, alpha: Tensor) -> Tensor:
    """Return the soft value V(s) = Σ_a π(a|s)·(min_j Q_j(s, a) − α·log π(a|s)) [B] of discrete actions (Christodoulou
    2019, equation 10). The inputs are q [n, B, A] and log_probs [B, A], −∞ for illegal actions. Raises ValueError for
    shapes that do not fit.
    """
    fit = q.ndim == 3 and q.shape[1:] == log_probs.shape
    check_shapes(fit, "q must be [n, B, A], log_probs [B, A]", q, log_probs)
    legal = log_probs > -torch.inf
    inner = q.amin(0) - alpha * torch.where(legal, log_probs, 0.0)
    return torch.where(legal, log_probs.exp() * inner, 0.0).sum(-1)


def critic_loss(q: Tensor, goal: Tensor, weight: Tensor) -> Tensor:
    """Return the critics' loss Σ_j mean_b w·½·(Q_j − y)² [], from q [n, B], targets y [B] and importance weights w [B].
    Raises ValueError for shapes that do not fit.
    """
    fit = q.ndim == 2 and q.shape[1:] == goal.shape == weight.shape
    check_shapes(fit, "q must be [n, B], goal and weight [B]", q, goal, weight)
    return 0.5 * (weight * (q - goal).square()).mean(1).sum()


def temperature_loss(log_alpha: Tensor, logp: Tensor, entropy: float | Tensor) -> Tensor:
    """Return the loss of the temperature α: −log α·(mean(log π) + H̄) [], with no gradient through log π (Haarnoja et
    al. 2018b, equation 18, with log α for α). A step raises α if the entropy −log π is below its target H̄. The inputs
    are `log_alpha` [1], `logp` [B] and `entropy` H̄ []. Raises ValueError for shapes that do not fit.
    """
    fit = log_alpha.shape == (1,) and logp.ndim == 1
    check_shapes(fit, "log_alpha must be [1], logp [B]", log_alpha, logp)
    return -(log_alpha * (logp.detach().mean() + entropy)).sum()


def smoothed(y: Tensor, z: Tensor, deviation: float, bound: float) -> Tensor:
    """Return TD3's target action clip(μ⁻(s') + clip(σ·z, ±bound), ±1) [B, size] (Fujimoto et al. 2018, equation 14).
    The inputs are the action y = μ⁻(s') and the noise z, both [B, size]. Actions are between −1 and 1. Raises
    ValueError for shapes that do not fit.
    """
    check_shapes(y.ndim == 2 and y.shape == z.shape, "y and z must be one [B, size]", y, z)
    return (y + (deviation * z).clamp(-bound, bound)).clamp(-1.0, 1.0)


def _measured(loss: Loss, values: tuple[Tensor, ...], q: Tensor, goal: Tensor, weight: Tensor) -> LossOutput:
    """Return a LossOutput with the metrics `values` and the means of `q`, `goal`, |δ| and `weight`."""
    size = (q.detach() - goal).abs().mean(0)

    def measure() -> Iterable[tuple[str, Tensor]]:
        means = (x.mean() for x in (q, goal, size, weight))
        return zip(loss.metrics, (*values[:3], *means, *values[3:]), strict=True)

    return LossOutput(values[0], metrics_of(measure), size)


@dataclass(frozen=True)
class SACLoss(Loss):
    """Loss of soft actor-critic (Haarnoja et al. 2018b, v2), the sum of the batch means of three terms:

    critics      Σ_j w·½(Q_j(s, a) − y)², y = G + D·(min_j Q⁻_j(s', a') − α·log π(a'|s')), a' ~ π(s')
    actor        α·log π(ã|s) − min_j Q_j(s, ã), ã ~ π(s), whose gradient goes through ã
    temperature  −log α·(log π(ã|s) + H̄)

    `entropy`: target entropy H̄ in nats.
    `alpha`: a fixed temperature; 0: α is learned.
    `masked`: whether action masks lower H̄. If they lower the entropy of uniform actions by x, they lower H̄ by 0.89·x.
    `subset`, `mean`, `delay`: for REDQ (Chen et al. 2021). The target's minimum is over `subset` critics, drawn at
        random for each update. If `mean`, the actor's value is the mean over all critics. Only every `delay`-th update
        has the actor and temperature terms.
    `joint`: for CrossQ (Bhatt et al. 2024). One pass of the critics gives both Q(s, a) and Q(s', a'), and batch
        statistics include both. No target network is used.

    In DroQ (Hiraoka et al. 2022), dropout leaves out different units in each of the critics' three passes. Expectations
    over discrete actions are sums (Christodoulou 2019). If an action has continuous and discrete parts, the continuous
    parts are drawn once, the sums are over the discrete parts, and log π covers all parts (Delalleau et al. 2019). The
    priority is the mean of |δ| over the critics. The metric "entropy" is −log π.
    """

    entropy: float
    alpha: NonNegative = 0.0
    subset: Whole = 0
    mean: bool = False
    delay: Count = 1
    joint: bool = False
    masked: bool = True

    metrics = (*METRICS, "alpha", "entropy")

    @property
    def divisible(self) -> bool:  # type: ignore[override]
        """See Loss. With `joint`, the loss is not divisible, because it depends on statistics of the whole batch."""
        return not self.joint

    def noise(self, policy: CriticsNetwork, batch: Batch, key: Key) -> Batch:
        """Draw the random numbers of an update, all [B, …]: normal noise for the actions at s and s', the indices of
        the target's critics, and numbers for dropout in three passes. An update that changes the actor gets a field
        "actor".
        """
        rng, rows, found = np.random.default_rng(key), len(batch["return"]), Batch()
        if policy.size:
            z = rng.standard_normal((2, rows, policy.size), np.float32)
            found |= {"z": z[0], "z_then": z[1]}
        if self.subset:
            drawn = rng.choice(policy.critics.n, self.subset, replace=False)
            found["subset"] = np.broadcast_to(drawn, (rows, self.subset)).copy()
        if self.delay > 1 and (key[2] + 1) % self.delay == 0:
            found["actor"] = np.ones(rows, np.float32)
        if policy.critics.dropout:
            units = policy.critics.n * sum(policy.critics.widths)
            found["units"] = rng.integers(-32_768, 32_768, (rows, 3, units), np.int16)
        return found

    def __call__(
        self, policy: CriticsNetwork, target: CriticsNetwork, batch: Batch, state: Batch, hyper: Hyper
    ) -> LossOutput:
        now, then = (tree.map(lambda x, i=i: x[i], batch["obs"]) for i in (0, 1))
        alpha = self._temperature(policy)
        features = policy.trunk(now)
        q, ahead, actor, logp = self._score(policy, target, features, then, batch, alpha)
        goal = td_target(batch["return"], batch["discount"], ahead)
        weight = importance_weight(batch, goal)
        critic = critic_loss(q, goal, weight)
        loss = critic
        if self._changes_actor(batch):
            loss = loss + actor
            if policy.log_alpha is not None and not self.alpha:
                loss = loss + temperature_loss(policy.log_alpha, logp, self._entropy(policy, batch))
        return _measured(self, (loss, critic, actor, alpha.mean(), -logp.mean()), q, goal, weight)

    def _entropy(self, policy: CriticsNetwork, batch: Batch) -> float | Tensor:
        """Return the target entropy H̄. If there are masks, return its mean over the batch, a tensor []."""
        masks = tree.map(lambda x: x[0], batch["mask"]) if self.masked and "mask" in batch else None
        if (legal := policy.actions.mask(masks)) is None:
            return self.entropy
        return self.entropy - DISCRETE * (math.log(legal.shape[1]) - legal.sum(1).clamp_min(1).log().mean())

    def _changes_actor(self, batch: Batch) -> bool:
        return self.delay == 1 or "actor" in batch

    def _temperature(self, policy: CriticsNetwork) -> Tensor:
        if policy.log_alpha is None or self.alpha:
            return torch.tensor(self.alpha)
        return policy.log_alpha.detach().exp()

    def _score(
        self, policy: CriticsNetwork, target: CriticsNetwork, features: Tensor, then: Batch, batch: Batch, alpha: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return q [n, B], V(s') [B], the actor's loss [] and log π(ã) [B]. If this update does not change the actor,
        the actor's loss is 0, and log π(a') is returned instead of log π(ã).
        """
        draws = batch["units"].unbind(1) if "units" in batch else (None, None, None)
        masks = [policy.actions.mask(tree.map(lambda x, i=i: x[i], batch.get("mask", {}))) for i in (0, 1)]
        y, number = policy.taken(batch["action"])
        with torch.no_grad():
            after = policy.trunk(then)
            drawn, *logp = policy.sample(policy.raw(after), batch.get("z_then"), masks[1])
        if self.joint:
            chosen = None if y is None else torch.cat([y, cast("Tensor", drawn)])
            units = torch.cat(batch["units"].unbind(1)[:2]) if "units" in batch else None
            both = policy.scores(torch.cat([features, after]), chosen, learns=True, draws=units)
            scores, ahead = both.split(len(features), 1)
        else:
            scores = policy.scores(features, y, draws=draws[0])
            with torch.no_grad():
                ahead = target.scores(target.trunk(then), drawn, draws=draws[1])
        q, ahead = picked(scores, number), _soft(_drawn(ahead.detach(), batch), logp, alpha)
        if not self._changes_actor(batch):
            return q, ahead, torch.zeros(()), _mean_logp(logp)
        drawn, *logp = policy.sample(policy.raw(features, learns=self.joint), batch.get("z"), masks[0])
        value = scores.detach()
        if drawn is not None:
            value = policy.scores(features.detach(), drawn, frozen=True, draws=draws[2])
        actor = -_soft(value.mean(0, keepdim=True) if self.mean else value, logp, alpha).mean()
        return q, ahead, actor, _mean_logp(logp)


def _soft(scores: Tensor, logp: Sequence[Tensor | None], alpha: Tensor) -> Tensor:
    """Return V(s) [B] from critics' scores. `logp`: of continuous parts [B], and of discrete parts [B, choices]."""
    of_y, of_choices = logp
    if of_choices is None:
        return soft_value(scores.squeeze(-1), cast("Tensor", of_y), alpha)
    value = soft_value_discrete(scores, of_choices, alpha)
    return value if of_y is None else value - alpha * of_y


def _mean_logp(logp: Sequence[Tensor | None]) -> Tensor:
    """Return log π [B]. For discrete parts of an action, return the mean of log π under π."""
    of_y, of_choices = logp
    if of_choices is None:
        return cast("Tensor", of_y)
    mean = torch.where(of_choices > -torch.inf, of_choices.exp() * of_choices, 0.0).sum(-1)
    return mean if of_y is None else mean + of_y


def _drawn(q: Tensor, batch: Batch) -> Tensor:
    """Return the values [m, B, …] of the critics drawn for this update, or `q` [n, B, …] if none were drawn."""
    if "subset" not in batch:
        return q
    rows = batch["subset"].T
    return q.gather(0, rows.reshape(*rows.shape, *[1] * (q.ndim - 2)).expand(-1, -1, *q.shape[2:]))


@dataclass(frozen=True)
class TD3Loss(Loss):
    """Loss of TD3 (Fujimoto et al. 2018), the sum of the batch means of two terms:

    critics  Σ_j w·½(Q_j(s, a) − y)², y = G + D·min_j Q⁻_j(s', a'), a' = clip(μ⁻(s') + clip(σ·z, ±bound), ±1)
    actor    −Q_1(s, μ(s)), in every `delay`-th update

    In all other updates the actor has no gradient and no optimizer step (OptimizerSpec.parts). Target networks move
    only together with the actor (TargetNetwork). With one critic, delay 1 and no smoothing, this loss equals that of
    DDPG (Lillicrap et al. 2016). The priority is the mean of |δ| over the critics.
    """

    smoothing: NonNegative = 0.2
    bound: NonNegative = 0.5
    delay: Count = 2

    metrics = METRICS
    divisible = True

    def noise(self, policy: CriticsNetwork, batch: Batch, key: Key) -> Batch:
        """Draw standard normal numbers for the smoothing. Mark updates that change the actor."""
        found: Batch = {}
        if self.smoothing:
            found["z"] = np.random.default_rng(key).standard_normal((len(batch["return"]), policy.size), np.float32)
        if (key[2] + 1) % self.delay == 0:
            found["actor"] = np.ones(len(batch["return"]), np.float32)
        return found

    def __call__(
        self, policy: CriticsNetwork, target: CriticsNetwork, batch: Batch, state: Batch, hyper: Hyper
    ) -> LossOutput:
        now, then = (tree.map(lambda x, i=i: x[i], batch["obs"]) for i in (0, 1))
        with torch.no_grad():
            ahead = target.trunk(then)
            y = target.raw(ahead).tanh()
            y = smoothed(y, batch["z"], self.smoothing, self.bound) if self.smoothing else y
            goal = td_target(batch["return"], batch["discount"], target.q(ahead, (y, None)).amin(0))
        features, weight = policy.trunk(now), importance_weight(batch, goal)
        q = policy.q(features, policy.taken(batch["action"]))
        critic, actor = critic_loss(q, goal, weight), torch.zeros(())
        if "actor" in batch:
            actor = -policy.first_q(features.detach(), policy.raw(features).tanh()).mean()
        return _measured(self, (critic + actor, critic, actor), q, goal, weight)

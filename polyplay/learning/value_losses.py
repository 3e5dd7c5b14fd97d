"""Losses of DQN, C51, R2D2 and Ape-X DPG.

Losses are frozen dataclasses. The method `score` of a Q-learning loss takes two dicts:

out    action values [..., A] or logits [..., A, K]. "q": of s_t, with gradient. "target": of s_{t+n}, from the target
       network. "online": of s_{t+n}, from the trained network, only in double Q-learning.
batch  tensors from a replay buffer's `sample()`. For transitions: "action", "return" and "discount" [B]. For sequences:
       rows [R, B]. Both may have importance weights "weight" [B] and legal actions "mask".

In a noisy network, each forward pass has separate noise, the same for the whole batch (as in dqn_zoo). The method
`noise` of a loss returns random keys, from which the network computes the noise.

The learner writes `LossOutput.priority` [B] into the replay buffer. A loss with reduction "mean" is the mean over the
batch. With reduction "sum" it is the sum, as in the DQN of 2015. Metrics are means without importance weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from polyplay.core import tree
from polyplay.core.errors import Count, Fraction, NonNegative, UserError
from polyplay.core.numbers import rescale, unscale
from polyplay.core.tree import Batch
from polyplay.learning import losses
from polyplay.learning.losses import (
    Hyper,
    Key,
    Loss,
    LossOutput,
    check_shapes,
    importance_weight,
    masked_mean,
    metrics_of,
)
from polyplay.nets.q_network import DPGNetwork, QNetwork, expected_value, greedy_action, support, take_action

# Targets of action values, and priorities: pure functions without gradient, which never write to their inputs.
#
# For a transition s_t → s_{t+n}, the replay gives the return G = Σ_{k<n} (Π_{j<k} d_{t+j})·r_{t+k+1}, in units of
# reward, and D = Π_{j<n} d_{t+j}, the product of discounts (no unit): γᵐ for a transition of m agent steps, 0 if it
# ends in a termination. So a truncated episode bootstraps from its real last observation, and no `done` is needed. If D
# = 0, the network's output for s_{t+n} is not used, even if it is NaN.
#
# A network scores A actions by values q [..., A], or by logits [..., A, K] over K atoms evenly from `low` to `high`.


@torch.no_grad()
def td_target(ret: Tensor, discount: Tensor, ahead: Tensor) -> Tensor:
    """Return the target y = G + D·Q⁻(s', a*) [B] of an action value. Raises ValueError if shapes do not fit.

    `ret`, `discount`: G and D, float [B].
    `ahead`: Q⁻(s', a*), float [B]. Where D = 0, `ahead` may be NaN.
    """
    fit = ret.ndim == 1 and ret.shape == discount.shape == ahead.shape
    check_shapes(fit, "ret, discount and ahead must be one [B]", ret, discount, ahead)
    return ret + torch.where(discount == 0, 0.0, discount * ahead)


@torch.no_grad()
def categorical(
    ret: Tensor,
    discount: Tensor,
    target: Tensor,
    low: float,
    high: float,
    online: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the projected distribution m [B, K] of G + D·Z⁻(s', a*) (Bellemare et al. 2017, algorithm 1).

    `ret`, `discount`: G and D, float [B].
    `target`, `online`: logits [B, A, K]. The action a* has the highest mean under `online` (double Q-learning). If
        `online` is None, it has the highest mean under `target`.
    `mask`: actions that are legal at s', bool [B, A].

    Raises ValueError if shapes do not fit.
    """
    fit = ret.ndim == 1 and ret.shape == discount.shape == target.shape[:1] and target.ndim == 3
    names = "ret and discount must be [B], target and online [B, A, K]"
    check_shapes(fit and (online is None or online.shape == target.shape), names, ret, discount, target, online)
    judge = expected_value(target if online is None else online, low, high)
    return project(take_action(target, greedy_action(judge, mask)).softmax(-1), ret, discount, low, high)


@torch.no_grad()
def project(chances: Tensor, ret: Tensor, discount: Tensor, low: float, high: float) -> Tensor:
    """Return the distribution of clip(G + D·z, low, high) on the atoms z_i. The mass of each moved atom Tz_j is split
    between its two neighbors on the grid: m_i = Σ_j clip(1 − |Tz_j − z_i|/Δz, 0, 1)·p_j, in time O(K).

    `chances`: p [B, K], K ≥ 2. Where D = 0, p may be NaN.
    `ret`, `discount`: G and D, float [B].

    Raises ValueError if shapes do not fit.
    """
    size = chances.shape[-1]
    fit = chances.ndim == 2 and size >= 2 and ret.shape == discount.shape == chances.shape[:1]
    check_shapes(fit, "chances must be [B, K] with K >= 2, ret and discount [B]", chances, ret, discount)
    p = torch.where((discount == 0).unsqueeze(1), 1.0 / size, chances)
    z = support(low, high, chances)
    moved = torch.addcmul(ret.unsqueeze(1), discount.unsqueeze(1), z).clamp(low, high)
    place = ((moved - low) * ((size - 1) / (high - low))).clamp(max=size - 1)
    below = place.floor().nan_to_num(0.0).clamp_(0, size - 2)  # NaN stays in the masses, so that the learner sees it
    share = place - below
    at = below.long()
    made = torch.zeros_like(p).scatter_add_(1, at, p * (1.0 - share))
    return made.scatter_add_(1, at + 1, p * share)


@torch.no_grad()
def sequence_targets(
    batch: Batch,
    target: Tensor,
    gamma: float,
    n: int,
    online: Tensor | None = None,
    eps: float | None = 1e-3,
) -> tuple[Tensor, Tensor]:
    """Return n-step targets [T, B] for the actions in rows 0..T−1, and a bool mask [T, B] of the rows to learn from,
    with T = R − 1 (R2D2, Kapturowski et al. 2019).

    The targets are y_t = h(Σ_{k<m} γᵏ·r_{t+k+1} + D·h⁻¹(Q⁻(s_{t+m}, a*))). The number m is n, or the number of steps to
    the episode's last row if that is smaller. So a truncated episode bootstraps from its last observation. D is γᵐ, or
    0 if row t+m is terminated. The action a* has the highest value in row t+m under `online`, or under `target` without
    `online`.

    `batch`: "reward" (float), "terminated" and "first" (bool), each [R, B], as in losses.py. Optional are "mask" [R, B,
        A] of legal actions, and "valid" [R, B], which is False where a row has no transition to the next row.
    `target`, `online`: action values [R, B, A].
    `eps`: ε of the value rescaling h. If None, values are not rescaled.

    The mask is False for the last n rows, as in rlpyt, and for rows without a valid transition. Raises ValueError if
    shapes do not fit.
    """
    reward, mask, first = batch["reward"], batch.get("mask"), batch["first"]
    fit = target.ndim == 3 and target.shape[:2] == reward.shape and (online is None or online.shape == target.shape)
    check_shapes(fit, f"target and online must be [R, B, A] with [R, B] = {list(reward.shape)}", target, online)
    if len(reward) <= n:
        raise ValueError(f"{len(reward)} rows are too few for n = {n}")
    if "valid" in batch:
        first = first | torch.cat([torch.zeros_like(first[:1]), ~batch["valid"][:-1]])
    value = take_action(target, greedy_action(target if online is None else online, mask))
    value = torch.where(batch["terminated"], 0.0, value)
    steps = losses.transitions({"reward": reward, "terminated": batch["terminated"], "first": first}, gamma)
    goal = losses.n_step(steps, value if eps is None else unscale(value, eps), n)
    valid = steps.valid.clone()
    valid[len(reward) - n :] = False
    return goal if eps is None else rescale(goal, eps), valid


# ------------------------------------------------------------------------------------------------ priorities


def sequence_priority(error: Tensor, valid: Tensor, eta: float) -> Tensor:
    """Return R2D2's priorities [B] of sequences: η·max|δ| + (1 − η)·mean|δ| over valid rows, for errors δ [T, B]."""
    fit = error.shape == valid.shape and error.ndim == 2
    check_shapes(fit, "error and valid must be one [T, B] shape", error, valid)
    size = torch.where(valid, error.abs(), 0.0)
    return eta * size.amax(0) + (1.0 - eta) * size.sum(0) / valid.sum(0).clamp(min=1)


COMMON = ("loss", "q_mean", "target_mean", "td_abs", "weight_mean")


def _keys(self: Loss, policy: QNetwork, batch: Batch, key: Key) -> Batch:
    """Return the noise keys, int64 [3], of a noisy network's passes "q", "target" and "online" in one update."""
    return {"key": np.arange(3 * key[2], 3 * key[2] + 3)} if policy.head.noise else {}


@dataclass(frozen=True)
class TransitionLoss(Loss, ABC):
    """Base class of Q-learning losses for transitions. batch["obs"] [2, B, …] holds s_t and s_{t+n}. If `double`, the
    trained network chooses the action in s_{t+n}, and the target network evaluates it (double Q-learning).
    """

    double: bool = field(default=False, kw_only=True)

    divisible, noise = True, _keys

    def __call__(self, policy: QNetwork, target: QNetwork, batch: Batch, state: Batch, hyper: Hyper) -> LossOutput:
        """Run the networks on a batch, and return the loss."""
        out: Batch = {"q": _scores(policy, batch, 0)}  # a joint pass with "online" would compute unused gradients
        with torch.no_grad():
            out["target"] = batch["target"] if "target" in batch else _scores(target, batch, 1, cached=True)
            if self.double:
                out["online"] = _scores(policy, batch, 2)
        return self.score(out, batch)

    @torch.no_grad()
    def ahead(self, target: QNetwork, batch: Batch) -> Batch:
        """Return the target network's outputs for s_{t+n}, which `score` takes as "target"."""
        return {"target": _scores(target, batch, 1, cached=True)}

    @abstractmethod
    def score(self, out: Batch, batch: Batch) -> LossOutput:
        """Return the loss of the outputs "q", "target" and, if double, "online", each [B, A] or [B, A, K]."""


def _scores(net: QNetwork, batch: Batch, i: int, cached: bool = False) -> Tensor:
    """Return a network's scores [B, …] of s_t if `i` is 0, else of s_{t+n}. A noisy network uses batch["key"][i]."""
    row, key = slice(min(i, 1), min(i, 1) + 1), batch["key"][i : i + 1] if "key" in batch else None
    return net.scores({"obs": tree.map(lambda x: x[row], batch["obs"])}, {}, key, cached).squeeze(0)


@dataclass(frozen=True)
class QLoss(TransitionLoss):
    """Loss of DQN: the Huber loss of δ = y − Q(s, a). It is ½δ² for |δ| ≤ clip, else clip·(|δ| − clip/2). The gradient
    is −δ clipped to ±clip, as in Mnih et al. (2015). If clip is 0, the loss is ½δ².

    The loss of a transition is multiplied by its importance weight. The priority is |δ|. With reduction "sum", the loss
    is also multiplied by `replicas`, the number of learners, because their gradients are averaged.
    """

    reduction: losses.Reduction = "mean"
    clip: NonNegative = 1.0
    replicas: int = 1

    metrics = (*COMMON, "clipped")

    def score(self, out: Batch, batch: Batch) -> LossOutput:
        mask = batch["mask"][1] if "mask" in batch else None
        best = greedy_action(out["online" if "online" in out else "target"], mask)
        goal = td_target(batch["return"], batch["discount"], take_action(out["target"], best))
        q = take_action(out["q"], batch["action"])
        error, weight = goal - q, importance_weight(batch, goal)
        size, bound = error.abs(), self.clip or torch.inf
        inner = size.clamp(max=bound)
        each = weight * (inner * (size - 0.5 * inner))
        size = size.detach()
        loss = each.sum() * self.replicas if self.reduction == "sum" else each.mean()

        def measure() -> Iterable[tuple[str, Tensor]]:
            means = (x.mean() for x in (q, goal, size, weight, (size > bound).to(size.dtype)))
            return zip(self.metrics, (loss, *means), strict=True)

        return LossOutput(loss, metrics_of(measure), size)


@dataclass(frozen=True)
class CategoricalLoss(TransitionLoss):
    """Loss of C51 (Bellemare et al. 2017) and Rainbow: the cross-entropy of the projected target distribution and the
    network's distribution p(s, a).

    `low`, `high`: values of the first and the last atom. The atoms are evenly spaced.
    `priority`: "kl" for the Kullback-Leibler divergence (Hessel et al. 2018, Accel RL), or "ce" for the cross-entropy
        (dqn_zoo), which is above 0 even at the optimum.
    """

    low: float = -10.0
    high: float = 10.0
    priority: Literal["ce", "kl"] = "kl"

    metrics = (*COMMON, "kl", "entropy")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low < self.high:
            raise UserError(f"low {self.low}, high {self.high} given, allowed: low below high")

    def score(self, out: Batch, batch: Batch) -> LossOutput:
        mask = batch["mask"][1] if "mask" in batch else None
        where = self.low, self.high
        goal = categorical(batch["return"], batch["discount"], out["target"], *where, out.get("online"), mask)
        logits = take_action(out["q"], batch["action"])
        each, weight = -(goal * logits.log_softmax(-1)).sum(-1), importance_weight(batch, goal[:, 0])
        floor = -torch.special.xlogy(goal, goal).sum(-1)  # least cross-entropy: the target's entropy
        kl = (each.detach() - floor).clamp(min=0.0)
        loss = (weight * each).mean()

        def measure() -> Iterable[tuple[str, Tensor]]:
            q, mean = expected_value(logits, *where), goal @ support(*where, goal)
            means = (x.mean() for x in (q, mean, (mean - q).abs(), weight, kl, floor))
            return zip(self.metrics, (loss, *means), strict=True)

        return LossOutput(loss, metrics_of(measure), kl if self.priority == "kl" else each.detach())


@dataclass(frozen=True)
class SequenceLoss(Loss):
    """Loss of R2D2: ½δ² with rescaled n-step targets (sequence_targets). The loss of a sequence is the sum over its
    rows, as in SEED and Acme, times its importance weight. The loss of a batch is the mean over sequences.

    `rescale`: ε of the value rescaling h. If 0, values are not rescaled.
    `eta`: η of the priority η·max|δ| + (1 − η)·mean|δ|, over the rows that have a loss.
    `burn_in`: number of rows at the start of a sequence that only update the recurrent state, without gradient.

    A batch has burn_in + m + n rows, of which at most m have a loss. The metrics q_mean and target_mean are in units of
    reward, before rescaling. The metric td_abs is the mean |δ| of rescaled values.
    """

    gamma: Fraction = 0.997
    n: Count = 5
    rescale: NonNegative = 1e-3
    eta: Fraction = 0.9
    burn_in: int = 0
    double: bool = True

    metrics, noise = (*COMMON, "rows_mean"), _keys

    def __call__(self, policy: QNetwork, target: QNetwork, batch: Batch, state: Batch, hyper: Hyper) -> LossOutput:
        """Run the networks on a batch of sequences, and return the loss of the rows after burn-in."""
        rows: Batch = {k: batch[k] for k in ("obs", "reward", "first", "action") if k in batch}
        head, body = (tree.map(lambda x, at=at: x[at], rows) for at in (slice(self.burn_in), slice(self.burn_in, None)))
        with torch.no_grad():
            before = policy.after(head, state) if self.burn_in else state
        keys = batch["key"].split(1) if "key" in batch else (None, None)
        out = {"q": policy.scores(body, before, keys[0])}
        with torch.no_grad():
            out["target"] = target.scores(rows, state, keys[1], cached=True)[self.burn_in :]
        if self.double:
            out["online"] = out["q"].detach()
        return self.score(out, batch)

    def score(self, out: Batch, batch: Batch) -> LossOutput:
        """Return the loss of the outputs [R, B, A] for the rows after burn-in."""
        keys = ("reward", "terminated", "first", "valid", "mask", "action")
        rows = {k: batch[k][len(batch[k]) - len(out["q"]) :] for k in keys if k in batch}
        eps = self.rescale or None
        target, valid = sequence_targets(rows, out["target"], self.gamma, self.n, out.get("online"), eps)
        action = rows["action"][:-1]
        q, goal = (torch.where(valid, x, 0.0) for x in (take_action(out["q"][:-1], action), target))
        error, weight = goal - q, importance_weight(batch, goal[0])
        loss = (weight * (0.5 * error.square().sum(0))).mean()
        size = error.detach().abs()

        def measure() -> Iterable[tuple[str, Tensor]]:
            values = (unscale(x, self.rescale) if self.rescale else x for x in (q, goal))
            learnt = valid.sum(0).to(size.dtype).mean()
            means = (loss, *(masked_mean(x, valid) for x in (*values, size)), weight.mean(), learnt)
            return zip(self.metrics, means, strict=True)

        return LossOutput(loss, metrics_of(measure), sequence_priority(size, valid, self.eta))


# The loss of deterministic policies. batch: transitions of a replay's `sample()`, as tensors: "return", "discount" [B],
# "weight" [B] (1 if not stored).


FREE = 2.0  # largest |x| without saturation cost, for the input x of μ's tanh; tanh(2) is 0.96


@dataclass(frozen=True)
class DPGLoss(Loss):
    """Loss of Ape-X DPG (Horgan et al. 2018, §4.2 and appendix D): the sum of the batch means of two terms, for the
    critic's and for the actor's weights.

    critic  w·½δ², δ = G + D·Q⁻(s', μ⁻(s')) − Q(s, a), with importance weights w
    actor   −Σ_i c_i·μ_i(s), where c is dQ/da at a = μ(s). Each c_i is clipped to ±clip, unless clip is 0.

    Since c counts as a constant, the actor's gradient is −c·dμ/dθ. As in D4PG (Barth-Maron et al. 2018), the actor's
    term has no importance weights.

    A third term, saturation_cost·Σ_i max(0, |x_i| − 2)², keeps the input x of the actor's tanh near [−2, 2]. Without
    this term, an untrained critic may drive actions to the bounds, where the gradient of tanh vanishes.

    The priority is |δ|. dQ/da is for actions scaled to [−1, 1]. Metrics are means without importance weights.
    "policy_value" is Q(s, μ(s)). "dqda_clip_fraction" is the fraction of elements of dQ/da beyond ±clip.
    "action_saturation" is the fraction of elements of μ(s) within 0.01 of ±1.
    """

    clip: float = 1.0
    saturation_cost: float = 0.0
    reward_scale: float = 1.0  # factor of rewards in the replay

    metrics = (
        "loss", "critic_loss", "q_mean", "target_mean", "td_abs", "weight_mean", "policy_value", "dqda_clip_fraction",
        "action_saturation",
    )  # fmt: skip

    def __call__(self, policy: DPGNetwork, target: DPGNetwork, batch: Batch, state: Batch, hyper: Hyper) -> LossOutput:
        now, then = (tree.map(lambda x, i=i: x[i], batch["obs"]) for i in (0, 1))
        with torch.no_grad():
            ahead = target.value(then)
        return self.score({**policy.learnt(now, batch["action"]), "target": ahead}, batch)

    def score(self, out: Batch, batch: Batch) -> LossOutput:
        """Return the loss of the outputs of `policy.learnt` for s_t. out["target"] [B] is Q⁻(s', μ⁻(s'))."""
        goal = td_target(batch["return"], batch["discount"], out["target"])
        error = goal - out["q"]
        weight = importance_weight(batch, goal)
        critic = (weight * 0.5 * error.square()).mean()
        bound = self.clip or torch.inf
        actor = -(out["slope"].clamp(-bound, bound) * out["best"]).sum(1).mean()
        pull = (out["raw"].abs() - FREE).clamp(min=0.0).square().sum(1).mean()
        loss, size = critic + actor + self.saturation_cost * pull, error.detach().abs()

        def measure() -> Iterable[tuple[str, Tensor]]:
            beyond, ends = (x.to(size.dtype) for x in (out["slope"].abs() > bound, out["best"].abs() > 0.99))
            means = (x.mean() for x in (out["q"], goal, size, weight, out["value"], beyond, ends))
            return zip(self.metrics, (loss, critic, *means), strict=True)

        return LossOutput(loss, metrics_of(measure), size)

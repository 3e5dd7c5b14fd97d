"""Losses of action values: frozen, picklable callables `loss(out, batch, hyperparameters) -> LossOutput`.

out    what `outputs` gives: "q" of s_t with gradient, "target" of s_{t+n} by the target network, and for double
       Q-learning "online" of s_{t+n}, both without
batch  what a replay's `sample()` gives, as tensors: transitions "action", "return", "discount" [B], or rows [R, B] of
       sequences; "weight" [B] (1 where there is none) and "mask" where they are stored
hyperparameters  not used

`LossOutput.priority` [B] is what replay wants back. "mean" divides the sum over the batch by B, "sum" does not: the
2015 DQN's gradient is a sum over its 32 samples, with a learning rate to match. Metrics are means, unweighted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polyplay.common import tree
from polyplay.common.control import Hyperparameters
from polyplay.common.errors import UserError
from polyplay.common.tree import Batch
from polyplay.common.value_rescaling import unscale
from polyplay.learning.losses import base, q_targets
from polyplay.nets import q_values
from polyplay.nets.q_network import QNetwork

WEIGHTED = ("loss", "error")
PRIORITIES = ("ce", "kl")
TIMES = ("sum", "mean")
COMMON = ("loss", "q_mean", "target_mean", "td_abs", "weight_mean")


@dataclass(frozen=True)
class QLoss:
    """½δ² for |δ| ≤ clip, clip·(|δ| − clip/2) beyond, δ = y − Q(s, a): its gradient is δ limited to ±clip, which is all
    that Mnih et al. (2015) say of it. clip: 0 is ½δ² throughout. The priority is |δ|.

    weighted: what importance weights w multiply. "loss": w times the above (Huber); "error": the gradient is w·δ
    limited to ±clip, as DeepMind's dqn_zoo has it. Without weights they are one. replicas: whose gradients are
    averaged: "sum" then is over all that they draw together. Raises UserError, ValueError.
    """

    reduction: str = "mean"
    clip: float = 1.0
    weighted: str = "loss"
    replicas: int = 1

    metrics: ClassVar[tuple[str, ...]] = (*COMMON, "clipped")

    def __post_init__(self) -> None:
        base.check_settings(self, reduction=base.REDUCTIONS, weighted=WEIGHTED, clip=base.NOT_NEGATIVE)

    def __call__(self, out: Batch, batch: Batch, hyperparameters: Hyperparameters) -> base.LossOutput:
        mask = batch["mask"][1] if "mask" in batch else None
        goal = q_targets.scalar(batch["return"], batch["discount"], out["target"], out.get("online"), mask)
        q = q_values.take_action(out["q"], batch["action"])
        error, weight = goal - q, base.importance_weight(batch, goal)
        size = error.detach().abs()
        bound = torch.full_like(weight, self.clip or torch.inf)
        if self.weighted == "error":
            bound = bound / weight  # what w·δ reaches at ±clip
        loss = _reduced(weight * huber(error, bound), self.reduction)
        if self.reduction == "sum":
            loss = loss * self.replicas

        def metrics() -> dict[str, Tensor]:
            return {**_common(loss, q, goal, size, weight), "clipped": (size > bound).to(size.dtype).mean()}

        return base.LossOutput(loss, base.LazyMetrics(metrics), size)


@dataclass(frozen=True)
class CategoricalLoss:
    """Cross-entropy of the projected target distribution and p(s, a): C51 (Bellemare et al. 2017), Rainbow.

    Atoms stand evenly from `low` to `high`; the network has the number. priority: "kl", the Kullback-Leibler divergence
    (Hessel et al. 2018, Accel RL), or "ce", the cross-entropy (dqn_zoo), which isn't 0 where all is learnt.
    Raises UserError, ValueError.
    """

    low: float = -10.0
    high: float = 10.0
    reduction: str = "mean"
    priority: str = "kl"

    metrics: ClassVar[tuple[str, ...]] = (*COMMON, "kl", "entropy")

    def __post_init__(self) -> None:
        base.check_settings(self, reduction=base.REDUCTIONS, priority=PRIORITIES)
        if not self.low < self.high:
            raise UserError(f"low is {self.low} and high {self.high}; low must be below high")

    def __call__(self, out: Batch, batch: Batch, hyperparameters: Hyperparameters) -> base.LossOutput:
        mask = batch["mask"][1] if "mask" in batch else None
        where = self.low, self.high
        goal = q_targets.categorical(batch["return"], batch["discount"], out["target"], *where, out.get("online"), mask)
        logits = q_values.take_action(out["q"], batch["action"])
        each, weight = q_targets.cross_entropy(goal, logits), base.importance_weight(batch, goal[:, 0])
        floor = q_targets.entropy(goal)
        apart = (each.detach() - floor).clamp(min=0.0)
        loss = _reduced(weight * each, self.reduction)

        def metrics() -> dict[str, Tensor]:
            q, mean = q_values.expected_value(logits, *where), goal @ q_values.support(*where, goal)
            common = _common(loss, q, mean, (mean - q).abs(), weight)
            return {**common, "kl": apart.mean(), "entropy": floor.mean()}

        return base.LossOutput(loss, base.LazyMetrics(metrics), apart if self.priority == "kl" else each.detach())


@dataclass(frozen=True)
class SequenceLoss:
    """½δ² of every row to be learnt of a sequence, under R2D2's rescaled n-step targets (targets.sequence).

    time: how a sequence's rows are put together, as SEED and Acme have it the "sum", or the "mean"; then weights, then
    `reduction` over sequences. rescale: h's ε; 0 leaves h out. eta: of the priority η·max|δ| + (1 − η)·mean|δ|, over
    the rows learnt. reward: as in losses.squash; R2D2 takes them as they are. The batch has burn_in + m + n rows for m
    to be learnt with tail="extra", burn_in + m + 1 with "short"; those before `out`'s rows are burn-in.
    Metrics: q_mean and target_mean without h, td_abs of |δ|. Raises UserError, ValueError.
    """

    gamma: float = 0.997
    n: int = 5
    tail: str = "extra"
    rescale: float = 1e-3
    eta: float = 0.9
    time: str = "sum"
    reduction: str = "mean"
    reward: str = "none"
    reward_scale: float = 1.0

    metrics: ClassVar[tuple[str, ...]] = (*COMMON, "rows_mean")

    def __post_init__(self) -> None:
        base.check_settings(self, reduction=base.REDUCTIONS, time=TIMES, tail=q_targets.TAILS, reward=base.REWARDS)
        base.check_settings(self, gamma=base.FRACTION, eta=base.FRACTION, rescale=base.NOT_NEGATIVE)
        if self.n < 1:
            raise UserError(f"n is {self.n}; it must be a whole number from 1 up")

    def __call__(self, out: Batch, batch: Batch, hyperparameters: Hyperparameters) -> base.LossOutput:
        keys = ("reward", "terminated", "first", "valid", "mask", "action")
        rows = {k: batch[k][len(batch[k]) - len(out["q"]) :] for k in keys if k in batch}
        rows["reward"] = base.squash_rewards(rows["reward"], self.reward, self.reward_scale)
        made = q_targets.sequence_targets(
            rows, out["target"], self.gamma, self.n, out.get("online"), self.rescale or None, self.tail
        )
        over, action = base.MaskedMean(made.valid), rows["action"][:-1]
        q = over.only(q_values.take_action(out["q"][:-1], action))
        goal = over.only(made.target)
        error, weight = goal - q, base.importance_weight(batch, goal[0])
        each = 0.5 * error.square().sum(0)
        if self.time == "mean":
            each = each / made.valid.sum(0).clamp(min=1)
        loss = _reduced(weight * each, self.reduction)
        size = error.detach().abs()

        def metrics() -> dict[str, Tensor]:
            values = (unscale(x, self.rescale) if self.rescale else x for x in (q, goal))
            means = (loss, *map(over.mean, values), over.mean(size), weight.mean())
            learnt = made.valid.sum(0).to(size.dtype).mean()
            return {**dict(zip(COMMON, means, strict=True)), "rows_mean": learnt}

        return base.LossOutput(loss, base.LazyMetrics(metrics), q_targets.sequence_priority(size, made.valid, self.eta))


def huber(error: Tensor, bound: Tensor) -> Tensor:
    """½δ² up to |δ| = bound, linear with slope `bound` beyond; any shape, `bound` > 0 or inf, of a shape that fits."""
    size = error.abs()
    inner = torch.minimum(size, bound)
    return inner * (size - 0.5 * inner)


def q_outputs(
    policy: QNetwork,
    target: QNetwork,
    batch: Batch,
    state: Batch | None = None,
    double: bool = False,
    burn_in: int | None = None,
    key: int | None = None,
    ready: Tensor | None = None,
) -> Batch:
    """What the losses take of two `nets.Values` of one kind: scores q [..., A], or logits [..., A, K].

    Transitions (burn_in None): batch["obs"] [2, B, …] holds s_t and s_{t+n}. → "q" [B, …] of s_t with gradient;
    "target" [B, …] of s_{t+n}; if `double`, "online" [B, …] of s_{t+n} by `policy`. One pass each, as large as can be
    without taking gradients that nobody wants.
    Sequences: rows [burn_in + R, B] and the `state` before row 0. Both networks walk through the first burn_in rows
    without gradient; → all [R, B, …], "online" from the same pass as "q".
    target.hold(), once it was copied, saves each pass the conversion of its weights.
    key: of the noise of noisy networks, another number for every update (its number will do): each pass has noise of
    its own, the whole batch the same (dqn_zoo). Nothing is drawn, so nothing has to be saved. None: no noise.
    ready: target_scores of these transitions, where they were computed before.
    """
    if burn_in is None and policy.state_spec():
        raise ValueError("a network with memory learns from sequences: say burn_in, and give the state before row 0")
    keys = [None] * 3 if key is None else [3 * key + i for i in range(3)]
    if burn_in is not None:
        return _walked(policy, target, batch, state or {}, double, burn_in, keys)
    now, then = _rows(batch, 0), _rows(batch, 1)
    out = {"q": policy.scores(now, {}, keys[0])[0]}
    out["target"] = target_scores(target, batch, key) if ready is None else ready
    if double:
        with torch.no_grad():
            out["online"] = policy.scores(then, {}, keys[2])[0]
    return out


def target_scores(target: QNetwork, batch: Batch, key: int | None = None) -> Tensor:
    """ "target" of `q_outputs`, of transitions."""
    with torch.no_grad():
        return target.scores(_rows(batch, 1), {}, None if key is None else 3 * key + 1, cached=True)[0]


def _rows(batch: Batch, i: int) -> Batch:
    """Observations [1, B, …] of s_t (i = 0) or s_{t+n} (i = 1)."""
    return {"obs": tree.map(lambda x: x[i : i + 1], batch["obs"])}


def _walked(
    policy: QNetwork, target: QNetwork, batch: Batch, state: Batch, double: bool, burn_in: int, keys: list
) -> Batch:
    """`outputs` of sequences."""
    rows: Batch = {k: batch[k] for k in ("obs", "reward", "first", "action") if k in batch}
    head, body = tree.map(lambda x: x[:burn_in], rows), tree.map(lambda x: x[burn_in:], rows)
    before = state
    if burn_in:
        with torch.no_grad():
            before = policy.after(head, state)
    out = {"q": policy.scores(body, before, keys[0])}
    with torch.no_grad():
        out["target"] = target.scores(rows, state, keys[1], cached=True)[burn_in:]
    if double:
        out["online"] = out["q"].detach()
    return out


def _reduced(each: Tensor, how: str) -> Tensor:
    return each.sum() if how == "sum" else each.mean()


def _common(loss: Tensor, q: Tensor, goal: Tensor, size: Tensor, weight: Tensor) -> dict[str, Tensor]:
    return dict(zip(COMMON, (loss, *(x.mean() for x in (q, goal, size, weight))), strict=True))

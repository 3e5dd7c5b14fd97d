"""The loss of deterministic policies: a frozen callable `loss(out, batch, hyperparameters) -> LossOutput`.

out    what `outputs` gives of two `nets.Deterministic`
batch  transitions of a replay's `sample()`, as tensors: "return", "discount" [B], "weight" [B] (1 where there is none)
hyperparameters  not used
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polyplay.common import tree
from polyplay.common.control import Hyperparameters
from polyplay.common.tree import Batch
from polyplay.learning.losses.base import LazyMetrics, LossOutput, importance_weight
from polyplay.learning.losses.returns import check_shapes
from polyplay.nets.dpg import DPGNetwork

FREE = 2.0  # what μ's tanh is made of goes so far without a rein: to 0.96 of a half range


@dataclass(frozen=True)
class DPGLoss:
    """Ape-X DPG (Horgan et al. 2018, §4.2 and appendix D), means over the batch of two terms that share no weights:

    critic  w·½δ², δ = G + D·Q⁻(s', μ⁻(s')) − Q(s, a), weighted by importance;
    actor   −Σ_i c_i·μ_i(s), c = dQ/da at a = μ(s) limited to ±clip number by number (0: not at all), a constant. So its
            gradient is −c·dμ/dθ, and its value means nothing. Not weighted, as in D4PG (Barth-Maron et al. 2018).
            To that comes rein·Σ_i max(0, |x_i| − 2)², x what the tanh of μ is made of: beyond ±2 it is pulled back.
            Else an actor that a young critic drives to an end of its range may stay there, where tanh has no slope.

    The priority is |δ|. Slopes are per half range of an action. Metrics are means, unweighted: "policy_value" is
    Q(s, μ(s)), "slope_clipped" the share of numbers of dQ/da beyond the limit, "at_ends" that of numbers of μ(s) within
    a hundredth of an end.
    """

    clip: float = 1.0
    rein: float = 0.0

    metrics: ClassVar[tuple[str, ...]] = (
        "loss", "critic_loss", "q_mean", "target_mean", "td_abs", "weight_mean", "policy_value", "slope_clipped",
        "at_ends",
    )  # fmt: skip

    def __call__(self, out: Batch, batch: Batch, hyperparameters: Hyperparameters) -> LossOutput:
        goal = targeted(batch["return"], batch["discount"], out["target"])
        error = goal - out["q"]
        weight = importance_weight(batch, goal)
        critic = (weight * 0.5 * error.square()).mean()
        bound = self.clip or torch.inf
        actor = -(out["slope"].clamp(-bound, bound) * out["best"]).sum(1).mean()
        pull = (out["raw"].abs() - FREE).clamp(min=0.0).square().sum(1).mean()
        loss, size = critic + actor + self.rein * pull, error.detach().abs()

        def metrics() -> dict[str, Tensor]:
            beyond, ends = (x.to(size.dtype) for x in (out["slope"].abs() > bound, out["best"].abs() > 0.99))
            means = (x.mean() for x in (out["q"], goal, size, weight, out["value"], beyond, ends))
            return dict(zip(self.metrics, (loss, critic, *means), strict=True))

        return LossOutput(loss, LazyMetrics(metrics), size)


@torch.no_grad()
def targeted(ret: Tensor, discount: Tensor, ahead: Tensor) -> Tensor:
    """y = G + D·Q⁻(s', μ⁻(s')) [B]; where D = 0 the network's output is not used, even if it is NaN.

    Raises ValueError for shapes that do not fit.
    """
    fit = ret.ndim == 1 and ret.shape == discount.shape == ahead.shape
    check_shapes(fit, "ret, discount and ahead must be one [B]", ret, discount, ahead)
    return ret + torch.where(discount == 0, 0.0, discount * ahead)


def dpg_outputs(
    policy: DPGNetwork, target: DPGNetwork, batch: Batch, state: Batch | None = None, key: int | None = None
) -> Batch:
    """What the loss takes: of s_t, batch["obs"][0], `policy.learnt`; "target" [B], Q⁻(s', μ⁻(s')) of s_{t+n},
    batch["obs"][1], without gradient. state, key: not used, there is neither memory nor noise.
    """
    now, then = (tree.map(lambda x, i=i: x[i], batch["obs"]) for i in (0, 1))
    with torch.no_grad():
        ahead = target.value(then)
    return {**policy.learnt(now, batch["action"]), "target": ahead}

"""What a temporal core and auxiliary tasks add to the loss of a policy gradient (Jaderberg et al. 2019, supplement)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor

from polyplay.common import tree
from polyplay.common.control import Hyperparameters
from polyplay.common.tree import Batch, Tree
from polyplay.learning.losses import unreal
from polyplay.learning.losses.base import EpochLoss, LazyMetrics, Loss, LossOutput, MaskedMean

KL = MappingProxyType({"kl_posterior": 1e-3, "kl_prior": 1e-4})  # terms of a temporal core, with costs in kind


@dataclass(frozen=True)
class WithAuxiliary:
    """`loss` + Σ cost · term. terms: names, and what they cost where no hyperparameter NAME_cost says otherwise.

    kl_posterior, kl_prior: see nets.temporal.kl_terms. pixel_control, reward_prediction: see losses.unreal. All are
    means over transitions or examples, and multiplied with the number of transitions where `loss` is a sum. Where the
    network says `reward`, it takes the place of the environment's.
    """

    loss: Loss
    terms: Mapping[str, float] = field(default_factory=lambda: dict(KL))

    @property
    def title(self) -> str:
        """For the diagram."""
        return " + ".join([type(self.loss).__name__, *self.terms])

    @property
    def metrics(self) -> tuple[str, ...]:
        return *self.loss.metrics, *self.terms

    @property
    def whole(self) -> bool:
        """Of one for several passes: see base.EpochLoss."""
        return cast("EpochLoss", self.loss).whole

    def prepare(self, batch: Batch, scale: float | Tensor = 1.0) -> Batch:
        """See base.EpochLoss."""
        return cast("EpochLoss", self.loss).prepare(batch, scale)

    def __call__(self, out: Batch, batch: Batch, hyperparameters: Hyperparameters) -> LossOutput:
        if "reward" in out:
            batch = {**batch, "reward": out["reward"]}
        scored = self.loss(out, batch, hyperparameters)
        over = MaskedMean(batch["valid"] if "valid" in batch else ~batch["first"][1:])
        found = {name: self._term(name, over, out, batch) for name in self.terms}
        live = hyperparameters.all()
        total = sum(live.get(f"{name}_cost", self.terms[name]) * x for name, x in found.items())
        if getattr(self.loss, "reduction", "mean") == "sum":
            total = total * over.count
        loss = scored.loss + total
        return LossOutput(loss, LazyMetrics(lambda: {**scored.metrics, **found, "loss": loss}), scored.priority)

    def _term(self, name: str, over: MaskedMean, out: Batch, batch: Batch) -> Tensor:
        if name == "pixel_control":
            change = unreal.pixel_change(_view(batch["obs"]))
            return unreal.pixel_control_loss(out["pixel_chosen"], out["pixel_best"], change, batch)
        if name == "reward_prediction":
            if "reward_logits" not in out:  # nothing to predict has been seen yet
                return over.valid.new_zeros((), dtype=torch.float32)
            return unreal.reward_prediction_loss(out["reward_logits"], batch["recent_reward"])
        return over.mean(out[name][: len(over.valid)])


def _view(obs: Tree) -> Tensor:
    """The picture [T+1, B, C, H, W] among observations."""
    return next(x for _, x in tree.leaves(obs) if x.ndim == 5 and x.dtype == torch.uint8)

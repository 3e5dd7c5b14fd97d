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
from polyplay.learning.losses import returns, unreal
from polyplay.learning.losses.base import ActorCriticLoss, EpochLoss, LazyMetrics, Loss, LossOutput, MaskedMean

TERMS = MappingProxyType(  # of UNREAL's tasks, and their published costs
    {"pixel": ("pixel_control", 0.05), "reward": ("reward_prediction", 1.0), "value": ("value_replay", 1.0)}
)
KL = MappingProxyType({"kl_posterior": 1e-3, "kl_prior": 1e-4})  # terms of a temporal core, with costs in kind
_DRAWN = {"reward_prediction": "reward_logits", "value_replay": "replayed_value"}  # outputs of rows that a learner drew


@dataclass(frozen=True)
class WithAuxiliary:
    """`loss` + Σ cost · term. terms: names, and what they cost where no hyperparameter NAME_cost says otherwise.

    kl_posterior, kl_prior: see nets.temporal.kl_terms. pixel_control, reward_prediction, value_replay: see
    losses.unreal. A cost is the weight of one example beside one transition, as published: where `loss` is a sum, every
    term is the sum over its own examples; where it is a mean, the predicted rewards' sum is divided by the number of
    transitions, and all others are means. Metrics are means over transitions or examples. Where the network says
    `reward`, it takes the place of the environment's. Replayed values have the discount of `loss`, an ActorCriticLoss,
    and its rewards.
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
        live, summed = hyperparameters.all(), getattr(self.loss, "reduction", "mean") == "sum"
        weights = {name: live.get(f"{name}_cost", self.terms[name]) for name in found}
        total = sum(weights[name] * x * self._share(name, over, batch, summed) for name, x in found.items())
        if summed:
            total = total * over.count
        loss = scored.loss + total
        return LossOutput(loss, LazyMetrics(lambda: {**scored.metrics, **found, "loss": loss}), scored.priority)

    def _share(self, name: str, over: MaskedMean, batch: Batch, summed: bool) -> Tensor | float:
        """Examples of a term for each transition, so often its mean counts."""
        if name == "reward_prediction" and "recent_reward" in batch:
            return len(batch["recent_reward"]) / over.count
        if name == "value_replay" and summed and "replayed" in batch:
            return returns.transitions(batch["replayed"], 1.0).valid.sum() / over.count
        return 1.0

    def _term(self, name: str, over: MaskedMean, out: Batch, batch: Batch) -> Tensor:
        if name == "pixel_control":
            change = unreal.pixel_change(_view(batch["obs"]))
            return unreal.pixel_control_loss(out["pixel_chosen"], out["pixel_best"], change, batch)
        if name in _DRAWN and _DRAWN[name] not in out:  # there was nothing to draw yet
            return over.valid.new_zeros((), dtype=torch.float32)
        if name == "reward_prediction":
            return unreal.reward_prediction_loss(out["reward_logits"], batch["recent_reward"])
        if name == "value_replay":
            rows, loss = batch["replayed"], cast("ActorCriticLoss", self.loss)
            rows = {**rows, "reward": loss.squashed(rows["reward"], out)}
            return unreal.value_replay_loss(out["replayed_value"], rows, loss.gamma)
        return over.mean(out[name][: len(over.valid)])


def _view(obs: Tree) -> Tensor:
    """The picture [T+1, B, C, H, W] among observations."""
    return next(x for _, x in tree.leaves(obs) if x.ndim == 5 and x.dtype == torch.uint8)

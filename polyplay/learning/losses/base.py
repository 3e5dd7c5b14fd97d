"""What every loss shares: its outputs, masked means, normalisation."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from polyplay.common.control import Hyperparameters
from polyplay.common.errors import UserError
from polyplay.common.tree import Batch
from polyplay.learning.losses import returns

REDUCTIONS = ("mean", "sum")

REWARDS = ("clip", "sign", "none", "scale")

FRACTION, NOT_NEGATIVE, ABOVE_ZERO = "between 0 and 1", "0 or more", "above 0"
BOUNDS: dict[str, Callable[[float], bool]] = {
    FRACTION: lambda x: 0.0 <= x <= 1.0,
    NOT_NEGATIVE: lambda x: x >= 0.0,
    ABOVE_ZERO: lambda x: x > 0.0,
}

COMMON = ("loss", "policy_loss", "value_loss", "entropy", "value_mean", "explained_variance", "approx_kl")


class LossOutput(NamedTuple):
    """A scalar to minimise, detached scalars to report, and, of what came from a replay, new priorities [B]."""

    loss: Tensor
    metrics: Mapping[str, Tensor]
    priority: Tensor | None = None


class LazyMetrics(UserDict[str, Tensor]):
    """Metrics that are computed when they are first looked at: a learner of few rows looks at few updates' only."""

    def __init__(self, make: Callable[[], dict[str, Tensor]]) -> None:
        self._make = make

    @cached_property
    def data(self) -> dict[str, Tensor]:  # type: ignore[override]
        with torch.no_grad():
            return {k: v.detach() for k, v in self._make().items()}


class Loss(Protocol):
    """What a learner calls; `metrics` names the reported scalars before the first call."""

    @property
    def metrics(self) -> tuple[str, ...]: ...
    def __call__(self, out: Batch, batch: Batch, hyperparameters: Hyperparameters, /) -> LossOutput: ...


class EpochLoss(Loss, Protocol):
    """One for several passes over a batch: `prepare` makes what all passes share, of rows [T+1, B]."""

    @property
    def whole(self) -> bool: ...  # lanes stay whole in minibatches
    def prepare(self, batch: Batch, scale: float | Tensor = 1.0) -> Batch: ...


def importance_weight(batch: Batch, like: Tensor) -> Tensor:
    """Of what a replay drew; 1 without weights."""
    return batch["weight"].to(like.dtype) if "weight" in batch else torch.ones_like(like)


def squash_rewards(reward: Tensor, how: str, scale: float | Tensor = 1.0) -> Tensor:
    """`scale`·r as it is ("none"), limited to [−1, 1] ("clip") or [−10, 10] ("scale"), or its sign. Any shape."""
    scaled = reward * scale
    if how == "scale":
        return scaled.clamp(-10.0, 10.0)
    if how == "clip":
        return scaled.clamp(-1.0, 1.0)
    return scaled.sign() if how == "sign" else scaled


@dataclass(frozen=True)
class ActorCriticLoss:
    """The settings that losses of actor-critics share. Raises UserError for those out of range."""

    gamma: float = 0.99
    lam: float = 1.0
    _: KW_ONLY
    value_cost: float = 0.5
    normalize_advantage: bool = False  # (A − mean)/(std + 1e-8) over the batch's valid transitions
    reward: str = "clip"
    reward_scale: float = 1.0

    def __post_init__(self) -> None:
        check_settings(
            self, gamma=FRACTION, lam=FRACTION, value_cost=NOT_NEGATIVE, reward_scale=ABOVE_ZERO, reward=REWARDS
        )

    def transitions(self, out: Batch, batch: Batch) -> returns.Transitions:
        """Transitions [T, B] with squashed rewards, after a check that all rows used are one [T+1, B] shape."""
        steps = returns.transitions(batch, self.gamma)
        rows = {f"out {k}": out[k] for k in ("logp", "value", "entropy")}
        check_one_shape("[T+1, B] shape", rows | {f"batch {k}": batch[k] for k in ("logp", "value", "reward")})
        return steps._replace(reward=self.squashed(steps.reward, out))

    def squashed(self, reward: Tensor, out: Batch) -> Tensor:
        """Rewards of any shape as this loss learns from them."""
        scale: float | Tensor = self.reward_scale
        if self.reward == "scale":
            if "reward_scale" not in out:
                raise ValueError("reward='scale' needs a policy that says reward_scale: make it with returns=gamma")
            scale = scale * out["reward_scale"]
        return squash_rewards(reward, self.reward, scale)

    def total(
        self,
        terms: tuple[Tensor, Tensor, Tensor],
        over: MaskedMean,
        apart: Callable[[], Tensor],
        values: tuple[Tensor, Tensor],
        hyperparameters: Hyperparameters,
        more: Callable[[], dict[str, Tensor]] = dict,
        summed: bool = False,
    ) -> LossOutput:
        """The terms policy_loss, value_loss and entropy, means `over` transitions, added up; not means if `summed`. For
        metrics: apart gives log π − log μ; values: V, and its targets; more: others than COMMON.
        """
        policy_loss, value_loss, entropy = terms
        loss = policy_loss + self.value_cost * value_loss - hyperparameters.entropy_cost * entropy
        loss = loss * over.count if summed else loss

        def metrics() -> dict[str, Tensor]:
            value, target = values
            rest = (over.mean(value), explained_variance(target, value, over), 0.5 * over.mean(apart().square()))
            return dict(zip(COMMON, (loss, *terms, *rest), strict=True)) | more()

        return LossOutput(loss, LazyMetrics(metrics))


def rho_metrics(over: MaskedMean, log_rho: Tensor, bound: float | None = 1.0) -> dict[str, Tensor]:
    """Of ratios π/μ, and how many of them are beyond `bound`."""
    ratio = log_rho.exp()
    clipped = torch.zeros_like(ratio) if bound is None else (ratio > bound).to(ratio.dtype)
    return {"rho_mean": over.mean(ratio), "rho_clipped": over.mean(clipped)}


def check_one_shape(name: str, given: Mapping[str, Tensor]) -> None:
    """Raises ValueError, with all shapes, where they differ."""
    if len({x.shape for x in given.values()}) > 1:
        shapes = ", ".join(f"{k} {list(x.shape)}" for k, x in given.items())
        raise ValueError(f"all must be one {name}; got {shapes}")


class MaskedMean:
    """Means of [T, B] tensors over the valid entries, 0 if there are none. The rest is ignored, even NaN, also by
    gradients of what went through `only`.
    """

    def __init__(self, valid: Tensor) -> None:
        self.valid = valid
        self.count = valid.sum().clamp(min=1)

    def only(self, x: Tensor) -> Tensor:
        """x, and 0 where it is not valid."""
        return torch.where(self.valid, x, 0.0)

    def mean(self, x: Tensor) -> Tensor:
        return self.only(x).sum() / self.count

    def variance(self, x: Tensor) -> Tensor:
        return self.mean((x - self.mean(x)).square())


def at_least_float32(x: Tensor, like: Tensor) -> Tensor:
    """At least the precision of `like`: bf16 outputs are summed in fp32."""
    return x.to(torch.promote_types(x.dtype, like.dtype))


def normalize_advantages(advantage: Tensor, over: MaskedMean) -> Tensor:
    centred = advantage - over.mean(advantage)
    return centred / (over.variance(advantage).sqrt() + 1e-8)


def explained_variance(target: Tensor, value: Tensor, over: MaskedMean) -> Tensor:
    """1 − Var(target − value)/Var(target), 0 where the targets do not vary."""
    rest, spread = over.variance(target - value), over.variance(target)
    return torch.where(spread > 0, 1.0 - rest / spread, 0.0)


def check_settings(loss: object, **allowed: str | tuple[str, ...]) -> None:
    """Each by a bound of BOUNDS, or by its choices. Raises UserError."""
    for name, bound in allowed.items():
        value = getattr(loss, name)
        if isinstance(bound, tuple) and value not in bound:
            raise UserError(f"{name} is {value!r}; use one of {', '.join(bound)}")
        if isinstance(bound, str) and not BOUNDS[bound](value):
            raise UserError(f"{name} is {value}; it must be {bound}")

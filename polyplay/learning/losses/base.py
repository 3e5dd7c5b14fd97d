"""What every loss shares: its outputs, masked means, normalisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from polyplay.common.control import Hyperparameters
from polyplay.common.errors import UserError
from polyplay.common.tree import Batch
from polyplay.learning.losses import returns

REDUCTIONS = ("mean", "sum")

REWARDS = ("clip", "sign", "none", "scale")

COMMON = ("loss", "policy_loss", "value_loss", "entropy", "value_mean", "explained_variance", "approx_kl")


class LossOutput(NamedTuple):
    """A scalar to minimise, detached scalars to report, and, of what came from a replay, new priorities [B]."""

    loss: Tensor
    metrics: Mapping[str, Tensor]
    priority: Tensor | None = None


class LazyMetrics(Mapping[str, Tensor]):
    """Metrics that are computed when they are first looked at: a learner of few rows looks at few updates' only."""

    def __init__(self, make: Callable[[], dict[str, Tensor]]) -> None:
        self._make = make
        self._made: dict[str, Tensor] | None = None

    def _all(self) -> dict[str, Tensor]:
        if self._made is None:
            with torch.no_grad():
                self._made = {k: v.detach() for k, v in self._make().items()}
        return self._made

    def __getitem__(self, name: str) -> Tensor:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


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
        check_fraction(self, "gamma", "lam")
        check_not_negative(self, "value_cost")
        check_above_zero(self, "reward_scale")
        check_choice(self, reward=REWARDS)

    def transitions(self, out: Batch, batch: Batch) -> returns.Transitions:
        """Transitions [T, B] with squashed rewards, after a check that all rows used are one [T+1, B] shape."""
        steps = returns.transitions(batch, self.gamma)
        shapes = {f"out {k}": list(out[k].shape) for k in ("logp", "value", "entropy")}
        shapes |= {f"batch {k}": list(batch[k].shape) for k in ("logp", "value", "reward")}
        if any(s != shapes["batch reward"] for s in shapes.values()):
            raise ValueError(f"all must be one [T+1, B] shape; got {', '.join(f'{k} {s}' for k, s in shapes.items())}")
        scale: float | Tensor = self.reward_scale
        if self.reward == "scale":
            if "reward_scale" not in out:
                raise ValueError("reward='scale' needs a policy that says reward_scale: make it with returns=gamma")
            scale = scale * out["reward_scale"]
        return steps._replace(reward=squash_rewards(steps.reward, self.reward, scale))


def common_metrics(
    over: MaskedMean, terms: tuple[Tensor, ...], value: Tensor, target: Tensor, apart: Tensor
) -> dict[str, Tensor]:
    """What every loss reports (COMMON). terms: loss, policy_loss, value_loss, entropy; apart: log π − log μ."""
    rest = (over.mean(value), explained_variance(target, value, over), 0.5 * over.mean(apart.square()))
    return dict(zip(COMMON, (*terms, *rest), strict=True))


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


def check_fraction(loss: object, *names: str) -> None:
    for name in names:
        if not 0.0 <= getattr(loss, name) <= 1.0:
            raise UserError(f"{name} is {getattr(loss, name)}; it must be between 0 and 1")


def check_not_negative(loss: object, *names: str) -> None:
    for name in names:
        if not getattr(loss, name) >= 0.0:
            raise UserError(f"{name} is {getattr(loss, name)}; it must be 0 or more")


def check_above_zero(loss: object, *names: str) -> None:
    for name in names:
        if not getattr(loss, name) > 0.0:
            raise UserError(f"{name} is {getattr(loss, name)}; it must be above 0")


def check_choice(loss: object, **allowed: tuple[str, ...]) -> None:
    for name, choices in allowed.items():
        if getattr(loss, name) not in choices:
            raise UserError(f"{name} is {getattr(loss, name)!r}; use one of {', '.join(choices)}")

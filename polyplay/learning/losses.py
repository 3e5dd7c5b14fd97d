"""Losses of policy-gradient systems, and the targets that they use.

The module holds the losses of A2C, IMPALA, PPO, APPO and AlphaGo Zero. The targets are n-step returns, generalized
advantages (GAE) and V-trace. A lane is one copy of the environment; a row is the data of one step of every lane.
Functions that compute targets are pure, and give no gradient.

By convention, a batch holds rows 0..T, each [B]. Row t holds the observation and the action of time t. The transition t
→ t+1 is *valid* unless row t+1 is the first row of an episode, or the first row after a lane restarted. If the
transition is not valid, the target at t is V(obs_t) and the advantage is 0. The target at t-1 then bootstraps from
V(obs_t). A truncated episode therefore bootstraps from its last observation, and no target contains data of the next
episode. If a discount is 0, the value of the next row is not used, even if it is NaN.

Every recursion is x_t = base_t + trace_t·x_{t+1}, computed backwards from t = T-1. Results have the dtype of the
inputs. Values are in the unit of the batch's rewards. Time is counted in agent steps.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cache, cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from polyplay.core import tree
from polyplay.core.compiled import compiled, fused_multiply_add
from polyplay.core.errors import Fraction, NonNegative, Positive, UserError
from polyplay.core.numbers import ValueUnits, uniform
from polyplay.core.tree import Batch
from polyplay.nets.layers import tracing
from polyplay.nets.policy import Policy

if TYPE_CHECKING:
    from polyplay.games.boards import Game


class Transitions(NamedTuple):
    """Rewards, discounts and validity of a rollout's transitions t → t+1, each [T, B]. Losses ignore the reward and the
    discount of a transition that is not valid.
    """

    reward: Tensor  # r_{t+1}, float
    discount: Tensor  # d_t = γ·(1 − terminated_{t+1}), float
    valid: Tensor  # ~first_{t+1}, bool


Advantages = tuple[Tensor, Tensor]  # [T, B] each: the weight of ∇log π(a_t), and the target of V_t


def transitions(batch: Batch, gamma: float) -> Transitions:
    """Return the transitions between consecutive rows of a batch.

    `batch`: tensors "reward" (float), "terminated" and "first" (bool), each [T+1, B] with T ≥ 1.
    `gamma`: discount per agent step.

    Raises ValueError if shapes differ, the batch has fewer than two rows, or "terminated" or "first" is not bool.
    """
    reward, terminated, first = batch["reward"], batch["terminated"], batch["first"]
    fit = reward.ndim == 2 and len(reward) >= 2 and reward.shape == terminated.shape == first.shape
    names = "reward, terminated and first must be one [T+1, B] shape with T >= 1"
    check_shapes(fit, names, reward, terminated, first)
    if not terminated.dtype == first.dtype == torch.bool:
        raise ValueError(f"terminated and first must be bool; got {terminated.dtype}, {first.dtype}")
    return Transitions(reward[1:], (~terminated[1:]).to(reward.dtype) * gamma, ~first[1:])


@torch.no_grad()
def n_step(steps: Transitions, value: Tensor, n: int | None = None) -> Tensor:
    """Return n-step returns [T, B], computed from the values `value` [T+1, B] of all rows.

    G_t = r_{t+1} + d_t·G_{t+1} if valid_t else V_t, G_T = V_T. A return sums at most n rewards before it bootstraps
    from V. If n is None, it sums all rewards up to the end of the rollout (Mnih et al. 2016, algorithm S3). Raises
    ValueError for shapes that do not fit.
    """
    reward, discount, valid = steps
    fit = reward.ndim == 2 and value.shape == (len(reward) + 1, *reward.shape[1:])
    check_shapes(fit, "reward must be [T, B] and value [T+1, B]", reward, value)
    if n is None:
        # whether a transition bootstraps from a row's V; V of padding rows may be NaN
        used = torch.cat([torch.zeros_like(valid[:1]), valid & (discount != 0)])
        ahead = torch.where(used, value, 0.0)
        result = _scan(torch.where(valid, reward, ahead[:-1]), torch.where(valid, discount, 0.0), ahead[-1])
        return torch.where(valid, result, value[:-1])
    result = value
    for _ in range(min(n, len(reward))):
        behind = torch.where(discount == 0, 0.0, discount * result[1:])  # even where `result` is NaN
        ahead = torch.where(valid, reward + behind, value[:-1])
        result = torch.cat([ahead, value[-1:].to(ahead.dtype)])
    return result[:-1]


@torch.no_grad()
def gae(steps: Transitions, value: Tensor, lam: float) -> Advantages:
    """Return generalized advantages and λ-returns, each [T, B], computed from the values `value` [T+1, B] of all rows.

    δ_t = r_{t+1} + d_t·V_{t+1} − V_t;  A_t = δ_t + d_t·λ·A_{t+1}, A_T = 0;  target = A + V
    (Schulman et al. 2016, eq. 16). With λ = 1, the target equals `n_step` with n=None. With λ = 0, it equals `n_step`
    with n=1. Raises ValueError for shapes that do not fit.
    """
    delta = torch.where(steps.valid, _errors(steps, value, value[1:]), 0.0)
    advantage = _scan(delta, torch.where(steps.valid, steps.discount * lam, 0.0), torch.zeros_like(delta[0]))
    return advantage, advantage + value[:-1]


@torch.no_grad()
def vtrace(
    steps: Transitions,
    value: Tensor,
    log_rho: Tensor,
    rho: float = 1.0,
    c: float = 1.0,
    rho_pg: float = 1.0,
    lam: float = 1.0,
) -> Advantages:
    """Return policy advantages and V-trace targets v, each [T, B] (Espeholt et al. 2018, eq. 1 and §4.2).

    δ_t = min(ρ̄, ρ_t)·(r_{t+1} + d_t·V_{t+1} − V_t);  c_t = λ·min(c̄, ρ_t)
    v_t = V_t + δ_t + d_t·c_t·(v_{t+1} − V_{t+1}), v_T = V_T
    advantage_t = min(ρ̄_pg, ρ_t)·(r_{t+1} + d_t·v_{t+1} − V_t)

    `value`: V of all rows, [T+1, B], under the learner's current weights.
    `log_rho`: log ρ_t = log π(a_t) − log μ(a_t), [T, B], where π is the current policy and μ the policy that acted.
    `rho`, `c`, `rho_pg`: the bounds ρ̄, c̄ and ρ̄_pg. An infinite bound does not clip.

    If π = μ, λ = 1 and the bounds are at least 1, v is the n-step return. Raises ValueError for shapes that do not fit.
    """
    errors, shape, valid = _errors(steps, value, value[1:]), steps.reward.shape, steps.valid
    check_shapes(log_rho.shape == shape, f"log_rho must be [T, B] = {list(shape)}", log_rho)
    ratio = log_rho.exp()
    delta, trace = ratio.clamp(max=rho) * errors, ratio.clamp(max=c) * (steps.discount * lam)
    delta, trace = torch.where(valid, delta, 0.0), torch.where(valid, trace, 0.0)
    target = value[:-1] + _scan(delta, trace, torch.zeros_like(delta[0]))
    ahead = torch.cat([target[1:], value[-1:].to(target.dtype)])
    advantage = ratio.clamp(max=rho_pg) * _errors(steps, value, ahead)
    return torch.where(valid, advantage, 0.0), target


def _scan(base: Tensor, trace: Tensor, last: Tensor) -> Tensor:
    """Return x_t = base_t + trace_t·x_{t+1} with x_T = `last`, as [T, B]. The inputs are [T, B], [T, B], [B]."""
    if base.device.type != "cpu" or tracing():
        return _scan_by_torch(base, trace, last)
    result = torch.empty_like(base, memory_format=torch.contiguous_format)
    # rounds exactly as `_scan_by_torch`
    _scan_loop(*(x.to(base.dtype).contiguous().numpy() for x in (base, trace, last)), result.numpy())
    return result


def _scan_by_torch(base: Tensor, trace: Tensor, last: Tensor) -> Tensor:
    result = torch.empty_like(base)
    x = last.detach()
    for row, b, w in zip(*(reversed(a.detach().unbind()) for a in (result, base, trace)), strict=True):
        x = torch.addcmul(b, w, x, out=row)
    return result


@compiled
def _scan_loop(base: np.ndarray, trace: np.ndarray, last: np.ndarray, out: np.ndarray) -> None:
    x = last
    for t in range(len(base) - 1, -1, -1):
        for b in range(len(last)):
            out[t, b] = fused_multiply_add(trace[t, b], x[b], base[t, b])
        x = out[t]


def _errors(steps: Transitions, value: Tensor, ahead: Tensor) -> Tensor:
    """Return r_{t+1} + d_t·ahead_t − V_t [T, B], for `ahead` [T, B] and V = `value` [T+1, B]. `ahead` may be NaN where
    d_t = 0. Raises ValueError for shapes that do not fit.
    """
    reward, discount, valid = steps
    fit = reward.shape == discount.shape == valid.shape and value.shape == (len(reward) + 1, *reward.shape[1:])
    names = "reward, discount and valid must be [T, B] and value [T+1, B]"
    check_shapes(fit and reward.ndim == 2, names, reward, discount, valid, value)
    return reward + torch.where(discount == 0, 0.0, discount * ahead) - value[:-1]


def check_shapes(fit: bool, wanted: str, *given: Tensor | None, **named: Tensor) -> None:
    """Raise a ValueError that lists the shapes of the given tensors, unless `fit` is true."""
    if not fit:
        shapes = ["None" if x is None else str(list(x.shape)) for x in given]
        shapes += [f"{name} {list(x.shape)}" for name, x in named.items()]
        raise ValueError(f"{wanted}; got {', '.join(shapes)}")


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Return the mean of x over its valid entries, or 0 if no entry is valid. Invalid entries may be NaN."""
    return torch.where(valid, x, 0.0).sum() / valid.sum().clamp(min=1)


# Parts common to all losses.


COMMON = ("loss", "policy_loss", "value_loss", "entropy", "value_mean", "explained_variance", "approx_kl")


Key = tuple[int, int, int]  # key of random numbers: the run's seed, the learner's index, the update's number
Hyper = Mapping[str, Any]  # hyperparameters by name: numbers, or tensors []
Measure = Callable[[], Iterable[tuple[str, Tensor]]]  # returns pairs (name, metric)


@torch.no_grad()
def _measured(measure: Measure) -> dict[str, Tensor]:
    return {name: x.detach() for name, x in measure()}


class LazyMetrics(Mapping[str, Tensor]):
    """Metrics of a loss (detached scalars) by name. They are computed when one of them is first read, because most
    updates report no metrics.
    """

    def __init__(self, measure: Measure):
        self.measure = measure

    @cached_property
    def found(self) -> dict[str, Tensor]:
        return _measured(self.measure)

    def __getitem__(self, name: str) -> Tensor:
        return self.found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)


def metrics_of(measure: Measure) -> Mapping[str, Tensor]:
    """Return the metrics that `measure` computes, when one is first read, or at once in a traced graph."""
    return _measured(measure) if tracing() else LazyMetrics(measure)


class LossOutput(NamedTuple):
    """Result of a loss function, with scalar tensors or Python numbers.

    `loss`: scalar to minimize.
    `metrics`: detached scalars to report, by name.
    `priority`: new priorities [B] of the items sampled from a replay buffer.
    `targets`: value targets [T, B]. Needed if the network uses them to normalize its values, as PopArt does.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]
    priority: Tensor | None = None
    targets: Tensor | None = None


@cache
def _kinds(settings: Any) -> dict[str, Any]:
    return get_type_hints(settings, include_extras=True)


class Loss:
    """Loss function: runs the networks on a batch, and computes the scalar that the learner minimizes.

    To write a loss, inherit this class, set `metrics` and define `__call__`. Make the class a frozen dataclass, because
    losses are pickled. The constructor checks fields annotated with a Literal or a type of core.errors.
    """

    metrics: tuple[str, ...] = ("loss",)  # names of the reported scalars; every result has all of them
    terms: Mapping[str, float] = MappingProxyType({})  # costs (weights) of added loss terms, by name
    reward: str = "none"  # transformation of rewards: limited to ±1 ("clip"), only their sign ("sign"), …
    reward_scale: float = 1.0  # factor of rewards
    rescale: float = 0.0  # ε of the value rescaling h, or 0 for no rescaling
    reduction: str = "mean"  # reduction over the batch: "mean", or "sum", whose gradient grows with the batch
    whole: bool = True  # in several passes over a rollout, minibatches have whole lanes with all rows
    divisible: bool = False  # the losses of a batch's parts add up to the loss of the whole batch; see `ahead`
    anneals: bool = False  # whether it uses the hyperparameter `remaining`, the fraction of the run that is left
    recalls: bool = False  # unrolls only rows 0..T−1, so that activations from acting can be reused

    def __call__(self, policy: Any, target: Any, batch: Batch, state: Batch, hyper: Hyper) -> LossOutput:
        """Return the loss of a batch under the current weights.

        `policy`: the Policy that learns.
        `target`: the target network, or None.
        `batch`: tensors of a rollout, [T+1, B, …], or of a sample from a replay buffer.
        `state`: recurrent state [B, …] before row 0.
        `hyper`: hyperparameters by name.

        The loss must be deterministic.
        """
        raise NotImplementedError

    @property
    def title(self) -> str:
        """Name of this loss in the diagram of the system."""
        return type(self).__name__

    @property
    def units(self) -> ValueUnits:
        """Units of the values that the network learns."""
        return ValueUnits(1.0 if self.reward == "sign" else self.reward_scale, self.rescale)

    def prepare(self, rows: Batch, scale: float | Tensor = 1.0) -> Batch:
        """Return tensors for all passes over a rollout, at least "valid" [T, B]. `scale`: policy's reward scale."""
        return {"valid": ~rows["first"][1:]}

    def noise(self, policy: Any, batch: Batch, key: Key) -> Batch:
        """Return arrays of random numbers, drawn from the seed `key`. The learner adds them to the batch by name. If
        the loss is divisible, arrays are [B, …] and are split along with the batch, except an array named "key".
        """
        return {}

    def ahead(self, target: Any, batch: Batch) -> Batch:
        """Return outputs of the target network, computed before `__call__`, to be added to the batch."""
        return {}

    def __post_init__(self) -> None:
        """Check the values of the dataclass's fields. Raises UserError if a value is not allowed."""
        own: Any = type(self)
        try:
            kinds = _kinds(own)
        except NameError:  # a type imported only for type checkers
            return
        for name, value in vars(self).items():
            kind = kinds[name]
            choices = get_args(kind) if get_origin(kind) is Literal else get_args(kind)[1:]
            if get_origin(kind) is Literal and value not in choices:
                raise UserError(f"{name}: {value!r} given, allowed: {', '.join(choices)}")
            if get_origin(kind) is Annotated and value not in choices[0]:
                raise UserError(f"{name}: {value} given, allowed: a number {choices[0]}")


def check_loss(loss: Loss) -> None:
    """Raise UserError unless `loss` is a Loss, `__call__` takes five arguments, and `metrics` is a tuple of names."""
    where = f"LearnerSpec.loss: class {type(loss).__name__}"
    if not isinstance(loss, Loss):
        raise UserError(f"{where}: it must inherit polyplay.learning.Loss")
    if type(loss).__call__ is Loss.__call__:
        raise UserError(f"{where} lacks __call__(policy, target, batch, state, hyper) -> LossOutput")
    try:
        inspect.signature(loss.__call__).bind(*"ptbsh")
    except TypeError as e:
        taken = "it must be __call__(policy, target, batch, state, hyper) -> LossOutput"
        raise UserError(f"{where}: __call__ does not take what it is given, {e}; {taken}") from None
    if not isinstance(loss.metrics, tuple) or not all(isinstance(name, str) for name in loss.metrics):
        raise UserError(f"{where}: metrics is {loss.metrics!r}; it must be a tuple of names, such as ('loss',)")


def check_output(loss: Loss, scored: LossOutput) -> None:
    """Raise UserError unless a loss returned a LossOutput with a scalar loss and all metrics that it names."""
    where = f"LearnerSpec.loss: class {type(loss).__name__}: __call__ gave"
    if not isinstance(scored, LossOutput):
        raise UserError(f"{where} {type(scored).__name__}, it must give LossOutput(loss, metrics, priority)")
    if not isinstance(scored.metrics, Mapping):
        raise UserError(f"{where} metrics of class {type(scored.metrics).__name__}, it must be a dict of tensors []")
    x = scored.loss
    if not isinstance(x, Tensor) or x.ndim or not x.requires_grad:
        given = f"{type(x).__name__} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise UserError(f"{where} a loss {given}, it must be a tensor [] with a gradient")
    if wrong := [k for k in loss.metrics if not isinstance(scored.metrics.get(k), Tensor) or scored.metrics[k].ndim]:
        raise UserError(f"{where} no tensor [] as metric {wrong[0]!r}, which `metrics` names")


def importance_weight(batch: Batch, like: Tensor) -> Tensor:
    """Return the importance weights of a batch, or ones if the batch has no weights."""
    return batch["weight"].to(like.dtype) if "weight" in batch else torch.ones_like(like)


Reduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class ActorCriticLoss(Loss, ABC):
    """Base class of actor-critic losses, with the settings and terms that these losses share."""

    gamma: Fraction = 0.99
    lam: Fraction = 1.0
    _: KW_ONLY
    value_cost: NonNegative = 0.5
    normalize_advantage: bool = False  # (A − mean)/(std + 1e-8) over the batch's valid transitions
    value_half: bool = False  # ½(R − V)² instead of (R − V)²
    value_clip: bool = False  # in several passes, clip changes of V to ± the clip range, as baselines' ppo2
    reduction: Reduction = "mean"
    reward: Literal["clip", "sign", "none", "scale"] = "clip"
    reward_scale: Positive = 1.0

    def __call__(self, policy: Any, target: Any, batch: Batch, state: Batch, hyper: Hyper) -> LossOutput:
        rows = tree.at(batch, slice(-1)) if self.recalls else batch
        return observed(policy, self.score(policy.unroll(rows, state), batch, hyper), batch)

    @abstractmethod
    def score(self, out: Batch, batch: Batch, hyper: Hyper) -> LossOutput:
        """Return the loss of a network's outputs `out` (at least logp, value and entropy) for rows [T+1, B]."""

    def transitions(self, batch: Batch, out: Batch) -> Transitions:
        """Return the transitions [T, B] of the batch. Raises ValueError if the shapes of `batch` and `out` do not fit.

        Rewards are multiplied by `reward_scale`. Then `reward` applies: "clip" limits them to [−1, 1], "sign" keeps
        their sign, and "scale" multiplies them by the policy's output "reward_scale" and limits them to [−10, 10].
        """
        steps, rows = transitions(batch, self.gamma), {k: batch[k] for k in ("logp", "value", "reward") if k in batch}
        heads = {k: out[k] for k in ("logp", "value", "entropy") if k in out}
        length, lanes = batch["reward"].shape
        fit = all(x.shape == (length, lanes) for x in rows.values())
        fit = fit and all(x.shape == (length - self.recalls, lanes) for x in heads.values())
        named = {f"out {k}": x for k, x in heads.items()} | {f"batch {k}": x for k, x in rows.items()}
        check_shapes(fit, "all must be one [T+1, B] shape", **named)
        if self.reward == "scale":
            if "reward_scale" not in out:
                raise ValueError("reward='scale' needs a policy with reward_scale: make it with returns=gamma")
            return steps._replace(reward=(steps.reward * (self.reward_scale * out["reward_scale"])).clamp(-10.0, 10.0))
        reward = steps.reward * self.reward_scale
        if self.reward != "none":
            reward = reward.sign() if self.reward == "sign" else reward.clamp(-1.0, 1.0)
        return steps._replace(reward=reward)

    def sum_terms(
        self,
        out: Batch,
        acted: Batch,
        valid: Tensor,
        made: Advantages,
        entropy_cost: Any,
        reach: Any = None,
        log_rho: Tensor | None = None,
        bound: float = 1.0,
    ) -> LossOutput:
        """Return the loss as the weighted sum of policy_loss, value_loss and entropy over valid transitions [T, B].

        `out`: the network's current outputs, [T, B] or [T+1, B]. Advantages and value errors are divided by the output
            "value_scale", if the network has it (Hessel et al. 2019, equation 6).
        `acted`: the outputs stored while acting, [T, B] or [T+1, B].
        `made`: advantages and targets, without gradient.
        `reach`: range of PPO's clipping of π/μ to 1 ± reach, or None for the plain policy gradient.
        `log_rho`: log(π/μ). If given, the metrics include the mean of π/μ, and the fraction of ratios above `bound`.
        """
        count, zero = valid.sum().clamp(min=1), torch.zeros_like(made[1])
        costs = isinstance(entropy_cost, Tensor) or entropy_cost != 0  # whether the entropy needs a gradient
        entropy = out["entropy"] if costs else out["entropy"].detach()
        heads = _rows(torch.stack((out["logp"], out["value"], entropy)), len(valid))
        # 0 where not valid, in at least the targets' precision: outputs in bfloat16 are summed in float32
        logp, value, entropy = torch.where(valid, heads, zero).unbind()
        advantage, target, acted_logp = (torch.where(valid, x, zero) for x in (*made, _rows(acted["logp"], len(valid))))
        unit = torch.where(valid, _rows(out["value_scale"], len(valid)), 1.0) if "value_scale" in out else None
        advantage = advantage if unit is None else advantage / unit
        if self.normalize_advantage:
            centered = torch.where(valid, advantage - advantage.sum() / count, zero)
            advantage = centered / ((centered.square().sum() / count).sqrt() + 1e-8)
        error = target - value if unit is None else (target - value) / unit
        descent, squared = -advantage, error.square()
        if reach is None:
            surrogate = descent * logp
        else:
            ratio = (logp - acted_logp).exp()
            surrogate = torch.maximum(descent * ratio, descent * ratio.clamp(1.0 - reach, 1.0 + reach))
        if self.value_clip and reach is not None:
            before = torch.where(valid, _rows(acted["value"], len(valid)), zero)
            moved = (value - before) if unit is None else (value - before) / unit
            moved = moved.clamp(-reach, reach) if unit is None else moved.clamp(-reach, reach) * unit
            error = target - (before + moved)
            squared = torch.maximum(squared, (error if unit is None else error / unit).square())
        means = torch.stack((surrogate, squared, entropy)).sum((1, 2)) / count
        (policy_loss, value_loss, spread), half = means.unbind(), 0.5 if self.value_half else 1.0
        loss = policy_loss + self.value_cost * half * value_loss
        loss = loss - entropy_cost * spread if costs else loss
        loss = loss * count if self.reduction == "sum" else loss

        def measure() -> Iterator[tuple[str, Tensor]]:
            yield from zip(COMMON, (loss, policy_loss, value_loss * half, spread, value.sum() / count), strict=False)
            both = torch.stack((target, target - value))
            centered = both - both.sum((1, 2), keepdim=True) / count
            known, rest = torch.where(valid, centered.square(), 0.0).sum((1, 2)).unbind()
            yield "explained_variance", torch.where(known > 0, 1.0 - rest / known, 0.0)  # 0 if the targets do not vary
            yield "approx_kl", 0.5 * ((logp - acted_logp).square().sum() / count)
            if reach is not None:
                yield "clip_fraction", ((ratio - 1.0).abs() > reach).to(ratio.dtype).sum() / count
                yield "clip_range", torch.zeros_like(loss) + reach
            if log_rho is not None:
                rho = log_rho.exp()
                yield "rho_mean", masked_mean(rho, valid)
                yield "rho_clipped", masked_mean((rho > bound).to(rho.dtype), valid)

        return LossOutput(loss, metrics_of(measure), targets=None if unit is None else made[1])


def observed(policy: Any, scored: LossOutput, batch: Batch) -> LossOutput:
    """If the loss has targets, update the policy's statistics of values with them. Return the loss."""
    if scored.targets is not None:
        policy.observe_targets(scored.targets, batch)
    return scored


def _rows(x: Tensor, n: int) -> Tensor:
    """Return the first `n` rows of `x` [..., rows, B]."""
    return x if x.shape[-2] == n else x[..., :n, :]  # a slice that changes nothing would only cost time


# Losses of the policy-gradient systems: frozen dataclasses, whose `score` takes
#
# out    policy.unroll(batch, state): "logp", "value", "entropy", each [T+1, B]
# batch  rows 0..T as tensors [T+1, B]: reward (raw), terminated, first, and logp and value as stored while acting
# hyper  entropy_cost, and `remaining` for PPO with anneal_clip
#
# All terms are over valid transitions only (see above): "mean" divides by their number (at least 1), "sum" does not, so
# the gradient grows with the rows of a batch. Targets and advantages are constants. Metrics are detached scalars:
# `loss` is the minimized scalar; every other metric is a mean over valid transitions, before multiplication by a cost,
# with both reductions.


@dataclass(frozen=True)
class A2C(ActorCriticLoss):
    """Advantage actor-critic: −A·log π(a) − entropy_cost·H + value_cost·(R − V)².

    Advantages A and targets R = A + V are computed from the values stored while acting, by GAE with `lam`. With λ = 1,
    R is the n-step return. With baseline="present" the advantage is R − V, where V is computed by the current weights,
    without gradient.

    Defaults are those of OpenAI baselines' a2c (mean, no extra ½). For A3C (Mnih et al. 2016), set reduction="sum"; its
    reproduction, muupan/async-rl, uses value_cost=0.25. For GA3C (Babaeizadeh et al. 2017; NVlabs/GA3C), set
    reduction="sum", value_half=True, value_cost=1, baseline="present". Raises ValueError for shapes that do not fit.
    """

    _: KW_ONLY
    baseline: Literal["acted", "present"] = "acted"  # weights that compute V in the advantage R − V
    values: Literal["acted", "unrolled"] = "acted"  # V in targets; unrolled: of this pass, if the same weights acted
    recalls: bool = False  # do not unroll row T: only its V is needed, and acting computed that

    metrics = COMMON

    def score(self, out: Batch, batch: Batch, hyper: Hyper) -> LossOutput:
        steps, value = self.transitions(batch, out), batch["value"]
        if self.values == "unrolled":
            value = torch.cat([out["value"].detach(), value[len(out["value"]) :]])
        advantage, target = gae(steps, value, self.lam)
        if self.baseline == "present":
            advantage = target - out["value"][: len(target)].detach()
        return self.sum_terms(out, batch, steps.valid, (advantage, target), hyper["entropy_cost"])


@dataclass(frozen=True)
class VTrace(ActorCriticLoss):
    """Loss of IMPALA (Espeholt et al. 2018, §4.2): −A·log π(a) − entropy_cost·H + value_cost·½(v − V)².

    V-trace computes v and A from the learner's values and the ratios π/μ. The policy that acted, μ, stored log μ(a).
    The bound `rho` must be at least `c`. Defaults are those of deepmind/scalable_agent, which sums over time and batch.
    Raises ValueError for shapes that do not fit.
    """

    rho: float = 1.0
    c: float = 1.0
    rho_pg: float = 1.0
    _: KW_ONLY
    reduction: Reduction = "sum"
    value_half: bool = True

    metrics = (*COMMON, "rho_mean", "rho_clipped")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0.0 < self.c <= self.rho and self.rho_pg > 0.0):
            given = f"rho {self.rho}, c {self.c}, rho_pg {self.rho_pg}"
            raise UserError(f"{given} given, allowed: numbers above 0, c no more than rho")

    def score(self, out: Batch, batch: Batch, hyper: Hyper) -> LossOutput:
        steps = self.transitions(batch, out)
        log_rho = out["logp"][:-1].detach() - batch["logp"][:-1]
        made = vtrace(steps, out["value"].detach(), log_rho, self.rho, self.c, self.rho_pg, self.lam)
        cost = hyper["entropy_cost"]
        return self.sum_terms(out, batch, steps.valid, made, cost, log_rho=log_rho, bound=self.rho)


@dataclass(frozen=True)
class PPO(ActorCriticLoss):
    """Loss of PPO: max(−A·r, −A·clip(r, 1−ε, 1+ε)) − entropy_cost·H + value_cost·(R − V)², with r = π(a)/μ(a).

    The log-probabilities of μ and the values V_μ were stored while acting. Before the first pass, `prepare` computes A
    by GAE with `lam`, and R = A + V_μ. Raises ValueError for shapes that do not fit.

    `clip_range`: ε. If `anneal_clip` is True, ε falls linearly to 0 over the run.
    `value_clip`: use max((R − V)², (R − V_μ − clip(V − V_μ, −ε, ε))²) instead of (R − V)², as in baselines' ppo2.
    `normalize_advantage`: normalize advantages over each minibatch.
    """

    lam: Fraction = 0.95
    clip_range: Positive = 0.1
    anneal_clip: bool = True
    _: KW_ONLY
    value_cost: NonNegative = 1.0
    whole = False

    metrics = (*COMMON, "clip_fraction", "clip_range")

    @property
    def anneals(self) -> bool:  # type: ignore[override]
        return self.anneal_clip

    def prepare(self, rows: Batch, scale: float | Tensor = 1.0) -> Batch:
        """Return "advantage", "target" and "valid" of a rollout, each [T, B]. `scale`: policy's reward scale."""
        steps = self.transitions(rows, {"reward_scale": scale})
        advantage, target = gae(steps, rows["value"], self.lam)
        return {"advantage": advantage, "target": target, "valid": steps.valid}

    def score(self, out: Batch, batch: Batch, hyper: Hyper) -> LossOutput:
        """Return the loss of the outputs `out`. The batch holds the results of `prepare`, and the stored "logp" and
        "value".
        """
        rows = {k: batch[k] for k in ("advantage", "target", "valid", "logp", "value")}
        rows |= {f"out {k}": out[k] for k in ("logp", "value")}
        check_shapes(len({x.shape for x in rows.values()}) == 1, "all must be one shape", **rows)
        reach = self.clip_range * (hyper["remaining"] if self.anneal_clip else 1.0)
        made = batch["advantage"], batch["target"]
        scored = self.sum_terms(out, batch, batch["valid"], made, hyper["entropy_cost"], reach)
        return scored._replace(targets=None)  # statistics are updated once per rollout, before the passes


@dataclass(frozen=True)
class APPO(ActorCriticLoss):
    """Loss of APPO: PPO's clipped loss with V-trace targets, for rollouts from older weights (Petrenko et al. 2020).
    Minibatches hold whole trajectories.

    V-trace computes the targets v_t from the current V and the ratios π/μ, with ρ̄ = c̄ = 1 and λ = `lam`. The
    advantage A_t = r_{t+1} + d_t·v_{t+1} − V_t has no factor ρ, because the ratio in the clipped loss already corrects
    for older weights. Sample Factory also multiplies the advantage by ρ, and has no λ. If π = μ and λ = 1, APPO's
    advantages and targets are PPO's. Raises UserError for settings out of range, ValueError for shapes that do not fit.
    """

    lam: Fraction = 0.95
    clip_range: Positive = 0.1
    _: KW_ONLY
    normalize_advantage: bool = True
    metrics = (*PPO.metrics, "rho_mean", "rho_clipped")

    def score(self, out: Batch, batch: Batch, hyper: Hyper) -> LossOutput:
        """Return the loss of the outputs `out` for the rows of `batch`, each [T+1, B]."""
        steps, value = self.transitions(batch, out), out["value"].detach()
        log_rho = out["logp"][:-1].detach() - batch["logp"][:-1]
        _, target = vtrace(steps, value, log_rho, lam=self.lam)
        ahead = torch.cat([target[1:], value[-1:].to(target.dtype)])
        made = steps.reward + steps.discount * ahead - value[:-1], target
        return self.sum_terms(out, batch, steps.valid, made, hyper["entropy_cost"], self.clip_range, log_rho)


@dataclass(frozen=True)
class AlphaZeroLoss(Loss):
    """Loss of AlphaGo Zero: (z − v)² − Σ_a π(a) log p(a), averaged over a batch of positions (Silver et al. 2017, eq.
    1). Here p is the softmax of the logits of legal moves. The paper's term c‖θ‖² equals a weight decay of 2c.

    If `turned` is True, each position is transformed by a random symmetry of the board, which depends only on `seed`,
    the number of the update, and the position's index in the batch.

    The metric value_mse is (z − v)²/4, which is at most 1, as in the paper's figure 3. The metric policy_kl is Σ π
    log(π/p). Raises ValueError for shapes that do not fit.
    """

    board: Game
    seed: int = 0
    turned: bool = True

    metrics = (
        *("loss", "policy_loss", "value_loss", "value_mse", "policy_kl", "target_entropy"),
        *("value_mean", "value_accuracy", "weight_mean"),
    )

    def __call__(self, policy: Policy, target: None, batch: Batch, state: Batch, hyper: Hyper) -> LossOutput:
        """Return the loss of a batch sampled from a replay buffer.

        "mask" [2, B, A]: legal moves of the position (row 0) and of the next position.
        "visits" [B, A]: the search's distribution π over legal moves.
        "return" [B]: z, the game's outcome for the player to move, from −1 to 1.
        """
        planes = unpacked(batch["obs"][0], self.board.planes) if self.board.binary else batch["obs"][0]
        cells = batch["cells"][:, None].expand(-1, planes.shape[1], -1)
        out = policy.unroll({"obs": planes.flatten(2).gather(2, cells).view_as(planes)[None]}, {})
        return self.score(out["logits"][0].gather(1, batch["actions"]), out["value"][0], batch)

    def noise(self, policy: Policy, batch: Batch, key: Key) -> Batch:
        """Draw a random symmetry of the board for each of n positions. Return two permutations for each: "cells" [n,
        cells] permutes the position's cells, and "actions" [n, A] permutes the network's logits back.
        """
        n, images = len(batch["action"]), self.board.symmetries
        u = uniform(self.seed, np.arange(n), np.array([key[2]]), 1)[:, 0]
        chosen = (u * len(images) * self.turned).astype(np.int64)  # index 0 is the identity
        cells, actions = np.stack([np.argsort(c) for c, _ in images]), np.stack([a for _, a in images])
        return {"cells": cells[chosen], "actions": actions[chosen]}

    def score(self, logits: Tensor, value: Tensor, batch: Batch) -> LossOutput:
        """Return the loss of the network's logits [B, A], and of its values [B] for the player to move."""
        target, z, legal = batch["visits"], batch["return"], batch["mask"][0]
        fit, named = logits.shape == target.shape == legal.shape, {"logits": logits, "visits": target, "mask": legal}
        check_shapes(fit, "all must be one [B, A] shape", **named)
        check_shapes(value.shape == z.shape, "all must be one [B] shape", **{"value": value, "return": z})
        weight = importance_weight(batch, z)
        log_p = logits.masked_fill(~legal, -torch.inf).log_softmax(-1).masked_fill(~legal, 0.0)
        policy, error = -(target * log_p).sum(-1), (z - value).square()
        loss = (weight * (policy + error)).mean()

        def measure() -> Iterable[tuple[str, Tensor]]:
            entropy, won = -torch.xlogy(target, target).sum(-1).mean(), z != 0
            right = (value.sign() == z.sign()) & won
            accuracy = right.to(z.dtype).sum() / won.sum().clamp(min=1)
            means = policy.mean(), error.mean(), error.mean() / 4, policy.mean() - entropy, entropy
            return zip(self.metrics, (loss, *means, value.mean(), accuracy, weight.mean()), strict=True)

        return LossOutput(loss, metrics_of(measure))


def unpacked(bits: Tensor, planes: tuple[int, int, int]) -> Tensor:
    """Return float32 planes [B, C, H, W] from packed bits, uint8 [B, ceil(C·H·W / 8)] (np.packbits)."""
    shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=bits.device)
    single = bits[..., None].bitwise_right_shift(shifts).bitwise_and(1).flatten(1)
    return single[:, : math.prod(planes)].to(torch.float32).view(-1, *planes)

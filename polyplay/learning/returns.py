"""Targets from rows: n-step returns, GAE, V-trace. Pure, without gradient; inputs are never written to.

Row convention: a batch holds rows 0..T, each [B]; row t: what arrived at time t and what was chosen then.
The transition t → t+1 is *valid* unless row t+1 is the first of an episode (or of a restarted lane). Where it
is not valid the target is V_t and the advantage 0, so the recursion for t-1 sees V(obs_t): an episode cut by
truncation bootstraps from its real final observation with no special case; the next episode does not leak in. Where a
discount is 0 the value behind it is not used, even if it is NaN.

Every recursion is x_t = base_t + trace_t·x_{t+1}, run backwards from t = T-1. Results have the inputs' dtype.
Rewards and values share one unit (that of the reward given); time is counted in agent steps.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from polyplay.core.errors import Fraction, NonNegative, Positive, UserError
from polyplay.core.numbers import ValueUnits
from polyplay.core.tree import Batch


class Transitions(NamedTuple):
    """The steps t → t+1 for t < T, each [T, B]. Where `valid` is False the other two are not used."""

    reward: Tensor  # r_{t+1}, float
    discount: Tensor  # d_t = γ·(1 − terminated_{t+1}), float
    valid: Tensor  # ~first_{t+1}, bool


class Advantages(NamedTuple):
    """advantage [T, B]: weight of ∇log π(a_t); target [T, B]: what V_t should become."""

    advantage: Tensor
    target: Tensor


def transitions(batch: Batch, gamma: float) -> Transitions:
    """Steps of the rows batch["reward"] (float), ["terminated"], ["first"] (bool), each [T+1, B], T ≥ 1.

    `gamma` is the discount per agent step. Truncation needs no flag here: its row's V is the bootstrap.
    Raises ValueError for shapes that differ or are too short, and for flags that are not bool.
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
    """n-step returns [T, B] from `value` [T+1, B] (V of every row).

    G_t = r_{t+1} + d_t·G_{t+1} if valid_t else V_t, G_T = V_T. With `n`, at most n rewards and then V; None
    means as many as the rollout has (A3C's forward view: Mnih et al. 2016, algorithm S3).
    Raises ValueError for shapes that do not fit.
    """
    reward, discount, valid = steps
    fit = reward.ndim == 2 and value.shape == (len(reward) + 1, *reward.shape[1:])
    check_shapes(fit, "reward must be [T, B] and value [T+1, B]", reward, value)
    if n is None:
        # rows whose V is a bootstrap, if it is: padding may be NaN
        used = torch.cat([torch.zeros_like(valid[:1]), valid & (discount != 0)])
        ahead = torch.where(used, value, 0.0)
        result = _scan(torch.where(valid, reward, ahead[:-1]), torch.where(valid, discount, 0.0), ahead[-1])
        return torch.where(valid, result, value[:-1])
    result = value
    for _ in range(min(n, len(reward))):
        behind = torch.where(discount == 0, 0.0, discount * result[1:])  # even where it is NaN
        ahead = torch.where(valid, reward + behind, value[:-1])
        result = torch.cat([ahead, value[-1:].to(ahead.dtype)])
    return result[:-1]


@torch.no_grad()
def gae(steps: Transitions, value: Tensor, lam: float) -> Advantages:
    """Generalised advantages and λ-returns, each [T, B], from `value` [T+1, B].

    δ_t = r_{t+1} + d_t·V_{t+1} − V_t;  A_t = δ_t + d_t·λ·A_{t+1}, A_T = 0;  target = A + V
    (Schulman et al. 2016, eq. 16). λ = 1 gives the n-step return of the whole rollout, λ = 0 one step.
    Raises ValueError for shapes that do not fit.
    """
    delta = torch.where(steps.valid, _errors(steps, value, value[1:]), 0.0)
    advantage = _scan(delta, torch.where(steps.valid, steps.discount * lam, 0.0), torch.zeros_like(delta[0]))
    return Advantages(advantage, advantage + value[:-1])


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
    """V-trace targets v and policy advantages, each [T, B] (Espeholt et al. 2018, eq. 1 and §4.2).

    `value` [T+1, B] is V of the learner's weights; `log_rho` [T, B] = log π(a_t) − log μ(a_t) = log ρ_t.
    δ_t = min(ρ̄, ρ_t)·(r_{t+1} + d_t·V_{t+1} − V_t);  c_t = λ·min(c̄, ρ_t)
    v_t = V_t + δ_t + d_t·c_t·(v_{t+1} − V_{t+1}), v_T = V_T
    advantage_t = min(ρ̄_pg, ρ_t)·(r_{t+1} + d_t·v_{t+1} − V_t)
    An infinite bound does not clip. On-policy with λ = 1, v is the n-step return.
    Raises ValueError for shapes that do not fit.
    """
    errors, shape, valid = _errors(steps, value, value[1:]), steps.reward.shape, steps.valid
    check_shapes(log_rho.shape == shape, f"log_rho must be [T, B] = {list(shape)}", log_rho)
    ratio = log_rho.exp()
    delta, trace = ratio.clamp(max=rho) * errors, ratio.clamp(max=c) * (steps.discount * lam)
    delta, trace = torch.where(valid, delta, 0.0), torch.where(valid, trace, 0.0)
    target = value[:-1] + _scan(delta, trace, torch.zeros_like(delta[0]))
    ahead = torch.cat([target[1:], value[-1:].to(target.dtype)])
    advantage = ratio.clamp(max=rho_pg) * _errors(steps, value, ahead)
    return Advantages(torch.where(valid, advantage, 0.0), target)


def _scan(base: Tensor, trace: Tensor, last: Tensor) -> Tensor:
    """x_t = base_t + trace_t·x_{t+1} with x_T = `last`: [T, B], [T, B], [B] → [T, B]. One kernel per step."""
    result = torch.empty_like(base)
    x = last.detach()
    for row, b, w in zip(*(reversed(a.detach().unbind()) for a in (result, base, trace)), strict=True):
        x = torch.addcmul(b, w, x, out=row)
    return result


def _errors(steps: Transitions, value: Tensor, ahead: Tensor) -> Tensor:
    """r_{t+1} + d_t·ahead_t − V_t, each [T, B] and `value` [T+1, B]; behind a termination `ahead` is not used, whatever
    the network gives there, even NaN. Raises ValueError for shapes that do not fit.
    """
    reward, discount, valid = steps
    fit = reward.shape == discount.shape == valid.shape and value.shape == (len(reward) + 1, *reward.shape[1:])
    names = "reward, discount and valid must be [T, B] and value [T+1, B]"
    check_shapes(fit and reward.ndim == 2, names, reward, discount, valid, value)
    return reward + torch.where(discount == 0, 0.0, discount * ahead) - value[:-1]


def check_shapes(fit: bool, wanted: str, *given: Tensor | None) -> None:
    """Raises ValueError, with the shapes given, unless they `fit`."""
    if not fit:
        raise ValueError(f"{wanted}; got {', '.join('None' if x is None else str(list(x.shape)) for x in given)}")


def check_one_shape(name: str, given: Mapping[str, Tensor]) -> None:
    """Raises ValueError, with all shapes, where they differ."""
    if len({x.shape for x in given.values()}) > 1:
        raise ValueError(f"all must be one {name}; got {', '.join(f'{k} {list(x.shape)}' for k, x in given.items())}")


# What every loss shares: its outputs, masked means, normalisation.


COMMON = ("loss", "policy_loss", "value_loss", "entropy", "value_mean", "explained_variance", "approx_kl")


Key = tuple[int, int, int]  # of random numbers: the run's seed, the learner's index, the update
Hyper = Mapping[str, Any]  # hyperparameters by name: numbers, or tensors []


class LossOutput(NamedTuple):
    """A scalar to minimize, detached scalars to report, and, of a batch from a replay, new priorities [B]."""

    loss: Tensor
    metrics: Mapping[str, Tensor]
    priority: Tensor | None = None


@cache
def _kinds(settings: Any) -> dict[str, Any]:
    return get_type_hints(settings, include_extras=True)


class Loss:
    """Scores a batch: what a learner minimizes. It calls the networks itself.

    A loss of your own inherits this, names its `metrics` and defines `__call__`. It is pickled: make it a frozen
    dataclass. All else has defaults. A field whose type says what is allowed (core.errors, Literal) is checked.
    """

    metrics: tuple[str, ...] = ("loss",)  # names of the reported scalars, all of them in every result
    terms: Mapping[str, float] = MappingProxyType({})  # added terms, by name, and their costs
    reward: str = "none"  # what rewards become: limited to ±1 ("clip"), their sign, …
    reward_scale: float = 1.0  # multiplies rewards
    rescale: float = 0.0  # ε of the h that values are rescaled by; 0: they are not
    reduction: str = "mean"  # over the batch; "sum": the gradient grows with the batch
    whole: bool = True  # with several passes over a rollout, minibatches have whole lanes with all their rows
    divisible: bool = False  # the losses of parts of a batch of transitions add up to its own; see `ahead`
    anneals: bool = False  # takes the hyperparameter `remaining`, the part of the run to come
    recalls: bool = False  # unrolls the rows that were acted and no others, so activations of acting can serve

    def __call__(self, policy: Any, target: Any, batch: Batch, state: Batch, hyper: Hyper) -> LossOutput:
        """Score a batch by the present weights.

        policy: the Policy that learns; target: its target network, None without one. batch: tensors; of a rollout rows
        [T+1, B, …], of a replay what its `sample` gives. state: [B, …], before row 0. hyper: hyperparameters by name.
        Called again with equal tensors and weights it gives the same.
        """
        raise NotImplementedError

    @property
    def title(self) -> str:
        """Its name in the diagram."""
        return type(self).__name__

    @property
    def units(self) -> ValueUnits:
        """Units of the values that the network learns; a sign has no scale."""
        return ValueUnits(1.0 if self.reward == "sign" else self.reward_scale, self.rescale)

    def prepare(self, rows: Batch, scale: float | Tensor = 1.0) -> Batch:
        """Compute what several passes over a rollout [T+1, B] share: at least `valid` [T, B]. scale: of rewards."""
        return {"valid": ~rows["first"][1:]}

    def noise(self, policy: Any, batch: Batch, key: Key) -> Batch:
        """Draw the random numbers of one update by their key: arrays that the batch then has under these names. Of a
        divisible loss they are [B, …], or a `key`, which all parts get.
        """
        return {}

    def ahead(self, target: Any, batch: Batch) -> Batch:
        """Compute what needs the target network alone, without gradient. A batch that has these names already is
        scored with them.
        """
        return {}

    def __post_init__(self) -> None:
        """Check the fields of a dataclass. Raises UserError."""
        own: Any = type(self)
        try:
            kinds = _kinds(own)
        except NameError:  # a type that is known to type checkers alone
            return
        for name, value in vars(self).items():
            kind = kinds[name]
            choices = get_args(kind) if get_origin(kind) is Literal else get_args(kind)[1:]
            if get_origin(kind) is Literal and value not in choices:
                raise UserError(f"{name}: {value!r} given, allowed: {', '.join(choices)}")
            if get_origin(kind) is Annotated and value not in choices[0]:
                raise UserError(f"{name}: {value} given, allowed: a number {choices[0]}")


def check_loss(loss: Loss) -> None:
    """Raises UserError: it is no loss, or lacks a method or the names of its metrics."""
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
        raise UserError(f"{where}: metrics is {loss.metrics!r}, it must be a tuple of names, as ('loss',)")


def check_output(loss: Loss, scored: LossOutput) -> None:
    """Raises UserError: a loss gave something else than a LossOutput with a scalar and all its metrics."""
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
    """Of what a replay drew; 1 without weights."""
    return batch["weight"].to(like.dtype) if "weight" in batch else torch.ones_like(like)


Reduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class ActorCriticLoss(Loss, ABC):
    """Settings and terms that losses of actor-critics share."""

    gamma: Fraction = 0.99
    lam: Fraction = 1.0
    _: KW_ONLY
    value_cost: NonNegative = 0.5
    normalize_advantage: bool = False  # (A − mean)/(std + 1e-8) over the batch's valid transitions
    value_half: bool = False  # ½(R − V)² instead of (R − V)²
    value_clip: bool = False  # of several passes: changes of V count up to ± the clip range, as baselines' ppo2
    reduction: Reduction = "mean"
    reward: Literal["clip", "sign", "none", "scale"] = "clip"
    reward_scale: Positive = 1.0

    def __call__(self, policy: Any, target: Any, batch: Batch, state: Batch, hyper: Hyper) -> LossOutput:
        return self.score(self.outputs(policy, batch, state), batch, hyper)

    def outputs(self, policy: Any, batch: Batch, state: Batch) -> Batch:
        """Unroll what `score` takes: at least logp, value and entropy."""
        out: Batch = policy.unroll(batch, state)
        return out

    @abstractmethod
    def score(self, out: Batch, batch: Batch, hyper: Hyper) -> LossOutput:
        """Score the outputs of a network for rows [T+1, B]."""

    def transitions(self, out: Batch, batch: Batch) -> Transitions:
        """Transitions [T, B] with squashed rewards, after a check that all rows used are one [T+1, B] shape."""
        steps = transitions(batch, self.gamma)
        rows = {f"out {k}": out[k] for k in ("logp", "value", "entropy")}
        check_one_shape("[T+1, B] shape", rows | {f"batch {k}": batch[k] for k in ("logp", "value", "reward")})
        return steps._replace(reward=self.squashed(steps.reward, out))

    def squashed(self, reward: Tensor, out: Batch) -> Tensor:
        """Rewards of any shape as this loss learns from them: `reward_scale`·r as it is ("none"), limited to [−1, 1]
        ("clip"), or its sign; "scale": multiplied with what the policy says too, and limited to [−10, 10].
        """
        if self.reward != "scale":
            scaled = reward * self.reward_scale
            return (
                scaled if self.reward == "none" else scaled.sign() if self.reward == "sign" else scaled.clamp(-1.0, 1.0)
            )
        if "reward_scale" not in out:
            raise ValueError("reward='scale' needs a policy that says reward_scale: make it with returns=gamma")
        return (reward * (self.reward_scale * out["reward_scale"])).clamp(-10.0, 10.0)

    def sum_terms(
        self,
        out: Batch,
        acted: Batch,
        over: MaskedMean,
        made: Advantages,
        entropy_cost: Any,
        reach: Any = None,
        log_rho: Tensor | None = None,
        bound: float = 1.0,
    ) -> LossOutput:
        """Add up the terms policy_loss, value_loss and entropy over transitions [T, B].

        out, acted: what the network says, and said while acting, [T, B] or [T+1, B]; made: without gradient; reach: the
        ratio of both is clipped to 1 ± it (PPO), None: there is no ratio; log_rho: metrics tell of ratios π/μ, and how
        many of them are beyond `bound`.
        """
        advantage = made.advantage
        if self.normalize_advantage:
            centred = advantage - over.mean(advantage)
            advantage = centred / (over.mean(centred.square()).sqrt() + 1e-8)
        heads = (at_least_float32(out[k][: len(advantage)], advantage) for k in ("logp", "value", "entropy"))
        acted = {k: acted[k][: len(advantage)] for k in ("logp", "value")}
        advantage, target, logp, value, entropy = map(over.only, (advantage, made.target, *heads))
        if reach is None:
            policy_loss = over.mean(-advantage * logp)
        else:
            ratio = (logp - over.only(acted["logp"])).exp()
            clipped = ratio.clamp(1.0 - reach, 1.0 + reach)
            policy_loss = over.mean(torch.maximum(-advantage * ratio, -advantage * clipped))
        squared = (target - value).square()
        if self.value_clip and reach is not None:
            before = over.only(acted["value"])
            near = before + (value - before).clamp(-reach, reach)
            squared = torch.maximum(squared, (target - near).square())
        terms = policy_loss, over.mean(squared) * (0.5 if self.value_half else 1.0), over.mean(entropy)
        loss = policy_loss + self.value_cost * terms[1] - entropy_cost * terms[2]
        loss = loss * over.count if self.reduction == "sum" else loss

        with torch.no_grad():
            both = torch.stack((target, target - value))  # as value, 0 where it is not valid
            centred = both - both.sum((1, 2), keepdim=True) / over.count
            spread, rest = over.only(centred.square()).sum((1, 2)).unbind()
            explained = torch.where(spread > 0, 1.0 - rest / spread, 0.0)  # 0 where the targets do not vary
            approx_kl = 0.5 * over.mean((logp - acted["logp"]).square())
            found = dict(zip(COMMON, (loss, *terms, value.sum() / over.count, explained, approx_kl), strict=True))
            if reach is not None:
                beyond = over.mean(((ratio - 1.0).abs() > reach).to(ratio.dtype))
                found |= {"clip_fraction": beyond, "clip_range": torch.as_tensor(reach)}
            if log_rho is not None:
                rho = log_rho.exp()
                found |= {"rho_mean": over.mean(rho), "rho_clipped": over.mean((rho > bound).to(rho.dtype))}
        return LossOutput(loss, {k: x.detach() for k, x in found.items()})


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


def at_least_float32(x: Tensor, like: Tensor) -> Tensor:
    """At least the precision of `like`: bf16 outputs are summed in fp32."""
    return x.to(torch.promote_types(x.dtype, like.dtype))

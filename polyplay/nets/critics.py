"""Networks of SAC and TD3: an actor and an ensemble of critics in one module. Loops use it as any policy.

An actor chooses an action y, numbers from −1 to 1 for each part of a Box. In the environment's units it is c + h·y with
c = (high + low)/2 and h = (high − low)/2. Rows, pools and replays hold actions in the environment's units; losses,
noise and critics take y. For discrete actions the actor gives logits, and critics give the value of every action.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.core.tree import Batch, Field, Spec
from polyplay.envs.spaces import Box, Discrete
from polyplay.nets.action_heads import from_half_ranges, normal, to_half_ranges
from polyplay.nets.policy import Policy, Torso

LOG_STD = (-20.0, 2.0)  # of an actor's log σ, as the SAC paper's code clips it
HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
WARM, MOMENTUM, EPS = 100_000, 0.01, 1e-3  # of batch renormalization, as CrossQ's code has them
Held = Callable[[Tensor], Tensor]  # a weight as it is, or as a constant


class BatchRenorm(nn.Module):
    """Batch renormalization (Ioffe 2017) of x [n, N, size] over N, of each of n networks by itself:

    y = scale·((x − m)/√(v + ε)·r + d) + shift

    Where it `learns`, m and v are the batch's and the running ones m̄ and v̄ follow them; r = √(v + ε)/√(v̄ + ε) in
    ⅓ … 3 and d = (m − m̄)/√(v̄ + ε) in ±5 are constants, which are 1 and 0 in the first WARM passes (Bhatt et al. 2024,
    as their code has it). Elsewhere m and v are the running ones, r = 1, d = 0.
    """

    mean: Tensor
    variance: Tensor
    passes: Tensor

    def __init__(self, n: int, size: int):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(n, 1, size)), nn.Parameter(torch.zeros(n, 1, size))
        self.register_buffer("mean", torch.zeros(n, 1, size))
        self.register_buffer("variance", torch.ones(n, 1, size))
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x: Tensor, learns: bool, hold: Held) -> Tensor:
        scale, shift = hold(self.scale), hold(self.shift)
        if not learns:
            return (x - self.mean) * ((self.variance + EPS).rsqrt() * scale) + shift
        mean, variance = x.mean(1, keepdim=True), x.var(1, keepdim=True, correction=0)
        r, d = self._follow(mean.detach(), variance.detach())
        return ((x - mean) * (variance + EPS).rsqrt() * r + d) * scale + shift

    def _follow(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Move the running statistics, and give r and d by those before."""
        deviation, warm = (self.variance + EPS).sqrt(), self.passes >= WARM
        r = torch.where(warm, ((variance + EPS).sqrt() / deviation).clamp(1 / 3, 3.0), 1.0)
        d = torch.where(warm, ((mean - self.mean) / deviation).clamp(-5.0, 5.0), 0.0)
        self.mean.lerp_(mean, MOMENTUM)
        self.variance.lerp_(variance, MOMENTUM)
        self.passes.add_(1.0)
        return r, d


class LayerNorm(nn.Module):
    """Layer normalization (Ba et al. 2016) of x [n, N, size], with a scale and a shift for each of n networks."""

    def __init__(self, n: int, size: int):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(n, 1, size)), nn.Parameter(torch.zeros(n, 1, size))

    def forward(self, x: Tensor, hold: Held) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * hold(self.scale) + hold(self.shift)


class Ensemble(nn.Module):
    """`n` MLPs of the same sizes, with ReLU between their layers, computed as stacked products: [N, inputs], which all
    get, → [n, N, outputs]. Weights and biases begin uniform in ±1/√inputs, as torch's.

    normalization: batch, of the inputs of each layer (BatchRenorm); layer, of each hidden layer before ReLU, behind
    its dropout (Hiraoka et al. 2022); none. dropout: the part of the units that `forward` with `draws` leaves out.
    """

    def __init__(self, n: int, sizes: tuple[int, ...], normalization: str = "none", dropout: float = 0.0):
        super().__init__()
        self.n, layers = n, list(pairwise(sizes))
        self.widths, self.dropout = sizes[1:-1], dropout
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(n, a, b)) for a, b in layers)
        self.biases = nn.ParameterList(nn.Parameter(torch.empty(n, 1, b)) for _, b in layers)
        self.batch_norms = nn.ModuleList(BatchRenorm(n, a) for a, _ in layers if normalization == "batch")
        self.layer_norms = nn.ModuleList(LayerNorm(n, b) for b in self.widths if normalization == "layer")
        for weight, bias in zip(self.weights, self.biases, strict=True):
            bound = weight.shape[1] ** -0.5
            nn.init.uniform_(weight, -bound, bound)
            nn.init.uniform_(bias, -bound, bound)

    def forward(self, x: Tensor, learns: bool = False, frozen: bool = False, draws: Tensor | None = None) -> Tensor:
        """learns: BatchRenorm takes the batch's statistics. frozen: all weights are constants, and gradients go to the
        inputs alone. draws [N, n·Σ widths]: integers of 16 bits, each of a unit; the lowest leave it out.
        """
        hold: Held = Tensor.detach if frozen else _same
        kept: Sequence[Tensor] = ()
        if draws is not None:
            kept = (draws >= round(self.dropout * 65_536) - 32_768).split([self.n * w for w in self.widths], 1)
        before = partial(self._before, learns, hold, kept)
        return ensemble_values(x, [hold(w) for w in self.weights], [hold(b) for b in self.biases], before)

    def _before(self, learns: bool, hold: Held, kept: Sequence[Tensor], i: int, x: Tensor) -> Tensor:
        """What layer i gets, of what the one before it gave."""
        if i and kept:
            units = kept[i - 1].unflatten(1, (self.n, -1)).transpose(0, 1)
            x = x * units / (1.0 - self.dropout)
        if i and self.layer_norms:
            x = self.layer_norms[i - 1](x, hold)
        x = F.relu(x) if i else x
        return self.batch_norms[i](x, learns, hold) if self.batch_norms else x

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Weights and biases of each layer."""
        return list(zip(self.weights, self.biases, strict=True))

    def last(self, i: int) -> nn.Module | None:
        """What follows layer i."""
        return None if i + 1 == len(self.weights) else nn.ReLU()


def _same(x: Tensor) -> Tensor:
    return x


def _relu(i: int, x: Tensor) -> Tensor:
    return F.relu(x) if i else x


def ensemble_values(
    x: Tensor, weights: list[Tensor], biases: list[Tensor], before: Callable[[int, Tensor], Tensor] = _relu
) -> Tensor:
    """Outputs [n, N, outputs] of n MLPs: inputs x [N, inputs], weights [n, a, b] and biases [n, 1, b] of each layer.
    before: what layer i gets of the outputs of the one before it.
    """
    x = x.unsqueeze(0).expand(weights[0].shape[0], -1, -1)
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = _layer(before(i, x), weight, bias)
    return x


def _layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x·W + b [n, N, outputs]: of one column a sum, as the stacked product takes ten times as long."""
    if weight.shape[-1] == 1:
        return (x * weight.mT).sum(-1, keepdim=True) + bias
    return torch.baddbmm(bias, x, weight)


class ActorHead(nn.Module):
    """What an actor's output means. size: numbers of an action; outputs: of the actor's network; noise: uniforms in
    (0, 1) that an action takes.
    """

    size: int
    outputs: int
    noise: int
    action: Field


class BoxActor(ActorHead):
    """Of a bounded Box: conversion between y in −1 … 1 and the environment's units."""

    low: Tensor
    high: Tensor

    def __init__(self, space: Box):
        super().__init__()
        self.shape, self.size = tuple(space.shape), math.prod(space.shape)
        self.action, self.noise = Field(self.shape, "float32"), self.size
        for name, bound in (("low", space.low), ("high", space.high)):
            self.register_buffer(name, torch.tensor(bound, dtype=torch.float32).reshape(-1), persistent=False)

    def inner(self, action: Tensor) -> Tensor:
        """Actions [N, …] in the environment's units as y [N, size]."""
        return to_half_ranges(action.reshape(action.shape[0], self.size), self.low, self.high)

    def outer(self, y: Tensor) -> Tensor:
        """The other way, never outside of the bounds."""
        return from_half_ranges(y, self.low, self.high).reshape(y.shape[0], *self.shape)


class GaussianActor(BoxActor):
    """SAC's: y = tanh(m + σ·z) with standard normal z. log_std: how log σ keeps to LOG_STD: clip, or tanh (CleanRL: to
    −5 … 2).
    """

    def __init__(self, space: Box, log_std: str = "clip"):
        super().__init__(space)
        self.log_std, self.outputs = log_std, 2 * self.size

    def sample(self, raw: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """y [N, size] and its log-probability [N], of the actor's outputs [N, 2·size] and standard normal z [N, size].

        log π(y) = Σᵢ log N(uᵢ; mᵢ, σᵢ) − log(1 − yᵢ²) with u = m + σ·z and y = tanh u (Haarnoja et al. 2018b, appendix
        C), where log(1 − tanh² u) = 2·(log 2 − u − softplus(−2u)) loses no digits.
        """
        mean, log_std = raw.chunk(2, -1)
        log_std = log_std.clamp(*LOG_STD) if self.log_std == "clip" else -5.0 + 3.5 * (log_std.tanh() + 1.0)
        u = mean + log_std.exp() * z
        logp = -0.5 * z.square() - log_std - HALF_LOG_TAU - 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
        return u.tanh(), logp.sum(-1)

    def act(self, raw: Tensor, noise: Tensor | None, epsilon: Tensor | None) -> Tensor:
        """y [N, size]: without noise tanh m; epsilon [N]: where it is 1, uniform in −1 … 1."""
        if noise is None:
            return raw.chunk(2, -1)[0].tanh()
        y = self.sample(raw, normal(noise))[0]
        return y if epsilon is None else torch.where(epsilon.unsqueeze(1) >= 1.0, 2.0 * noise - 1.0, y)


class DeterministicActor(BoxActor):
    """TD3's: y = tanh m. When it acts, normal noise of `deviation` in half ranges is added."""

    def __init__(self, space: Box, deviation: float = 0.1):
        super().__init__(space)
        self.outputs, self.deviation = self.size, deviation

    def act(self, raw: Tensor, noise: Tensor | None, epsilon: Tensor | None) -> Tensor:
        """See GaussianActor.act."""
        y = raw.tanh()
        if noise is None:
            return y
        y = (y + self.deviation * normal(noise)).clamp(-1.0, 1.0)
        return y if epsilon is None else torch.where(epsilon.unsqueeze(1) >= 1.0, 2.0 * noise - 1.0, y)


class CategoricalActor(ActorHead):
    """SAC's of discrete actions: logits."""

    def __init__(self, space: Discrete):
        super().__init__()
        self.outputs = self.size = int(space.n)
        self.action, self.noise = Field((), "int64"), self.size

    def act(self, raw: Tensor, noise: Tensor | None, epsilon: Tensor | None, mask: Tensor | None = None) -> Tensor:
        """Actions [N]: the likeliest, or with noise [N, size] drawn by Gumbel's trick; epsilon as in GaussianActor."""
        if mask is not None:
            raw = raw.masked_fill(~mask, -torch.inf)
        if noise is None:
            return raw.argmax(-1)
        if epsilon is not None:
            even = raw.masked_fill(raw > -torch.inf, 0.0)
            raw = torch.where(epsilon.unsqueeze(1) >= 1.0, even, raw)
        return (raw - (-noise.log()).log()).argmax(-1)


class CriticsNetwork(Policy):
    """Actor and critics on the features of one trunk, and log α of SAC, all in one vector of weights.

    trunk: observations → features; where it has weights, the critics' gradient alone changes them, and the actor gets
    the features as constants. hidden: sizes of the layers of the actor and of each of `critics` critics. alpha: the
    temperature that SAC begins with; 0: there is none. values: rows hold "value" and "chosen", as priorities of actors
    elsewhere are made of them. width: of the critics' layers, 0: as in `hidden`. normalization, dropout: the critics'
    (Ensemble); batch normalization is the actor's too.
    """

    head: Any  # one of the actors above
    log_alpha: nn.Parameter | None

    def __init__(
        self,
        trunk: Torso,
        head: GaussianActor | DeterministicActor | CategoricalActor,
        hidden: tuple[int, ...] = (256, 256),
        critics: int = 2,
        alpha: float = 1.0,
        values: bool = False,
        width: int = 0,
        normalization: str = "none",
        dropout: float = 0.0,
    ):
        super().__init__()
        self.head, self.values, self.noise = head, values, head.noise
        self.discrete = isinstance(head, CategoricalActor)
        self.trunk, inputs = trunk, trunk.features
        self.actor = Ensemble(1, (inputs, *hidden, head.outputs), "batch" if normalization == "batch" else "none")
        layers = (width,) * len(hidden) if width else hidden
        sizes = (inputs, *layers, head.size) if self.discrete else (inputs + head.size, *layers, 1)
        self.critics = Ensemble(critics, sizes, normalization, dropout)
        self.log_alpha = nn.Parameter(torch.full((1,), math.log(alpha))) if alpha else None

    def spec(self) -> Spec:
        """See Policy."""
        numbers = ("value", "chosen") if self.values else ()
        return {"action": self.head.action} | dict.fromkeys(numbers, Field((), "float32"))

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """See Policy.act. epsilon [B]: where it is 1, the action is uniform."""
        features = self.trunk(step["obs"])
        given = {"mask": step["mask"]} if self.discrete and "mask" in step else {}
        chosen = self.head.act(self.raw(features), step.get("noise"), step.get("epsilon"), **given)
        out: Batch = {"action": chosen if self.discrete else self.head.outer(chosen)}
        if self.values:
            best = self.head.act(self.raw(features), None, None, **given)
            out |= {"value": self.q(features, best).amin(0), "chosen": self.q(features, chosen).amin(0)}
        return out, {}

    def raw(self, features: Tensor, learns: bool = False) -> Tensor:
        """The actor's outputs [N, outputs]; no gradient goes to the features. learns: see Ensemble."""
        return self.actor(features.detach(), learns)[0]

    def q(self, features: Tensor, chosen: Tensor, **given: Any) -> Tensor:
        """Values [n, N] of the critics: of y [N, size], or of discrete actions [N]. given: to Ensemble."""
        if self.discrete:
            return self.critics(features).gather(-1, chosen.long().expand(self.critics.n, -1).unsqueeze(-1)).squeeze(-1)
        return self.critics(torch.cat([features, chosen], 1), **given).squeeze(-1)

    def first_q(self, features: Tensor, y: Tensor) -> Tensor:
        """The first critic's value [N] of y, with constant weights."""
        weights, biases = ([x[:1].detach() for x in own] for own in (self.critics.weights, self.critics.biases))
        return ensemble_values(torch.cat([features, y], 1), weights, biases)[0, :, 0]

    def unroll(self, batch: Batch, state: Batch) -> Batch:
        """Values of rows [T+1, B] → {"value", "chosen"} [T+1, B]: of the best action, and of the one that was done."""
        size = batch["action"].shape[:2]
        obs, action = (tree.map(lambda x: x.flatten(0, 1), batch[k]) for k in ("obs", "action"))
        features = self.trunk(obs)
        best = self.head.act(self.raw(features), None, None)
        taken = action if self.discrete else self.head.inner(action)
        found = {"value": self.q(features, best).amin(0), "chosen": self.q(features, taken).amin(0)}
        return {name: x.unflatten(0, size) for name, x in found.items()}

"""Networks of SAC and TD3: an actor and an ensemble of critics in one module. Loops use it as any policy.

An actor chooses an action y, numbers from −1 to 1 for each part of a Box. In the environment's units it is c + h·y with
c = (high + low)/2 and h = (high − low)/2. Rows, pools and replays hold actions in the environment's units; losses,
noise and critics take y. For discrete actions the actor gives logits, and critics give the value of every action.
"""

from __future__ import annotations

import math
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


class Ensemble(nn.Module):
    """`n` MLPs of the same sizes, with ReLU between their layers, computed as stacked products: [N, inputs], which all
    get, → [n, N, outputs]. Weights and biases begin uniform in ±1/√inputs, as torch's.
    """

    def __init__(self, n: int, sizes: tuple[int, ...]):
        super().__init__()
        self.n, layers = n, list(pairwise(sizes))
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(n, a, b)) for a, b in layers)
        self.biases = nn.ParameterList(nn.Parameter(torch.empty(n, 1, b)) for _, b in layers)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            bound = weight.shape[1] ** -0.5
            nn.init.uniform_(weight, -bound, bound)
            nn.init.uniform_(bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return ensemble_values(x, [*self.weights], [*self.biases])

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Weights and biases of each layer."""
        return list(zip(self.weights, self.biases, strict=True))

    def last(self, i: int) -> nn.Module | None:
        """What follows layer i."""
        return None if i + 1 == len(self.weights) else nn.ReLU()

    def frozen(self, x: Tensor) -> Tensor:
        """The same with constant weights: gradients go to the inputs alone."""
        return ensemble_values(x, [w.detach() for w in self.weights], [b.detach() for b in self.biases])


def ensemble_values(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    """Outputs [n, N, outputs] of n MLPs: inputs x [N, inputs], weights [n, a, b] and biases [n, 1, b] of each layer."""
    x = x.unsqueeze(0).expand(weights[0].shape[0], -1, -1)
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = _layer(x if i == 0 else F.relu(x), weight, bias)
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
    elsewhere are made of them.
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
    ):
        super().__init__()
        self.head, self.values, self.noise = head, values, head.noise
        self.discrete = isinstance(head, CategoricalActor)
        self.trunk, inputs = trunk, trunk.features
        self.actor = Ensemble(1, (inputs, *hidden, head.outputs))
        sizes = (inputs, *hidden, head.size) if self.discrete else (inputs + head.size, *hidden, 1)
        self.critics = Ensemble(critics, sizes)
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

    def raw(self, features: Tensor) -> Tensor:
        """The actor's outputs [N, outputs]; no gradient goes to the features."""
        return self.actor(features.detach())[0]

    def q(self, features: Tensor, chosen: Tensor, frozen: bool = False) -> Tensor:
        """Values [n, N] of the critics: of y [N, size], or of discrete actions [N]. frozen: see Ensemble."""
        critics = self.critics.frozen if frozen else self.critics
        if self.discrete:
            return critics(features).gather(-1, chosen.long().expand(self.critics.n, -1).unsqueeze(-1)).squeeze(-1)
        return critics(torch.cat([features, chosen], 1)).squeeze(-1)

    def first_q(self, features: Tensor, y: Tensor) -> Tensor:
        """The first critic's value [N] of y, with constant weights."""
        parts = ([x[:1].detach() for x in own] for own in (self.critics.weights, self.critics.biases))
        return ensemble_values(torch.cat([features, y], 1), *parts)[0, :, 0]

    def unroll(self, batch: Batch, state: Batch) -> Batch:
        """Values of rows [T+1, B] → {"value", "chosen"} [T+1, B]: of the best action, and of the one that was done."""
        size = batch["action"].shape[:2]
        obs, action = (tree.map(lambda x: x.flatten(0, 1), batch[k]) for k in ("obs", "action"))
        features = self.trunk(obs)
        best = self.head.act(self.raw(features), None, None)
        taken = action if self.discrete else self.head.inner(action)
        found = {"value": self.q(features, best).amin(0), "chosen": self.q(features, taken).amin(0)}
        return {name: x.unflatten(0, size) for name, x in found.items()}

"""Networks of SAC and TD3. A CriticsNetwork is a Policy that holds an actor and several critics.

For continuous actions (a Box), an actor chooses numbers y from −1 to 1. In the environment's units, the action is c +
h·y with c = (high + low)/2 and h = (high − low)/2. Rollouts, environments and replay buffers hold actions in the
environment's units. Losses, noise and critics use y. For discrete actions, an actor returns logits, and critics return
the value of every action.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.core.tree import Batch, Field, Spec, Tree
from polyplay.envs.spaces import ActionSpec, Box, Discrete, fields
from polyplay.nets.action_heads import from_half_ranges, normal, to_half_ranges
from polyplay.nets.policy import Policy, Torso

LOG_STD = (-20.0, 2.0)  # bounds of an actor's log σ, as in the SAC paper's code
HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
WARM, MOMENTUM, EPS = 100_000, 0.01, 1e-3  # batch renormalization in CrossQ's code: warm-up passes, rate, ε
Held = Callable[[Tensor], Tensor]  # returns a weight as it is, or detached


class BatchRenorm(nn.Module):
    """Batch renormalization (Ioffe 2017) of x [n, N, size] over N, in each of n networks separately:

    y = scale·((x − m)/√(v + ε)·r + d) + shift

    If `learns`, m and v are the batch's mean and variance, and the running mean m̄ and variance v̄ move toward them.
    Then r = √(v + ε)/√(v̄ + ε), clipped to ⅓ … 3, and d = (m − m̄)/√(v̄ + ε), clipped to ±5. No gradient flows through
    r and d. In the first WARM passes, r = 1 and d = 0, as in the code of Bhatt et al. 2024.

    If not `learns`, the running statistics are used: m = m̄, v = v̄, r = 1 and d = 0.
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
        """Return r and d, and then move the running mean and variance toward those of the batch."""
        deviation, warm = (self.variance + EPS).sqrt(), self.passes >= WARM
        r = torch.where(warm, ((variance + EPS).sqrt() / deviation).clamp(1 / 3, 3.0), 1.0)
        d = torch.where(warm, ((mean - self.mean) / deviation).clamp(-5.0, 5.0), 0.0)
        self.mean.lerp_(mean, MOMENTUM)
        self.variance.lerp_(variance, MOMENTUM)
        self.passes.add_(1.0)
        return r, d


class LayerNorm(nn.Module):
    """Layer normalization (Ba et al. 2016) of x [n, N, size]. Each of the n networks has its own scale and shift."""

    def __init__(self, n: int, size: int):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(n, 1, size)), nn.Parameter(torch.zeros(n, 1, size))

    def forward(self, x: Tensor, hold: Held) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * hold(self.scale) + hold(self.shift)


class Ensemble(nn.Module):
    """Ensemble of `n` MLPs of the same sizes, with ReLU between layers. The critics are an ensemble, and the actor is
    an ensemble of one MLP.

    The MLPs take the same inputs [N, inputs], and return [n, N, outputs]. Initial weights and biases are uniform in
    ±1/√inputs, as in torch.
    `normalization`: "none", "batch" for BatchRenorm of the input of each layer, or "layer" for LayerNorm in each hidden
        layer, between dropout and ReLU (Hiraoka et al. 2022).
    `dropout`: fraction of hidden units that `forward` drops if `draws` is given.
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
        """Return outputs [n, N, outputs] of x [N, inputs].

        `learns`: normalize by the batch's statistics in BatchRenorm.
        `frozen`: compute gradients only for the inputs, not for the weights.
        `draws`: random 16-bit integers [N, n·Σ widths], one for each hidden unit. Units with low integers are dropped.
        """
        hold: Held = Tensor.detach if frozen else _same
        kept: Sequence[Tensor] = ()
        if draws is not None:
            kept = (draws >= round(self.dropout * 65_536) - 32_768).split([self.n * w for w in self.widths], 1)
        before = partial(self._before, learns, hold, kept)
        return ensemble_values(x, [hold(w) for w in self.weights], [hold(b) for b in self.biases], before)

    def _before(self, learns: bool, hold: Held, kept: Sequence[Tensor], i: int, x: Tensor) -> Tensor:
        """Return the input of layer `i`. `x` is the output of layer i − 1, or the input of the MLPs if `i` is 0."""
        if i and kept:
            units = kept[i - 1].unflatten(1, (self.n, -1)).transpose(0, 1)
            x = x * units / (1.0 - self.dropout)
        if i and self.layer_norms:
            x = self.layer_norms[i - 1](x, hold)
        x = F.relu(x) if i else x
        return self.batch_norms[i](x, learns, hold) if self.batch_norms else x

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return (weights, biases) of each layer."""
        return list(zip(self.weights, self.biases, strict=True))

    def last(self, i: int) -> nn.Module | None:
        """Return the activation after layer i, or None after the last layer."""
        return None if i + 1 == len(self.weights) else nn.ReLU()


def _same(x: Tensor) -> Tensor:
    return x


def _relu(i: int, x: Tensor) -> Tensor:
    return F.relu(x) if i else x


def ensemble_values(
    x: Tensor, weights: list[Tensor], biases: list[Tensor], before: Callable[[int, Tensor], Tensor] = _relu
) -> Tensor:
    """Return the outputs [n, N, outputs] of n MLPs for inputs x [N, inputs]. Each layer has weights [n, a, b] and
    biases [n, 1, b]. The function `before(i, x)` returns the input of layer i, given the output x of layer i − 1.
    """
    x = x.unsqueeze(0).expand(weights[0].shape[0], -1, -1)
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = _layer(before(i, x), weight, bias)
    return x


def _layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if weight.shape[-1] == 1:  # a batched product would take ten times as long as a sum
        return (x * weight.mT).sum(-1, keepdim=True) + bias
    return torch.baddbmm(bias, x, weight)


class CriticActions:
    """Converts actions of a Box, a Discrete or nested dicts of these into the form that actors and critics use: one
    vector of real numbers, and the index of one combination of the discrete parts.

    `box`: Box of all continuous parts concatenated, or None if the action has no continuous parts.
    `choice`: Discrete of all combinations of discrete parts, in row-major order, or None if there are no such parts.
    """

    def __init__(self, space: ActionSpec):
        self.space, self.fields = space, fields(space)
        leaves = dict(tree.leaves(space))
        self.boxes = {path: x for path, x in leaves.items() if isinstance(x, Box)}
        boxes = [*self.boxes.values()]
        self.choices = {path: int(x.n) for path, x in leaves.items() if isinstance(x, Discrete)}
        low, high = ([x.reshape(-1) for x in own] for own in ([x.low for x in boxes], [x.high for x in boxes]))
        self.box = Box((sum(map(len, low)),), np.concatenate(low), np.concatenate(high)) if boxes else None
        self.choice = Discrete(math.prod(self.choices.values())) if self.choices else None

    def split(self, action: Tree) -> tuple[Tensor | None, Tensor | None]:
        """Split actions [N, …] into continuous parts [N, size], in the environment's units, and indices [N] of
        combinations of discrete parts.
        """
        leaves = dict(tree.leaves(action))
        real = [leaves[path].flatten(1) if leaves[path].ndim > 1 else leaves[path][:, None] for path in self.boxes]
        number: Tensor | None = None
        for path, n in self.choices.items():
            value = leaves[path].long()
            number = value if number is None else number * n + value
        return torch.cat(real, 1) if len(real) > 1 else real[0] if real else None, number

    def join(self, real: Tensor | None, number: Tensor | None) -> Tree:
        """Invert `split`: make actions from continuous parts and indices of combinations."""
        found: dict[str, Tensor] = {}
        if real is not None:
            parts = real.split([math.prod(x.shape) for x in self.boxes.values()], 1)
            found |= {k: y.reshape(-1, *x.shape) for (k, x), y in zip(self.boxes.items(), parts, strict=True)}
        for path, n in reversed(self.choices.items()):
            found[path], number = cast("Tensor", number) % n, cast("Tensor", number) // n
        return tree.nest({path: found[path] for path, _ in tree.leaves(self.space)})

    def mask(self, masks: Tree | None) -> Tensor | None:
        """Return a bool mask [N, combinations] of legal combinations, from masks [N, values] of the discrete parts.
        Return None if no masks are given.
        """
        leaves, joint = {} if masks is None else dict(tree.leaves(masks)), None
        for path, n in self.choices.items() if leaves else ():
            own = leaves[path] if path in leaves else next(iter(leaves.values())).new_ones(1, n)
            joint = own if joint is None else (joint.unsqueeze(2) & own.unsqueeze(1)).flatten(1)
        return joint


class BoxActor(nn.Module):
    """Base of actors for a bounded Box. It converts between y in [−1, 1] and actions in the environment's units.

    `size`: number of elements of an action.
    `outputs`: number of outputs of the actor's network.
    `noise`: number of uniform numbers in (0, 1) that `act` takes for an action.
    """

    low: Tensor
    high: Tensor
    outputs: int

    def __init__(self, space: Box):
        super().__init__()
        self.size = self.noise = math.prod(space.shape)
        for name, bound in (("low", space.low), ("high", space.high)):
            self.register_buffer(name, torch.tensor(bound, dtype=torch.float32).reshape(-1), persistent=False)

    def inner(self, action: Tensor) -> Tensor:
        """Convert actions [N, size] in the environment's units to y [N, size]."""
        return to_half_ranges(action, self.low, self.high)

    def outer(self, y: Tensor) -> Tensor:
        """Convert y [N, size] to actions in the environment's units, clipped to the bounds."""
        return from_half_ranges(y, self.low, self.high)


class GaussianActor(BoxActor):
    """SAC's actor: y = tanh(m + σ·z) with standard normal z.

    `log_std`: bound of log σ: "clip" clips log σ to LOG_STD, and "tanh" squashes log σ into −5 … 2, as in CleanRL.
    """

    def __init__(self, space: Box, log_std: str = "clip"):
        super().__init__(space)
        self.log_std, self.outputs = log_std, 2 * self.size

    def sample(self, raw: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return y = tanh(m + σ·z) [N, size], and log π(y) [N].

        `raw`: the actor's outputs [N, 2·size]. `z`: standard normal numbers [N, size].

        log π(y) = Σᵢ log N(uᵢ; mᵢ, σᵢ) − log(1 − yᵢ²) with u = m + σ·z, y = tanh u (Haarnoja et al. 2018b, appendix C).
        log(1 − tanh² u) is computed as 2·(log 2 − u − softplus(−2u)), which is accurate for large u.
        """
        mean, log_std = raw.chunk(2, -1)
        log_std = log_std.clamp(*LOG_STD) if self.log_std == "clip" else -5.0 + 3.5 * (log_std.tanh() + 1.0)
        u = mean + log_std.exp() * z
        logp = -0.5 * z.square() - log_std - HALF_LOG_TAU - 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
        return u.tanh(), logp.sum(-1)

    def act(self, raw: Tensor, noise: Tensor | None, epsilon: Tensor | None) -> Tensor:
        """Return a sample of y, or tanh m if `noise` is None. Where `epsilon` [N] is 1, y is uniform in [−1, 1]."""
        if noise is None:
            return raw.chunk(2, -1)[0].tanh()
        y = self.sample(raw, normal(noise))[0]
        return y if epsilon is None else torch.where(epsilon.unsqueeze(1) >= 1.0, 2.0 * noise - 1.0, y)


class DeterministicActor(BoxActor):
    """TD3's actor: y = tanh m. If `noise` is given, `act` adds normal noise with the standard `deviation` to y."""

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


class CategoricalActor(nn.Module):
    """SAC's actor for discrete actions: draws from a categorical distribution given by logits."""

    def __init__(self, space: Discrete):
        super().__init__()
        self.outputs = self.size = self.noise = int(space.n)

    def log_probs(self, raw: Tensor, mask: Tensor | None) -> Tensor:
        """Return log π [N, size] from logits, with −∞ for illegal actions."""
        return (raw if mask is None else raw.masked_fill(~mask, -torch.inf)).log_softmax(-1)

    def act(self, raw: Tensor, noise: Tensor | None, epsilon: Tensor | None, mask: Tensor | None = None) -> Tensor:
        """Draw actions [N] by the Gumbel-max trick with `noise` [N, size]. If `noise` is None, return the most probable
        actions. Where `epsilon` [N] is 1, all legal actions are equally probable.
        """
        if mask is not None:
            raw = raw.masked_fill(~mask, -torch.inf)
        if noise is None:
            return raw.argmax(-1)
        if epsilon is not None:
            even = raw.masked_fill(raw > -torch.inf, 0.0)
            raw = torch.where(epsilon.unsqueeze(1) >= 1.0, even, raw)
        return (raw - (-noise.log()).log()).argmax(-1)


Chosen = tuple[Tensor | None, Tensor | None]  # y [N, size] of real parts; number [N] of the discrete combination


class CriticsNetwork(Policy):
    """Network of SAC and TD3: a shared trunk, an actor, critics, and SAC's log α.

    `trunk`: maps observations to features for the actor and the critics. The actor's gradient does not reach the trunk.
    `box`, `choice`: the actor's heads for continuous and for discrete parts of actions. None: actions lack such parts.
    `hidden`: sizes of the hidden layers of the actor and of each critic.
    `critics`: number of critics. A critic computes the values of all combinations of discrete parts.
    `alpha`: SAC's initial temperature, or 0 for a network without a temperature.
    `values`: whether `act` also returns "value" and "chosen", from which actors compute priorities.
    `width`: size of each hidden layer of the critics, or 0 for the sizes in `hidden`.
    `normalization`, `dropout`: options of the critics (see Ensemble). normalization="batch" also applies to the actor.
    """

    box: Any
    log_alpha: nn.Parameter | None

    def __init__(
        self,
        trunk: Torso,
        actions: CriticActions,
        box: GaussianActor | DeterministicActor | None,
        choice: CategoricalActor | None,
        hidden: tuple[int, ...] = (256, 256),
        critics: int = 2,
        alpha: float = 1.0,
        values: bool = False,
        width: int = 0,
        normalization: str = "none",
        dropout: float = 0.0,
    ):
        super().__init__()
        self.actions, self.box, self.choice, self.values = actions, box, choice, values
        heads = [head for head in (box, choice) if head is not None]
        self.noise, self.size = sum(head.noise for head in heads), 0 if box is None else box.size
        self.trunk, inputs = trunk, trunk.features
        sizes = (inputs, *hidden, sum(head.outputs for head in heads))
        self.actor = Ensemble(1, sizes, "batch" if normalization == "batch" else "none")
        layers = (width,) * len(hidden) if width else hidden
        sizes = (inputs + self.size, *layers, 1 if choice is None else choice.size)
        self.critics = Ensemble(critics, sizes, normalization, dropout)
        self.log_alpha = nn.Parameter(torch.full((1,), math.log(alpha))) if alpha else None

    def spec(self) -> Spec:
        """See Policy."""
        numbers = ("value", "chosen") if self.values else ()
        return {"action": self.actions.fields} | dict.fromkeys(numbers, Field((), "float32"))

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """See Policy.act. With noise, the action is uniform where epsilon [B] is 1."""
        features = self.trunk(step["obs"])
        raw, mask = self.raw(features), self.actions.mask(step.get("mask"))
        y, number = chosen = self._choose(raw, mask, step.get("noise"), step.get("epsilon"))
        out: Batch = {"action": self.actions.join(None if y is None else self.box.outer(y), number)}
        if self.values:
            best = self._choose(raw, mask)
            out |= {"value": self.q(features, best).amin(0), "chosen": self.q(features, chosen).amin(0)}
        return out, {}

    def _choose(
        self, raw: Tensor, mask: Tensor | None, noise: Tensor | None = None, epsilon: Tensor | None = None
    ) -> Chosen:
        y, number, (ours, theirs) = None, None, self._parts(raw)
        given = (None, None) if noise is None else (noise[:, : self.size], noise[:, self.size :])
        if self.box is not None:
            y = self.box.act(ours, given[0], epsilon)
        if self.choice is not None:
            number = self.choice.act(theirs, given[1], epsilon, mask)
        return y, number

    def _parts(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Split the actor's outputs into those for continuous parts, and the logits of discrete combinations."""
        at = 0 if self.box is None else self.box.outputs
        return raw[..., :at], raw[..., at:]

    def taken(self, action: Tree) -> Chosen:
        """Convert the environment's actions [N, …] to y [N, size] and the indices [N] of discrete combinations."""
        real, number = self.actions.split(action)
        return real if self.box is None or real is None else self.box.inner(real), number

    def sample(self, raw: Tensor, z: Tensor | None, mask: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return drawn y [N, size], log π(y) [N], and log π [N, combinations] of the discrete parts. Results for parts
        that actions lack are None. `raw` is the actor's output. `z` are standard normal numbers [N, size].
        """
        ours, theirs = self._parts(raw)
        drawn = (None, None) if self.box is None else self.box.sample(ours, z)
        return *drawn, None if self.choice is None else self.choice.log_probs(theirs, mask)

    def raw(self, features: Tensor, learns: bool = False) -> Tensor:
        """Return the actor's outputs [N, outputs]. The features get no gradient. `learns`: see Ensemble.forward."""
        return self.actor(features.detach(), learns)[0]

    def scores(self, features: Tensor, y: Tensor | None, **given: Any) -> Tensor:
        """Return the n critics' outputs [n, N, combinations or 1] for y. `given`: arguments of Ensemble.forward."""
        return self.critics(features if y is None else torch.cat([features, y], 1), **given)

    def q(self, features: Tensor, chosen: Chosen) -> Tensor:
        """Return the n critics' values [n, N] of the chosen actions."""
        return picked(self.scores(features, chosen[0]), chosen[1])

    def first_q(self, features: Tensor, y: Tensor) -> Tensor:
        """Return the first critic's value [N] of y. Only `features` and `y` get gradients, not the critic's weights."""
        weights, biases = ([x[:1].detach() for x in own] for own in (self.critics.weights, self.critics.biases))
        return ensemble_values(torch.cat([features, y], 1), weights, biases)[0, :, 0]

    def unroll(self, batch: Batch, state: Batch) -> Batch:
        """Return values [T+1, B], the lowest Q of all critics: "value" for the actor's actions, and "chosen" for the
        batch's actions. Priorities are computed from these values.
        """
        size = next(x for _, x in tree.leaves(batch["action"])).shape[:2]
        obs, action = (tree.map(lambda x: x.flatten(0, 1), batch[k]) for k in ("obs", "action"))
        features = self.trunk(obs)
        best, taken = self._choose(self.raw(features), None), self.taken(action)
        found = {"value": self.q(features, best).amin(0), "chosen": self.q(features, taken).amin(0)}
        return {name: x.unflatten(0, size) for name, x in found.items()}


def picked(scores: Tensor, number: Tensor | None) -> Tensor:
    """Return the values [n, N] of the chosen combinations from critics' scores [n, N, combinations or 1].

    `number`: index of each action's combination, [N], or None if actions have no discrete parts.
    """
    if number is None:
        return scores.squeeze(-1)
    return scores.gather(-1, number.expand(len(scores), -1).unsqueeze(-1)).squeeze(-1)

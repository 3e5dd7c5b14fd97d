"""Networks of action values: QNetwork for Q-learning, and DPGNetwork for continuous actions.

A QNetwork consists of a torso, which computes features of observations, an optional core, and a head. The head returns
Q-values [N, A], or logits [N, A, K] of K atoms.

Shapes are as in TorsoPolicy. For the same batch, `act` and `unroll` give bitwise equal values.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from itertools import repeat
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from polyplay.core import tree
from polyplay.core.compiled import compiled, inlined
from polyplay.core.tree import Batch, Field, Tree
from polyplay.envs.spaces import Box
from polyplay.nets.action_heads import from_half_ranges, normal, to_half_ranges
from polyplay.nets.actor_critic import Inputs, TorsoPolicy
from polyplay.nets.device import precision_of
from polyplay.nets.layers import Conv2d, Linear, initialize, one_hot, tracing
from polyplay.nets.policy import Torso
from polyplay.nets.recurrent import Core, Temporal

# Linear layers with noise in their weights (Fortunato et al. 2018). The noise comes from keys, not from a generator.
#
# A key is an integer, hashed into as many numbers as a network needs: the same key gives the same noise on any machine
# and in any batch. In acting, a row's key comes from the row's noise; in an update, from the update's number.


# variant: distribution of the noise, initial σ·√inputs
VARIANTS = {"fortunato": ("normal", 0.5), "zoo": ("truncated", 0.1)}
MANY = 16  # least number of rows with the same noise for which a noisy weight matrix is made
COLUMNS = 2  # number of uniform numbers of acting noise that make a key
_BITS = 23  # random bits of a uniform number (polyplay.core.numbers)
_A, _B, _C = (x - (1 << 64) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Noisy(nn.Module):
    """Noisy linear layer: y = W·x + b + ε_out ⊙ (S·(ε_in ⊙ x) + s).

    The scales S and s of the noise are learned. They start at `sigma`/√inputs. The noise ε = sgn(z)·√|z|, for standard
    normal z, is drawn once for all rows or separately for each row. bias: whether the layer has b.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float, bias: bool = True, init: str = "torch"):
        super().__init__()
        self.mean, self.spread = Linear(inputs, outputs, bias=bias), Linear(inputs, outputs)
        initialize(self.mean, init)
        for x in (self.spread.weight, self.spread.bias):
            nn.init.constant_(x, sigma / math.sqrt(inputs))
        self.inputs, self.noise = inputs, inputs + outputs

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return outputs [N, outputs] for inputs x [N, inputs].

        noise: ε_in and ε_out in one tensor [N, inputs + outputs], where N is 1 if all rows share them. None: no noise.
        """
        if noise is not None and len(noise) == 1 and len(x) >= MANY:
            before, behind = noise[0].split((self.inputs, len(noise[0]) - self.inputs))
            weight = torch.addcmul(self.mean.weight, self.spread.weight, torch.outer(behind, before))
            bias = self.spread.bias * behind
            return F.linear(x, weight, bias if self.mean.bias is None else self.mean.bias + bias)
        y = self.mean(x)
        if noise is None:
            return y
        before, behind = noise[:, : self.inputs].to(x.dtype), noise[:, self.inputs :]
        return y + self.spread(x * before) * behind.to(y.dtype)


def keys(uniforms: Tensor) -> Tensor:
    """Make a key for the noise of each row, int64 [N], from the last two columns of uniform numbers [N, columns]."""
    high, low = (uniforms[:, -COLUMNS:].double() * 2.0**_BITS).long().unbind(1)
    return (high << _BITS) | low


def draw_noise(key: Tensor, n: int, variant: str) -> Tensor:
    """Return noise ε, float32 [N, n], for keys int64 [N]. Equal keys give equal noise."""
    bits = _mix(_mix(key + _A).unsqueeze(1) + _steps(-(-n // 4), key.device)).view(torch.int16)[:, :n]
    table = _table(VARIANTS[variant][0], key.device).expand(len(key), -1)
    return table.gather(1, bits.long().add_(2**15))  # takes a fifth of the time of table[bits]


@functools.cache
def _steps(n: int, device: torch.device) -> Tensor:
    with _disable_current_modes():  # a constant in traced graphs: compilers assume that integers do not wrap
        return torch.arange(1, n + 1, device=device) * _A


def _mix(x: Tensor) -> Tensor:
    """Hash int64 numbers by SplitMix64's finalizer, as polyplay.core.numbers does."""
    x = (x ^ _down(x, 30)) * _B
    x = (x ^ _down(x, 27)) * _C
    return x ^ _down(x, 31)


def _down(x: Tensor, by: int) -> Tensor:
    """Shift the bits of int64 x to the right, filling with zeros."""
    return (x >> by) & ((1 << (64 - by)) - 1)


@functools.cache
def _table(how: str, device: torch.device) -> Tensor:
    """Return sgn(z)·√|z| for 65,536 evenly spaced quantiles z. how: "normal" or "truncated" (z within ±2)."""
    with _disable_current_modes():
        place = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16
        if how == "truncated":
            edge = 0.5 * math.erfc(2.0 / math.sqrt(2.0))
            place = edge + place * (1.0 - 2.0 * edge)
        x = torch.special.ndtri(place)
        return (x.sign() * x.abs().sqrt()).float().to(device)


# Values from a network's outputs: of the chosen action, of the best action, of a distribution over atoms.


def greedy_action(q: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the legal action, int64 [...], with the highest q [..., A]. mask: bool [..., A], the legal actions."""
    if mask is None:
        return q.argmax(-1)
    if mask.shape != q.shape:
        raise ValueError(f"mask must be q's {list(q.shape)}; got {list(mask.shape)}")
    return q.masked_fill(~mask, -torch.inf).argmax(-1)


def take_action(scores: Tensor, action: Tensor) -> Tensor:
    """Return the scores of the given actions, with gradient.

    For actions [...] and scores [..., A], the result is [...]. For scores [..., A, K], it is [..., K]. Raises
    ValueError for other shapes.
    """
    lead = action.shape
    if scores.shape[: len(lead)] != lead or scores.ndim - len(lead) not in (1, 2):
        raise ValueError(f"scores must be {list(lead)} and [A] or [A, K] behind; got {list(scores.shape)}")
    at = action.long().reshape(*lead, *[1] * (scores.ndim - len(lead)))
    return scores.gather(len(lead), at.expand(*lead, 1, *scores.shape[len(lead) + 1 :])).squeeze(len(lead))


def support(low: float, high: float, like: Tensor) -> Tensor:
    """Return K atoms, evenly spaced from `low` to `high`. like: a tensor [..., K] of the same type and device."""
    return torch.linspace(low, high, like.shape[-1], dtype=like.dtype, device=like.device)


def expected_value(logits: Tensor, low: float, high: float) -> Tensor:
    """Return the mean of each distribution over the atoms of `support`. logits: [..., K]. Result: [...]."""
    return (logits.softmax(-1) * support(low, high, logits)).sum(-1)


class QHead(nn.Module):
    """Head that computes the values of `actions` actions.

    `atoms`: number of atoms per action. The head returns the atoms' logits. With atoms=0, it returns Q-values.
    `dueling`: two branches give Q = V + A − mean_a A (Wang et al. 2016), separately for each atom (Hessel et al. 2018).
    `scale`: number that multiplies the gradient to the features (1/√2 in the dueling paper).
    `hidden`: width of a hidden layer with ReLU in each branch, or 0 for no hidden layer.
    `noisy`: variant of Noisy for all layers, or "none" for Linear layers.
    `sigma`: `sigma` of the Noisy layers, or None for the variant's default.
    `bias`: bias of the last layer: "each" (one for each action), "shared" (one for all actions, as in the tuned double
        DQN), or "none" (as in dqn_zoo's Rainbow).
    """

    def __init__(
        self,
        inputs: int,
        actions: int,
        atoms: int = 0,
        hidden: int = 0,
        dueling: bool = False,
        scale: float = 1.0,
        noisy: str = "none",
        sigma: float | None = None,
        bias: str = "each",
        init: str = "torch",
    ):
        super().__init__()
        self.inputs, self.actions, self.atoms, self.scale, self.noisy = inputs, actions, atoms, scale, noisy
        size = max(atoms, 1)

        def make(inputs: int, outputs: int, bias: bool) -> nn.Module:
            if noisy != "none":
                return Noisy(inputs, outputs, VARIANTS[noisy][1] if sigma is None else sigma, bias, init)
            layer = Linear(inputs, outputs, bias=bias)
            initialize(layer, init)
            return layer

        self.branches = nn.ModuleList()  # that of Q or A, then that of V: an optional hidden layer, and the last layer
        for outputs, biased in [(actions * size, bias == "each"), (size, bias != "none")][: 1 + dueling]:
            layers = [make(inputs, hidden, True)] if hidden else []
            self.branches.append(nn.ModuleList([*layers, make(hidden or inputs, outputs, biased)]))
        self.shared = nn.Parameter(torch.empty(size)) if bias == "shared" and not dueling else None
        if self.shared is not None:
            bound = (hidden or inputs) ** -0.5 if init == "torch" else 0.0
            nn.init.uniform_(self.shared, -bound, bound)
        self.noises = [layer.noise for layer in self.modules() if isinstance(layer, Noisy)]
        self.noise = sum(self.noises)

    def forward(self, x: Tensor, key: Tensor | None = None, bf16: bool = False) -> Tensor:
        """Return Q-values, float32 [N, A], or logits [N, A, K], for features x [N, inputs].

        `key`: keys of the noise, int64 [N], or [1] for the same noise in all rows. None: no noise.
        `bf16`: whether hidden layers compute in bfloat16.
        """
        if self.scale != 1.0 and x.requires_grad:
            x.register_hook(lambda grad: grad * self.scale)
        noise: Iterator[tuple[Tensor, ...]] = repeat(())  # for each layer in turn; Linear takes none
        if key is not None:
            noise = ((part,) for part in draw_noise(key, self.noise, self.noisy).split(self.noises, 1))
        made = []
        for branch in cast("list[nn.ModuleList]", self.branches):
            y, (*hidden, last) = x, branch
            for layer in hidden:
                with precision_of(self, bf16):
                    y = F.relu(layer(y, *next(noise)), inplace=True)
            made.append(last(y.float(), *next(noise)))
        scores = made[0].unflatten(1, (self.actions, self.atoms)) if self.atoms else made[0]
        if self.shared is not None:
            scores = scores + self.shared
        if len(made) == 1:
            return scores
        value = made[1].unsqueeze(1) if self.atoms else made[1]
        return value + scores - scores.mean(1, keepdim=True)

    def embed(self, action: Tensor) -> Tensor:
        """One-hot encode actions [N] as a network's input [N, actions]."""
        return one_hot(action, self.actions)


# ε-greedy actions from values: on a CPU in a compiled loop, else by torch's operations, with bitwise the same results.


CHANCE = 3  # uniform numbers per action: whether to explore, which random action, which of several best actions
Choice = tuple[Tensor, Tensor, Tensor]


def epsilon_greedy(q: Tensor, mask: Tensor | None, noise: Tensor, epsilon: Tensor | None) -> Choice:
    """Choose a random legal action with probability `epsilon`, else the best legal action.

    `q`: float32 [B, A].
    `mask`: legal actions, bool [B, A], or None if all actions are legal.
    `noise`: uniform numbers [B, CHANCE or more]. They also choose among several best actions.
    `epsilon`: probabilities [B], or None for 0.
    Returns, [B] each: the action (int64), the highest Q of a legal action, and the Q of the chosen action.
    """
    if q.device.type != "cpu" or tracing():
        return by_torch(q, mask, noise, epsilon)
    # thirty torch operations would take longer than a small network, and wait for the interpreter's lock
    legal = np.ones(q.shape, np.bool_) if mask is None else mask.contiguous().numpy()
    chance = np.zeros(len(q), np.float32) if epsilon is None else epsilon.contiguous().numpy()
    values = q.detach().contiguous().numpy()
    action, value, chosen = epsilon_greedy_loop(values, legal, noise.contiguous().numpy(), chance)
    return torch.from_numpy(action), torch.from_numpy(value), torch.from_numpy(chosen)


@compiled
def epsilon_greedy_loop(
    q: np.ndarray, legal: np.ndarray, noise: np.ndarray, epsilon: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute epsilon_greedy on NumPy arrays. As in torch, NaN counts as the greatest value.

    Shapes: q float32 [B, A], legal bool [B, A], noise float32 [B, 3 or more], epsilon float32 [B].
    """
    rows, actions = q.shape
    action, value, chosen = np.empty(rows, np.int64), np.empty(rows, np.float32), np.empty(rows, np.float32)
    best = np.empty(actions, np.bool_)
    for b in range(rows):
        top = np.float32(-np.inf)
        for a in range(actions):
            if legal[b, a] and not q[b, a] <= top:  # greater, or NaN
                top = q[b, a]
                if top != top:
                    break
        for a in range(actions):
            best[a] = (q[b, a] if legal[b, a] else np.float32(-np.inf)) == top
        u = noise[b]
        at = _nth_of(legal[b], u[1]) if u[0] < epsilon[b] else _nth_of(best, u[2])
        action[b], value[b], chosen[b] = at, top, q[b, at]
    return action, value, chosen


@inlined
def _nth_of(among: np.ndarray, u: np.float32) -> int:
    """Return the index of a random True in `among`, bool [A], or 0 if all are False. u: uniform random number."""
    count = 0
    for marked in among:
        count += marked
    nth = min(np.int64(np.float32(u) * np.float32(count)), count - 1)
    for i in range(among.size):
        nth -= among[i]
        if among[i] and nth < 0:
            return i
    return 0


def by_torch(q: Tensor, mask: Tensor | None, noise: Tensor, epsilon: Tensor | None) -> Choice:
    """Compute epsilon_greedy by torch's operations, on any device."""
    legal = q if mask is None else q.masked_fill(~mask, -torch.inf)
    value = legal.amax(1)
    action = random_choice(legal == value.unsqueeze(1), noise[:, 2])
    if epsilon is not None:
        some = random_choice(torch.ones_like(q, dtype=torch.bool) if mask is None else mask, noise[:, 1])
        action = torch.where(noise[:, 0] < epsilon, some, action)
    return action, value, take_action(q, action)


def random_choice(among: Tensor, u: Tensor) -> Tensor:
    """Return the index of a random True in each row of `among`, bool [N, A], or 0 if all are False. u: uniform [N]."""
    count = among.sum(1)
    nth = torch.minimum((u * count).long(), count - 1)
    return (among.cumsum(1) <= nth.unsqueeze(1)).sum(1)


# The networks of Q-learning.


class QNetwork(TorsoPolicy):
    """Network of Q-learning: computes the values of Discrete actions.

    `previous`: whether the core (or the head, if there is no core) also takes the previous action and reward. Both are
        0 in the first row of an episode.
    `clipped`: whether this reward is clipped to ±1.
    `support`: values of the lowest and the highest atom.
    """

    bf16_core = True
    outputs = ("value", "chosen")
    action = Field((), "int64")
    head: QHead

    def __init__(
        self,
        torso: Torso,
        head: QHead,
        core: Core | Temporal | None = None,
        previous: bool = False,
        clipped: bool = False,
        inputs: Inputs | None = None,
        support: tuple[float, float] = (-10.0, 10.0),
    ):
        super().__init__()
        self.torso, self.head, self.core, self.inputs = torso, head, core, inputs
        self.previous, self.clipped, self.support = previous, clipped, support
        self.observes = inputs is not None
        self.noise = CHANCE + (COLUMNS if head.noise else 0)

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """Choose actions for one step of B lanes. The caller turns gradients off.

        `step`: obs, reward, first, optionally mask, noise [B, noise] and epsilon [B], the probability of a random legal
            action. If noise is missing, the best actions are chosen, and the weights have no noise.

        Returns {"action", "value", "chosen"}, [B] each, and the state after the step. "value" is the highest Q of a
        legal action, and "chosen" is the Q of the chosen action.
        """
        noise, epsilon, mask = step.get("noise"), step.get("epsilon"), step.get("mask")
        key = None if noise is None or not self.head.noise else keys(noise)
        rows: Batch = {k: step[k] for k in ("reward", "first") if k in step}
        x, after, _ = self._behind_core(self._features(self.torso, step["obs"]), rows, state)
        q = self.head(x, key, self.bf16)
        q = expected_value(q, *self.support) if self.head.atoms else q
        if noise is None:
            if epsilon is not None:
                raise ValueError("epsilon without noise: chance comes from step['noise'] alone")
            action = greedy_action(q, mask)
            value = chosen = take_action(q, action)
        else:
            action, value, chosen = epsilon_greedy(q, mask, noise, epsilon)
        if self.previous:
            after["action"] = action
        return {"action": action, "value": value, "chosen": chosen}, after

    def unroll(self, batch: Batch, state: Batch) -> Batch:
        """Return {"value", "chosen"} [T+1, B] of a rollout, as `act` does.

        `batch`: obs, reward, first and action, [T+1, B] each; mask, if it exists; noise, if acting used noisy weights.
        `state`: the state before the first row.
        """
        q = self.scores(batch, state)
        q = expected_value(q, *self.support) if self.head.atoms else q
        best = greedy_action(q, batch.get("mask"))
        return {"value": take_action(q, best), "chosen": take_action(q, batch["action"])}

    def scores(self, batch: Batch, state: Batch, key: Tensor | None = None, cached: bool = False) -> Tensor:
        """Return Q-values [R, B, A], or logits [R, B, A, K], of rows [R, B].

        `batch`: obs. If the network has a core or takes `previous`, also first, reward and action.
        `state`: the state before the first row.
        `key`: key of the noise for all rows, int64 [1]. If None, the noise comes from batch["noise"], if it exists.
        `cached`: whether to use the weights' copies made by `cache_weights`, if they exist.
        """
        if key is None and self.head.noise and "noise" in batch:
            key = keys(batch["noise"].flatten(0, 1))
        obs = tree.map(lambda x: x.flatten(0, 1), batch["obs"])
        with self._present_weights() if self.bf16 and not cached else contextlib.nullcontext():
            x, _, _ = self._behind_core(self._features(self.torso, obs), batch, state)
            made = self.head(x, key, self.bf16)
        lead = next(tree.leaves(batch["obs"]))[1].shape[:2]
        return made.unflatten(0, lead)

    def after(self, batch: Batch, state: Batch) -> Batch:
        """Return the state after rows [R, B], R ≥ 1. The copies made by `cache_weights` are not used."""
        obs = tree.map(lambda x: x.flatten(0, 1), batch["obs"])
        with self._present_weights():
            _, after, _ = self._behind_core(self._features(self.torso, obs), batch, state)
        return {**after, "action": batch["action"][-1]} if self.previous else after

    @contextlib.contextmanager
    def _present_weights(self) -> Iterator[None]:
        """Within this context, compute with the weights themselves, not with the copies made by `cache_weights`."""
        layers = (m for m in self.modules() if isinstance(m, Linear | Conv2d))
        cached = [(layer, layer.half_weight) for layer in layers if layer.half_weight is not None]
        for layer, _ in cached:
            layer.half_weight = None
        try:
            yield
        finally:
            for layer, weight in cached:
                layer.half_weight = weight


# DPGNetwork: an actor μ(s) and a critic Q(s, a) of real actions, in one module that acting loops use like any policy.
#
# Actions that enter or leave this module are in the environment's units, as in rows, pools and replays. Inside,
# actions, the deviation of noise and dQ/da are in half ranges: −1 is the space's `low`, and 1 is its `high`.


class DPGNetwork(TorsoPolicy):
    """Network of Ape-X DPG for continuous actions: an actor μ(s) and a critic Q(s, a), with separate torsos.

    `actor`: the actor's torso. A layer of widths[0] units with tanh and an output layer with tanh follow.
    `critic`: the critic's torso. A layer of widths[1] units with tanh takes its features and the action. A linear layer
        then computes Q.
    """

    outputs = ("value", "chosen")
    low: Tensor
    high: Tensor

    def __init__(self, space: Box, actor: Torso, critic: Torso, widths: tuple[int, int], init: str = "torch"):
        super().__init__()
        self.shape, self.size = tuple(space.shape), math.prod(space.shape)
        self.action, self.noise = Field(self.shape, "float32"), self.size
        self.core, self.inputs, self.previous = None, None, False
        for name, bound in (("low", space.low), ("high", space.high)):
            self.register_buffer(name, torch.tensor(bound, dtype=torch.float32).reshape(-1), persistent=False)
        self.actor, self.critic = actor, critic
        self.steer = _two(actor.core_features, widths[0], self.size, init)
        self.judge = _two(critic.core_features + self.size, widths[1], 1, init)

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """Choose actions for one step of B lanes. The caller turns gradients off.

        `step`: obs, noise [B, noise] and epsilon [B], the standard deviation of normal noise that is added to the
            action, on a scale where the action's bounds are ±1. Without epsilon, the action is μ(s).

        Returns {"action" [B, …], "value" [B], "chosen" [B]} and an empty state. "value" is Q(s, μ(s)), and "chosen" is
        the Q of the chosen action.
        """
        best, features = self._best(step["obs"]), self._features(self.critic, step["obs"])
        inner, noise, deviation = best, step.get("noise"), step.get("epsilon")
        if deviation is not None:
            if noise is None:
                raise ValueError("a deviation without noise: chance comes from step['noise'] alone")
            inner = (best + deviation.unsqueeze(1) * normal(noise)).clamp(-1.0, 1.0)
        action = self._outer(inner)
        value, chosen = self._q(features, best), self._q(features, self._inner(action))
        return {"action": action, "value": value, "chosen": chosen}, {}

    def unroll(self, batch: Batch, state: Batch) -> Batch:
        """Return {"value", "chosen"} [T+1, B], as `act` does, for rows [T+1, B] with obs and action."""
        size = batch["action"].shape[:2]
        obs, action = (tree.map(lambda x: x.flatten(0, 1), batch[k]) for k in ("obs", "action"))
        features = self._features(self.critic, obs)
        value, chosen = self._q(features, self._best(obs)), self._q(features, self._inner(action))
        return {"value": value.unflatten(0, size), "chosen": chosen.unflatten(0, size)}

    def value(self, obs: Tree) -> Tensor:
        """Return Q(s, μ(s)) [N] of observations [N, …]."""
        return self._q(self._features(self.critic, obs), self._best(obs))

    def learnt(self, obs: Tree, action: Tensor) -> Batch:
        """Return the inputs of a loss, for observations and actions.

        "q": Q of the actions, [N], with gradient to the critic.
        "best": μ(s) scaled to [−1, 1], [N, A], with gradient to the actor.
        "raw": μ(s) before tanh, [N, A], with gradient to the actor.
        "value": Q(s, μ(s)), [N], without gradient.
        "slope": dQ/da at μ(s), [N, A], without gradient.
        """
        features = self._features(self.critic, obs)
        raw = self.steer(self._features(self.actor, obs))
        best = raw.tanh()
        value, slope = self._sloped(features, best)
        q = self._q(features, self._inner(action))
        return {"q": q, "best": best, "raw": raw, "value": value, "slope": slope}

    def _best(self, obs: Tree) -> Tensor:
        return self.steer(self._features(self.actor, obs)).tanh()

    def _q(self, features: Tensor, inner: Tensor) -> Tensor:
        return self.judge(torch.cat([features, inner], 1)).squeeze(1)

    @torch.no_grad()
    def _sloped(self, features: Tensor, inner: Tensor) -> tuple[Tensor, Tensor]:
        """Return Q [N] and its derivative dQ/da [N, A] for actions in [−1, 1]."""
        first, tanh, last = cast("tuple[Linear, nn.Tanh, Linear]", tuple(self.judge))
        hidden = tanh(first(torch.cat([features, inner], 1)))
        slope = torch.ops.aten.tanh_backward(last.weight.expand_as(hidden), hidden) @ first.weight
        return last(hidden).squeeze(1), slope[:, -self.size :]

    def _inner(self, action: Tensor) -> Tensor:
        """Scale actions [N, …] from their bounds to [−1, 1], as [N, A]."""
        return to_half_ranges(action.reshape(len(action), self.size), self.low, self.high)

    def _outer(self, inner: Tensor) -> Tensor:
        """Scale actions [N, A] from [−1, 1] to their bounds."""
        return from_half_ranges(inner, self.low, self.high).reshape(len(inner), *self.shape)


def _two(inputs: int, width: int, outputs: int, init: str) -> nn.Sequential:
    made = nn.Sequential(Linear(inputs, width), nn.Tanh(), Linear(width, outputs))
    initialize(made, init, 1.0)
    return made

"""Networks of action values: QNetwork for Q-learning, and DPGNetwork for real actions.

A QNetwork consists of a torso, which computes features of observations, an optional core, and a head. The head maps
features to q [N, A], or to logits [N, A, K] over K atoms.

Shapes are as in TorsoPolicy. In the same batches, `act` and `unroll` give bitwise the same values.
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
    """Noisy linear layer: y = W·x + b + ε_out ⊙ (S·(ε_in ⊙ x) + s), with learned scales S and s of the noise.

    The factorized noise ε is separate for every row or shared by all rows. W and b start as in `initialize`, S and s at
    `sigma`/√inputs. ε = sgn(z)·√|z| for standard normal z. Variant "zoo" (dqn_zoo) truncates z to ±2. bias: whether b
    exists.

    If many rows share the noise, one product with the matrix W + S ⊙ ε_out·ε_inᵀ replaces two, forward and backward.
    With separate noise, the formula above needs no matrix per row.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float, bias: bool = True, init: str = "torch"):
        super().__init__()
        self.mean, self.spread = Linear(inputs, outputs, bias=bias), Linear(inputs, outputs)
        initialize(self.mean, init)
        for x in (self.spread.weight, self.spread.bias):
            nn.init.constant_(x, sigma / math.sqrt(inputs))
        self.inputs, self.noise = inputs, inputs + outputs

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return outputs [N, outputs] of x [N, inputs]. noise: ε_in and ε_out, [N or 1, inputs + outputs], or None for
        no noise.
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
    """Make keys of noise, int64 [N], from the last COLUMNS of the columns of uniform numbers float32 [N, columns]."""
    high, low = (uniforms[:, -COLUMNS:].double() * 2.0**_BITS).long().unbind(1)
    return (high << _BITS) | low


def draw_noise(key: Tensor, n: int, variant: str) -> Tensor:
    """Return the noise ε float32 [N, n] of keys int64 [N]. Each key is hashed, and every 16 bits of the hash select an
    entry of `_table`.
    """
    bits = _mix(_mix(key + _A).unsqueeze(1) + _steps(-(-n // 4), key.device)).view(torch.int16)[:, :n]
    table = _table(VARIANTS[variant][0], key.device).expand(len(key), -1)
    return table.gather(1, bits.long().add_(2**15))  # takes a fifth of the time of table[bits]


@functools.cache
def _steps(n: int, device: torch.device) -> Tensor:
    """Return A·1 … A·n in int64, with wraparound. Traced graphs hold these numbers as constants, because compilers
    assume that integers do not wrap, and would write beyond a loop's end.
    """
    with _disable_current_modes():
        return torch.arange(1, n + 1, device=device) * _A


def _mix(x: Tensor) -> Tensor:
    """Apply SplitMix64's finalizer, as polyplay.core.numbers does. Arithmetic on int64 wraps."""
    x = (x ^ _down(x, 30)) * _B
    x = (x ^ _down(x, 27)) * _C
    return x ^ _down(x, 31)


def _down(x: Tensor, by: int) -> Tensor:
    """Shift the bits of int64 x to the right, filling with zeros."""
    return (x >> by) & ((1 << (64 - by)) - 1)


@functools.cache
def _table(how: str, device: torch.device) -> Tensor:
    """Return sgn(z)·√|z| float32 [65536], for z at evenly spaced quantiles of the distribution `how`. Traced graphs
    hold this table as a constant.
    """
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
    """Return the scores of the given actions [...], with gradient. The result is [...] for scores [..., A], and [...,
    K] for scores [..., A, K]. Raises ValueError if the shapes do not fit.
    """
    lead = action.shape
    if scores.shape[: len(lead)] != lead or scores.ndim - len(lead) not in (1, 2):
        raise ValueError(f"scores must be {list(lead)} and [A] or [A, K] behind; got {list(scores.shape)}")
    at = action.long().reshape(*lead, *[1] * (scores.ndim - len(lead)))
    return scores.gather(len(lead), at.expand(*lead, 1, *scores.shape[len(lead) + 1 :])).squeeze(len(lead))


def support(low: float, high: float, like: Tensor) -> Tensor:
    """Return the atoms z [K], evenly spaced from `low` to `high`, for the last dimension of `like` [..., K]."""
    return torch.linspace(low, high, like.shape[-1], dtype=like.dtype, device=like.device)


def expected_value(logits: Tensor, low: float, high: float) -> Tensor:
    """Return the means Σ z·p, [...], of distributions over atoms z (evenly spaced values) that have logits [..., K]."""
    return (logits.softmax(-1) * support(low, high, logits)).sum(-1)


class QHead(nn.Module):
    """Head that computes the values of `actions` actions.

    atoms: number of atoms per action. The head returns the atoms' logits, or with atoms=0 plain values.
    dueling: two branches give Q = V + A − mean_a A (Wang et al. 2016), atom by atom (Hessel et al. 2018).
    scale: factor of the gradient to the features (1/√2 in the dueling paper).
    hidden: width of a hidden layer with ReLU in each branch, or 0 for no hidden layer.
    noisy: variant of Noisy for all layers, or "none" for Linear layers.
    sigma: `sigma` of the Noisy layers, or None for the variant's default.
    bias: biases of the last layer of Q or A: one for "each" action, one "shared" by all actions (tuned double DQN), or
        "none", as in all last layers of dqn_zoo's Rainbow.
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
        """Return q float32 [N, A] or logits [N, A, K] of x [N, inputs]. key: keys of the noise, int64 [N or 1], or None
        for no noise. bf16: whether hidden layers compute in bfloat16.
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
    """Choose actions by q float32 [B, A]: with probability epsilon a random legal action, else the best one.

    mask: legal actions, bool [B, A], or None if all actions are legal.
    noise: uniform numbers [B, CHANCE or more], which also break ties between best actions.
    epsilon: probabilities [B], or None for 0.
    Return [B] each: action int64, max_a Q over legal actions, Q of the action.

    On a CPU, one compiled loop chooses the actions, because thirty torch operations would take longer than a small
    network. In a process with several threads, each torch operation would also wait for the interpreter's lock.
    """
    if q.device.type != "cpu" or tracing():
        return by_torch(q, mask, noise, epsilon)
    legal = np.ones(q.shape, np.bool_) if mask is None else mask.contiguous().numpy()
    chance = np.zeros(len(q), np.float32) if epsilon is None else epsilon.contiguous().numpy()
    values = q.detach().contiguous().numpy()
    action, value, chosen = epsilon_greedy_loop(values, legal, noise.contiguous().numpy(), chance)
    return torch.from_numpy(action), torch.from_numpy(value), torch.from_numpy(chosen)


@compiled
def epsilon_greedy_loop(
    q: np.ndarray, legal: np.ndarray, noise: np.ndarray, epsilon: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute epsilon_greedy on arrays. NaN counts as the greatest value, as in torch. q: float32 [B, A]. legal: bool
    [B, A]. noise: float32 [B, 3 or more]. epsilon: float32 [B].
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
    """Return the index of a True in `among`, bool [A], chosen by the uniform number u. If none is True, return 0."""
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
    """Return the index int64 [N] of a random True in each row of bool [N, A], by uniform u [N], or 0 if a row has no
    True.
    """
    count = among.sum(1)
    nth = torch.minimum((u * count).long(), count - 1)
    return (among.cumsum(1) <= nth.unsqueeze(1)).sum(1)


# The networks of Q-learning.


class QNetwork(TorsoPolicy):
    """Network of Q-learning: computes the values of Discrete actions.

    previous: the core (or the head, if there is no core) also takes the previous action, and the reward that came with
        the observation. In the first row of an episode, the previous action and this reward are 0.
    clipped: the reward that the core takes is clipped to ±1 (not in R2D2).
    support: values of the lowest and highest atom.
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
        """Choose actions in one row (one step) of B lanes. The caller turns gradients off.

        step: obs, reward, first; mask, if it exists; noise [B, noise]; epsilon [B], the probability of a random legal
            action instead of the best one. Without noise, the weights have none, and the first of several best actions
            is taken.

        Return {"action", "value", "chosen"}, [B] each, and the state after the row. "value" is max_a Q over legal
        actions, and "chosen" is Q of the action.
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
        """Return {"value", "chosen"} [T+1, B], as `act` does, for rows of a rollout. state: the state before row 0.
        batch: obs, reward, first, action, [T+1, B] each; mask, if it exists; noise, if the weights were noisy when
        acting.
        """
        q = self.scores(batch, state)
        q = expected_value(q, *self.support) if self.head.atoms else q
        best = greedy_action(q, batch.get("mask"))
        return {"value": take_action(q, best), "chosen": take_action(q, batch["action"])}

    def scores(self, batch: Batch, state: Batch, key: Tensor | None = None, cached: bool = False) -> Tensor:
        """Return q [R, B, A] or logits [R, B, A, K] of rows [R, B], for losses, with gradient if gradients are enabled.

        batch: obs. If the network has a core or takes `previous`, also first, reward and action.
        state: the state before row 0.
        key: key of one noise for all rows, int64 [1]. If `key` is None, keys come from batch["noise"], and without this
            entry the weights are not noisy.
        cached: whether to use the copies of `cache_weights`, if they exist, instead of the present weights.
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
        """Return the state after rows [R, B], R ≥ 1, computed with the present weights."""
        obs = tree.map(lambda x: x.flatten(0, 1), batch["obs"])
        with self._present_weights():
            _, after, _ = self._behind_core(self._features(self.torso, obs), batch, state)
        return {**after, "action": batch["action"][-1]} if self.previous else after

    @contextlib.contextmanager
    def _present_weights(self) -> Iterator[None]:
        """Within this context, compute with the present weights, not with the copies of `cache_weights`."""
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
    """Network of Ape-X DPG: an actor μ(s) and a critic Q(s, a) of real actions, with separate torsos.

    actor: the actor's torso. Layers of widths[0] units and of the action's size follow, each with tanh.
    critic: the critic's torso. A layer of widths[1] units with tanh takes the critic's features and the action, and a
        linear layer computes Q.
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
        """Choose actions in one row (one step) of B lanes. The caller turns gradients off.

        step: obs, noise [B, noise], and epsilon [B], the standard deviation of the normal noise added to each number of
            the action, in half ranges of the action's bounds. Without epsilon, the action is μ(s).

        Return {"action" [B, …] within the bounds, "value": Q(s, μ(s)) [B], "chosen": Q of the action [B]} and no state.
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
        """Return the inputs of a loss for observations and actions.

        With gradient to the critic: "q" [N], Q of the actions.
        With gradient to the actor: "best" [N, A], μ(s) scaled to [−1, 1], and "raw" [N, A], μ(s) before tanh.
        Without gradient: "value" [N], Q(s, μ(s)), and "slope" [N, A], dQ/da at μ(s).
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
        """Return Q [N] and dQ/da [N, A] of actions in [−1, 1], by the chain rule through the critic's layers."""
        first, tanh, last = cast("tuple[Linear, nn.Tanh, Linear]", tuple(self.judge))
        hidden = tanh(first(torch.cat([features, inner], 1)))
        slope = torch.ops.aten.tanh_backward(last.weight.expand_as(hidden), hidden) @ first.weight
        return last(hidden).squeeze(1), slope[:, -self.size :]

    def _inner(self, action: Tensor) -> Tensor:
        """Scale actions [N, …] to [−1, 1], as [N, A]. Numbers whose bounds are equal become 0."""
        return to_half_ranges(action.reshape(len(action), self.size), self.low, self.high)

    def _outer(self, inner: Tensor) -> Tensor:
        """Scale actions [N, A] in [−1, 1] to the environment's units, clipped to the bounds."""
        return from_half_ranges(inner, self.low, self.high).reshape(len(inner), *self.shape)


def _two(inputs: int, width: int, outputs: int, init: str) -> nn.Sequential:
    made = nn.Sequential(Linear(inputs, width), nn.Tanh(), Linear(width, outputs))
    initialize(made, init, 1.0)
    return made

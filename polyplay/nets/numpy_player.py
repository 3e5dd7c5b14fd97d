"""Acting of small networks without torch: NumPy and compiled loops on the weights' own memory.

For two layers of 64 and a few lanes, torch's calls take ten times as long as the numbers need. `fast_player` knows
networks of fully connected layers without a core, by the exact types of their parts. It gives what their `act` gives,
from the same noise, but for rounding: sums are in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.core.compiled import compiled
from polyplay.core.tree import Batch, Spec, Tree
from polyplay.nets.action_heads import EPS, NEVER, Categorical, Gaussian, MultiCategorical
from polyplay.nets.actor_critic import ActorCritic, TorsoPolicy
from polyplay.nets.layers import FlatLeaves, Linear
from polyplay.nets.policy import LEAST, TINY, Normalize, Player, RunningMoments
from polyplay.nets.q_network import DPGNetwork, QHead, QNetwork, epsilon_greedy_loop, support
from polyplay.nets.torsos import MLP, SeparateMLPs

Layer = Callable[[np.ndarray], np.ndarray]  # rows [B, n] → [B, m]
Read = Callable[[Tree], np.ndarray]  # observations [B, …] → float32 [B, n]
Choose = Callable[[np.ndarray, np.ndarray | None], tuple[np.ndarray, np.ndarray]]  # numbers, noise → action, logp


class ArrayPlayer(Player):
    """A player whose `act` takes and gives NumPy arrays."""


def fast_player(policy: Player) -> ArrayPlayer | None:
    """Make what acts as this network does, with the weights that it has at the time; None: it is to act itself.

    Its weights must stay where they are: bind it (weights.params.FlatParams) before.
    """
    make = PLAYERS.get(type(policy))
    if make is None or not _is_plain(cast("TorsoPolicy", policy)):
        return None
    try:
        return make(policy)
    except _Unknown:
        return None


class _Unknown(Exception):
    """A part of the network is of another type."""


def _is_plain(policy: TorsoPolicy) -> bool:
    """Whether rows depend on nothing but observations, and all numbers are float32 on the CPU."""
    own = all(x.device.type == "cpu" and x.dtype == torch.float32 for x in policy.parameters())
    return own and policy.core is None and not policy.previous and not policy.bf16


# Layers. NumPy's BLAS begins threads of its own for larger products, which would spin beside the run's: those are
# torch's.


PRODUCT, VECTOR = 1 << 18, 1 << 13  # multiplications of two matrices, and of a matrix and a vector
ZERO = np.float32(0.0)


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, ZERO)


ACTIVATIONS: dict[type[nn.Module], Layer] = {nn.Tanh: np.tanh, nn.ReLU: _relu}


def _dense(layer: nn.Module) -> Layer:
    """x·Wᵀ + b. Raises _Unknown: it is no Linear."""
    if type(layer) is not Linear:
        raise _Unknown
    weight, bias = layer.weight.detach(), np.zeros(1, np.float32) if layer.bias is None else _array(layer.bias)
    turned, wide, size = weight.numpy().T, weight.t(), weight.numel()
    least, most = 1 + (size > VECTOR), (VECTOR if len(weight) == 1 else PRODUCT) // size  # rows

    def apply(x: np.ndarray) -> np.ndarray:
        y = np.dot(x, turned) if least <= len(x) <= most else torch.mm(torch.from_numpy(x), wide).numpy()
        y += bias
        return y

    return apply


def _stack(layers: Iterable[nn.Module]) -> list[Layer]:
    """Layers that follow one another. Raises _Unknown."""
    return [ACTIVATIONS[type(layer)] if type(layer) in ACTIVATIONS else _dense(layer) for layer in layers]


def _through(layers: list[Layer], x: np.ndarray) -> np.ndarray:
    for layer in layers:
        x = layer(x)
    return x


def _known(torso: Any) -> MLP:
    """The torso. Raises _Unknown."""
    if type(torso) is not MLP:
        raise _Unknown
    return torso


def _array(x: Tensor) -> np.ndarray:
    """A tensor's own memory."""
    return x.detach().numpy()


# Observations.


def _read(torso: MLP, inputs: Any) -> Read:
    """What the torso's first layer takes. Raises _Unknown: something else than Normalize is before."""
    if inputs is not None and (type(inputs) is not Normalize or any(inputs.sets)):
        raise _Unknown
    moments = {} if inputs is None else dict(zip(inputs.paths, inputs.moments, strict=True))
    leaves = {path: _leaf(path, n, torso.flat, moments.get(path)) for path, n in torso.leaves}
    if list(leaves) == [""]:
        return leaves[""]

    def read(obs: Tree) -> np.ndarray:
        flat = dict(tree.leaves(obs))
        return np.concatenate([leaf(flat[path]) for path, leaf in leaves.items()], 1)

    return read


def _leaf(path: str, classes: Any, flat: FlatLeaves, moments: Any) -> Read:
    if classes:
        return _one_hot(classes)
    if moments is not None:
        return _normalized(moments)
    if path in flat.pixels:
        ends = flat.get_buffer(f"ends{list(flat.pixels).index(path)}").numpy().astype(np.float32)
        low, span = ends[0], np.maximum(ends[1] - ends[0], np.float32(1.0))
        return lambda x: (_flat(x) - low) / span
    return _flat


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1).astype(np.float32, copy=False)


def _one_hot(classes: int | tuple[int, ...]) -> Read:
    sizes = np.array(classes).reshape(-1)
    first, total = np.cumsum(sizes) - sizes, int(sizes.sum())
    return lambda x: _mark(x.reshape(len(x), -1).astype(np.int64) + first, total)


@compiled
def _mark(at: np.ndarray, n: int) -> np.ndarray:
    """float32 [B, n], 1 at the places int64 [B, k]."""
    out = np.zeros((len(at), n), np.float32)
    for b in range(len(at)):
        for i in at[b]:
            if i < 0 or i >= n:
                raise IndexError("an observation has a number that is none of its classes")
            out[b, i] = 1.0
    return out


def _normalized(moments: RunningMoments) -> Read:
    mean, origin, second, count = (
        _array(x).reshape(-1) for x in (moments.mean, moments.origin, moments.second, moments.count)
    )
    bound = float(moments.bound)

    def read(x: np.ndarray) -> np.ndarray:
        return _standardize(x.reshape(len(x), -1).astype(np.float64, copy=False), mean, origin, second, count, bound)

    return read


@compiled
def _standardize(
    x: np.ndarray, mean: np.ndarray, origin: np.ndarray, second: np.ndarray, count: np.ndarray, bound: float
) -> np.ndarray:
    """RunningMoments of x float64 [B, n] → float32 [B, n]."""
    out = np.empty(x.shape, np.float32)
    for i in range(mean.size):
        variance = second[i] - (mean[i] - origin[i]) ** 2
        variance = 0.0 if variance < 0.0 else variance
        deviation = math.sqrt(variance + (LEAST * mean[i] ** 2 + TINY)) if count[0] > 1.0 else 1.0
        for b in range(len(x)):
            z = (x[b, i] - mean[i]) / deviation
            out[b, i] = -bound if z < -bound else bound if z > bound else z
    return out


# Actions and their log-probabilities.


GUARDS = {"none": 0, "max": 1, "plus": 2}


def _categorical(head: Categorical) -> Choose:
    """Of one number or several."""
    sizes = np.array(head.nvec if isinstance(head, MultiCategorical) else (head.size,))
    guard, shape = GUARDS[head.guard], head.action.shape

    def choose(params: np.ndarray, noise: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        given = np.empty((len(params), len(sizes)), np.float32) if noise is None else noise
        action, logp = _draw(params, sizes, given, noise is None, guard)
        return action.reshape(len(params), *shape), logp

    return choose


@compiled
def _draw(
    params: np.ndarray, sizes: np.ndarray, noise: np.ndarray, likeliest: bool, guard: int
) -> tuple[np.ndarray, np.ndarray]:
    """Actions int64 [B, k] and log-probabilities float32 [B] of logits float32 [B, Σ sizes] and uniforms [B, k]: the
    inverse of the distribution function, as Categorical has it.
    """
    rows, parts = len(params), len(sizes)
    action, logp, weight = np.empty((rows, parts), np.int64), np.empty(rows, np.float32), np.empty(sizes.max())
    for b in range(rows):
        begin, total_logp = 0, 0.0
        for k in range(parts):
            x, n = params[b, begin : begin + sizes[k]], sizes[k]
            best = 0
            for i in range(1, n):
                if x[i] > x[best]:
                    best = i
            total = 0.0
            for i in range(n):
                weight[i] = math.exp(np.float64(x[i]) - np.float64(x[best]))
                total += weight[i]
            chosen = best
            if not likeliest:
                u = min(max(np.float64(noise[b, k]), EDGE), 1.0 - EDGE) * total
                chosen, below = 0, weight[0]
                while chosen < n - 1 and not below > u:  # numbers that are none end at the last
                    chosen += 1
                    below += weight[chosen]
            if guard == 0:
                total_logp += np.float64(x[chosen]) - np.float64(x[best]) - math.log(total)
            elif guard == 1:
                total_logp += math.log(max(weight[chosen] / total, EPS))
            else:
                total_logp += math.log(weight[chosen] / total + EPS)
            action[b, k] = chosen
            begin += n
        logp[b] = total_logp
    return action, logp


EDGE = 2.0**-24  # as action_heads.normal
ROOT, HALF_LOG_TAU = np.float32(math.sqrt(2.0)), np.float32(0.5 * math.log(2.0 * math.pi))


def _normal(noise: np.ndarray) -> np.ndarray:
    """Standard normal numbers of uniforms float32 [B, n], as action_heads.normal, over √2."""
    return torch.erfinv(torch.from_numpy(_spread(noise))).numpy()  # the only thing of torch: NumPy has none


@compiled
def _spread(noise: np.ndarray) -> np.ndarray:
    """Uniforms from (0, 1) to (−1, 1)."""
    out = np.empty(noise.shape, np.float32)
    for b in range(noise.shape[0]):
        for i in range(noise.shape[1]):
            u = min(max(noise[b, i], np.float32(EDGE)), np.float32(1.0 - EDGE))
            out[b, i] = np.float32(2.0) * u - np.float32(1.0)
    return out


def _gaussian(head: Gaussian) -> Choose:
    log_std, shape = _array(head.log_std), head.action.shape
    ends = torch.stack([torch.zeros(head.size), torch.ones(head.size)]) if head.range is None else head.range
    middle, half = ends.numpy()

    def choose(params: np.ndarray, noise: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        drawn = np.zeros(params.shape, np.float32) if noise is None else _normal(noise)
        action, logp = _steer(params, log_std, drawn, middle, half)
        return action.reshape(len(params), *shape), logp

    return choose


@compiled
def _steer(
    mean: np.ndarray, log_std: np.ndarray, drawn: np.ndarray, middle: np.ndarray, half: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian's actions [B, n] and log-probabilities [B], of the numbers that actions were rounded to; all float32."""
    rows, n = mean.shape
    action, logp = np.empty((rows, n), np.float32), np.empty(rows, np.float32)
    for b in range(rows):
        total = ZERO
        for i in range(n):
            outer = middle[i] + half[i] * (mean[b, i] + np.exp(log_std[i]) * (drawn[b, i] * ROOT))
            inner = (outer - middle[i]) / (half[i] if half[i] > ZERO else np.float32(1.0))
            z = (inner - mean[b, i]) * np.exp(-log_std[i])
            total += np.float32(-0.5) * z * z - log_std[i] - HALF_LOG_TAU
            action[b, i] = outer
        logp[b] = total
    return action, logp


HEADS: dict[type[nn.Module], Callable[[Any], Choose]] = {
    Categorical: _categorical,
    MultiCategorical: _categorical,
    Gaussian: _gaussian,
}


# The players.


class _NetworkPlayer(ArrayPlayer):
    """What players of all networks have. `act` is as the network's."""

    def __init__(self, policy: TorsoPolicy, torso: MLP):
        self.policy, self.noise, self.read = policy, policy.noise, _read(torso, policy.inputs)

    def spec(self) -> Spec:
        return self.policy.spec()

    def reward_scale(self) -> float | Tensor:
        return self.policy.reward_scale()


class _ActorCriticPlayer(_NetworkPlayer):
    def __init__(self, policy: ActorCritic):
        torso = policy.torso
        parts = [torso.policy, torso.value] if type(torso) is SeparateMLPs else [torso]
        own, *other = map(_known, parts)
        super().__init__(policy, own)
        if type(policy.head) not in HEADS:
            raise _Unknown
        self.choose = HEADS[type(policy.head)](policy.head)
        acting, valued = ([layer, nn.ReLU()] for layer in policy.hidden) if policy.hidden else ([], [])
        self.acting, self.valued = _stack([*acting, policy.actions]), _stack([*valued, policy.value])
        self.shared = _stack(own.layers)
        if other:
            self.acting, self.valued = self.shared + self.acting, _stack(other[0].layers) + self.valued
            self.shared = []

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """See ActorCritic.act."""
        x = _through(self.shared, self.read(step["obs"]))
        params, value, mask = _through(self.acting, x), _through(self.valued, x), step.get("mask")
        if mask is not None:
            params = np.where(mask, params, np.float32(NEVER))
        action, logp = self.choose(params, step.get("noise"))
        return {"action": action, "logp": logp, "value": value[:, 0]}, {}


class _ValuePlayer(_NetworkPlayer):
    def __init__(self, policy: QNetwork):
        torso, head = _known(policy.torso), policy.head
        super().__init__(policy, torso)
        if type(head) is not QHead or head.noise:
            raise _Unknown
        self.torso, self.actions, self.atoms = _stack(torso.layers), head.actions, head.atoms
        self.branches = list[list[Layer]]()
        for *hidden, last in cast("list[nn.ModuleList]", head.branches):
            self.branches.append(_stack([*(x for layer in hidden for x in (layer, nn.ReLU())), last]))
        self.shared = None if head.shared is None else _array(head.shared)
        self.places = _array(support(*policy.support, torch.zeros(max(head.atoms, 1))))

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """See QNetwork.act."""
        q, noise, epsilon = self._values(self.read(step["obs"])), step.get("noise"), step.get("epsilon")
        legal = step["mask"] if "mask" in step else np.ones(q.shape, np.bool_)
        if noise is None:
            if epsilon is not None:
                raise ValueError("epsilon without noise: chance comes from step['noise'] alone")
            noise = np.zeros((len(q), self.noise), np.float32)  # the first of several best
        chance = np.zeros(len(q), np.float32) if epsilon is None else epsilon
        action, value, chosen = epsilon_greedy_loop(q, legal, noise, chance)
        return {"action": action, "value": value, "chosen": chosen}, {}

    def _values(self, obs: np.ndarray) -> np.ndarray:
        """Q float32 [B, actions], as QHead has it."""
        x = _through(self.torso, obs)
        scores, *value = (_through(branch, x) for branch in self.branches)
        scores = scores.reshape(-1, self.actions, self.atoms) if self.atoms else scores
        if self.shared is not None:
            scores = scores + self.shared
        if value:
            mean = np.add.reduce(scores, 1, keepdims=True) / np.float32(self.actions)
            scores = (value[0][:, None] if self.atoms else value[0]) + scores - mean
        if not self.atoms:
            return scores
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        return np.dot(weight, self.places) / np.add.reduce(weight, -1)


class _DeterministicPlayer(_NetworkPlayer):
    def __init__(self, policy: DPGNetwork):
        actor, critic = _known(policy.actor), _known(policy.critic)
        super().__init__(policy, actor)
        self.shape, self.critic, self.judge = policy.shape, _stack(critic.layers), _stack(policy.judge)
        self.actor = _stack([*actor.layers, *policy.steer, nn.Tanh()])
        self.low, self.high = _array(policy.low), _array(policy.high)
        self.middle, self.half = self.low / 2 + self.high / 2, self.high / 2 - self.low / 2
        self.span = np.where(self.half > 0, self.half, np.float32(1.0))

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """See DPGNetwork.act."""
        x, noise, deviation = self.read(step["obs"]), step.get("noise"), step.get("epsilon")
        inner = best = _through(self.actor, x)
        if deviation is not None:
            if noise is None:
                raise ValueError("a deviation without noise: chance comes from step['noise'] alone")
            moved = best + deviation[:, None] * (_normal(noise) * ROOT)
            inner = np.minimum(np.maximum(moved, np.float32(-1.0)), np.float32(1.0))
        action = np.minimum(np.maximum(self.middle + self.half * inner, self.low), self.high)
        features = _through(self.critic, x)
        value, chosen = self._q(features, best), self._q(features, (action - self.middle) / self.span)
        return {"action": action.reshape(len(x), *self.shape), "value": value, "chosen": chosen}, {}

    def _q(self, features: np.ndarray, inner: np.ndarray) -> np.ndarray:
        return _through(self.judge, np.concatenate([features, inner], 1))[:, 0]


PLAYERS: dict[type[Player], Callable[[Any], ArrayPlayer]] = {
    ActorCritic: _ActorCriticPlayer,
    QNetwork: _ValuePlayer,
    DPGNetwork: _DeterministicPlayer,
}

"""Act with small networks without torch: NumPy computes the outputs from the network's weights.

For two layers of 64 units and a few lanes (parallel environments), torch spends ten times as long on calls as on the
arithmetic. `fast_player` supports fully connected networks, with or without an LSTM or a GRU. With the same noise,
NumPy's outputs equal those of the network's `act` up to rounding.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.core.compiled import compiled
from polyplay.core.tree import Batch, Spec, Tree
from polyplay.envs.spaces import Box
from polyplay.nets.action_heads import EPS, NEVER, Categorical, Gaussian, MultiCategorical
from polyplay.nets.actor_critic import ActorCritic, TorsoPolicy
from polyplay.nets.critics import LOG_STD, CriticsNetwork, GaussianActor
from polyplay.nets.layers import FlatLeaves, Linear
from polyplay.nets.policy import LEAST, TINY, Normalize, Player, Policy, PopArt, RunningMoments
from polyplay.nets.q_network import DPGNetwork, QHead, QNetwork, epsilon_greedy_loop, support
from polyplay.nets.recurrent import Core, GRUCell, LSTMCell
from polyplay.nets.torsos import MLP, Flat, SeparateMLPs

Layer = Callable[[np.ndarray], np.ndarray]  # rows [B, n] → [B, m]
Read = Callable[[Tree], np.ndarray]  # observations [B, …] → float32 [B, n]
Choose = Callable[[np.ndarray, np.ndarray | None], tuple[np.ndarray, np.ndarray]]  # params, noise → action, log π


class ArrayPlayer(Player):
    """A player whose `act` takes and returns NumPy arrays. Recurrent states stay tensors."""


def fast_player(policy: Player) -> ArrayPlayer | None:
    """Return a player that acts like `policy`, or None if the network has an unsupported layer.

    The player shares the policy's weights. FlatParams (weights.params) moves weights, so create it before this call.
    """
    make = PLAYERS.get(type(policy))
    if make is None or not _is_plain(cast("Policy", policy)):
        return None
    try:
        return make(policy)
    except _Unknown:
        return None


class _Unknown(Exception):
    """Raised if a layer or head of the network has an unsupported type."""


def _is_plain(policy: Policy) -> bool:
    """Tell whether the policy computes in float32 on the CPU and has no features of units (Torso.unit_features)."""
    own = all(x.device.type == "cpu" and x.dtype == torch.float32 for x in policy.parameters())
    return own and not (policy.bf16 or (isinstance(policy, TorsoPolicy) and policy.units))


# Layers. For larger products, NumPy's BLAS starts its own threads, which would spin and disturb the run's threads; so
# torch computes these products.


PRODUCT, VECTOR = 1 << 18, 1 << 13  # most multiplications of a product in NumPy: of two matrices; of matrix and vector
ZERO, HALF, ONE, TWO = (np.float32(x) for x in (0.0, 0.5, 1.0, 2.0))
FLOAT = np.dtype(np.float32)


@compiled
def _add(x: np.ndarray, bias: np.ndarray, cut: bool) -> None:
    """Add the bias [n] to each row of x [B, n], in place. If `cut` is true, apply ReLU."""
    for row in range(len(x)):
        for i in range(len(bias)):
            y = x[row, i] + bias[i]
            x[row, i] = ZERO if cut and y <= ZERO else y  # NaN stays NaN


def _dense(layer: nn.Module, activation: nn.Module | None) -> Layer:
    """Return a function that computes a Linear layer and its activation. Raises _Unknown for another type of layer."""
    if type(layer) not in (Linear, nn.Linear):
        raise _Unknown
    layer = cast("nn.Linear", layer)
    bias = np.zeros(len(layer.weight), np.float32) if layer.bias is None else _array(layer.bias)
    return _matrix(layer.weight.detach().t(), bias, activation)


def _matrix(weight: Tensor, bias: np.ndarray, activation: nn.Module | None) -> Layer:
    """Return a function that computes x·W + b, with W [n, m], and then the activation."""
    wide, turned, size = weight.detach(), weight.detach().numpy(), weight.numel()
    least, most = 1 + (size > VECTOR), (VECTOR if weight.shape[1] == 1 else PRODUCT) // size  # rows in NumPy
    cut, curved = type(activation) is nn.ReLU, type(activation) is nn.Tanh

    def apply(x: np.ndarray) -> np.ndarray:
        y = x.dot(turned) if least <= len(x) <= most else torch.mm(torch.from_numpy(x), wide).numpy()
        _add(y, bias, cut)
        return np.tanh(y, y) if curved else y

    return apply


def _stack(layers: Iterable[nn.Module]) -> list[Layer]:
    """Convert a sequence of layers and activations to functions. Raises _Unknown if a layer is not a Linear."""
    left, found = list(layers), list[Layer]()
    while left:
        layer = left.pop(0)
        found.append(_dense(layer, left.pop(0) if left and type(left[0]) in (nn.Tanh, nn.ReLU) else None))
    return found


def _through(layers: list[Layer], x: np.ndarray) -> np.ndarray:
    for layer in layers:
        x = layer(x)
    return x


def _known(torso: Any) -> MLP:
    if type(torso) is not MLP:
        raise _Unknown
    return torso


def _array(x: Tensor) -> np.ndarray:
    """Return an array that shares a tensor's memory."""
    return x.detach().numpy()


# Observations.


def _read(torso: MLP, inputs: Any) -> Read:
    """Return a function that flattens and normalizes observations. Raises _Unknown if `inputs` is unsupported."""
    if inputs is not None and (type(inputs) is not Normalize or any(inputs.sets)):
        raise _Unknown
    moments = {} if inputs is None else dict(zip(inputs.paths, inputs.moments, strict=True))
    return _read_leaves(torso.leaves, torso.flat, moments)


def _read_leaves(of: list[tuple[str, Any]], flat: FlatLeaves, moments: Mapping[str, Any]) -> Read:
    leaves = {path: _leaf(path, n, flat, moments.get(path)) for path, n in of}
    if list(leaves) == [""]:
        return leaves[""]

    def read(obs: Tree) -> np.ndarray:
        found = dict(tree.leaves(obs))
        return np.concatenate([leaf(found[path]) for path, leaf in leaves.items()], 1)

    return read


def _leaf(path: str, classes: Any, flat: FlatLeaves, moments: Any) -> Read:
    if classes:
        return _one_hot(classes)
    if moments is not None:
        return _normalized(moments)
    if path in flat.pixels:
        ends = flat.get_buffer(f"ends{list(flat.pixels).index(path)}").numpy().astype(np.float32)
        low, span = ends[0], np.maximum(ends[1] - ends[0], ONE)
        return lambda x: (_flat(x) - low) / span
    return _flat


def _flat(x: np.ndarray) -> np.ndarray:
    return x if x.ndim == 2 and x.dtype == FLOAT else x.reshape(len(x), -1).astype(np.float32, copy=False)


def _one_hot(classes: int | tuple[int, ...]) -> Read:
    sizes = np.array(classes).reshape(-1)
    first, total = np.cumsum(sizes) - sizes, int(sizes.sum())

    def read(x: np.ndarray) -> np.ndarray:
        at = x.reshape(len(x), -1).astype(np.int64) + first
        if at.min() < 0:
            raise IndexError("an observation has a number below 0 for one of its classes")
        out = np.zeros((len(x), total), np.float32)
        out[np.arange(len(x))[:, None], at] = 1.0
        return out

    return read


def _normalized(moments: RunningMoments) -> Read:
    mean, origin, second, count = (_array(x) for x in (moments.mean, moments.origin, moments.second, moments.count))
    bound = float(moments.bound)

    def read(x: np.ndarray) -> np.ndarray:
        deviation = np.float64(1.0)
        if count > 1.0:
            variance = np.maximum(second - np.square(mean - origin), 0.0)
            deviation = np.sqrt(variance + (LEAST * np.square(mean) + TINY))
        z = np.minimum(np.maximum((x - mean) / deviation, -bound), bound)
        return z.reshape(len(x), -1).astype(np.float32)

    return read


# Cores as in nets.recurrent, functions of the input's share of the gates, the state and the recurrent layer. They
# return the next state, the output first.


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return ONE / (ONE + np.exp(-x))


def _lstm(gates: np.ndarray, state: list[np.ndarray], recurrent: Layer) -> tuple[np.ndarray, ...]:
    h, c = state
    gates += recurrent(h)
    n = c.shape[1]
    three = _sigmoid(gates[:, : 3 * n])
    c = three[:, n : 2 * n] * c + three[:, :n] * np.tanh(gates[:, 3 * n :])
    return three[:, 2 * n :] * np.tanh(c), c


def _gru(gates: np.ndarray, state: list[np.ndarray], recurrent: Layer) -> tuple[np.ndarray, ...]:
    (h,) = state
    own, n = recurrent(h), h.shape[1]
    two = _sigmoid(gates[:, : 2 * n] + own[:, : 2 * n])
    candidate = np.tanh(gates[:, 2 * n :] + two[:, :n] * own[:, 2 * n :])
    return (candidate + two[:, n:] * (h - candidate),)


CELLS: dict[type[nn.Module], Callable[..., tuple[np.ndarray, ...]]] = {LSTMCell: _lstm, GRUCell: _gru}


class _Behind:
    """Computes the layers between torso and heads: appends the previous action and reward, and applies the core.

    Raises _Unknown if the network is not supported.
    """

    def __init__(self, policy: TorsoPolicy):
        self.head, self.previous, self.clipped, core = policy.head, policy.previous, policy.clipped, policy.core
        self.names: tuple[str, ...] = ()
        if self.previous and type(policy) is ActorCritic and policy.rewards is not None:
            raise _Unknown
        if core is not None:
            if type(core) is not Core or type(core.cell) not in CELLS:
                raise _Unknown
            self.cell, self.names = CELLS[type(core.cell)], core.cell.names
            self.input, self.recurrent = _dense(core.input, None), _dense(core.cell.recurrent, None)

    def __call__(self, x: np.ndarray, step: Batch, state: Batch) -> tuple[np.ndarray, Batch]:
        """Return the heads' input from features [B, n], and the core's next state."""
        alive = (~step["first"])[:, None].astype(np.float32)
        if self.previous:
            reward = step["reward"].astype(np.float32)
            reward = np.minimum(np.maximum(reward, -ONE), ONE) if self.clipped else reward
            before = self.head.embed(state["action"]).numpy()
            x = np.concatenate([x, before * alive, reward[:, None] * alive], 1)
        if not self.names:
            return x, {}
        after = self.cell(self.input(x), [state[k].numpy() * alive for k in self.names], self.recurrent)
        return after[0], {k: torch.from_numpy(v) for k, v in zip(self.names, after, strict=True)}


# Actions and their log-probabilities.


SMALL = np.float32(EPS)
EDGE = np.float32(2.0**-24)  # uniform numbers are clamped to [EDGE, 1 − EDGE], as in action_heads
ROOT, HALF_LOG_TAU = np.float32(math.sqrt(2.0)), np.float32(0.5 * math.log(2.0 * math.pi))


def _inside(noise: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(noise, EDGE), ONE - EDGE)


GUARDS = {"none": 0, "plus": 1, "max": 2}  # codes of action_heads' guards of logarithms


@compiled
def _choose(params: np.ndarray, noise: np.ndarray, guard: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose actions, int64 [N], from logits [N, n]. Also return their log-probabilities, float32 [N].

    With uniform noise [N, 1], draw the actions. Without noise (an array [0, 1]), choose the most probable ones.
    """
    rows, n = params.shape
    action, logp, weight = np.zeros(rows, np.int64), np.empty(rows, np.float32), np.empty(n, np.float32)
    for b in range(rows):
        best = 0
        for i in range(n):
            if not params[b, i] <= params[b, best] and params[b, best] == params[b, best]:
                best = i
        top, total, below = params[b, best], ZERO, ZERO
        for i in range(n):
            weight[i] = np.exp(params[b, i] - top)
            total += weight[i]
        at = best
        if len(noise):
            bound, at = min(max(noise[b, 0], EDGE), ONE - EDGE) * total, n
            for power in weight:  # NaN exceeds nothing, so the last action is chosen
                below += power
                at -= below > bound
            at = min(at, n - 1)
        action[b], chance = at, weight[at] / total
        if guard == 0:
            logp[b] = params[b, at] - top - np.log(total)
        else:
            logp[b] = np.log(chance + SMALL if guard == 1 else max(chance, SMALL))
    return action, logp


NONE = np.zeros((0, 1), np.float32)  # no noise


def _categorical(head: Categorical) -> Choose:
    guard = GUARDS[head.guard]
    return lambda params, noise: _choose(params, NONE if noise is None else noise, guard)


def _several(head: MultiCategorical) -> Choose:
    parts, shape, places, choose_one = head.noise, head.action.shape, head.at.numpy(), _categorical(head)

    def choose(params: np.ndarray, noise: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        filled = np.full((len(params), parts * head.most), np.float32(NEVER))
        filled[:, places] = params
        action, logp = choose_one(filled.reshape(-1, head.most), None if noise is None else noise.reshape(-1, 1))
        return action.reshape(len(params), *shape), np.add.reduce(logp.reshape(-1, parts), 1)

    return choose


def _normal(noise: np.ndarray) -> np.ndarray:
    """Convert uniform numbers float32 [B, n] to standard normal numbers, as action_heads.normal does."""
    inverse = torch.erfinv(torch.from_numpy(TWO * _inside(noise) - ONE)).numpy()  # NumPy has no erfinv
    return inverse * ROOT


def _gaussian(head: Gaussian) -> Choose:
    log_std, shape = _array(head.log_std), head.action.shape
    middle, half = (None, ONE) if head.range is None else head.range.numpy()
    span = np.where(half > 0, half, ONE)

    def choose(params: np.ndarray, noise: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        inner = params if noise is None else params + np.exp(log_std) * _normal(noise)
        action = inner if middle is None else middle + half * inner
        inner = action if middle is None else (action - middle) / span  # of the rounded action
        z = (inner - params) * np.exp(-log_std)
        logp = np.add.reduce(-HALF * z * z - log_std - HALF_LOG_TAU, 1)
        return action.reshape(len(params), *shape), logp

    return choose


HEADS: dict[type[nn.Module], Callable[[Any], Choose]] = {
    Categorical: _categorical,
    MultiCategorical: _several,
    Gaussian: _gaussian,
}


# Players, one class per kind of network.


class _NetworkPlayer(ArrayPlayer):
    """Base of the players that act like a TorsoPolicy."""

    def __init__(self, policy: TorsoPolicy, torso: MLP):
        self.policy, self.noise, self.read = policy, policy.noise, _read(torso, policy.inputs)
        self.torso = list[Layer]()
        self.behind = _Behind(policy) if policy.previous or policy.core is not None else None

    @np.errstate(all="ignore")  # no warnings about NaN: the learner stops at NaN
    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """See Policy.act."""
        x, after = _through(self.torso, self.read(step["obs"])), Batch()
        if self.behind is not None:
            x, after = self.behind(x, step, state)
        out = self.outputs(x, step)
        if self.behind is not None and self.behind.previous:
            after["action"] = tree.map(torch.from_numpy, out["action"])
        return out, after

    @abstractmethod
    def outputs(self, x: np.ndarray, step: Batch) -> Batch:
        """Return the network's outputs for B lanes, from the heads' input x [B, n]."""

    def spec(self) -> Spec:
        return self.policy.spec()

    def state_spec(self) -> Spec:
        return self.policy.state_spec()

    def initial(self, lanes: int) -> Batch:
        return self.policy.initial(lanes)

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
        self.units = (_array(policy.values.shift), _array(policy.values.scale)) if type(policy.values) is PopArt else ()
        acting, valued = ([layer, nn.ReLU()] for layer in policy.hidden) if policy.hidden else ([], [])
        self.acting, self.valued = _stack([*acting, policy.actions]), _stack([*valued, policy.value])
        self.torso = _stack(own.layers)
        if other:
            self.acting, self.valued = self.torso + self.acting, _stack(other[0].layers) + self.valued
            self.torso = []

    def outputs(self, x: np.ndarray, step: Batch) -> Batch:
        """See ActorCritic.act."""
        params, value, mask = _through(self.acting, x), _through(self.valued, x), step.get("mask")
        if mask is not None:
            params = np.where(mask, params, np.float32(NEVER))
        action, logp = self.choose(params, step.get("noise"))
        task = step.get("task", 0) if value.shape[1] > 1 else 0
        value = value[np.arange(len(value)), task]
        if self.units:
            shift, scale = self.units
            value = value * scale[task] + shift[task]
        return {"action": action, "logp": logp, "value": value}


class _ValuePlayer(_NetworkPlayer):
    def __init__(self, policy: QNetwork):
        torso, head = _known(policy.torso), policy.head
        super().__init__(policy, torso)
        if type(head) is not QHead or head.noise:
            raise _Unknown
        self.torso, self.actions, self.atoms = _stack(torso.layers), head.actions, head.atoms
        self.legal = np.ones((0, self.actions), np.bool_)  # used if rows have no mask
        self.branches = list[list[Layer]]()
        for *hidden, last in cast("list[nn.ModuleList]", head.branches):
            self.branches.append(_stack([*(x for layer in hidden for x in (layer, nn.ReLU())), last]))
        self.shared = None if head.shared is None else _array(head.shared)
        self.places = _array(support(*policy.support, torch.zeros(max(head.atoms, 1))))

    def outputs(self, x: np.ndarray, step: Batch) -> Batch:
        """See QNetwork.act."""
        q, noise, epsilon = self._values(x), step.get("noise"), step.get("epsilon")
        if len(self.legal) != len(q):
            self.legal = np.ones((len(q), self.actions), np.bool_)
        legal = step.get("mask", self.legal)
        if noise is None:
            if epsilon is not None:
                raise ValueError("epsilon without noise: chance comes from step['noise'] alone")
            noise = np.zeros((len(q), self.noise), np.float32)  # 0: the first of several best actions
        chance = np.zeros(len(q), np.float32) if epsilon is None else epsilon
        action, value, chosen = epsilon_greedy_loop(q, legal, noise, chance)
        return {"action": action, "value": value, "chosen": chosen}

    def _values(self, x: np.ndarray) -> np.ndarray:
        """Return Q float32 [B, actions], as in QHead."""
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
        self.span = np.where(self.half > 0, self.half, ONE)

    def outputs(self, x: np.ndarray, step: Batch) -> Batch:
        """See DPGNetwork.act."""
        noise, deviation = step.get("noise"), step.get("epsilon")
        inner = best = _through(self.actor, x)
        if deviation is not None:
            if noise is None:
                raise ValueError("a deviation without noise: chance comes from step['noise'] alone")
            moved = best + deviation[:, None] * _normal(noise)
            inner = np.minimum(np.maximum(moved, -ONE), ONE)
        action = np.minimum(np.maximum(self.middle + self.half * inner, self.low), self.high)
        features = _through(self.critic, x)
        value, chosen = self._q(features, best), self._q(features, (action - self.middle) / self.span)
        return {"action": action.reshape(len(x), *self.shape), "value": value, "chosen": chosen}

    def _q(self, features: np.ndarray, inner: np.ndarray) -> np.ndarray:
        return _through(self.judge, np.concatenate([features, inner], 1))[:, 0]


class _CriticsPlayer(ArrayPlayer):
    """Player for the networks of SAC and TD3. Acting needs only the actor, so the critics are not computed."""

    def __init__(self, policy: CriticsNetwork):
        trunk, head, space = cast("Flat", policy.trunk), cast("Any", policy.box), policy.actions.space
        if type(trunk) is not Flat or not isinstance(space, Box) or policy.values or policy.actor.batch_norms:
            raise _Unknown
        self.policy, self.noise, self.size = policy, policy.noise, head.size
        self.read = _read_leaves([(path, n) for path, n, _ in trunk.leaves], trunk.flat, {})
        self.layers = [
            _matrix(w[0], _array(b[0, 0]), policy.actor.last(i)) for i, (w, b) in enumerate(policy.actor.pairs())
        ]
        self.shape, self.gaussian = space.shape, isinstance(head, GaussianActor)
        self.tanh_std = self.gaussian and head.log_std == "tanh"
        self.deviation = np.float32(0.0 if self.gaussian else head.deviation)
        self.low, self.high = _array(head.low), _array(head.high)
        self.middle, self.half = self.low / 2 + self.high / 2, self.high / 2 - self.low / 2

    @np.errstate(all="ignore")
    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """See CriticsNetwork.act."""
        raw, noise, epsilon = _through(self.layers, self.read(step["obs"])), step.get("noise"), step.get("epsilon")
        y = np.tanh(self._drawn(raw, noise)) if self.gaussian or noise is None else self._moved(raw, noise)
        if noise is not None and epsilon is not None:
            y = np.where(epsilon[:, None] >= ONE, TWO * noise - ONE, y)
        action = np.minimum(np.maximum(self.middle + self.half * y, self.low), self.high)
        return {"action": action.reshape(len(raw), *self.shape)}, {}

    def _drawn(self, raw: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        """Draw from the actor's normal distribution, before tanh. Without noise, return the mean."""
        mean, log_std = raw[:, : self.size], raw[:, self.size :]
        if noise is None:
            return mean
        low, high = LOG_STD
        std = np.exp(-5.0 + 3.5 * (np.tanh(log_std) + ONE) if self.tanh_std else np.clip(log_std, low, high))
        return mean + std.astype(np.float32) * _normal(noise)

    def _moved(self, raw: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return np.clip(np.tanh(raw) + self.deviation * _normal(noise), -ONE, ONE)

    def spec(self) -> Spec:
        return self.policy.spec()


PLAYERS: dict[type[Player], Callable[[Any], ArrayPlayer]] = {
    ActorCritic: _ActorCriticPlayer,
    QNetwork: _ValuePlayer,
    DPGNetwork: _DeterministicPlayer,
    CriticsNetwork: _CriticsPlayer,
}

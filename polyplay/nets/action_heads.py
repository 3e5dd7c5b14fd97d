"""Action heads: probability distributions over actions, computed from the output of a policy's last layer.

Each kind of action space has a head class. A nested action space consists of parts, and its head Composite holds a head
for each part. In some nested spaces, the value of the first part decides which other parts are used. The head of such a
space is ConditionalHead. The comment above ActionHead lists the methods of all heads. The method `masked` applies a
mask of legal actions (bool, docs/concepts/rows.md) to the distribution, so that no illegal action is drawn. For
discrete actions, a guard can keep logarithms of probabilities near 0 finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field, Tree
from polyplay.envs.spaces import ActionRange, ActionSpec, Box, Conditional, Discrete, Leaf, MultiBinary, MultiDiscrete
from polyplay.nets.layers import Axis, AxisSegment, Linear, TensorAxes, axis, one_hot

# Logarithms of probabilities: exact, or guarded against probabilities near 0, as in GA3C.
#
# Logits have shape [..., n]; an illegal value's logit is so far below the largest that its probability is 0. Acting and
# learning use the same guard, so importance ratios are ratios of guarded probabilities. π = softmax(logits). The
# entropy is H = −Σ π·(guarded logarithm of π). Actions are drawn from π, without a guard.
#
#     guard   logarithm for value a     source
#     none    log π(a)                  most papers; GA3C's code with USE_LOG_SOFTMAX
#     max     log max(π(a), ε)          GA3C's code: no gradient at all where π(a) < ε
#     plus    log(π(a) + ε)             GA3C's paper, eq. 5: the gradient stays finite


EPS = 1e-6


class SeveralHeads(nn.Module):
    """Base of heads for actions that have several parts. Surgery, which enlarges a network, finds the parts' heads by
    the names in `stable`. The keys of `stable` are the heads' paths in this module.
    """

    def __init__(self, parts: Mapping[str, Any], modules: Iterable[str]):
        """`parts`: head of each part, by the part's path. `modules`: paths of these heads in this module, in order."""
        super().__init__()
        self.paths, self.parts, heads = tuple(parts), dict(parts), parts.values()
        self.sizes, self.noises = [h.size for h in heads], [h.noise for h in heads]
        self.size, self.noise, self.inputs = sum(self.sizes), sum(self.noises), sum(h.inputs for h in heads)
        self.action = tree.nest({path: h.action for path, h in parts.items()})
        self.stable = {module: f"action {path}" for module, path in zip(modules, parts, strict=True)}


# Conditional actions: a first part's value decides which other parts are used. OpenAI et al. 2019, Dota 2, Appendix F.


class ConditionalHead(SeveralHeads):
    """Head for conditional actions, in which the value v of a first part decides which other parts are used.

    The probability of an action is π(a) = π(v) Π π(part | v), over the parts that v uses. The entropy is H = H(first) +
    Σ_v π(v) Σ_part H(part | v). The params are those of the first part, then those of the other parts. For each value v
    that uses a part, the part has separate params.

    The mask of a part is [N, values]. For a part after the first, it may also be [N, values of the first part, values].
    Unused parts are 0 in actions and in `embed`, and do not affect log-probability, entropy and gradient. The mode
    consists of the first part's most probable value v, and of the most probable value of each part that v uses.
    """

    at: Tensor  # [values of the first part, numbers]: for each value, indices in params of all parts' numbers
    used: Tensor  # bool [other parts, values of the first part]: whether the value uses the part
    users: Tensor  # the first part's values that use the first other part, then those that use the second, …

    def __init__(self, name: str, first: Categorical, rest: Mapping[str, PartHead], uses: Mapping[str, Sequence[int]]):
        """`name`, `first`: name and head of the first part. `rest`: head of each other part, by name. `uses`: for each
        other part, by name, the values of the first part that use it.
        """
        super().__init__({name: first, **rest}, ["first", *(f"rest.{i}" for i in range(len(rest)))])
        self.first = first
        self.rest: Iterable[PartHead] = nn.ModuleList(rest.values())  # type: ignore[assignment]
        self.counts, self.widths = [len(uses[path]) for path in rest], self.sizes
        self.sizes = [n * width for n, width in zip([1, *self.counts], self.widths, strict=True)]
        self.size = sum(self.sizes)
        self.values = users = [list(uses[path]) for path in rest]  # per other part: the first part's values that use it
        values = range(first.size)
        places = [list(range(first.size)) for _ in values]
        for start, width, some in zip(accumulate(self.sizes[:-1]), self.widths[1:], users, strict=True):
            for v in values:
                begin = start + width * (some.index(v) if v in some else 0)
                places[v] += range(begin, begin + width)
        self.register_buffer("at", torch.tensor(places), persistent=False)
        self.register_buffer("used", torch.tensor([[v in some for v in values] for some in users]), persistent=False)
        self.register_buffer("users", torch.tensor([v for some in users for v in some]), persistent=False)

    def axis(self, without: str | None = None) -> Axis:
        """Return the names along the axis of `params`, without those of the part `without`."""
        (name, first), *rest = self.parts.items()
        found = [*first.segments(name)]
        for (path, part), values in zip(rest, self.values, strict=True):
            for value in values if path != without else ():
                found += part.segments(path, f" of {name} {value}")
        return tuple(found)

    def masked(self, params: Tensor, mask: Tree) -> Tensor:
        first, *parts = self._every(params)
        out = [self.first.masked(first, mask[self.paths[0]]) if self.paths[0] in mask else first]
        for head, x, path, users in zip(self.rest, parts, self.paths[1:], self.users.split(self.counts), strict=True):
            if (legal := mask.get(path)) is not None:
                legal = legal.unsqueeze(1) if legal.dim() == 2 else legal.index_select(1, users)
                x = head.masked(x, legal)
            out.append(x.flatten(1))
        return torch.cat(out, 1)

    def sample(self, params: Tensor, noise: Tensor) -> Tree:
        own, *others = noise.split(self.noises, 1)
        value = self.first.sample(params[:, : self.first.size], own)
        given = zip(self.rest, self._given(params, value)[1:], others, strict=True)
        return self._chosen(value, [head.sample(x, u) for head, x, u in given])

    def mode(self, params: Tensor) -> Tree:
        value = self.first.mode(params[:, : self.first.size])
        given = zip(self.rest, self._given(params, value)[1:], strict=True)
        return self._chosen(value, [head.mode(x) for head, x in given])

    def logp(self, params: Tensor, action: Tree) -> Tensor:
        value = action[self.paths[0]].long()
        first, *parts = self._given(params, value)
        each = zip(self.rest, parts, self.paths[1:], self.used.index_select(1, value), strict=True)
        own = [torch.where(used, head.logp(x, action[path]), 0.0) for head, x, path, used in each]
        return reduce(torch.add, own, self.first.logp(first, value))

    def entropy(self, params: Tensor) -> Tensor:
        first, *parts = self._every(params)
        chances = first.softmax(-1).index_select(1, self.users)
        each = torch.cat([head.entropy(x) for head, x in zip(self.rest, parts, strict=True)], 1)
        return self.first.entropy(first) + (chances * each).sum(1)

    def embed(self, action: Tree) -> Tensor:
        value = action[self.paths[0]].long()
        each = zip(self.rest, self.paths[1:], self.used.index_select(1, value), strict=True)
        parts = [head.embed(action[path]) * used.unsqueeze(1) for head, path, used in each]
        return torch.cat([self.first.embed(value), *parts], 1)

    def _every(self, params: Tensor) -> list[Tensor]:
        """Return params [N, width] of the first part, and [N, values that use the part, width] of each other part."""
        first, *parts = params.split(self.sizes, 1)
        shapes = zip(parts, self.counts, self.widths[1:], strict=True)
        return [first, *(x.unflatten(1, (count, width)) for x, count, width in shapes)]

    def _given(self, params: Tensor, value: Tensor) -> Sequence[Tensor]:
        """Return each part's params [N, width], given the first part's value. Params of unused parts are arbitrary."""
        return params.gather(1, self.at.index_select(0, value)).split(self.widths, 1)

    def _chosen(self, value: Tensor, parts: Iterable[Tensor]) -> Tree:
        """Return the action that joins the first part's `value` and the other `parts`, with 0 in unused parts."""
        unused = ~self.used.index_select(1, value)
        kept = [x.masked_fill(no.view(-1, *[1] * (x.dim() - 1)), 0) for x, no in zip(parts, unused, strict=True)]
        return dict(zip(self.paths, [value, *kept], strict=True))


# Actions that choose a unit of the game by its embedding (OpenAI et al. 2019, Dota 2), as in Vinyals et al. 2015.


class UnitPointer(nn.Module):
    """Last layer for actions whose part `part` chooses a unit of the game. It computes the params of a ConditionalHead.

    For each value of the first part that uses `part`, a linear layer computes a query q from the features. The logit of
    unit u is q·e_u/√E, where e_u is the unit's embedding, of size E. All other params are linear in the features.
    """

    def __init__(self, columns: Axis, head: ConditionalHead, part: str, embedding: int):
        super().__init__()
        at = head.paths.index(part)
        self.sizes, self.embedding = [sum(head.sizes[:at]), sum(head.sizes[at + 1 :])], embedding
        names = [f"query of action {part} of {head.paths[0]} {value}" for value in head.values[at - 1]]
        queries = tuple(AxisSegment(name, (embedding,), fixed=True, silent=True) for name in names)
        self.query, self.others = Linear.along(queries, columns), Linear.along(head.axis(part), columns)

    def forward(self, x: Tensor, units: Tensor) -> Tensor:
        """Return params [N, head.size] from features x [N, features] and units' embeddings [N, units · E]."""
        queries, keys = (y.unflatten(1, (-1, self.embedding)) for y in (self.query(x), units))
        named = torch.bmm(queries, keys.transpose(1, 2)) * self.embedding**-0.5
        before, behind = self.others(x).split(self.sizes, 1)
        return torch.cat([before, named.flatten(1), behind], 1)


NEVER = -1e9  # a logit that gives probability exactly 0; finite, because −∞ would make gradients NaN
_EDGE = 2.0**-24  # uniform numbers are clamped to [_EDGE, 1 - _EDGE]
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


def normal(noise: Tensor) -> Tensor:
    """Convert uniform numbers in (0, 1) to standard normal numbers of the same shape, which lie within ±5.4."""
    return torch.erfinv(2.0 * noise.clamp(_EDGE, 1.0 - _EDGE) - 1.0) * math.sqrt(2.0)


def to_half_ranges(action: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Scale actions [N, A] linearly from [`low`, `high`] to [−1, 1]. If `low` equals `high`, this value becomes 0."""
    half = high / 2 - low / 2
    return (action - (low / 2 + high / 2)) / torch.where(half > 0, half, 1.0)


def from_half_ranges(inner: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Scale actions from [−1, 1] back to the environment's units, and clip them to the bounds. See `to_half_ranges`."""
    return torch.minimum(torch.maximum((low / 2 + high / 2) + (high / 2 - low / 2) * inner, low), high)


class LeafHead(nn.Module):
    """Base of heads for an action space that is not nested."""

    def __init__(self, size: int, noise: int, action: Field):
        super().__init__()
        self.size, self.inputs, self.noise, self.action = size, size, noise, action

    @property
    def parts(self) -> Mapping[str, Any]:
        return {"": self}

    def axis(self) -> Axis:
        return self.segments()

    def segments(self, path: str = "", whose: str = "", silent: bool = True) -> Axis:
        """Return the names along the axis of `params`. A name consists of the part's `path` and the suffix `whose`. If
        `silent`, the weights of params that surgery adds start at 0.
        """
        name = f"action {path}".strip() + whose
        return (AxisSegment(name, self.action.shape or (self.size,), part=path or None, silent=silent),)

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, params, NEVER)

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat.to(getattr(torch, self.action.dtype)).reshape(flat.shape[0], *self.action.shape)


class Categorical(LeafHead):
    """Categorical distribution over n actions, given by logits. Actions are int64 scalars from 0 to n − 1."""

    def __init__(self, n: int, guard: str = "none", noise: int = 1, action: Field = Field((), "int64")):
        super().__init__(n, noise, action)
        self.guard = guard

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """Draw actions from logits `params` [..., n]. The action is the first value whose cumulative probability
        exceeds the uniform number `noise` [..., 1], so an action of probability 0 is never drawn.
        """
        cdf = params.softmax(-1).cumsum(-1)
        u = noise.clamp(_EDGE, 1.0 - _EDGE) * cdf[..., -1:]
        found = torch.searchsorted(cdf, u, right=True).squeeze(-1)
        return found.clamp_(max=params.shape[-1] - 1)  # NaN logits give the last value; the learner stops at NaN

    def mode(self, params: Tensor) -> Tensor:
        return params.argmax(-1)

    def logp(self, params: Tensor, action: Tensor) -> Tensor:
        logp = F.log_softmax(params, -1) if self.guard == "none" else guarded_log(params.softmax(-1), self.guard)
        return logp.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        logp = F.log_softmax(params, -1) if self.guard == "none" else None
        pi = params.softmax(-1) if logp is None else logp.exp()
        return -(pi * (guarded_log(pi, self.guard) if logp is None else logp)).sum(-1)

    def embed(self, action: Tensor) -> Tensor:
        return one_hot(action, self.size)


def guarded_log(pi: Tensor, guard: str) -> Tensor:
    """Return the guarded logarithm of probabilities of any shape. `guard`: max or plus (see the top of the file)."""
    return ((pi + EPS) if guard == "plus" else pi.clamp_min(EPS)).log()


class _Independent(Categorical):
    """Base of MultiCategorical and Bernoulli: several independent categorical numbers."""

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        return self._shaped(super().sample(self._rows(params), noise.unsqueeze(-1)))

    def logp(self, params: Tensor, action: Tensor) -> Tensor:
        return super().logp(self._rows(params), action.reshape(-1, self.noise)).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return super().entropy(self._rows(params)).sum(-1)

    def _rows(self, params: Tensor) -> Tensor:
        """Reshape params [..., size] to logits [..., numbers, values per number]."""
        raise NotImplementedError


class MultiCategorical(_Independent):
    """Head for independent categorical numbers, int64 [*shape]. Number i has nvec[i] values. The params are logits."""

    at: Tensor  # [size]: index of each logit once each number's logits are padded to `most`

    def __init__(self, shape: tuple[int, ...], nvec: tuple[int, ...], guard: str = "none"):
        super().__init__(sum(nvec), guard, len(nvec), Field(tuple(shape), "int64"))
        self.nvec, self.most = nvec, max(nvec)
        at = [i * self.most + k for i, n in enumerate(nvec) for k in range(n)]
        self.register_buffer("at", torch.tensor(at), persistent=False)

    def segments(self, path: str = "", whose: str = "", silent: bool = True) -> Axis:
        name, places = f"action {path}".strip(), zip(np.ndindex(*self.action.shape), self.nvec, strict=True)
        return tuple(AxisSegment(f"{name}{list(i)}{whose}", (n,), False, path or None, silent) for i, n in places)

    def mode(self, params: Tensor) -> Tensor:
        return self._shaped(self._rows(params).argmax(-1))

    def embed(self, action: Tensor) -> Tensor:
        return one_hot(action.flatten(), self.most).unflatten(0, (-1, self.noise)).flatten(1)[:, self.at]

    def _rows(self, params: Tensor) -> Tensor:
        if self.size < self.noise * self.most:
            filled = params.new_full((*params.shape[:-1], self.noise * self.most), NEVER)
            params = filled.index_copy(-1, self.at, params)
        return params.unflatten(-1, (self.noise, self.most))


class Bernoulli(_Independent):
    """Head for independent bits, int8 [*shape]. The params are the logits of the value 1. A mask has two entries per
    bit: whether 0 is legal, and whether 1 is legal.
    """

    def __init__(self, shape: tuple[int, ...], guard: str = "none"):
        super().__init__(math.prod(shape), guard, math.prod(shape), Field(tuple(shape), "int8"))

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        off, on = mask.unflatten(-1, (self.size, 2)).unbind(-1)
        return torch.where(on, torch.where(off, params, -NEVER), NEVER)

    def mode(self, params: Tensor) -> Tensor:
        return self._shaped(params > 0)

    def embed(self, action: Tensor) -> Tensor:
        return action.reshape(-1, self.inputs).float()

    def _rows(self, params: Tensor) -> Tensor:
        return torch.stack([torch.zeros_like(params), params], -1)


class Gaussian(LeafHead):
    """Head for continuous actions, with independent normal distributions. The network computes the means. The
    logarithms of the standard deviations are weights that do not depend on the state.

    Actions are float32 [*shape], in the environment's units. They may lie beyond the bounds: environment pools clip
    them, but log-probabilities are those of the unclipped actions.

    `scaled`: a Box, or None. If given, the distribution and embedded actions are scaled so that the bounds of the Box
        are −1 and 1. Elements without bounds are not scaled.
    """

    def __init__(self, shape: tuple[int, ...], scaled: Box | None = None):
        super().__init__(math.prod(shape), math.prod(shape), Field(tuple(shape), "float32"))
        self.log_std = nn.Parameter(torch.zeros(self.size))
        self.axes = {"log_std": TensorAxes((axis("numbers", *shape),))}
        # `range` is not a buffer, since buffers are published and averaged with the weights
        self.range: Tensor | None = None
        if scaled is not None and not (known := ActionRange.of(scaled)).unit:
            self.range = torch.from_numpy(np.stack([known.middle, known.half])).reshape(2, -1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Gaussian:
        super()._apply(fn, recurse)
        self.range = None if self.range is None else fn(self.range)  # to another device
        return self

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        return params  # a Box has no mask (envs/masks)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        return self._shaped(self._outer(params + self.log_std.exp() * normal(noise)))

    def mode(self, params: Tensor) -> Tensor:
        return self._shaped(self._outer(params))

    def logp(self, params: Tensor, action: Tensor) -> Tensor:
        z = (self._inner(action.reshape(params.shape)) - params) * (-self.log_std).exp()
        return (-0.5 * z * z - self.log_std - _HALF_LOG_TAU).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return (self.log_std + (0.5 + _HALF_LOG_TAU)).sum().expand(params.shape[:-1])

    def embed(self, action: Tensor) -> Tensor:
        return self._inner(action.reshape(-1, self.inputs))

    def _outer(self, inner: Tensor) -> Tensor:
        """Convert actions from the network's scale to the environment's units."""
        return inner if self.range is None else self.range[0] + self.range[1] * inner

    def _inner(self, outer: Tensor) -> Tensor:
        """Convert actions from the environment's units to the network's scale."""
        if self.range is None:
            return outer
        middle, half = self.range
        return (outer - middle) / torch.where(half > 0, half, 1.0)


class Composite(SeveralHeads):
    """Head for an action of several independent parts, each with a head. The action is a dict of the parts' actions."""

    def __init__(self, heads: Mapping[str, PartHead]):
        super().__init__(heads, [f"heads.{i}" for i in range(len(heads))])
        self.heads: Iterable[PartHead] = nn.ModuleList(heads.values())  # type: ignore[assignment]

    def axis(self) -> Axis:
        return tuple(s for path, head in self.parts.items() for s in head.segments(path))

    def masked(self, params: Tensor, mask: Tree) -> Tensor:
        masks = dict(tree.leaves(mask))
        each = self._each(params, self.paths)
        return torch.cat([h.masked(x, masks[path]) if path in masks else x for h, x, path in each], 1)

    def sample(self, params: Tensor, noise: Tensor) -> Tree:
        return self._nested(h.sample(x, u) for h, x, u in self._each(params, noise.split(self.noises, 1)))

    def mode(self, params: Tensor) -> Tree:
        return self._nested(h.mode(x) for h, x in self._each(params))

    def logp(self, params: Tensor, action: Tree) -> Tensor:
        return reduce(torch.add, [h.logp(x, a) for h, x, a in self._each(params, self._leaves(action))])

    def entropy(self, params: Tensor) -> Tensor:
        return reduce(torch.add, [h.entropy(x) for h, x in self._each(params)])

    def embed(self, action: Tree) -> Tensor:
        return torch.cat([h.embed(a) for h, a in zip(self.heads, self._leaves(action), strict=True)], 1)

    def _each(self, params: Tensor, *others: Sequence[str] | Sequence[Tensor]) -> Iterator[tuple]:
        """Yield each part's head, its params, and its item of each sequence in `others`."""
        return zip(self.heads, params.split(self.sizes, 1), *others, strict=True)

    def _leaves(self, action: Tree) -> list[Tensor]:
        found = dict(tree.leaves(action))
        return [found[path] for path in self.paths]

    def _nested(self, actions: Iterable[Tensor]) -> Tree:
        return tree.nest(dict(zip(self.paths, actions, strict=True)))


# A head is a distribution over actions [N, *action.shape], given `params` [N, size], the last layer's output. A
# PartHead's `masked` and `entropy` also take params [..., size]. Heads are modules, since some have weights. If an
# action has several parts, actions and masks are dicts with the same keys as the head's `action`. All heads have
#
#     size, noise, inputs     numbers per row: of `params`; of uniform noise in (0, 1) for `sample`; of `embed`
#     parts, axis()           the parts' heads by path, "" for a single part; names along `params`
#     masked(params, mask)    params in which illegal actions have probability 0
#     sample(params, noise)   an action drawn by noise [N, noise]; mode(params): the most probable one
#     logp(params, action)    log-probabilities [N]; entropy(params): entropies [N]
#     embed(action)           [N, inputs]: an action as a network's input


PartHead = Categorical | Gaussian  # a head for one space
ActionHead = PartHead | Composite | ConditionalHead


def for_space(space: ActionSpec, guard: str = "none", scaled: bool = True) -> ActionHead:
    """Make the head for an action space.

    `guard`: how to limit logarithms of probabilities near 0: none, max or plus (see the top of the file).
    `scaled`: whether bounded continuous actions are scaled to ±1 (see Gaussian).
    Raises UserError if the space is not supported, or if a guard is given but all actions are continuous.
    """
    if guard != "none" and all(isinstance(leaf, Box) for _, leaf in tree.leaves(space)):
        needs = "needs actions with probabilities, but the environment's are real numbers"
        raise UserError(f"--correction {guard}: {needs}; use none or vtrace")
    if isinstance(space, Conditional):
        rest = {path: _for_leaf(space[path], guard, scaled) for path in space.uses}
        return ConditionalHead(space.first, Categorical(space[space.first].n, guard), rest, space.uses)
    if isinstance(space, dict):
        return Composite({path: _for_leaf(leaf, guard, scaled) for path, leaf in tree.leaves(space)})
    return _for_leaf(space, guard, scaled)


def _for_leaf(space: Leaf, guard: str, scaled: bool) -> PartHead:
    if isinstance(space, Discrete):
        return Categorical(int(space.n), guard)
    if isinstance(space, MultiDiscrete):
        return MultiCategorical(space.shape, space.nvec, guard)
    if isinstance(space, MultiBinary):
        return Bernoulli(space.shape, guard)
    if isinstance(space, Box):
        return Gaussian(tuple(space.shape), space if scaled else None)
    raise UserError(
        f"network: actions {space} are not supported; use Discrete, MultiDiscrete, MultiBinary, Box or a dict of these"
    )

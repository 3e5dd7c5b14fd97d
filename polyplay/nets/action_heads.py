"""From numbers to actions: what a policy's last layer means for an action space.

Another space is another Head, several at once are a Composite of heads, or a ConditionalHead where the first decides
which others count: everything else sees only this protocol.
A mask of legal actions (bool, docs/concepts/rows.md) comes first: `masked` numbers never draw an illegal action.
Categorical parts compute their logarithms by a LogProbGuard; densities of real numbers have none.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Field, Spec, Tree
from polyplay.envs.action_range import ActionRange
from polyplay.envs.spaces import ActionSpec, Box, Conditional, Discrete, Leaf, MultiBinary, MultiDiscrete
from polyplay.nets.conditional_head import ConditionalHead
from polyplay.nets.log_prob import EXACT, LogProbGuard

_NEVER = -1e9  # as a logit: probability exactly 0, and finite, so that no gradient is NaN
_EDGE = 2.0**-24  # uniforms are kept in [_EDGE, 1 - _EDGE]
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class ActionHead(Protocol):
    """A distribution over actions [N, *action.shape] given `params` [N, size], the last layer's output; `masked` and
    `entropy` of leaves take [..., size].

    A module, for what it learns itself. Of several parts actions and masks are dicts, as its `action`.
    """

    size: int  # numbers it takes per row
    noise: int  # uniforms in (0, 1) a sample takes
    inputs: int  # numbers of `embed`
    action: Spec

    def masked(self, params: Tensor, mask: Tree) -> Tensor: ...  # params under which only legal actions have a chance
    def sample(self, params: Tensor, noise: Tensor) -> Tree: ...  # noise [N, noise]
    def mode(self, params: Tensor) -> Tree: ...
    def logp(self, params: Tensor, action: Tree) -> Tensor: ...  # [N]
    def entropy(self, params: Tensor) -> Tensor: ...  # [N]
    def embed(self, action: Tree) -> Tensor: ...  # [N, inputs]: an action as a network's input


def normal(noise: Tensor) -> Tensor:
    """Standard normal numbers of uniforms in (0, 1), each of one; within ±5.4."""
    return torch.erfinv(2.0 * noise.clamp(_EDGE, 1.0 - _EDGE) - 1.0) * math.sqrt(2.0)


class _Leaf(nn.Module):
    """What the heads of one space share."""

    guard: LogProbGuard

    def __init__(self, size: int, noise: int, action: Field, guard: LogProbGuard | None = None):
        super().__init__()
        self.size, self.inputs, self.noise, self.action = size, size, noise, action
        if guard is not None:
            self.guard = guard

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, params, _NEVER)


class Categorical(_Leaf):
    """One of n actions by logits; int64 scalars."""

    def __init__(self, n: int, guard: LogProbGuard = EXACT):
        super().__init__(n, 1, Field((), "int64"), guard)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        return _draw(self.guard.probabilities(params), noise)

    def mode(self, params: Tensor) -> Tensor:
        return params.argmax(-1)

    def logp(self, params: Tensor, action: Tensor) -> Tensor:
        return self.guard.chosen(params, action)

    def entropy(self, params: Tensor) -> Tensor:
        return self.guard.entropy(params)

    def embed(self, action: Tensor) -> Tensor:
        return F.one_hot(action.long(), self.size).float()


def _draw(probabilities: Tensor, noise: Tensor) -> Tensor:
    """Inverse CDF over the last dimension: the first value whose cumulative probability exceeds the uniform; never
    one of probability 0. probabilities [..., n], noise [..., 1] → int64 [...].
    """
    cdf = probabilities.cumsum(-1)
    u = noise.clamp(_EDGE, 1.0 - _EDGE) * cdf[..., -1:]
    found = torch.searchsorted(cdf, u, right=True).squeeze(-1)
    return found.clamp_(max=probabilities.shape[-1] - 1)  # NaN logits find none: the learner shall see them and stop


class _Independent(_Leaf, ABC):
    """Several categorical numbers, independent of each other: what MultiCategorical and Bernoulli share."""

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        return self._shaped(_draw(self.guard.probabilities(self._rows(params)), noise.unsqueeze(-1)))

    def logp(self, params: Tensor, action: Tensor) -> Tensor:
        return self.guard.chosen(self._rows(params), action.reshape(-1, self.noise)).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return self.guard.entropy(self._rows(params)).sum(-1)

    @abstractmethod
    def _rows(self, params: Tensor) -> Tensor:
        """Logits [..., numbers, values of each]."""

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat.to(getattr(torch, self.action.dtype)).reshape(flat.shape[0], *self.action.shape)


class MultiCategorical(_Independent):
    """One of nvec[i] values for each number i, independently: int64 [*shape]. params: logits, number by number."""

    at: Tensor  # [size]: where each logit stands among rows of `most`

    def __init__(self, shape: tuple[int, ...], nvec: tuple[int, ...], guard: LogProbGuard = EXACT):
        super().__init__(sum(nvec), len(nvec), Field(tuple(shape), "int64"), guard)
        self.nvec, self.most = nvec, max(nvec)
        at = [i * self.most + k for i, n in enumerate(nvec) for k in range(n)]
        self.register_buffer("at", torch.tensor(at), persistent=False)

    def mode(self, params: Tensor) -> Tensor:
        return self._shaped(self._rows(params).argmax(-1))

    def embed(self, action: Tensor) -> Tensor:
        return F.one_hot(action.reshape(-1, self.noise).long(), self.most).flatten(1)[:, self.at].float()

    def _rows(self, params: Tensor) -> Tensor:
        """Filled up with values that have no chance."""
        if self.size < self.noise * self.most:
            filled = params.new_full((*params.shape[:-1], self.noise * self.most), _NEVER)
            params = filled.index_copy(-1, self.at, params)
        return params.unflatten(-1, (self.noise, self.most))


class Bernoulli(_Independent):
    """Independent switches by the logits of 1: int8 [*shape]. Masks: is 0 legal, is 1 legal, bit by bit."""

    def __init__(self, shape: tuple[int, ...], guard: LogProbGuard = EXACT):
        super().__init__(math.prod(shape), math.prod(shape), Field(tuple(shape), "int8"), guard)

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        off, on = mask.unflatten(-1, (self.size, 2)).unbind(-1)
        return torch.where(on, torch.where(off, params, -_NEVER), _NEVER)

    def mode(self, params: Tensor) -> Tensor:
        return self._shaped(params > 0)

    def embed(self, action: Tensor) -> Tensor:
        return action.reshape(-1, self.inputs).float()

    def _rows(self, params: Tensor) -> Tensor:
        return torch.stack([torch.zeros_like(params), params], -1)


class Gaussian(_Leaf):
    """Independent normals: means by the network, log standard deviations learnt but the same in every state.

    Actions are float32 [*shape], in the environment's units and unbounded; pools clip them, log-probabilities are those
    of the unclipped. `scaled` to a Box: means, deviations and densities, and an action as an input, are in half ranges,
    −1 at its low and 1 at its high; parts without bounds are as they are.
    """

    def __init__(self, shape: tuple[int, ...], scaled: Box | None = None):
        super().__init__(math.prod(shape), math.prod(shape), Field(tuple(shape), "float32"))
        self.log_std = nn.Parameter(torch.zeros(self.size))
        # no buffers, which would be published and averaged with the weights
        known = None if scaled is None else ActionRange.of(scaled)
        both = None if known is None or known.unit else np.stack([known.middle, known.half])
        self.range = None if both is None else torch.from_numpy(both).reshape(2, -1)

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
        """From half ranges to the environment's units."""
        return inner if self.range is None else self.range[0] + self.range[1] * inner

    def _inner(self, outer: Tensor) -> Tensor:
        """The other way; 0 where there is but one number to choose."""
        if self.range is None:
            return outer
        middle, half = self.range
        return (outer - middle) / torch.where(half > 0, half, 1.0)

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat.reshape(*flat.shape[:-1], *self.action.shape)


class Composite(nn.Module):
    """Several heads at once, independent of each other: actions are a dict of theirs."""

    def __init__(self, heads: Mapping[str, ActionHead]):
        """heads: by the path of their part of the action."""
        super().__init__()
        self.paths = tuple(heads)
        self.heads: Iterable[ActionHead] = nn.ModuleList(heads.values())  # type: ignore[assignment, arg-type]
        self.sizes, self.noises = [h.size for h in heads.values()], [h.noise for h in heads.values()]
        self.size, self.noise = sum(self.sizes), sum(self.noises)
        self.inputs = sum(h.inputs for h in heads.values())
        self.action = tree.nest({path: h.action for path, h in heads.items()})

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
        """Of each part its head, its numbers, and what else there is of it."""
        return zip(self.heads, params.split(self.sizes, 1), *others, strict=True)

    def _leaves(self, action: Tree) -> list[Tensor]:
        found = dict(tree.leaves(action))
        return [found[path] for path in self.paths]

    def _nested(self, actions: Iterable[Tensor]) -> Tree:
        return tree.nest(dict(zip(self.paths, actions, strict=True)))


def for_space(space: ActionSpec, guard: LogProbGuard = EXACT, scaled: bool = True) -> ActionHead:
    """The head for an action space; `guard` is that of its categorical parts; scaled: −1 … 1 are the bounds of its real
    parts. UserError for spaces that have none.
    """
    leaves = [leaf for _, leaf in tree.leaves(space)] if isinstance(space, dict) else [space]
    if not guard.exact and all(isinstance(leaf, Box) for leaf in leaves):
        raise UserError(
            f"--correction {guard.kind}: it is for actions with probabilities, the environment's are real numbers; "
            "use none, or vtrace"
        )
    if isinstance(space, Conditional):
        rest = {path: _for_leaf(space[path], guard, scaled) for path in space.uses}
        return ConditionalHead(space.first, Categorical(space[space.first].n, guard), rest, space.uses)
    if isinstance(space, dict):
        return Composite({path: _for_leaf(leaf, guard, scaled) for path, leaf in tree.leaves(space)})
    return _for_leaf(space, guard, scaled)


def _for_leaf(space: Leaf, guard: LogProbGuard, scaled: bool) -> ActionHead:
    if isinstance(space, Discrete):
        return Categorical(int(space.n), guard)
    if isinstance(space, MultiDiscrete):
        return MultiCategorical(space.shape, space.nvec, guard)
    if isinstance(space, MultiBinary):
        return Bernoulli(space.shape, guard)
    if isinstance(space, Box):
        return Gaussian(tuple(space.shape), space if scaled else None)
    raise UserError(
        f"network: actions {space} have no head; allowed are Discrete, MultiDiscrete, MultiBinary and Box, and dicts"
    )

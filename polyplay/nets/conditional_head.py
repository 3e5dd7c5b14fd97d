"""A first part of an action, then only the parts that its value uses: OpenAI et al. 2019, Dota 2, Appendix F."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from polyplay.common.tree import Tree

if TYPE_CHECKING:
    from polyplay.nets.action_heads import ActionHead, Categorical


class ConditionalHead(nn.Module):
    """π(a) = π(v) Π π(part | v), over the parts that value v of the first part uses; H = H(first) + Σ π(v) H(part | v).

    params, of one pass: the first part's numbers, then of each other part, in order, its own for each value that uses
    it. Masks of the other parts are [N, values], or one for each value of the first part [N, values of it, values].
    Parts that are not used are 0 in an action and as an input, and nothing in log-probability, entropy and gradient.
    The mode is the likeliest value, then the likeliest of what that uses.
    """

    at: Tensor  # [values of the first, numbers of all parts]: where these stand in params, given the value
    used: Tensor  # bool [other parts, values of the first]
    users: Tensor  # of each other part in turn, the values of the first that use it

    def __init__(
        self, name: str, first: Categorical, rest: Mapping[str, ActionHead], uses: Mapping[str, Sequence[int]]
    ):
        """The first part's name and head, those of the others, and the values that use each of these."""
        super().__init__()
        self.paths, heads = (name, *rest), [first, *rest.values()]
        self.first, self.rest = first, _modules(rest.values())
        self.counts, self.widths = [len(uses[path]) for path in rest], [h.size for h in heads]
        self.sizes = [n * width for n, width in zip([1, *self.counts], self.widths, strict=True)]
        self.noises = [h.noise for h in heads]
        self.size, self.noise, self.inputs = sum(self.sizes), sum(self.noises), sum(h.inputs for h in heads)
        self.action = {path: h.action for path, h in zip(self.paths, heads, strict=True)}
        users, values = [list(uses[path]) for path in rest], range(first.size)
        self.register_buffer("at", torch.tensor([self._places(v, users) for v in values]), persistent=False)
        self.register_buffer("used", torch.tensor([[v in some for v in values] for some in users]), persistent=False)
        self.register_buffer("users", torch.tensor([v for some in users for v in some]), persistent=False)

    def _places(self, value: int, users: list[list[int]]) -> list[int]:
        """Where in params the numbers of all parts stand, given a value of the first."""
        found = list(range(self.first.size))
        starts = accumulate(self.sizes[:-1])
        for start, width, some in zip(starts, self.widths[1:], users, strict=True):
            begin = start + width * (some.index(value) if value in some else 0)
            found += range(begin, begin + width)
        return found

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
        chances = self.first.guard.probabilities(first).index_select(1, self.users)
        each = torch.cat([head.entropy(x) for head, x in zip(self.rest, parts, strict=True)], 1)
        return self.first.entropy(first) + (chances * each).sum(1)

    def embed(self, action: Tree) -> Tensor:
        value = action[self.paths[0]].long()
        each = zip(self.rest, self.paths[1:], self.used.index_select(1, value), strict=True)
        parts = [head.embed(action[path]) * used.unsqueeze(1) for head, path, used in each]
        return torch.cat([self.first.embed(value), *parts], 1)

    def _every(self, params: Tensor) -> list[Tensor]:
        """The first part's numbers [N, width], then of each other part [N, values that use it, width]."""
        first, *parts = params.split(self.sizes, 1)
        shapes = zip(parts, self.counts, self.widths[1:], strict=True)
        return [first, *(x.unflatten(1, (count, width)) for x, count, width in shapes)]

    def _given(self, params: Tensor, value: Tensor) -> Sequence[Tensor]:
        """Of each part its numbers [N, width], given the first part's value; where that doesn't use it, some."""
        return params.gather(1, self.at.index_select(0, value)).split(self.widths, 1)

    def _chosen(self, value: Tensor, parts: Iterable[Tensor]) -> Tree:
        """The action of these parts, 0 where the value doesn't use them."""
        unused = ~self.used.index_select(1, value)
        kept = [x.masked_fill(no.view(-1, *[1] * (x.dim() - 1)), 0) for x, no in zip(parts, unused, strict=True)]
        return dict(zip(self.paths, [value, *kept], strict=True))


def _modules(heads: Iterable[ActionHead]) -> Iterable[ActionHead]:
    return nn.ModuleList(heads)  # type: ignore[return-value, arg-type]

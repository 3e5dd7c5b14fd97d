"""A first part of an action, then only the parts that its value uses: OpenAI et al. 2019, Dota 2, Appendix F."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from polyplay.common import tree
from polyplay.common.tree import Tree

if TYPE_CHECKING:
    from polyplay.nets.action_heads import ActionHead, Categorical


class ConditionalHead(nn.Module):
    """π(a) = π(v) Π π(part | v), over the parts that value v of the first part uses; H = H(first) + Σ π(v) H(part | v).

    params, of one pass: the first part's numbers, then of each other part, in order, its own for each value that uses
    it. Masks of the other parts are [N, numbers], or one for each value of the first part [N, values, numbers]. Parts
    that are not used are 0 in an action and as an input, and nothing in log-probability, entropy and gradient. The mode
    is the likeliest value, then the likeliest of what that uses.
    """

    values: Tensor  # of each part, one after the other, the values of the first part that use it
    place: Tensor  # [parts, values of the first]: which of its values that is
    used: Tensor  # bool [parts, values of the first]

    def __init__(self, first: tuple[str, Categorical], rest: Mapping[str, ActionHead], uses: Mapping[str, Sequence[int]]):
        """The first part's name and head, those of the others, and the values that use each of these."""
        super().__init__()
        self.first, self.rest = first[1], _modules(rest.values())
        self.paths = (first[0], *rest)
        heads = [first[1], *rest.values()]
        self.counts = [len(uses[path]) for path in rest]
        self.sizes = [n * h.size for n, h in zip([1, *self.counts], heads, strict=True)]
        self.noises = [h.noise for h in heads]
        self.size, self.noise, self.inputs = sum(self.sizes), sum(self.noises), sum(h.inputs for h in heads)
        self.action = {path: h.action for path, h in zip(self.paths, heads, strict=True)}
        place = torch.zeros(len(rest), self.first.size, dtype=torch.int64)
        used = torch.zeros(len(rest), self.first.size, dtype=torch.bool)
        for i, path in enumerate(rest):
            values = torch.tensor(uses[path])
            place[i, values], used[i, values] = torch.arange(len(values)), True
        self.register_buffer("values", torch.tensor([v for path in rest for v in uses[path]]), persistent=False)
        self.register_buffer("place", place, persistent=False)
        self.register_buffer("used", used, persistent=False)

    def masked(self, params: Tensor, mask: Tree) -> Tensor:
        first, parts = self._cut(params)
        out = [first if self.paths[0] not in mask else self.first.masked(first, mask[self.paths[0]])]
        for path, (head, x), values in zip(self.paths[1:], parts, self.values.split(self.counts), strict=True):
            legal = mask.get(path)
            if legal is not None:
                legal = legal.unsqueeze(1).expand(-1, len(values), -1) if legal.dim() == 2 else legal[:, values]
                x = head.masked(x.flatten(0, 1), legal.flatten(0, 1)).view_as(x)
            out.append(x.flatten(1))
        return torch.cat(out, 1)

    def sample(self, params: Tensor, noise: Tensor) -> Tree:
        own, *others = noise.split(self.noises, 1)
        value = self.first.sample(params[:, : self.first.size], own)
        return self._chosen(params, value, [lambda head, x, u=u: head.sample(x, u) for u in others])

    def mode(self, params: Tensor) -> Tree:
        value = self.first.mode(params[:, : self.first.size])
        return self._chosen(params, value, [lambda head, x: head.mode(x)] * len(self.counts))

    def logp(self, params: Tensor, action: Tree) -> Tensor:
        value = action[self.paths[0]].long()
        each = zip(self._given(params, value), self.paths[1:], self.used[:, value], strict=True)
        parts = [torch.where(used, head.logp(x, action[path]), 0.0) for (head, x), path, used in each]
        return reduce(torch.add, parts, self.first.logp(params[:, : self.first.size], value))

    def entropy(self, params: Tensor) -> Tensor:
        first, parts = self._cut(params)
        chance = self.first.guard.probabilities(first)[:, self.values]
        each = torch.cat([head.entropy(x.flatten(0, 1)).view(x.shape[:2]) for head, x in parts], 1)
        return self.first.entropy(first) + (chance * each).sum(1)

    def embed(self, action: Tree) -> Tensor:
        value = action[self.paths[0]].long()
        each = zip(self.rest, self.paths[1:], self.used[:, value], strict=True)
        parts = [head.embed(action[path]) * used.unsqueeze(1) for head, path, used in each]
        return torch.cat([self.first.embed(value), *parts], 1)

    def _cut(self, params: Tensor) -> tuple[Tensor, Iterator[tuple[ActionHead, Tensor]]]:
        """The first part's numbers [N, size]; of each other part its head and numbers [N, values that use it, size]."""
        first, *parts = params.split(self.sizes, 1)
        return first, ((h, x.unflatten(1, (n, h.size))) for h, x, n in zip(self.rest, parts, self.counts, strict=True))

    def _given(self, params: Tensor, value: Tensor) -> Iterator[tuple[ActionHead, Tensor]]:
        """Of each part its head and its numbers [N, size] for these values; for values that don't use it, some."""
        for (head, x), place in zip(self._cut(params)[1], self.place[:, value], strict=True):
            at = place.view(-1, 1, 1).expand(-1, 1, head.size)
            yield head, (x if x.shape[1] == 1 else x.gather(1, at)).squeeze(1)

    def _chosen(self, params: Tensor, value: Tensor, choose: Iterable[Callable[..., Tensor]]) -> Tree:
        """The action of these values: of the parts that they use what `choose` makes of head and numbers, else 0."""
        parts = [value]
        for (head, x), one, used in zip(self._given(params, value), choose, self.used[:, value], strict=True):
            part = one(head, x)
            parts.append(part.masked_fill(~used.view(-1, *[1] * (part.dim() - 1)), 0))
        return tree.nest(dict(zip(self.paths, parts, strict=True)))


def _modules(heads: Iterable[ActionHead]) -> Iterable[ActionHead]:
    return nn.ModuleList(heads)  # type: ignore[arg-type]

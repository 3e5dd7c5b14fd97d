"""Actions that name a unit, by the unit: OpenAI et al. 2019, Dota 2; a pointer as in Vinyals et al. 2015."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyplay.nets.conditional_head import ConditionalHead
from polyplay.nets.layers import Linear


class UnitPointer(nn.Module):
    """A ConditionalHead's numbers. Of `part`, for each value of the first that uses it, number u is q·e_u/√E: a query q
    of the features, and E numbers of unit u. All others come from one Linear.
    """

    def __init__(self, features: int, head: ConditionalHead, part: str, embedding: int):
        super().__init__()
        at = head.paths.index(part)
        self.sizes, self.embedding = [sum(head.sizes[:at]), sum(head.sizes[at + 1 :])], embedding
        self.query = Linear(features, head.counts[at - 1] * embedding)
        self.others = Linear(features, sum(self.sizes))

    def forward(self, x: Tensor, units: Tensor) -> Tensor:
        """x [N, features], units [N, units · E] → params [N, head.size]."""
        queries, keys = (y.unflatten(1, (-1, self.embedding)) for y in (self.query(x), units))
        named = torch.bmm(queries, keys.transpose(1, 2)) * self.embedding**-0.5
        before, behind = self.others(x).split(self.sizes, 1)
        return torch.cat([before, named.flatten(1), behind], 1)

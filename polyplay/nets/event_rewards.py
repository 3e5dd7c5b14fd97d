"""Rewards of an agent's own: weights on what happens in the game, which evolution tunes (Jaderberg et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from polyplay.nets.axes import Axes, AxisSegment, TensorAxes

PREFIX = "reward_"  # of the hyperparameter that is an event's weight


class EventRewards(nn.Module):
    """r = Σ_e w_e · events_e. The weights are buffers: they travel with the network's, and no gradient changes them."""

    weights: Tensor

    def __init__(self, events: Sequence[str]):
        super().__init__()
        self.names = [PREFIX + event for event in events]
        self.register_buffer("weights", torch.zeros(len(events)))

    def forward(self, events: Tensor) -> Tensor:
        """[..., E] → [...]."""
        return (events * self.weights).sum(-1)

    def follow(self, values: Mapping[str, float]) -> None:
        """Take over the weights that are hyperparameters."""
        for i, name in enumerate(self.names):
            if name in values:
                self.weights[i] = values[name]

    def axes(self) -> Axes:
        """See nets.axes."""
        return {"weights": TensorAxes("weights", (tuple(AxisSegment(name, (1,), part=name) for name in self.names),))}

"""Rewards of an agent's own: weights on what happens in the game, which evolution tunes (Jaderberg et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from polyplay.envs.team_spirit import OWN_REWARD, TEAM_REWARD
from polyplay.nets.axes import Axes, AxisSegment, TensorAxes

PREFIX = "reward_"  # of the hyperparameter that is an event's weight
SPIRIT = "team_spirit"  # the hyperparameter τ: r = (1 − τ) · own + τ · team's mean (Berner et al. 2019, appendix G)


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
        known = dict(values)
        if SPIRIT in values:
            known |= {PREFIX + OWN_REWARD: 1.0 - values[SPIRIT], PREFIX + TEAM_REWARD: values[SPIRIT]}
        for i, name in enumerate(self.names):
            if name in known:
                self.weights[i] = known[name]

    def axes(self) -> Axes:
        """See nets.axes."""
        return {"weights": TensorAxes("weights", (tuple(AxisSegment(name, (1,), part=name) for name in self.names),))}

"""A torso for toy:catch that looks at every board it is shown, acting and learning: one that the game never showed,
torn or half written, ends the run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from polyplay.nets.policy import Torso

ROWS, COLUMNS = 10, 5


def whole(obs: torch.Tensor) -> torch.Tensor:
    """bool [N]: which of the boards float32 [N, 50] are the game's: one ball above and one paddle below, or both in the
    last row. All zeros is none: what a network is tried on, and what fills a sequence up.
    """
    boards = obs.reshape(-1, ROWS, COLUMNS)
    above, below = boards[:, :-1].sum((1, 2)), boards[:, -1].sum(1)
    bits = ((boards == 0) | (boards == 1)).all(2).all(1)
    fits = ((above == 1) & (below == 1)) | ((above == 0) & (below <= 2))
    return bits & fits


class Witness(Torso):
    """[N, 50] → [N, 64]"""

    def __init__(self, spec: Any):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(ROWS * COLUMNS, 64), nn.ReLU())
        self.features = 64

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        if not bool(whole(obs).all()):
            raise RuntimeError(f"{int((~whole(obs)).sum())} of {len(obs)} boards are torn")
        return self.body(obs)

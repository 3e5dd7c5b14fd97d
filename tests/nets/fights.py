"""Observations of units, and actions that name one of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polyplay.core.tree import Batch, Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Conditional, Discrete
from tests.nets.helpers import arrivals, masks, vector

OBS = {
    "own": vector(5),
    "allies": Field((2, 4), "float32"),
    "last": vector(3),
    "enemies": Field((3, 4), "float32"),
    "towers": Field((4, 2), "float32"),
}
SETS = {"allies": slice(0, 2), "enemies": slice(2, 5), "towers": slice(5, 9)}
PARTS = {"primary": Discrete(4), "unit": Discrete(9), "offset": Discrete(5)}
MASK = {"primary": Field((4,), "bool"), "unit": Field((4, 9), "bool")}
FIGHT = EnvSpec(OBS, Conditional(PARTS, {"unit": (1, 3), "offset": (2, 3)}), mask=MASK)


def appear(obs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same with units that are there or not; where they are not, the rest of their row is still random."""
    for path in SETS:
        obs[path][..., 0] = (torch.rand(obs[path].shape[:-1]) < 0.6).float()
    return obs


def rows(n: int, lanes: int, noise: int) -> Batch:
    """Rows as they come from a pool, with noise and masks."""
    batch = arrivals(OBS, n, lanes, noise)
    return {**batch, "obs": appear(batch["obs"]), "mask": masks(FIGHT, n, lanes)}


def doubles(layers: torch.nn.Module) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights and biases of layers in order, as float64."""
    linear = [m for m in layers.modules() if isinstance(m, torch.nn.Linear)]
    return [(m.weight.detach().double().numpy(), m.bias.detach().double().numpy()) for m in linear]

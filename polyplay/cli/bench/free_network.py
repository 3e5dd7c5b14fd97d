"""A network that costs next to nothing: `polyplay bench --without network` puts it in another's place."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn

from polyplay.common.errors import UserError
from polyplay.common.tree import Field
from polyplay.envs import EnvSpec

NAME = "polyplay.cli.bench.free_network:tiny_network"
PIXELS = 64  # at most


class TinyNetwork(nn.Module):
    """Some numbers of the observation as they are: [N, …] → [N, features]."""

    def __init__(self, size: int):
        super().__init__()
        self.step = max(1, size // PIXELS)
        self.features = len(range(0, size, self.step))

    def forward(self, obs: Tensor) -> Tensor:
        few = obs.flatten(1)[:, :: self.step]
        return few if few.is_floating_point() else few.float() / 255.0


def tiny_network(spec: EnvSpec) -> nn.Module:
    """The torso for an EnvSpec. Raises UserError: observations that are no single array."""
    if not isinstance(spec.obs, Field) or not spec.obs.shape:
        raise UserError("--without network: there is a free one for a single array of numbers only")
    return TinyNetwork(prod(spec.obs.shape))

"""Fully connected network for vectors, and for trees of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Tree
from polyplay.envs.pool import EnvSpec
from polyplay.envs.space_files import byte_bounds
from polyplay.nets.axes import Axes, AxisSegment, axes_within, linear_axes, observed_axis
from polyplay.nets.layers import ByteScale, Linear, initialise

# Elementwise kernels whose bits don't depend on an element's place in the batch; ELU's and SiLU's do.
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


class MLP(nn.Module):
    """Observation → [N, features]. Leaves of a tree are flattened and concatenated in the spec's order.

    Discrete and MultiDiscrete leaves (those in the spec's `classes`: path → number of values, or numbers) become
    one-hot, bytes are scaled from their declared bounds to [0, 1], other numbers are taken as they are. Two layers of
    64 with tanh are PPO's for MuJoCo (Schulman et al. 2017; there the value has its own).
    """

    def __init__(
        self, spec: EnvSpec, hidden: tuple[int, ...] = (64, 64), activation: str = "tanh", init: str = "orthogonal"
    ):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UserError(f"activation: {activation!r} is not one of {', '.join(ACTIVATIONS)}")
        if not hidden or min(hidden) < 1:
            raise UserError(f"hidden: {tuple(hidden)} given, allowed are one or more sizes of at least 1")
        self.leaves = [(path, spec.classes.get(path, 0)) for path, _ in tree.leaves(spec.obs)]
        bounds = byte_bounds(spec)
        self.scaled, self.scales = list(bounds), nn.ModuleList(ByteScale(*ends) for ends in bounds.values())
        self.columns = observed_axis(spec)
        size = sum(segment.size for segment in self.columns)
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [Linear(size, width), ACTIVATIONS[activation]()]
            size = width
        self.layers, self.features = nn.Sequential(*layers), size
        initialise(self, init)

    def forward(self, obs: Tree) -> Tensor:
        leaves = dict(tree.leaves(obs))
        flat = [self._floats(path, leaves[path], n) for path, n in self.leaves]
        return self.layers(flat[0] if len(flat) == 1 else torch.cat(flat, 1))

    def _floats(self, path: str, x: Tensor, n: int | tuple[int, ...]) -> Tensor:
        """A leaf [N, ...] as float32 [N, numbers]; bytes that were normalized before are none any more."""
        if n:
            return _one_hot(x, n)
        flat = x.reshape(x.shape[0], -1)  # not len(x): that would fix N in an exported graph
        return self.scales[self.scaled.index(path)](flat) if x.dtype == torch.uint8 else flat.float()

    def axes(self) -> Axes:
        """See nets.axes."""
        found, columns = Axes(), self.columns
        for i, layer in enumerate(self.layers):
            if isinstance(layer, Linear):
                rows = (AxisSegment("features", (layer.out_features,)),)
                found |= linear_axes(f"layers.{i}", rows, columns)
                columns = rows
        return found


class SeparateMLPs(nn.Module):
    """Two of them, one for the policy and one for the value, as PPO has it for MuJoCo (Schulman et al. 2017, §6.1).

    Observation → [N, features]: the policy's, then the value's last `value_features`.
    """

    def __init__(
        self, spec: EnvSpec, hidden: tuple[int, ...] = (64, 64), activation: str = "tanh", init: str = "orthogonal"
    ):
        super().__init__()
        self.policy, self.value = (MLP(spec, hidden, activation, init) for _ in range(2))
        self.value_features = self.value.features
        self.features = self.policy.features + self.value_features

    def forward(self, obs: Tree) -> Tensor:
        return torch.cat([self.policy(obs), self.value(obs)], 1)

    def axes(self) -> Axes:
        """See nets.axes."""
        return axes_within("policy", self.policy.axes()) | axes_within("value", self.value.axes())


def _one_hot(x: Tensor, n: int | tuple[int, ...]) -> Tensor:
    """Numbers [N, ...] below n, or each below its own, → float32 [N, numbers]."""
    if isinstance(n, tuple):
        first = torch.tensor([0, *n[:-1]], device=x.device).cumsum(0)  # of each part's numbers
        return torch.zeros(x.shape[0], sum(n), device=x.device).scatter_(1, x.reshape(x.shape[0], -1) + first, 1.0)
    return F.one_hot(x.long(), n).float()

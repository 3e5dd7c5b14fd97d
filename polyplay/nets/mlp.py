"""Fully connected network for vectors, and for trees of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from polyplay import tree
from polyplay.errors import UserError
from polyplay.nets.layers import Linear, initialise
from polyplay.tree import Spec, Tree

# Elementwise kernels whose bits don't depend on an element's place in the batch; ELU's and SiLU's do.
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


class MLP(nn.Module):
    """Observation → float32 [N, features]. Leaves of a tree are flattened and concatenated in the spec's order.

    Bytes are scaled to [0, 1]; other numbers, Discrete observations among them, are taken as they are.
    """

    def __init__(
        self, obs: Spec, hidden: tuple[int, ...] = (64, 64), activation: str = "tanh", init: str = "orthogonal"
    ):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UserError(f"activation: {activation!r} is not one of {', '.join(ACTIVATIONS)}")
        if not hidden or min(hidden) < 1:
            raise UserError(f"hidden: {tuple(hidden)} given, allowed are one or more sizes of at least 1")
        self.paths = [path for path, _ in tree.leaves(obs)]
        size = sum(math.prod(field.shape) for _, field in tree.leaves(obs))
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [Linear(size, width), ACTIVATIONS[activation]()]
            size = width
        self.layers, self.features = nn.Sequential(*layers), size
        initialise(self, init)

    def forward(self, obs: Tree) -> Tensor:
        leaves = dict(tree.leaves(obs))
        flat = [_floats(leaves[path]) for path in self.paths]
        return self.layers(flat[0] if len(flat) == 1 else torch.cat(flat, 1))


def _floats(x: Tensor) -> Tensor:
    """[N, ...] of any dtype → float32 [N, numbers]."""
    flat = x.reshape(len(x), -1).float()
    return flat * (1.0 / 255.0) if x.dtype == torch.uint8 else flat

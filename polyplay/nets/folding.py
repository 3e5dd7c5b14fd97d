"""A residual network for acting alone: its batch normalisations are folded into the convolutions."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.nets.layers import Linear
from polyplay.nets.residual import DualResidualNetwork, NormalizedConv


class FoldedNetwork(nn.Module):
    """What DualResidualNetwork.predict computes, by fewer operations: (x ∗ W − mean)·scale/deviation + shift is one
    convolution with a bias. Both heads' 1×1 convolutions are one. Weights are those of the last `take`.

    dtype: of the convolutions; those behind them are float32, or as the network's.
    """

    def __init__(self, network: DualResidualNetwork, dtype: torch.dtype = torch.float32):
        super().__init__()
        stem, *tower = network.trunk()
        self.stem = _empty_conv(stem.conv, stem.conv.out_channels, dtype)
        self.tower = nn.ModuleList(_empty_conv(c.conv, c.conv.out_channels, dtype) for c in tower)
        self.split = network.policy.conv.out_channels  # filters of the policy's head, before those of the value's
        self.heads = _empty_conv(network.policy.conv, self.split + network.value.conv.out_channels, dtype)
        self.logits, self.hidden, self.output = map(_linear_like, (network.logits, network.hidden, network.output))
        self.requires_grad_(False)
        self.take(network)

    @torch.no_grad()
    def take(self, network: DualResidualNetwork) -> None:
        """The present weights and running statistics of a network of the same sizes."""
        for mine, theirs in zip(self.trunk(), network.trunk(), strict=True):
            _write(mine, *folded(theirs))
        heads = [folded(network.policy), folded(network.value)]
        _write(self.heads, *(torch.cat(parts) for parts in zip(*heads, strict=True)))
        for name in ("logits", "hidden", "output"):
            getattr(self, name).load_state_dict(getattr(network, name).state_dict())

    def trunk(self) -> list[nn.Conv2d]:
        """The convolutions below the heads, in order."""
        return [self.stem, *(cast("nn.Conv2d", conv) for conv in self.tower)]

    def forward(self, planes: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, A] and values [N] of planes [N, C, H, W]."""
        stem, *tower = self.trunk()
        x = F.relu_(stem(planes.to(stem.weight.dtype)))
        for first, second in zip(tower[::2], tower[1::2], strict=True):
            x = F.relu_(second(F.relu_(first(x))).add_(x))
        numbers = self.output.weight.dtype
        policy, value = F.relu_(self.heads(x)).to(numbers).tensor_split((self.split,), 1)
        value = self.output(F.relu_(self.hidden(value.flatten(1))))
        return self.logits(policy.flatten(1)), torch.tanh(value).squeeze(1)


def folded(conv: NormalizedConv) -> tuple[Tensor, Tensor]:
    """Weight [out, in, k, k] and bias [out] of the convolution that does both, computed in float64."""
    factor = conv.scale.double() * (conv.variance.double() + conv.eps).rsqrt()
    return conv.conv.weight.double() * factor.view(-1, 1, 1, 1), conv.shift.double() - conv.mean.double() * factor


def _empty_conv(like: nn.Conv2d, filters: int, dtype: torch.dtype) -> nn.Conv2d:
    """One of `like`'s kernel with a bias, its weights channels last: with such planes the faster layout on a CPU."""
    kernel, around = like.kernel_size[0], like.padding[0]
    conv = nn.Conv2d(like.in_channels, filters, kernel, padding=around, dtype=dtype, device=like.weight.device)
    conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
    return conv


def _linear_like(like: Linear) -> Linear:
    weight = like.weight
    return Linear(like.in_features, like.out_features, dtype=weight.dtype, device=weight.device)


def _write(conv: nn.Conv2d, weight: Tensor, bias: Tensor) -> None:
    assert conv.bias is not None
    conv.weight.copy_(weight)
    conv.bias.copy_(bias)

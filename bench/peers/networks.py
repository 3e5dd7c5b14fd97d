"""The networks that every peer trains, in plain PyTorch: the same layers and parameters on both sides.

For 4×84×84 and 6 actions, heads included: nature 1,687,719, small 677,943, deep 1,091,031 parameters.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS = {  # channels, kernel, stride of unpadded convolutions; hidden units
    "nature": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),  # Mnih et al. 2015
    "small": (((16, 8, 4), (32, 4, 2)), 256),  # Mnih et al. 2016
}
NETWORKS = (*LAYERS, "deep")


class Residual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(F.relu(self.one(F.relu(x))))


def convolutions(name: str, channels: int) -> nn.Sequential:
    """Up to the flat vector. deep: Espeholt et al. 2018, figure 3."""
    layers: list[nn.Module] = []
    if name == "deep":
        for out in (16, 32, 32):
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            layers += [Residual(out), Residual(out)]
            channels = out
        layers.append(nn.ReLU())
    else:
        for out, kernel, stride in LAYERS[name][0]:
            layers += [nn.Conv2d(channels, out, kernel, stride), nn.ReLU()]
            channels = out
    return nn.Sequential(*layers, nn.Flatten())


class Torso(nn.Module):
    """Images [N, C, H, W] in 0 … 1 → [N, features]."""

    def __init__(self, name: str, shape: tuple[int, ...] = (4, 84, 84)):
        super().__init__()
        self.convs = convolutions(name, shape[0])
        with torch.no_grad():
            flat = self.convs(torch.zeros(1, *shape)).shape[1]
        self.features = 256 if name == "deep" else LAYERS[name][1]
        self.fc = nn.Linear(flat, self.features)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.fc(self.convs(x)))


class ActorCritic(nn.Module):
    """uint8 [N, C, H, W] → logits [N, actions], values [N]."""

    def __init__(self, name: str, actions: int, shape: tuple[int, ...] = (4, 84, 84)):
        super().__init__()
        self.torso = Torso(name, shape)
        self.policy, self.value = nn.Linear(self.torso.features, actions), nn.Linear(self.torso.features, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        x = self.torso(obs.float() / 255.0)
        return self.policy(x), self.value(x).squeeze(-1)


class QNetwork(nn.Module):
    """uint8 [N, C, H, W] → values of actions [N, actions]; 1,687,206 parameters with nature and 6 actions."""

    def __init__(self, name: str, actions: int, shape: tuple[int, ...] = (4, 84, 84)):
        super().__init__()
        self.torso = Torso(name, shape)
        self.values = nn.Linear(self.torso.features, actions)

    def forward(self, obs: Tensor) -> Tensor:
        return self.values(self.torso(obs.float() / 255.0))


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())

"""AlphaGo Zero's network for boards in plain PyTorch, evaluated one position or many at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, filters: int):
        super().__init__()
        self.first = nn.Conv2d(filters, filters, 3, padding=1)
        self.second = nn.Conv2d(filters, filters, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class BoardNetwork(nn.Module):
    """Batch norm is folded already: there are biases instead. Log-probabilities [N, actions] and values [N]."""

    def __init__(self, planes: int, rows: int, columns: int, actions: int, blocks: int, filters: int):
        super().__init__()
        self.stem = nn.Conv2d(planes, filters, 3, padding=1)
        self.tower = nn.Sequential(*(Block(filters) for _ in range(blocks)))
        self.policy, self.value = nn.Conv2d(filters, 2, 1), nn.Conv2d(filters, 1, 1)
        self.logits = nn.Linear(2 * rows * columns, actions)
        self.hidden, self.output = nn.Linear(rows * columns, 256), nn.Linear(256, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tower(torch.relu(self.stem(x)))
        logits = self.logits(torch.relu(self.policy(x)).flatten(1))
        value = self.output(torch.relu(self.hidden(torch.relu(self.value(x)).flatten(1))))
        return logits.log_softmax(1), torch.tanh(value).squeeze(1)


class OneByOne:
    """A network on one position at a time, in the fastest form of PyTorch's that was found: channels last."""

    def __init__(self, planes: int, blocks: int, filters: int):
        torch.set_num_threads(1)
        torch.manual_seed(0)
        made = BoardNetwork(planes, 6, 7, 7, blocks, filters).eval()
        self.network = made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def __call__(self, planes: np.ndarray) -> tuple[np.ndarray, float]:
        """Probabilities [actions] and the value of planes [C, rows, columns]."""
        x = torch.from_numpy(np.ascontiguousarray(planes, np.float32))[None]
        logs, value = self.network(x.to(memory_format=torch.channels_last))
        return logs[0].exp().numpy(), float(value[0])

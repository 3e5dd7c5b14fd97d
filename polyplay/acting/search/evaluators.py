"""What a search asks: a network of torch, or the same answer always."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from polyplay.nets.precision import precision_of


class UniformEvaluator:
    """Every move alike, every position even."""

    def __init__(self, actions: int):
        self.logits, self.values = np.zeros((0, actions), np.float32), np.zeros(0, np.float32)

    def evaluate(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if len(planes) > len(self.values):
            self.logits = np.zeros((len(planes), self.logits.shape[1]), np.float32)
            self.values = np.zeros(len(planes), np.float32)
        return self.logits[: len(planes)], self.values[: len(planes)]


class TorchEvaluator:
    """A network that gives (logits [N, A], values [N] or [N, 1]) of planes, always asked in batches of one shape.

    Fewer positions are padded, more are cut up, so a position has the same bits with whatever company and wherever in
    the batch. Planes keep their layout, NCHW or channels last. `precision`: "float32", or "bfloat16" for convolutions
    and products; the answers are float32.
    """

    def __init__(self, network: nn.Module, device: str | torch.device, batch: int, precision: str = "float32"):
        self.network, self.device, self.batch = network.to(device).eval(), torch.device(device), batch
        self.bf16 = precision == "bfloat16"
        self.padded: Tensor | None = None

    def evaluate(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        answers = [self._batch(planes[i : i + self.batch]) for i in range(0, len(planes), self.batch)]
        logits, values = (torch.cat(parts).numpy() for parts in zip(*answers, strict=True))
        return logits, values

    @torch.inference_mode()
    def _batch(self, planes: np.ndarray) -> tuple[Tensor, Tensor]:
        n, given = len(planes), torch.from_numpy(planes)
        if n < self.batch:
            given = self._pad(given)
        with precision_of(self.network, self.bf16):
            logits, values = self.network(given.to(self.device, torch.float32))
        return logits[:n].float().cpu(), values.reshape(self.batch)[:n].float().cpu()

    def _pad(self, planes: Tensor) -> Tensor:
        if self.padded is None:
            last = planes.stride(1) == 1 and planes.shape[1] > 1
            layout = torch.channels_last if last else torch.contiguous_format
            self.padded = torch.zeros((self.batch, *planes.shape[1:])).to(memory_format=layout)
        self.padded[: len(planes)] = planes
        return self.padded

"""A network for a search, computed by torch in batches of one shape, on a CPU or another device."""

from __future__ import annotations

import numpy as np
import torch

from polyplay.nets.folding import FoldedNetwork
from polyplay.nets.residual import DualResidualNetwork


class TorchBackend:
    """On the device where the network lies."""

    def __init__(self, network: DualResidualNetwork, batch: int, precision: str):
        numbers = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.folded = FoldedNetwork(network, numbers)
        self.device = network.output.weight.device
        channels, rows, columns = network.planes
        self.planes = np.zeros((batch, rows, columns, channels), np.float32).transpose(0, 3, 1, 2)  # channels last
        self._input = torch.from_numpy(self.planes)

    def take(self, network: DualResidualNetwork) -> None:
        self.folded.take(network)

    @torch.inference_mode()
    def compute(self) -> tuple[np.ndarray, np.ndarray]:
        logits, values = self.folded(self._input.to(self.device))
        return logits.cpu().numpy(), values.cpu().numpy()

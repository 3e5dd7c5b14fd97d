"""A network for a search in float32 on a CPU, its 3×3 convolutions by Winograd's algorithm: 25 multiplications for 9
cells instead of 81. Compiled loops transform the boards (winograd_kernels), torch multiplies.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.acting.search import winograd_kernels
from polyplay.acting.search.winograd_kernels import OUT, TILE
from polyplay.common.errors import UserError
from polyplay.nets.folding import FoldedNetwork
from polyplay.nets.residual import DualResidualNetwork

PARTS = TILE * TILE


class WinogradBackend:
    """The tower; the first convolution, which sees few planes, and the heads are torch's. Raises UserError."""

    def __init__(self, network: DualResidualNetwork, batch: int):
        device = network.output.weight.device
        if device.type != "cpu":
            raise UserError(f"--evaluator winograd: computes on CPUs, the network is on {device}; take torch")
        self.folded = FoldedNetwork(network)
        channels, self.rows, self.columns = network.planes
        self.planes = np.zeros((batch, self.rows, self.columns, channels), np.float32).transpose(0, 3, 1, 2)
        self._input, filters = torch.from_numpy(self.planes), self.folded.stem.out_channels
        down, across = -(-self.rows // OUT), -(-self.columns // OUT)
        boards = batch, OUT * down + 2, OUT * across + 2, filters
        self._outer, self._inner = torch.zeros(boards), torch.zeros(boards)  # of a block: what it adds to, its middle
        self._tiles = torch.zeros(batch * down * across, PARTS, filters)
        self.take(network)

    def take(self, network: DualResidualNetwork) -> None:
        self.folded.take(network)
        _, *tower = self.folded.trunk()
        self._layers = [(transformed(conv), _numbers(conv.bias)) for conv in tower]

    @torch.inference_mode()
    def compute(self) -> tuple[np.ndarray, np.ndarray]:
        cells = self._outer[:, 1 : 1 + self.rows, 1 : 1 + self.columns].permute(0, 3, 1, 2)
        cells.copy_(F.relu_(self.folded.stem(self._input)))
        outer, inner, tiles = self._outer.numpy(), self._inner.numpy(), self._tiles.numpy()
        winograd_kernels.transform_all(outer, tiles)
        for i, (weights, bias) in enumerate(self._layers):
            adds = i % 2 == 1
            y = outer if adds else inner
            winograd_kernels.next_layer(self._multiplied(weights), bias, adds, self.rows, self.columns, y, tiles)
        logits, values = self.folded.answers(cells)
        return logits.numpy(), values.numpy()

    def _multiplied(self, weights: Tensor) -> np.ndarray:
        """Each of the 25 parts of all tiles by its matrix: a 1×1 convolution of so many groups."""
        tiles, _, filters = self._tiles.shape
        row = self._tiles.view(1, tiles, 1, PARTS * filters).permute(0, 3, 1, 2)
        if torch.backends.mkldnn.is_available():  # of this shape conv2d itself takes a slower way
            made = torch.mkldnn_convolution(row, weights, None, (0, 0), (1, 1), (1, 1), PARTS)
        else:
            made = F.conv2d(row, weights, groups=PARTS)
        return made.permute(0, 2, 3, 1).reshape(tiles, PARTS, filters).numpy()


@torch.no_grad()
def transformed(conv: nn.Conv2d) -> Tensor:
    """G g Gᵀ of a 3×3 convolution's kernels, computed in float64: [25·out, in, 1, 1], channels last."""
    g = torch.from_numpy(winograd_kernels.G)
    parts = torch.einsum("xi,yj,ocij->xyoc", g, g, conv.weight.double()).float()
    return parts.reshape(-1, conv.in_channels, 1, 1).contiguous(memory_format=torch.channels_last)


def _numbers(bias: Tensor | None) -> np.ndarray:
    assert bias is not None
    return bias.detach().numpy()

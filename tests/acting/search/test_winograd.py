"""Winograd's convolutions are the plain ones, on boards of any sides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from polyplay.acting.search import winograd_kernels
from polyplay.acting.search.winograd_backend import WinogradBackend, transformed
from polyplay.nets.residual import DualResidualNetwork

SIDES = st.integers(1, 20)


def bordered(boards: torch.Tensor) -> np.ndarray:
    """float32 [N, C, H, W] → [N, 3·r + 2, 3·c + 2, C] with zeros around."""
    rows, columns = boards.shape[2:]
    around = F.pad(boards, (1, 1 + -columns % 3, 1, 1 + -rows % 3))
    return around.permute(0, 2, 3, 1).contiguous().numpy()


@given(SIDES, SIDES, st.integers(1, 20), st.integers(1, 3), st.booleans(), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_a_layer_is_the_plain_convolution(rows: int, columns: int, channels: int, n: int, adds: bool, seed: int):
    generator = torch.Generator().manual_seed(seed)
    conv = nn.Conv2d(channels, channels, 3, padding=1)
    x, skip = (torch.randn(n, channels, rows, columns, generator=generator) for _ in range(2))
    y, boards = bordered(skip), bordered(x)
    tiles = (boards.shape[1] // 3) * (boards.shape[2] // 3)
    v, after = (np.full((n * tiles, 25, channels), np.nan, np.float32) for _ in range(2))
    winograd_kernels.transform_all(boards, v)
    weights = transformed(conv).reshape(25, channels, channels).numpy()
    m = np.einsum("tkc,koc->tko", v, weights).astype(np.float32)
    bias = conv.bias.detach().numpy()
    winograd_kernels.next_layer(m, bias, adds, rows, columns, y, after)
    with torch.no_grad():
        plain = conv.double()(x.double()) + (skip if adds else 0)
    np.testing.assert_allclose(y, bordered(F.relu(plain)), atol=2e-5)
    again = np.empty_like(after)
    winograd_kernels.transform_all(y, again)
    assert np.array_equal(after, again), "what the next layer multiplies"


def test_a_transformed_tile_is_that_of_the_matrices():
    """Bᵀ of Lavin and Gray's form with the points 0, 1, −1, 2, ∞; the slow twin is two products of matrices."""
    b = np.array([[2, -1, -2, 1, 0], [0, -2, -1, 1, 0], [0, 2, -3, 1, 0], [0, -1, 0, 1, 0], [0, 2, -1, -2, 1]])
    x = np.random.default_rng(0).integers(-8, 9, (2, 8, 5, 3)).astype(np.float32)
    v = np.empty((4, 25, 3), np.float32)
    winograd_kernels.transform_all(x, v)
    tiles = [board[r : r + 5].transpose(2, 0, 1) for board in x for r in (0, 3)]
    twin = [(b @ tile @ b.T).reshape(3, 25).T for tile in tiles]
    assert np.array_equal(v, np.stack(twin)), "whole numbers: to the bit"


@pytest.mark.parametrize(("blocks", "has"), [(0, True), (2, True), (2, False)])
def test_a_network_with_and_without_blocks_and_onednn(blocks: int, has: bool, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: has)
    network = DualResidualNetwork((3, 4, 5), 6, blocks, 8, 4)
    backend = WinogradBackend(network, 2)
    backend.planes[:] = np.random.default_rng(0).random(backend.planes.shape)
    planes = torch.from_numpy(backend.planes.copy())
    for mine, theirs in zip(backend.compute(), network.predict(planes), strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), atol=1e-5)

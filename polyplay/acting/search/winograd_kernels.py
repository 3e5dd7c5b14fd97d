"""The transforms of Winograd's 3×3 convolution F(3×3, 3×3): Lavin and Gray 2016, "Fast Algorithms for Convolutional
Neural Networks", equation 8, with the points 0, 1, −1, 2, ∞. Imports no torch.

    Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A        d [5, 5]: a tile of the input; g [3, 3]: the kernel; Y [3, 3]: of the output

Boards are float32 [N, 3·r + 2, 3·c + 2, C], channels last, of r × c tiles: the cells of a board, a border of zeros, and
more zeros to the right and below where a side is no multiple of 3. Tiles of 5 overlap by 2. Transformed ones are
float32 [N·r·c, 25, C].
"""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import cached_njit

compiled = cached_njit(_nrt=True)
G = np.array([[1 / 2, 0, 0], [-1 / 2, -1 / 2, -1 / 2], [-1 / 6, 1 / 6, -1 / 6], [1 / 6, 1 / 3, 2 / 3], [0, 0, 1]])
TILE, OUT = 5, 3  # sides of a tile of the input and of the output
ZERO, TWO, FOUR = np.float32(0), np.float32(2), np.float32(4)


@compiled
def transform_all(x: np.ndarray, v: np.ndarray) -> None:
    """Bᵀ d B of all tiles of boards x into v."""
    n, buffer = v.shape[0] // x.shape[0], np.empty((TILE, x.shape[2] * x.shape[3]), np.float32)
    for i in range(x.shape[0]):
        _transform(x[i], v[i * n : (i + 1) * n], buffer)


@compiled
def next_layer(
    m: np.ndarray, bias: np.ndarray, adds: bool, rows: int, columns: int, y: np.ndarray, v: np.ndarray
) -> None:
    """relu(Aᵀ m A + bias), and + y where it adds, into boards y of rows × columns cells; then Bᵀ d B of y's tiles into
    v: what the next layer multiplies.
    """
    channels, n = y.shape[3], m.shape[0] // y.shape[0]
    across = np.empty((OUT, TILE * channels), np.float32)
    made = np.empty((OUT, channels), np.float32)
    buffer = np.empty((TILE, y.shape[2] * channels), np.float32)
    for i in range(y.shape[0]):
        tile = i * n
        for r in range(1, y.shape[1] - 1, OUT):
            for c in range(1, y.shape[2] - 1, OUT):
                t = m[tile].reshape(TILE, TILE * channels)
                _three(t[0], t[1], t[2], t[3], t[4], across[0], across[1], across[2])
                for a in range(min(OUT, rows + 1 - r)):
                    t = across[a].reshape(TILE, channels)
                    _three(t[0], t[1], t[2], t[3], t[4], made[0], made[1], made[2])
                    for b in range(min(OUT, columns + 1 - c)):
                        _finish(made[b], bias, adds, y[i, r + a, c + b])
                tile += 1
        _transform(y[i], v[i * n : tile], buffer)


@compiled
def _transform(x: np.ndarray, v: np.ndarray, buffer: np.ndarray) -> None:
    """x [3·r + 2, 3·c + 2, C] → v [r·c, 25, C]. buffer: [5, (3·c + 2)·C]."""
    rows, columns, channels = x.shape
    x, tile = x.reshape(rows, columns * channels), 0
    for r in range(0, rows - 2, OUT):
        _five(x[r], x[r + 1], x[r + 2], x[r + 3], x[r + 4], buffer[0], buffer[1], buffer[2], buffer[3], buffer[4])
        for c in range(0, columns - 2, OUT):
            for k in range(TILE):
                t, o = buffer[k].reshape(columns, channels), v[tile, TILE * k : TILE * (k + 1)]
                _five(t[c], t[c + 1], t[c + 2], t[c + 3], t[c + 4], o[0], o[1], o[2], o[3], o[4])
            tile += 1


@compiled
def _five(
    a0: np.ndarray,
    a1: np.ndarray,
    a2: np.ndarray,
    a3: np.ndarray,
    a4: np.ndarray,
    b0: np.ndarray,
    b1: np.ndarray,
    b2: np.ndarray,
    b3: np.ndarray,
    b4: np.ndarray,
) -> None:
    """b = Bᵀ a of each column."""
    for i in range(a0.size):
        x1, x2, x3 = a1[i], a2[i], a3[i]
        d, e = x3 - x1, x3 - x2
        b0[i] = TWO * (a0[i] - x2) + d
        b1[i] = e - TWO * x1
        b2[i] = e - TWO * (x2 - x1)
        b3[i] = d
        b4[i] = a4[i] - x2 - TWO * d


@compiled
def _three(
    a0: np.ndarray,
    a1: np.ndarray,
    a2: np.ndarray,
    a3: np.ndarray,
    a4: np.ndarray,
    b0: np.ndarray,
    b1: np.ndarray,
    b2: np.ndarray,
) -> None:
    """b = Aᵀ a of each column."""
    for i in range(a0.size):
        x1, x2, x3 = a1[i], a2[i], a3[i]
        s = x1 + x2
        b0[i] = a0[i] + s + x3
        b1[i] = x1 - x2 + TWO * x3
        b2[i] = s + FOUR * x3 + a4[i]


@compiled
def _finish(x: np.ndarray, bias: np.ndarray, adds: bool, y: np.ndarray) -> None:
    if adds:
        for i in range(x.size):
            y[i] = max(x[i] + bias[i] + y[i], ZERO)
    else:
        for i in range(x.size):
            y[i] = max(x[i] + bias[i], ZERO)

"""Screens to planes in NumPy: gray values, and resampling to a smaller size; bytes to the bit as OpenCV and Pillow do.

Every pass is a short sum of rows or columns with fixed weights, in a fixed order, in float32 or whole numbers, so that
the same screen gives the same plane on every machine. Pictures are [height, width], in colour [height, width, 3].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from itertools import zip_longest

import numpy as np

Picture = np.ndarray
Taps = tuple[np.ndarray, np.ndarray]  # which pixels of an axis, and their weights: both [taps, size of the result]


# ------------------------------------------------------------------------------------------- gray


def opencv_gray(rgb: Picture) -> Picture:
    """OpenCV's COLOR_RGB2GRAY: weights of 15 bits, rounded. uint8."""
    whole = rgb.astype(np.int32)
    return ((whole[..., 0] * 9798 + whole[..., 1] * 19235 + whole[..., 2] * 3735 + (1 << 14)) >> 15).astype(np.uint8)


def _weighted(weights: tuple[float, float, float], dtype: type, rgb: Picture) -> Picture:
    """A weighted sum of red, green and blue: float32 as it is, uint8 cut to whole numbers."""
    r, g, b = (rgb[..., i] * w for i, w in enumerate(weights))
    return (r + g + b).astype(dtype)


luminance = partial(_weighted, (0.299, 0.587, 0.114), np.float32)
GRAYS: dict[str, Callable[[Picture], Picture]] = {
    "opencv": opencv_gray,
    "luma": luminance,
    "luma_cut": partial(_weighted, (0.299, 0.587, 1 - (0.299 + 0.587)), np.uint8),
    "luma_swapped": partial(_weighted, (0.2126, 0.0722, 0.7152), np.uint8),  # Rec. 709's, green and blue exchanged
}


# ------------------------------------------------------------------------------------- resampling


@cache
def resizer(kind: str, height: int, width: int, to_height: int, to_width: int) -> Callable[[Picture], Picture]:
    """A function from pictures of one size to uint8 pictures of another, none of whose sides is longer."""
    if (height, width) == (to_height, to_width):
        return _rounded
    rows, columns = height / to_height, width / to_width
    whole = rows == int(rows) and columns == int(columns)
    if kind == "nearest":
        return _nearest((height, width), (to_height, to_width))
    if kind == "pillow":
        return partial(_fixed, _pillow_taps(height, to_height), _pillow_taps(width, to_width))
    if whole and (kind == "area" or rows == columns == 2):  # OpenCV takes areas where bilinear halves both sides
        return partial(_blocks, int(rows), int(columns))
    if kind == "bilinear":
        return _bilinear(_pairs(height, to_height), _pairs(width, to_width))
    return partial(_floating, _area_taps(height, to_height), _area_taps(width, to_width))


def _rounded(picture: Picture) -> Picture:
    """To uint8, halves to even as OpenCV's cvRound."""
    return picture if picture.dtype == np.uint8 else np.rint(picture).astype(np.uint8)


def _nearest(size: tuple[int, int], to: tuple[int, int]) -> Callable[[Picture], Picture]:
    rows, columns = (
        np.minimum((np.arange(m) * (1.0 / (m / n))).astype(np.int64), n - 1) for n, m in zip(size, to, strict=True)
    )
    return lambda picture: _rounded(picture[rows[:, None], columns])


def _blocks(rows: int, columns: int, picture: Picture) -> Picture:
    """Means of whole blocks; of 2 x 2 bytes OpenCV rounds halves up, otherwise to even."""
    wide: np.ndarray = picture.astype(np.int32 if picture.dtype == np.uint8 else np.float32)
    total = reduce(np.add, (wide[i::rows, j::columns] for i, j in np.ndindex(rows, columns)))
    if rows == columns == 2 and picture.dtype == np.uint8:
        return ((total + 2) >> 2).astype(np.uint8)
    return np.rint(np.float32(total) * np.float32(1.0 / (rows * columns))).astype(np.uint8)


def _along(picture: Picture, taps: Taps, axis: int) -> Picture:
    """Σ over taps of picture[tap] · weight, in the order of the taps."""
    return reduce(np.add, (picture.take(i, axis) * (w if axis else w[:, None]) for i, w in zip(*taps, strict=True)))


def _floating(rows: Taps, columns: Taps, picture: Picture) -> Picture:
    return _rounded(_along(_along(picture.astype(np.float32), columns, 1), rows, 0))


def _stacked(per_pixel: Sequence[Sequence[tuple[int, float]]], dtype: type) -> Taps:
    """Taps of every pixel, filled up with weight 0."""
    both = np.array(list(zip_longest(*per_pixel, fillvalue=(0, 0.0))))  # float64 [taps, size of the result, 2]
    return both[..., 0].astype(np.int64), both[..., 1].astype(dtype)


def _area_taps(size: int, to: int) -> Taps:
    """OpenCV's INTER_AREA (resize.cpp, computeResizeAreaTab): how much of each pixel a cell covers."""
    scale = 1.0 / (to / size)
    found = []
    for i in range(to):
        begin, end = i * scale, i * scale + scale
        cell = min(scale, size - begin)
        last = min(math.floor(end), size - 1)
        first = min(math.ceil(begin), last)
        taps = [(first - 1, (first - begin) / cell)] if first - begin > 1e-3 else []
        taps += [(j, 1.0 / cell) for j in range(first, last)]
        if end - last > 1e-3:
            taps.append((last, min(min(end - last, 1.0), cell) / cell))
        found.append(taps)
    return _stacked(found, np.float32)


def _pairs(size: int, to: int) -> Taps:
    """The two neighbours of every pixel's centre, weights float32 (OpenCV's INTER_LINEAR)."""
    scale = 1.0 / (to / size)
    centre = ((np.arange(to) + 0.5) * scale - 0.5).astype(np.float32)
    left = np.floor(centre).astype(np.int64)
    part = centre - left.astype(np.float32)
    part[left < 0], part[left >= size - 1] = 0.0, 0.0
    left = left.clip(0, size - 1)
    return np.stack([left, np.minimum(left + 1, size - 1)]), np.stack([np.float32(1) - part, part])


def _bilinear(rows: Taps, columns: Taps) -> Callable[[Picture], Picture]:
    """OpenCV's INTER_LINEAR: of bytes with weights of 11 bits (resize.cpp, VResizeLinear), of floats as it is."""
    (above, below), beta = rows[0], np.rint(rows[1] * 2048).astype(np.int32)[..., None]
    across = columns[0], np.rint(columns[1] * 2048).astype(np.int32)

    def resize(picture: Picture) -> Picture:
        if picture.dtype != np.uint8:
            return _floating(rows, columns, picture)
        wide = _along(picture.astype(np.int32), across, 1) >> 4
        return ((((wide[above] * beta[0]) >> 16) + ((wide[below] * beta[1]) >> 16) + 2) >> 2).astype(np.uint8)

    return resize


def _pillow_taps(size: int, to: int) -> Taps:
    """Pillow's BILINEAR (Resample.c, precompute_coeffs): a triangle as wide as two cells; weights of 22 bits."""
    scale = size / to
    found = []
    for i in range(to):
        centre = (i + 0.5) * scale
        first, last = max(int(centre - scale + 0.5), 0), min(int(centre + scale + 0.5), size)
        weights = [max(1.0 - abs((j - centre + 0.5) / scale), 0.0) for j in range(first, last)]
        found.append(
            [(j, int(0.5 + w / sum(weights) * (1 << 22))) for j, w in zip(range(first, last), weights, strict=True)]
        )
    return _stacked(found, np.int32)


def _fixed(rows: Taps, columns: Taps, picture: Picture) -> Picture:
    wide = (_along(_rounded(picture).astype(np.int32), columns, 1) + (1 << 21)) >> 22
    return ((_along(wide, rows, 0) + (1 << 21)) >> 22).astype(np.uint8)

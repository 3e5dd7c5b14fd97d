"""Stacked pictures on their way to another machine: of a row that continues the one before only the newest plane.

Exact to the bit: what a row has of the row before is compared, not assumed. Imports no torch.
"""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import cached_njit


def words(pictures: np.ndarray) -> np.ndarray:
    """The same memory as [..., k, n] numbers of eight bytes where a plane divides so, for speed."""
    flat = pictures.reshape(*pictures.shape[:-2], -1)
    return flat.view(np.uint64) if flat.shape[-1] % 8 == 0 else flat


@cached_njit()
def pack_planes(rows: np.ndarray, whole: np.ndarray, planes: np.ndarray) -> int:
    """rows [T, B, k, n] → whole uint8 [T, B], 1 where a row does not continue the one before, and planes [≤ T·B·k, n]:
    all k of such a row, else the newest. Returns how many planes.
    """
    T, B, k, n = rows.shape
    at = 0
    for t in range(T):
        for b in range(B):
            differs = t == 0
            for i in range(k - 1):
                if differs:
                    break
                for j in range(n):
                    if rows[t, b, i, j] != rows[t - 1, b, i + 1, j]:
                        differs = True
                        break
            whole[t, b] = differs
            for i in range(0 if differs else k - 1, k):
                planes[at] = rows[t, b, i]
                at += 1
    return at


@cached_njit()
def unpack_planes(rows: np.ndarray, whole: np.ndarray, planes: np.ndarray) -> None:
    """The inverse; whole[0] is all 1."""
    T, B, k, _ = rows.shape
    at = 0
    for t in range(T):
        for b in range(B):
            first = 0 if whole[t, b] else k - 1
            for i in range(first):
                rows[t, b, i] = rows[t - 1, b, i + 1]
            for i in range(first, k):
                rows[t, b, i] = planes[at]
                at += 1


def count(whole: np.ndarray, k: int) -> int:
    """Planes that come with such a mask. Raises ValueError: it is none of pack_planes's."""
    if whole.max(initial=0) > 1 or not whole[0].all():
        raise ValueError("rows that continue nothing")
    n = int(whole.sum())
    return n * k + whole.size - n

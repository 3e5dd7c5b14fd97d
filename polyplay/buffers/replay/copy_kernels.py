"""Gather and scatter rows of a large array by memcpy; and find out which planes of a stack are new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from polyplay.buffers.replay.rng import compiled
from polyplay.buffers.replay.row_kernels import CONTINUES, REPEAT, STORED, ZEROS
from polyplay.common.compiled import inlined


def _copy(typing: Any, to: Any, of: Any, n: Any) -> tuple[Any, Callable]:
    """memcpy(to, of, n), by addresses."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, source = (builder.inttoptr(a, cgutils.voidptr_t) for a in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.intp), generate


_memcpy: Any = intrinsic(_copy)


@inlined
def _check(row: int, rows: int) -> None:
    if row < 0 or row >= rows:
        raise IndexError("a row that is not there")


@compiled
def _gather(cells: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
    n, of, to = cells.shape[1], cells.ctypes.data, out.ctypes.data
    i = 0
    while i < index.size:
        _check(index[i], cells.shape[0])
        j = i + 1
        while j < index.size and index[j] == index[j - 1] + 1:  # neighbours go together
            _check(index[j], cells.shape[0])
            j += 1
        _memcpy(np.uintp(to + i * n), np.uintp(of + index[i] * n), (j - i) * n)
        i = j


@compiled
def _scatter(cells: np.ndarray, index: np.ndarray, values: np.ndarray) -> None:
    """Of values' rows, which may be longer, the end."""
    n, step = cells.shape[1], values.shape[1]
    to, of = cells.ctypes.data, values.ctypes.data + step - n
    for i in range(index.size):
        _check(index[i], cells.shape[0])
        _memcpy(np.uintp(to + index[i] * n), np.uintp(of + i * step), n)


@compiled
def _gather_numbers(cells: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
    for i in range(index.size):
        _check(index[i], cells.size)
        out[i] = cells[index[i]]


@compiled
def _scatter_numbers(cells: np.ndarray, index: np.ndarray, values: np.ndarray) -> None:
    for i in range(index.size):
        _check(index[i], cells.size)
        cells[index[i]] = values[i]


NUMBERS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}  # rows that are copied without a call


def as_bytes(array: np.ndarray, n: int) -> np.ndarray:
    """A contiguous array as uint8 [n, bytes]; the same memory."""
    return array.reshape(n, -1).view(np.uint8) if array.size else np.zeros((n, 0), np.uint8)


def as_cells(array: np.ndarray, n: int) -> np.ndarray:
    """A contiguous array as `n` rows, the same memory: unsigned numbers [n] where one holds a row, else bytes."""
    number = NUMBERS.get(array.nbytes // n)
    return as_bytes(array, n) if number is None else array.reshape(-1).view(number)


def gather(cells: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
    """out[i] = cells[index[i]]: cells as as_cells() gives them, index int64 [n], out C-contiguous with the same rows.

    IndexError: an index that is out of range.
    """
    if len(index):
        assert out.flags.c_contiguous
        assert out.nbytes * len(cells) == cells.nbytes * len(index)
        copy = _gather_numbers if cells.ndim == 1 else _gather
        copy(cells, index, as_cells(out, len(index)))


def scatter(cells: np.ndarray, index: np.ndarray, values: np.ndarray) -> None:
    """cells[index[i]] = values[i], the inverse; values are C-contiguous.

    values may have longer rows: the last of what they hold is taken (of a stack of planes, the newest).
    """
    if cells.ndim == 1 and values.nbytes == cells.itemsize * len(index):
        _scatter_numbers(cells, index, values.reshape(-1).view(cells.dtype))
    elif len(index):
        rows, of = as_bytes(cells, len(cells)), as_bytes(values, len(index))
        assert of.shape[1] % max(1, rows.shape[1]) == 0
        _scatter(rows, index, of)


def as_words(array: np.ndarray, lead: int) -> np.ndarray:
    """A contiguous array with everything behind its first `lead` dimensions as one, of the widest unsigned words that
    its bytes make.
    """
    whole = np.ascontiguousarray(array)
    whole = whole.reshape(*whole.shape[:lead], -1)
    n = whole.shape[-1] * whole.itemsize
    return whole.view(np.uint64 if n % 8 == 0 and whole.ctypes.data % 8 == 0 else np.uint8)


@inlined
def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two rows of words are equal: no branch within, so that it is wide loads and ORs."""
    differs = a[0] ^ a[0]
    for i in range(a.size):
        differs |= a[i] ^ b[i]
    return differs == 0


@compiled
def _kinds(obs: np.ndarray, last: np.ndarray, lanes: np.ndarray, begun: np.ndarray, kinds: np.ndarray) -> None:
    T, B, k = obs.shape[:3]
    empty = np.zeros(obs.shape[3], obs.dtype)
    for b in range(B):
        for t in range(T):
            new, old = obs[t, b], (last[lanes[b]] if t == 0 else obs[t - 1, b])
            found = 0
            if t > 0 or begun[b]:
                j = k - 2
                while j >= 0 and _equal(new[j], old[j + 1]):
                    j -= 1
                found |= (1 << CONTINUES) if j < 0 else 0
            if not found or kinds[t, b] & (1 << CONTINUES) == 0:
                zeros = repeat = True
                for j in range(k - 1):
                    zeros = zeros and _equal(new[j], empty)
                    repeat = repeat and _equal(new[j], new[k - 1])
                found |= ((1 << ZEROS) if zeros else 0) | ((1 << REPEAT) if repeat else 0)
            kinds[t, b] &= found | (1 << STORED)


def stack_kinds(
    stacks: list[tuple[np.ndarray, np.ndarray]], lanes: np.ndarray, begun: np.ndarray, T: int
) -> np.ndarray:
    """uint8 [T, B]: how the older planes of each row can be rebuilt: CONTINUES, ZEROS, REPEAT or STORED.

    stacks: pairs of a leaf's rows [T, B, k, …] and every lane's last row so far [L, k, …]; all leaves agree on a kind.
    begun bool [B]: there is a last row.
    """
    if not stacks:
        return np.full((T, len(lanes)), CONTINUES, np.uint8)
    possible = np.full((T, len(lanes)), 15, np.uint8)
    for rows, ends in stacks:
        obs, last = as_words(rows, 3), as_words(ends, 2)
        if obs.dtype != last.dtype:
            obs, last = obs.view(np.uint8), last.view(np.uint8)
        _kinds(obs, last, lanes, begun, possible)
    return _LOWEST[possible]


_LOWEST = np.array([0] + [(i & -i).bit_length() - 1 for i in range(1, 16)], np.uint8)

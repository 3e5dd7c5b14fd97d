"""Copies of whole planes from all over a large memory, each one memcpy. And what of a stack of planes is new."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from polyplay.buffers.replay.rng import compiled
from polyplay.buffers.replay.row_kernels import CONTINUES, REPEAT, STRANGE, ZEROS


def _copy(typing: Any, to: Any, of: Any, n: Any) -> Any:
    """memcpy(to, of, n), by addresses."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, source = (builder.inttoptr(a, cgutils.voidptr_t) for a in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.intp), generate


_memcpy: Any = intrinsic(_copy)


@njit(inline="always")
def _check(row: Any, rows: Any) -> None:
    if row < 0 or row >= rows:
        raise IndexError("a row that is not there")


@compiled
def _gather(memory: Any, index: Any, out: Any) -> None:
    n, of, to = memory.shape[1], memory.ctypes.data, out.ctypes.data
    i = 0
    while i < index.size:
        _check(index[i], memory.shape[0])
        j = i + 1
        while j < index.size and index[j] == index[j - 1] + 1:  # neighbours go together
            _check(index[j], memory.shape[0])
            j += 1
        _memcpy(np.uintp(to + i * n), np.uintp(of + index[i] * n), (j - i) * n)
        i = j


@compiled
def _scatter(memory: Any, index: Any, values: Any, skip: Any) -> None:
    n, to, of, step = memory.shape[1], memory.ctypes.data, values.ctypes.data + skip, values.shape[1]
    for i in range(index.size):
        _check(index[i], memory.shape[0])
        _memcpy(np.uintp(to + index[i] * n), np.uintp(of + i * step), n)


@compiled
def _gather_numbers(memory: Any, index: Any, out: Any) -> None:
    for i in range(index.size):
        _check(index[i], memory.size)
        out[i] = memory[index[i]]


@compiled
def _scatter_numbers(memory: Any, index: Any, values: Any) -> None:
    for i in range(index.size):
        _check(index[i], memory.size)
        memory[index[i]] = values[i]


NUMBERS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}  # rows that are copied without a call


def flat(array: np.ndarray, rows: int) -> np.ndarray:
    """A contiguous array as uint8 [rows, bytes]; the same memory."""
    return array.reshape(rows, -1).view(np.uint8) if array.size else np.zeros((rows, 0), np.uint8)


def numbers(memory: np.ndarray) -> np.ndarray | None:
    """Rows [n, …] as unsigned numbers [n], the same memory; None: they are longer than such."""
    number = NUMBERS.get(memory.nbytes // max(1, len(memory)))
    return None if number is None else memory.reshape(-1).view(number)


def scatter_numbers(memory: np.ndarray, index: np.ndarray, values: np.ndarray) -> None:
    """scatter() for memory as numbers() says, and values of just such rows."""
    _scatter_numbers(memory, index.ravel(), values.ravel().view(memory.dtype))


def gather(memory: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
    """out[i] = memory[index[i]]: memory [n, …], index int64 in 0 … n - 1 and out hold the same rows, C-contiguous.

    IndexError: an index that is out of range.
    """
    index = np.ascontiguousarray(index).reshape(-1)
    if len(index):
        assert out.flags.c_contiguous
        assert out.nbytes * len(memory) == memory.nbytes * len(index)
        if number := NUMBERS.get(memory.nbytes // len(memory)):
            _gather_numbers(memory.reshape(-1).view(number), index, out.reshape(-1).view(number))
        else:
            _gather(flat(memory, len(memory)), index, flat(out, len(index)))


def scatter(memory: np.ndarray, index: np.ndarray, values: np.ndarray) -> None:
    """memory[index[i]] = values[i], the inverse; values [index.shape, …] are converted to the memory's dtype.

    values may have longer rows: the last of what they hold is taken (of a stack of planes, the newest).
    """
    index = np.ascontiguousarray(index).reshape(-1)
    values = np.ascontiguousarray(values, memory.dtype)
    if len(index):
        number = NUMBERS.get(memory.nbytes // len(memory))
        if number and values.nbytes * len(memory) == memory.nbytes * len(index):
            _scatter_numbers(memory.reshape(-1).view(number), index, values.reshape(-1).view(number))
            return
        rows, of = flat(memory, len(memory)), flat(values, len(index))
        assert of.shape[1] % max(1, rows.shape[1]) == 0
        _scatter(rows, index, of, of.shape[1] - rows.shape[1])


def words(array: np.ndarray, lead: int) -> np.ndarray:
    """A contiguous array with everything behind its first `lead` dimensions as one, of the widest unsigned words that
    its bytes make.
    """
    whole = np.ascontiguousarray(array)
    whole = whole.reshape(*whole.shape[:lead], -1)
    n = whole.shape[-1] * whole.itemsize
    return whole.view(np.uint64 if n % 8 == 0 and whole.ctypes.data % 8 == 0 else np.uint8)


@njit(inline="always")
def _equal(a: Any, b: Any) -> Any:
    """Whether two rows of words are equal: no branch within, so that it is wide loads and ORs."""
    differs = a[0] ^ a[0]
    for i in range(a.size):
        differs |= a[i] ^ b[i]
    return differs == 0


@compiled
def _kinds(obs: Any, last: Any, lanes: Any, begun: Any, kinds: Any) -> None:
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
            kinds[t, b] &= found | (1 << STRANGE)


def kinds(stacks: list[tuple[np.ndarray, np.ndarray]], lanes: np.ndarray, begun: np.ndarray, T: int) -> np.ndarray:
    """uint8 [T, B]: how the older planes of each row can be had again: CONTINUES, ZEROS, REPEAT or STRANGE.

    stacks: pairs of a leaf's rows [T, B, k, …] and every lane's last row so far [L, k, …]; all leaves agree on a kind.
    begun bool [B]: there is a last row.
    """
    found = np.full((T, len(lanes)), 15, np.uint8)
    for rows, ends in stacks:
        obs, last = words(rows, 3), words(ends, 2)
        if obs.dtype != last.dtype:
            obs, last = obs.view(np.uint8), last.view(np.uint8)
        _kinds(obs, last, lanes, begun, found)
    return _LOWEST[found]


_LOWEST = np.array([0] + [(i & -i).bit_length() - 1 for i in range(1, 16)], np.uint8)

"""Where leaves of rows lie: as they are, or compressed. A shelf takes and gives rows by slot.

`Plain` is one array whose pages are touched as it fills. `Packed` holds every row compressed, `lz4` (an extra package)
or `zlib` (Python's own): what that saves depends on the pictures, `nbytes` tells.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from polyplay.buffers.replay.copy_kernels import flat, gather, numbers, scatter, scatter_numbers
from polyplay.common.errors import UserError

PIECE = 64 * 2**20  # bytes that are saved or loaded at once
CODECS = ("none", "lz4", "zlib")
Codec = tuple[Callable[[Any], bytes], Callable[[bytes], bytes]]


def codec(name: str) -> Codec:
    """Functions that compress and decompress. Raises UserError: no such one, or its package is missing."""
    if name == "zlib":
        return (lambda data: zlib.compress(data, 1)), zlib.decompress
    if name != "lz4":
        raise UserError(f"compress: {name!r} given, allowed: {', '.join(CODECS)}")
    try:
        import lz4.block  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise UserError(
            "compress: lz4 given, its package is missing: pip install 'polyplay[lz4]', or take zlib or none"
        ) from None
    return lz4.block.compress, lz4.block.decompress


class RawStorage:
    """`n` rows of one shape and dtype, zeros at first."""

    def __init__(self, n: int, shape: tuple[int, ...], dtype: str):
        self.array = np.zeros((n, *shape), dtype)
        self.numbers = numbers(self.array)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def put(self, slots: np.ndarray, values: np.ndarray) -> None:
        """values [slots.shape, …]; of longer rows the last is taken, see copying.scatter."""
        array = self.array
        if self.numbers is None or values.dtype != array.dtype or values.shape[slots.ndim :] != array.shape[1:]:
            scatter(array, slots, values)
        else:
            scatter_numbers(self.numbers, slots, values)

    def take(self, slots: np.ndarray, out: np.ndarray) -> None:
        gather(self.array, slots, out)

    def save(self, n: np.ndarray, R: int) -> Iterator[dict[str, np.ndarray]]:
        """The first n[i] of R rows of each lane i, in pieces."""
        rows = max(1, PIECE // max(1, self.array[0].nbytes))
        for lane, count in enumerate(n.tolist()):
            for begin in range(0, count, rows):
                part = slice(lane * R + begin, lane * R + min(begin + rows, count))
                yield {"at": np.array([part.start, part.stop]), "rows": self.array[part]}

    def load(self, piece: dict[str, np.ndarray]) -> None:
        begin, end = piece["at"].tolist()
        self.array[begin:end] = piece["rows"]


class CompressedStorage:
    """The same rows, each compressed by itself."""

    def __init__(self, n: int, shape: tuple[int, ...], dtype: str, name: str):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.row = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize  # bytes
        self.pack, self.unpack = codec(name)
        self.rows: list[bytes | None] = [None] * n
        self.held = 0

    @property
    def nbytes(self) -> int:
        return self.held + 8 * len(self.rows)

    def put(self, slots: np.ndarray, values: np.ndarray) -> None:
        rows = flat(np.ascontiguousarray(values, self.dtype), slots.size)[:, -self.row :]
        for slot, row in zip(slots.reshape(-1).tolist(), rows, strict=True):
            self._set(slot, self.pack(row))

    def _set(self, slot: int, data: bytes) -> None:
        old = self.rows[slot]
        self.held += len(data) - (0 if old is None else len(old)) + (OBJECT if old is None else 0)
        self.rows[slot] = data

    def take(self, slots: np.ndarray, out: np.ndarray) -> None:
        into = flat(out, slots.size)
        for i, slot in enumerate(slots.reshape(-1).tolist()):
            data = self.rows[slot]
            into[i] = 0 if data is None else np.frombuffer(self.unpack(data), np.uint8)

    def save(self, n: np.ndarray, R: int) -> Iterator[dict[str, np.ndarray]]:
        for lane, count in enumerate(n.tolist()):
            begin = end = lane * R
            while end < lane * R + count:
                size = 0
                while end < lane * R + count and size < PIECE:
                    size += len(self.rows[end] or b"")
                    end += 1
                yield self._piece(begin, end)
                begin = end

    def _piece(self, begin: int, end: int) -> dict[str, np.ndarray]:
        rows = [row or b"" for row in self.rows[begin:end]]
        sizes = np.array([len(row) for row in rows], np.int64)
        return {"at": np.array([begin, end]), "sizes": sizes, "rows": np.frombuffer(b"".join(rows), np.uint8)}

    def load(self, piece: dict[str, np.ndarray]) -> None:
        ends = np.cumsum(piece["sizes"]).tolist()
        data = piece["rows"].tobytes()
        for i, end in enumerate(ends):
            begin = ends[i - 1] if i else 0
            if end > begin:
                self._set(int(piece["at"][0]) + i, data[begin:end])


OBJECT = 33  # bytes that Python adds to a bytes object
Shelf = RawStorage | CompressedStorage


def storage_of(n: int, shape: tuple[int, ...], dtype: str, compress: str) -> Shelf:
    return RawStorage(n, shape, dtype) if compress == "none" else CompressedStorage(n, shape, dtype, compress)

"""Files that are whole or not there: atomic writes, and lines of JSON."""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from polyplay.common.errors import UserError

Row = dict[str, Any]


class AppendFile:
    """A file that grows by whole pieces: one write each, and if the disk is full nothing of a piece stays."""

    def __init__(self, path: Path) -> None:
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as e:
            raise UserError(f"cannot write {path}: {e.strerror}; is the run's directory yours?") from None

    def write(self, data: bytes) -> None:
        """Raises OSError."""
        before = os.fstat(self.fd).st_size
        try:
            if os.write(self.fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(self.fd, before)
            raise

    def flush(self) -> None:
        """Nothing to do: no piece is ever held back."""

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class JsonLines:
    """A file of JSON lines. A line torn by a kill or a power cut is cut off when it is opened again."""

    def __init__(self, path: Path) -> None:
        self.file = AppendFile(path)
        os.ftruncate(self.file.fd, _whole_bytes(self.file.fd))

    def write(self, row: Mapping[str, object]) -> None:
        """Raises OSError."""
        self.file.write((json.dumps(to_plain(row), allow_nan=False) + "\n").encode())

    def close(self) -> None:
        self.file.close()


def _whole_bytes(fd: int, chunk: int = 1 << 16) -> int:
    """Length of the file up to and with its last newline."""
    end = os.fstat(fd).st_size
    while end > 0:
        begin = max(0, end - chunk)
        at = os.pread(fd, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0


def read_lines(path: Path) -> Iterator[Row]:
    """The rows of a file of JSON lines, also of one being written; none if there is no file."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return  # being written; what follows would be the rest of it
            yield json.loads(line)


def to_plain(value: object) -> Any:
    """`value` as JSON can hold it: scalars of arrays and tensors unwrapped, NaN and infinity as None."""
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if hasattr(value, "item"):
        return to_plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def write_json(path: Path, value: object) -> None:
    """Atomic, see write_bytes."""
    write_bytes(path, (json.dumps(to_plain(value), indent=2, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Atomic: after a crash or on a full disk there is the old file or the new one. Raises OSError."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

"""Files that are either complete or absent: atomic writes, and lines of JSON."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from polyplay.core import platform
from polyplay.core.errors import UserError

Row = dict[str, Any]


class AppendFile:
    """File to which bytes are appended. If a write fails, for example on a full disk, none of its bytes are in the
    file. If the file or its directory was deleted, the next write restores the whole file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.fd = platform.open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except OSError as e:
            raise UserError(f"cannot write {path}: {e.strerror}; is the run's directory yours?") from None

    def write(self, data: bytes) -> None:
        """Append these bytes in one write. Raises OSError."""
        self.restore()
        before = os.fstat(self.fd).st_size
        try:
            if os.write(self.fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(self.fd, before)
            raise

    def restore(self, chunk: int = 1 << 20) -> None:
        """Restore the file if it was deleted or moved. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self.path), os.fstat(self.fd)):
                return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "wb") as copy:
            try:
                for at in range(0, os.fstat(self.fd).st_size, chunk):
                    copy.write(platform.pread(self.fd, chunk, at))
                copy.flush()
            except OSError:
                self.path.unlink()
                raise
        self.close()
        self.fd = platform.open_file(self.path, os.O_RDWR | os.O_APPEND)

    def flush(self) -> None:
        """Do nothing, because bytes are never buffered."""

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class JsonLines:
    """File with one JSON object per line. If the last line is incomplete, for example after a power cut, it is removed
    when the file is opened.
    """

    def __init__(self, path: Path) -> None:
        self.file = AppendFile(path)
        os.ftruncate(self.file.fd, _whole_bytes(self.file.fd))

    def write(self, *rows: Mapping[str, object]) -> None:
        """Append one line for each object, all lines in one write. Raises OSError."""
        self.file.write("".join(json.dumps(to_plain(row), allow_nan=False) + "\n" for row in rows).encode())

    def close(self) -> None:
        self.file.close()


LIMITS = {  # errno of a system error → meaning and remedy
    errno.EFBIG: "the file has reached the size limit: raise it (`ulimit -f`)",
    errno.EMFILE: "this process cannot open more: raise the limit (`ulimit -n`)",
    errno.ENFILE: "the machine cannot open more: end other programs",
    errno.EAGAIN: "no more processes or threads can start: raise the limit (`ulimit -u`)",
    errno.ENOMEM: "memory is too small: end other programs, or use fewer workers",
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "your share of the disk is used up: free some space",
    errno.EROFS: "nothing can be written there: choose another directory (--run)",
}


def refusal_text(e: BaseException) -> str:
    """Return an error's message, with advice if the reason is known, such as a full disk."""
    number, reason = (e.errno, e.strerror or str(e)) if isinstance(e, OSError) else (None, str(e))
    return f"{reason}; {LIMITS[number]}" if number in LIMITS else reason


class LogWrites:
    """Writer of nonessential log files. It skips writes that fail, and warns at the first one per file."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.warn, self.warned = warn, set[str]()

    def attempt(self, name: str, write: Callable[[], None]) -> None:
        """Call `write`, which writes to the file `name`. Warn if this is the first failed write to the file."""
        try:
            write()
        except (OSError, UserError) as e:  # UserError: the file could not be opened
            if name not in self.warned:
                self.warned.add(name)
                self.warn(f"{name}: {refusal_text(e)}; the run continues, lines that did not fit are missing")


def _whole_bytes(fd: int, chunk: int = 1 << 16) -> int:
    """Return the length of the file up to its last newline, including the newline."""
    end = os.fstat(fd).st_size
    while end > 0:
        begin = max(0, end - chunk)
        at = platform.pread(fd, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0


def read_lines(path: Path, *numbers: str) -> Iterator[Row]:
    """Yield the objects in a file of JSON lines. The file may still grow, or be missing. Skip lines that are not
    objects. Also skip objects in which a field in `numbers` is not a number.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return  # still being written
            if is_row(row := parse_json(line), numbers):
                yield row


def parse_json(text: bytes | str) -> Any:
    """Parse a JSON text. Return None if the text is damaged."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def read_object(path: Path) -> Row:
    """Read a JSON object from a file. Raises OSError, or ValueError if the file contains no JSON object."""
    value = parse_json(path.read_bytes())
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def is_row(value: object, numbers: tuple[str, ...]) -> bool:
    """Tell whether a value is a JSON object in which each field named in `numbers` is a finite number."""
    return isinstance(value, dict) and all(is_number(value.get(name)) for name in numbers)


def is_number(value: object) -> bool:
    """Tell whether a value is a finite number and not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def to_plain(value: object) -> Any:
    """Convert a value so that it can be written as JSON. Array and tensor scalars become numbers, NaN and infinity
    become None, and values of other types become text.
    """
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
    """Write a value to a file as JSON, atomically (see write_bytes)."""
    write_bytes(path, (json.dumps(to_plain(value), indent=2, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: after a crash or on a full disk, either the old or the new file is whole. Raises
    OSError.
    """
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        platform.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

"""The files of a run directory: lines that are always whole, JSON that is never half written, config.json.

Imports no torch.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from polyplay.common.errors import UserError

SCHEMA = 1
PACKAGES = ("polyplay", "torch", "numpy", "gymnasium", "ale-py")
Row = dict[str, Any]


class Grow:
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


class Lines:
    """A file of JSON lines. A line torn by a kill or a power cut is cut off when it is opened again."""

    def __init__(self, path: Path) -> None:
        self.file = Grow(path)
        os.ftruncate(self.file.fd, _whole_bytes(self.file.fd))

    def write(self, row: Mapping[str, Any]) -> None:
        """Raises OSError."""
        self.file.write((json.dumps(plain(row), allow_nan=False) + "\n").encode())

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
            if line.endswith(b"\n"):
                yield json.loads(line)


def rewind(directory: Path, counters: Mapping[str, Any]) -> None:
    """Cut what came after a checkpoint out of a run's lines: it is done again. Raises OSError; each file is whole.

    A game that ended before it and was noted after it stays, with the checkpoint's counters.
    """
    now = {k: counters[k] for k in ("frames", "steps")}
    games, seen = counters.get("games", {}), dict.fromkeys(counters.get("games", {}), 0)
    owner = {lane: k for k in games for lane in _lanes(k)}

    def game(row: Row) -> bool:
        place = owner.get(row["lane"])
        if place is None:
            return row["frames"] <= now["frames"]
        seen[place] += 1
        return seen[place] <= games[place]

    updates = counters["updates"]
    _cut(directory / "metrics.jsonl", lambda row: row["steps"] <= now["steps"])
    _cut(directory / "decisions.jsonl", lambda row: row["steps"] <= now["steps"])
    _cut(directory / "evaluations.jsonl", lambda row: row["steps"] <= now["steps"])
    _cut(directory / "updates.jsonl", lambda row: row["update"] <= updates)
    _cut(directory / "episodes.jsonl", game, now)
    for path in directory.glob("deliveries-*.jsonl"):
        _cut(path, lambda line: (line["from"] if isinstance(line, dict) else line[0]) <= updates)


def _lanes(name: str) -> range:
    first, _, n = name.partition("+")
    return range(int(first), int(first) + int(n))


def _cut(path: Path, stays: Callable[[Any], bool], most: Mapping[str, int] | None = None) -> None:
    """Rewrite a file of JSON lines without those that do not stay; `most` bounds numbers of those that do."""
    if not path.exists():
        return
    before = path.read_bytes()
    after = []
    for line in before.splitlines(keepends=True):
        if not line.endswith(b"\n") or not stays(row := json.loads(line)):
            continue
        if most and any(row[k] > n for k, n in most.items()):
            row |= {k: min(row[k], n) for k, n in most.items()}
            line = (json.dumps(row) + "\n").encode()
        after.append(line)
    if b"".join(after) != before:
        write_bytes(path, b"".join(after))


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: scalars of arrays and tensors unwrapped, NaN and infinity as None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "item"):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def write_json(path: Path, value: Any) -> None:
    """Atomic, see write_bytes."""
    write_bytes(path, (json.dumps(plain(value), indent=2, allow_nan=False) + "\n").encode())


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


# config.json


def write_config(
    directory: Path,
    system: str,
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    sources: Mapping[str, str],
    environment: Mapping[str, str],
) -> Row:
    """Write and return what this run is; `config` and `options` from `config.to_json`. Raises OSError."""
    record = {
        "schema": SCHEMA,
        "system": system,
        "seed": options["seed"],
        "config": config,
        "options": options,
        "sources": sources,
        "environment": environment,
        **stamp(),
        "resumed": [],
    }
    write_json(Path(directory) / "config.json", record)
    return plain(record)


def amend_config(directory: Path, options: Mapping[str, Any], sources: Mapping[str, str]) -> Row:
    """Record a resumption: the options that hold from now on, when, and on what machine and versions."""
    record = read_config(directory)
    record |= {"options": options, "sources": sources, "resumed": [*record["resumed"], stamp()]}
    write_json(Path(directory) / "config.json", record)
    return plain(record)


def read_config(directory: Path) -> Row:
    """config.json of a run; UserError if there is none, it is damaged, or of another version's schema."""
    path = Path(directory) / "config.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        beside = {p.parent.name: p.parent for p in path.parent.parent.glob("*/config.json")}
        near = difflib.get_close_matches(path.parent.name, beside, 1)
        hint = f"did you mean {beside[near[0]]}?" if near else "name the directory that `polyplay train` printed"
        raise UserError(f"no run at {directory} (it has no config.json); {hint}") from None
    except ValueError as e:
        raise UserError(f"{path} is damaged: {e}; put back a copy of it") from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise UserError(f"{path} has not schema {SCHEMA}, which this version reads: use the version it names")
    return record


def config_hash(kept: Mapping[str, Any]) -> str:
    """Of what decides how an agent was trained and plays: system, configuration, environment. kept: config.json."""
    parts = {k: kept[k] for k in ("system", "config", "environment")}
    parts["options"] = {k: kept["options"].get(k) for k in ("atari", "precision")}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def origin(directory: Path) -> Row:
    """What a score of the run itself carries: its configuration's hash, and where it ran. Raises UserError."""
    kept = read_config(directory)
    last = (kept["resumed"] or [kept])[-1]
    return {"config_hash": config_hash(kept), "machine": last["machine"], "commit": last["commit"]}


def stamp() -> Row:
    """When, where and with what: versions, machine, commit."""
    versions = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    machine = {"platform": platform.platform(), "cpu": _cpu(), "cores": _cores()}
    return {"started": now(), "versions": versions, "machine": machine, "commit": _commit()}


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Commit of polyplay's own code if it runs from a checkout, with "-dirty" if that was changed."""
    here = Path(__file__)
    git = ["git", "-C", str(here.parent)]
    describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        for command in ([*git, "ls-files", "--error-unmatch", here.name], describe):
            done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None

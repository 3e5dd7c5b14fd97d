"""Files of past selves: an agent's weights as they were, in `selves/AGENT-VERSION.safetensors`, with a checksum."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from polyplay.common.checkpoint import ARRAYS
from polyplay.common.errors import UserError
from polyplay.common.files import write_bytes

FOLDER = "selves"
CHECKSUM = "sha256"  # in the file's metadata: of names, types, shapes and numbers


def self_path(directory: Path, agent: int, version: int) -> Path:
    """Return the file of an agent's weights as they were at `version`."""
    return directory / FOLDER / f"{agent}-{version}{ARRAYS}"


def self_files(directory: Path) -> list[Path]:
    """Return the files of all past selves of a run."""
    return sorted((directory / FOLDER).glob(f"*{ARRAYS}"))


def write_self(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a past self. Raises OSError."""
    ordered = {k: np.asarray(v, order="C") for k, v in arrays.items()}
    write_bytes(path, save(ordered, {CHECKSUM: _checksum(ordered)}))


def read_self(path: Path) -> dict[str, np.ndarray]:
    """Read a past self. Raises UserError: it cannot be read, or is damaged."""
    arrays, wrong = _read(path)
    if wrong:
        raise UserError(f"RUN: past self {path} plays in the league, but {wrong}: put back a copy")
    return arrays


def self_flaw(path: Path) -> str:
    """Return what is wrong with a past self; empty: nothing."""
    return _read(path)[1]


def _read(path: Path) -> tuple[dict[str, np.ndarray], str]:
    """Read arrays, and say what is wrong with them. Files of earlier versions have no checksum."""
    try:
        with safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            expected = (file.metadata() or {}).get(CHECKSUM)
    except (OSError, SafetensorError) as e:
        return {}, f"cannot be read ({e})"
    if expected is not None and expected != _checksum(arrays):
        return arrays, "is damaged (its checksum differs)"
    bad = sorted(k for k, v in arrays.items() if np.issubdtype(v.dtype, np.floating) and not np.isfinite(v).all())
    return arrays, f"has numbers that are not finite ({', '.join(bad[:3])})" if bad else ""


def _checksum(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()

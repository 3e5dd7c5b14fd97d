"""A memory as files: pieces of at most 64 MB as safetensors, each with a checksum, and replay.json. Never twice in RAM.

Only slots that hold rows are written. A tree is saved by its leaves, since its sums follow from them to the bit.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as unpacked
from safetensors.numpy import save as packed

from polyplay.buffers.replay.storage import PIECE
from polyplay.common.checkpoint import write_json
from polyplay.common.errors import UserError
from polyplay.common.files import write_bytes

if TYPE_CHECKING:
    from polyplay.buffers.replay.buffer import ReplayBuffer

SCHEMA = 1
INDEX = "replay.json"
FREE = (
    "batch",
    "gamma",
    "reward",
    "scale",
    "start",
    "ratio",
    "slack",
    "buffers",
)  # may differ: nothing that is saved knows them


def save_buffer(memory: ReplayBuffer, directory: Path) -> None:
    """See Memory.save."""
    directory.mkdir(parents=True, exist_ok=True)
    for left in directory.glob("*.safetensors"):  # by one that was killed while it wrote
        left.unlink()
    files = []
    for i, (part, key, arrays) in enumerate(_pieces(memory)):
        data = packed({k: np.ascontiguousarray(v) for k, v in arrays.items()})
        name = f"{i:05d}-{part}.safetensors"
        write_bytes(directory / name, data)
        files.append({"name": name, "part": part, "key": key, "crc32": zlib.crc32(data)})
        del data, arrays
    numbers = {
        "draws": memory.draws.save(),
        "pace": memory.pace.save(),
        "greatest": memory.greatest,
        "beta": memory.beta,
    }
    write_json(directory / INDEX, {"schema": SCHEMA, "replay": _told(memory), "numbers": numbers, "files": files})


def load_buffer(memory: ReplayBuffer, directory: Path) -> None:
    """See Memory.load."""
    head = _head(memory, directory)
    wholes = _wholes(memory)
    for file in head["files"]:
        arrays = _read(directory / file["name"], file["crc32"])
        if file["part"] == "rows":
            memory.fields.shelves[file["key"]].load(arrays)
        else:
            begin, rows = int(arrays["at"][0]), arrays["rows"]
            wholes[file["part"]][file["key"]][begin : begin + len(rows)] = rows
    memory.picker.restored()
    numbers = head["numbers"]
    memory.draws.load(numbers["draws"])
    memory.pace.load(numbers["pace"])
    memory.greatest, memory.beta = numbers["greatest"], numbers["beta"]


def _head(memory: ReplayBuffer, directory: Path) -> dict[str, Any]:
    try:
        head = json.loads((directory / INDEX).read_text())
    except (OSError, ValueError) as e:
        raise UserError(f"replay: {INDEX} cannot be read ({e})") from None
    if head.get("schema") != SCHEMA:
        raise UserError(f"replay: its schema is {head.get('schema')!r}, this version reads {SCHEMA}")
    mine = _told(memory)
    differ = [k for k, v in head["replay"].items() if k not in FREE and mine.get(k) != v]
    if differ:
        said = ", ".join(f"{k}={head['replay'][k]} there, {mine.get(k)} here" for k in differ)
        raise UserError(f"replay: what was saved was described otherwise: {said}")
    return head


def _read(path: Path, checksum: int) -> dict[str, np.ndarray]:
    try:
        data = path.read_bytes()
        if zlib.crc32(data) != checksum:
            raise UserError(f"replay: {path.name} is damaged (its checksum differs)")
        return unpacked(data)
    except (OSError, SafetensorError) as e:
        raise UserError(f"replay: {path.name} cannot be read ({e})") from None


def _told(memory: ReplayBuffer) -> dict[str, Any]:
    """The description as JSON has it."""
    return json.loads(json.dumps(asdict(memory.replay)))


def _wholes(memory: ReplayBuffer) -> dict[str, dict[str, np.ndarray]]:
    """Arrays that are written as they are; they are a memory's own, to be filled in place."""
    return {
        "ledger": memory.ledger.arrays(),
        "last": memory.fields.last,
        "states": memory.states.arrays,
        "picker": memory.picker.arrays(),
        "given": {"given": memory.given},
    }


def _pieces(memory: ReplayBuffer) -> Iterator[tuple[str, str, dict[str, np.ndarray]]]:
    """Part, key, and what is in a file of it."""
    for part, arrays in _wholes(memory).items():
        for key, array in arrays.items():
            rows = max(1, PIECE // max(1, array[:1].nbytes))
            for begin in range(0, len(array), rows):
                yield part, key, {"rows": array[begin : begin + rows], "at": np.array([begin])}
    for path, shelf in memory.fields.shelves.items():
        for arrays in shelf.save(memory.ledger.used, memory.ledger.R):
            yield "rows", path, arrays

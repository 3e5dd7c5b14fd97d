"""A replay buffer as files: pieces of at most 64 MB as safetensors, each with a checksum, and replay.json. Never twice
in RAM.

Only slots that hold rows are written. A tree is saved by its leaves, since its sums follow from them to the bit.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as unpacked
from safetensors.numpy import save as packed

from polyplay.common.checkpoint import write_json
from polyplay.common.errors import UserError
from polyplay.common.files import write_bytes

if TYPE_CHECKING:
    from polyplay.buffers.replay.buffer import ReplayBuffer
    from polyplay.buffers.replay.spec import Replay

SCHEMA = 3
INDEX = "replay.json"
PIECE = 64 * 2**20  # bytes that are saved or loaded at once
# of a description, what may differ: nothing that is saved depends on it
FREE = ("batch", "gamma", "reward", "scale", "start", "ratio", "slack", "buffers")


def save_buffer(buffer: ReplayBuffer, directory: Path) -> None:
    """Write all that decides what is drawn from now on into `directory`. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    for left in directory.glob("*.safetensors"):  # by a process that was killed while it wrote
        left.unlink()
    files = []
    for i, (part, key, begin, rows) in enumerate(_pieces(buffer)):
        data = packed({"rows": np.ascontiguousarray(rows), "at": np.array([begin])})
        name = f"{i:05d}-{part}.safetensors"
        write_bytes(directory / name, data)
        files.append({"name": name, "part": part, "key": key, "crc32": zlib.crc32(data)})
        del data
    numbers = {"rng": buffer.rng.save(), "steps": buffer.limiter.steps}
    numbers |= {"max_priority": buffer.max_priority, "first_priority": buffer.first_priority, "beta": buffer.beta}
    head = {"schema": SCHEMA, "replay": _description(buffer.replay), "numbers": numbers, "files": files}
    write_json(directory / INDEX, head)


def load_buffer(buffer: ReplayBuffer, directory: Path) -> None:
    """Restore what was saved, to the bit. Raises UserError: damaged files, or another description."""
    head, parts = _head(directory, (buffer.replay,)), _parts(buffer)
    for file in head["files"]:
        piece = _read(directory / file["name"], file["crc32"])
        begin, rows = int(piece["at"][0]), piece["rows"]
        parts[file["part"]][file["key"]][begin : begin + len(rows)] = rows
    buffer.sampler.restored()
    numbers = head["numbers"]
    buffer.rng.load(numbers["rng"])
    buffer.limiter.steps = numbers["steps"]
    buffer.max_priority, buffer.first_priority = numbers["max_priority"], numbers["first_priority"]
    buffer.beta = numbers["beta"]


def check_saved(root: Path, replays: Sequence[Replay]) -> None:
    """Whether what a checkpoint has of replays can be loaded into such ones. Raises UserError."""
    for index in sorted(root.glob(f"replay/*/{INDEX}")):
        _head(index.parent, replays)


def _head(directory: Path, replays: Sequence[Replay]) -> dict[str, Any]:
    """What was saved, of one of these replays."""
    try:
        head = json.loads((directory / INDEX).read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise UserError(f"replay: {INDEX} cannot be read ({e})") from None
    if head.get("schema") != SCHEMA:
        raise UserError(
            f"replay: its schema is {head.get('schema')!r}, this version reads {SCHEMA}: use the one that wrote it"
        )
    saved = head["replay"]
    differ = min((_differences(saved, _description(replay)) for replay in replays), key=len, default=[])
    if differ:
        raise UserError(f"replay: what was saved was described otherwise: {', '.join(differ)}")
    return head


def _differences(saved: dict[str, Any], own: dict[str, Any]) -> list[str]:
    return [f"{k}={v} there, {own.get(k)} here" for k, v in saved.items() if k not in FREE and own.get(k) != v]


def _read(path: Path, checksum: int) -> dict[str, np.ndarray]:
    try:
        data = path.read_bytes()
        if zlib.crc32(data) != checksum:
            raise UserError(f"replay: {path.name} is damaged (its checksum differs)")
        return unpacked(data)
    except (OSError, SafetensorError) as e:
        raise UserError(f"replay: {path.name} cannot be read ({e})") from None


def _description(replay: Replay) -> dict[str, Any]:
    """As JSON has it."""
    return json.loads(json.dumps(asdict(replay)))


def layout(replay: Replay) -> dict[str, Any]:
    """What two replays must have in common, so that one can load what the other saved."""
    return {k: v for k, v in _description(replay).items() if k not in FREE}


def _parts(buffer: ReplayBuffer) -> dict[str, dict[str, np.ndarray]]:
    """All arrays that are saved; they are the buffer's own, to be filled in place."""
    return {
        "index": buffer.index.rows._asdict(),
        "last": buffer.columns.last,
        "states": buffer.states.arrays,
        "sampler": buffer.sampler.arrays,
        "rows": buffer.columns.arrays,
    }


def _pieces(buffer: ReplayBuffer) -> Iterator[tuple[str, str, int, np.ndarray]]:
    """Part, key, first row, and the rows of each file."""
    R, heads = buffer.index.R, buffer.index.lane[0].tolist()
    used = [(lane * R, lane * R + min(head, R)) for lane, head in enumerate(heads)]  # slots that hold rows
    for part, arrays in _parts(buffer).items():
        for key, array in arrays.items():
            step = max(1, PIECE // max(1, array[:1].nbytes))
            for begin, end in used if part == "rows" else [(0, len(array))]:
                for at in range(begin, end, step):
                    yield part, key, at, array[at : min(at + step, end)]

"""What is taken along to other machines: the modules of a folder (`--ship DIR`), and files of a checkpoint."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

from polyplay.common.errors import UserError
from polyplay.workers.role import Role

MOST = 64 * 2**20  # bytes


def pack_modules(directory: Path) -> bytes:
    """What is in a folder but for caches and what is hidden. Raises UserError."""
    if not directory.is_dir():
        raise UserError(f"--ship: {directory} given, but there is no such folder")
    file, size = io.BytesIO(), 0

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal size
        name = Path(member.name).name
        if name.startswith(".") or name == "__pycache__" or not (member.isdir() or member.isfile()):
            return None
        size += member.size
        if size > MOST:
            raise UserError(f"--ship: {directory} has more than {MOST >> 20} MB; name a folder with modules alone")
        return member

    with tarfile.open(fileobj=file, mode="w") as archive:
        for path in sorted(directory.iterdir()):
            archive.add(path, path.name, filter=wanted)
    return file.getvalue()


def unpack_modules(data: bytes, directory: Path) -> None:
    """From now on modules are looked for there first."""
    directory.mkdir()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(directory, filter="data")
    sys.path.insert(0, str(directory))


def needed_files(saved: Path, role: Role, index: int) -> list[tuple[str, Path]]:
    """Of a checkpoint, by their names in it: what this worker begins with."""
    patterns = [f"workers/{role.name}-{index}.*", "workers/stream-*", f"replay/{role.name}-{index}/*"]
    if role.learner:  # the indices of other replays say that these were saved
        patterns += ["agents/*/*", "replay/*/replay.json"]
    found = sorted({path for pattern in patterns for path in saved.glob(pattern)})
    return [(str(path.relative_to(saved)), path) for path in found]

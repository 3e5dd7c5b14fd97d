"""Checkpoints: directories of safetensors and JSON files. A checkpoint is either complete or absent. No file is
pickled.

Workers write their parts into `checkpoints/.partial-<update>`. When all parts are complete, the main process adds a
manifest (schema version, counters, SHA-256 and size of every file) and renames the directory to its final name.

A checkpoint is damaged if its files differ from its manifest, or if its weights are not finite. A run then prints a
warning and uses the checkpoint before it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from polyplay.core import platform
from polyplay.core.errors import UserError
from polyplay.core.files import Row, is_number, is_row, read_object, write_bytes

SCHEMA = 1
MANIFEST = "manifest.json"
ARRAYS = ".safetensors"
BEST = "best-"  # prefix of a directory with only the best weights, from which no run resumes
CHAMPION = "champion-"  # prefix of a directory with only weights that won a match
NAME = re.compile(r"(\d{12,})(-steps-\d+)?")  # directory of a checkpoint: update (orders checkpoints), agent steps
LANES = re.compile(r"\d+\+\d+")  # first lane and number of lanes
POLICY = re.compile(r"agents/(\d+)/policy\.safetensors")
UNUSED = "unused-"  # prefix of a checkpoint that is unused because the run resumed from an earlier checkpoint


def policy_name(agent: int) -> str:
    """Return the name under which a checkpoint stores an agent's policy."""
    return f"agents/{agent}/policy"


def write_arrays(path: Path, arrays: dict[str, np.ndarray], about: dict[str, str] | None = None) -> None:
    write_bytes(path, save({k: np.asarray(v, order="C") for k, v in arrays.items()}, about))


read_arrays = load_file


def write_json(path: Path, value: object) -> None:
    write_bytes(path, (json.dumps(value, indent=1) + "\n").encode())


def checkpoints_dir(directory: Path) -> Path:
    return directory / "checkpoints"


class CheckpointPart:
    """Writes one worker's part of a checkpoint."""

    def __init__(self, directory: Path, version: int):
        self.root = partial(directory, version)

    def arrays(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        self._write(f"{name}{ARRAYS}", lambda path: write_arrays(path, arrays))

    def json(self, name: str, value: object) -> None:
        self._write(f"{name}.json", lambda path: write_json(path, value))

    def folder(self, name: str) -> Path:
        """Make a directory inside the part, and return its path."""
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _write(self, name: str, write: Callable[[Path], None]) -> None:
        path = self.root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
        except FileNotFoundError:  # the main process renamed the directory during the write
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)


def partial(directory: Path, version: int) -> Path:
    return checkpoints_dir(directory) / f".partial-{version:012d}"


def directory_name(version: int, counters: Row) -> str:
    """Return the directory name of the checkpoint of update `version`."""
    return f"{version:012d}" + (f"-steps-{counters['steps']:.0f}" if "steps" in counters else "")


def update_of(path: Path) -> int:
    """Return the update in a checkpoint's name. Return -1 if the name has no update, as for best weights."""
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found else -1


def steps_of(path: Path) -> int:
    """Return the agent steps in a checkpoint's name, or 0 if the name has none. The path need not exist."""
    found = NAME.fullmatch(path.name)
    return int(found[2].removeprefix("-steps-")) if found and found[2] else 0


def complete(directory: Path, version: int, counters: Row) -> Path:
    """Make a checkpoint from the parts that workers wrote for update `version`, and return its path. If a file cannot
    be written, raises OSError and removes the parts.
    """
    root, final = partial(directory, version), checkpoints_dir(directory) / directory_name(version, counters)
    taken = root.with_name(f"{root.name}-taken")
    try:
        shutil.rmtree(taken, ignore_errors=True)
        platform.replace(root, taken)  # another save of the same update starts a new directory
        for temporary in taken.rglob(".*"):  # from a worker that was killed during a write
            temporary.unlink(missing_ok=True)
        finish(taken, final, version, counters)
    except OSError:
        shutil.rmtree(taken, ignore_errors=True)
        discard(directory, version)
        raise
    return final


def finish(root: Path, final: Path, version: int, counters: Row) -> None:
    """Make the directory `root` a complete checkpoint. Add the manifest, rename the directory to `final`, and then
    remove older checkpoints of the same update. Even if the process is killed, one of them is left.
    """
    files = {str(p.relative_to(root)): describe_file(p) for p in sorted(root.rglob("*")) if p.is_file()}
    write_json(root / MANIFEST, {"schema": SCHEMA, "update": version, "counters": counters, "files": files})
    old = [p for p in final.parent.iterdir() if p == final or update_of(p) == update_of(final) >= 0]
    place = final.with_name(re.sub(r"(\d+)$", r"0\1", final.name)) if final in old else final
    if place in old:  # left by a process that was killed before the last rename below
        _remove(place)
        old.remove(place)
    platform.replace(root, place)
    for path in old:
        _remove(path)
    if place != final:
        platform.replace(place, final)
    platform.sync(final.parent)


def _remove(path: Path) -> None:
    """Remove a checkpoint. It is renamed first, so that a kill never leaves half a checkpoint under its name."""
    aside = path.with_name(f".partial-old-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(OSError):
        platform.replace(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def describe_file(path: Path) -> Row:
    """Return the entry of a file in a manifest."""
    return {"sha256": _digest(path), "bytes": path.stat().st_size}


def save_weights(directory: Path, prefix: str, module: Any, counters: Row) -> None:
    """Save only the weights of a torch module, as the policy of agent 0. Raises OSError.

    `prefix`: BEST, to replace the earlier best weights, or CHAMPION, to keep all earlier ones.
    """
    version = int(counters["updates"])
    final = checkpoints_dir(directory) / f"{prefix}{directory_name(version, counters)}"
    root = final.with_name(f".partial-{final.name}")
    shutil.rmtree(root, ignore_errors=True)
    path = root / f"{policy_name(0)}{ARRAYS}"
    path.parent.mkdir(parents=True)
    write_arrays(path, {k: v.cpu().numpy() for k, v in module.state_dict().items()})
    finish(root, final, version, counters)
    for old in checkpoints_dir(directory).glob(f"{BEST}*") if prefix == BEST else ():
        if old != final:
            _remove(old)


def best_weights(directory: Path) -> Path | None:
    """Return the directory of the newest intact best weights, or None if the run has none."""
    found = [p for p in checkpoints_dir(directory).glob(f"{BEST}*") if flaw(p) is None]
    return max(found, key=lambda p: p.stat().st_mtime, default=None)


def champions(directory: Path) -> list[Path]:
    """Return the directories of the run's intact champions, oldest first. A champion is a network that won a match."""
    return [p for p in sorted(checkpoints_dir(directory).glob(f"{CHAMPION}*")) if flaw(p) is None]


def discard(directory: Path, version: int) -> None:
    shutil.rmtree(partial(directory, version), ignore_errors=True)


def partials(directory: Path) -> list[Path]:
    """Return the directories of incomplete checkpoints."""
    return list(checkpoints_dir(directory).glob(".partial-*"))


def partial_versions(directory: Path) -> list[int]:
    """Return the updates of all incomplete checkpoints. Directories with only weights are ignored."""
    names = (path.name.removeprefix(".partial-") for path in partials(directory))
    return [int(name) for name in names if name.isdecimal()]


def remove_partial(directory: Path) -> None:
    """Remove all incomplete checkpoints, which a killed run may have left."""
    for left in partials(directory):
        shutil.rmtree(left, ignore_errors=True)


def prune(directory: Path, keep: int) -> None:
    """Remove old checkpoints, except the newest `keep` and the one with the best mean return in training."""
    paths = everything(directory)
    if len(paths) > 1 and update_of(paths[0]) == 0:  # from before the first update
        _remove(paths.pop(0))
    best_one = _best_scored(paths)
    for path in paths[: -max(keep, 1)]:
        if path != best_one:
            _remove(path)


def everything(directory: Path) -> list[Path]:
    """Return the paths of all checkpoints, oldest first."""
    found = (p for p in checkpoints_dir(directory).glob("[0-9]*") if update_of(p) >= 0 and p.is_dir())
    return sorted(found, key=update_of)


def best(directory: Path) -> Path | None:
    """Return the best weights of a run, or None. The first of these that exists is returned:

    - the newest champion (a network that won a match)
    - the weights with the best score in evaluations during training
    - the checkpoint with the best mean return in training, except in self-play, where returns do not measure strength
    """
    return next(reversed(champions(directory)), None) or best_weights(directory) or _best_scored(everything(directory))


def _best_scored(paths: list[Path]) -> Path | None:
    """Return the checkpoint with the best mean return in training, or None if no checkpoint has one."""
    scored = []
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            counters = manifest(path)["counters"]
            score = counters.get("episodic_return_mean")
            if is_number(score) and not counters.keys() & {"agents", "self_play"}:
                scored.append((score, path))
    return max(scored)[1] if scored else None


def manifest(path: Path) -> Row:
    """Read the manifest of a checkpoint. Raises OSError or ValueError if the manifest is missing or damaged."""
    found = read_object(path / MANIFEST)
    if found.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {found.get('schema')!r}, this version reads {SCHEMA}")
    counters, files = found.get("counters"), found.get("files")
    if not isinstance(counters, dict) or not isinstance(files, dict):
        raise ValueError("it lacks counters or files")
    if not all(is_row(file, ("bytes",)) and isinstance(file.get("sha256"), str) for file in files.values()):
        raise ValueError("a file in it lacks bytes or sha256")
    return found


def agents_of(path: Path) -> list[int]:
    """Return the numbers of the agents whose policies are in a checkpoint."""
    return sorted(int(found[1]) for name in manifest(path)["files"] if (found := POLICY.fullmatch(name)))


def flaw(path: Path, within: str = "") -> str | None:
    """Describe a checkpoint's first flaw, or return None if the checkpoint is intact.

    `within`: check only files whose names start with this text.
    """
    try:
        found = manifest(path)
        each = found["counters"].get("agents")  # agent → its updates (may be 0), in a run of several agents
        updates = each if isinstance(each, dict) else {}
        files = {name: file for name, file in found["files"].items() if name.startswith(within)}
    except (OSError, ValueError) as e:
        return f"its manifest cannot be read ({e})"
    for name, expected in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != expected["bytes"] or _digest(file) != expected["sha256"]:
            return f"{name} is damaged (its checksum differs)"
    for name in files:
        if name.startswith("agents/") and name.endswith(ARRAYS):
            try:
                arrays = load_file(path / name)
            except (OSError, SafetensorError) as e:
                return f"{name} cannot be read ({e})"
            if not arrays and updates.get(name.split("/")[1], found.get("update")) != 0:
                return f"{name} is empty"
            if wrong := _not_finite(arrays):
                return f"{name} {wrong}"
    return None


def _not_finite(arrays: dict[str, np.ndarray]) -> str:
    """Return text that names the arrays with NaN or infinity, or "" if all numbers are finite."""
    bad = sorted(k for k, v in arrays.items() if np.issubdtype(v.dtype, np.floating) and not np.isfinite(v).all())
    return f"has numbers that are not finite ({', '.join(bad[:3])})" if bad else ""


def resume_flaw(path: Path) -> str | None:
    """Like `flaw`, but also check that the manifest has the counters that a resumed run needs."""
    if wrong := flaw(path):
        return wrong
    counters, numbers = {"wall_seconds": 0.0, "games": {}, **manifest(path)["counters"]}, ("steps", "frames", "updates")
    games = isinstance(counters["games"], dict) and all(map(LANES.fullmatch, counters["games"]))
    whole = games and is_row(counters, (*numbers, "wall_seconds")) and is_row(counters["games"], (*counters["games"],))
    return None if whole else f"its manifest lacks counters ({', '.join(numbers)}, games by lanes)"


def newest(directory: Path, say: Callable[[str], None], flaw_of: Callable[[Path], str | None] = flaw) -> Path:
    """Return the newest intact checkpoint. For each damaged checkpoint before it is found, call `say` with a message.
    Raises UserError if no checkpoint is intact.
    """
    found = everything(directory)
    for path in reversed(found):
        wrong = flaw_of(path)
        if wrong is None:
            return path
        say(f"checkpoint {path.name}: {wrong}; falling back to the one before")
    have = f"{len(found)} found, all damaged" if found else "none found"
    cure = f"move {checkpoints_dir(directory)} away to start over" if found else "let it run longer"
    raise UserError(f"RUN: {directory} has no usable checkpoint ({have}); {cure}")


def set_aside(directory: Path, found: Path | None) -> None:
    """Rename all checkpoints newer than `found`, from which the run resumes, or all checkpoints if `found` is None.
    Renamed checkpoints are not used again. Also rename champions (networks that won a match) of `found`'s update or
    later, because the run repeats their matches.
    """
    update = -1 if found is None else update_of(found)
    late = [path for path in everything(directory) if update_of(path) > update]
    for path in champions(directory):
        candidate = update_of(path.with_name(path.name.removeprefix(CHAMPION)))
        late += [path] * (candidate >= max(update, 1) or found is None)
    for path in late:
        aside = path.with_name(f"{UNUSED}{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        platform.replace(path, aside)


class OpenCheckpoint:
    """Intact checkpoint, whose arrays and JSON files are read by name."""

    def __init__(self, path: Path):
        self.path = path

    def has(self, name: str) -> bool:
        return (self.path / f"{name}.safetensors").is_file()

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        try:
            return load_file(self.path / f"{name}.safetensors")
        except SafetensorError as e:
            raise UserError(f"checkpoint {self.path}: {name} cannot be read ({e})") from None

    def json(self, name: str) -> Any:
        return json.loads((self.path / f"{name}.json").read_text("utf-8"))


open_checkpoint: Callable[..., OpenCheckpoint] = OpenCheckpoint


def load_into(module: Any, arrays: dict[str, np.ndarray]) -> None:
    """Copy arrays by name into the parameters and buffers of a torch module, in place. Raises UserError if names or
    shapes differ.
    """
    import torch

    own = module.state_dict()
    missing, extra = sorted(own.keys() - arrays.keys()), sorted(arrays.keys() - own.keys())
    if missing or extra:
        raise UserError(f"checkpoint: the network differs: missing {missing or 'none'}, unknown {extra or 'none'}")
    with torch.no_grad():
        for name, tensor in own.items():
            given, want = arrays[name].shape, tuple(tensor.shape)
            if given != want:
                raise UserError(f"checkpoint: the network differs: {name} has shape {given}, must have {want}")
            tensor.copy_(torch.from_numpy(arrays[name]))


def _digest(path: Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


# Files of past agents: an agent's weights at a version, in `past_agents/AGENT-VERSION.safetensors`, with a checksum.


FOLDER = "past_agents"
CHECKSUM = "sha256"  # metadata key of a file's checksum over names, types, shapes and numbers


def self_path(directory: Path, agent: int, version: int) -> Path:
    """Return the path of the file with the weights that `agent` had at `version`."""
    return directory / FOLDER / f"{agent}-{version}{ARRAYS}"


def self_files(directory: Path) -> list[Path]:
    """Return the paths of the files of all past agents of a run."""
    return sorted((directory / FOLDER).glob(f"*{ARRAYS}"))


def write_self(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write the weights of a past agent to a file. Raises OSError."""
    write_arrays(path, arrays, {CHECKSUM: _checksum(arrays)})


def read_self(path: Path) -> dict[str, np.ndarray]:
    """Read the weights of a past agent from a file. Raises UserError if the file cannot be read or is damaged."""
    arrays, wrong = _read(path)
    if wrong:
        raise UserError(f"RUN: past agent {path} plays in the league, but {wrong}: put back a copy")
    return arrays


def self_flaw(path: Path) -> str:
    """Describe the flaw of a past agent's file. Return "" if the file is intact."""
    return _read(path)[1]


def _read(path: Path) -> tuple[dict[str, np.ndarray], str]:
    """Return a past agent's arrays, and the flaw of its file ("" if intact). Older files may have no checksum."""
    try:
        with safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            expected = (file.metadata() or {}).get(CHECKSUM)
    except (OSError, SafetensorError) as e:
        return {}, f"cannot be read ({e})"
    if expected is not None and expected != _checksum(arrays):
        return arrays, "is damaged (its checksum differs)"
    return arrays, _not_finite(arrays)


def _checksum(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()

"""Checkpoints: safetensors and JSON, complete or absent.

Nothing is pickled, ever. Workers write their parts into `checkpoints/.partial-<update>`. Once the main process has all
of them, it takes the directory away under another name, so that another save of the same update gets one of its own. It
adds the manifest (schema version, counters, SHA-256 and size of every file) and renames the directory again: that is
the moment the checkpoint exists. A newest one that doesn't match its manifest, or whose numbers are no weights, is
passed over for the one before, saying so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from polyplay.core.errors import UserError
from polyplay.core.files import Row, is_number, is_row, read_object, write_bytes

SCHEMA = 1
MANIFEST = "manifest.json"
ARRAYS = ".safetensors"
BEST = "best-"  # and the update: weights alone, which no run resumes from
CHAMPION = "champion-"  # the same, of the weights that won a match
NAME = re.compile(r"(\d{12,})(-steps-\d+)?")  # the update, by which names sort, and agent steps
LANES = re.compile(r"\d+\+\d+")  # the first, and how many
POLICY = re.compile(r"agents/(\d+)/policy\.safetensors")
UNUSED = "unused-"  # and the update: passed over when the run went on from one before


def policy_name(agent: int) -> str:
    """What an agent's policy is called in a checkpoint."""
    return f"agents/{agent}/policy"


def write_arrays(path: Path, arrays: dict[str, np.ndarray], about: dict[str, str] | None = None) -> None:
    write_bytes(path, save({k: np.asarray(v, order="C") for k, v in arrays.items()}, about))


read_arrays = load_file


def write_json(path: Path, value: object) -> None:
    write_bytes(path, (json.dumps(value, indent=1) + "\n").encode())


def checkpoints_dir(directory: Path) -> Path:
    return directory / "checkpoints"


class CheckpointPart:
    """What one worker adds to the checkpoint of update `version`."""

    def __init__(self, directory: Path, version: int):
        self.root = partial(directory, version)

    def arrays(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        self._write(f"{name}{ARRAYS}", lambda path: write_arrays(path, arrays))

    def json(self, name: str, value: object) -> None:
        self._write(f"{name}.json", lambda path: write_json(path, value))

    def folder(self, name: str) -> Path:
        """A directory for what is written piece by piece."""
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _write(self, name: str, write: Callable[[Path], None]) -> None:
        """Write a file; once more if the directory was taken away meanwhile, with what an earlier save had in it."""
        path = self.root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)


def partial(directory: Path, version: int) -> Path:
    return checkpoints_dir(directory) / f".partial-{version:012d}"


def directory_name(version: int, counters: Row) -> str:
    """What the checkpoint of update `version` is called."""
    return f"{version:012d}" + (f"-steps-{counters['steps']:.0f}" if "steps" in counters else "")


def update_of(path: Path) -> int:
    """The update of a checkpoint, by its name; -1: it is none that a run resumes from."""
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found else -1


def steps_of(path: Path) -> int:
    """The agent steps of a checkpoint, by its name, which stays when it is removed; 0: it says none."""
    found = NAME.fullmatch(path.name)
    return int(found[2].removeprefix("-steps-")) if found and found[2] else 0


def complete(directory: Path, version: int, counters: Row) -> Path:
    """Turn the parts of `version` into a checkpoint; the directory it lives in. OSError leaves nothing behind."""
    root, final = partial(directory, version), checkpoints_dir(directory) / directory_name(version, counters)
    taken = root.with_name(f"{root.name}-taken")
    try:
        shutil.rmtree(taken, ignore_errors=True)
        os.rename(root, taken)
        for temporary in taken.rglob(".*"):  # of a worker that was killed while it wrote
            temporary.unlink(missing_ok=True)
        finish(taken, final, version, counters)
    except OSError:
        shutil.rmtree(taken, ignore_errors=True)
        discard(directory, version)
        raise
    return final


def finish(root: Path, final: Path, version: int, counters: Row) -> None:
    """Add the manifest, and call `root` `final`: of one update saved twice the newer counts. At every moment the one or
    the other is there: where both have one name, the newer has a zero more in it until the older is gone.
    """
    files = {str(p.relative_to(root)): describe_file(p) for p in sorted(root.rglob("*")) if p.is_file()}
    write_json(root / MANIFEST, {"schema": SCHEMA, "update": version, "counters": counters, "files": files})
    old = [p for p in final.parent.iterdir() if p == final or update_of(p) == update_of(final) >= 0]
    place = final.with_name(re.sub(r"(\d+)$", r"0\1", final.name)) if final in old else final
    if place in old:  # the process was killed here before
        _remove(place)
        old.remove(place)
    os.rename(root, place)
    for path in old:
        _remove(path)
    if place != final:
        os.rename(place, final)
    _sync(final.parent)


def _remove(path: Path) -> None:
    """Remove a checkpoint, if it is there: at once, so that a kill leaves no half of it."""
    aside = path.with_name(f".partial-old-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def describe_file(path: Path) -> Row:
    """A file as a manifest has it."""
    return {"sha256": _digest(path), "bytes": path.stat().st_size}


def save_weights(directory: Path, prefix: str, module: Any, counters: Row) -> None:
    """Save the weights of a torch module alone, as those of agent 0: as CHAMPION those before stay, as BEST they go.
    Raises OSError.
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
    """The weights that were saved last as BEST, if they are whole."""
    found = [p for p in checkpoints_dir(directory).glob(f"{BEST}*") if flaw(p) is None]
    return max(found, key=lambda p: p.stat().st_mtime, default=None)


def champions(directory: Path) -> list[Path]:
    """Weights that were saved as CHAMPION and are whole, oldest first."""
    return [p for p in sorted(checkpoints_dir(directory).glob(f"{CHAMPION}*")) if flaw(p) is None]


def discard(directory: Path, version: int) -> None:
    shutil.rmtree(partial(directory, version), ignore_errors=True)


def partials(directory: Path) -> list[Path]:
    """Where parts of checkpoints that are not complete are."""
    return list(checkpoints_dir(directory).glob(".partial-*"))


def partial_versions(directory: Path) -> list[int]:
    """Of which updates there are parts; those of the best weights are another worker's."""
    names = (path.name.removeprefix(".partial-") for path in partials(directory))
    return [int(name) for name in names if name.isdecimal()]


def remove_partial(directory: Path) -> None:
    """Remove parts that a killed run left."""
    for left in partials(directory):
        shutil.rmtree(left, ignore_errors=True)


def prune(directory: Path, keep: int) -> None:
    """Keep the newest `keep` and the one with the best return; the one of the beginning only until there is another."""
    paths = everything(directory)
    if len(paths) > 1 and update_of(paths[0]) == 0:
        _remove(paths.pop(0))
    best_one = _best_scored(paths)
    for path in paths[: -max(keep, 1)]:
        if path != best_one:
            _remove(path)


def everything(directory: Path) -> list[Path]:
    """Checkpoints, oldest first."""
    found = (p for p in checkpoints_dir(directory).glob("[0-9]*") if update_of(p) >= 0 and p.is_dir())
    return sorted(found, key=update_of)


def best(directory: Path) -> Path | None:
    """The champion; where no matches are played, the weights with the best score in evaluations during training; where
    none were made, the checkpoint with the best mean return in training. None: there is none yet, or agents play each
    other or themselves.
    """
    return next(reversed(champions(directory)), None) or best_weights(directory) or _best_scored(everything(directory))


def _best_scored(paths: list[Path]) -> Path | None:
    """By its mean return in training, which says nothing of agents that play each other or themselves."""
    scored = []
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            counters = manifest(path)["counters"]
            score = counters.get("episodic_return_mean")
            if is_number(score) and not counters.keys() & {"agents", "self_play"}:
                scored.append((score, path))
    return max(scored)[1] if scored else None


def manifest(path: Path) -> Row:
    """What a checkpoint says of itself. Raises OSError, and ValueError: it is damaged."""
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
    """The agents whose policies a checkpoint has."""
    return sorted(int(found[1]) for name in manifest(path)["files"] if (found := POLICY.fullmatch(name)))


def flaw(path: Path, within: str = "") -> str | None:
    """What is wrong with a checkpoint, or None. within: look only at files whose names begin so."""
    try:
        found = manifest(path)
        each = found["counters"].get("agents")  # the updates of several agents; some may have made none
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
    """That some have NaN or infinity; "": none has."""
    bad = sorted(k for k, v in arrays.items() if np.issubdtype(v.dtype, np.floating) and not np.isfinite(v).all())
    return f"has numbers that are not finite ({', '.join(bad[:3])})" if bad else ""


def resume_flaw(path: Path) -> str | None:
    """What is wrong with a checkpoint that a run is to go on from, or None."""
    if wrong := flaw(path):
        return wrong
    counters, numbers = {"wall_seconds": 0.0, "games": {}, **manifest(path)["counters"]}, ("steps", "frames", "updates")
    games = isinstance(counters["games"], dict) and all(map(LANES.fullmatch, counters["games"]))
    whole = games and is_row(counters, (*numbers, "wall_seconds")) and is_row(counters["games"], (*counters["games"],))
    return None if whole else f"its manifest lacks counters ({', '.join(numbers)}, games by lanes)"


def newest(directory: Path, say: Callable[[str], None], flaw_of: Callable[[Path], str | None] = flaw) -> Path:
    """The newest checkpoint that is whole; `say` gets a line for every one passed over."""
    found = everything(directory)
    for path in reversed(found):
        wrong = flaw_of(path)
        if wrong is None:
            return path
        say(f"checkpoint {path.name}: {wrong}; going back to the one before")
    have = f"{len(found)} there, none whole" if found else "none there"
    cure = f"move {checkpoints_dir(directory)} away to begin it again" if found else "let it run on"
    raise UserError(f"RUN: {directory} has no usable checkpoint ({have}); {cure}")


def set_aside(directory: Path, found: Path | None) -> None:
    """Checkpoints newer than the one that a run goes on from are kept under another name: none is resumed from later,
    and none counts when old ones are removed. So are champions that were candidates at its update or later: their
    matches are played again.
    """
    update = -1 if found is None else update_of(found)
    late = [path for path in everything(directory) if update_of(path) > update]
    for path in champions(directory):
        candidate = update_of(path.with_name(path.name.removeprefix(CHAMPION)))
        late += [path] * (candidate >= max(update, 1) or found is None)
    for path in late:
        aside = path.with_name(f"{UNUSED}{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)


class OpenCheckpoint:
    """A whole checkpoint, read by name."""

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
    """Load named arrays into a torch module whose tensors are views: copied in place, every name and shape must
    match.
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
                raise UserError(f"checkpoint: the network differs: {name} is {given} there and {want} here")
            tensor.copy_(torch.from_numpy(arrays[name]))


def _digest(path: Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# Files of past agents: an agent's weights as they were, in `past_agents/AGENT-VERSION.safetensors`, with a checksum.


FOLDER = "past_agents"
CHECKSUM = "sha256"  # in the file's metadata: of names, types, shapes and numbers


def self_path(directory: Path, agent: int, version: int) -> Path:
    """Return the file of an agent's weights as they were at `version`."""
    return directory / FOLDER / f"{agent}-{version}{ARRAYS}"


def self_files(directory: Path) -> list[Path]:
    """Return the files of all past agents of a run."""
    return sorted((directory / FOLDER).glob(f"*{ARRAYS}"))


def write_self(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a past agent. Raises OSError."""
    write_arrays(path, arrays, {CHECKSUM: _checksum(arrays)})


def read_self(path: Path) -> dict[str, np.ndarray]:
    """Read a past agent. Raises UserError: it cannot be read, or is damaged."""
    arrays, wrong = _read(path)
    if wrong:
        raise UserError(f"RUN: past agent {path} plays in the league, but {wrong}: put back a copy")
    return arrays


def self_flaw(path: Path) -> str:
    """Return what is wrong with a past agent; empty: nothing."""
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
    return arrays, _not_finite(arrays)


def _checksum(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()

"""The files of a run's directory: config.json, and what is cut off its lines when the run is resumed.

Imports no torch.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from polyplay.common.errors import UserError
from polyplay.common.files import Row, write_bytes, write_json
from polyplay.common.machine import stamp

SCHEMA = 1


class RunDescription(TypedDict):
    """What a run is, as config.json has it."""

    system: str
    config: Row
    options: Row
    sources: Mapping[str, str]
    environment: Mapping[str, str]


def rewind(directory: Path, counters: Mapping[str, Any]) -> None:
    """Cut what came after a checkpoint out of a run's lines, because it is done again. Each file stays whole.

    A game that ended before the checkpoint and was written down after it stays, with the checkpoint's counters.
    Raises OSError.
    """
    totals = {k: counters[k] for k in ("frames", "steps")}
    games, found = counters.get("games", {}), Counter[str]()
    owner = {lane: worker for worker in games for lane in _lanes(worker)}

    def game(row: Row) -> bool:
        worker = owner.get(row["lane"])
        if worker is None:
            return row["frames"] <= totals["frames"]
        found[worker] += 1
        return found[worker] <= games[worker]

    updates = counters["updates"]
    for name in ("metrics", "decisions", "evaluations"):
        _cut(directory / f"{name}.jsonl", lambda row: row["steps"] <= totals["steps"])
    _cut(directory / "updates.jsonl", lambda row: row["update"] <= updates)
    _cut(directory / "episodes.jsonl", game, totals)
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


# config.json


def write_config(directory: Path, run: RunDescription) -> None:
    """Write what this run is; `config` and `options` from `options.to_json`. Raises OSError."""
    contents = {"schema": SCHEMA, "seed": run["options"]["seed"], **run, **stamp(), "resumed": []}
    write_json(directory / "config.json", contents)


def amend_config(directory: Path, run: RunDescription) -> None:
    """Write down a resumption: what holds from now on, when, and on what machine and versions."""
    contents = read_config(directory)
    contents |= {k: run[k] for k in ("config", "options", "sources")}
    contents |= {"resumed": [*contents["resumed"], stamp()]}
    write_json(directory / "config.json", contents)


def read_config(directory: Path) -> Row:
    """config.json of a run; UserError if there is none, it is damaged, or of another version's schema."""
    path = Path(directory) / "config.json"
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        neighbours = {p.parent.name: p.parent for p in path.parent.parent.glob("*/config.json")}
        near = difflib.get_close_matches(path.parent.name, neighbours, 1)
        hint = f"did you mean {neighbours[near[0]]}?" if near else "name the directory that `polyplay train` printed"
        raise UserError(f"no run at {directory} (it has no config.json); {hint}") from None
    except ValueError as e:
        raise UserError(f"{path} is damaged: {e}; put back a copy of it") from None
    if not isinstance(contents, dict) or contents.get("schema") != SCHEMA:
        raise UserError(f"{path} has not schema {SCHEMA}, which this version reads: use the version it names")
    return contents


def config_hash(config: Mapping[str, Any]) -> str:
    """Of what decides how an agent was trained and plays: system, configuration, environment. config: config.json."""
    parts = {k: config[k] for k in ("system", "config", "environment")}
    parts["options"] = {k: config["options"].get(k) for k in ("precision",)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def origin(directory: Path) -> Row:
    """What a score of the run itself carries: its configuration's hash, and where it ran. Raises UserError."""
    config = read_config(directory)
    last = (config["resumed"] or [config])[-1]
    return {"config_hash": config_hash(config), "machine": last["machine"], "commit": last["commit"]}

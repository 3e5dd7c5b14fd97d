"""The files of a run directory: lines that are always whole, JSON that is never half written, config.json.

Imports no torch.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polyplay.common.errors import UserError
from polyplay.common.files import Row, to_plain, write_bytes, write_json
from polyplay.common.machine import stamp

SCHEMA = 1


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
    return to_plain(record)


def amend_config(directory: Path, options: Mapping[str, Any], sources: Mapping[str, str]) -> Row:
    """Record a resumption: the options that hold from now on, when, and on what machine and versions."""
    record = read_config(directory)
    record |= {"options": options, "sources": sources, "resumed": [*record["resumed"], stamp()]}
    write_json(Path(directory) / "config.json", record)
    return to_plain(record)


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
    parts["options"] = {k: kept["options"].get(k) for k in ("precision",)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def origin(directory: Path) -> Row:
    """What a score of the run itself carries: its configuration's hash, and where it ran. Raises UserError."""
    kept = read_config(directory)
    last = (kept["resumed"] or [kept])[-1]
    return {"config_hash": config_hash(kept), "machine": last["machine"], "commit": last["commit"]}

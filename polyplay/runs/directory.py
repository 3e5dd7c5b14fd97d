"""The files of a run's directory: config.json, and what is cut off its lines when the run is resumed.

Imports no torch.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from polyplay.common.errors import UserError
from polyplay.common.files import Row, is_number, is_row, parse_json, read_object, write_bytes, write_json
from polyplay.common.machine import stamp
from polyplay.population.match_log import LOG, has_league
from polyplay.population.ranking import rank_members
from polyplay.population.rated_versions import RATINGS
from polyplay.population.store import MEMBERS, Store
from polyplay.runs.trust import is_ours, signature

SCHEMA = 1
READ_ONLY = "READ_ONLY"  # a file in a run's directory, or in the folder around it: nothing is added to the run
WIRING = "wiring.json"  # roles and arrows, as `polyplay diagram` draws them
SHOWN = 3  # members of a population that a message names
# the numbers that a line has at least
METRICS = ("wall_seconds", "frames", "steps", "updates")
GAME = ("wall_seconds", "frames", "steps", "lane", "episodic_return", "episodic_length")
STANDS_FOR = "games"  # in a line of episodes.jsonl: games that it stands for, itself included; left out: 1
SHAPE = {  # of config.json: what every part of it is
    **dict.fromkeys(("config", "options", "sources", "environment", "versions", "machine"), dict),
    "system": str,
    "started": str,
    "seed": int,
    "resumed": list,
}


class RunDescription(TypedDict):
    """What a run is, as config.json has it."""

    system: str
    config: Row
    options: Row
    sources: Mapping[str, str]
    environment: Mapping[str, str]


def rewind(directory: Path, counters: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Cut what came after a checkpoint out of a run's lines, because it is done again, and what is damaged, with a line
    about that. Each file stays whole.

    A game that ended before the checkpoint and was written down after it stays, with the checkpoint's counters. For
    those that have no line of their own, the line before them stands. Raises OSError.
    """
    steps, updates = counters["steps"], counters["updates"]
    learnt = counters.get("agents", {"0": updates})
    _cut(directory / "metrics.jsonl", _rows(METRICS), _up_to("steps", steps), say)
    for name in ("decisions", "evaluations"):
        _cut(directory / f"{name}.jsonl", _rows(("steps",)), _up_to("steps", steps), say)
    played = max(updates, 1)  # the match of the checkpoint's own update is played again
    if not has_league(directory):  # a league's matches were played, wherever learning goes on from
        _cut(directory / LOG, _rows(("steps", "candidate")), lambda row: row["candidate"] < played, say)
    _cut(directory / "games.jsonl", _rows(("steps", "black", "white")), _games_up_to(steps, played), say)
    rated = learnt.get("0", 0)
    _cut(directory / RATINGS, _rows(("version", "steps")), lambda row: row["version"] <= rated, say)
    for path in directory.glob("updates*.jsonl"):  # updates-N.jsonl of agent N of several, updates.jsonl of the first
        _cut(path, _rows(("update",)), _up_to("update", learnt.get(path.stem.partition("-")[2] or "0", 0)), say)
    _cut_games(directory / "episodes.jsonl", counters, say)
    for path in directory.glob("deliveries-*.jsonl"):
        _cut(path, _delivery, lambda line: (line["from"] if isinstance(line, dict) else line[0]) <= updates, say)


def _cut_games(path: Path, counters: Mapping[str, Any], say: Callable[[str], None]) -> None:
    totals = {k: counters[k] for k in ("frames", "steps")}
    games, found, kept = counters.get("games", {}), Counter[str](), Counter[str]()
    owner = {lane: worker for worker in games for lane in worker_lanes(worker)}

    def stays(row: Row) -> bool:
        worker = owner.get(row["lane"])
        if worker is None:
            return row["frames"] <= totals["frames"]
        found[worker] += games_of(row)
        if found[worker] <= games[worker]:
            kept[worker] = found[worker]
        return found[worker] <= games[worker]

    _cut(path, _rows(GAME), stays, say, totals)
    if missing := +(Counter(games) - kept):
        _let_stand(path, owner, missing)


def _let_stand(path: Path, owner: Mapping[int, str], missing: Counter[str]) -> None:
    """Add games that have no line to the last line of their worker."""
    before = path.read_bytes() if path.is_file() else b""
    lines = before.splitlines(keepends=True)
    for i in reversed(range(len(lines))):
        row = parse_json(lines[i])
        if more := missing.pop(owner.get(row["lane"], ""), 0):
            lines[i] = (json.dumps(row | {STANDS_FOR: games_of(row) + more}) + "\n").encode()
        if not missing:
            break
    if b"".join(lines) != before:
        write_bytes(path, b"".join(lines))


def games_of(row: Row) -> int:
    """How many games a line of episodes.jsonl stands for."""
    games = row.get(STANDS_FOR, 1)
    return max(1, int(games)) if is_number(games) else 1


def worker_lanes(name: str) -> range:
    """The lanes of a worker, as a checkpoint's counters name it."""
    first, _, n = name.partition("+")
    return range(int(first), int(first) + int(n))


def _rows(numbers: tuple[str, ...]) -> Callable[[Any], bool]:
    return lambda row: is_row(row, numbers)


def _up_to(number: str, most: float) -> Callable[[Any], bool]:
    return lambda row: row[number] <= most


def _games_up_to(steps: float, candidates: int) -> Callable[[Any], bool]:
    """Of self-play those until that step, of a gate those of matches of candidates below."""
    return lambda row: (
        max(row["black"], row["white"]) < candidates if row.get("kind") == "gate" else row["steps"] <= steps
    )


def _delivery(line: Any) -> bool:
    return is_row(line, ("from",)) or (isinstance(line, list) and bool(line) and is_number(line[0]))


def _cut(
    path: Path,
    whole: Callable[[Any], bool],
    stays: Callable[[Any], bool],
    say: Callable[[str], None],
    most: Mapping[str, int] | None = None,
) -> None:
    """Rewrite a file of JSON lines without those that are not whole or do not stay; `most` bounds numbers of others."""
    if not path.is_file():
        return
    before, after, damaged = path.read_bytes(), [], 0
    for line in before.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            continue
        row = parse_json(line)
        if not whole(row):
            damaged += 1
            continue
        if not stays(row):
            continue
        if most and any(row[k] > n for k, n in most.items()):
            row |= {k: min(row[k], n) for k, n in most.items()}
            line = (json.dumps(row) + "\n").encode()
        after.append(line)
    if damaged:
        say(f"{path.name}: {damaged} damaged line{'s' * (damaged > 1)} left out")
    if b"".join(after) != before:
        write_bytes(path, b"".join(after))


# config.json


def write_config(directory: Path, run: RunDescription) -> None:
    """Write what this run is; `config` and `options` from `options.to_json`. Raises OSError."""
    contents = {"schema": SCHEMA, "seed": run["options"]["seed"], **run, **stamp(), "resumed": []}
    contents |= {"signature": signed} if (signed := signature(contents)) else {}
    write_json(directory / "config.json", contents)


def amend_config(directory: Path, run: RunDescription, was: Row | None = None) -> None:
    """Write down a resumption: what holds from now on, when, on what machine and versions, and what it was before."""
    contents = read_config(directory, population=True)
    ours = is_ours(contents)
    contents |= {k: run[k] for k in ("config", "options", "sources")}
    contents |= {"signature": signed} if ours and (signed := signature(contents)) else {}
    contents |= {"resumed": [*contents["resumed"], stamp() | (was or {})]}
    write_json(directory / "config.json", contents)


def read_config(directory: Path, whole: bool = False, population: bool = False) -> Row:
    """config.json of a run; UserError if there is none, it is damaged, of another version's schema, or a population's
    unless that may be. whole: all is there that a run writes, which going on with it takes, not only what it was.
    """
    path = Path(directory) / "config.json"
    try:
        contents = read_object(path)
    except OSError:
        neighbours = {p.parent.name: p.parent for p in path.parent.parent.glob("*/config.json")}
        near = difflib.get_close_matches(path.parent.name, neighbours, 1)
        hint = f"did you mean {neighbours[near[0]]}?" if near else "name the directory that `polyplay train` printed"
        raise UserError(f"no run at {directory} (it has no config.json); {hint}") from None
    except ValueError as e:
        raise UserError(f"{path} is damaged: {e}; put back a copy of it") from None
    if contents.get("schema") != SCHEMA:
        raise UserError(f"{path} has not schema {SCHEMA}, which this version reads: use the version it names")
    needed = SHAPE if whole else {"system", "config", *SHAPE.keys() & contents.keys()}
    wrong = [name for name in needed if not isinstance(contents.get(name), SHAPE[name])]
    for name, kind in (("sources", str), ("environment", str), ("resumed", dict)):
        if not wrong and not all(isinstance(v, kind) for v in _values(contents.get(name, ()))):
            wrong.append(name)
    if wrong:
        raise UserError(f"{path} is damaged: no {', '.join(sorted(wrong))} as a run writes it; put back a copy of it")
    if not population and has_members(contents):
        raise UserError(f"RUN: {directory} is a population, name one of its members: {_best_members(Path(directory))}")
    return contents


def has_members(config: Row) -> bool:
    """Whether config.json is of a population, whose members are runs."""
    return "over" in config["config"]


def _best_members(directory: Path) -> str:
    """Their directories, the best first."""
    with contextlib.suppress(UserError, KeyError, TypeError):
        store = Store(directory)
        members = rank_members(store.read()["members"])
        named = [str(store.member(m["member"])) for m in members[:SHOWN]]
        return "the best first, " + ", ".join([*named, *["…"] * (len(members) > SHOWN)])
    return f"those in {directory / MEMBERS}"


def _values(parts: Any) -> Any:
    return parts.values() if isinstance(parts, dict) else parts


def is_read_only(directory: Path) -> bool:
    """Whether nothing may be added to this run, see READ_ONLY."""
    return any((folder / READ_ONLY).exists() for folder in (directory, directory.resolve().parent))


def config_hash(config: Mapping[str, Any]) -> str:
    """Of what decides how an agent was trained and plays: system, configuration, environment. config: config.json."""
    parts = {k: config[k] for k in ("system", "config", "environment")}
    parts["options"] = {k: config["options"].get(k) for k in ("precision",)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def origin(directory: Path) -> Row:
    """What a score of the run itself carries: its configuration's hash, and where it ran. Raises UserError."""
    config = read_config(directory, whole=True)
    last = (config["resumed"] or [config])[-1]
    return {"config_hash": config_hash(config), "machine": last.get("machine"), "commit": last.get("commit")}

"""What a run directory says of the run: its command, its reports, when it was good."""

from __future__ import annotations

import json
import shlex
import statistics
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common import Row

from polyplay.core import checkpoint
from polyplay.core.files import read_lines
from polyplay.runs.flags import flag

GOAL = 18.0  # mean return of the last
GAMES = 100  # full games
ROWS = 400  # reports kept of a run
GIVEN = ("command line", "keyword", "resume")


def command(config: Row, name: str) -> str:
    """The command line that made this run, from what its config.json says was given."""
    values = {**config["config"], **config["options"]}
    given = [k for k, how in config["sources"].items() if how in GIVEN and k != "run"]
    words = [w for k in given for w in (flag(k), _spell(values[k]))]
    return shlex.join(["polyplay", "train", config["system"], *words, "--run", f"runs/{name}"])


def _spell(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def commit(config: Row) -> str:
    """Short, with "-dirty" where the code was not as committed."""
    name, dash, dirty = (config["commit"] or "unknown").partition("-")
    return f"{name[:12]}{dash}{dirty}"


def whole(rows: Iterable[Row]) -> list[Row]:
    """Lines of a run; those that a resumption from an earlier checkpoint made void are left out."""
    kept: list[Row] = []
    for row in rows:
        while kept and kept[-1]["frames"] > row["frames"]:
            kept.pop()
        kept.append(row)
    return kept


def reached(run: Path) -> Row | None:
    """The finished game at which the mean return of the last 100 first was 18 or more."""
    last: deque[float] = deque(maxlen=GAMES)
    for game in whole(read_lines(run / "episodes.jsonl")):
        last.append(game["episodic_return"])
        if len(last) == GAMES and statistics.fmean(last) >= GOAL:
            return game
    return None


def evaluation(run: Path) -> Row | None:
    """That of the newest checkpoint, else the newest there is."""
    found = {p.stem.split("-")[1]: p for p in sorted(run.glob("evaluation-*-seed*.json")) if "greedy" not in p.stem}
    if not found:
        return None
    names = [p.name for p in checkpoint.everything(run)]
    newest = max(found.values(), key=lambda p: p.stat().st_mtime)
    return json.loads((found.get(names[-1], newest) if names else newest).read_text())


def thin(rows: list[Row], most: int = ROWS) -> list[Row]:
    """At most `most` rows, evenly, with the first and the last."""
    n = len(rows)
    return rows if n <= most else [rows[round(i * (n - 1) / (most - 1))] for i in range(most)]

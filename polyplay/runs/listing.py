"""Runs as a list: what each directory says of the run in it, read without changing anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from polyplay.common.errors import UserError
from polyplay.common.files import Row, is_number, read_lines, read_object
from polyplay.population.ranking import best_member
from polyplay.population.store import MEMBERS
from polyplay.runs.directory import METRICS, has_members, read_config
from polyplay.runs.lock import is_locked
from polyplay.runs.population_file import read_population

COUNTERS = ("frames", "steps", "wall_seconds")


def list_runs(places: Sequence[Path]) -> list[Row]:
    """A row for each run in or directly below these directories, members of populations only where one is named, newest
    first. Raises UserError: one is not there."""
    found = {run.resolve(): run for place in places for run in _runs_in(place)}
    return sorted(map(describe_run, found.values()), key=lambda row: row["started"], reverse=True)


def _runs_in(place: Path) -> Iterable[Path]:
    """Directories with a config.json: `place` itself, else those in it, with the seeds of a run of several."""
    if not place.is_dir():
        raise UserError(f"DIR: no directory {place}; name one that holds runs, as `polyplay train` makes runs/")
    if (place / "config.json").exists():
        return [place, *sorted(path.parent for path in (place / MEMBERS).glob("*/config.json"))]
    return sorted(path.parent for pattern in ("*", "*/seed-*") for path in place.glob(f"{pattern}/config.json"))


def describe_run(directory: Path) -> Row:
    """One run. A damaged one has an `error`, and the state "damaged"."""
    row: Row = {"run": str(directory), "started": "", "state": "damaged"}
    try:
        config = read_config(directory, population=True)
        summary = _summary(directory)
        counters = summary or (_of_members(directory) if has_members(config) else _last_report(directory))
        return row | {
            "system": config["system"],
            "env": str(config["config"].get("env", "")),
            "seed": config.get("seed"),
            "started": str(config.get("started", "")),
            "state": state_of(directory, summary),
            **{name: counters.get(name) for name in COUNTERS},
            "return": counters.get("episodic_return_mean", counters.get("best_score")),
            "return_best": _best_return(directory),
            "reason": summary.get("reason"),
        }
    except (UserError, OSError) as e:
        return row | {"error": str(e)}
    except (ArithmeticError, LookupError, TypeError, ValueError) as e:
        return row | {"error": f"{directory} is damaged: {type(e).__name__}: {e}"}


def state_of(directory: Path, summary: Row) -> str:
    """running, done, stopped (by a signal, a callback, or killed) or failed. summary: summary.json, {} if none."""
    if is_locked(directory):
        return "running"
    if not summary:
        return "stopped"
    code, stopped = summary.get("exit_code"), str(summary.get("reason", "")).startswith("stopped")
    if not is_number(code) or code in (1, 2):
        return "failed"
    return "stopped" if code or stopped else "done"


def _summary(directory: Path) -> Row:
    path = directory / "summary.json"
    try:
        return _checked(read_object(path), path) if path.exists() else {}
    except ValueError as e:
        raise UserError(f"{path} is damaged: {e}") from None


def _checked(row: Row, path: Path) -> Row:
    """Raises UserError: a value that is shown as a number is none."""
    for name in (*COUNTERS, "episodic_return_mean", "best_score"):
        if not (row.get(name) is None or is_number(row[name])):
            raise UserError(f"{path} is damaged: {name} is {row[name]!r}, and no number; put back a copy of it")
    return row


def _last_report(directory: Path) -> Row:
    path = directory / "metrics.jsonl"
    rows = deque(read_lines(path, *METRICS), maxlen=1)
    return _checked(rows[0], path) if rows else {}


def _of_members(directory: Path) -> Row:
    """Of a population that has not ended."""
    population = read_population(directory)
    best = best_member(population["members"])
    totals = {name: sum(m[name] for m in population["members"]) for name in ("frames", "steps")}
    return totals | {"wall_seconds": population["wall_seconds"], "best_score": best and best["score"]}


def _best_return(directory: Path) -> float | None:
    """The best mean over 100 games of any report."""
    rows = read_lines(directory / "metrics.jsonl", "episodes", "episodic_return_mean")
    return max((row["episodic_return_mean"] for row in rows if row["episodes"] >= 100), default=None)

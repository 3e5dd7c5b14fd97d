"""Learning curves from the files of runs: the runs that a name stands for, and the curve of each."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.common.statistics import trailing_means
from polyplay.runs.directory import read_config
from polyplay.runs.tables import current_rows

POINTS = 1000  # of a curve at most
WINDOW = 100  # games that a run's reports are over
GAMES, REPORTS = "episodes.jsonl", "metrics.jsonl"


@dataclass(frozen=True, eq=False)
class Curve:
    """The mean full-game return of a run's last games, at each game's end. across: by axis where these points are."""

    label: str
    env: str
    settings: Row
    across: dict[str, np.ndarray]
    returns: np.ndarray


def find_runs(place: Path) -> list[Path]:
    """The run at `place`, or else those in it: its seeds, in order. Raises UserError: there is none."""
    if has_run_files(place):
        return [place]
    inside = {path.parent for name in ("config.json", GAMES, REPORTS) for path in _inside(place, name)}
    if not inside:
        read_config(place)  # says what is missing
    return sorted(inside, key=_natural)


def has_run_files(place: Path) -> bool:
    """Whether it has a configuration, games or reports. Runs made by hand have no configuration."""
    return any((place / name).is_file() for name in ("config.json", GAMES, REPORTS))


def _inside(place: Path, name: str) -> Iterator[Path]:
    for pattern in ("*", "*/seed-*"):
        yield from place.glob(f"{pattern}/{name}")


def _natural(path: Path) -> list[tuple[str, int]]:
    """seed-2 comes before seed-10."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", str(path))]


def read_curves(place: Path, games: int = WINDOW) -> list[Curve]:
    """The curve of each run that `place` stands for; of several those that have games, with a line about each other.
    Raises UserError: there is none.
    """
    runs, found, missing = find_runs(place), list[Curve](), list[UserError]()
    for run in runs:
        try:
            found.append(read_curve(run, games))
        except UserError as e:
            missing.append(e)
    if not found:
        raise missing[0]
    for why in missing:
        print(f"polyplay: left out: {why}", file=sys.stderr)
    return found


def read_curve(run: Path, games: int = WINDOW) -> Curve:
    """A run's curve: of all its games, or of its reports where games were not kept. Games that a resumption played
    again count once. Raises UserError: no game has ended.
    """
    own: Row = {"system": _own_name(run), "config": {}}
    by_hand = not (run / "config.json").exists()
    config = own if by_hand else read_config(run)
    rows = current_rows(run / GAMES, "episodic_return")
    if rows:
        returns = trailing_means(np.array([row["episodic_return"] for row in rows], float), games)
    else:
        rows = current_rows(run / REPORTS, "episodic_return_mean") if games == WINDOW else []
        returns = np.array([row["episodic_return_mean"] for row in rows], float)
    if not rows:
        cure = f"a line of {GAMES} needs frames, wall_seconds and episodic_return" if by_hand else "let the run go on"
        raise UserError(f"{run} has no finished game yet, in {GAMES} or {REPORTS}: {cure}")
    kept = _kept([row["frames"] for row in rows])
    across = {name: np.array([row[name] for row in rows], float)[kept] for name in _columns(rows)}
    minutes = np.array([row["wall_seconds"] for row in rows], float)[kept] / 60
    return Curve(
        label=config["system"],
        env=str(config["config"].get("env", "")),
        settings=config["config"],
        across={**across, "minutes": minutes, "hours": minutes / 60},
        returns=returns[kept],
    )


def _own_name(run: Path) -> str:
    """Of a run without a configuration; its seeds have one name."""
    run = run.resolve()
    return run.parent.name if run.name.startswith("seed-") else run.name


def _columns(rows: list[Row]) -> list[str]:
    return [name for name in ("frames", "steps") if all(name in row for row in rows)]


def _kept(frames: list[float]) -> np.ndarray:
    """Which points are drawn: the last of those at one place, evenly thinned, with the first and the last of all."""
    x = np.asarray(frames, float)
    last = np.flatnonzero(np.append(x[1:] != x[:-1], True))
    return np.unique(last[np.linspace(0, len(last) - 1, min(POINTS, len(last))).astype(int)])

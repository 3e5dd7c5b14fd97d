"""watch: serve a web page that shows runs while they train. Memory use stays bounded, however long the runs become."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from polyplay.cli import bench
from polyplay.cli.arguments import check_extra, listen, parse_words, serve_page
from polyplay.core import checkpoint
from polyplay.core.errors import Port, UserError
from polyplay.core.files import Row, is_row, parse_json
from polyplay.core.machine import cores
from polyplay.evaluation.scores import read_evaluations
from polyplay.runs import directory as run_files
from polyplay.runs.reporter import KINDS

BARS = {  # bottleneck → (name on the page, key of its number in a report)
    "env": ("environment", "time_env"),
    "infer": ("acting", "time_infer"),
    "learn": ("learning", "time_learn"),
    "overhead": ("replay", "time_replay"),
}
SHARES = (*(f"time_{kind}" for kind in KINDS), "cpu")


def limit_sentence(row: Row, config: Row, wiring: Row) -> str:
    """Return a sentence that names what takes most of the run's time, and an option that may help. Return "" if the run
    has no reports yet. `row`: means of the last reports.

    The time in which workers wait counts as idle time. So does the time of cores that no worker uses.
    """
    times = {name: row.get(column) or 0.0 for name, (_, column) in BARS.items()}
    busy, workers = sum(times.values()), sum(role["n"] for role in wiring.get("roles", ()))
    if not is_row(row, SHARES) or busy <= 0.0:
        return ""
    used = min(1.0, max(row["cpu"], busy * (workers / cores() if workers else 1.0)))
    where = {name: used * time / busy for name, time in times.items()} | {"others": 0.0, "idle": 1.0 - used}
    name = bench.bottleneck(where)
    change = bench.change(name, config, str(config.get("env", "")), str(wiring.get("pool", "")))
    if name == "idle":
        return f"cores are idle for {100 * where['idle']:.0f} % of the time: {change}"
    word, share = BARS[name]
    return f"{word} takes {100 * row[share]:.0f} % of the workers' time: {change}"


POINTS = 1000  # points of a curve after thinning; at most twice as many before
EPISODES = 10  # last episodes shown
WINDOW = 100  # games of a mean return
REPORTS = 12  # number of last reports over which time shares and advice are averaged: usually a minute
GAME = ("wall_seconds", "steps", "episodic_return")  # numbers read of each game


def add_point(curve: list[tuple[Any, ...]], row: tuple[Any, ...]) -> None:
    """Add the point `row`, which begins with its step, to a curve. First remove all points at the same step or later
    steps, because a resumed run repeats steps. If the curve then has more than 2 · POINTS points, thin it to POINTS
    points.
    """
    while curve and curve[-1][0] >= row[0]:
        curve.pop()
    curve.append(row)
    if len(curve) > 2 * POINTS:
        steps = [found[0] for found in curve]
        kept = np.searchsorted(steps, np.linspace(steps[0], steps[-1], POINTS))
        curve[:] = [curve[i] for i in np.unique(kept)]


class LineReader:
    """Reader of a JSON lines file that grows. It calls `add` with each new line. If the file was cut, replaced or
    removed, it calls `forget` first, because the earlier lines are no longer valid.
    """

    def __init__(self, path: Path, numbers: tuple[str, ...], add: Callable[[Row], None], forget: Callable[[], None]):
        self.path, self.numbers, self.add, self.forget = path, numbers, add, forget
        self.offset, self.file = 0, (0, 0)

    def read(self) -> None:
        """Read all new lines up to the end of the file. An incomplete last line is read later."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                if self.file != (found.st_dev, found.st_ino) or found.st_size < self.offset:
                    self.offset, self.file = 0, (found.st_dev, found.st_ino)
                    self.forget()
                file.seek(self.offset)
                for line in file:
                    if line.endswith(b"\n"):  # otherwise the line is not complete yet
                        self.offset += len(line)
                        if is_row(row := parse_json(line), self.numbers):
                            self.add(row)
        except OSError:
            self.offset = 0
            self.forget()


def is_self_play(values: Row) -> bool:
    """Tell whether the run is self-play of a board game. The mean return of such a run says nothing about strength."""
    return str(values.get("env", "")).startswith("game:") and "simulations" in values


class RunReader:
    """Reader of one run. The method `state` reads new lines of the run's files, and returns what the page shows."""

    def __init__(self, directory: Path):
        self.directory = directory
        reports = directory / "metrics.jsonl"
        self.reports = LineReader(reports, run_files.METRICS, self._add_report, self._forget_reports)
        self.games = LineReader(directory / "episodes.jsonl", GAME, self._add_game, self._forget_games)
        self.config = run_files.read_config(directory)
        self._forget_reports()
        self._forget_games()

    def state(self) -> Row:
        self.reports.read()
        self.games.read()
        with contextlib.suppress(UserError):  # if the file was deleted, keep its last contents
            self.config = run_files.read_config(self.directory)
        summary = run_files.read_part(self.directory, "summary.json")
        wiring = run_files.read_part(self.directory, run_files.WIRING)
        state = run_files.state_of(self.directory, summary)
        values = self.config["config"]
        shares, running = bench.weighted_means(self.recent, SHARES), state == "running"
        limit = limit_sentence(shares, values, wiring) if running else ""
        plays_itself = is_self_play(values)
        of_games = self.of_games and not plays_itself and "task_return_means" not in self.row
        curve = self.of_games if of_games else self.of_reports
        return {
            "name": self.directory.name,
            "directory": str(self.directory),
            "system": self.config["system"],
            "env": str(values.get("env", "")),
            **{"standing": state, "running": running, "reason": str(summary.get("reason", ""))},
            "wiring": wiring,
            "now": self.row,
            "curve": [*curve],
            "shares": shares,
            "self_play": self._self_play() if plays_itself else None,
            "episodes": [*reversed(self.last)],
            "checkpoints": self._checkpoints(),
            "limit": limit,
            "settings": self._settings(),
        }

    def _forget_reports(self) -> None:
        self.of_reports, self.row = list[tuple[Any, ...]](), Row()
        self.recent: deque[tuple[Row, float]] = deque(maxlen=REPORTS)  # reports, and the seconds that each covers

    def _forget_games(self) -> None:
        self.of_games, self.last = list[tuple[Any, ...]](), deque[Row](maxlen=EPISODES)
        self.returns = deque[float](maxlen=WINDOW)

    def _add_report(self, row: Row) -> None:
        self.recent.append((row, row["wall_seconds"] - self.row.get("wall_seconds", 0.0)))
        self.row = row
        shown = "value_accuracy" if is_self_play(self.config["config"]) else "episodic_return_mean"
        add_point(self.of_reports, (row["steps"], row["wall_seconds"], row.get(shown)))

    def _add_game(self, row: Row) -> None:
        self.returns.append(row["episodic_return"])
        add_point(self.of_games, (row["steps"], row["wall_seconds"], fmean(self.returns)))
        self.last.append({k: row[k] for k in (*GAME, "episodic_length", "lane") if k in row})

    def _self_play(self) -> Row:
        played: list[Row] = []
        with contextlib.suppress(UserError):
            played = read_evaluations(self.directory)
        against = [score for score in played if score.get("against") == "random"]
        newest = max(against, key=lambda score: str(score.get("finished", "")), default=None)
        points = None if newest is None else newest["episodic_return_mean"] * newest["episodes"]
        return {
            "value_accuracy": self.row.get("value_accuracy"),
            "points": points,
            "games": newest and newest["episodes"],
            "measure": f"polyplay evaluate {self.directory} --protocol versus --against random",
        }

    def _checkpoints(self) -> list[Row]:
        found = []
        for path in reversed(checkpoint.everything(self.directory)):
            with contextlib.suppress(OSError):  # the run has removed it since
                found.append({"update": checkpoint.update_of(path), "seconds": path.stat().st_mtime})
        return found

    def _settings(self) -> list[Row]:
        sources = self.config.get("sources", {})
        values = {**self.config["config"], **self.config.get("options", {})}
        return [{"name": k, "value": _text(v), "source": str(sources.get(k, "default"))} for k, v in values.items()]


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)


# The command line of `polyplay watch`. Needs polyplay[watch].


@dataclass(frozen=True)
class WatchOptions:
    """Serve a live page of runs, read from their directories, to this machine only. Needs polyplay[watch]."""

    port: Port = 8765  # port of the page, http://127.0.0.1:PORT


def command(words: list[str]) -> None:
    """Run `polyplay watch`: serve the web page of the runs until Ctrl-C."""
    runs, options, _ = parse_words(WatchOptions, words, "polyplay watch RUN …", "RUN: directories of runs.", True)
    if not runs:
        raise UserError("watch takes the directory of a run first: polyplay watch runs/… [--port N]")
    directories = [Path(run) for run in runs]
    for directory in directories:
        run_files.read_config(directory)
    check_extra("watch")
    with listen(options.port) as listener:
        from polyplay.cli.pages import watch_application

        token, n = secrets.token_urlsafe(24), len(directories)
        print(f"watching {n} run{'s' * (n != 1)}: http://127.0.0.1:{options.port}/#token={token}")
        print("Ctrl-C stops the page; the runs continue", flush=True)
        serve_page(listener, watch_application(directories, token))

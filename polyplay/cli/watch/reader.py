"""Reads a run's directory for the page: only what is new since the last time, in bounded memory. Imports no torch."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyplay.cli.watch.advice import limit_sentence
from polyplay.common import checkpoint
from polyplay.common.errors import UserError
from polyplay.common.files import Row, is_row, parse_json, read_object
from polyplay.runs.directory import METRICS, WIRING, read_config
from polyplay.runs.requests import lock_holder

POINTS = 2000  # of a curve at most
EPISODES = 10  # the last ones
CHUNK = 1 << 20
TAIL = 1 << 14  # bytes of episodes.jsonl that are looked at


@dataclass
class ThinnedCurve:
    """Rows by report, thinned to every second, fourth, … where there are too many; the newest is always there."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    every: int = 1
    seen: int = 0
    newest: tuple[Any, ...] | None = None

    def add(self, row: tuple[Any, ...]) -> None:
        """The first number of a row is steps: what a resumption does again takes the place of what was there."""
        while self.rows and self.rows[-1][0] > row[0]:
            self.rows.pop()
        self.newest = row
        if self.seen % self.every == 0:
            self.rows.append(row)
        self.seen += 1
        if len(self.rows) >= POINTS:
            self.rows, self.every = self.rows[::2], 2 * self.every

    def points(self) -> list[tuple[Any, ...]]:
        last = [self.newest] if self.newest and (not self.rows or self.rows[-1] != self.newest) else []
        return [*self.rows, *last]


class LineReader:
    """Lines that were added to a file of JSON lines. `read` answers None where the file was cut or made anew: all
    that was read before is void.
    """

    def __init__(self, path: Path):
        self.path, self.offset, self.file = path, 0, (0, 0)

    def read(self) -> list[Row] | None:
        """The next whole lines, of at most CHUNK bytes; none: there is nothing new."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                before, self.file = self.file, (found.st_dev, found.st_ino)
                if self.offset and (before != self.file or found.st_size < self.offset):
                    self.offset = 0
                    return None
                file.seek(self.offset)
                data = file.read(CHUNK)
        except OSError:
            void, self.offset = self.offset > 0, 0
            return None if void else []
        end = data.rfind(b"\n") + 1
        if not end and len(data) == CHUNK:
            end = CHUNK  # no line is that long
        self.offset += end
        return [row for line in data[:end].splitlines() if is_row(row := parse_json(line), METRICS)]


def last_episodes(path: Path) -> list[Row]:
    """The newest first, from the end of the file."""
    try:
        with path.open("rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - TAIL)
            file.seek(start)
            lines = file.read(TAIL).split(b"\n")[1 if start else 0 : -1]
    except OSError:
        return []
    keys = ("wall_seconds", "steps", "episodic_return", "episodic_length")
    rows = [row for line in lines[-3 * EPISODES :] if is_row(row := parse_json(line), keys)]
    return [{k: row[k] for k in (*keys, "lane") if k in row} for row in reversed(rows[-EPISODES:])]


class RunReader:
    """One run; `state` reads what is new and answers with everything that the page shows of it."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.lines = LineReader(directory / "metrics.jsonl")
        self.curve, self.row = ThinnedCurve(), Row()
        self.config = read_config(directory)

    def state(self) -> Row:
        self._read_metrics()
        with contextlib.suppress(UserError):  # it was deleted: the last one stands
            self.config = read_config(self.directory)
        summary, wiring = self._object("summary.json"), self._object(WIRING)
        values = self.config["config"]
        pool = str(wiring.get("pool", ""))
        return {
            "name": self.directory.name,
            "directory": str(self.directory),
            "system": self.config["system"],
            "env": str(values.get("env", "")),
            **self._standing(summary),
            "wiring": wiring,
            "now": self.row,
            "best": summary.get("episodic_return_mean_best"),
            "curve": self.curve.points(),
            "episodes": last_episodes(self.directory / "episodes.jsonl"),
            "checkpoints": self._checkpoints(),
            "limit": limit_sentence(self.row, values, pool),
            "settings": self._settings(),
        }

    def _read_metrics(self) -> None:
        before = -1
        while before != self.lines.offset:
            before, rows = self.lines.offset, self.lines.read()
            if rows is None:
                self.curve, self.row, before = ThinnedCurve(), {}, -1
            for row in rows or ():
                self.row = row
                mean = row.get("episodic_return_mean")
                self.curve.add((row["steps"], row["wall_seconds"], mean, row.get("sps")))

    def _standing(self, summary: Row) -> Row:
        """Whether it goes on, and why it ended."""
        if lock_holder(self.directory) is not None:
            return {"standing": "running" if self.row else "starting", "running": True, "reason": ""}
        if summary:
            kind = "finished" if summary.get("exit_code") == 0 else "ended"
            return {"standing": kind, "running": False, "reason": str(summary.get("reason", ""))}
        return {"standing": "not running", "running": False, "reason": "no process of this machine writes there"}

    def _object(self, name: str) -> Row:
        try:
            return read_object(self.directory / name)
        except (OSError, ValueError):
            return {}

    def _checkpoints(self) -> list[Row]:
        found = []
        for path in reversed(checkpoint.everything(self.directory)):
            try:
                found.append({"update": checkpoint.update_of(path), "seconds": path.stat().st_mtime})
            except OSError:  # pruned meanwhile
                continue
        return found

    def _settings(self) -> list[Row]:
        sources = self.config.get("sources", {})
        values = {**self.config["config"], **self.config.get("options", {})}
        return [{"name": k, "value": _text(v), "source": str(sources.get(k, "default"))} for k, v in values.items()]


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)

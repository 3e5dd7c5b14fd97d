"""How a run is going, written down: metrics.jsonl, episodes.jsonl, decisions.jsonl, tensorboard/, summary.json.

Imports no torch.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from polyplay.common.files import AppendFile, JsonLines, Row, read_lines, to_plain, write_json
from polyplay.common.machine import now
from polyplay.runs.reports import metric_names
from polyplay.runs.reports.metric_names import KINDS
from polyplay.runs.reports.wandb import WandbLogger

WINDOW = 100  # full games the means are over
TOTALS = ("frames", "steps", "updates")


class TensorBoardWriter:
    """A TensorBoard event file: one record per call, written at once, without a thread."""

    def __init__(self, directory: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        directory.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 1000:016d}.{socket.gethostname()}.{os.getpid()}"
        self.event, self.summary = Event, Summary
        self.writer = RecordWriter(AppendFile(directory / name))
        self.writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())

    def write(self, step: int, scalars: Mapping[str, float | None]) -> None:
        """Raises OSError."""
        values = [self.summary.Value(tag=k, simple_value=v) for k, v in scalars.items() if v is not None]
        event = self.event(wall_time=time.time(), step=step, summary=self.summary(value=values))
        self.writer.write(event.SerializeToString())

    def close(self) -> None:
        self.writer.close()


class Reporter:
    """The one writer of a run's reports, in the main process. In an earlier run's directory it goes on.

    `style`: whose names TensorBoard and `tracker` get (tags.STYLES). `start`: frames, steps, updates, wall_seconds of
    the checkpoint resumed from (default: of the last report). Games ended after it do not count: they are played
    again. wall_seconds goes on from the last line written.
    A full disk costs the reports that do not fit, never the run; `warn` is told, once per file.

    To read at any time: episodes, return_mean, return_best (the best mean over 100 games), wall_seconds, and
    roles: where the time of each role's workers went since the report before the last one,
    {role: {"workers": n, "env", "infer", "learn", "replay", "wait": fraction}}.
    """

    def __init__(
        self,
        directory: Path,
        *,
        start: Mapping[str, float] | None = None,
        tensorboard: bool = True,
        warn: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
        style: str = "polyplay",
        tracker: WandbLogger | None = None,
    ) -> None:
        self.style, self.tracker = style, tracker
        self.directory, self.clock, self.warn = Path(directory), clock, warn
        self.warned: set[str] = set()
        self.metrics = JsonLines(self.directory / "metrics.jsonl")
        self.games = JsonLines(self.directory / "episodes.jsonl")
        self.decisions: JsonLines | None = None  # where there is a scheduler
        self.evaluations: JsonLines | None = None  # where games are played beside training
        self.events = TensorBoardWriter(self.directory / "tensorboard") if tensorboard else None
        (self.directory / "summary.json").unlink(missing_ok=True)
        self.closed = False
        self.episodes = 0
        self.return_best: float | None = None
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[int] = deque(maxlen=WINDOW)
        self.roles: dict[str, dict[str, float]] = {}
        self.memory = Throttled(memory_mb)
        self.row, self.base = self._earlier(start or {})
        self.seen: dict[str, float] = {"wall": self.base, **self.row}  # totals at the last report
        self.begun = clock()

    def _earlier(self, start: Mapping[str, float]) -> tuple[Row, float]:
        """Counters to go on from and the wall seconds passed, from the files of this directory."""
        last: Row = {}
        for row in read_lines(self.directory / "metrics.jsonl"):
            last = row
        row = {k: start.get(k, last.get(k, 0)) for k in TOTALS}
        wall = max(last.get("wall_seconds", 0.0), start.get("wall_seconds", 0.0))
        for game in read_lines(self.directory / "episodes.jsonl"):
            wall = max(wall, game["wall_seconds"])
            if game["frames"] <= row["frames"]:
                self._count(game["episodic_return"], game["episodic_length"])
        return row, wall

    @property
    def wall_seconds(self) -> float:
        """Seconds this run has taken, all its resumptions together."""
        return self.base + self.clock() - self.begun

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last 100 finished full games; None before the first."""
        return _mean(self.returns)

    def reached(self, target: float) -> bool:
        """Whether 100 games have been finished and the mean return of the last 100 is at least `target`."""
        return len(self.returns) == WINDOW and math.fsum(self.returns) / WINDOW >= target

    def episode(self, return_: float, length: int, frames: int, steps: int, lane: int | str) -> None:
        """A full game ended: unclipped return, length in agent steps, the run's counters, where it was."""
        game = {"episodic_return": float(return_), "episodic_length": int(length)}
        place = {"wall_seconds": round(self.wall_seconds, 3), "frames": int(frames), "steps": int(steps)}
        self._count(float(return_), int(length))
        self._write("episodes.jsonl", lambda: self.games.write({**place, **game, "lane": lane}))
        self._event(int(steps), metric_names.of_episode(self.style, game))

    def decision(self, decided: Mapping[str, Any], steps: int, updates: int) -> Row:
        """Write one decision of a scheduler (scheduling.row) and return it, as it is in decisions.jsonl."""
        row = to_plain({"wall_seconds": round(self.wall_seconds, 3), "steps": steps, "updates": updates, **decided})
        if self.decisions is None:
            self.decisions = JsonLines(self.directory / "decisions.jsonl")
        decisions = self.decisions
        self._write("decisions.jsonl", lambda: decisions.write(row))
        chosen = row["to"] if row["kept"] else row["from"]
        self._event(steps, {f"schedule/{name}": n for name, n in chosen.items()})
        return row

    def evaluation(self, told: Mapping[str, Any]) -> Row:
        """Write one evaluation beside training and return it, as it is in evaluations.jsonl."""
        row: Row = to_plain({"wall_seconds": round(self.wall_seconds, 3), **told})
        if self.evaluations is None:
            self.evaluations = JsonLines(self.directory / "evaluations.jsonl")
        lines = self.evaluations
        self._write("evaluations.jsonl", lambda: lines.write(row))
        self._event(row["steps"], metric_names.of_evaluation(self.style, row))
        return row

    def report(self, snapshot: Mapping[str, Any]) -> Row:
        """Write one report and return it, as it is in metrics.jsonl.

        snapshot: frames, steps, updates: the run's totals. Everything else may be left out:
            time: {role: {"env", "infer", "learn", "replay", "wait": seconds}}, totals of the role's workers since this
            process began (a worker's kinds make up all its time); workers: {role: how many};
            lag_sum, lag_count: totals likewise (sum of lags in optimiser updates, how many were measured);
            lag_max: since the last report; losses: {name: mean since the last report};
            gauges: {name: number}, see gauges; queue_depth, restarts: now; memory_mb: seldom measured here if absent.
        """
        losses = snapshot.get("losses", {})
        self.row = to_plain(self._row(snapshot))
        more = {**snapshot.get("gauges", {}), **losses}
        self.row |= to_plain({k: v for k, v in more.items() if k not in self.row})
        self._write("metrics.jsonl", lambda: self.metrics.write(self.row))
        self._event(self.row["steps"], metric_names.of_report(self.style, self.row, losses))
        return self.row

    def _row(self, snapshot: Mapping[str, Any]) -> Row:
        wall = self.wall_seconds
        passed = wall - self.seen["wall"]
        totals = {k: int(snapshot[k]) for k in TOTALS}
        frames, steps = (totals[k] - self.seen[k] for k in ("frames", "steps"))
        lags = self._since("lag_count", snapshot.get("lag_count", 0))
        lag = self._since("lag_sum", snapshot.get("lag_sum", 0.0))
        self.seen |= {"wall": wall, **totals}
        return {
            "wall_seconds": round(wall, 3),
            **totals,
            "fps": _ratio(frames, passed, 1),
            "sps": _ratio(steps, passed, 1),
            "episodes": self.episodes,
            "episodic_return_mean": self.return_mean,
            "episodic_length_mean": _mean(self.lengths),
            "lag_mean": _ratio(lag, lags, 4),
            "lag_max": snapshot.get("lag_max") if lags else None,
            **self._times(snapshot.get("time", {}), snapshot.get("workers", {})),
            "queue_depth": snapshot.get("queue_depth"),
            "restarts": snapshot.get("restarts", 0),
            "memory_mb": snapshot["memory_mb"] if "memory_mb" in snapshot else self.memory(),
        }

    def close(self, reason: str, exit_code: int, **extra: Any) -> Row:
        """Write summary.json (once) and close the files; returns the summary."""
        summary = {
            "reason": reason,
            "exit_code": exit_code,
            "directory": str(self.directory),
            "wall_seconds": round(self.wall_seconds, 3),
            **{k: self.row[k] for k in TOTALS},
            "episodes": self.episodes,
            "episodic_return_mean": self.return_mean,
            "episodic_return_mean_best": self.return_best,
            "episodic_length_mean": _mean(self.lengths),
            "restarts": self.row.get("restarts", 0),
            "finished": now(),
            **extra,
        }
        if not self.closed:
            self.closed = True
            self._write("summary.json", lambda: write_json(self.directory / "summary.json", summary))
            for file in (self.metrics, self.games, self.decisions, self.evaluations, self.events):
                if file:
                    file.close()
            if self.tracker:
                self.tracker.close(to_plain(summary))
        return to_plain(summary)

    def _count(self, return_: float, length: int) -> None:
        self.episodes += 1
        self.returns.append(return_)
        self.lengths.append(length)
        if len(self.returns) == WINDOW:
            mean = math.fsum(self.returns) / WINDOW
            self.return_best = mean if self.return_best is None else max(self.return_best, mean)

    def _since(self, key: str, value: float) -> float:
        """How much a total grew since the last report; one that fell began anew (its worker was replaced)."""
        before, self.seen[key] = self.seen.get(key, 0.0), value
        return value - before if value >= before else value

    def _times(self, totals: Mapping[str, Mapping[str, float]], workers: Mapping[str, int]) -> Row:
        """Sets `roles`; returns the fractions over all workers."""
        spent = {
            role: {k: self._since(f"{role}/{k}", kinds.get(k, 0.0)) for k in KINDS} for role, kinds in totals.items()
        }
        for role, kinds in spent.items():
            parts = {k: _ratio(kinds[k], sum(kinds.values()), 4) or 0.0 for k in KINDS}
            self.roles[role] = {"workers": workers.get(role, 1), **parts}
        whole = sum(sum(kinds.values()) for kinds in spent.values())
        return {f"time_{k}": _ratio(sum(kinds[k] for kinds in spent.values()), whole, 4) for k in KINDS}

    def _event(self, step: int, scalars: Mapping[str, float | None]) -> None:
        if self.tracker and scalars:
            self.tracker.write(step, scalars)
        events = self.events
        if events and scalars:
            self._write("tensorboard/", lambda: events.write(step, scalars))

    def _write(self, name: str, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as e:
            if name not in self.warned:
                self.warned.add(name)
                self.warn(f"{name}: {e.strerror or e}; the run goes on without what did not fit")


def _mean(values: deque) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _ratio(a: float, b: float, digits: int) -> float | None:
    return round(a / b, digits) if b > 0 else None


class Throttled:
    """What `measure` said when it was asked last: not so often that it takes more than a `share` of the time. To read
    the memory of 20 processes takes 0.15 s.
    """

    def __init__(self, measure: Callable[[], float], share: float = 0.01, clock: Callable[[], float] = time.monotonic):
        self.measure, self.share, self.clock = measure, share, clock
        self.next, self.last = -math.inf, 0.0

    def __call__(self) -> float:
        before = self.clock()
        if before >= self.next:
            self.last = self.measure()
            now = self.clock()
            self.next = now + (now - before) / self.share
        return self.last


def memory_mb() -> float:
    """Megabytes of this process and all below it; shared pages count once (PSS) where the system tells."""
    total = 0
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        try:
            info = process.memory_full_info()
            total += getattr(info, "pss", info.rss)
        except psutil.Error:
            continue  # it has ended, or is not ours to look at
    return round(total / 2**20, 1)

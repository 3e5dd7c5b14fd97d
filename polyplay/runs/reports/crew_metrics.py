"""The numbers of a run, read from its crew's counters. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from polyplay.common.counters import COLUMNS, EPISODES
from polyplay.runs.reports.metric_names import KINDS
from polyplay.runs.reports.reporter import Reporter, Snapshot
from polyplay.runs.reports.service_metrics import ServiceMetrics, total_updates

if TYPE_CHECKING:
    from polyplay.workers.crew import Crew

SILENCE = 120.0  # seconds without a turn of a worker before a warning


class CrewMetrics(ServiceMetrics):
    """Totals of the run, and what is new since the last report. before: steps and updates that it is resumed with."""

    def __init__(self, crew: Crew, frames_per_step: int, before: Mapping[str, int]):
        super().__init__(crew)
        self.frames_per_step, self.before = frames_per_step, before
        self.reported: dict[int, int] = {}  # row of the counters → games of it that were reported
        self.losses = np.zeros((1, 2))  # sums and numbers at the last report
        self.silent: set[int] = set()

    @property
    def steps(self) -> int:
        return self.before["steps"] + int(self.counters.column("steps").sum())

    @property
    def frames(self) -> int:
        return self.steps * self.frames_per_step

    @property
    def updates(self) -> int:
        return self.before["updates"] + total_updates(self.crew)

    def report_games(self, reporter: Reporter, warn: Callable[[str], None]) -> None:
        """Pass on the games that workers have finished since the last time."""
        counts = self.counters.column("episodes").astype(np.int64)
        for row in map(int, np.flatnonzero(counts)):
            count = int(counts[row])
            first = max(self.reported.get(row, 0), count - EPISODES)
            if missed := first - self.reported.get(row, 0):
                warn(f"{missed} finished games were too many between two looks: they are missing in the reports")
            for i in range(first, count):
                return_, length, lane, _ = self.counters.games[row, i % EPISODES]
                reporter.episode(float(return_), int(length), self.frames, self.steps, int(lane))
            self.reported[row] = count

    def snapshot(self) -> Snapshot:
        """The next report's numbers."""
        column, roles = self.counters.column, self.crew.roles
        rows = {role.name: self.crew.rows(role, past=True) for role in roles}
        return Snapshot(
            frames=self.frames,
            steps=self.steps,
            updates=self.updates,
            time={name: {k: float(column(k)[rows[name]].sum()) for k in KINDS} for name in rows},
            workers={role.name: role.n for role in roles},
            lag_sum=float(column("lag_sum").sum()),
            lag_count=float(column("lag_count").sum()),
            lag_max=self._lag_max(),
            losses=self._losses(),
            queue_depth=self._queue_depth(),
            service=self.read(),
            restarts=int(column("restarts").sum()) + sum(role.lost for role in roles),
        )

    def _losses(self) -> dict[str, float]:
        """Means since the last report."""
        sums = self.counters.metrics.sum(0)
        new, self.losses = sums - self.losses, sums
        return {name: float(new[i, 0] / new[i, 1]) for name, i in self.counters.names.items() if new[i, 1] > 0}

    def _lag_max(self) -> int:
        """The largest lag since the last report; beyond the histogram's last bin, the largest ever."""
        new = self.growth.array("lags", self.counters.lags.sum(0))
        top = int(np.flatnonzero(new).max(initial=0))
        return top if top < len(new) - 1 else int(self.counters.column("lag_max").max())

    def _queue_depth(self) -> float | None:
        rows = [row for role in self.crew.roles if role.learner for row in self.crew.rows(role)]
        depth, count = self._growth("depth_sum", rows, "queue"), self._growth("depth_count", rows, "queue")
        return round(depth / count, 3) if count > 0 else None

    def newly_silent(self, now: float) -> Iterator[str]:
        """A line for each worker that has stopped taking turns. Workers stamp their row at every turn: progress is what
        shows that they live.
        """
        for role in self.crew.roles:
            for worker in role.workers.values():
                row = worker.ctx.row
                stamp = self.counters.values[row, COLUMNS.index("stamp")]
                seconds = now - stamp if stamp and not worker.done else 0.0
                if seconds <= SILENCE:
                    self.silent.discard(row)
                elif row not in self.silent:
                    self.silent.add(row)
                    yield f"worker {role.name} {worker.ctx.index} has not taken a turn for {seconds:.0f} s"

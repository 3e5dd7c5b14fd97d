"""The main process's share in a checkpoint: it is one once every learner has written its part of the same update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from polyplay.buffers import actor_checkpoint
from polyplay.common import checkpoint
from polyplay.common.files import read_lines
from polyplay.runs.reports.crew_metrics import CrewMetrics
from polyplay.runs.reports.reporter import Reporter


class CheckpointCompleter:
    """Makes checkpoints of the parts in a run's directory, and removes all but the newest and the best.

    failure: why the newest could not be saved; empty: it was.
    """

    def __init__(
        self, directory: Path, metrics: CrewMetrics, reporter: Reporter, keep: int, warn: Callable[[str], None]
    ):
        self.directory, self.metrics, self.reporter = directory, metrics, reporter
        self.keep, self.warn = keep, warn
        self.games_before = Counter(game["lane"] for game in read_lines(directory / "episodes.jsonl"))
        self.last, self.failure = 0, ""  # last: 1 + the update that learners saved last

    def fail(self, text: str) -> None:
        self.failure = f"not saved: {text}"
        self.warn(f"{text}; the checkpoint before it stands")

    def complete(self) -> None:
        """Learners write 1 + the update of their newest part into their counters, negative if it failed."""
        saved = self.metrics.counters.column("saved")[self.metrics.crew.savers()]
        marks = {int(v) for v in saved}
        if len({abs(m) for m in marks}) != 1 or abs(min(marks)) <= self.last:
            return
        self.last = abs(min(marks))
        version = self.last - 1
        if min(marks) < 0:
            checkpoint.discard(self.directory, version)
            return
        steps, games = self._totals(version)
        counters = {
            "steps": steps,
            "frames": steps * self.metrics.frames_per_step,
            "updates": version,
            "episodes": self.reporter.episodes,
            "games": games,
            "episodic_return_mean": self.reporter.return_mean,
            "wall_seconds": round(self.reporter.wall_seconds, 3),
        }
        try:
            checkpoint.complete(self.directory, version, counters)
        except OSError as e:
            self.fail(f"checkpoint of update {version}: {e.strerror or e}")
            return
        self.failure = ""
        checkpoint.prune(self.directory, self.keep)

    def _totals(self, version: int) -> tuple[int, dict[str, int]]:
        """Agent steps, and finished games by their lanes, when the workers wrote their parts of `version`."""
        parts = actor_checkpoint.saved_counters(checkpoint.partial(self.directory, version))
        acting = sum(role.n for role in self.metrics.crew.roles if role.envs or role.agents)
        if len(parts) < acting:
            return self.metrics.steps, {}
        games = {}
        for part in parts:
            first, n = part["first_lane"], part["lanes"]
            games[f"{first}+{n}"] = part["episodes"] + sum(self.games_before[lane] for lane in range(first, first + n))
        return self.metrics.before["steps"] + sum(part["steps"] for part in parts), games

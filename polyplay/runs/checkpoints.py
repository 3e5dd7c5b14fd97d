"""Checkpoints of a run as its main process sees them: it completes, rescues and prunes what learners save."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from polyplay.buffers import actor_checkpoint
from polyplay.common import checkpoint
from polyplay.common.files import Row, read_lines, refusal_text
from polyplay.runs.directory import GAME, games_of, worker_lanes
from polyplay.runs.going_on import BEGINNING
from polyplay.runs.reports.crew_metrics import CrewMetrics
from polyplay.runs.reports.reporter import Reporter

PATIENCE = 30.0  # seconds that learners get to save and end once a run is finishing
POLICY = f"{checkpoint.policy_name(0)}.safetensors"


class CheckpointCompleter:
    """The main process's share in a checkpoint: makes one of the parts in a run's directory once every learner has
    written its own of the same update, and removes all but the newest and the best.

    failure: why the newest could not be saved; empty: it was. games: by worker, of the checkpoint that the run goes on
    from: its log may have none.
    """

    def __init__(
        self,
        directory: Path,
        metrics: CrewMetrics,
        reporter: Reporter,
        keep: int,
        warn: Callable[[str], None],
        games: Mapping[str, int] | None = None,
    ):
        self.directory, self.metrics, self.reporter = directory, metrics, reporter
        self.keep, self.warn = keep, warn
        self.listen: Callable[[Path], None] = lambda path: None  # called with every complete one
        self.games_before = Counter[int]()  # by lane
        for game in read_lines(directory / "episodes.jsonl", *GAME):
            self.games_before[game["lane"]] += games_of(game)
        for worker, n in (games or {}).items():
            self.games_before[worker_lanes(worker)[0]] += max(
                0, n - sum(self.games_before[k] for k in worker_lanes(worker))
            )
        self.last, self.failure = 0.0, ""  # last: 1 + the update that learners saved last; 0.5: that of the beginning

    def fail(self, text: str) -> None:
        self.failure = f"not saved: {text}"
        self.warn(f"{text}; the previous checkpoint remains")

    def complete(self, rows: list[int] | None = None) -> None:
        """Learners write 1 + the update of their newest part into their counters, and a little more for each time that
        it was saved before; negative if that failed; 0.5 for the initial weights. rows: of the learners to look at, if
        not all that save.
        """
        rows = self.metrics.crew.savers() if rows is None else rows
        marks = set(self.metrics.counters.column("saved")[rows].tolist())
        if len({abs(m) for m in marks}) != 1 or abs(min(marks)) <= self.last:
            return
        self.last = abs(min(marks))
        self._take(max(math.floor(self.last) - 1, 0), failed=min(marks) < 0)
        self.metrics.crew.control.take(self.last)

    def _take(self, version: int, failed: bool) -> None:
        """Make a checkpoint of parts that are all there; failed: one of them could not be written."""
        if failed:
            checkpoint.discard(self.directory, version)
            return
        if not (checkpoint.partial(self.directory, version) / POLICY).exists():
            checkpoint.discard(self.directory, version)
            self.failure = f"not saved: the parts of checkpoint {version} were deleted"
            return
        try:
            checkpoint.complete(self.directory, version, self._counters(version))
        except (OSError, ValueError) as e:
            checkpoint.discard(self.directory, version)
            self.fail(f"checkpoint of update {version}: {refusal_text(e)}")
            return
        self.failure = ""
        for old in checkpoint.partial_versions(self.directory):  # a save that not all agents made: a newer one came
            if old < version:
                checkpoint.discard(self.directory, old)
        checkpoint.prune(self.directory, self.keep)
        self.listen(checkpoint.everything(self.directory)[-1])

    def rescue(self, dropped: Callable[[], bool]) -> None:
        """The run has failed: have what is whole saved, and make a checkpoint of it. dropped: asked meanwhile, whether
        it is not to be waited for.
        """
        begun, last = time.monotonic(), self.last
        self.complete()
        if self.last not in (last, 0.5):  # the worker that failed has done it
            return

        made = self.metrics.counters.column("updates")[self.metrics.crew.savers()]
        version = self.metrics.before["updates"] + int(min(made, default=0))  # what is being saved is at least as new

        def busy() -> bool:
            if dropped() or time.monotonic() - begun > PATIENCE:
                return False
            return any(v >= version for v in checkpoint.partial_versions(self.directory))

        self.complete(self.metrics.crew.rescue(self.last, busy))

    def _counters(self, version: int) -> Row:
        if self.last < 1:  # whoever acts already does so again
            return {**BEGINNING, "episodes": 0, "games": {}, "episodic_return_mean": None, "wall_seconds": 0.0}
        steps, games = self._totals(version)
        agents = self._agents(version)
        return {
            "steps": steps,
            "frames": steps * self.metrics.frames_per_step,
            "updates": sum(agents.values()) if agents else version,
            "episodes": self.reporter.episodes,
            "games": games,
            "episodic_return_mean": self.reporter.return_mean,
            "wall_seconds": round(self.reporter.wall_seconds, 3),
            **({"agents": agents} if agents else {}),
            **({"self_play": True} if any(role.name == "self_play" for role in self.metrics.crew.roles) else {}),
        }

    def _agents(self, number: int) -> dict[str, int]:
        """Of a run of several agents: the update that each is at in the checkpoint `number`."""
        n = max((len(role.served) for role in self.metrics.crew.roles), default=0)
        root = checkpoint.partial(self.directory, number) / "agents"
        return {str(a): int(json.loads((root / f"{a}/learner.json").read_text("utf-8"))["version"]) for a in range(n)}

    def _totals(self, version: int) -> tuple[int, dict[str, int]]:
        """Agent steps, and finished games by their lanes, when the workers wrote their parts of `version`."""
        parts = actor_checkpoint.saved_counters(checkpoint.partial(self.directory, version))
        crew = self.metrics.crew
        acting = sum(role.n for role in crew.roles if (role.envs or role.agents) and role.best is None)  # no judge
        if len(parts) < acting:
            return self.metrics.steps, {}
        games = {}
        for part in parts:
            first, n = part["first_lane"], part["lanes"]
            games[f"{first}+{n}"] = part["episodes"] + sum(self.games_before[lane] for lane in range(first, first + n))
        return self.metrics.before["steps"] + sum(part["steps"] for part in parts), games

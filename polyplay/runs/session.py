"""The main process of a run: starts its crew, and watches, reports, saves and stops it."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from polyplay import systems
from polyplay.buffers import actor_checkpoint
from polyplay.common import checkpoint
from polyplay.common.counters import COLUMNS, EPISODES
from polyplay.common.errors import UserError
from polyplay.common.files import read_lines
from polyplay.runs import directory as record
from polyplay.runs import options as config
from polyplay.runs.reports.reporter import KINDS, Reporter
from polyplay.runs.reports.service_metrics import ServiceMetrics
from polyplay.runs.reports.terminal import Terminal, evaluation_line
from polyplay.runs.reports.wandb import WandbLogger
from polyplay.workers import fault_injection, fault_rules
from polyplay.workers.autoscale import worker as scheduling
from polyplay.workers.crew import Crew

TICK = 0.25  # seconds between two looks at the workers
PATIENCE = 30.0  # seconds that learners get to save and end once they were asked to
SILENCE = 120.0  # seconds without a turn of a worker before a warning


class Session:
    """The main process of a run: everything here happens between two looks at the crew."""

    def __init__(
        self,
        system: str,
        settings: Any,
        options: config.RunOptions,
        sources: config.Sources,
        crew: Crew,
        wired: systems.System,
        directory: Path,
        counters: dict[str, Any],
        plan: Iterable[tuple[str, str]] = (),
    ):
        self.options, self.crew, self.wired, self.directory = options, crew, wired, directory
        self.settings = settings
        self.skip = wired.envs.spec.frames_per_step
        self.base = {k: int(counters.get(k, 0)) for k in ("steps", "updates")}
        self.base_games = Counter(game["lane"] for game in read_lines(directory / "episodes.jsonl"))
        crew.directory = directory
        crew.say = self.say
        wall = counters.get("wall_seconds", 0.0)
        start = {"frames": self.base["steps"] * self.skip, **self.base, "wall_seconds": wall} if counters else None
        tracker = WandbLogger(options.wandb, directory, warn=self._warn) if options.wandb else None
        style = options.metrics_style
        self.reporter = Reporter(
            directory, start=start, tensorboard=options.tensorboard, warn=self._warn, style=style, tracker=tracker
        )
        total = crew.total(wired.envs, settings.budget)
        self.terminal = Terminal(self.reporter, total_frames=int(total * self.skip), system=system)
        told = config.to_json(settings), config.to_json(options), sources, wired.envs.spec.describe
        self.terminal.begin(*told, directory, plan)
        self.gauges = ServiceMetrics(crew)
        self.havoc: fault_injection.FaultInjector | None = None
        self.exit_code, self.reason = 0, "done"
        self.asked, self.closing = 0.0, False  # when learners were asked to finish; nothing runs any more
        self.heard: list[str] = []  # signals, to be told when nothing else is being written
        self.saved, self.unsaved = 0, ""
        self.seen: dict[int, int] = {}  # counters row → episodes taken from it
        self.losses = np.zeros((0, 2))
        self.lags: Any = 0
        self.depth = np.zeros(2)
        self.quiet: set[int] = set()
        self.next_report = self.next_save = 0.0

    # ---------------------------------------------------------------------------------------------- the loop

    def go(self) -> dict[str, Any]:
        """Returns the summary. Raises what ended the run, after all has been saved and closed."""
        with self._signals():
            return self._go()

    def _go(self) -> dict[str, Any]:
        summary: dict[str, Any] = {}
        try:
            self.crew.start((*self.wired.metrics, "grad_norm", "learning_rate"))
            now = time.monotonic()
            self.next_report, self.next_save = now + self.options.report_every, now + self.options.checkpoint_every
            if self.options.chaos is not None:
                self.havoc = fault_injection.FaultInjector(
                    fault_rules.parse_faults(self.options.chaos), self.crew, self.directory
                )
            while not self.crew.poll(fault_injection.PACE if self.havoc else TICK):
                self._tick()
                if self.asked and time.monotonic() - self.asked > PATIENCE:
                    self.exit_code = self.exit_code or 1
                    self.reason += f"; learners did not end within {PATIENCE:.0f} s, their last updates are lost"
                    break
            self._tell()
            self._finish_saves()
        except KeyboardInterrupt:
            self.reason += ", at once"
        except Exception as e:
            self.exit_code, self.reason = (2 if isinstance(e, UserError) else 1), str(e).split("\n")[0]
            raise
        finally:
            self.closing = True
            self._games()
            with contextlib.suppress(Exception):
                self._report()
            sizes = self.gauges.histograms() if self.crew.counters is not None else {}
            if self.havoc:
                self.havoc.release()
            self.crew.stop()
            checkpoint.remove_partial(self.directory)
            if self.unsaved and not self.exit_code:
                self.exit_code, self.reason = 1, self.unsaved
            kept = checkpoint.everything(self.directory)
            last = kept[-1].name if kept else None
            more = self._harmed(kept)
            summary = self.reporter.close(self.reason, self.exit_code, checkpoint=last, batch_sizes=sizes, **more)
            self.terminal.end(summary)
        return summary

    def _tick(self) -> None:
        now = time.monotonic()
        self._tell()
        self._games()
        self._complete()
        if now >= self.next_report:
            self.next_report = now + self.options.report_every
            self._report()
            self._listen_for_silence(now)
        if now >= self.next_save and not self.asked:
            self.next_save = now + self.options.checkpoint_every
            self.crew.control.save()
        minutes, goal = self.options.minutes, self.options.until_return
        if not self.asked and minutes is not None and self.reporter.wall_seconds >= 60.0 * minutes:
            self._ask(f"{minutes:g} minutes are over")
        if not self.asked and goal is not None and self.reporter.reached(goal):
            self._ask(f"the mean return of 100 games reached {goal:g}")
        if self.havoc and self.asked:
            self.havoc.release()
        elif self.havoc:
            self.havoc.tick(saved=self.saved > 0)
        self.terminal.refresh(self.steps * self.skip)

    def _harmed(self, kept: list[Path]) -> dict[str, Any]:
        """What chaos did, told and for the summary. kept: the checkpoints there are."""
        if self.havoc is None:
            return {}
        behind = None
        with contextlib.suppress(IndexError, OSError, ValueError, KeyError):  # no checkpoint, or a damaged one
            behind = self.steps - int(checkpoint.manifest(kept[-1])["counters"]["steps"])
        report = self.havoc.report(behind)
        for line in fault_injection.describe_faults(report):
            self.terminal.note(line)
        return {"chaos": report}

    def _ask(self, reason: str, exit_code: int = 0) -> None:
        """Learners save at their next update, and end."""
        self.asked, self.reason, self.exit_code = time.monotonic(), reason, exit_code
        self.crew.control.finish()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM saves and ends the run, the second drops everything. What has ended for another
        reason is closed as it would be without.
        """

        def hear(number: int, frame: Any) -> None:
            if self.closing:
                return
            code = 128 + number
            if self.asked and self.exit_code == code:
                raise KeyboardInterrupt
            self._ask(f"stopped by {signal.Signals(number).name}", code)
            self.heard.append(signal.Signals(number).name)  # telling here could wait for a lock that this thread holds

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        kept = {s: signal.signal(s, hear) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for s, handler in kept.items():
                signal.signal(s, handler)

    # -------------------------------------------------------------------------------------------- reporting

    def _tell(self) -> None:
        while self.heard:
            self.say("warning", f"{self.heard.pop(0)}: saving a checkpoint; once more to drop everything")

    def say(self, kind: str, text: str) -> None:
        if kind == "decision":
            row = self.reporter.decision(json.loads(text), self.steps, self.updates)
            self.terminal.note(scheduling.describe_decision(row))
            return
        if kind == "evaluation":
            row = {**json.loads(text), **record.origin(self.directory)}
            self.terminal.note(evaluation_line(self.reporter.evaluation(row)))
            return
        if kind == "unsaved":
            self.unsaved = f"not saved: {text}"
            text = f"{text}; the checkpoint before it stands"
        self._warn(text)

    def _warn(self, text: str) -> None:
        self.terminal.warn(text)

    @property
    def steps(self) -> int:
        assert self.crew.counters is not None
        return self.base["steps"] + int(self.crew.counters.column("steps").sum())

    @property
    def updates(self) -> int:
        """Of all learning roles; the workers of one count the same, those that learn apart a little later or sooner."""
        counters = self.crew.counters
        assert counters is not None
        counts = [counters.column("updates")[self.crew.rows(r)].max(initial=0) for r in self.crew.roles if r.learner]
        return self.base["updates"] + int(sum(counts))

    def _games(self) -> None:
        """Take finished games from the workers' rings."""
        counters = self.crew.counters
        if counters is None:
            return
        counts = counters.column("episodes").astype(np.int64)
        for row in np.flatnonzero(counts):
            new = int(counts[row]) - self.seen.get(int(row), 0)
            if new > EPISODES:
                self._warn(
                    f"{new - EPISODES} finished games were too many between two looks: they are missing in the reports"
                )
                new = EPISODES
            for i in range(int(counts[row]) - new, int(counts[row])):
                ret, length, lane, _ = counters.games[row, i % EPISODES]
                self.reporter.episode(float(ret), int(length), self.steps * self.skip, self.steps, int(lane))
            self.seen[int(row)] = int(counts[row])

    def _report(self) -> None:
        counters = self.crew.counters
        if counters is None:
            return
        time_of, workers = {}, {}
        for role in self.crew.roles:
            rows = self.crew.rows(role, past=True)
            time_of[role.name] = {k: float(counters.column(k)[rows].sum()) for k in KINDS}
            workers[role.name] = role.n
        row = self.reporter.report(
            {
                "frames": self.steps * self.skip,
                "steps": self.steps,
                "updates": self.updates,
                "time": time_of,
                "workers": workers,
                "lag_sum": float(counters.column("lag_sum").sum()),
                "lag_count": float(counters.column("lag_count").sum()),
                "lag_max": self._lag_max(),
                "losses": self._losses(),
                "queue_depth": self._depth(),
                "gauges": self.gauges.read(),
                "restarts": int(counters.column("restarts").sum()) + sum(r.lost for r in self.crew.roles),
            }
        )
        self.terminal.report(row)

    def _losses(self) -> dict[str, float]:
        """Means since the last report."""
        counters = self.crew.counters
        assert counters is not None
        sums = counters.metrics.sum(0)
        new = sums - self.losses if len(self.losses) else sums
        self.losses = sums
        return {name: float(new[i, 0] / new[i, 1]) for name, i in counters.names.items() if new[i, 1] > 0}

    def _lag_max(self) -> int:
        """The largest lag since the last report; beyond the histogram's last bin, the largest ever."""
        counters = self.crew.counters
        assert counters is not None
        lags = counters.lags.sum(0)
        new = lags - self.lags
        self.lags = lags
        top = int(np.flatnonzero(new).max(initial=0))
        return top if top < len(lags) - 1 else int(counters.column("lag_max").max())

    def _depth(self) -> float | None:
        counters = self.crew.counters
        assert counters is not None
        rows = [r for role in self.crew.roles if role.learner for r in self.crew.rows(role)]
        sums = np.array([counters.column(k)[rows].sum() for k in ("depth_sum", "depth_count")])
        new, self.depth = sums - self.depth, sums
        return round(float(new[0] / new[1]), 3) if new[1] > 0 else None

    def _listen_for_silence(self, now: float) -> None:
        """Liveness is progress: workers stamp their row at every turn."""
        counters = self.crew.counters
        assert counters is not None
        for role in self.crew.roles:
            for worker in role.workers.values():
                stamp = counters.values[worker.ctx.row, COLUMNS.index("stamp")]
                silent = now - stamp if stamp and not worker.done else 0.0
                if silent > SILENCE and worker.ctx.row not in self.quiet:
                    self.quiet.add(worker.ctx.row)
                    self._warn(f"worker {role.name} {worker.ctx.index} has not taken a turn for {silent:.0f} s")
                elif silent < SILENCE:
                    self.quiet.discard(worker.ctx.row)

    # ----------------------------------------------------------------------------------------- checkpoints

    def _complete(self) -> None:
        """When every learner has written its part of the same update, make it a checkpoint."""
        counters = self.crew.counters
        assert counters is not None
        marks = {int(v) for v in counters.column("saved")[self.crew.savers()]}
        if len({abs(m) for m in marks}) != 1 or abs(min(marks)) <= self.saved:
            return
        self.saved = abs(min(marks))
        version = self.saved - 1
        if min(marks) < 0:
            checkpoint.discard(self.directory, version)
            return
        steps, games = self._counted(version)
        totals = {
            "steps": steps,
            "frames": steps * self.skip,
            "updates": version,
            "episodes": self.reporter.episodes,
            "games": games,
            "episodic_return_mean": self.reporter.return_mean,
            "wall_seconds": round(self.reporter.wall_seconds, 3),
        }
        try:
            checkpoint.complete(self.directory, version, totals)
        except OSError as e:
            self.say("unsaved", f"checkpoint of update {version}: {e.strerror or e}")
            return
        self.unsaved = ""
        checkpoint.prune(self.directory, self.options.keep)

    def _counted(self, version: int) -> tuple[int, dict[str, int]]:
        """Agent steps, and finished games by their lanes, when the workers wrote their parts of `version`."""
        told = actor_checkpoint.saved_counters(checkpoint.partial(self.directory, version))
        acting = sum(role.n for role in self.crew.roles if role.envs or role.agents)
        if len(told) < acting:
            return self.steps, {}
        games = {}
        for t in told:
            lanes = range(t["first_lane"], t["first_lane"] + t["lanes"])
            games[f"{t['first_lane']}+{t['lanes']}"] = t["episodes"] + sum(self.base_games[lane] for lane in lanes)
        return self.base["steps"] + sum(t["steps"] for t in told), games

    def _finish_saves(self) -> None:
        """All learners have ended: their last parts are there, or never will be."""
        self._games()
        self._complete()

"""The main process of a run: it starts, watches and stops the workers, writes reports, and saves checkpoints."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import shlex
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, methodcaller
from pathlib import Path
from types import FrameType
from typing import Any

from polyplay.buffers import actor_checkpoint
from polyplay.core import checkpoint, processes
from polyplay.core.errors import Closed, UserError
from polyplay.core.files import Row, parse_json, read_lines, refusal_text, write_json
from polyplay.runs import directory as run_files
from polyplay.runs.crew_metrics import CrewMetrics
from polyplay.runs.load import BEGINNING, steps_learnt
from polyplay.runs.options import RunOptions, Settings, Sources, to_json
from polyplay.runs.plan import Plan, minutes_over
from polyplay.runs.reporter import Reporter
from polyplay.runs.terminal import Terminal, evaluation_line, match_line, schedule_line
from polyplay.systems import System
from polyplay.workers.crew import Crew

# Callbacks: a user's code, called with reports, games, checkpoints, evaluations and the end of a run.


@dataclass(frozen=True)
class CurrentRun:
    """The run that a callback receives. `stop(reason)` ends the run with a checkpoint, a summary and exit status 0."""

    directory: Path
    stop: Callable[[str], None]


class Callback:
    """Base class of a user's callbacks. If a method returns False, the run ends, as with `run.stop`."""

    @property
    def title(self) -> str:
        return type(self).__name__

    def on_report(self, run: CurrentRun, row: Row) -> object:
        """Called after each report. row: the report's line of metrics.jsonl."""

    def on_episode(self, run: CurrentRun, row: Row) -> object:
        """Called after each full game. row: the game as in episodes.jsonl, even if --no-log-episodes is given."""

    def on_checkpoint(self, run: CurrentRun, path: Path) -> object:
        """Called when a checkpoint is complete. path: the checkpoint's directory."""

    def on_evaluation(self, run: CurrentRun, row: Row) -> object:
        """Called after each evaluation. row: the evaluation's line of evaluations.jsonl."""

    def on_end(self, run: CurrentRun, summary: Row) -> object:
        """Called when the run has ended without a failure. summary: contents of summary.json."""


EVENTS = {  # log file, or name of another event → method of Callback
    **{"metrics": "on_report", "episodes": "on_episode", "checkpoint": "on_checkpoint"},
    **{"evaluations": "on_evaluation", "end": "on_end"},
}


def check_callbacks(callbacks: Sequence[object], population: bool = False) -> list[Callback]:
    """Return a user's callbacks (functions or Callback objects) as Callback objects. Raises UserError if a callback is
    of another kind, is async, or does not take two arguments. Populations allow no callbacks, because members train in
    other processes.
    """
    if not isinstance(callbacks, (list, tuple)):
        raise UserError(f"callbacks: {_name(callbacks)} given, allowed: a list of functions or of polyplay.Callback")
    if callbacks and population:
        raise UserError("callbacks: given, but members of a population train in other processes: leave them out")
    return [_checked(callback) for callback in callbacks]


def _checked(callback: object) -> Callback:
    if (
        callable(callback)
        and not isinstance(callback, type | Callback)
        and not set(EVENTS.values()) & set(dir(callback))
    ):
        callback = type(_name(callback), (Callback,), {"on_report": staticmethod(callback)})()
    if not isinstance(callback, Callback):
        given = f"the class {_name(callback)}" if isinstance(callback, type) else _name(callback)
        allowed = f"a function, or an object whose class inherits polyplay.Callback ({', '.join(EVENTS.values())})"
        raise UserError(f"callbacks: {given} given, allowed: {allowed}")
    for method in EVENTS.values():
        function = attrgetter(method)(callback)
        if inspect.iscoroutinefunction(function):
            raise UserError(f"callbacks: {callback.title} is async, but callbacks are not awaited: write def instead")
        with contextlib.suppress(ValueError):  # compiled code has no signature
            try:
                inspect.signature(function).bind(None, None)
            except TypeError as e:
                text = f"callbacks: {callback.title} must take the arguments (run, row): {e}"
                raise UserError(text) from None
    return callback


class Callbacks:
    """Queue of events, such as reports and games, for the user's callbacks.

    `finish`: function that ends the run. It is called with a reason if a callback returns False or calls `run.stop`.
    """

    def __init__(self, callbacks: Sequence[Callback], directory: Path, finish: Callable[[str], None]):
        self.callbacks, self.directory, self.finish = callbacks, directory, finish
        self.events: deque[tuple[str, Any]] = deque()

    def add(self, kind: str, what: Any) -> None:
        """Queue an event if `kind` is in EVENTS. what: second argument of the callback, such as a line of a log."""
        if self.callbacks and kind in EVENTS:
            self.events.append((EVENTS[kind], what))

    def call(self, ended: bool = False) -> None:
        """Call the callbacks with all queued events. An exception in a callback is raised. ended: the run has ended."""
        if ended:
            self.finish = lambda reason: None
        while self.events:
            method, what = self.events.popleft()
            for callback in self.callbacks:
                stop = partial(self._stop, callback.title)
                answer = methodcaller(method, CurrentRun(self.directory, stop), what)(callback)
                # comparisons of NumPy and torch do not return `bool`
                scalar = getattr(answer, "ndim", 1) == 0 and str(getattr(answer, "dtype", "")).endswith("bool")
                if (isinstance(answer, bool) or scalar) and not answer:
                    stop()

    def _stop(self, name: str, why: str = "") -> None:
        self.finish(f"stopped by callback {name}" + f": {why}" * bool(why))


def _name(what: object) -> str:
    return str(getattr(what, "__name__", type(what).__name__))


# Checkpoints in the main process, which completes, rescues and prunes checkpoints that learners save.


PATIENCE = 30.0  # seconds that learners have to save and end once a run is finishing
POLICY = f"{checkpoint.policy_name(0)}.safetensors"


class CheckpointCompleter:
    """Completes a checkpoint once every learner has written its files for the same update. Then removes older
    checkpoints, except the best and the newest (`keep` of them).

    `failure`: reason why the newest checkpoint was not saved, or "".
    `games`: {worker: number of games} at the resumed checkpoint, for runs that do not log games.
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
        self.listen: Callable[[Path], None] = lambda path: None  # called with every complete checkpoint
        self.games_before = Counter[int]()  # lane (environment) → number of its games in earlier sessions
        for game in read_lines(directory / "episodes.jsonl", *run_files.GAME):
            self.games_before[game["lane"]] += 1
        for worker, n in (games or {}).items():
            lanes = run_files.worker_lanes(worker)
            if not any(self.games_before[lane] for lane in lanes):  # games are not logged
                self.games_before[lanes[0]] = n
        self.last, self.failure = 0.0, ""  # last: 1 + the last update saved; 0.5: only initial weights

    def fail(self, text: str) -> None:
        self.failure = f"not saved: {text}"
        self.warn(f"{text}; the previous checkpoint remains")

    def complete(self, rows: list[int] | None = None) -> None:
        """Complete a checkpoint if all learners have saved the same update.

        `rows`: rows of the counters to check, one for each learner. None means the rows of all workers that save.
        """
        # `saved` is 1 + the update that a learner saved last, or 0.5 for the initial weights. It grows a little each
        # time that the same update is saved again. After a failed save, it is negative.
        rows = self.metrics.crew.savers() if rows is None else rows
        marks = set(self.metrics.counters.column("saved")[rows].tolist())
        if len({abs(m) for m in marks}) != 1 or abs(min(marks)) <= self.last:
            return
        self.last = abs(min(marks))
        self._take(max(math.floor(self.last) - 1, 0), failed=min(marks) < 0)
        self.metrics.crew.control.take(self.last)

    def _take(self, version: int, failed: bool) -> None:
        """Complete the checkpoint of update `version`. failed: whether a learner could not write its part."""
        if failed or not (checkpoint.partial(self.directory, version) / POLICY).exists():
            checkpoint.discard(self.directory, version)
            self.failure = self.failure if failed else f"not saved: the parts of checkpoint {version} were deleted"
            return
        try:
            checkpoint.complete(self.directory, version, self._counters(version))
        except (OSError, ValueError) as e:
            checkpoint.discard(self.directory, version)
            self.fail(f"checkpoint of update {version}: {refusal_text(e)}")
            return
        self.failure = ""
        for old in checkpoint.partial_versions(self.directory):  # incomplete: some agents saved only a newer one
            if old < version:
                checkpoint.discard(self.directory, old)
        checkpoint.prune(self.directory, self.keep)
        self.listen(checkpoint.everything(self.directory)[-1])

    def rescue(self, dropped: Callable[[], bool]) -> None:
        """Save all intact state of a failed run in a checkpoint. dropped: tells whether to stop waiting for workers."""
        begun, last = time.monotonic(), self.last
        self.complete()
        if self.last not in (last, 0.5):  # the worker that failed has saved
            return

        made = self.metrics.counters.column("updates")[self.metrics.crew.savers()]
        version = self.metrics.before["updates"] + int(min(made, default=0))  # saves under way are at least as new

        def busy() -> bool:
            if dropped() or time.monotonic() - begun > PATIENCE:
                return False
            return any(v >= version for v in checkpoint.partial_versions(self.directory))

        self.complete(self.metrics.crew.rescue(self.last, busy))

    def _counters(self, version: int) -> Row:
        """Return the counters for the checkpoint of update `version`."""
        # Steps and games come from the actors' files. If a file is missing, they are the present steps, and no games.
        if self.last < 1:  # initial weights: acting restarts from the beginning
            return {**BEGINNING, "episodes": 0, "games": {}, "episodic_return_mean": None, "wall_seconds": 0.0}
        crew, root = self.metrics.crew, checkpoint.partial(self.directory, version)
        parts = actor_checkpoint.saved_counters(root)
        steps, games, tasks = self.metrics.steps, dict[str, int](), self.metrics.tasks()
        if len(parts) >= sum(role.n for role in crew.roles if role.acts and (role.learner or "out" in role.holds)):
            steps = self.metrics.before["steps"] + sum(part["steps"] for part in parts)
            tasks = self.metrics.tasks([part["tasks"] for part in parts])
            for first, n, ended in ((part["first_lane"], part["lanes"], part["episodes"]) for part in parts):
                games[f"{first}+{n}"] = ended + sum(self.games_before[lane] for lane in range(first, first + n))
        served = max((role.agents for role in crew.roles), default=0)
        files = {str(agent): root / f"agents/{agent}/learner.json" for agent in range(served)}
        agents = {agent: int(json.loads(file.read_text("utf-8"))["version"]) for agent, file in files.items()}
        return {
            "steps": steps,
            "frames": steps * self.metrics.frames_per_step,
            "updates": sum(agents.values()) if agents else version,
            **tasks,
            "episodes": self.reporter.episodes,
            "games": games,
            "episodic_return_mean": self.reporter.return_mean,
            "wall_seconds": round(self.reporter.wall_seconds, 3),
            **({"agents": agents} if agents else {}),
            **({"self_play": True} if any(role.name == "self_play" for role in crew.roles) else {}),
        }


TICK = 0.25  # seconds between polls of the workers
METRICS = ("grad_norm", "learning_rate")  # metrics of every learner, besides those of its loss


class Supervisor(ABC):
    """The main process of a run or population, from the start of the workers to their end.

    `stopping`: function that returns a reason to end early, or "". If it is given, the caller handles signals.
    """

    patience, late, goes_on = PATIENCE, "learners did not end", "continues from the last checkpoint"

    def __init__(self, crew: Crew, directory: Path, stopping: Callable[[], str] | None = None):
        self.crew, self.directory, self.stopping = crew, directory, stopping
        self.exit_code, self.reason, self.failed = 0, "done", False  # failed: an exception ended the run
        self.finishing_since, self.closing = 0.0, False  # 0: not finishing; closing: workers are being stopped
        self.signals: list[str] = []  # names of signals received and not yet reported
        self.signalled, self.warned_at = False, 0.0  # signalled: a signal came; warned_at: when a line reported it
        self.waiting = self.dropping = False  # waiting: in a poll of the workers; dropping: end without saving
        self.reported = set[str]()  # workers' notes, cautions and remarks
        crew.directory, crew.log = directory, self.log

    def go(self) -> Row:
        """Run to the end, and return the summary. After an exception, save and close, then raise it again."""
        with contextlib.nullcontext() if self.stopping else processes.handled(self._receive):
            try:
                self._run()
            except Closed:
                self.reason += " while it was starting"
            except processes.Stopped:
                self._look()
                self.reason += ", at once: updates since the last checkpoint are lost"
                if self.stopping:
                    raise
            except Exception as e:
                self.failed = True
                self.exit_code, self.reason = (2 if isinstance(e, UserError) else 1), str(e).split("\n")[0]
                if self._rescue():
                    e.add_note(f"`polyplay resume {shlex.quote(str(self.directory))}` {self.goes_on}")
                raise
            finally:
                summary = self._close()
        return summary

    def _run(self) -> None:
        self.crew.start()
        self._watch()

    def _watch(self) -> None:
        while not self._poll():
            self._tick()
            if self.finishing_since and self._overdue(time.monotonic() - self.finishing_since):
                break

    def _poll(self) -> bool:
        """Watch the workers for TICK seconds. Return whether all have ended. Raises Stopped after a second signal."""
        self.waiting = True
        try:
            if self.dropping:
                raise processes.Stopped(signal.SIGTERM)
            return self.crew.poll(TICK)
        finally:
            self.waiting = False

    def _overdue(self, seconds: float) -> bool:
        """Tell whether to stop waiting for workers to save and end: they took too long, or no learner has started."""
        if not self._learning():
            self.reason += " before any learner started"
            return True
        if seconds > self.patience:
            self.exit_code = 1
            self.reason += f"; not saved: {self.late} within {self.patience:.0f} s, their last updates are lost"
        return seconds > self.patience

    def _finish(self, reason: str, exit_code: int = 0) -> None:
        """Let learners save at their next update and end. Only the first call, or one after a signal, has an effect."""
        if not self.finishing_since or exit_code >= 128:
            self.finishing_since, self.reason, self.exit_code = time.monotonic(), reason, exit_code
            self.crew.control.finish()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: save and end the run. A second signal, at least 1 s after the first was reported, ends the
        run without saving.
        """
        # Schedulers send several signals at once, so the second one must come later. `_report_signals` prints, because
        # a print in a signal handler could wait forever for a lock that this thread holds.
        if self.closing or self.dropping:
            return
        if not self.signalled:
            self.signalled = True
            if not self.failed:
                self._finish(f"stopped by {processes.name(number)}", 128 + number)
            self.signals.append(processes.name(number))
        elif self.warned_at and time.monotonic() - self.warned_at >= processes.AGAIN:
            self.dropping = True
            self.signals.append(processes.name(number))
            if self.waiting:
                raise processes.Stopped(number)

    def _report_signals(self) -> None:
        while self.signals and (self.warned_at or self._learning()):  # else the last line reports that nothing is saved
            name = self.signals.pop(0)
            if self.warned_at:
                self._warn(f"{name} again: ending without saving")
            else:
                self._warn(f"{name}: saving a checkpoint; a second signal, at least 1 s later, ends without saving")
                self.warned_at = time.monotonic()

    def log(self, kind: str, text: str) -> None:
        """Print a worker's message, unless it repeats a note, caution or remark. kind: one of these, or warning."""
        key = kind if kind == "remark" else text
        if kind in ("note", "caution", "remark"):
            if key in self.reported:
                return
            self.reported.add(key)
        (self._note if kind == "note" else self._warn)(text)

    def _learning(self) -> bool:
        """Tell whether any learner has started."""
        return True

    @abstractmethod
    def _look(self) -> None:
        """Process all events since the previous call."""

    def _tick(self) -> None:
        self._look()

    @abstractmethod
    def _close(self) -> Row:
        """Stop all workers, and write and return the summary."""

    def _rescue(self) -> bool:
        """Save all intact state after a failure. Return whether the run or population can be resumed."""
        return True

    def _note(self, text: str) -> None:  # noqa: B027 - populations print none
        """Print a line that is not a warning."""

    @abstractmethod
    def _warn(self, text: str) -> None:
        """Print a warning."""


@dataclass(frozen=True)
class RunSegment:
    """The part of a run up to agent step `until`. stopping: function that returns a reason to end earlier, or ""."""

    until: int
    stopping: Callable[[], str] | None = None

    @property
    def paused(self) -> str:
        """Reason in the summary if the run pauses after this segment."""
        return f"paused after {self.until:,} agent steps"


@dataclass(frozen=True)
class RunSetup:
    """A run that is ready to start, with its options, workers and plan.

    counters: counters of the checkpoint from which the run resumes.
    part: the segment of the run to train. None means the whole run.
    """

    system: str
    settings: Settings
    options: RunOptions
    sources: Sources
    crew: Crew
    wired: System
    directory: Path
    plan: Plan
    counters: Row
    lock: run_files.DirectoryLock | None = None
    callbacks: Sequence[Callback] = ()
    part: RunSegment | None = None

    @property
    def description(self) -> run_files.RunDescription:
        return {
            "system": self.system,
            "config": to_json(self.settings),
            "options": to_json(self.options),
            "sources": self.sources,
            "environment": self.wired.envs.spec.describe,
        }

    @property
    def metrics(self) -> tuple[str, ...]:
        scheduled = (schedule.name for schedule in self.crew.schedules)
        return tuple(dict.fromkeys((*self.wired.metrics, *METRICS, *scheduled)))

    @property
    def frames_per_step(self) -> int:
        return self.wired.envs.spec.frames_per_step


class Session(Supervisor):
    """The main process of a run."""

    def __init__(self, setup: RunSetup):
        super().__init__(setup.crew, setup.directory, setup.part.stopping if setup.part is not None else None)
        self.setup, self.options = setup, setup.options
        self.last_reported, self.next_report, self.next_save = False, 0.0, 0.0
        self.config, self.origin = run_files.read_config(self.directory), run_files.origin(self.directory)
        self.lock = setup.lock
        before = {k: int(setup.counters.get(k, 0)) for k in ("steps", "updates")}
        self.metrics = CrewMetrics(self.crew, setup.frames_per_step, before, setup.counters.get("task_steps", {}))
        keep, games = self.options.keep, setup.counters.get("games", {})
        start = {**before, "frames": setup.frames_per_step * before["steps"], "episodes": sum(games.values())}
        start["wall_seconds"] = setup.counters.get("wall_seconds", 0.0)
        self.reporter = Reporter(self.directory, self.options, start, self._warn, tasks=setup.wired.envs.spec.tasks)
        self.checkpoints = CheckpointCompleter(self.directory, self.metrics, self.reporter, keep, self._warn, games)
        self.callbacks = Callbacks(setup.callbacks, self.directory, self._finish)
        self.reporter.listen = self.callbacks.add
        self.checkpoints.listen = partial(self.callbacks.add, "checkpoint")
        self.terminal = Terminal(setup.plan.frames)
        self.terminal.begin(setup.description, self.directory, setup.plan.lines)

    # ---------------------------------------------------------------------------------------------- the loop

    def go(self) -> Row:
        """Run to the end, call the user's `on_end` callbacks, and return the summary."""
        summary = super().go()
        self.callbacks.add("end", summary)
        self.callbacks.call(ended=True)
        return summary

    def _run(self) -> None:
        if self.setup.part is not None:
            self.crew.control.pause_at(self.setup.part.until)
        self.crew.start(self.setup.metrics)
        now = time.monotonic()
        self.next_report, self.next_save = now + self.options.report_every, now + self.options.checkpoint_every
        if self.crew.serial and self.options.minutes is not None:  # no `_tick` within a rollout
            self.crew.control.over = self._time_is_over
        self._watch()
        self._look()  # all learners have ended: no part of a checkpoint comes later
        self._report()
        self.last_reported = True
        self.callbacks.call(ended=True)

    def _learning(self) -> bool:
        stamps = self.metrics.counters.column("stamp")[self.metrics.crew.savers()]
        return bool(stamps.any()) or self.metrics.updates != self.metrics.before["updates"]

    def _look(self) -> None:
        """Report signals and new games, complete a checkpoint, and restore the run's directory if it was deleted."""
        if self.lock is not None and not self.lock.held:
            self._restore_directory(self.lock)
        self._report_signals()
        self.metrics.report_games(self.reporter, partial(self.log, "caution"))
        self.checkpoints.complete()

    def _restore_directory(self, lock: run_files.DirectoryLock) -> None:
        """Restore a directory that was deleted or moved, with all lines of its logs, and request a checkpoint. Raises
        UserError if another command has written to the directory.
        """
        same, config = lock.in_place, self.directory / "config.json"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock.take()
            if (there := config.exists()) and parse_json(config.read_bytes()) != self.config:
                lock.close()
                raise UserError(f"RUN: another command has written to {self.directory}: this run ends")
            if not there:
                write_json(config, self.config)
        except OSError as e:
            self.log("caution", f"{self.directory}: {refusal_text(e)}; the run continues, its files are missing")
            return
        if same and there:
            self._warn(f"{lock.path} was deleted: it is locked again")
            return
        lost = "" if checkpoint.everything(self.directory) else ", without its earlier checkpoints"
        self._warn(f"{self.directory} was deleted or moved: it is written again{lost}")
        self.reporter.restore()
        self.crew.control.save()

    def _tick(self) -> None:
        now = time.monotonic()
        self._look()
        self._watch_machines()
        self.callbacks.call()
        if now >= self.next_report:
            self.next_report = now + self.options.report_every
            self._report()
            for line in self.metrics.silent(now):
                self.log("caution", line)
        if run_files.take_request(self.directory, run_files.END):
            self._receive(signal.SIGINT, None)
        asked = run_files.take_request(self.directory)
        if (asked or now >= self.next_save) and not self.finishing_since:
            self.next_save = now + self.options.checkpoint_every
            self.crew.control.save()
        goal = self.options.until_return
        self._time_is_over()
        if goal is not None and self.reporter.reached(goal):
            self._finish(f"the mean return of 100 games reached {goal:g}")
        if self.stopping is not None and (why := self.stopping()):
            self._finish(why)
        self.terminal.refresh(self.metrics.frames)

    def _watch_machines(self) -> None:
        """Print news about the run's other machines. If their cluster is about to fail, end the run."""
        if (fleet := self.crew.fleet) is None:
            return
        for line in fleet.news():
            self._warn(line)
        if not self.finishing_since and (why := fleet.cluster.failing()):
            self._warn(f"{why}: saving a checkpoint")
            self._finish(why, 1)

    def _time_is_over(self) -> bool:
        """Tell whether the run's --minutes are over. If they are, let the run finish."""
        minutes = self.options.minutes
        if minutes is None or self.reporter.wall_seconds < 60.0 * minutes:
            return False
        self._finish(minutes_over(minutes))
        return True

    def _rescue(self) -> bool:
        def dropped() -> bool:
            self._report_signals()
            return self.dropping

        if self.crew.counters is not None and self.owns_directory:
            self.checkpoints.rescue(dropped)
        return self.owns_directory and bool(checkpoint.everything(self.directory))

    @property
    def owns_directory(self) -> bool:
        """Whether the directory still belongs to this run, not to a run that took its place."""
        return self.lock is None or self.lock.held

    def _close(self) -> Row:
        """Write the last report if it is missing, stop all workers, and write the summary. Return the summary."""
        self.closing = True
        with contextlib.suppress(Exception):
            self.metrics.report_games(self.reporter, partial(self.log, "caution"))
            if not self.last_reported:
                self._report()
        self.crew.stop()
        if self.owns_directory:
            checkpoint.remove_partial(self.directory)
        part, total = self.setup.part, self.setup.plan.frames / self.setup.frames_per_step
        saved = checkpoint.everything(self.directory)
        learnt = steps_learnt(saved[-1] if saved else None)
        if self.reason == "done" and part is not None and max(part.until, learnt) < total:
            self.reason = part.paused
        if self.reason == "done" and not self.metrics.updates:
            self.reason = "done, but no update was made"
        if self.checkpoints.failure:
            ended = f"{self.reason}; " * bool(self.exit_code)
            self.exit_code, self.reason = self.exit_code if self.failed else 1, ended + self.checkpoints.failure
        self.reporter.closed = not self.owns_directory
        summary = self.reporter.close(self.reason, self.exit_code, checkpoint=saved[-1].name if saved else None)
        self.terminal.end(summary, self.failed)
        return summary

    # -------------------------------------------------------------------------------------------- reporting

    def _report(self) -> None:
        row = self.reporter.report(*self.metrics.read())
        self.terminal.report(row, self.metrics.roles)

    def log(self, kind: str, text: str) -> None:
        """Process a worker's message. Decisions, evaluations, matches and games are written to files. Other messages
        are printed.
        """
        at = self.metrics.steps, self.metrics.updates
        if kind == "decision":
            self.terminal.note(schedule_line(self.reporter.decision(json.loads(text), *at)))
        elif kind == "evaluation":
            self.terminal.note(evaluation_line(self.reporter.evaluation({**json.loads(text), **self.origin})))
        elif kind == "match":
            self.terminal.note(match_line(self.reporter.match(json.loads(text), *at)))
        elif kind == "game":
            if (game := parse_json(text)) is not None:  # None: sent by another machine, cut off
                self.reporter.game(game, *at)
        elif kind == "unsaved":
            self.checkpoints.fail(text)
        else:
            super().log(kind, text)

    def _note(self, text: str) -> None:
        self.terminal.note(text)

    def _warn(self, text: str) -> None:
        self.terminal.warn(text)

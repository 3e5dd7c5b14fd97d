"""The main process of a run: starts its crew, and watches, reports, saves and stops it."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import FrameType

from polyplay.common import checkpoint, signals
from polyplay.common.errors import Closed, UserError
from polyplay.common.files import LogWrites, Row, parse_json, read_object, refusal_text, write_json
from polyplay.runs.callbacks import Callbacks
from polyplay.runs.checkpoints import PATIENCE, CheckpointCompleter
from polyplay.runs.directory import RunDescription, origin, read_config
from polyplay.runs.going_on import steps_learnt
from polyplay.runs.lock import DirectoryLock
from polyplay.runs.options import RunOptions, Settings, Sources, to_json
from polyplay.runs.plan import Plan, minutes_over
from polyplay.runs.reports.crew_metrics import CrewMetrics
from polyplay.runs.reports.reporter import Reporter
from polyplay.runs.reports.self_play_alarms import SelfPlayAlarms
from polyplay.runs.reports.terminal import Terminal, evaluation_line, match_line
from polyplay.runs.reports.wandb import WandbLogger
from polyplay.runs.requests import take_save_request
from polyplay.systems import System
from polyplay.workers import fault_injection, fault_rules
from polyplay.workers.autoscale.worker import describe_decision
from polyplay.workers.crew import Crew

TICK = 0.25  # seconds between two polls of the workers
METRICS = ("grad_norm", "learning_rate")  # of every learner, besides what its loss reports


@dataclass(frozen=True)
class Slice:
    """A part of a run, to so many agent steps from its start. stopping: of a process that has more to do, and sees to
    signals: why to end before; "": there is no reason.
    """

    until: int
    stopping: Callable[[], str] | None = None

    @property
    def paused(self) -> str:
        """Why the session ended, if the run is not at its end."""
        return f"paused after {self.until:,} agent steps"


@dataclass(frozen=True)
class RunSetup:
    """A run before it starts: its options, wired crew and plan. counters: of the checkpoint that it goes on from.
    part: how far it goes now, if not to its end.
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
    lock: DirectoryLock | None = None
    callbacks: Sequence[object] = ()  # the user's own code
    part: Slice | None = None

    @property
    def description(self) -> RunDescription:
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


class Session:
    """The main process of a run: everything here happens between two polls of the crew."""

    def __init__(self, setup: RunSetup):
        self.setup, self.options, self.crew, self.directory = setup, setup.options, setup.crew, setup.directory
        self.stopping = setup.part.stopping if setup.part is not None else None
        self.exit_code, self.reason, self.failed = 0, "done", False  # failed: an exception ended it
        self.finishing_since, self.closing = 0.0, False  # 0: it is not finishing; closing: nothing runs any more
        self.signals: list[str] = []  # received, and not yet reported
        self.signalled, self.warned_at = False, 0.0  # by a signal to end; when a line said so, 0: none has yet
        self.waiting = self.dropping = False  # the loop waits for the crew; everything is to be dropped
        self.saw_remark = self.last_reported = False
        self.notes = set[str]()  # that workers made
        self.faults: fault_injection.FaultInjector | None = None
        self.next_report = self.next_save = 0.0
        self.config, self.origin, self.lock = read_config(self.directory), origin(self.directory), setup.lock
        self.crew.directory, self.crew.say = self.directory, self.say
        self.writes = LogWrites(self._warn)
        before = {k: int(setup.counters.get(k, 0)) for k in ("steps", "updates")}
        self.metrics, self.alarms = CrewMetrics(self.crew, setup.frames_per_step, before), SelfPlayAlarms()
        self.reporter = self._make_reporter(before)
        self.checkpoints = CheckpointCompleter(
            self.directory, self.metrics, self.reporter, self.options.keep, self._warn
        )
        self.callbacks = Callbacks(setup.callbacks, self.directory, self._finish_once)
        self.reporter.listen, self.checkpoints.listen = self.callbacks.line, self.callbacks.checkpoint
        self.terminal = Terminal(self.reporter, total_frames=setup.plan.frames, passes=setup.plan.passes)
        self.terminal.begin(setup.description, self.directory, setup.plan.lines)

    def _make_reporter(self, before: dict[str, int]) -> Reporter:
        options, wall = self.options, self.setup.counters.get("wall_seconds", 0.0)
        return Reporter(
            self.directory,
            start={**before, "frames": before["steps"] * self.setup.frames_per_step, "wall_seconds": wall},
            tensorboard=options.tensorboard,
            warn=self._warn,
            style=options.metrics_style,
            tracker=WandbLogger(options.wandb, self.directory, warn=self._warn) if options.wandb else None,
        )

    # ---------------------------------------------------------------------------------------------- the loop

    def go(self) -> Row:
        """Returns the summary. Raises what ended the run, after all has been saved and closed."""
        with contextlib.nullcontext() if self.stopping else signals.handled(self._receive):
            try:
                self._run()
            except Closed:
                self.reason += " while it was starting"
            except signals.Stopped:
                self._look()
                self.reason += ", at once: what was learnt since the last checkpoint is lost"
                if self.setup.part is not None and self.setup.part.stopping:
                    raise
            except Exception as e:
                self.failed = True
                self.exit_code, self.reason = (2 if isinstance(e, UserError) else 1), str(e).split("\n")[0]
                self._rescue()
                if self.owns_directory and checkpoint.everything(self.directory):
                    e.add_note(f"`polyplay resume {shlex.quote(str(self.directory))}` goes on from the last checkpoint")
                raise
            finally:
                summary = self._close()
        self.callbacks.end(summary)
        return summary

    def _run(self) -> None:
        if self.setup.part is not None:
            self.crew.control.pause_at(self.setup.part.until)
        self.crew.start(self.setup.metrics)
        now = time.monotonic()
        self.next_report, self.next_save = now + self.options.report_every, now + self.options.checkpoint_every
        if self.options.chaos is not None:
            rules = fault_rules.parse_faults(self.options.chaos)
            self.faults = fault_injection.FaultInjector(rules, self.crew, self.directory)
        if self.crew.serial and self.options.minutes is not None:  # no tick within a rollout
            self.crew.control.over = self._time_is_over
        while not self._poll():
            self._tick()
            if self.finishing_since and self._overdue(time.monotonic() - self.finishing_since):
                break
        if self.crew.control.over is not None and self._time_is_over() and not self.finishing_since:
            self._finish(minutes_over(self.options.minutes or 0.0))
        self._look()  # all learners have ended: their last parts are there, or never will be
        self._report()
        self.last_reported = True
        self.callbacks.call(ended=True)

    def _poll(self) -> bool:
        """Whether the learners are done. Raises Stopped: they are not to be waited for."""
        self.waiting = True
        try:
            if self.dropping:
                raise signals.Stopped(signal.SIGTERM)
            return self.crew.poll(fault_injection.PACE if self.faults else TICK)
        finally:
            self.waiting = False

    def _overdue(self, seconds: float) -> bool:
        """Whether learners have had their time to save and end. Who has not even begun has nothing to save."""
        if not self._learning():
            self.reason += " before anything was learnt"
            return True
        if seconds > PATIENCE:
            self.exit_code = 1
            self.reason += f"; not saved: learners did not end within {PATIENCE:.0f} s, their last updates are lost"
        return seconds > PATIENCE

    def _learning(self) -> bool:
        """Whether any learner has begun."""
        stamps = self.metrics.counters.column("stamp")[self.metrics.crew.savers()]
        return bool(stamps.any()) or self.metrics.updates != self.metrics.before["updates"]

    def _look(self) -> None:
        """Pass on what has happened since the last time."""
        if self.lock is not None and not self.lock.held:
            self._restore_directory(self.lock)
        self._tell_signals()
        self.metrics.report_games(self.reporter, self._warn)
        self.checkpoints.complete()

    def _tell_signals(self) -> None:
        while self.signals and (self.warned_at or self._learning()):  # else nothing is saved: the last line says it
            name = self.signals.pop(0)
            if self.warned_at:
                self._warn(f"{name} again: ending without saving")
            else:
                self._warn(f"{name}: saving a checkpoint; a second signal, at least 1 s later, ends without saving")
                self.warned_at = time.monotonic()

    def _restore_directory(self, lock: DirectoryLock) -> None:
        """The run's directory was moved, or deleted: write it anew, with all lines, and then a checkpoint. If only its
        lock was, lock it again. Raises UserError: another run is there now, or was.
        """
        if (moved := lock.moved_to) is not None:
            return self._follow(moved, lock)
        same = lock.in_place
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock.take()
            there = (self.directory / "config.json").exists()
            if there and not self._is_ours():
                lock.close()
                raise UserError(f"RUN: another command has written to {self.directory} since: this run leaves it alone")
            if not there:
                write_json(self.directory / "config.json", self.config)
        except OSError as e:
            self.writes.fail(str(self.directory), refusal_text(e))
            return
        if same and there:
            self._warn(f"{lock.path} was deleted: it is locked again")
            return
        lost = "" if checkpoint.everything(self.directory) else ", without the checkpoints that were there"
        self._warn(f"{self.directory} was deleted: it is written anew{lost}")
        self.reporter.restore()
        self.crew.control.save()

    def _follow(self, there: Path, lock: DirectoryLock) -> None:
        """Go on in the place that the directory was moved to, by a link at the old one. Raises UserError: there can be
        none, and files of the run would be in two places.
        """
        try:
            self.directory.parent.mkdir(parents=True, exist_ok=True)
            self.directory.symlink_to(there)
        except OSError as e:
            lock.close()
            how = f"`polyplay resume {there}` goes on from its last checkpoint"
            raise UserError(f"RUN: {self.directory} was moved to {there} ({refusal_text(e)}): {how}") from None
        self._warn(f"{self.directory} was moved to {there}: the run goes on there, and its old name is a link to it")

    def _is_ours(self) -> bool:
        try:
            return read_object(self.directory / "config.json") == self.config
        except ValueError:
            return False

    def _tick(self) -> None:
        now = time.monotonic()
        self._look()
        self._watch_machines()
        self.callbacks.call()
        if now >= self.next_report:
            self.next_report = now + self.options.report_every
            self._report()
            for line in chain(self.metrics.newly_silent(now), self.metrics.memory.news()):
                self._warn(line)
        asked = take_save_request(self.directory)
        if (asked or now >= self.next_save) and not self.finishing_since:
            self.next_save = now + self.options.checkpoint_every
            self.crew.control.save()
        goal = self.options.until_return
        if not self.finishing_since and self._time_is_over():
            self._finish(minutes_over(self.options.minutes or 0.0))
        if not self.finishing_since and goal is not None and self.reporter.reached(goal):
            self._finish(f"the mean return of 100 games reached {goal:g}")
        if self.stopping is not None and not self.finishing_since and (why := self.stopping()):
            self._finish(why)
        if self.faults and self.finishing_since:
            self.faults.release()
        elif self.faults:
            self.faults.tick(saved=self.checkpoints.last >= 1)
        self.terminal.refresh(self.metrics.frames)

    def _watch_machines(self) -> None:
        """Pass on what there is to say of other machines, and end the run before they can't be held any more."""
        if (fleet := self.crew.fleet) is None:
            return
        for line in fleet.news():
            self._warn(line)
        if not self.finishing_since and (why := fleet.engine.failing()):
            self._warn(f"{why}: saving a checkpoint")
            self._finish(why, 1)

    def _time_is_over(self) -> bool:
        minutes = self.options.minutes
        return minutes is not None and self.reporter.wall_seconds >= 60.0 * minutes

    def _finish(self, reason: str, exit_code: int = 0) -> None:
        """Learners save at their next update, and end."""
        self.finishing_since, self.reason, self.exit_code = time.monotonic(), reason, exit_code
        self.crew.control.finish()

    def _finish_once(self, reason: str) -> None:
        if not self.finishing_since:
            self._finish(reason)

    def _rescue(self) -> None:
        """The run has failed: save first what is whole."""

        def dropped() -> bool:
            self._tell_signals()
            return self.dropping

        if self.crew.counters is not None and self.owns_directory:
            self.checkpoints.rescue(dropped)

    @property
    def owns_directory(self) -> bool:
        """Whether the directory is this run's: it may have been deleted, and another run be there."""
        return self.lock is None or self.lock.held

    def _close(self) -> Row:
        """Report for the last time where that is not done, stop the crew, write the summary."""
        self.closing = True
        sizes: dict[str, dict[int, int]] = {}
        with contextlib.suppress(Exception):
            sizes = self.metrics.histograms()
            self.metrics.report_games(self.reporter, self._warn)
            if not self.last_reported:
                self._report()
        if self.faults:
            self.faults.release()
        self.crew.stop()
        if self.owns_directory:
            checkpoint.remove_partial(self.directory)
        part, total = self.setup.part, self.setup.plan.frames / self.setup.frames_per_step
        saved = checkpoint.everything(self.directory)
        learnt = steps_learnt(saved[-1] if saved else None)
        if self.reason == "done" and part is not None and max(part.until, learnt) < total:
            self.reason = part.paused
        if self.reason == "done" and not self.metrics.updates:
            self.reason = "done, but nothing was learnt: no update was made"
        if self.checkpoints.failure:
            ended = f"{self.reason}; " * bool(self.exit_code)
            self.exit_code, self.reason = self.exit_code if self.failed else 1, ended + self.checkpoints.failure
        last = saved[-1].name if saved else None
        faults = self._describe_faults(saved)
        self.reporter.closed = not self.owns_directory
        summary = self.reporter.close(self.reason, self.exit_code, checkpoint=last, batch_sizes=sizes, **faults)
        self.terminal.end(summary, self.failed)
        return summary

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """The first signal saves and ends the run; another one drops everything, if it comes a second or more after
        the line about the first: schedulers send several at once. A run that has failed saves all the same, and one
        that has ended is closed. A line written here could wait for a lock that this thread holds.
        """
        if self.closing or self.dropping:
            return
        if not self.signalled:
            self.signalled = True
            if not self.failed:
                self._finish(f"stopped by {signals.name(number)}", 128 + number)
            self.signals.append(signals.name(number))
        elif self.warned_at and time.monotonic() - self.warned_at >= signals.AGAIN:
            self.dropping = True
            self.signals.append(signals.name(number))
            if self.waiting:
                raise signals.Stopped(number)

    # -------------------------------------------------------------------------------------------- reporting

    def _report(self) -> None:
        row = self.reporter.report(self.metrics.snapshot())
        self.terminal.report(row)
        for line in self.alarms.look(row):
            self._warn(line)

    def say(self, kind: str, text: str) -> None:
        """A worker's message: a decision, an evaluation, a match or a game as JSON, why something is unsaved, a note, a
        remark, a caution, or a warning."""
        if kind == "decision":
            row = self.reporter.decision(json.loads(text), self.metrics.steps, self.metrics.updates)
            self.terminal.note(describe_decision(row))
        elif kind == "evaluation":
            row = self.reporter.evaluation({**json.loads(text), **self.origin})
            self.terminal.note(evaluation_line(row))
        elif kind == "match":
            row = self.reporter.match(json.loads(text), self.metrics.steps, self.metrics.updates)
            self.terminal.note(match_line(row))
        elif kind == "game":
            if (game := parse_json(text)) is not None:  # another machine cuts off what is too long
                self.reporter.game(game, self.metrics.steps, self.metrics.updates)
        elif kind == "remark":  # the first of them speaks for all
            if not self.saw_remark:
                self._warn(text)
            self.saw_remark = True
        elif kind in ("note", "caution"):
            if text not in self.notes:
                (self.terminal.note if kind == "note" else self._warn)(text)
            self.notes.add(text)
        elif kind == "unsaved":
            self.checkpoints.fail(text)
        else:
            self._warn(text)

    def _warn(self, text: str) -> None:
        self.terminal.warn(text)

    def _describe_faults(self, saved: list[Path]) -> Row:
        """Print which faults were injected; the same for the summary. saved: the checkpoints there are."""
        if self.faults is None:
            return {}
        behind = None
        with contextlib.suppress(IndexError, OSError, ValueError, KeyError):  # no checkpoint, or a damaged one
            behind = self.metrics.steps - int(checkpoint.manifest(saved[-1])["counters"]["steps"])
        report = self.faults.report(behind)
        for line in fault_injection.describe_faults(report):
            self.terminal.note(line)
        return {"chaos": report}

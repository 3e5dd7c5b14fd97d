"""The main process of a population: starts its trainers, watches, shows and stops them. It decides nothing."""

from __future__ import annotations

import contextlib
import shlex
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from polyplay.common import signals
from polyplay.common.errors import Closed, UserError
from polyplay.common.files import Row, write_json
from polyplay.common.machine import now
from polyplay.population.evolution import Evolution
from polyplay.population.lineage import read_lineage
from polyplay.population.ranking import best_member
from polyplay.population.store import FAILED, TRAINING, WAITING, Store, wall_seconds
from polyplay.runs.member import last_row
from polyplay.runs.reports.population_panel import PopulationPanel
from polyplay.workers.crew import Crew

TICK = 0.25  # seconds between two looks at trainers
SHOW = 1.0  # and between two pictures
PATIENCE = 60.0  # seconds that members get to save and end once the population is finishing


class PopulationSession:
    """One session of a population, from the start of its trainers to their end."""

    def __init__(
        self, crew: Crew, directory: Path, evolution: Evolution, lines: Sequence[tuple[str, str]], quiet: bool
    ):
        self.crew, self.directory, self.evolution = crew, directory, evolution
        self.store = Store(directory)
        self.panel = PopulationPanel(quiet=quiet, live=False if crew.serial else None)
        self.exit_code, self.reason = 0, "done"
        self.finishing_since, self.waiting, self.dropping = 0.0, False, False
        self.shown, self.said = 0.0, set[str]()
        self.decisions = 0
        crew.say = self.say
        self._set_clock()
        self.panel.begin([("run", str(directory)), *lines])

    def _set_clock(self) -> None:
        """Seconds of decisions count on from the session before."""
        with self.store.locked():
            population = self.store.read()
            self.decisions = population["decisions"]
            population["clock"] = {"before": population["wall_seconds"], "since": time.monotonic()}
            self.store.write(population)

    def go(self) -> Row:
        """Returns the summary. Raises what ended the population, after all members have been stopped."""
        with signals.handled(self._receive):
            try:
                self._run()
            except Closed:
                self.reason += " while it was starting"
            except signals.Stopped:
                self.reason += ", at once: what members learnt since their last checkpoints is lost"
            except Exception as e:
                self.exit_code, self.reason = (2 if isinstance(e, UserError) else 1), str(e).split("\n")[0]
                e.add_note(f"`polyplay resume {shlex.quote(str(self.directory))}` goes on with the population")
                raise
            finally:
                summary = self._close()
        return summary

    def _run(self) -> None:
        self.crew.start()
        while not self._poll():
            self._look()
            if self.finishing_since and time.monotonic() - self.finishing_since > PATIENCE:
                self.exit_code = 1
                self.reason += f"; members did not end within {PATIENCE:.0f} s"
                return

    def _poll(self) -> bool:
        self.waiting = True
        try:
            if self.dropping:
                raise signals.Stopped(signal.SIGTERM)
            return self.crew.poll(TICK)
        finally:
            self.waiting = False

    def _look(self, last: bool = False) -> None:
        """Show what has happened since the last time."""
        if time.monotonic() - self.shown < SHOW and not last:
            return
        self.shown = time.monotonic()
        population = self.store.read()
        if population["decisions"] > self.decisions:
            for row in read_lineage(self.directory)[self.decisions : population["decisions"]]:
                self.panel.decision(row)
            self.decisions = population["decisions"]
        training = [m["member"] for m in population["members"] if m["state"] == TRAINING]
        self.panel.show(population, {i: last_row(self.store.member(i) / "metrics.jsonl") for i in training})

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """The first signal lets members save and ends the population; a second, at least a second later, drops all."""
        if not self.finishing_since:
            self.finishing_since = time.monotonic()
            self.exit_code, self.reason = 128 + number, f"stopped by {signals.name(number)}"
            self.crew.control.finish()
        elif time.monotonic() - self.finishing_since >= signals.AGAIN and not self.dropping:
            self.dropping = True
            if self.waiting:
                raise signals.Stopped(number)

    def say(self, kind: str, text: str) -> None:
        """A trainer's message; a remark is made once, a note not at all."""
        if kind == "note":
            return
        once = kind in ("remark", "caution")
        if not once or not (self.said if kind == "remark" else text in self.said):
            self.panel.warn(text)
        if once:
            self.said.add(text)

    def _close(self) -> Row:
        """Stop the trainers, write the summary."""
        self.crew.stop()
        with contextlib.suppress(Exception):
            self._look(last=True)
        summary = {
            "reason": self.reason,
            "exit_code": self.exit_code,
            "directory": str(self.directory),
            **self._totals(),
        }
        with contextlib.suppress(OSError):
            write_json(self.directory / "summary.json", summary)
        self.panel.end(summary)
        return summary

    def _totals(self) -> Row:
        """What all members have done, and the best of them."""
        with self.store.locked():
            population = self.store.read()
            for m in population["members"]:
                m["state"] = WAITING if m["state"] == TRAINING else m["state"]
            population["wall_seconds"] = wall_seconds(population)
            with contextlib.suppress(OSError):  # a full disk: the next session does it
                self.store.write(population)
        members = population["members"]
        best = best_member(members)
        if self.reason == "done" and all(m["state"] == FAILED for m in members):
            self.exit_code, self.reason = 1, f"all members have failed: {members[0]['why']}"
        totals = {k: sum(m[k] for m in members) for k in ("steps", "frames")}
        return {
            "reason": self.reason,
            "exit_code": self.exit_code,
            "wall_seconds": round(population["wall_seconds"], 3),
            **totals,
            "decisions": population["decisions"],
            "failed": sum(m["state"] == FAILED for m in members),
            "best_member": best and best["member"],
            "best_score": best and best["score"],
            "finished": now(),
        }

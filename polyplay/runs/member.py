"""A session of one member of a population: an ordinary run, from where it is to the next decision about it."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polyplay.common import checkpoint
from polyplay.common.errors import EnvFailure, NotFinite, UserError, WorkerLost
from polyplay.common.files import Row, is_row, parse_json, read_lines, refusal_text, write_json
from polyplay.population.evolution import GAMES
from polyplay.population.store import Store
from polyplay.population.trainer import MemberSession
from polyplay.runs import run
from polyplay.runs.directory import GAME, METRICS, read_config
from polyplay.runs.given import objects_of
from polyplay.runs.going_on import steps_learnt
from polyplay.runs.options import RunOptions, Settings, Sources
from polyplay.runs.session import Slice

TAIL = 1 << 16  # bytes of lines in which a member's last games are looked for
SEEDS = 1000  # between those of two populations, so that their members have none in common


@dataclass(frozen=True)
class MemberRunner:
    """What trainers call (population.trainer.RunMember). changes: options that now hold, of a resumed population."""

    directory: Path
    system: str
    settings: Settings
    options: RunOptions
    sources: Sources
    score: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)  # by sessions of this process

    def __call__(
        self, m: Row, until: int, stopping: Callable[[], str], say: Callable[[str, str], None]
    ) -> MemberSession:
        """Raises UserError and WorkerLost, where no member could go on."""
        name, begun = f"member {m['member']:02d}", time.monotonic()
        directory = Store(self.directory).member(m["member"])

        def warn(text: str) -> None:
            if (line := f"{name}: {text}") not in self.said:
                self.said.add(line)
                say("warning", line)

        output = WarningReader(warn)
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                ended, why = self._run(directory, m, Slice(until, stopping))
        except (NotFinite, EnvFailure, WorkerLost) as e:
            first, *rest = str(e).rstrip().split("\n")  # a traceback's last line says what it was
            ended, why = (
                ("failed" if isinstance(e, NotFinite) else "lost"),
                " ".join([first, *(line for line in rest[-1:] if line not in first)]),
            )
        except UserError as e:
            raise UserError(f"{name}: {e}") from None
        except OSError as e:
            raise WorkerLost(f"{name}: {refusal_text(e)}") from None
        counters = _newest_counters(directory)
        games = last_returns(directory, m["copied"], self.score)
        seconds = time.monotonic() - begun
        return MemberSession(ended, why, counters["steps"], counters["frames"], games, seconds)  # type: ignore[arg-type]

    def _run(self, directory: Path, m: Row, part: Slice) -> tuple[str, str]:
        """How a session ended, and why."""
        if (directory / "config.json").exists():
            amend_values(directory, m["values"])
            if learnt(directory) >= part.until:  # it was killed between its last checkpoint and the decision
                return "ready", ""
            result = run.continue_run(directory, {**self.changes, **objects_of(self.settings)}, True, part=part)
        else:
            settings = replace(self.settings, **m["values"])
            options = replace(self.options, run=str(directory), seed=SEEDS * self.options.seed + m["member"])
            sources = self.sources | dict.fromkeys(m["values"], "population")
            result = run.begin_run(self.system, settings, options, sources, part=part)
        if result.reason == part.paused:
            return "ready", ""
        if part.stopping and (why := part.stopping()) and result.reason.startswith(why):
            return "stopped", result.reason
        if result.exit_code:  # it could not be saved
            raise OSError(result.reason)
        return "done", result.reason


class WarningReader(io.TextIOBase):
    """Reads what a session prints, and passes warnings on."""

    def __init__(self, warn: Callable[[str], None]):
        self.warn, self.rest = warn, ""
        self.before = sys.stdout, sys.stderr  # where a warning that is passed on may be printed

    def write(self, text: str) -> int:
        """Of text without an end of line the rest comes later."""
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            found = line.removeprefix("polyplay: ").removeprefix("warning ")
            if found != line:
                with contextlib.redirect_stdout(self.before[0]), contextlib.redirect_stderr(self.before[1]):
                    self.warn(found)
        return len(text)


def amend_values(directory: Path, values: Mapping[str, Any]) -> None:
    """Write hyperparameters that now hold into a member's configuration. Raises OSError."""
    contents = read_config(directory)
    if any(contents["config"].get(name) != value for name, value in values.items()):
        contents["config"] |= values
        write_json(directory / "config.json", contents)


def learnt(directory: Path) -> float:
    """Agent steps that the newest checkpoint of a run has learnt from; 0: it has none that can be read."""
    with contextlib.suppress(IndexError):
        return steps_learnt(checkpoint.everything(directory)[-1])
    return 0.0


def _newest_counters(directory: Path) -> Row:
    for path in reversed(checkpoint.everything(directory)):
        with contextlib.suppress(OSError, ValueError):
            return dict(checkpoint.manifest(path)["counters"])
    return {"steps": 0, "frames": 0}


def last_returns(directory: Path, since: int, score: str = "games") -> tuple[float, ...]:
    """Returns of the last games that ended after `since` agent steps; those of the last evaluation."""
    if score == "evaluations":
        rows = [row for row in read_lines(directory / "evaluations.jsonl", "steps") if row["steps"] > since]
        return tuple(rows[-1]["returns"]) if rows else ()
    games = [row for row in _tail(directory / "episodes.jsonl", GAME) if row["steps"] > since]
    return tuple(float(game["episodic_return"]) for game in games[-GAMES:])


def last_row(path: Path) -> Row:
    """The last whole line of a run's reports; empty: there is none."""
    return next(reversed(list(_tail(path, METRICS))), {})


def _tail(path: Path, numbers: tuple[str, ...]) -> Iterator[Row]:
    """The last lines of a file."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        for line in file.read().split(b"\n"):
            if is_row(row := parse_json(line), numbers):
                yield row

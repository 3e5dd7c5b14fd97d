"""Print a run's progress: a live panel, or plain aligned lines if standard output is not a terminal.

Imports no torch.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from polyplay.core.files import Row
from polyplay.envs.atari import is_game
from polyplay.runs.directory import RunDescription
from polyplay.runs.flags import ASIDE
from polyplay.runs.reporter import KINDS

# A console for permanent lines and, on a terminal, a panel below them that is redrawn.
#
# If the terminal is closed, the run gets SIGHUP and ends as with SIGTERM; under nohup, the run continues.


EVERY = 0.25  # least seconds between two drawings of the panel
LIVE: dict[str, Any] = {"auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}


class Screen:
    """Console with `print` for permanent lines and `draw` for a live panel below them. Call `close` at the end.

    If the terminal or pipe is closed, all later output of the process goes to /dev/null.
    `live`: whether to show a panel. By default, a panel is shown if the console is a terminal.
    """

    def __init__(
        self, console: Console | None = None, live: bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console, self.clock = console or default_console(), clock
        if live is None:  # FORCE_COLOR makes rich take a log file for a terminal, so ask the file too
            live = self.console.is_terminal and not self.console.is_dumb_terminal and self.console.file.isatty()
        self.live = Live(**LIVE, console=self.console) if live else None
        self.drawn, self.warning = -EVERY, ""

    def print(self, what: RenderableType) -> None:
        """Print one or several permanent lines above the panel."""
        with self._written():
            print_all(self.console, [what])

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # ValueError: the file was closed
            # else Python would fail to flush standard output at exit, which changes the exit status
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), self.console.file.fileno())

    def warn(self, text: str) -> None:
        """Print a permanent warning. The panel also shows the last warning."""
        self.warning = " ".join(text.split())
        self.print(Text.assemble(("warning ", "bold yellow"), self.warning))

    def draw(self, picture: Callable[[], RenderableType], at_once: bool = False) -> None:
        """Draw the panel (if any), at most once in EVERY seconds. at_once: draw even if less time has passed."""
        if self.live is None or not (at_once or self.clock() - self.drawn >= EVERY):
            return
        self.drawn = self.clock()
        with self._written():
            if not self.live.is_started:
                self.live.start()
            self.live.update(picture(), refresh=True)

    def close(self) -> None:
        """Give the terminal back to other programs. A second call does nothing."""
        live, self.live = self.live, None
        if live is not None and live.is_started:
            with self._written():
                live.stop()

    def boxed(self, title: str, lines: Iterable[RenderableType]) -> Panel:
        """Return a panel that shows the lines and, below them, the last warning. Text is cut at the panel's width."""
        shown = [*lines, *([Text(f"warning: {self.warning}", style="yellow")] if self.warning else [])]
        for line in shown:
            if isinstance(line, Text):
                line.no_wrap, line.overflow = True, "ellipsis"
        width = self.console.width - len("^C^C")  # room for an echoed ^C, which would wrap the line and leave a border
        return Panel(Group(*shown), title=title, title_align="left", border_style="blue", width=width)


def ruled_table(*words: str | Column, numbers: Iterable[str] = ()) -> Table:
    """Return a table with a line below its header: columns of text, then columns of numbers, whose cells never wrap."""
    right = [Column(name, justify="right", no_wrap=True) for name in numbers]
    return Table(*words, *right, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def progress_line(done: float, *texts: str) -> Table:
    """Return a progress bar, with texts on the right of it."""
    right = [Column(no_wrap=True, justify="right") for _ in texts]
    grid = Table.grid(Column(ratio=1), *right, padding=(0, 2), expand=True)
    grid.add_row(ProgressBar(total=1.0, completed=done), *texts)
    return grid


class PlainConsole(Console):
    """Console that raises BrokenPipeError if its pipe is closed, while rich's Console ends the program."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def default_console() -> Console:
    """Return a console on standard output, 120 columns wide if the output is no terminal and COLUMNS is not set."""
    if isinstance(sys.stdout, io.TextIOWrapper) and "utf" not in sys.stdout.encoding.lower():
        sys.stdout.reconfigure(errors="replace")
    console = PlainConsole(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 120
    return console


def print_all(console: Console, lines: Iterable[RenderableType]) -> None:
    """Print lines. A Text is not wrapped, so that a command or path in it can be copied whole."""
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, Text))


# The first lines of a run: its title, settings and plan, in short or in full.


Fact = tuple[str, str]  # heading and text
POPULATION = ("members", "vary", "decisions")  # headings that the short plan of a population shows
WARNINGS = ("platform", "left out", "sizes")  # headings that every short plan also shows
CHOICES = ("networks in ", "inputs ", "self-play by ")  # beginnings of clauses that a short plan keeps
MORE = "(--verbose: the whole plan)"


def opening_lines(
    run: RunDescription, directory: Path | str, plan: Iterable[Fact], console: Console, whole: bool = True
) -> Iterator[RenderableType]:
    """Yield the first lines of a run: its title, settings and plan.

    `whole`: whether to yield everything, with the source of each value. If not, yield at most five lines and the
    warnings.
    """
    title, where = f"polyplay {run['system']} on {run['config'].get('env')}", f"  in {directory}"
    by_source, preset = settings_by_source(run), f"preset {run['options']['preset']}"
    if whole:
        yield Text.assemble((title, "bold"), "\n" * (len(title + where) > console.width), where)
        environment = " · ".join(f"{k} {v}" for k, v in run["environment"].items())
        yield from fact_lines([*by_source.items(), ("playing", environment), *plan], console)
        return
    yield Text.assemble((title, "bold"), f", {preset}")
    chosen = by_source.get("chosen")
    parts = [by_source.get("given"), chosen and f"chosen for this machine: {chosen}"]
    yield from brief_lines([("settings", "; ".join(filter(None, parts))), *short_facts(plan)], directory, console)


def settings_by_source(run: RunDescription) -> dict[str, str]:
    """Return {source: its options and values}, without unset options of RunOptions (except the seed)."""
    values, preset = {**run["config"], **run["options"]}, f"preset {run['options']['preset']}"
    idle = {"env", "run", "preset", *(("frames",) if values.get("steps") is not None else ())}
    idle |= {"atari"} if not is_game(values.get("env"), {}) else set()
    heads = {"default": "default", "preset": preset, "chosen": "chosen"}
    found = {head: list[str]() for head in ("default", preset, "given", "chosen")}
    for name, value in values.items():
        kind = run["sources"].get(name, "default").partition(" ")[0]
        if name not in idle and (name in run["config"] or kind != "default" or name == "seed"):
            found[heads.get(kind, "given")].append(f"{name} {_short(value)}")
    return {head: ", ".join(texts) for head, texts in found.items() if texts}


def short_facts(plan: Iterable[Fact]) -> list[Fact]:
    """Return the two or three main facts of a plan, followed by its warnings."""
    found = dict[str, list[str]]()
    for k, text in plan:
        found.setdefault(k, []).append(text)
    short = [(k, ", ".join(found[k])) for k in POPULATION if k in found]
    if not short and "workers" in found:
        workers, network = (found[k][0].split("; ") for k in ("workers", "network"))
        choices = [clause for clause in (*network[1:], *workers[1:]) if clause.startswith(CHOICES)]
        short = [("workers", "; ".join([ASIDE.sub("", workers[0]), f"network {network[0]}", *choices]))]
        memory = found["memory"][0].partition("; ")[0].partition(" for ")[0].removeprefix("at least ")
        short.append(("length", f"{found['length'][0]}; buffers and weights take {memory}"))
    return short + [(k, text) for k in WARNINGS for text in found.get(k, ())]


def brief_lines(facts: Iterable[Fact], directory: Path | str, console: Console) -> Iterator[RenderableType]:
    """Yield one line per fact, then the run's directory. On a terminal, lines are cut at its width, except warnings."""
    for heading, text in facts:
        if text:
            cut = console.width - 1 if console.is_terminal and heading not in WARNINGS else len(text) + 99
            line = Text.assemble((f"{heading:<8} ", "bold"), text)
            line.truncate(cut, overflow="ellipsis")
            yield line
    yield Text.assemble((f"{'run':<8} ", "bold"), f"{directory}  {MORE}")


def fact_lines(facts: Iterable[Fact], console: Console) -> Iterator[RenderableType]:
    """Yield facts with their headings: on a terminal as a table, otherwise as one line per fact."""
    if not console.is_terminal:
        yield from (Text(f"{heading:<8} {text}") for heading, text in facts)
        return
    table = Table.grid(Column(style="bold", no_wrap=True, min_width=8), Column(), padding=(0, 1))
    for fact in facts:
        table.add_row(*fact)
    yield table


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (tuple, list)):
        return " ".join(map(_short, value)) or "()"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def value_text(value: object) -> str:
    """Return the value of a hyperparameter as text. A float has three significant digits."""
    return f"{value:.3g}" if isinstance(value, float) else _short(value)


PACE = 60.0  # least seconds between reports in a file or a pipe
FEW = 4  # with at most this number of agents or tasks, all returns are shown
MOST_ROLES = 4  # most roles shown, so that the panel has at most 12 lines
COLORS = {"env": "green", "infer": "cyan", "learn": "magenta", "replay": "yellow", "wait": "bright_black"}


class Terminal:
    """Terminal output of a run. Call `begin` first and `end` last. Between them, call `report` for each report,
    `refresh` at any time, and `warn` for a warning.

    The live panel is redrawn 4 times a second. A serial run has no panel, so that a debugger can use the terminal.
    """

    def __init__(self, total_frames: int, screen: Screen | None = None) -> None:
        self.total_frames, self.screen = total_frames, screen or Screen()
        self.console, self.clock = self.screen.console, self.screen.clock
        self.title, self.quiet = "", False  # quiet: print only warnings and the last line
        self.minutes: float | None = None
        self.row: Row = {}
        self.roles: Mapping[str, Mapping[str, float]] = {}
        self.below = set[str]()  # texts printed below warnings, such as tracebacks
        self.begun = self.at = self.clock()
        self.speed: float | None = None  # frames per second, smoothed for the estimated time
        self.printed = -PACE  # time of the last report printed as a line

    def begin(self, run: RunDescription, directory: Path | str, plan: Iterable[Fact] = ()) -> None:
        """Print the first lines of the run. With --verbose, print the whole plan."""
        options = run["options"]
        self.minutes, self.quiet = options.get("minutes"), bool(options.get("quiet"))
        if options.get("serial") or self.quiet:
            self.screen.live = None
        self.title = f"{run['system']} · {run['config'].get('env', '')} · seed {options.get('seed', 0)}"
        if not self.quiet:
            for what in opening_lines(run, directory, plan, self.console, bool(options.get("verbose"))):
                self.screen.print(what)

    def report(self, row: Row, roles: Mapping[str, Mapping[str, float]]) -> None:
        """Show a report. row: line of metrics.jsonl. roles: how workers spent their time, as in CrewMetrics.roles."""
        self.row, self.roles, self.at = row, roles, self.clock()
        if row["fps"] is not None:
            self.speed = row["fps"] if self.speed is None else 0.7 * self.speed + 0.3 * row["fps"]
        due = self.console.is_terminal or self.at - self.printed >= PACE
        if self.screen.live is None and not self.quiet and due:
            self.printed = self.at
            self.screen.print(Text(self._report_line(), no_wrap=True))

    def refresh(self, frames: int | None = None) -> None:
        """Draw the panel if the last drawing is old enough. frames: number of frames so far."""
        self.screen.draw(lambda: self.panel(frames))

    def warn(self, text: str) -> None:
        """Print the first line of `text` as a warning, also in the panel. Print its other lines only once per run."""
        first, _, below = text.partition("\n")
        self.screen.warn(first)
        if below and below not in self.below:
            self.below.add(below)
            self.screen.print(Text(below.rstrip()))

    def note(self, text: str) -> None:
        """Print a permanent line that is not a warning."""
        if not self.quiet:
            self.screen.print(Text(" ".join(text.split())))

    def end(self, summary: Row, failed: bool = False) -> None:
        """Print the last line: why the run ended, its result, and the next command.

        `failed`: whether an exception ended the run. The exception then gives the reason and says how to continue.
        """
        self.refresh(summary.get("frames"))
        line, screen = closing_line(summary, failed), self.screen.live is not None
        self.screen.close()
        if screen and len(line) > self.console.width:
            line = line.replace(" · next: ", "\nnext: ")
        self.screen.print(Text(line, no_wrap=True))

    def panel(self, frames: int | None = None) -> Panel:
        """Return the panel, which has at most 12 lines."""
        row = self.row
        if not row:
            return self.screen.boxed(self.title, [Text(f"starting, {clock_text(self.clock() - self.begun)}")])
        frames = max(row["frames"], frames or 0)
        seconds = row["wall_seconds"] + max(0.0, self.clock() - self.at)
        done, eta = self._progress(frames, seconds)
        bar = progress_line(done, f"{100 * done:.1f} %", clock_text(seconds), f"eta {eta}")
        shares = [_shares(name, role) for name, role in list(self.roles.items())[:MOST_ROLES]]
        return self.screen.boxed(self.title, [bar, *map(Text, self._numbers(frames)), *shares])

    def _progress(self, frames: int, seconds: float) -> tuple[float, str]:
        """Return the fraction of the run that is done, and the time left at the present speed."""
        done = frames / self.total_frames
        left = [max(0, self.total_frames - frames) / self.speed] if self.speed else []
        if self.minutes is not None:
            done = max(done, seconds / 60 / self.minutes)
            left.append(max(0.0, 60 * self.minutes - seconds))
        return min(1.0, done), clock_text(min(left, default=None))

    def _report_line(self) -> str:
        row = self.row
        done, eta = self._progress(row["frames"], row["wall_seconds"])
        alike = row["frames"] == row["steps"]
        parts = [
            f"{clock_text(row['wall_seconds']):>8}",
            f"{row['frames']:>13,} {'steps' if alike else 'frames'}",
            f"{100 * done:5.1f} %  eta {eta:>8}",
            "" if alike else f"{_number(row['fps'], 0):>7} frames/s",
            f"{_number(row['sps'], 0):>7} steps/s",
            *_returns(row, 9),
            f"lag {_number(row['lag_mean']):>5}",
            f"queue {_number(row['queue_depth'], 0):>3}",
            f"machines {len(row['hosts'])}" if "hosts" in row else "",
        ]
        return "  ".join(p for p in parts if p)

    def _numbers(self, frames: int) -> Iterator[str]:
        row, steps = self.row, self.row["steps"] * frames // max(1, self.row["frames"])
        differ = frames != steps
        memory = f"{row['memory_mb']:,.0f} MB" if row.get("memory_mb") is not None else ""
        returns = "   ".join(_returns(row))
        yield f"frames {frames:,}   " * differ + f"steps {'' if differ else ' '}{steps:,}   updates {row['updates']:,}"
        frames_per_second = f"{_number(row['fps'], 0)} frames/s   " * differ
        yield f"speed  {frames_per_second}{_number(row['sps'], 0)} steps/s   {memory}"
        yield f"{returns}   length {_number(row['episodic_length_mean'], 0)}   games {row['episodes']:,}"
        lags = f"lag    {_number(row['lag_mean'])} mean, {_number(row['lag_max'], 0)} most"
        yield f"{lags}   queue {_number(row['queue_depth'], 0)}   restarts {row['restarts']}"


def _returns(row: Row, width: int = 0) -> list[str]:
    """Return texts about mean returns. If the run has more than FEW agents, only the worst and the best are shown."""
    means, elo = row.get("agent_return_means"), row.get("agent_elo") or {}
    if (tasks := row.get("task_return_means")) is not None:
        return _task_returns(tasks, row.get("human_normalized"))
    if means is None:
        best = row.get("episodic_return_mean_best")
        return [f"return {_number(row['episodic_return_mean']):>{width}}", f"best {_number(best):>{width}}"]
    there = sorted((k for k in means if means[k] is not None), key=lambda k: means[k])
    shown = list(means) if len(means) <= FEW else [there[0], there[-1]] if there else []
    rated = {k: f" (Elo {elo[k]:,.0f})" if k in elo else "" for k in shown}
    return ["return " + ", ".join(f"agent {k} {_number(means[k])}{rated[k]}" for k in shown)]


def _task_returns(means: Mapping[str, float | None], normalized: Mapping[str, Any] | None) -> list[str]:
    """Return [text] with human-normalized scores, or with the mean returns if at most FEW tasks exist."""
    there = [name for name, mean in means.items() if mean is not None]
    if normalized is not None:
        parts = [f"{name} {x:.1f} % ({low:.1f} … {high:.1f})" for name, (x, low, high) in normalized.items()]
        shown = f"human-normalized {', '.join(parts)}"
    elif len(means) <= FEW:
        shown = "return " + ", ".join(f"{name.removeprefix('ALE/')} {_number(means[name])}" for name in means)
    else:
        shown = f"return: {len(there)} of {len(means)} tasks have one"
    return [shown]


CELLS = 20  # width of a bar in characters


def _shares(name: str, role: Mapping[str, float]) -> Text:
    """Return how workers of a role spent their time: a bar with a color for each kind of work, and the percentages."""
    text = Text(f"{name} ×{role['workers']:.0f}".ljust(13)[:13] + " ")
    for kind in KINDS:
        text.append("█" * round(CELLS * role[kind]), style=COLORS[kind])
    text.pad_right(14 + CELLS - len(text))
    for kind in KINDS:
        if kind != "replay" or role[kind]:
            text.append(f"  {kind} ", style=COLORS[kind]).append(f"{100 * role[kind]:.0f}%".rjust(4))
    return text


def schedule_line(decision: Row) -> str:
    """Describe in one line a decision about the number of workers. decision: its line of decisions.jsonl."""
    old, new = decision["from"], decision["to"]
    moves = [f"{k} {old[k]} → {new[k]}" for k in new if new[k] != old[k]] or ["the same numbers"]
    late = f"; {', '.join(decision['late'])} had not arrived" if decision["late"] else ""
    what = "kept" if decision["kept"] else "taken back"
    before, after = decision["before"], decision["after"]
    return f"schedule: {', '.join(moves)}: {before:.4g} → {after:.4g}, {what} ({decision['why']}){late}"


def evaluation_line(row: Row) -> str:
    """Describe in one line an evaluation made during training."""
    best = ", the best so far" if row["best"] else ""
    games = f"{row['episodes']} game{'s' * (row['episodes'] != 1)} ({row['protocol']})"
    return f"evaluation at {row['frames']:,} frames: {row['episodic_return_mean']:,.2f} over {games}{best}"


def match_line(row: Row) -> str:
    """Describe in one line a match that decides whether new weights are used."""
    verdict = "it now plays" if row["passed"] else f"update {row['champion']:,} keeps playing"
    return f"match: update {row['candidate']:,} scored {row['points']:g} of {row['games']} points: {verdict}"


def closing_line(summary: Row, failed: bool = False) -> str:
    """Return the last line of a run: how it ended, its result, and the next command."""
    where = shlex.quote(str(summary["directory"]))
    verb = "resume" if summary["exit_code"] else "evaluate"
    command = f" · next: polyplay {verb} {where}" if summary.get("checkpoint") and not failed else ""
    mean, why = summary["episodic_return_mean"], "failed" if failed else summary["reason"]
    counted = "steps" if summary["frames"] == summary.get("steps") else "frames"
    returns = _returns(summary)[0]
    line = f"{why} · {summary['frames']:,} {counted} in {clock_text(summary['wall_seconds'])}"
    return line + f" · {returns} (last 100 games)" * (mean is not None) + command


def clock_text(seconds: float | None) -> str:
    """Return a number of seconds as text, h:mm:ss."""
    if seconds is None:
        return "-:--:--"
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def short_count(n: float, digits: int = 3) -> str:
    """Return a number as short text: 12,345 becomes 12.3k."""
    rounded = float(f"{n:.{digits}g}")
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(rounded) >= size:
            return f"{rounded / size:g}{unit}"
    return f"{rounded:g}"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"

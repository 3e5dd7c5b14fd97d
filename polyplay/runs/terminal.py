"""A run as a terminal shows it.

A run as a terminal shows it: a live panel, or plain aligned lines where standard output is no terminal.

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from polyplay.core.files import Row
from polyplay.runs.directory import RunDescription
from polyplay.runs.reporter import KINDS, Reporter

# A console for lines that stay and, on a terminal, a picture below them that is drawn anew.
#
# If the terminal is closed, the run gets SIGHUP and ends as with SIGTERM; under nohup it goes on. Imports no torch.


EVERY = 0.25  # seconds between two pictures
LIVE: dict[str, Any] = {"auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}


class Output:
    """Replaces `file` behind a console. gone: the other end is closed (a terminal, a pipe). From then on everything
    goes to /dev/null, also what others write to the file, so that the interpreter's last flush does not change the
    exit status.
    """

    def __init__(self, file: TextIO) -> None:
        self.file, self.gone = file, False

    @property
    def encoding(self) -> str:
        return self.file.encoding or "utf-8"

    def write(self, text: str) -> int:
        self._try(lambda: self.file.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self.file.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def _try(self, write: Callable[[], object]) -> None:
        if self.gone:
            return
        try:
            write()
        except (OSError, ValueError):  # ValueError: it was closed
            self.gone = True
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), self.file.fileno())


class Screen:
    """`print` lines, `draw` the picture, `close`. live: with a picture (default: if the console is a terminal)."""

    def __init__(
        self, console: Console | None = None, live: bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console, self.clock = console or default_console(), clock
        self.output = Output(self.console.file)  # type: ignore[arg-type] # typeshed's IO[str]
        self.console.file = self.output  # type: ignore[assignment]
        if live is None:  # FORCE_COLOR makes rich take a log file for a terminal; a panel needs a real one
            live = self.console.is_terminal and not self.console.is_dumb_terminal and self.output.isatty()
        self.live = Live(**LIVE, console=self.console) if live else None
        self.drawn, self.warning = -EVERY, ""

    def print(self, what: RenderableType) -> None:
        """A line, or several, that stay."""
        print_all(self.console, [what])

    def warn(self, text: str) -> None:
        """A line that stays; pictures have the last one."""
        self.warning = " ".join(text.split())
        self.print(Text.assemble(("warning ", "bold yellow"), self.warning))

    def draw(self, picture: Callable[[], RenderableType], at_once: bool = False) -> None:
        """Show the picture, if there is to be one, and it is time to."""
        if self.live is None or not (at_once or self.clock() - self.drawn >= EVERY):
            return
        self.drawn = self.clock()
        if not self.live.is_started:
            self.live.start()
        self.live.update(picture(), refresh=True)

    def close(self) -> None:
        """Give the terminal back. May be called again."""
        live, self.live = self.live, None
        if live is not None and live.is_started:
            live.stop()

    def boxed(self, title: str, lines: Iterable[RenderableType]) -> Panel:
        """A picture of lines, of which those of text are cut at its width, with the last warning below."""
        shown = [*lines, *([Text(f"warning: {self.warning}", style="yellow")] if self.warning else [])]
        for line in shown:
            if isinstance(line, Text):
                line.no_wrap, line.overflow = True, "ellipsis"
        width = self.console.width - len("^C^C")  # echoed behind it, they would fold the line and leave a border behind
        return Panel(Group(*shown), title=title, title_align="left", border_style="blue", width=width)


def progress_line(done: float, *texts: str) -> Table:
    """A bar, and texts to the right of it."""
    right = [Column(no_wrap=True, justify="right") for _ in texts]
    grid = Table.grid(Column(ratio=1), *right, padding=(0, 2), expand=True)
    grid.add_row(ProgressBar(total=1.0, completed=done), *texts)
    return grid


def default_console() -> Console:
    """Standard output; 120 columns where that is no terminal and COLUMNS does not say."""
    if isinstance(sys.stdout, io.TextIOWrapper) and "utf" not in sys.stdout.encoding.lower():
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 120
    return console


def print_all(console: Console, lines: Iterable[RenderableType]) -> None:
    """Lines are left to the terminal to fold, so that a command or path in them can be copied whole."""
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, Text))


# What a run says of itself before it starts: its title, its settings and its plan, in short or in full.
#
# Imports no torch.


Fact = tuple[str, str]  # a heading and what is under it
BRIEF = ("workers", "network")  # of a plan, the first clause of each, and those that name what was chosen
CHOICES = ("networks in ", "inputs ", "self-play by ")  # how these begin
LAST = "length"  # with the memory
DETAILS = (  # if --verbose
    *("settings", "search", "cores", "gradient", "memory", "disk", "updates"),
    *("repeat", "resume", "episodes", "actions", "once"),
)
MARKS = {"default": " ", "preset": "+", "command": "*", "keyword": "*", "resume": "*", "chosen": "="}


def short_opening(
    run: RunDescription, directory: Path | str, plan: Iterable[Fact], console: Console
) -> Iterator[RenderableType]:
    """The first lines of a run: five, and one for each part of the plan that was asked for."""
    yield _title_line(f"{run['system']} on {run['config'].get('env')}", directory, console)
    yield from fact_lines([("settings", _changed_settings(run)), *short_facts(plan)], console)


def short_facts(plan: Iterable[Fact]) -> list[Fact]:
    """A plan without its details."""
    whole, short = list(plan), dict[str, str]()
    memory = next((f"; memory {text.partition('; ')[0]}" for k, text in whole if k == "memory"), "")
    for k, text in whole:
        first, *others = text.split("; ")
        if k in BRIEF:
            short[k] = "; ".join([first, *(clause for clause in others if clause.startswith(CHOICES))])
        if k == LAST:
            short[k] = f"{text}{memory} (--verbose: the whole plan)"
    return [(k, short.get(k, text)) for k, text in whole if k not in DETAILS]


def opening_lines(
    run: RunDescription, directory: Path | str, plan: Iterable[Fact], console: Console
) -> Iterator[RenderableType]:
    """The same with every value and all of the plan; or all there is of a run that is only planned."""
    yield _title_line(run["system"], directory, console)
    yield settings_lines(run["config"], run["options"], run["sources"])
    environment = " · ".join(f"{k} {v}" for k, v in run["environment"].items())
    yield from fact_lines([("playing", environment), *plan], console)


def _title_line(what: str, directory: Path | str, console: Console) -> Text:
    title, where = f"polyplay {what}", f"  in {directory}"
    return Text.assemble((title, "bold"), "\n" * (len(title + where) > console.width), where)


def _changed_settings(run: RunDescription) -> str:
    """What was given, and what was chosen for this machine; the rest is the preset's."""
    values, kinds = {**run["config"], **run["options"]}, {k: _kind(v) for k, v in run["sources"].items()}
    idle = ("env", "run", "preset", *(("frames",) if values.get("steps") is not None else ()))
    told = {k: f"{k} {_short(values[k])}" for k in kinds if k in values and k not in idle}
    given = ", ".join(text for k, text in told.items() if kinds[k] not in ("default", "preset", "chosen"))
    chosen = ", ".join(text for k, text in told.items() if kinds[k] == "chosen")
    parts = [f"preset {run['options']['preset']}", given, f"chosen for this machine: {chosen}" * bool(chosen)]
    return "; ".join(filter(None, parts))


def fact_lines(facts: Iterable[Fact], console: Console) -> Iterator[RenderableType]:
    """Facts about a run under their headings: folded on a terminal, one line each elsewhere."""
    if not console.is_terminal:
        yield from (Text(f"{heading:<8} {text}") for heading, text in facts)
        return
    table = Table.grid(Column(style="bold", no_wrap=True, min_width=8), Column(), padding=(0, 1))
    for fact in facts:
        table.add_row(*fact)
    yield table


def settings_lines(config: Row, options: Row, sources: Mapping[str, str]) -> RenderableType:
    """All values of the system and the options that were set, each marked, in as many columns as fit."""
    kinds = {name: _kind(source) for name, source in sources.items()}
    set_options = {k: v for k, v in options.items() if kinds.get(k, "default") != "default" or k == "seed"}
    decided = options.get("steps") is not None  # then no frames do
    idle = {"frames" * decided, "atari" * (not str(config.get("env")).startswith("ALE/"))}
    shown = {k: (kinds.get(k, "default"), _short(v)) for k, v in (config | set_options).items() if k not in idle}
    name_width, cells = max(map(len, shown)), list[Text]()
    for name, (kind, text) in shown.items():
        mark, title = (MARKS.get(kind, "*"), "bold yellow"), (f" {name:<{name_width}} ", "bright_black")
        cells.append(Text.assemble(mark, title, f"{text} ", no_wrap=True, overflow="ellipsis"))
    table = Columns(cells, equal=True, column_first=True, padding=(0, 1))
    used = {kind for kind, _ in shown.values()}
    legend = [f"+ {s}" for s in sorted({s for s in sources.values() if s.startswith("preset")})]
    legend += ["* given"] if used - {"default", "preset", "chosen"} else []
    legend += ["= chosen for this machine"] if "chosen" in used else []
    return Group(table, Text("  ".join(["  unmarked: the default", *legend]), style="bright_black"))


def _kind(source: str) -> str:
    return source.partition(" ")[0]


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (tuple, list)):
        return " ".join(map(_short, value)) or "()"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def value_text(value: object) -> str:
    """A hyperparameter; three digits of a fraction."""
    return f"{value:.3g}" if isinstance(value, float) else _short(value)


FEW = 4  # agents whose returns are all told
MOST_ROLES = 4  # keeps the panel within 12 lines
COLOURS = {"env": "green", "infer": "cyan", "learn": "magenta", "replay": "yellow", "wait": "bright_black"}


@dataclass(frozen=True)
class RunGoal:
    """Where the run ends: the first of these."""

    frames: int | None = None
    minutes: float | None = None
    until_return: float | None = None

    def done(self, frames: int, seconds: float) -> float | None:
        """Fraction done, 0 to 1; None if nothing limits the length."""
        parts = [frames / self.frames] if self.frames else []
        parts += [seconds / 60 / self.minutes] if self.minutes else []
        return min(1.0, max(parts)) if parts else None

    def eta(self, frames: int, seconds: float, fps: float | None) -> float | None:
        """Seconds to go at the present speed."""
        left = [max(0, self.frames - frames) / fps] if self.frames and fps else []
        left += [max(0.0, self.minutes * 60 - seconds)] if self.minutes else []
        return min(left) if left else None


class Terminal:
    """`begin`, then `report` per report, `refresh` as often as you like, `warn` when needed, `end`.

    live: a panel, drawn anew 4 times a second (default: if standard output is a terminal and the run not
    serial, for a debugger's sake). passes: updates from one rollout. `close` gives the terminal back; `end` closes.
    """

    def __init__(
        self,
        reporter: Reporter,
        *,
        total_frames: int | None = None,
        passes: int = 1,
        live: bool | None = None,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reporter, self.clock = reporter, clock
        self.screen = Screen(console, live, clock)
        self.console = self.screen.console
        self.goal, self.passes = RunGoal(total_frames), passes
        self.title, self.quiet = "", False  # quiet: nothing but warnings and the last line
        self.row: Row = {}
        self.below = set[str]()  # what stood below warnings, such as tracebacks
        self.begun = self.at = clock()
        self.speed: float | None = None  # frames per second, smoothed for the estimate of the end

    def begin(self, run: RunDescription, directory: Path | str, plan: Iterable[Fact] = ()) -> None:
        """The first lines: where the run is, and its plan in short; with --verbose every value with its source, what
        the environment is, and all of the plan.
        """
        options = run["options"]
        self.goal = replace(self.goal, minutes=options.get("minutes"), until_return=options.get("until_return"))
        self.quiet = bool(options.get("quiet"))
        if options.get("serial") or self.quiet:
            self.screen.live = None
        self.title = f"{run['system']} · {run['config'].get('env', '')} · seed {options.get('seed', 0)}"
        tell = opening_lines if options.get("verbose") else short_opening
        for what in [] if self.quiet else tell(run, directory, plan, self.console):
            self.screen.print(what)

    def report(self, row: Row) -> None:
        """Show a report, as `Reporter.report` returned it."""
        self.row, self.at = row, self.clock()
        if row["fps"] is not None:
            self.speed = row["fps"] if self.speed is None else 0.7 * self.speed + 0.3 * row["fps"]
        if self.screen.live is None and not self.quiet:
            self.screen.print(Text(report_line(row, self.goal, self.reporter.return_best, self.speed), no_wrap=True))

    def refresh(self, frames: int | None = None) -> None:
        """Draw the panel if it is time to; `frames` as they are now. Call it from any loop."""
        self.screen.draw(lambda: self.panel(frames))

    def warn(self, text: str) -> None:
        """A line that stays, with what is below it, once; the panel keeps the last one in view."""
        first, _, below = text.partition("\n")
        self.screen.warn(first)
        if below and below not in self.below:
            self.below.add(below)
            self.screen.print(Text(below.rstrip()))

    def note(self, text: str) -> None:
        """A line that stays."""
        if not self.quiet:
            self.screen.print(Text(" ".join(text.split())))

    def end(self, summary: Row, failed: bool = False) -> None:
        """The last line: why it ended, what came out, and the command to type next, on a line of its own where a screen
        is too narrow; where it failed, an exception says why and how to go on.
        """
        self.refresh(summary.get("frames"))
        line, screen = closing_line(summary, failed), self.screen.live is not None
        self.close()
        if screen and len(line) > self.console.width:
            line = line.replace(" · next: ", "\nnext: ")
        self.screen.print(Text(line, no_wrap=True))

    def close(self) -> None:
        """Give the terminal back. May be called again."""
        self.screen.close()

    def panel(self, frames: int | None = None) -> Panel:
        """The whole picture, at most 12 lines."""
        lines = self._lines(frames or 0) if self.row else [Text(f"starting, {clock_text(self.clock() - self.begun)}")]
        return self.screen.boxed(self.title, lines)

    def _lines(self, frames: int) -> list[RenderableType]:
        frames = max(self.row["frames"], frames)
        numbers = map(Text, _numbers(self.row, frames, self.reporter.return_best, self.passes))
        roles = list(self.reporter.roles.items())[:MOST_ROLES]
        shares = [_shares(name, role, self.console.width) for name, role in roles]
        seconds = self.row["wall_seconds"] + max(0.0, self.clock() - self.at)
        return [self._bar(frames, seconds), *numbers, *shares]

    def _bar(self, frames: int, seconds: float) -> RenderableType:
        done = self.goal.done(frames, seconds)
        eta = self.goal.eta(frames, seconds, self.speed)
        if done is None:
            until = self.goal.until_return
            end = f"until the return reaches {until:g}" if until is not None else "until Ctrl-C"
            return Text(f"{clock_text(seconds)}  {end}")
        return progress_line(done, f"{100 * done:.1f} %", clock_text(seconds), f"eta {clock_text(eta)}")


def report_line(row: Row, goal: RunGoal, best: float | None, speed: float | None) -> str:
    """One report as one line whose columns stand under each other. Where a frame is a step, both are told once."""
    done = goal.done(row["frames"], row["wall_seconds"])
    eta = goal.eta(row["frames"], row["wall_seconds"], speed)
    alike = row["frames"] == row["steps"]
    parts = [
        f"{clock_text(row['wall_seconds']):>8}",
        f"{row['frames']:>13,} {'steps' if alike else 'frames'}",
        f"{100 * done:5.1f} %  eta {clock_text(eta):>8}" if done is not None else "",
        "" if alike else f"{_number(row['fps'], 0):>7} frames/s",
        f"{_number(row['sps'], 0):>7} steps/s",
        *_returns(row, best),
        f"lag {_number(row['lag_mean']):>5}",
        f"queue {_number(row['queue_depth'], 0):>3}",
        f"machines {len(row['hosts'])}" if "hosts" in row else "",
    ]
    return "  ".join(p for p in parts if p)


def _returns(row: Row, best: float | None) -> list[str]:
    """Of one agent its return, and the best so far; of several whose is which, of many the extremes."""
    means, elo = row.get("agent_return_means"), row.get("agent_elo") or {}
    if means is None:
        return [f"return {_number(row['episodic_return_mean']):>9}", f"best {_number(best):>9}"]
    there = sorted((k for k in means if means[k] is not None), key=lambda k: means[k])
    shown = list(means) if len(means) <= FEW else [there[0], there[-1]] if there else []
    rated = {k: f" (Elo {elo[k]:,.0f})" if k in elo else "" for k in shown}
    return ["return " + ", ".join(f"agent {k} {_number(means[k])}{rated[k]}" for k in shown)]


def _numbers(row: Row, frames: int, best: float | None, passes: int = 1) -> list[str]:
    steps = row["steps"] * frames // max(1, row["frames"])  # of the same moment as `frames`
    alone = f"return {_number(row['episodic_return_mean'])} (last 100 games)   best {_number(best)}"
    within = f" (within a rollout: 0 to {passes - 1})" * (passes > 1)
    memory = f"{row['memory_mb']:,.0f} MB" if row.get("memory_mb") is not None else ""
    apart = frames != steps
    return [
        f"frames {frames:,}   " * apart + f"steps {'' if apart else ' '}{steps:,}   updates {row['updates']:,}",
        "speed  " + f"{_number(row['fps'], 0)} frames/s   " * apart + f"{_number(row['sps'], 0)} steps/s   {memory}",
        f"{'   '.join(_returns(row, best)) if 'agent_return_means' in row else alone}   "
        f"length {_number(row['episodic_length_mean'], 0)}   games {row['episodes']:,}",
        f"lag    {_number(row['lag_mean'])} mean, {_number(row['lag_max'], 0)} most{within}   "
        f"queue {_number(row['queue_depth'], 0)}   restarts {row['restarts']}",
        *([_service(row)] if "agents" in row else []),
        *([_machines(row["hosts"])] if "hosts" in row else []),
    ]


def _service(row: Row) -> str:
    """Of systems whose agents are served (crew_metrics)."""
    numbers = ", ".join(f"{row[k + 's']} {k}{'s' * (row[k + 's'] != 1)}" for k in ("agent", "predictor", "trainer"))
    batches = f"{_number(row['predict_batch'], 0)} at once, {_number(row['train_batch'], 0)} an update"
    waits = f"   wait {_number(row['agent_wait_ms'], 1)} ms" if "agent_wait_ms" in row else ""
    return f"serves {_number(row['pps'], 0)} PPS, {_number(row['tps'], 0)} TPS   {batches}{waits}   {numbers}"


def _machines(hosts: Mapping[str, Mapping[str, float]]) -> str:
    """Of the others: how many there are, what crosses, and the slowest link."""
    sums = {name: sum(host[name] for host in hosts.values()) for name in ("workers", "mb_in", "mb_out")}
    traffic = f"{sums['mb_in']:,.1f} MB/s in   {sums['mb_out']:,.1f} MB/s out"
    slowest = f"round trip {max(host['round_trip_ms'] for host in hosts.values()):.1f} ms"
    return f"machines {len(hosts)} others   {sums['workers']:.0f} workers there   {traffic}   {slowest}"


def _shares(name: str, role: Mapping[str, float], width: int) -> Text:
    """Where the time of one worker kind went: a bar of a colour for each kind, and the percentages."""
    shown = [k for k in KINDS if k != "replay" or role[k]]
    cells = max(4, min(30, width - 23 - sum(len(k) + 7 for k in shown)))
    text = Text(f"{name} ×{role['workers']:.0f}".ljust(13)[:13] + " ")
    filled = 0
    for at, kind in enumerate(KINDS):
        upto = cells if at == len(KINDS) - 1 else round(cells * sum(role[k] for k in KINDS[: at + 1]))
        text.append("█" * max(0, upto - filled), style=COLOURS[kind])
        filled = max(filled, upto)
    for kind in shown:
        text.append(f"  {kind} ", style=COLOURS[kind])
        text.append(f"{100 * role[kind]:.0f}%".rjust(4))
    return text


def evaluation_line(row: Row) -> str:
    """One line about an evaluation during training."""
    best = ", the best so far" if row["best"] else ""
    games = f"{row['episodes']} game{'s' * (row['episodes'] != 1)} ({row['protocol']})"
    return f"evaluation at {row['frames']:,} frames: {row['episodic_return_mean']:,.2f} over {games}{best}"


def match_line(row: Row) -> str:
    """One line about a match of a gate."""
    verdict = "it plays from now on" if row["passed"] else f"update {row['champion']:,} goes on playing"
    return f"match: update {row['candidate']:,} makes {row['points']:g} of {row['games']} points: {verdict}"


def closing_line(summary: Row, failed: bool = False) -> str:
    """The last line of a run."""
    where = shlex.quote(str(summary["directory"]))
    verb = "resume" if summary["exit_code"] else "evaluate"
    command = f" · next: polyplay {verb} {where}" if summary.get("checkpoint") and not failed else ""
    mean, why = summary["episodic_return_mean"], "failed" if failed else summary["reason"]
    counted = "steps" if summary["frames"] == summary.get("steps") else "frames"
    told = f"return {_number(mean)}" if "agent_return_means" not in summary else _returns(summary, None)[0]
    line = f"{why} · {summary['frames']:,} {counted} in {clock_text(summary['wall_seconds'])}"
    return line + f" · {told} (last 100 games)" * (mean is not None) + command


def clock_text(seconds: float | None) -> str:
    """h:mm:ss"""
    if seconds is None:
        return "-:--:--"
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def short_count(n: float, digits: int = 3) -> str:
    """12,345 as 12.3k"""
    rounded = float(f"{n:.{digits}g}")
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(rounded) >= size:
            return f"{rounded / size:g}{unit}"
    return f"{rounded:g}"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"

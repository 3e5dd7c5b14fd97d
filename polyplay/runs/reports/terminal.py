"""A run as a terminal shows it: a live panel, or plain aligned lines where standard output is no terminal.

Imports no torch.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from polyplay.common.files import Row
from polyplay.runs.directory import RunDescription
from polyplay.runs.reports.opening import Fact, opening_lines, short_opening
from polyplay.runs.reports.reporter import KINDS, Reporter
from polyplay.runs.reports.screen import EVERY, Screen

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
        self.screen = Screen(console, live)
        self.console = self.screen.console
        self.goal, self.passes = RunGoal(total_frames), passes
        self.title, self.quiet = "", False  # quiet: nothing but warnings and the last line
        self.row: Row = {}
        self.warning, self.below = "", set[str]()  # below: what stood below warnings, such as tracebacks
        self.begun = self.at = clock()
        self.drawn = self.begun - EVERY
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
        if self.clock() - self.drawn < EVERY:
            return
        self.drawn = self.clock()
        self.screen.draw(lambda: self.panel(frames))

    def warn(self, text: str) -> None:
        """A line that stays, with what is below it, once; the panel keeps the last one in view."""
        first, _, below = text.partition("\n")
        self.warning = " ".join(first.split())
        self.screen.print(Text.assemble(("warning ", "bold yellow"), self.warning))
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
        for text in lines:
            if isinstance(text, Text):
                text.no_wrap, text.overflow = True, "ellipsis"
        width = self.console.width - len("^C^C")  # echoed behind it, they would fold the line and leave a border behind
        return Panel(Group(*lines), title=self.title, title_align="left", border_style="blue", width=width)

    def _lines(self, frames: int) -> list[RenderableType]:
        frames = max(self.row["frames"], frames)
        numbers = map(Text, _numbers(self.row, frames, self.reporter.return_best, self.passes))
        roles = list(self.reporter.roles.items())[:MOST_ROLES]
        shares = [_shares(name, role, self.console.width) for name, role in roles]
        warning = [Text(f"warning: {self.warning}", style="yellow")] if self.warning else []
        seconds = self.row["wall_seconds"] + max(0.0, self.clock() - self.at)
        return [self._bar(frames, seconds), *numbers, *shares, *warning]

    def _bar(self, frames: int, seconds: float) -> RenderableType:
        done = self.goal.done(frames, seconds)
        eta = self.goal.eta(frames, seconds, self.speed)
        if done is None:
            until = self.goal.until_return
            end = f"until the return reaches {until:g}" if until is not None else "until Ctrl-C"
            return Text(f"{clock_text(seconds)}  {end}")
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(ratio=1)
        for _ in range(3):
            grid.add_column(no_wrap=True, justify="right")
        bar = ProgressBar(total=1.0, completed=done)
        grid.add_row(bar, f"{100 * done:.1f} %", clock_text(seconds), f"eta {clock_text(eta)}")
        return grid


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
    alone = f" (within a rollout: 0 to {passes - 1})" if passes > 1 else ""
    memory = f"{row['memory_mb']:,.0f} MB" if row.get("memory_mb") is not None else ""
    apart = frames != steps
    return [
        f"frames {frames:,}   " * apart + f"steps {'' if apart else ' '}{steps:,}   updates {row['updates']:,}",
        "speed  " + f"{_number(row['fps'], 0)} frames/s   " * apart + f"{_number(row['sps'], 0)} steps/s   {memory}",
        f"{'   '.join(_returns(row, best)) if 'agent_return_means' in row else _window(row, best)}   "
        f"length {_number(row['episodic_length_mean'], 0)}   games {row['episodes']:,}",
        f"lag    {_number(row['lag_mean'])} mean, {_number(row['lag_max'], 0)} most{alone}   "
        f"queue {_number(row['queue_depth'], 0)}   restarts {row['restarts']}",
        *([_service(row)] if "agents" in row else []),
        *([_machines(row["hosts"])] if "hosts" in row else []),
    ]


def _window(row: Row, best: float | None) -> str:
    return f"return {_number(row['episodic_return_mean'])} (last 100 games)   best {_number(best)}"


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
    return (
        f"{why} · {summary['frames']:,} {counted} in {clock_text(summary['wall_seconds'])}"
        + (f" · {told} (last 100 games)" if mean is not None else "")
        + command
    )


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

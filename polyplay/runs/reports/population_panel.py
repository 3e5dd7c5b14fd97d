"""A population as a terminal shows it while it trains: a live panel, or lines where standard output is no terminal.

Imports no torch.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from polyplay.common.files import Row
from polyplay.population.lineage import read_lineage
from polyplay.population.ranking import best_member, rank_members
from polyplay.population.store import FAILED, TRAINING
from polyplay.runs.reports.opening import Fact, fact_lines
from polyplay.runs.reports.population_table import (
    decision_line,
    member_cells,
    member_columns,
    member_name,
    population_report,
    population_title,
    score_text,
)
from polyplay.runs.reports.screen import EVERY, Screen
from polyplay.runs.reports.terminal import clock_text, short_count

SUMMARY = 60.0  # seconds between two summaries, where there is no panel
AROUND = 7  # lines of the panel that are no members, and the cursor's


class PopulationPanel:
    """`begin`, then `show` and `decision` as they come, `warn` when needed, `end`. quiet: only warnings and the last
    line. live: a panel (default: if standard output is a terminal).
    """

    def __init__(
        self,
        console: Console | None = None,
        quiet: bool = False,
        *,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.screen = Screen(console, False if quiet else live)
        self.quiet, self.clock, self.begun = quiet, clock, clock()
        self.population: Row = {}
        self.training: Mapping[int, Row] = {}
        self.first: tuple[float, int] | None = None  # when the population was first shown, and its steps then
        self.drawn = self.told = self.begun
        self.last, self.warning = "", ""

    def begin(self, lines: Iterable[Fact]) -> None:
        """The first lines."""
        if not self.quiet:
            for line in fact_lines(lines, self.screen.console):
                self.screen.print(line)

    def show(self, population: Row, training: Mapping[int, Row]) -> None:
        """Call it from any loop. population: population.json. training: the last lines of metrics.jsonl of members that
        train now, {} of one that has none.
        """
        self.population, self.training = population, training
        now = self.clock()
        self.first = self.first or (now, self._steps()[0])
        if now - self.drawn >= EVERY:
            self.drawn = now
            self.screen.draw(self.panel)
        if self.screen.live is None and not self.quiet and now - self.told >= SUMMARY:
            self.told = now
            self.screen.print(Text(self._summary(), no_wrap=True))

    def decision(self, row: Row) -> None:
        """A line of lineage.jsonl: without a panel a line, in the panel the last one."""
        self.last = decision_line(row)
        if self.screen.live is None and not self.quiet:
            self.screen.print(Text(self.last, no_wrap=True))

    def warn(self, text: str) -> None:
        """A line that stays; the panel keeps the last one in view."""
        self.warning = " ".join(text.split())
        self.screen.print(Text.assemble(("warning ", "bold yellow"), self.warning))

    def end(self, summary: Row) -> None:
        """The table, and the last line. summary: reason, exit_code, wall_seconds, failed and directory of the
        population."""
        if self.population:
            self.screen.draw(self.panel)
        self.screen.close()
        directory = Path(summary["directory"])
        if self.population and not self.quiet:
            for line in population_report(directory, self.population, read_lineage(directory)):
                self.screen.print(line)
        where = shlex.quote(str(directory))
        verb = "resume" if summary["exit_code"] else "population"
        parts = [
            str(summary["reason"]),
            f"{short_count(self._steps()[0])} steps in {clock_text(summary['wall_seconds'])}",
            *([f"{failed} of {len(self._members())} members failed"] if (failed := summary["failed"]) else []),
        ]
        self.screen.print(Text(" · ".join([*parts, f"next: polyplay {verb} {where}"]), no_wrap=True))

    # ------------------------------------------------------------------------------------------------ its numbers

    def _members(self) -> list[Row]:
        """Best first, with the steps that those who train have made since."""
        return rank_members(self._now(member) for member in self.population.get("members", ()))

    def _now(self, member: Row) -> Row:
        report = self.training.get(member["member"])
        if report is None:
            return member
        return {**member, "state": TRAINING, "steps": max(member["steps"], report.get("steps", 0))}

    def _steps(self) -> tuple[int, int]:
        """Of all members, and how many there are to be; those that failed make no more."""
        members = self._members()
        steps = sum(member["steps"] for member in members)
        left = sum(max(0, self.population["total"] - m["steps"]) for m in members if m["state"] != FAILED)
        return steps, steps + left

    def _progress(self) -> tuple[str, float, str]:
        """What was done of what is to be, the same as a fraction, and the time."""
        steps, goal = self._steps()
        now = self.clock()
        begun, before = self.first or (now, steps)
        left = (goal - steps) * (now - begun) / (steps - before) if steps > before else None
        done = f"{short_count(steps)} of {short_count(goal)} steps"
        return done, steps / goal, f"{clock_text(now - self.begun)}  eta {clock_text(left)}"

    def _summary(self) -> str:
        """One line."""
        done, fraction, clock = self._progress()
        members = self._members()
        parts = [clock, done, f"{100 * fraction:.1f} %"]
        if best := best_member(members):
            middle = median(m["score"] for m in members if m["score"] is not None)
            parts += [f"best {member_name(best['member'])} {score_text(best['score'])}  median {score_text(middle)}"]
        parts += [f"training {' '.join(map(member_name, sorted(self.training)))}"] if self.training else []
        return "  ".join(parts)

    # ------------------------------------------------------------------------------------------------ its picture

    def panel(self) -> Panel:
        """As many members as the terminal has lines for: the best, and those that train."""
        lines = [self._bar(), *self._table()]
        lines += [Text(f"last: {self.last}")] if self.last else []
        lines += [Text(f"warning: {self.warning}", style="yellow")] if self.warning else []
        for line in lines:
            if isinstance(line, Text):
                line.no_wrap, line.overflow = True, "ellipsis"
        width = self.screen.console.width - len("^C^C")  # echoed behind it, they would fold the line
        title = population_title(self.population)
        return Panel(Group(*lines), title=title, title_align="left", border_style="blue", width=width)

    def _bar(self) -> RenderableType:
        done, fraction, clock = self._progress()
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(ratio=1)
        for _ in range(3):
            grid.add_column(no_wrap=True, justify="right")
        grid.add_row(ProgressBar(total=1.0, completed=fraction), f"{100 * fraction:.1f} %", done, clock)
        return grid

    def _table(self) -> Iterator[RenderableType]:
        members, names = self._members(), list(self.population["vary"])
        room = max(3, self.screen.console.height - AROUND - bool(self.warning))
        best = [m["member"] for m in members if m["member"] not in self.training]
        kept = set(list(self.training) + best[: max(0, room - len(self.training))])
        shown = [member for member in members if member["member"] in kept][:room]
        live = [Column(name, no_wrap=True, justify="right") for name in ("return", "steps/s")]
        table = Table(*member_columns(names), *live, box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for member in shown:
            table.add_row(*member_cells(member, names), *self._live_cells(member["member"]))
        yield table
        if rest := [member for member in members if member not in shown]:
            yield Text(_count_rest(rest), style="bright_black")

    def _live_cells(self, member: int) -> tuple[str, str]:
        """Of one that trains: its return now (of the last 100 games), and its speed."""
        report = self.training.get(member, {})
        mean, speed = report.get("episodic_return_mean"), report.get("sps")
        return "" if mean is None else score_text(mean), "" if speed is None else f"{speed:,.0f}"


def _count_rest(members: Iterable[Row]) -> str:
    rest = list(members)
    states = ", ".join(f"{n} {state}" for state, n in Counter(str(m["state"]) for m in rest).items())
    scores = [m["score"] for m in rest if m["score"] is not None]
    between = f"; scores {score_text(min(scores))} to {score_text(max(scores))}" if scores else ""
    return f"{len(rest)} more: {states}{between}"

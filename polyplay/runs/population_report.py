"""Print a population's state: tables and, during training, a live panel. Without a terminal, print plain lines.

Imports no torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from polyplay.core.files import Row
from polyplay.population import store
from polyplay.runs.terminal import PACE, Screen, clock_text, progress_line, ruled_table, short_count, value_text

# Tables and lines about a population: members from best to worst, decisions about them, the winner's ancestors.


STYLES = {store.TRAINING: "green", store.FAILED: "bold red"}


def population_title(population: Row) -> str:
    """Describe a population (runs that are trained together) in one line."""
    members = f"{population['over']} · population of {len(population['members'])}"
    if population["exploit"] == "none":
        return f"{members} · no copies"
    rules = f"{population['exploit']}, {population['explore']}"
    return f"{members} · {rules} every {short_count(population['every'])} steps"


def population_report(directory: Path, population: Row, rows: Sequence[Row]) -> Iterator[RenderableType]:
    """Yield a table of members, lines about failed members, and the winner. rows: the lines of lineage.jsonl."""
    yield _table(population, rows)
    for member in population["members"]:
        if member["state"] == store.FAILED:
            why = " ".join(str(member.get("why", "")).split())
            yield Text(f"{member_name(member['member'])} failed: {why}", style="bold red")
    winner = store.best_member(population["members"])
    if winner is None:
        yield Text("no member has a score yet")
        return
    yield Text.assemble(("winner   ", "bold"), lineage_text(winning_line(winner, rows)))
    where = shlex.quote(str(store.Store(directory).member(winner["member"])))
    yield Text.assemble(("next     ", "bold"), f"polyplay evaluate {where}")


def _table(population: Row, rows: Sequence[Row]) -> Table:
    copies = {
        r["member"]: f"{member_name(r['donor'])} at {short_count(r['steps'])}" for r in rows if r["donor"] is not None
    }
    table = ruled_table("member", "state", numbers=("steps", "score"))
    for name in population["vary"]:
        table.add_column(name, justify="right", overflow="ellipsis")
    if copies:
        table.add_column("copied", justify="right", no_wrap=True)
    for member in store.rank_members(population["members"]):
        cells: list[RenderableType] = [Text(str(member["state"]), style=STYLES.get(member["state"], ""))]
        cells += [short_count(member["steps"]), score_text(member["score"])]
        cells += [value_text(member["values"].get(name)) for name in population["vary"]]
        cells += [copies.get(member["member"], "–")] if copies else []
        table.add_row(member_name(member["member"]), *cells)
    return table


def winning_line(member: Row, rows: Sequence[Row]) -> list[store.Segment]:
    """Return the ancestors of a member, from the first on, followed by the member itself."""
    alone = store.Segment(member["member"], 0, member["steps"], member["values"])
    return store.ancestry(rows, member["member"], member["steps"]) or [alone]


def lineage_text(line: Sequence[store.Segment]) -> str:
    """Return a member and its ancestors as text, latest first, as in `03 ← 05 at 1.5M ← 01 at 500k`."""
    text = member_name(line[-1].member)
    for before, after in reversed(list(pairwise(line))):
        if before.member != after.member:
            text += f" ← {member_name(before.member)} at {short_count(after.begin)}"
    return text


def decision_line(row: Row) -> str:
    """Describe a decision about a member in one line. row: the decision's line of lineage.jsonl."""
    member, new = member_name(row["member"]), row["new"]
    if not row["old"]:
        return f"{member} begins with {', '.join(f'{k} {value_text(v)}' for k, v in new.items())}"
    changes = [
        f"{k} {value_text(row['old'].get(k))} → {value_text(v)}" for k, v in new.items() if row["old"].get(k) != v
    ]
    action = "continues"
    if row["donor"] is not None:
        action = f"copies {member_name(row['donor'])} ({score_text(row['donor_score'])})"
    text = "; ".join([f"{member} ({score_text(row['score'])}) {action}, {row['why']}", *changes])
    return f"{short_count(row['steps'])} steps: {text}"


def member_name(member: int) -> str:
    """Return a member's name of two digits, which is also the name of its directory."""
    return f"{member:02}"


def score_text(score: float | None) -> str:
    return "–" if score is None else f"{score:,.2f}"


class PopulationPanel:
    """Terminal output of a population in training. Call `begin` first, then `show` and `decision` repeatedly, and `end`
    last.

    `quiet`: print only warnings and the last line.
    """

    def __init__(self, quiet: bool = False, screen: Screen | None = None) -> None:
        self.quiet, self.screen = quiet, screen or Screen(live=False if quiet else None)
        self.clock, self.begun = self.screen.clock, self.screen.clock()
        self.population: Row = {}
        self.training: Mapping[int, int] = {}
        self.first: tuple[float, int] | None = None  # time and steps when the population was first shown
        self.reported_at, self.last = self.begun, ""

    def begin(self, lines: Iterable[RenderableType]) -> None:
        """Print the lines at the start of training. If the panel is quiet, print nothing."""
        for line in () if self.quiet else lines:
            self.screen.print(line)

    def show(self, population: Row, training: Mapping[int, int]) -> None:
        """Update the panel. The method may be called often, because the screen is not drawn each time.

        `population`: contents of population.json.
        `training`: {member: its agent steps} for the members that are training.
        """
        self.population, self.training = population, training
        now = self.clock()
        self.first = self.first or (now, self._steps())
        self.screen.draw(self.panel)
        if self.screen.live is None and not self.quiet and now - self.reported_at >= PACE:
            self.reported_at = now
            done, fraction, clock = self._progress()
            parts = clock, done, f"{100 * fraction:.1f} %", self._standing()
            self.screen.print(Text("  ".join(filter(None, parts)), no_wrap=True))

    def decision(self, row: Row) -> None:
        """Show a decision in the panel, or print it without a panel. row: the decision's line of lineage.jsonl."""
        self.last = decision_line(row)
        if self.screen.live is None and not self.quiet:
            self.screen.print(Text(self.last, no_wrap=True))

    def end(self, summary: Row) -> None:
        """Print the table of members and the last line. summary: contents of the population's summary.json."""
        directory = Path(summary["directory"])
        if self.population:
            self.screen.draw(self.panel, at_once=True)
        self.screen.close()
        if self.population and not self.quiet:
            for line in population_report(directory, self.population, store.read_lineage(directory)):
                self.screen.print(line)
        verb = "resume" if summary["exit_code"] else "runs"
        last = f"{summary['reason']} · {short_count(self._steps())} steps in {clock_text(summary['wall_seconds'])}"
        failed = f" · {summary['failed']} of {len(self._members())} members failed" if summary["failed"] else ""
        last += f"{failed} · next: polyplay {verb} {shlex.quote(str(directory))}"
        self.screen.print(Text(last, no_wrap=True))

    # ------------------------------------------------------------------------------------------------ numbers shown

    def _members(self) -> list[Row]:
        """Return the members, best first, with the present number of steps of each member in training."""
        members = {member["member"]: dict(member) for member in self.population.get("members", ())}
        for i, steps in self.training.items():
            members[i] |= {"state": store.TRAINING, "steps": max(members[i]["steps"], steps)}
        return store.rank_members(members.values())

    def _steps(self) -> int:
        return sum(member["steps"] for member in self._members())

    def _progress(self) -> tuple[str, float, str]:
        """Return progress as text, progress as a fraction, and the elapsed and remaining time as text."""
        members, steps, now = self._members(), self._steps(), self.clock()
        goal = steps + sum(max(0, self.population["total"] - m["steps"]) for m in members if m["state"] != store.FAILED)
        begun, before = self.first or (now, steps)
        left = (goal - steps) * (now - begun) / (steps - before) if steps > before else None
        done = f"{short_count(steps)} of {short_count(goal)} steps"
        return done, steps / max(goal, 1), f"{clock_text(now - self.begun)}  eta {clock_text(left)}"

    def _standing(self) -> str:
        best = store.best_member(self._members())
        parts = [f"best {member_name(best['member'])} {score_text(best['score'])}"] if best else []
        parts += [f"training {' '.join(map(member_name, sorted(self.training)))}"] if self.training else []
        return "  ".join(parts)

    def panel(self) -> Panel:
        """Return the panel with the progress, the best member and the last decision."""
        done, fraction, clock = self._progress()
        bar = progress_line(fraction, f"{100 * fraction:.1f} %", done, clock)
        lines = [Text(line) for line in (self._standing(), self.last) if line]
        return self.screen.boxed(population_title(self.population), [bar, *lines])

"""A population as tables and lines: its members, best first, its decisions, and the winner's ancestors.

Imports no torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from polyplay.common.files import Row
from polyplay.population.lineage import Segment, ancestry
from polyplay.population.ranking import best_member, rank_members
from polyplay.population.store import FAILED, TRAINING, Store
from polyplay.runs.reports.opening import value_text
from polyplay.runs.reports.terminal import short_count

MANY = 10  # columns that 80 characters do not hold with wide gaps
STYLES = {TRAINING: "green", FAILED: "bold red"}


def population_title(population: Row) -> str:
    """What it is, in one line."""
    members = f"{population['over']} · population of {len(population['members'])}"
    if population["exploit"] == "none":
        return f"{members} · no copies"
    rules = f"{population['exploit']}, {population['explore']}"
    return f"{members} · {rules} every {short_count(population['every'])} steps"


def population_report(directory: Path, population: Row, rows: Sequence[Row]) -> Iterator[RenderableType]:
    """All members, what failed, and the winner. rows: of lineage.jsonl."""
    yield _table(population, rows)
    for member in population["members"]:
        if member["state"] == FAILED:
            yield Text(f"{member_name(member['member'])} failed: {_one_line(member.get('why'))}", style="bold red")
    winner = best_member(population["members"])
    if winner is None:
        yield Text("no member has a score yet")
        return
    yield Text.assemble(("winner   ", "bold"), lineage_text(winning_line(winner, rows)))
    where = shlex.quote(str(Store(directory).member(winner["member"])))
    yield Text.assemble(("next     ", "bold"), f"polyplay evaluate {where}")


def _table(population: Row, rows: Sequence[Row]) -> Table:
    copies = last_copies(rows)
    columns = member_columns(name.replace("_", "\n") for name in population["vary"])
    columns += [Column("min", justify="right", no_wrap=True, vertical="bottom")]
    columns += [Column("copied", no_wrap=True, vertical="bottom")] if copies else []
    gap = 1 if len(columns) < MANY else 0  # besides the one that every column has
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap, 0, 0))
    for member in rank_members(population["members"]):
        minutes, copy = f"{member['wall_seconds'] / 60:.1f}", copies.get(member["member"], "–")
        cells = [*member_cells(member, population["vary"]), Text(minutes), *([Text(copy)] if copies else [])]
        table.add_row(*cells)
    return table


def member_columns(headings: Iterable[str]) -> list[Column]:
    """Of `member_cells`. headings: of what varies; these columns are cut first where a terminal is narrow."""
    left = [Column(name, no_wrap=True, vertical="bottom") for name in ("member", "state")]
    right = [Column(name, justify="right", no_wrap=True, vertical="bottom") for name in ("steps", "score")]
    return [*left, *right, *(Column(_cut(name), justify="right", vertical="bottom") for name in headings)]


def member_cells(member: Row, names: Iterable[str]) -> list[Text]:
    """Member, state, steps, score, and the values of what varies."""
    state = Text(str(member["state"]), style=STYLES.get(member["state"], ""))
    values = (value_text(member["values"].get(name)) for name in names)
    numbers = (short_count(member["steps"]), score_text(member["score"]))
    return [Text(member_name(member["member"])), state, *map(Text, numbers), *map(_cut, values)]


def last_copies(rows: Iterable[Row]) -> dict[int, str]:
    """Of members that copied: the last donor, and when that was."""
    return {r["member"]: copy_text(r["donor"], r["steps"]) for r in rows if r["donor"] is not None}


def winning_line(member: Row, rows: Sequence[Row]) -> list[Segment]:
    """A member's line of ancestors up to now; where its rows are lost, all of it is its own."""
    alone = Segment(member["member"], 0, member["steps"], member["values"])
    return ancestry(rows, member["member"], member["steps"]) or [alone]


def lineage_text(line: Sequence[Segment]) -> str:
    """`03 ← 05 at 1.5M ← 01 at 500k`: from the last of a line to its founder."""
    text = member_name(line[-1].member)
    for before, after in reversed(list(pairwise(line))):
        if before.member != after.member:
            text += f" ← {copy_text(before.member, after.begin)}"
    return text


def decision_line(row: Row) -> str:
    """A line of lineage.jsonl, for people."""
    member, new = member_name(row["member"]), row["new"]
    if not row["old"]:
        return f"{member} begins with {', '.join(f'{k} {value_text(v)}' for k, v in new.items())}"
    changes = [
        f"{k} {value_text(row['old'].get(k))} → {value_text(v)}" for k, v in new.items() if row["old"].get(k) != v
    ]
    action = "goes on"
    if row["donor"] is not None:
        action = f"copies {member_name(row['donor'])} ({score_text(row['donor_score'])})"
    said = "; ".join([f"{member} ({score_text(row['score'])}) {action}, {row['why']}", *changes])
    return f"{short_count(row['steps'])} steps: {said}"


def member_name(member: int) -> str:
    """As its directory is called."""
    return f"{member:02}"


def copy_text(donor: int, steps: int) -> str:
    """steps: of who copied."""
    return f"{member_name(donor)} at {short_count(steps)}"


def score_text(score: float | None) -> str:
    return "–" if score is None else f"{score:,.2f}"


def _cut(text: str) -> Text:
    """Cut, not folded, where its column is too narrow."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _one_line(text: Any) -> str:
    return " ".join(str(text or "").split())

"""Lineage of a population: a member's line walked back through its donors to a founder, and what it was trained with.

A row is a decision about a member (lineage.jsonl, in order): at agent step `steps` of its own it copied `donor`, which
was at `donor_steps`, or nobody, and went on with the values `new`. The founders' rows come first, at step 0. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyplay.common.files import Row, is_number, read_lines

LINEAGE = "lineage.jsonl"


@dataclass(frozen=True)
class Segment:
    """A part of a line that was trained by one member with the same values."""

    member: int
    begin: int  # agent steps of that member
    end: int
    values: dict[str, Any]


def read_lineage(directory: Path) -> list[Row]:
    """The rows of a population's lineage, in order; none if there is no file. A damaged line is left out."""
    rows = read_lines(directory / LINEAGE, "decision", "member", "steps")
    return [row for row in rows if _is_decision(row)]


def _is_decision(row: Row) -> bool:
    copied = row.get("donor") is None or (is_number(row["donor"]) and is_number(row.get("donor_steps")))
    return copied and isinstance(row.get("old"), dict) and isinstance(row.get("new"), dict)


def ancestry(rows: Sequence[Row], member: int, steps: int | None = None) -> list[Segment]:
    """The line of `member` up to its agent step `steps` (None: to the last that the rows know), oldest first.

    Each segment counts the agent steps of its own member. Where a copy joins two of them, the donor's ends at the step
    that was copied and the receiver's begins at its own. Only the last segment may be empty. A member without a row has
    no line.
    """
    end = _last_step(rows, member) if steps is None else steps
    line: list[Segment] = []
    for row in reversed(rows):  # what a donor did after it was copied comes before its copy here, and is another's
        if row["member"] != member or row["steps"] > end or not _begins_segment(row):
            continue
        if row["steps"] < end or not line:
            line.append(Segment(member, row["steps"], end, row["new"]))
        member, end = (member, row["steps"]) if row["donor"] is None else (row["donor"], row["donor_steps"])
    return line[::-1]


def schedule_of(rows: Sequence[Row], member: int) -> list[tuple[int, dict[str, Any]]]:
    """With which values one agent trains as the line of `member` did: from which agent step on, and the values."""
    found: list[tuple[int, dict[str, Any]]] = []
    at = 0
    for segment in ancestry(rows, member):
        if not found or found[-1][1] != segment.values:
            found.append((at, segment.values))
        at += segment.end - segment.begin
    return found


def _last_step(rows: Sequence[Row], member: int) -> int:
    own = [row["steps"] for row in rows if row["member"] == member]
    given = [row["donor_steps"] for row in rows if row["donor"] == member]
    return max(own + given, default=0)


def _begins_segment(row: Row) -> bool:
    return row["donor"] is not None or row["steps"] == 0 or row["new"] != row["old"]

"""Lineage of a population: a member's line walked back through its donors to a founder, and what it was trained with.

A row is a decision about a member (lineage.jsonl, in order): at agent step `steps` of its own it copied `donor`, which
was at `donor_steps`, or nobody, and went on with the values `new`. The founders' rows come first, at step 0.

A league's rows are of copies: at its update `version` an agent became the donor of update `donor_version`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyplay.common.files import JsonLines, Row, is_number, parse_json, read_lines

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


def _last_step(rows: Sequence[Row], member: int) -> int:
    own = [row["steps"] for row in rows if row["member"] == member]
    given = [row["donor_steps"] for row in rows if row["donor"] == member]
    return max(own + given, default=0)


def _begins_segment(row: Row) -> bool:
    return row["donor"] is not None or row["steps"] == 0 or row["new"] != row["old"]


class LeagueLineage:
    """lineage.jsonl of a league: a line for each copy that the agents have made, in order."""

    def __init__(self, directory: Path):
        self.path = directory / LINEAGE
        self.lines: int | None = None  # that are there; None: nobody has compared them yet

    def write(self, copies: Sequence[Row]) -> None:
        """Add the lines of new copies. At first also those that are missing, and without those of copies that were
        undone. copies: as CopyHistory has made them. Raises OSError.
        """
        if self.lines is None:
            self.lines = self._keep([_copy_line(copy) for copy in copies])
        if len(copies) > self.lines:
            lines = JsonLines(self.path)
            try:
                lines.write(*map(_copy_line, copies[self.lines :]))
            finally:
                lines.close()
            self.lines = len(copies)

    def _keep(self, rows: Sequence[Row]) -> int:
        """Cut the file off where it is not `rows` any more; how many of these it has."""
        if not self.path.exists():
            return 0
        same, end = 0, 0
        with open(self.path, "r+b") as file:
            for line in file:
                if same == len(rows) or not line.endswith(b"\n") or parse_json(line) != rows[same]:
                    break
                same, end = same + 1, end + len(line)
            os.ftruncate(file.fileno(), end)
        return same


def _copy_line(copy: Row) -> Row:
    """A line of lineage.jsonl about a copy."""
    about = {name: copy[name] for name in ("copy", "agent", "donor", "version", "donor_version")}
    counts = {"elo": copy["before"]["elo"]} | {name: copy.get(name) for name in ("donor_elo", "matches", "at")}
    return {**about, **counts, "old": copy.get("old", {}), "new": copy["values"]}  # get: of runs of former versions

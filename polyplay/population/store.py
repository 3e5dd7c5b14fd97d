"""The files of a population of runs: `population.json`, `lineage.jsonl`, and locks of the members in training.

Every change is made under one lock. A decision is first written to `lineage.jsonl`. It becomes valid when
`population.json` counts it. If the process is killed before this, `repair` removes the line. If a process ends, even by
a kill, the operating system releases its locks. This module imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyplay.core import platform
from polyplay.core.errors import UserError
from polyplay.core.files import JsonLines, Row, is_row, read_lines, read_object, write_json
from polyplay.core.machine import now

# Lineage of a population: a member's line leads back through donors to a founder (first member), with hyperparameters.
#
# A row of lineage.jsonl is a decision about `member`. At agent step `steps` this member copied `donor`, which was at
# step `donor_steps`, or no member (null), and continued with hyperparameters `new`. Founders' rows come first, at step
# 0.


LINEAGE = "lineage.jsonl"


@dataclass(frozen=True)
class Segment:
    """A part of a member's history: agent steps that one member trained with the same hyperparameters."""

    member: int
    begin: int  # agent steps of that member
    end: int
    values: dict[str, Any]


def read_lineage(directory: Path) -> list[Row]:
    """Return the rows of a population's lineage, in order. Without a file, return []. Damaged lines are left out."""

    def is_whole(row: Row) -> bool:
        values = isinstance(row.get("old"), dict) and isinstance(row.get("new"), dict)
        return values and (row.get("donor") is None or is_row(row, ("donor", "donor_steps")))

    return list(filter(is_whole, read_lines(directory / LINEAGE, "decision", "member", "steps")))


def ancestry(rows: Sequence[Row], member: int, steps: int | None = None) -> list[Segment]:
    """Return the history of `member` up to its agent step `steps`, the oldest segment first.

    If `steps` is None, the history ends at the last step in `rows`. Each segment counts its member's agent steps. If
    the member copied a donor, the donor's segment ends at the copied step, and the member's segment begins at the
    member's step. Only the last segment may be empty. If the member has no row, the list is empty.
    """
    known = [row["steps"] for row in rows if row["member"] == member]
    known += [row["donor_steps"] for row in rows if row["donor"] == member]
    end, line = max(known, default=0) if steps is None else steps, list[Segment]()
    for row in reversed(rows):  # backward, a donor's rows after the copy come first; they are not of this line
        begins = row["donor"] is not None or row["steps"] == 0 or row["new"] != row["old"]
        if row["member"] != member or row["steps"] > end or not begins:
            continue
        if row["steps"] < end or not line:
            line.append(Segment(member, row["steps"], end, row["new"]))
        member, end = (member, row["steps"]) if row["donor"] is None else (row["donor"], row["donor_steps"])
    return line[::-1]


SCHEMA = 1
FILE, MEMBERS = "population.json", "members"
WAITING, TRAINING, DONE, FAILED = "waiting", "training", "done", "failed"


def founder(member: int, values: Mapping[str, Any]) -> Row:
    """Return the row of a new member of the population, before its first step."""
    counts = dict.fromkeys(("steps", "frames", "since", "copied", "turns", "falls"), 0)
    found: Row = {"member": member, **counts, "score": None, "games": [], "values": dict(values)}
    return found | {"state": WAITING, "why": "", "lost": False, "pending": None, "wall_seconds": 0.0}


class Store:
    """The files of a population's directory. Any process on any machine that shares the directory may make a Store."""

    def __init__(self, directory: Path):
        self.directory = directory

    def member(self, i: int) -> Path:
        """Return the directory of the run of member `i`."""
        return self.directory / MEMBERS / f"{i:02d}"

    def begin(self, about: Mapping[str, Any], values: Sequence[Mapping[str, Any]]) -> None:
        """Create the files. Each entry of `values` becomes a new member with these hyperparameters. Raises OSError."""
        (self.directory / MEMBERS).mkdir(exist_ok=True)
        (self.directory / LINEAGE).unlink(missing_ok=True)
        members = [founder(i, drawn) for i, drawn in enumerate(values)]
        population = {"schema": SCHEMA, **about, "decisions": 0, "wall_seconds": 0.0, "members": members}
        for m in members:
            self._append(line_of(population, m, {}, "drawn from the prior"))
            population["decisions"] += 1
        self.write(population)

    def read(self) -> Row:
        """Read population.json. Raises UserError if the file is missing or damaged."""
        path = self.directory / FILE
        try:
            found = read_object(path)
        except (OSError, ValueError) as e:
            raise UserError(f"RUN: {path} cannot be read ({e}); put back a copy of it") from None
        if found.get("schema") != SCHEMA or not isinstance(found.get("members"), list):
            raise UserError(f"RUN: {path} has not schema {SCHEMA}, which this version reads")
        return found

    def write(self, population: Row) -> None:
        """Write population.json. The caller must hold the lock. Raises OSError."""
        write_json(self.directory / FILE, population)

    def commit(self, population: Row, line: Row) -> None:
        """Write a decision, which is valid after this call. The caller must hold the lock. Raises OSError."""
        self._cut(population["decisions"])
        self._append(line)
        population["decisions"] += 1
        self.write(population)

    def repair(self) -> None:
        """Remove the lines of lineage.jsonl that population.json does not count. Raises OSError."""
        with self.locked() as population:
            self._cut(population["decisions"])

    def _cut(self, decisions: int) -> None:
        path = self.directory / LINEAGE
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            if len(lines) > decisions:
                os.truncate(path, sum(map(len, lines[:decisions])))

    def _append(self, line: Row) -> None:
        lines = JsonLines(self.directory / LINEAGE)
        try:
            lines.write(line)
            os.fsync(lines.file.fd)  # before population.json, which counts the line, is written
        finally:
            lines.close()

    @contextlib.contextmanager
    def locked(self) -> Iterator[Row]:
        """Lock the population in this context, and yield population.json. Raises UserError if `read` does."""
        fd = platform.open_file(self.directory / ".population.lock", os.O_RDWR | os.O_CREAT)
        try:
            platform.lock(fd, wait=True)
            yield self.read()
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def claimed(self, i: int) -> Iterator[bool]:
        """Try to lock member `i` in this context. Yield whether the caller has got the lock."""
        fd = platform.open_file(self.directory / MEMBERS / f".{i:02d}.lock", os.O_RDWR | os.O_CREAT)
        try:
            yield platform.lock(fd)
        finally:
            os.close(fd)


def wall_seconds(population: Row) -> float:
    """Return the total duration of the population's sessions in seconds."""
    clock = population.get("clock")  # monotonic, shared by all processes; less than `since` after a reboot
    return float(clock["before"] + max(0.0, time.monotonic() - clock["since"])) if clock else 0.0


def line_of(
    population: Row, m: Row, old: Mapping[str, Any], why: str, donor: Row | None = None, score: Any = None
) -> Row:
    """Return the line of lineage.jsonl for the next decision.

    m: the member's row after the decision.
    old, score: the member's hyperparameters and score before the decision.
    donor: the row of the donor (member that was copied), or None.
    """
    own = {
        "decision": population["decisions"],
        "member": m["member"],
        "donor": donor and donor["member"],
        "score": score,
    }
    steps = {"donor_score": donor and donor["score"], "steps": m["steps"], "donor_steps": donor and donor["steps"]}
    values = {"old": dict(old), "new": dict(m["values"]), "exploit": population["exploit"]}
    when = {"why": why, "at": now(), "wall_seconds": round(wall_seconds(population), 3)}
    return {**own, **steps, **values, "explore": population["explore"], **when}


def rank_members(members: Iterable[Row]) -> list[Row]:
    """Sort the members from best to worst score, then those without a score, then failed members. Ties go by number."""
    return sorted(members, key=lambda m: (m["state"] == FAILED, m["score"] is None, -(m["score"] or 0.0), m["member"]))


def best_member(members: Iterable[Row]) -> Row | None:
    """Return the row of the best member. If no member has a score, or all have failed, return None."""
    best = next(iter(rank_members(members)), None)
    return None if best is None or best["state"] == FAILED or best["score"] is None else best

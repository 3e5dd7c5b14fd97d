"""What a population knows of its members, as files: `population.json`, `lineage.jsonl`, and who trains whom.

Every change is made under one lock, held for milliseconds. A decision exists once `population.json` has it: its line of
`lineage.jsonl` is written before, and is cut off again where the process was killed in between. Locks are the system's:
it releases them when their holder ends, however. Imports no torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyplay.common.errors import UserError
from polyplay.common.files import JsonLines, Row, read_object, write_json
from polyplay.common.machine import now
from polyplay.population.lineage import LINEAGE
from polyplay.population.rules import Standing

SCHEMA = 1
FILE, MEMBERS = "population.json", "members"
WAITING, TRAINING, DONE, FAILED = "waiting", "training", "done", "failed"


def founder(member: int, values: Mapping[str, Any]) -> Row:
    """A member before its first step."""
    counts = dict.fromkeys(("steps", "frames", "since", "copied", "turns", "falls"), 0)
    found: Row = {"member": member, **counts, "score": None, "games": [], "values": dict(values)}
    return found | {"state": WAITING, "why": "", "lost": False, "pending": None, "wall_seconds": 0.0}


class Store:
    """The files of a population's directory. Processes and machines that share it may all hold one."""

    def __init__(self, directory: Path):
        self.directory = directory

    def member(self, i: int) -> Path:
        """The directory of a member's run."""
        return self.directory / MEMBERS / f"{i:02d}"

    def begin(self, about: Mapping[str, Any], values: Sequence[Mapping[str, Any]]) -> None:
        """Write the founders. Raises OSError."""
        (self.directory / MEMBERS).mkdir(exist_ok=True)
        (self.directory / LINEAGE).unlink(missing_ok=True)
        members = [founder(i, drawn) for i, drawn in enumerate(values)]
        population = {"schema": SCHEMA, **about, "decisions": 0, "wall_seconds": 0.0, "members": members}
        for m in members:
            self._append(line_of(population, m, {}, "drawn from the prior"))
            population["decisions"] += 1
        self.write(population)

    def read(self) -> Row:
        """population.json. Raises UserError: it is not there, or damaged."""
        path = self.directory / FILE
        try:
            found = read_object(path)
        except (OSError, ValueError) as e:
            raise UserError(f"RUN: {path} cannot be read ({e}); put back a copy of it") from None
        if found.get("schema") != SCHEMA or not isinstance(found.get("members"), list):
            raise UserError(f"RUN: {path} has not schema {SCHEMA}, which this version reads")
        return found

    def write(self, population: Row) -> None:
        """Under the lock. Raises OSError."""
        write_json(self.directory / FILE, population)

    def commit(self, population: Row, line: Row) -> None:
        """Write a decision down, under the lock: now it is made. Raises OSError."""
        self._cut(population["decisions"])
        self._append(line)
        population["decisions"] += 1
        self.write(population)

    def repair(self) -> None:
        """Cut off the line of a decision that was not made, because its process was killed. Raises OSError."""
        with self.locked():
            self._cut(self.read()["decisions"])

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
            os.fsync(lines.file.fd)  # population.json, which counts it, is written after it
        finally:
            lines.close()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes the files meanwhile."""
        fd = os.open(self.directory / ".population.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def claimed(self, i: int) -> Iterator[bool]:
        """Whether the member is the caller's alone until the end of this block."""
        fd = os.open(self.directory / MEMBERS / f".{i:02d}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        finally:
            os.close(fd)


def standing(member: Row) -> Standing:
    """What the rules see of a member."""
    score = -math.inf if member["state"] == FAILED else member["score"]
    return Standing(score, tuple(member["games"]))


def wall_seconds(population: Row) -> float:
    """Seconds that the population has taken, all its sessions together: by the clock of the machine's start, which all
    its processes share and nobody sets. That of another start adds nothing.
    """
    clock = population.get("clock")
    return float(clock["before"] + max(0.0, time.monotonic() - clock["since"])) if clock else 0.0


def line_of(
    population: Row, m: Row, old: Mapping[str, Any], why: str, donor: Row | None = None, score: Any = None
) -> Row:
    """The line of lineage.jsonl about the next decision: what member `m` is after it. score: its own before."""
    return {
        "decision": population["decisions"],
        "member": m["member"],
        "donor": donor and donor["member"],
        "score": score,
        "donor_score": donor and donor["score"],
        "steps": m["steps"],
        "donor_steps": donor and donor["steps"],
        "old": dict(old),
        "new": dict(m["values"]),
        "exploit": population["exploit"],
        "explore": population["explore"],
        "why": why,
        "at": now(),
        "wall_seconds": round(wall_seconds(population), 3),
    }

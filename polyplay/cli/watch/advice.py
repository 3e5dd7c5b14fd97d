"""What limits a run, by its own reports, in the words of `polyplay bench`. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from polyplay.cli.bench import advice
from polyplay.common.files import Row, is_number, is_row

KINDS = ("env", "infer", "learn", "replay", "wait")


@dataclass(frozen=True)
class ReportedSystem:
    """What advice asks of a system, from the files of its run."""

    values: Row
    kind: str
    envs: Any


def mean_shares(reports: Iterable[tuple[Row, float]]) -> Row:
    """Time shares and CPU over several reports, each weighted by its seconds; None where no report has a number."""
    reports, shares = list(reports), Row()
    for name in (*(f"time_{kind}" for kind in KINDS), "cpu"):
        found = [(row[name], seconds) for row, seconds in reports if is_number(row.get(name)) and seconds > 0]
        whole = sum(seconds for _, seconds in found)
        shares[name] = sum(share * seconds for share, seconds in found) / whole if found else None
    return shares


def core_time(row: Row) -> advice.CoreTime | None:
    """Where the time of all cores went between two reports: cores that nobody used are idle, the others did what the
    workers were busy with, in proportion. What the report lacks is None.
    """
    if not is_row(row, ("cpu", *(f"time_{k}" for k in KINDS))):
        return None
    times = {k: float(row[f"time_{k}"]) for k in KINDS}
    busy = sum(times[k] for k in KINDS if k != "wait")
    if busy <= 0.0:
        return None
    shares = {k: times[k] / busy for k in KINDS if k != "wait"}
    return advice.split_core_time(shares, row["cpu"], 0.0, 1.0, pooled=False)


def limit_sentence(row: Row, config: Row, pool: str) -> str:
    """The bottleneck and an option to try, or "" before a report tells. row: `mean_shares` of the last reports."""
    where = core_time(row)
    if where is None:
        return ""
    title = str(config.get("env", ""))
    wired = ReportedSystem(config, pool, SimpleNamespace(title=title))
    return advice.sentence(where, wired)

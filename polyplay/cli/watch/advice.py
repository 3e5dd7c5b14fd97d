"""What limits a run, by its own reports, with the advice of `polyplay bench`. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from polyplay.cli.bench import advice
from polyplay.common.files import Row, is_number, is_row
from polyplay.common.machine import cores

BARS = {  # by what limits: its name on the page, and its number in a report
    "env": ("environment", "time_env"),
    "infer": ("acting", "time_infer"),
    "learn": ("learning", "time_learn"),
    "overhead": ("replay", "time_replay"),
}
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


def core_time(row: Row, crowd: float = 1.0) -> advice.CoreTime | None:
    """Where the time of all cores goes, if other programs took none: cores are idle where the workers wait, or where
    there are fewer workers than cores; otherwise they do what the workers do, in proportion. crowd: workers per core.
    None where a number is missing.
    """
    if not is_row(row, ("cpu", *(f"time_{k}" for k in KINDS))):
        return None
    times = {k: float(row[f"time_{k}"]) for k in KINDS}
    busy = sum(times[k] for k in KINDS if k != "wait")
    if busy <= 0.0:
        return None
    used = min(1.0, max(row["cpu"], busy * crowd))
    part = {k: used * times[k] / busy for k in KINDS}
    parts = {k: part[k] for k in ("env", "infer", "learn")}
    return advice.CoreTime(**parts, overhead=part["replay"], others=0.0, idle=1.0 - used)


def limit_sentence(row: Row, config: Row, wiring: Row) -> str:
    """What limits the run, with the number that its bar shows, and an option to try; "" before a report tells.

    row: `mean_shares` of the last reports.
    """
    workers = sum(role["n"] for role in wiring.get("roles", ()))
    where = core_time(row, workers / cores() if workers else 1.0)
    if where is None:
        return ""
    name, title = advice.bottleneck(where), str(config.get("env", ""))
    wired = ReportedSystem(config, str(wiring.get("pool", "")), SimpleNamespace(title=title))
    change = advice.change(name, wired)
    if name == "idle":
        return f"cores are idle for {100 * where.idle:.0f} % of the time: {change}"
    word, share = BARS[name]
    return f"{word} takes {100 * row[share]:.0f} % of the workers' time: {change}"

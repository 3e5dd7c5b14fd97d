"""What the parts of one of ours allow in a contest, measured before and after each of its windows.

A step of the environment E, its share of an acting forward pass I and of the updates L (all passes): each alone with
one compute thread, in as many processes as cores at the same time. The limit is cores / (E + I + L).
"""

from __future__ import annotations

import ast
import contextlib
import statistics
import sys
from typing import Any

from common import Row
from contests import PONG, Contender
from crowd import MeasureProcesses, MeasureRequest, rate_limit

from polyplay.cli import bench
from polyplay.core.errors import UserError, WorkerLost
from polyplay.core.machine import cores


def keywords(fixed: str, setting: str) -> dict[str, Any]:
    """'lanes=64 sync=chunked' as polyplay.train takes it."""
    pairs = (word.split("=", 1) for word in f"{fixed} {setting}".split())
    return {"env": PONG, **{k: _value(v) for k, v in pairs}, **bench.LITTLE}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def turn_of(who: Contender, setting: str) -> int:
    """Of one of ours, see bench.speed.turn; what peers log are whole rounds. 1 for what cannot be: its run says why."""
    with contextlib.suppress(UserError):
        return bench.wire(who.program, keywords(who.fixed, setting)).turn if who.ours else 1
    return 1


def around(*sides: Row) -> Row:
    """What was measured before and after a window, as one row; the mean of the limits."""
    there = [s for s in sides if s]
    if not there:
        return {}
    parts = {k: statistics.fmean(s["parts_us"][k] for s in there) for k in there[0]["parts_us"]}
    found = [s["limit"] for s in there]
    return {"limit": statistics.fmean(found), "limits": found, "parts_us": parts}


class Limits:
    """Use it as a context: its processes wait for orders."""

    def __init__(self, seconds: float):
        """seconds: for each part."""
        self.seconds, self.crowd = seconds, MeasureProcesses(cores())

    def __enter__(self) -> Limits:
        self.crowd.__enter__()
        return self

    def __exit__(self, *gone: Any) -> None:
        self.crowd.__exit__(*gone)

    def row(self, who: Contender, setting: str) -> Row:
        """limit in agent steps/s, and the µs that it is made of; {} and a line where that fails."""
        given = keywords(who.fixed, setting)
        try:
            wired = bench.wire(who.program, given)
            sizes: dict[str, Any] = {"acting": float(wired.lanes), "rows": (wired.T, wired.B), "lanes": wired.lanes}
            del wired
            found = self.crowd.measure(MeasureRequest(who.program, given, self.seconds, **sizes))
        except (UserError, WorkerLost) as e:
            print(f"compare: no limit of {who.name}: {e}", file=sys.stderr)
            return {}
        return {"limit": rate_limit(cores(), found), "parts_us": found}

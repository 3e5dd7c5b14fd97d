"""Errors, findings of checks, ranges of options."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal


class UserError(Exception):
    """A mistake by the user: one line with the option, its value, what is allowed and the fix."""


class Closed(Exception):
    """The crew stops. Every wait on a ring or a version raises this, and workers then return."""


class Leaving(Exception):
    """The run ends before the next update, because a worker's rollout would take too long."""


class EnvFailure(Exception):
    """An environment failed more often than its pool may repair; the message has the environment's traceback."""


class WorkerLost(Exception):
    """A worker raised or was killed; the message holds its traceback or its signal."""


class Diverged(Exception):
    """A reproduction of a run gave other numbers than the run."""


class NotFinite(Exception):
    """A loss, a gradient or a network output was NaN or infinite; a learner saves the batch for inspection."""


Level = Literal["ok", "warning", "failed", "unseen"]


@dataclass(frozen=True)
class Finding:
    name: str
    level: Level
    seen: str
    fix: str = ""


def status(findings: Sequence[Finding]) -> int:
    """Return the exit status: 1 if any finding failed."""
    return int(any(f.level == "failed" for f in findings))


def as_json(findings: Sequence[Finding], more: Mapping[str, object], key: str) -> str:
    """Format one JSON object: `more`, "ok", and the findings under `key`."""
    rows = [dataclasses.asdict(f) for f in findings]
    return json.dumps({**more, "ok": not status(findings), key: rows}, indent=2, ensure_ascii=False)


# Ranges of numeric options, as types of their fields: `lanes: Count = 16`. `runs.flags` checks every value against its
# field's range, whether it comes from the command line, Python or a file. Help prints the range.


LARGEST = 1e30  # limit of numbers in networks, so that they and their sums fit into float32


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, without the bound that `but` names."""

    low: float
    high: float = math.inf
    but: Literal["", "low", "high"] = ""

    def __contains__(self, value: float) -> bool:
        above = self.low < value if self.but == "low" else self.low <= value
        return above and (value < self.high if self.but == "high" else value <= self.high)

    def __str__(self) -> str:
        high = f"{self.high:g}".replace("e+0", "e").replace("e+", "e")
        high = high if float(high) == self.high else str(self.high)  # 1e12, but every digit of 2**63 - 1
        if self.but == "low":
            return f"above {self.low}" + (f", at most {high}" if self.high < LARGEST else "")
        return f"from {self.low} " + ("up" if self.high >= LARGEST else f"to {'below ' * (self.but == 'high')}{high}")

    @property
    def whole(self) -> str:
        """The range with its upper bound, even if that is LARGEST."""
        return f"{self}, at most {LARGEST:g}".replace("+", "") if self.high == LARGEST else str(self)

    @property
    def in_short(self) -> str:
        """The range as help shows it: without an upper bound of VAST or more."""
        if self.high < VAST:
            return str(self)
        return f"above {self.low}" if self.but == "low" else f"at least {self.low}"


VAST = 10**9  # larger values are typing errors
SEATS = 2048  # limit of simultaneous workers, in a role and in a run on all machines
PLAYERS = 64  # limit of players in a match, and of learning agents in a run
MOST = 10**12  # limit of any count: its bytes still fit into 64 bits

Count = Annotated[int, Range(1, MOST)]
ManyFrames = Annotated[int, Range(1, 10 * MOST)]  # agent steps; OpenAI Five's Rerun made 1.7e12
Whole = Annotated[int, Range(0, MOST)]  # 0: none, or chosen automatically
SomeWorkers = Annotated[int, Range(1, SEATS)]
Players = Annotated[int, Range(2, PLAYERS)]
Agents = Annotated[int, Range(1, PLAYERS)]
Workers = Annotated[int, Range(0, SEATS)]  # 0: chosen automatically
Lag = Annotated[int, Range(-1, MOST)]  # -1: any
Simulations = Annotated[int, Range(0, 100_000)]  # per search, whose trees are in memory; 0: the network alone
Width = Annotated[int, Range(2, 16_384)]  # of a layer
Seed = Annotated[int, Range(0, 2**63 - 1)]
Port = Annotated[int, Range(1, 65_535)]

Fraction = Annotated[float, Range(0, 1)]
Decay = Annotated[float, Range(0, 1, but="high")]
Positive = Annotated[float, Range(0, LARGEST, but="low")]
NonNegative = Annotated[float, Range(0, LARGEST)]  # 0: none, or off
Real = Annotated[float, Range(-100_000, 100_000)]
Seconds = Annotated[float, Range(0, 10**9, but="low")]

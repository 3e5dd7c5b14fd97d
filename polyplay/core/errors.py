"""Exceptions, results of checks (findings), and the allowed ranges of numeric options."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal


class UserError(Exception):
    """Mistake by the user. The message is one line: the option, the given value, the allowed values and the fix."""


class Closed(Exception):
    """Raised in a worker that waits for data or weights when the run stops. It ends the worker."""


class Leaving(Exception):
    """Raised in all replicas of a learner to end a run, because one of them waits for a rollout that is too slow."""


class EnvFailure(Exception):
    """Failure of an environment that a restart cannot repair, or that exceeds the allowed number of restarts."""


class WorkerLost(Exception):
    """Loss of a worker, which raised an exception or was killed. The message has the traceback or the signal."""


class Diverged(Exception):
    """Raised if the reproduction of a run computes other numbers than the original run."""


class NotFinite(Exception):
    """Raised if a loss, gradient, reward or network output is NaN or infinite. Learners save the failing batch."""


Level = Literal["ok", "warning", "failed", "unseen"]


@dataclass(frozen=True)
class Finding:
    name: str
    level: Level
    seen: str
    fix: str = ""


def status(findings: Sequence[Finding]) -> int:
    """Return the exit status of a command that made checks, which is 1 if any check failed, else 0."""
    return int(any(f.level == "failed" for f in findings))


def as_json(findings: Sequence[Finding], more: Mapping[str, object], key: str) -> str:
    """Return the results of checks as JSON text. The object has "ok" (false if a check failed) and the items of `more`.
    The list of all results is under `key`.
    """
    rows = [dataclasses.asdict(f) for f in findings]
    return json.dumps({**more, "ok": not status(findings), key: rows}, indent=2, ensure_ascii=False)


# Ranges of numeric options. The type of an option's field names the range: `lanes: Count = 16`. `runs.flags` checks
# values from the command line, from Python and from files against that range. Help prints the range.


LARGEST = 1e30  # limit of options that enter networks, so that such numbers and their sums fit into float32


@dataclass(frozen=True)
class Range:
    """Range of numbers from `low` to `high`. Both bounds are included, except the one that `but` names."""

    low: float
    high: float = math.inf
    but: Literal["", "low", "high"] = ""

    def __contains__(self, value: float) -> bool:
        above = self.low < value if self.but == "low" else self.low <= value
        return above and (value < self.high if self.but == "high" else value <= self.high)

    def __str__(self) -> str:
        high = f"{self.high:g}".replace("e+0", "e").replace("e+", "e")
        high = high if float(high) == self.high else str(self.high)  # 1e12, but all digits of 2**63 - 1
        if self.but == "low":
            return f"above {self.low}" + (f", at most {high}" if self.high < LARGEST else "")
        return f"from {self.low} " + ("up" if self.high >= LARGEST else f"to {'below ' * (self.but == 'high')}{high}")

    @property
    def whole(self) -> str:
        """Full text of the range. It states an upper bound of LARGEST, which `str` leaves out."""
        return f"{self}, at most {LARGEST:g}".replace("+", "") if self.high == LARGEST else str(self)

    @property
    def in_short(self) -> str:
        """Short text of the range for help. It leaves out upper bounds of VAST or more."""
        if self.high < VAST:
            return str(self)
        return f"above {self.low}" if self.but == "low" else f"at least {self.low}"


VAST = 10**9  # help shows no upper bounds of this size or more: such values would be typos
SEATS = 2048  # limit of simultaneous workers of a role, and of a run on all machines together
PLAYERS = 64  # limit of players in a match, and of learning agents in a run
MOST = 10**12  # limit of any count: sizes in bytes computed from counts fit into 64 bits

Count = Annotated[int, Range(1, MOST)]
ManyFrames = Annotated[int, Range(1, 10 * MOST)]  # agent steps of a run; OpenAI Five's Rerun made 1.7e12
Whole = Annotated[int, Range(0, MOST)]  # 0: off, or chosen automatically
SomeWorkers = Annotated[int, Range(1, SEATS)]
Players = Annotated[int, Range(2, PLAYERS)]
Agents = Annotated[int, Range(1, PLAYERS)]
Workers = Annotated[int, Range(0, SEATS)]  # 0: chosen automatically
Lag = Annotated[int, Range(-1, MOST)]  # largest policy lag; -1: unlimited
Simulations = Annotated[int, Range(0, 100_000)]  # simulations per tree search, limited by memory; 0: the network alone
Width = Annotated[int, Range(2, 16_384)]  # width of a layer
Seed = Annotated[int, Range(0, 2**63 - 1)]
Port = Annotated[int, Range(1, 65_535)]

Fraction = Annotated[float, Range(0, 1)]
Decay = Annotated[float, Range(0, 1, but="high")]
Positive = Annotated[float, Range(0, LARGEST, but="low")]
NonNegative = Annotated[float, Range(0, LARGEST)]  # 0: off
Real = Annotated[float, Range(-100_000, 100_000)]
Seconds = Annotated[float, Range(0, 10**9, but="low")]

"""What can be wrong: errors, findings of checks, ranges of options."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal


class UserError(Exception):
    """A mistake of the user's: one line that names the option, what was given, what is allowed and the fix."""


class Closed(Exception):
    """Whoever waits on a ring or a version gets this when the crew stops; workers just return on it."""


class Leaving(Exception):
    """The run ends before the next update: a worker is in a rollout that takes too long to be waited for."""


class EnvFailure(Exception):
    """An environment raised or hung more often than a pool may repair; carries the environment's own traceback."""


class WorkerLost(Exception):
    """A worker raised or was killed; the message holds its traceback or its signal."""


class Diverged(Exception):
    """A replay did not give what the run gave."""


class NotFinite(Exception):
    """A loss, a gradient or a network's answer was NaN or infinite; a learner saves the batch for inspection."""


Level = Literal["ok", "warning", "failed", "unseen"]


@dataclass(frozen=True)
class Finding:
    name: str
    level: Level
    seen: str
    fix: str = ""


def status(findings: Sequence[Finding]) -> int:
    """The exit status: 1 where something failed."""
    return int(any(f.level == "failed" for f in findings))


def as_json(findings: Sequence[Finding], more: Mapping[str, object], key: str) -> str:
    """One JSON object: `more`, whether all is well, and the findings under `key`."""
    rows = [dataclasses.asdict(f) for f in findings]
    return json.dumps({**more, "ok": not status(findings), key: rows}, indent=2, ensure_ascii=False)


# The ranges of options that are numbers, as the types of their fields: `lanes: Count = 16`. `runs.flags` holds every
# value to its field's range, whether it was typed, given in Python or read from a file, and help prints it.


LARGEST = 1e30  # of a number that networks compute with: it is a float32, and so are sums of it


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, but for the one that `but` names."""

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
        """With the bound that nobody needs to know who is within it."""
        return f"{self}, at most {LARGEST:g}".replace("+", "") if self.high == LARGEST else str(self)

    @property
    def in_short(self) -> str:
        """As help shows it: a bound that nobody reaches is left out."""
        if self.high < VAST:
            return str(self)
        return f"above {self.low}" if self.but == "low" else f"at least {self.low}"


VAST = 10**9  # what only a slip of the finger gives
SEATS = 2048  # workers at once: of a role, and of a run, on all machines
PLAYERS = 64  # of a match, and agents that learn in one run
MOST = 10**12  # of anything that is counted: its bytes still fit into 64 bits

Count = Annotated[int, Range(1, MOST)]
ManyFrames = Annotated[int, Range(1, 10 * MOST)]  # agent steps; OpenAI Five's Rerun made 1.7e12
Whole = Annotated[int, Range(0, MOST)]  # where 0 says: none, or chosen
SomeWorkers = Annotated[int, Range(1, SEATS)]
Players = Annotated[int, Range(2, PLAYERS)]
Agents = Annotated[int, Range(1, PLAYERS)]
Workers = Annotated[int, Range(0, SEATS)]  # 0: chosen
Lag = Annotated[int, Range(-1, MOST)]  # -1: any
Simulations = Annotated[int, Range(0, 100_000)]  # of a search whose trees are in memory; 0: the network alone
Width = Annotated[int, Range(2, 16_384)]  # of a layer
Seed = Annotated[int, Range(0, 2**63 - 1)]
Port = Annotated[int, Range(1, 65_535)]

Fraction = Annotated[float, Range(0, 1)]
Decay = Annotated[float, Range(0, 1, but="high")]
Positive = Annotated[float, Range(0, LARGEST, but="low")]
NonNegative = Annotated[float, Range(0, LARGEST)]  # where 0 says: none, or off
Real = Annotated[float, Range(-100_000, 100_000)]
Seconds = Annotated[float, Range(0, 10**9, but="low")]

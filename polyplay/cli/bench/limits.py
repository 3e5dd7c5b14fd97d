"""The arithmetic of `polyplay bench`: limits, where a run's core time goes, and what holds it up. Pure.

All costs are microseconds of one core per agent step. A machine of c cores has c/rate of them for each agent step of a
run; E + I + L of these are its parts, measured alone: a step of the environment, its share of an acting forward pass,
its share of the updates (all passes together). What is left is split into

dearer     the parts cost more in the run than alone: caches, memory, threads, and what surrounds every call
overhead   other work of the run: rows, queues, pipes, the processes around environments, the main process
others     CPU that other programs took
idle       cores that nothing used: some worker waits
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields

MILLION = 1e6
NAMES = {
    "env": "environment",
    "infer": "acting forward",
    "learn": "learning",
    "overhead": "overhead",
    "idle": "waiting",
}


@dataclass(frozen=True)
class PartCosts:
    """Of one agent step, measured alone: its environment, its acting, its learning in all passes."""

    env: float
    infer: float
    learn: float

    @property
    def total(self) -> float:
        return self.env + self.infer + self.learn


@dataclass(frozen=True)
class WatchedRun:
    """A run as measured: rate, cores that it and all else used, its workers and where their wall time went."""

    sps: float  # agent steps per second
    own: float  # cores' worth of CPU time
    others: float
    workers: int  # that count their time
    times: Mapping[str, float]  # fractions: env, infer, learn, wait


@dataclass(frozen=True)
class CoreTime:
    """Where the core time of an agent step goes; the fields add up to `cores/rate`."""

    env: float
    infer: float
    learn: float
    dearer_infer: float
    dearer_learn: float
    dearer_env: float
    overhead: float
    others: float
    idle: float

    @property
    def whole(self) -> float:
        return sum(getattr(self, f.name) for f in fields(self))

    def of(self, name: str) -> float:
        """What one of NAMES takes, as the run has it."""
        return float(getattr(self, name)) + float(getattr(self, f"dearer_{name}", 0.0))


def rate_limit(cores: int, costs: PartCosts) -> float:
    """Agent steps/s if only the parts took time and never waited: cores/(E + I + L)."""
    return cores * MILLION / costs.total


def split_core_time(cores: int, costs: PartCosts, run: WatchedRun, kind: str = "") -> CoreTime:
    """Where the core time of an agent step goes. Never negative: where a run is cheaper than its parts alone (they were
    measured while the machine was slower), the parts are shortened in proportion.

    What acting and learning cost in the run is their wall time there, less what it is stretched by when more workers
    than cores want to run: the run's CPU time over the time its workers were busy. So of environments that a worker
    steps itself (kind, see memory_estimate.kind_of: inline); there these three make up its time, so that what surrounds
    them counts as dearer too, and hardly anything is overhead. With environments in `processes` this cannot be
    measured, since these compete for the same cores: then all of it is overhead.
    """
    whole, own = cores * MILLION / run.sps, run.own * MILLION / run.sps
    own = min(own, whole)
    short = min(1.0, own / costs.total)
    parts = PartCosts(costs.env * short, costs.infer * short, costs.learn * short)
    more = max(0.0, own - parts.total)
    others = min(run.others * MILLION / run.sps, whole - own)
    dearer = {"infer": 0.0, "learn": 0.0, "env": 0.0}
    timed = {"processes": (), "inline": ("infer", "learn", "env")}.get(kind, ("infer", "learn"))
    if timed:
        wall = run.workers * MILLION / run.sps
        busy = wall * (1.0 - run.times.get("wait", 0.0))
        real = wall * min(1.0, own / busy) if busy > 0.0 else 0.0
        dearer |= {k: max(0.0, real * run.times.get(k, 0.0) - getattr(parts, k)) for k in timed}
        total = sum(dearer.values())
        dearer = {k: v * min(1.0, more / total) if total > 0.0 else 0.0 for k, v in dearer.items()}
    overhead = max(0.0, more - sum(dearer.values()))
    idle = max(0.0, whole - own - others)
    more_of = {f"dearer_{k}": v for k, v in dearer.items()}
    return CoreTime(**asdict(parts), **more_of, overhead=overhead, others=others, idle=idle)


def bottleneck(where: CoreTime) -> str:
    """One of NAMES: what takes most of an agent step's core time."""
    return max(NAMES, key=where.of)


def removed_time(where: CoreTime, costs: PartCosts, free: PartCosts, names: Iterable[str]) -> float:
    """Core time per agent step that goes when these parts become free ones. What is left of a part is dearer in the run
    in the same proportion: a small network is called from Python, and finds cold caches, as often as a large one.
    """
    return sum(where.of(k) * (1.0 - getattr(free, k) / getattr(costs, k)) for k in names)


def gain(where: CoreTime, less: float) -> float:
    """How many times as fast a run becomes with so much `less` core time per agent step, all else as it was.
    Waiting and others stay in proportion: a run whose cores were idle for a tenth of the time keeps them so.
    """
    used = where.whole - where.idle - where.others
    return used / max(used - less, 1e-9)

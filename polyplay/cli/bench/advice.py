"""Where a run's core time goes, what holds it up, and what to change, in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from polyplay.common.files import Row
from polyplay.runs.flags import flag


class Advised(Protocol):
    """What advice asks of a system: all its settings, the kind of its pool (memory_estimate.kind_of), its envs."""

    @property
    def values(self) -> Row: ...
    @property
    def kind(self) -> str: ...
    @property
    def envs(self) -> Any: ...


NAMES = {"env": "environment", "infer": "acting forward", "learn": "learning"}
NAMES |= {"overhead": "overhead", "idle": "waiting"}
# by bottleneck: options that help where a page has them, the first that does, and what they do
CHANGES: dict[str, tuple[tuple[str, str], ...]] = {
    "infer": (("agents", "larger acting batches"), ("lanes", "larger acting batches")),
    "learn": (
        ("epochs", "fewer passes over a rollout"),
        ("min_batch", "larger updates"),
        ("batch", "larger updates"),
        ("unroll", "larger updates"),
    ),
    "overhead": (
        ("lanes", "more lanes share what a call costs"),
        ("agents", "more agents share what a call costs"),
        ("unroll", "longer rollouts share what an update costs"),
    ),
    "idle": (
        ("actors", "more actors, while others wait"),
        ("agents", "more agents, while others wait"),
        ("groups", "one group steps while the other is served"),
        ("lanes", "longer turns between two waits"),
    ),
}


@dataclass(frozen=True)
class CoreTime:
    """Shares of all core time. idle: cores that nothing used; others: those that other programs did."""

    env: float
    infer: float
    learn: float
    overhead: float
    others: float
    idle: float

    def of(self, name: str) -> float:
        """One of NAMES."""
        return float(asdict(self)[name])


def split_core_time(times: Mapping[str, float], own: float, others: float, workers: float, pooled: bool) -> CoreTime:
    """Shares of all core time, by what a run's workers report.

    times: shares of their wall time (env, infer, learn, replay, wait). own, others: shares of all cores that the run
    and other programs used; workers: how many there are for each core. What the run used and its workers were not busy
    with is its environments' where these are processes of their own (pooled), else overhead.
    """
    own = min(own, 1.0)
    others = min(others, 1.0 - own)
    busy = 1.0 - times.get("wait", 0.0)
    within = min(own, busy * workers)
    parts = {k: within * times.get(k, 0.0) / busy if busy > 0.0 else 0.0 for k in ("env", "infer", "learn")}
    rest = max(0.0, own - sum(parts.values()))
    outside = min(rest, own - within) if pooled else 0.0
    parts["env"] += outside
    return CoreTime(**parts, overhead=rest - outside, others=others, idle=1.0 - own - others)


def bottleneck(where: CoreTime) -> str:
    """One of NAMES: what takes most of the core time."""
    return max(NAMES, key=where.of)


def sentence(where: CoreTime, wired: Advised) -> str:
    """The bottleneck in words, and what to change."""
    name = bottleneck(where)
    return f"{NAMES[name]} takes {100 * where.of(name):.0f} % of the core time: {change(name, wired)}"


def change(name: str, wired: Advised) -> str:
    """What to change, an option where the system has one."""
    if name == "env":
        return _environment(wired)
    for option, why in CHANGES[name]:
        value = other(option, wired.values)
        if value is not None:
            return f"try {flag(option)} {value} ({why}; it changes what is learnt)"
    computing = name in ("infer", "learn")
    hint = "a smaller --network, or more cores" if computing else "nothing that an option could change"
    return f"{hint}; this system has no setting for it"


def other(option: str, values: Row) -> int | None:
    """Another value of an option that is worth a try; None where there is none."""
    now = values.get(option)
    if not isinstance(now, int) or now < 1:
        return None
    if option == "groups":
        return 2 if now == 1 and values.get("lanes", 1) % 4 == 0 else None
    return {"epochs": now - 1, "actors": now + 1}.get(option, 2 * now) or None


def _environment(wired: Advised) -> str:
    if not wired.envs.title.startswith("ALE/"):
        return f"`polyplay check {wired.envs.title}` measures it; make its step cheaper, or take more cores"
    if wired.kind == "inline":
        return "try --atari baselines: ale-py makes its pictures itself; else more cores"
    return "the emulator has no cheaper setting here; more cores make it faster"

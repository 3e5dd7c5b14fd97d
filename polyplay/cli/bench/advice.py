"""What holds a system up, and what to change, in a sentence each. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from polyplay.cli.bench.limits import NAMES, CoreTime
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


WORTH = 1.1  # times as fast: what a change must promise
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


def sentence(name: str, where: CoreTime, wired: Advised, faster: str = "") -> str:
    """The bottleneck in words, and what to change. faster: the precision in which its network is, if it is another."""
    share = 100 * where.of(name) / where.whole
    return f"{NAMES[name]} takes {share:.0f} % of the core time: {change(name, wired, faster)}"


def faster(rows: Sequence[Row], network: str, now: str) -> str:
    """The precision in which a network alone allows at least a tenth more than `now`, by the machine's table, or ""."""
    limits = {r["precision"]: r["limit"] for r in rows if r["network"] == network}
    best = max(limits, key=lambda k: limits[k], default="")
    return best if best and limits[best] > WORTH * limits.get(now, limits[best]) else ""


def change(name: str, wired: Advised, faster: str = "") -> str:
    if name == "env":
        return _environment(wired)
    if name in ("infer", "learn") and faster:
        return f"try --precision {faster}, in which this network is faster here"
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

"""A replay in a worker: insert rollouts, report, save and load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyplay.buffers.replay import Memory, Replay
from polyplay.common import tree
from polyplay.common.checkpoint import open_checkpoint
from polyplay.common.context import Me
from polyplay.common.tree import Batch

if TYPE_CHECKING:
    pass

REPORT = 100  # updates between two looks at a memory, of whose metrics these are reported

METRICS = (
    *("ratio", "ratio_target", "inserted", "sampled", "size", "age", "bytes", "never_sampled", "late"),
    *("priority_p10", "priority_p50", "priority_p90", "priority_max", "priority_new", "beta"),
)

NAMES = tuple(f"replay_{name}" for name in METRICS)


def beta(replay: Replay, left: float) -> float | None:
    """The exponent of importance weights: from the sampler's β to its last one over the run, which has `left` to go."""
    sampler: Any = replay.sampler
    last = getattr(sampler, "last", None)
    return None if last is None else last + (sampler.beta - last) * left


def keep(memory: Memory, rows: Batch, state: Batch, lane: int = 0) -> float:
    """Keep a rollout [T+1, B] of lanes from `lane` on, but for its last row, which is the next one's first; how many
    agent steps it has.
    """
    first = rows["first"]
    kept = {k: tree.map(lambda x: x[:-1], rows[k]) for k in memory.replay.spec}
    memory.add(kept, slice(lane, lane + first.shape[1]), state)
    return float(np.count_nonzero(~first[1:]))


def tell(me: Me, memory: Memory) -> None:
    """Report how a memory stands."""
    told = memory.metrics()
    me.meter.losses({f"replay_{name}": told[name] for name in METRICS if name in told})


def folder(me: Me) -> str:
    """Where in a checkpoint a worker's memory is."""
    return f"replay/{me.role}-{me.index}"


def restore(me: Me, memory: Memory) -> bool:
    """Go on with what this worker's memory was in the checkpoint; False: nothing was saved of it. Raises UserError."""
    path = open_checkpoint(me.resume).path / folder(me)
    if not path.is_dir():  # replicas that don't wait for each other save no memories
        me.say("warning", f"{me.role} {me.index}: nothing was saved of its replay: it begins empty")
        return False
    memory.load(path)
    return True
